"""Walker2d: walk forward without falling; data of three walkers."""

from muninn_bench.tasks.control import Scoring
from muninn_bench.tasks.locomotion import Gait, Performer, locomotion

GAIT = Gait(
    "Walker2d-v4",
    (
        Performer("sac-Walker2d-v3", 0.35, noise=0.3),
        Performer("ppo-Walker2d-v3", 0.25),
        Performer("tqc-Walker2d-v3", 0.4),
    ),
)
TASK = locomotion("walker2d", GAIT, 17, 6, Scoring(1.63, 4592.3), 1480, 0.008, ql_steps=25)
