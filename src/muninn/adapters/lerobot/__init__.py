"""LeRobot's policies: contexts and episodes to calibrate on, and a metric in physical units.

:func:`muninn.adapters.planner_of` and :func:`muninn.adapters.enable_cache` take the policies
themselves. Importing this imports no framework.
"""

from muninn.adapters.lerobot.diffusion import global_conditions
from muninn.adapters.lerobot.driven import driven_episodes, driven_outcomes
from muninn.adapters.lerobot.metric import executed_actions
from muninn.adapters.lerobot.recorded import recorded_calls, recorded_episodes
from muninn.adapters.lerobot.smolvla import prefixes

__all__ = [
    "driven_episodes",
    "driven_outcomes",
    "executed_actions",
    "global_conditions",
    "prefixes",
    "recorded_calls",
    "recorded_episodes",
]
