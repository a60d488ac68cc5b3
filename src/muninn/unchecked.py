"""What no check covers: docs/certificate.md and ``muninn inspect`` print this list."""

UNCHECKED = (
    "whether new contexts are like those calibrated; compared are their structure, shapes, dtypes, "
    "plain values and arrays, and the types of other objects in them",
    "the contexts of a loop that is intercepted: only its states are seen",
    "whether calibration calls are independent of each other",
    "code that answers the stored questions as before and other questions differently",
    "in a running process: functions of torch and other libraries that somebody replaces, and "
    "helper functions that the network's own code calls at second hand",
    "in a running process: settings that the network rewrites by itself, and writes through `.data` "
    "that leave the first numbers of every weight alone",
    "what computes a context before the planner sees it (the code of observation encoders)",
    "the metric and the tolerance, where they are functions: a certificate keeps their names",
    "switches of torch that choose kernels or determinism, and the precision of recurrent layers",
    "a `reference` planner: its weights and sampler are compared, its answers are not",
    "rounding at batch sizes other than the calibrated one",
)
