"""Train the Crazyflie's planner: ``python -m muninn_bench.tasks.crazyflie.train --minutes M``.

A goal-conditioned Diffuser: it predicts the clean plan (positions and velocities), start and goal
states are inpainted, 100 steps. Needs torch, numpy and safetensors alone.
"""

from __future__ import annotations

from functools import partial

from muninn_bench.networks.platform_training import train_platform
from muninn_bench.networks.unet import UnetConfig
from muninn_bench.tasks.crazyflie.route import HORIZON

NETWORK = UnetConfig(channels=6, widths=(48, 96, 128))
"""On two cores of a CPU 100 evaluations take several planning periods of 0.1 s; 18 fit into one."""


main = partial(train_platform, "crazyflie", NETWORK, HORIZON, 1024)

if __name__ == "__main__":
    main()
