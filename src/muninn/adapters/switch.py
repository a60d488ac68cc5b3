"""Switch the cache of a policy on and off, on that object only."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from torch import Tensor

from muninn.adapters.registry import Adapter, adapter_for, framework_loop
from muninn.certify.cached import CachedPlanner, OnMismatch, cache
from muninn.certify.certificate import Certificate
from muninn.engines.runtime import OnFailure
from muninn.errors import InputError
from muninn.record import Record


@dataclass
class Tally:
    """What the plans of a cached policy took; holds no part of it."""

    steps: int  # of the sampler
    plans: int = 0  # a call of several rows makes as many
    evaluations: int = 0
    in_full: Counter[str] = field(default_factory=Counter)  # plans by full compute, by reason

    def add(self, record: Record) -> None:
        self.plans += len(record.evaluations)
        self.evaluations += int(record.evaluations.sum())
        self.in_full.update(reason for reason in record.fallback if reason is not None)

    def __str__(self) -> str:
        if not self.plans:
            return "no plan was made"
        plans = f"{self.plans} plan{'s' * (self.plans > 1)}"
        mean = f"{self.evaluations / self.plans:.1f} of {self.steps} evaluations each"
        if not self.in_full:
            return f"{plans}, {mean}"
        (reason, _), *_ = self.in_full.most_common(1)
        return f"{plans}, {mean}; {self.in_full.total()} by full compute: {reason}"


class EnabledCache:
    """``policy.muninn`` while the cache is on. One per policy object; not thread-safe."""

    stands_in = True  # is no part of the network

    def __init__(self, cached: CachedPlanner, loop: CachedLoop) -> None:
        self.cached = cached  # what runs; its ``reason`` says why it runs full compute, or is None
        # Record of the last call of the sampling loop; None before it, and after one that raised.
        # An action taken from a queue of earlier actions is no call.
        self.last: Record | None = None
        self.tally = Tally(len(cached.planner.sampler.steps))  # of all calls
        self.loop = loop

    def __reduce__(self) -> tuple[Any, ...]:
        """Copies of a policy, by deepcopy or pickle, are not cached: they have None here."""
        return type(None), ()


class StandIn:
    """In the place of the sampling loop of one policy."""

    stands_in = True  # is no part of the network

    def __init__(self, policy: Any) -> None:
        self.owner, self.name = framework_loop(policy)

    def __reduce__(self) -> tuple[Any, ...]:
        """A copy gets the method of its class: its own attributes are not set yet at that time."""
        return getattr, (self.owner, self.name)


class CachedLoop(StandIn):
    """Plans with the cache."""

    def __init__(self, policy: Any, adapter: Adapter, cached: CachedPlanner) -> None:
        super().__init__(policy)
        self.enabled = EnabledCache(cached, self)
        self._adapter = adapter

    def __call__(self, *args: Any, **kwargs: Any) -> Tensor:
        enabled = self.enabled
        enabled.last = None
        context, noise = self._adapter.arguments(enabled.cached.planner, *args, **kwargs)
        trajectory, record = enabled.cached(context, noise=noise)
        enabled.last = record
        enabled.tally.add(record)
        return trajectory


def enable_cache(
    policy: Any,
    certificate: Certificate | str | Path,
    *,
    on_mismatch: OnMismatch = "error",
    on_failure: OnFailure = "full",
) -> None:
    """Run the sampling loop of a policy with a certified cache, in place, on this object only.

    Everything around the loop stays the framework's own. ``policy.muninn.last`` is the record of
    the last call. A deep or pickled copy of the policy is a plain, uncached policy.

    Args:
        policy: of a class that has an adapter, in eval mode, on its final device.
        certificate: the certificate, or the path of its file.
        on_mismatch: what to do if the certificate cannot be read, was made for another policy, or
            the policy was changed after enabling (train mode, number of steps, weights, hooks,
            autocast): ``error`` raises, ``full`` runs full compute and says so in every record.
        on_failure: the same for a call that fails (NaN, unexpected shape).

    Raises:
        InputError: the class has no adapter, the policy cannot be cached as it is, its cache is
            already enabled, or ``certificate`` is none.
        CertificateError: names the fields that differ, with ``on_mismatch="error"``; raised by
            a *call* if the policy was changed after enabling.
    """
    if is_cache_enabled(policy):
        raise InputError("the cache of this policy is already enabled; call disable_cache first")
    adapter = adapter_for(policy)
    cached = cache(
        adapter.planner_of(policy),
        certificate,
        on_mismatch=on_mismatch,
        on_failure=on_failure,
        state=partial(adapter.state, policy),
    )
    loop = CachedLoop(policy, adapter, cached)
    policy.muninn = loop.enabled
    setattr(loop.owner, loop.name, loop)


def disable_cache(policy: Any) -> None:
    """Undo :func:`enable_cache` completely; does nothing to a policy whose cache is off."""
    if is_cache_enabled(policy):
        loop = policy.muninn.loop
        if vars(loop.owner).get(loop.name) is not loop:
            raise InputError(
                f"{type(loop.owner).__name__}.{loop.name} of this policy was replaced after "
                "enable_cache; undo that first"
            )
        delattr(loop.owner, loop.name)
        del policy.muninn


def is_cache_enabled(policy: Any) -> bool:
    """Whether :func:`enable_cache` is in effect on this object."""
    return isinstance(getattr(policy, "muninn", None), EnabledCache)
