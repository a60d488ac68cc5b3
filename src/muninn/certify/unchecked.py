"""What no check covers: docs/certificate.md and ``muninn inspect`` print this list."""

UNCHECKED = (
    "whether new contexts are like those calibrated; compared are their structure, shapes, dtypes, "
    "plain values and arrays, and the types of other objects in them (a context unlike all "
    "calibrated may have the smallest bound and rank)",
    "the contexts of a loop that is intercepted: only its states are seen",
    "whether calibration calls are independent of each other",
    "noise that is handed to a call: the promise is about noise as the planner draws it",
    "rows that influence each other in rare batches only: 16 calls are tried",
    "code, settings and tables that answer the stored questions as before and others differently",
    "in a running process: functions of torch and other libraries that somebody replaces, and "
    "what is held by caches of `functools` or by extensions",
    "in a running process: settings and tables that the network rewrites by itself, and writes "
    "through `.data` that leave some numbers of every tensor alone",
    "in a running process: files that the network opens again by itself",
    "what computes a context before the planner sees it (the code of observation encoders)",
    "the metric and the tolerance, where they are functions: a certificate keeps their names",
    "switches of torch that choose kernels or determinism, and the precision of recurrent layers",
    "a `reference` planner: its weights and sampler are compared, its answers are not",
    "rounding at batch sizes other than the calibrated one",
)
