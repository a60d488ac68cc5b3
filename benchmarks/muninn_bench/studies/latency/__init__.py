"""`muninn-bench latency`: every way to make one plan, timed side by side on one machine."""
