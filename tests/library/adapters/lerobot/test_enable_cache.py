"""enable_cache on LeRobot's DiffusionPolicy: what it changes, what it leaves alone, how it ends."""

from __future__ import annotations

import copy
import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from lerobot_cases import ACTION, certify, conditions, make_policy, observation
from muninn.adapters import disable_cache, enable_cache, is_cache_enabled, planner_of
from muninn.certify.certificate import Certificate
from muninn.engines.runtime import Runtime
from muninn.errors import CertificateError, InputError

pytest.importorskip("lerobot.policies.diffusion.modeling_diffusion")

EVALUATIONS = 5  # of the certified plan


def act(policy: Any, steps: int = 17, seed: int = 5, **rest: Any) -> Tensor:
    """Actions of an episode, (steps, action), with torch's global generator, as rollouts do."""
    policy.reset()
    torch.manual_seed(seed)
    return torch.cat([policy.select_action(observation(step), **rest) for step in range(steps)])


def untouched(policy: Any) -> bool:
    return "conditional_sample" not in vars(policy.diffusion) and not hasattr(policy, "muninn")


# -- running -----------------------------------------------------------------------------------


def test_a_cached_call_is_the_certified_program(policy: Any, certificate: Certificate) -> None:
    context = conditions(2)
    runtime = Runtime(planner_of(policy), certificate.program)
    expected, record = runtime(context, generator=torch.Generator().manual_seed(1))
    enable_cache(policy, certificate)
    ours = policy.diffusion.conditional_sample(
        2, global_cond=context, generator=torch.Generator().manual_seed(1)
    )
    assert torch.equal(ours, expected)
    last = policy.muninn.last
    assert (last.evaluated == record.evaluated).all() and last.fallbacks == 0
    assert last.evaluations.tolist() == [EVALUATIONS] * 2
    assert last.bound is not None and last.seconds > 0.0


def test_the_queue_plans_every_eighth_action_and_only_then_evaluates(
    policy: Any, certificate: Certificate, count_evaluations: Callable[[Any], list[int]]
) -> None:
    calls = count_evaluations(policy)
    plain = act(policy)
    assert len(calls) == 3 * 100
    enable_cache(policy, certificate)
    calls.clear()
    cached = act(policy)
    assert len(calls) == 3 * EVALUATIONS
    assert cached.shape == plain.shape and not torch.equal(cached, plain)
    record = policy.muninn.last
    policy.select_action(observation(17))  # from the queue
    assert policy.muninn.last is record and len(calls) == 3 * EVALUATIONS
    context = []
    for newest in (0, 8, 16):
        pair = [observation(max(newest - 1, 0)), observation(newest)]
        history = {key: torch.stack([each[key] for each in pair], dim=1) for key in pair[0]}
        context.append(policy.diffusion._prepare_global_conditioning(history))
    torch.manual_seed(5)
    runtime = Runtime(planner_of(policy), certificate.program)
    plans = [runtime(each)[0][0, 1:9] for each in context]
    assert torch.equal(torch.cat(plans)[:17], cached)


def test_the_noise_argument_and_a_chunk_are_served(policy: Any, certificate: Certificate) -> None:
    start = torch.randn(1, 16, ACTION)
    enable_cache(policy, certificate)
    first = act(policy, 8, noise=start)
    assert torch.equal(act(policy, 8, noise=start), first)
    assert not torch.equal(act(policy, 8, noise=start + 1.0), first)
    act(policy, 1)  # LeRobot's chunk needs the history that select_action keeps
    torch.manual_seed(5)
    chunk = policy.predict_action_chunk(observation(0), noise=start)
    assert torch.equal(chunk[0], first)
    with pytest.raises(InputError, match=r"noise has shape \(1, 4, 2\)"):
        policy.predict_action_chunk(observation(0), noise=start[:, :4])


def test_the_global_generator_moves_as_without_a_cache(
    policy: Any, certificate: Certificate
) -> None:
    act(policy)
    after = torch.get_rng_state()
    enable_cache(policy, certificate)
    act(policy)
    assert torch.equal(torch.get_rng_state(), after)


