"""Planner networks, their training, and their files."""

from muninn_bench.networks.mlp import MlpConfig, TrajectoryMlp
from muninn_bench.networks.teacher import Teacher, load_teacher, save_teacher
from muninn_bench.networks.transformer import TrajectoryTransformer, TransformerConfig
from muninn_bench.networks.unet import TemporalUnet, UnetConfig

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
