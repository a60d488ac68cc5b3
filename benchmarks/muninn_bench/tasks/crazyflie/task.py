"""Fly a micro-quadrotor through an arena in wind, replanned ten times a second."""

from muninn_bench.tasks.crazyflie.platform import Crazyflie
from muninn_bench.tasks.flown import FlownTask

TASK = FlownTask("crazyflie", Crazyflie.tolerance, Crazyflie)
