"""Which adapter serves which policy class, by name: no framework is imported to find out."""

from __future__ import annotations

from importlib import import_module
from typing import Any, Protocol, cast

from muninn.context import Context
from muninn.errors import InputError
from muninn.model.planner import Noise, Planner


class Adapter(Protocol):
    """What a policy is translated to; a module of functions will do (docs/guides/adapter.md)."""

    def planner_of(self, policy: Any, /) -> Planner:
        """A planner whose full compute is the policy's own sampling loop, bit for bit."""

    def loop(self, policy: Any, /) -> tuple[Any, str]:
        """The object that holds the sampling loop, and the name of its method."""

    def state(self, policy: Any, /) -> dict[str, Any]:
        """What a certificate depends on and a user can change after enabling; cheap to read."""

    def arguments(self, planner: Planner, /, *args: Any, **kwargs: Any) -> tuple[Context, Noise]:
        """Context and noise of one call of the loop, drawn as the loop draws it."""


_ADAPTERS: dict[str, str | Adapter] = {
    "lerobot.policies.diffusion.modeling_diffusion.DiffusionPolicy": (
        "muninn.adapters.lerobot.diffusion"
    ),
    "lerobot.policies.smolvla.modeling_smolvla.SmolVLAPolicy": "muninn.adapters.lerobot.smolvla",
}


def register(policy_class: str, adapter: str | Adapter) -> None:
    """Name the adapter, or the module that is one, of ``package.module.Class`` and subclasses."""
    _ADAPTERS[policy_class] = adapter


def adapter_for(policy: Any) -> Adapter:
    """The adapter of a policy's class, or of the nearest base; raises InputError if none has."""
    for kind in type(policy).__mro__:
        adapter = _ADAPTERS.get(f"{kind.__module__}.{kind.__qualname__}")
        if adapter is not None:
            return cast(Adapter, import_module(adapter)) if isinstance(adapter, str) else adapter
    own = type(policy)
    raise InputError(
        f"no adapter for {own.__module__}.{own.__qualname__}; supported are "
        f"{', '.join(sorted(_ADAPTERS))} and their subclasses. Use muninn.Planner and muninn.cache "
        "in your own loop, or write an adapter: docs/guides/adapter.md"
    )


def framework_loop(policy: Any) -> tuple[Any, str]:
    """Where a policy's loop is; raises InputError if it is no longer the framework's own."""
    owner, name = adapter_for(policy).loop(policy)
    present = vars(owner).get(name)
    if present is not None and getattr(present, "__func__", None) is not getattr(type(owner), name):
        raise InputError(
            f"{type(owner).__name__}.{name} of this policy was already replaced, by {present!r}; "
            "call disable_cache, or undo that, first"
        )
    return owner, name


def planner_of(policy: Any) -> Planner:
    """The planner inside a policy: what :func:`muninn.calibrate` takes."""
    return adapter_for(policy).planner_of(policy)
