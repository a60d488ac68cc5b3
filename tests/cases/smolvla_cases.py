"""A tiny, randomly initialised SmolVLA of LeRobot's real class, from files made here, offline."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from torch import Tensor

import muninn
from muninn.adapters import planner_of
from muninn.adapters.lerobot import prefixes
from muninn.certify.certificate import Certificate
from muninn.programs.forecast import Forecast
from muninn.programs.plan import Everywhere, Family, Static

STATE, ACTION, CHUNK, TOKENS = 3, 2, 6, 4
SPECIAL = {
    "fake_image_token": "<fake>",
    "image_token": "<image>",
    "global_image_token": "<global>",
    "end_of_utterance_token": "<end>",
}
WORDS = ["<pad>", "<unk>", *SPECIAL.values(), "pick", "place"]


def save_vlm(folder: Path) -> Path:
    """Configuration and processor of the smallest vision-language model that LeRobot takes."""
    from tokenizers import Tokenizer, models, pre_tokenizers
    from transformers import (
        Idefics3ImageProcessor,
        Idefics3Processor,
        PreTrainedTokenizerFast,
        SmolVLMConfig,
    )

    words = Tokenizer(models.WordLevel({w: i for i, w in enumerate(WORDS)}, unk_token="<unk>"))
    words.pre_tokenizer = pre_tokenizers.Whitespace()
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=words,
        pad_token="<pad>",
        unk_token="<unk>",
        extra_special_tokens=SPECIAL,
    )
    SmolVLMConfig(
        vision_config={
            "hidden_size": 16,
            "intermediate_size": 16,
            "num_hidden_layers": 1,
            "num_attention_heads": 2,
            "image_size": 32,
            "patch_size": 16,
        },
        text_config={
            "model_type": "llama",
            "hidden_size": 16,
            "intermediate_size": 16,
            "num_hidden_layers": 2,
            "num_attention_heads": 2,
            "num_key_value_heads": 1,
            "head_dim": 8,
            "vocab_size": len(WORDS),
            "pad_token_id": 0,
        },
        scale_factor=2,
        image_token_id=WORDS.index("<image>"),
        pad_token_id=0,
    ).save_pretrained(folder)
    Idefics3Processor(Idefics3ImageProcessor(), tokenizer).save_pretrained(folder)
    return folder


def make_policy(vlm: Path, seed: int = 0, **changes: Any) -> Any:
    """One camera of 32 by 32, chunks of 6 actions padded to 5 channels; in eval mode."""
    from lerobot.configs.types import FeatureType, PolicyFeature
    from lerobot.policies.smolvla.configuration_smolvla import SmolVLAConfig
    from lerobot.policies.smolvla.modeling_smolvla import SmolVLAPolicy

    settings: dict[str, Any] = {"num_steps": 10, **changes}
    config = SmolVLAConfig(
        chunk_size=CHUNK,
        n_action_steps=4,
        max_state_dim=4,
        max_action_dim=5,
        resize_imgs_with_padding=(32, 32),
        tokenizer_max_length=TOKENS,
        vlm_model_name=str(vlm),
        num_vlm_layers=2,
        expert_width_multiplier=0.5,
        device="cpu",
        input_features={
            "observation.state": PolicyFeature(FeatureType.STATE, (STATE,)),
            "observation.images.front": PolicyFeature(FeatureType.VISUAL, (3, 32, 32)),
        },
        output_features={"action": PolicyFeature(FeatureType.ACTION, (ACTION,))},
        **settings,
    )
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        return SmolVLAPolicy(config).eval()


def observation(seed: int, rows: int = 1) -> dict[str, Tensor]:
    """As the preprocessor returns it; the last token is padding."""
    generator = torch.Generator().manual_seed(seed)
    mask = torch.ones(rows, TOKENS, dtype=torch.bool)
    mask[:, -1] = False
    return {
        "observation.state": torch.randn(rows, STATE, generator=generator),
        "observation.images.front": torch.rand(rows, 3, 32, 32, generator=generator),
        "observation.language.tokens": torch.randint(6, 8, (rows, TOKENS), generator=generator),
        "observation.language.attention_mask": mask,
    }


def certify(policy: Any) -> Certificate:
    """Whatever its accuracy: a plan of 5 of 10 steps."""
    family = Family.of(
        Forecast("velocity", 1, True), (Everywhere(), Static((0, 1, 2, 5, 9))), "static"
    )
    return muninn.calibrate(
        planner_of(policy),
        prefixes(policy, [observation(0, 72)]),
        tolerance=1e6,
        risk=0.1,
        family=family,
        progress=False,
    )
