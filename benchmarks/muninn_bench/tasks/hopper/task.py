"""Hopper: hop forward without falling; data of one hopper, with less and more noise."""

from muninn_bench.tasks.control import Scoring
from muninn_bench.tasks.locomotion import Gait, Performer, locomotion

GAIT = Gait(
    "Hopper-v4",
    (Performer("sac-Hopper-v3", 0.4), Performer("sac-Hopper-v3", 0.6, noise=0.1)),
)
TASK = locomotion("hopper", GAIT, 11, 3, Scoring(-20.27, 3234.3), 2550, 0.008)
