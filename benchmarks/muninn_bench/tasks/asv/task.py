"""Steer a surface vessel across a lake in wind and current, replanned every second."""

from muninn_bench.networks.unet import UnetConfig
from muninn_bench.tasks.asv.controller import HORIZON
from muninn_bench.tasks.asv.data import RECORDING
from muninn_bench.tasks.asv.episode import AsvPlatform
from muninn_bench.tasks.flown import FlownTask

NETWORKS = {"diffuser": UnetConfig(channels=4, widths=(160, 192, 192), blocks=3)}
"""Sized so that full compute misses the planning period of 1 s on two cores, and a cached program
makes it easily."""

TASK = FlownTask(
    "asv", AsvPlatform.tolerance, AsvPlatform, RECORDING, NETWORKS, HORIZON, minutes=8.0, batch=512
)
