"""How often the monitor cries wolf, and how soon it sees five shifts of the bundled planner."""
