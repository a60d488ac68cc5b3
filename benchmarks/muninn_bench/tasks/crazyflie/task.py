"""Fly a micro-quadrotor through an arena in wind, replanned ten times a second."""

from muninn_bench.networks.unet import UnetConfig
from muninn_bench.tasks.crazyflie.data import HORIZON, RECORDING
from muninn_bench.tasks.crazyflie.episode import Crazyflie
from muninn_bench.tasks.flown import FlownTask

NETWORKS = {"diffuser": UnetConfig(channels=6, widths=(48, 96, 128))}
"""On two cores of a CPU 100 evaluations take several planning periods of 0.1 s; 18 fit into one."""

TASK = FlownTask(
    "crazyflie",
    Crazyflie.tolerance,
    Crazyflie,
    RECORDING,
    NETWORKS,
    HORIZON,
    minutes=5.5,
    batch=1024,
)
