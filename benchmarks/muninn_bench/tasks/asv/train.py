"""Train the vessel's planner: ``python -m muninn_bench.tasks.asv.train --minutes M``.

Needs torch, numpy, safetensors and rich alone. Writes ``teacher.safetensors`` and
``training.csv`` into the folder.
"""

from __future__ import annotations

from functools import partial

from muninn_bench.networks.platform_training import train_platform
from muninn_bench.networks.unet import UnetConfig
from muninn_bench.tasks.asv.reference import HORIZON

NETWORK = UnetConfig(channels=4, widths=(160, 192, 192), blocks=3)
"""Sized so that full compute misses the planning period of 1 s on two cores, and a cached program
makes it easily."""


main = partial(train_platform, "asv", NETWORK, HORIZON, 512)

if __name__ == "__main__":
    main()
