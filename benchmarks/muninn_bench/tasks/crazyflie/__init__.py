"""A Crazyflie in simulation: 3-D navigation among obstacles, replanned at 10 Hz."""
