"""Functions of a task that write rows."""
