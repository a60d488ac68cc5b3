"""Planner networks, their training, and their files."""

from muninn.planners.mlp import MlpConfig, TrajectoryMlp
from muninn.planners.teacher import Teacher, load_teacher, save_teacher
from muninn.planners.transformer import TrajectoryTransformer, TransformerConfig
from muninn.planners.unet import TemporalUnet, UnetConfig

__all__ = [
    "MlpConfig",
    "Teacher",
    "TemporalUnet",
    "TrajectoryMlp",
    "TrajectoryTransformer",
    "TransformerConfig",
    "UnetConfig",
    "load_teacher",
    "save_teacher",
]
