"""Planner networks, their training, and their files."""

from muninn.planners.teacher import Teacher, load_teacher, save_teacher
from muninn.planners.unet import TemporalUnet, UnetConfig

__all__ = ["Teacher", "TemporalUnet", "UnetConfig", "load_teacher", "save_teacher"]
