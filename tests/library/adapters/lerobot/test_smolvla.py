"""LeRobot's SmolVLA through the adapter: full compute bit for bit, and the switch."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from muninn.adapters import disable_cache, enable_cache, is_cache_enabled, planner_of
from muninn.adapters.lerobot import executed_actions, prefixes
from muninn.certify.certificate import Certificate
from muninn.context import tensors
from muninn.engines.runtime import Runtime
from muninn.errors import CertificateError, InputError
from muninn.programs.plan import Program
from smolvla_cases import ACTION, CHUNK, certify, make_policy, observation, save_vlm

pytest.importorskip("transformers")
pytest.importorskip("lerobot.policies.smolvla.modeling_smolvla")

BATCH = 2


@pytest.fixture(scope="module")
def vlm(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_vlm(tmp_path_factory.mktemp("vlm"))


@pytest.fixture
def policy(vlm: Path) -> Any:
    return make_policy(vlm)


@pytest.fixture(scope="module")
def certificate(vlm: Path) -> Certificate:
    return certify(make_policy(vlm))


def bits(tensor: Tensor) -> Tensor:
    return tensor.contiguous().view(torch.int32)


def chunk(policy: Any, seed: int = 5, **rest: Any) -> Tensor:
    torch.manual_seed(seed)
    result: Tensor = policy.predict_action_chunk(observation(1, BATCH), **rest)
    return result


def count(policy: Any) -> list[int]:
    """Rows of every evaluation of the expert from now on."""
    calls: list[int] = []
    policy.model.action_in_proj.register_forward_pre_hook(
        lambda _, arguments: calls.append(len(arguments[0]))
    )
    return calls


# -- full compute --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "settings",
    [{}, {"num_steps": 7}, {"attention_mode": "self_attn"}, {"prefix_length": 16}],
    ids=str,
)
def test_full_compute_is_the_policys_own_loop_bit_for_bit(
    vlm: Path, settings: dict[str, Any]
) -> None:
    policy = make_policy(vlm, **settings)
    own = chunk(policy)
    planner = planner_of(policy)
    context = prefixes(policy, [observation(1, BATCH)])
    torch.manual_seed(5)
    noise = planner.draw_noise(BATCH)
    assert own.shape == (BATCH, CHUNK, ACTION) and float(own.std()) > 0.1
    assert torch.equal(bits(planner.sample(context, noise=noise)[:, :, :ACTION]), bits(own))
    full, record = Runtime(planner, Program.full("velocity"))(context, noise=noise)
    assert torch.equal(bits(full[:, :, :ACTION]), bits(own))
    assert record.evaluations.tolist() == [policy.config.num_steps] * BATCH


def test_full_compute_through_an_enabled_policy_and_after_it_is_bit_identical(
    vlm: Path, certificate: Certificate
) -> None:
    policy = make_policy(vlm, seed=1)  # other weights: the certificate does not hold
    plain = chunk(policy)
    after = torch.get_rng_state()
    enable_cache(policy, certificate, on_mismatch="full")
    assert torch.equal(bits(chunk(policy)), bits(plain))
    assert torch.equal(torch.get_rng_state(), after)
    assert policy.muninn.last.evaluations.tolist() == [10] * BATCH
    assert "model.weights" in policy.muninn.last.fallback[0]
    disable_cache(policy)
    assert torch.equal(bits(chunk(policy)), bits(plain))
    assert "sample_actions" not in vars(policy.model) and not hasattr(policy, "muninn")


# -- cached --------------------------------------------------------------------------------------


def test_a_cached_call_is_the_certified_program(policy: Any, certificate: Certificate) -> None:
    plain = chunk(policy)
    context = prefixes(policy, [observation(1, BATCH)])
    planner = planner_of(policy)
    torch.manual_seed(5)
    expected, _ = Runtime(planner, certificate.program)(context, noise=planner.draw_noise(BATCH))
    calls = count(policy)
    enable_cache(policy, certificate)
    calls.clear()
    cached = chunk(policy)
    assert torch.equal(cached, expected[:, :, :ACTION]) and calls == [BATCH] * 5
    assert policy.muninn.last.evaluations.tolist() == [5] * BATCH
    assert policy.muninn.last.fallbacks == 0 and not torch.equal(cached, plain)
    disable_cache(policy)
    assert torch.equal(chunk(policy), plain)


def test_the_queue_the_noise_argument_and_idle_arguments_of_rtc_are_served(
    policy: Any, certificate: Certificate
) -> None:
    start = torch.randn(BATCH, CHUNK, 5)
    plain = chunk(policy, noise=start)
    calls = count(policy)
    enable_cache(policy, certificate)
    cached = chunk(policy, noise=start)
    assert torch.equal(chunk(policy, seed=6, noise=start), cached)
    assert not torch.equal(cached, plain) and not torch.equal(chunk(policy), cached)
    # LeRobot's loop ignores them unless real-time chunking is on
    assert torch.equal(chunk(policy, noise=start, inference_delay=2, execution_horizon=3), cached)
    with pytest.raises(TypeError, match="inference_dela"):
        chunk(policy, inference_dela=2)
    with pytest.raises(InputError, match=r"noise has shape \(2, 3, 5\)"):
        chunk(policy, noise=start[:, :3])
    calls.clear()
    policy.reset()
    actions = [policy.select_action(observation(step), noise=start[:1]) for step in range(6)]
    assert len(calls) == 2 * 5 and torch.stack(actions).shape == (6, 1, ACTION)


def test_a_copy_is_plain_and_the_weights_are_unaffected(
    policy: Any, certificate: Certificate
) -> None:
    plain, keys = chunk(policy), list(policy.state_dict())
    enable_cache(policy, certificate)
    cached = chunk(policy)
    twin = copy.deepcopy(policy)
    assert not is_cache_enabled(twin) and torch.equal(chunk(twin), plain)
    assert list(policy.state_dict()) == keys
    enable_cache(twin, certificate)
    assert torch.equal(chunk(twin), cached)
    with pytest.raises(InputError, match="already enabled"):
        enable_cache(policy, certificate)


# -- contexts and metric -------------------------------------------------------------------------


def test_prefixes_are_those_of_the_loop_row_by_row(policy: Any) -> None:
    told: list[Tensor] = []
    own = policy.model.denoise_step

    def watch(**arguments: Any) -> Tensor:
        kept = arguments["past_key_values"]
        layers = kept.values() if isinstance(kept, dict) else kept.layers  # LeRobot 0.4; 0.6
        told.append(arguments["prefix_pad_masks"])
        for layer in layers:
            held = layer if isinstance(layer, dict) else vars(layer)
            told.extend(held[key] for key in held if key.startswith(("key", "value")))
        return own(**arguments)

    policy.model.denoise_step = watch
    chunk(policy)
    del policy.model.denoise_step
    batch = observation(1, BATCH)
    before = {key: value.clone() for key, value in batch.items()}
    context = prefixes(policy, [batch])
    assert all(torch.equal(batch[key], before[key]) for key in before)
    held = [tensor for _, tensor in tensors(context)]
    assert len(held) == 1 + 2 * 2  # the mask; keys and values of two layers
    assert all(map(torch.equal, held, told))
    single = {key: value[:1] for key, value in batch.items()}
    parts = prefixes(policy, [single, batch])
    assert len(parts["prefix_pad_masks"]) == 3
    longer = {
        key: torch.cat([value, value], dim=1) if "language" in key else value
        for key, value in single.items()
    }
    with pytest.raises(InputError, match=r"\[6, 10\] tokens.*max_length"):
        prefixes(policy, [single, longer])
    for key in single:
        less = {name: value for name, value in single.items() if name != key}
        with pytest.raises(InputError, match=rf"batch 1 lacks {key}; it has observation\."):
            prefixes(policy, [single, less])
    with pytest.raises(InputError, match="no batch"):
        prefixes(policy, [])
    with pytest.raises(InputError, match=r"policy\.eval\(\)"):
        prefixes(policy.train(), [single])


def test_executed_actions_are_the_first_of_the_chunk_without_padding(policy: Any) -> None:
    full = torch.zeros(4, CHUNK, 5)
    cached = full.clone()
    cached[0, 0, 0] = 0.1
    cached[1, 3, 1] = 0.1  # the last that is executed
    cached[2, 4] = 0.1
    cached[3, 0, ACTION:] = 0.1  # padding
    metric = executed_actions(policy, lambda actions: 10 * actions, limits=(0.5, 2.0))
    torch.testing.assert_close(metric(full, cached), torch.tensor([2.0, 0.5, 0.0, 0.0]))
    assert metric.__qualname__ == "executed_actions:0-3:within:0.5,2"
    distance = executed_actions(policy, lambda actions: actions)
    torch.testing.assert_close(distance(full, cached), torch.tensor([0.1, 0.1, 0.0, 0.0]))


# -- refusals ------------------------------------------------------------------------------------


def test_real_time_chunking_is_refused_by_name(vlm: Path, certificate: Certificate) -> None:
    from lerobot.policies.rtc.configuration_rtc import RTCConfig

    policy = make_policy(vlm, rtc_config=RTCConfig(enabled=True))
    with pytest.raises(InputError, match=r"real-time chunking \(RTC\).*rtc_config to None"):
        enable_cache(policy, certificate)
    for on_mismatch in ("error", "full"):  # full compute would drop the guidance, too
        policy = make_policy(vlm)
        enable_cache(policy, certificate, on_mismatch=on_mismatch)
        chunk(policy)
        policy.config.rtc_config = RTCConfig(enabled=True)
        with pytest.raises(
            CertificateError, match="policy: real-time chunking: certificate False, policy True"
        ):
            chunk(policy)


def test_what_cannot_be_translated_is_refused_by_name(vlm: Path) -> None:
    with pytest.raises(InputError, match=r"train mode.*policy\.eval\(\)"):
        planner_of(make_policy(vlm).train())
    policy = make_policy(vlm)
    policy.model.vlm_with_expert.vlm.train()  # a part is enough
    with pytest.raises(InputError, match=r"train mode.*policy\.eval\(\)"):
        planner_of(policy)
    with torch.autocast("cpu"), pytest.raises(InputError, match=r"autocast to torch\.bfloat16"):
        planner_of(make_policy(vlm))
    with pytest.raises(InputError, match="compile_model=false"):
        planner_of(make_policy(vlm, compile_model=True))
    with pytest.raises(InputError, match="use_cache=true"):
        planner_of(make_policy(vlm, use_cache=False))

    class OwnLoop(type(make_policy(vlm).model)):  # type: ignore[misc]
        def sample_actions(self, *arguments: Any, **rest: Any) -> Tensor:
            raise AssertionError

    policy = make_policy(vlm)
    policy.model.__class__ = OwnLoop
    with pytest.raises(InputError, match="not by LeRobot"):
        planner_of(policy)


def test_another_number_of_steps_time_embedding_or_weights_is_an_error(
    vlm: Path, certificate: Certificate
) -> None:
    policy = make_policy(vlm)
    enable_cache(policy, certificate)
    policy.config.num_steps = 5
    with pytest.raises(CertificateError, match="policy: number of steps: certificate 10, policy 5"):
        chunk(policy)
    disable_cache(policy)
    with pytest.raises(CertificateError, match=r"sampler\.steps: certificate 10, planner 5"):
        enable_cache(policy, certificate)
    with pytest.raises(CertificateError, match=r"model\.weights"):
        enable_cache(make_policy(vlm, max_period=8.0), certificate)
    policy = make_policy(vlm)
    enable_cache(policy, certificate)
    policy.load_state_dict(make_policy(vlm, seed=1).state_dict())
    with pytest.raises(CertificateError, match="network: its weights"):
        chunk(policy)