@pytest.mark.parametrize(
    "settings", [{}, {"noise_scheduler_type": "DDIM", "num_inference_steps": 16}], ids=str
)
def test_full_compute_through_an_enabled_policy_and_after_it_is_bit_identical(
    settings: dict[str, Any], certificate: Certificate
) -> None:
    policy = make_policy(seed=1, **settings)  # other weights: the certificate does not hold
    plain = act(policy)
    enable_cache(policy, certificate, on_mismatch="full")
    assert torch.equal(act(policy), plain)
    steps = policy.diffusion.num_inference_steps
    assert policy.muninn.last.evaluations.tolist() == [steps]
    assert "model.weights" in policy.muninn.last.fallback[0]
    disable_cache(policy)
    assert torch.equal(act(policy), plain)


def test_a_certificate_file_and_ddim(tmp_path: Path) -> None:
    policy = make_policy(noise_scheduler_type="DDIM", num_inference_steps=16)
    plain = act(policy)
    path = certify(policy).save(tmp_path / "policy.muninn.safetensors")
    enable_cache(policy, path)
    assert not torch.equal(act(policy), plain)
    assert policy.muninn.last.evaluations.tolist() == [EVALUATIONS]
    assert policy.muninn.cached.certificate.identity["sampler"]["steps"] == 16


# -- off again ---------------------------------------------------------------------------------


def test_disabling_leaves_no_trace(policy: Any, certificate: Certificate) -> None:
    plain = act(policy)
    outer, inner = set(vars(policy)), set(vars(policy.diffusion))
    assert not is_cache_enabled(policy)
    disable_cache(policy)  # nothing to do
    for _ in range(2):
        enable_cache(policy, certificate)
        assert is_cache_enabled(policy)
        act(policy, 1)
        disable_cache(policy)
        assert not is_cache_enabled(policy) and untouched(policy)
        assert set(vars(policy)) == outer and set(vars(policy.diffusion)) == inner
        assert torch.equal(act(policy), plain)


def test_disabling_works_after_a_call_that_raised(policy: Any, certificate: Certificate) -> None:
    plain = act(policy)
    enable_cache(policy, certificate, on_failure="error")
    act(policy, 1)

    def fail(*_: Any) -> Tensor:
        return torch.full((1, 16, ACTION), float("nan"))

    hook = policy.diffusion.unet.register_forward_hook(fail)
    with pytest.raises(CertificateError, match="a hook"):
        act(policy, 1)
    assert policy.muninn.last is None
    disable_cache(policy)
    hook.remove()
    assert untouched(policy) and torch.equal(act(policy), plain)


def test_enabling_twice_is_an_error_and_the_first_stays(
    policy: Any, certificate: Certificate
) -> None:
    enable_cache(policy, certificate)
    enabled = policy.muninn
    with pytest.raises(InputError, match="already enabled"):
        enable_cache(policy, certificate)
    assert policy.muninn is enabled


def test_a_refused_certificate_leaves_no_trace(policy: Any, certificate: Certificate) -> None:
    other = make_policy(seed=1)
    with pytest.raises(CertificateError, match=r"model\.weights"):
        enable_cache(other, certificate)
    assert untouched(other)


def test_a_loop_that_someone_else_replaced_is_left_to_them(
    policy: Any, certificate: Certificate
) -> None:
    policy.diffusion.conditional_sample = print
    with pytest.raises(InputError, match="already replaced"):
        enable_cache(policy, certificate)
    assert not is_cache_enabled(policy) and policy.diffusion.conditional_sample is print
    del policy.diffusion.conditional_sample
    enable_cache(policy, certificate)
    policy.diffusion.conditional_sample = print
    with pytest.raises(InputError, match="replaced after enable_cache"):
        disable_cache(policy)


# -- copies and files ----------------------------------------------------------------------------


