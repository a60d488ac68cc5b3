"""A policy that is changed after enabling is not served from its cache; what full compute meets."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

import muninn
from lerobot_cases import make_policy, observation
from muninn.adapters import disable_cache, enable_cache, planner_of
from muninn.certify.certificate import Certificate
from muninn.errors import CertificateError, DenoiserError, InputError
from muninn.programs.forecast import Forecast
from muninn.programs.plan import Everywhere, Family, Static

pytest.importorskip("lerobot.policies.diffusion.modeling_diffusion")

CAMERA = "observation.images.top"


def see(seed: int = 0) -> dict[str, torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    return {
        "observation.state": torch.randn(1, 3, generator=generator),
        CAMERA: torch.rand(1, 3, 32, 32, generator=generator),
    }


def make_image_policy() -> Any:
    from lerobot.configs.types import FeatureType, PolicyFeature
    from lerobot.policies.diffusion.modeling_diffusion import DiffusionPolicy

    config = make_policy(num_inference_steps=8).config
    config.input_features = {
        "observation.state": PolicyFeature(FeatureType.STATE, (3,)),
        CAMERA: PolicyFeature(FeatureType.VISUAL, (3, 32, 32)),
    }
    config.crop_shape = config.pretrained_backbone_weights = None
    config.use_group_norm, config.use_separate_rgb_encoder_per_camera = True, False
    with torch.random.fork_rng():
        torch.manual_seed(0)
        return DiffusionPolicy(config).eval()


@pytest.fixture(scope="module")
def image_certificate() -> Certificate:
    policy = make_image_policy()
    size = 2 * (3 + policy.diffusion.rgb_encoder.feature_dim)
    plans = Everywhere(), Static((0, 1, 4, 7))
    return muninn.calibrate(
        planner_of(policy),
        torch.randn(40, size, generator=torch.Generator().manual_seed(0)),
        tolerance=1e6,
        risk=0.1,
        family=Family.of(Forecast("sample", 1, True), plans, "static"),
        progress=False,
    )


@pytest.fixture
def enabled(image_certificate: Certificate) -> Any:
    """A policy with a camera, its cache on."""
    policy = make_image_policy()
    enable_cache(policy, image_certificate)
    return policy


def call(policy: Any) -> None:
    policy.reset()
    policy.select_action(see())


def scale(module: nn.Module, factor: float, *, hidden: bool) -> None:
    with torch.no_grad():
        for weight in module.parameters():
            (weight.data if hidden else weight).mul_(factor)


@pytest.mark.parametrize(
    "part", ["rgb_encoder", "rgb_encoder.backbone", "unet", "unet.mid_modules"]
)
def test_a_part_in_train_mode_is_an_error_when_calling_and_when_enabling(
    enabled: Any, part: str
) -> None:
    call(enabled)
    assert enabled.muninn.last.evaluations.tolist() == [4]
    certificate = enabled.muninn.cached.certificate
    module = enabled.diffusion.get_submodule(part)
    module.train()
    with pytest.raises(CertificateError, match="network: its weights, settings or mode"):
        call(enabled)
    disable_cache(enabled)
    with pytest.raises(InputError, match="train mode"):
        enable_cache(enabled, certificate)
    module.eval()
    enable_cache(enabled, certificate)
    call(enabled)


@pytest.mark.parametrize("hidden", [False, True])
@pytest.mark.parametrize("part", ["rgb_encoder", "unet"])
def test_other_weights_in_any_part_are_an_error(enabled: Any, part: str, hidden: bool) -> None:
    certificate = enabled.muninn.cached.certificate
    call(enabled)
    module = enabled.diffusion.get_submodule(part)
    scale(module, 2.0, hidden=hidden)  # halved again without a trace of rounding
    with pytest.raises(CertificateError, match="network: its weights"):
        call(enabled)
    disable_cache(enabled)
    with pytest.raises(CertificateError, match=r"model\.weights"):
        enable_cache(enabled, certificate)
    scale(module, 0.5, hidden=hidden)
    enable_cache(enabled, certificate)
    call(enabled)


def compile_whole(policy: Any) -> None:
    policy.diffusion.unet = torch.compile(policy.diffusion.unet, backend="eager")


def compile_in_place(policy: Any) -> None:
    policy.diffusion.unet.compile(backend="eager")


@pytest.mark.parametrize("change", [compile_whole, compile_in_place])
def test_compiling_is_an_error_before_and_after_enabling(
    change: Callable[[Any], None], policy: Any, certificate: Certificate
) -> None:
    enable_cache(policy, certificate)
    change(policy)
    with pytest.raises(CertificateError, match=r"^network: a method, a hook or another function"):
        policy.select_action(observation(0))
    disable_cache(policy)
    with pytest.raises(InputError, match=r"is compiled.*before torch\.compile"):
        enable_cache(policy, certificate)


def test_the_setting_that_compiles_is_named(policy: Any, certificate: Certificate) -> None:
    policy.config.compile_model = True
    with pytest.raises(InputError, match="compile_model=false"):
        enable_cache(policy, certificate)


@pytest.mark.parametrize("number", [float("nan"), float("inf")])
def test_an_observation_that_is_not_finite_fails_in_full_compute_too(
    number: float, policy: Any, certificate: Certificate
) -> None:
    enable_cache(policy, certificate)
    seen = observation(0)
    seen["observation.state"][0, 1] = number
    for each in (seen, observation(1)):  # the history still holds the first
        with pytest.raises(DenoiserError):
            policy.select_action(each)
        assert policy.muninn.last is None
    policy.reset()
    assert policy.select_action(observation(1)).isfinite().all()
    assert policy.muninn.last.fallbacks == 0


@pytest.mark.parametrize("certificate", [None, 3, {"risk": 0.1}], ids=str)
def test_something_that_is_no_certificate_is_refused(policy: Any, certificate: Any) -> None:
    for mismatch in ("error", "full"):
        with pytest.raises(InputError, match=r"certificate is .*path of its file, got"):
            enable_cache(policy, certificate, on_mismatch=mismatch)  # type: ignore[arg-type]
    assert not hasattr(policy, "muninn")
