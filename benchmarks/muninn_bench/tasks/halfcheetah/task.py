"""HalfCheetah: run as fast as possible; data of two runners of middling skill."""

from muninn_bench.tasks.control import Scoring
from muninn_bench.tasks.locomotion import Gait, Performer, locomotion

GAIT = Gait(
    "HalfCheetah-v4",
    (
        Performer("ars-HalfCheetah-v3", 0.3, own_noise=False, noise=0.1),
        Performer("ppo-HalfCheetah-v3", 0.7),
    ),
)
TASK = locomotion("halfcheetah", GAIT, 17, 6, Scoring(-280.18, 12135.0), 1000, 0.05)