@pytest.mark.parametrize(
    "duplicate", [copy.deepcopy, lambda each: pickle.loads(pickle.dumps(each))]
)
def test_a_copy_is_a_plain_policy_of_its_own(
    duplicate: Callable[[Any], Any],
    policy: Any,
    certificate: Certificate,
    count_evaluations: Callable[[Any], list[int]],
) -> None:
    plain = act(policy)
    enable_cache(policy, certificate)
    cached = act(policy)
    twin = duplicate(policy)
    twins_twin = duplicate(twin)
    calls = count_evaluations(policy) if duplicate is copy.deepcopy else []
    for each in (twin, twins_twin):
        assert not is_cache_enabled(each) and each.muninn is None
        assert each.diffusion.conditional_sample.__self__ is each.diffusion
        assert torch.equal(act(each), plain)
    assert calls == []  # the original did not run
    policy.diffusion.unet._forward_pre_hooks.clear()  # what counted would count as another network
    enable_cache(twin, certificate)  # it has the same weights
    assert torch.equal(act(twin), cached) and policy.muninn is not twin.muninn
    disable_cache(twin)
    assert untouched(twin) and torch.equal(act(twin), plain)
    assert is_cache_enabled(policy) and torch.equal(act(policy), cached)


def test_saving_and_weights_are_unaffected(
    policy: Any, certificate: Certificate, tmp_path: Path
) -> None:
    plain = act(policy)
    keys, modules = list(policy.state_dict()), len(list(policy.modules()))
    policy.save_pretrained(tmp_path / "plain")
    enable_cache(policy, certificate)
    act(policy)
    policy.save_pretrained(tmp_path / "cached")
    assert list(policy.state_dict()) == keys and len(list(policy.modules())) == modules
    files = sorted(path.name for path in (tmp_path / "plain").iterdir())
    assert files == sorted(path.name for path in (tmp_path / "cached").iterdir())
    for name in files:
        saved = (tmp_path / "cached" / name).read_bytes()
        assert saved == (tmp_path / "plain" / name).read_bytes()
    again = type(policy).from_pretrained(tmp_path / "cached")
    assert not is_cache_enabled(again) and torch.equal(act(again), plain)
    enable_cache(again, certificate)  # the certificate knows the policy after a round trip
    assert torch.equal(act(again), act(policy))


# -- a policy that is not the certified one -------------------------------------------------------


def test_train_mode_is_an_error_when_enabling_and_when_calling(
    policy: Any, certificate: Certificate
) -> None:
    with pytest.raises(InputError, match="train mode"):
        enable_cache(policy.train(), certificate)
    assert untouched(policy)
    enable_cache(policy.eval(), certificate)
    policy.train()
    with pytest.raises(
        CertificateError, match="policy: train mode: certificate False, policy True"
    ):
        act(policy, 1)
    policy.eval()
    act(policy, 1)


def test_another_number_of_steps_is_an_error_when_enabling_and_when_calling(
    policy: Any, certificate: Certificate
) -> None:
    enable_cache(policy, certificate)
    policy.diffusion.num_inference_steps = 50
    with pytest.raises(
        CertificateError, match="policy: inference steps: certificate 100, policy 50"
    ):
        act(policy, 1)
    disable_cache(policy)
    with pytest.raises(CertificateError, match=r"sampler\.steps: certificate 100, planner 50"):
        enable_cache(policy, certificate)


def test_another_device_weights_scheduler_or_autocast_is_an_error_when_calling(
    policy: Any, certificate: Certificate
) -> None:
    enable_cache(policy, certificate)
    with (
        torch.autocast("cpu"),
        pytest.raises(CertificateError, match="arithmetic: certificate plain"),
    ):
        act(policy, 1)
    scheduler = policy.diffusion.noise_scheduler
    policy.diffusion.noise_scheduler = make_policy(clip_sample=False).diffusion.noise_scheduler
    with pytest.raises(CertificateError, match="policy: scheduler: certificate DDPMScheduler"):
        act(policy, 1)
    policy.diffusion.noise_scheduler = scheduler
    act(policy, 1)
    policy.load_state_dict(make_policy(seed=1).state_dict())
    with pytest.raises(CertificateError, match="network: its weights"):
        act(policy, 1)
    policy.to("meta")
    with pytest.raises(CertificateError, match="network: its weights"):
        act(policy, 1)


def test_a_class_without_an_adapter_is_told_what_is_supported(certificate: Certificate) -> None:
    with pytest.raises(InputError, match=r"torch\.nn.*Linear.*DiffusionPolicy.*adapter\.md"):
        enable_cache(torch.nn.Linear(1, 1), certificate)
    assert not is_cache_enabled(torch.nn.Linear(1, 1))
