"""The study behind docs/paper.md: the published method, its baselines and ours, side by side."""
