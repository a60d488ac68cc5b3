"""A probe in a network that is not ours, by the name of a submodule; the network is not edited.

Stem: the denoiser runs until the named submodule has returned and is stopped right there. What
each outermost submodule call returned on the way is kept. Core: the denoiser runs again, those
calls are answered from what was kept, and everything after the named one runs as usual. So only
the code between submodules (reshapes, sums, concatenations) runs in both parts.
"""

from __future__ import annotations

import difflib
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from muninn.context import Context, select
from muninn.errors import InputError
from muninn.model.denoiser import Denoiser, check_prediction
from muninn.paper.recording import Forward, Kept, Recorded, StandIn, rebuilt, record, replaced

POOLS = {"time_last": 2, "tokens": 1, "none": None}
"""Axis over which the named submodule's output is averaged, to become (batch, width)."""

Pool = Callable[[Any], Tensor]


@dataclass(frozen=True)
class Trace:  # no nest, so that muninn.context.select passes it on whole
    """All submodules up to the probe, the probed one last; row numbers 0, 1, ... of the batch."""

    rows: Tensor
    recorded: list[Recorded] = field(default_factory=list)


Hidden = tuple[Tensor, Trace]


class _Reached(BaseException):
    """Stops a forward at the probe; not an Exception, so that no network catches it."""


class NamedSplit:
    """The split of a foreign denoiser behind one of its submodules.

    ``hidden`` is the pair (row numbers, trace): :func:`muninn.context.select` picks from the
    row numbers, and the core takes those rows of what was recorded. The *inputs* of a recorded
    submodule show which tensors have the batch first: if the first dimension of an input shrinks
    with the batch, outputs are indexed too; if no input changes (tables of positions, scalars),
    outputs are handed out whole. Other changes are refused. What is neither a tensor nor a nest
    of them (tuple, list, dict, dataclass) is handed out unchanged.

    The code between submodules, hooks, and all that the denoiser does outside ``module`` run
    twice, so they must be deterministic. They may work in place: the stem works on copies of x
    and timestep, and writes of a recorded submodule into its inputs are repeated. The stem leaves
    the forward by an exception: what a network must undo belongs into its own ``finally``.

    Not thread-safe: during a call, and only then, ``forward`` of submodules is replaced on the
    instances. Build a new split after adding, replacing or compiling submodules.

    Args:
        denoiser: calls ``module`` exactly once per evaluation. Classifier-free guidance calls it
            twice: split the denoiser inside, and put ``GuidedSplit`` around.
        module: the network; eager (not compiled, scripted or data-parallel).
        name: dotted name of a submodule, as in ``module.named_modules()``. If it is called
            several times, its first call counts.
        pool: how its output becomes the feature (batch, width): ``time_last`` (mean over the last
            axis of (batch, width, time)), ``tokens`` (mean over axis 1 of (batch, tokens, width)),
            ``none``, or a function of the output.
    """

    def __init__(
        self, denoiser: Denoiser, module: nn.Module, name: str, pool: str | Pool = "none"
    ) -> None:
        if not callable(pool) and pool not in POOLS:
            raise InputError(
                f"unknown pool {pool!r}; choose one of {', '.join(POOLS)}, or give a function that "
                "maps the submodule's output to (batch, width)"
            )
        _require_eager(denoiser, module)
        named = dict(module.named_modules(remove_duplicate=False))
        if not name or name not in named:
            known = [key for key in named if key]
            close = ", ".join(difflib.get_close_matches(name, known, n=8, cutoff=0.5))
            listed = f"close names: {close}" if close else f"it has: {', '.join(known) or 'none'}"
            raise InputError(
                f"the module has no submodule {name!r}; {listed}. module.named_modules() lists all"
            )
        self.denoiser = denoiser
        self.module = module
        self.name = name
        self.pool = pool
        self._target = named[name]
        # Modules around the target are still running when it returns, so both parts enter them.
        # All others are answered as a whole.
        around = {module}
        for key in [key for key, value in named.items() if value is self._target]:
            around |= {named[key[:dot]] for dot, letter in enumerate(key) if letter == "."}
        self._whole = {value: key for key, value in named.items() if value not in around}

    def stem(self, x: Tensor, timestep: Tensor, context: Context) -> Hidden:
        """Run up to the named submodule; InputError if it is not called or returns no rows."""
        trace = Trace(torch.arange(len(x), device=x.device))
        with replaced([self.module], _once()), replaced(self._whole, self._recorder(trace)):
            try:
                self.denoiser(x.clone(), timestep.clone(), context)
            except _Reached:
                self._require_rows(trace)
                return trace.rows, trace
        seen = ", ".join(dict.fromkeys(each.name for each in trace.recorded)) or "none"
        raise InputError(
            f"submodule {self.name!r} was not called; name one that is. Outermost submodules that "
            f"were: {seen}. (A compiled copy of the network calls none, a fused path may skip some)"
        )

    def core(self, hidden: Hidden, x: Tensor, timestep: Tensor, context: Context) -> Tensor:
        """The denoiser's prediction for the rows of ``hidden``; the stem's work is not repeated.

        Raises InputError if rows do not fit or the batch is not first in what was recorded,
        DenoiserError if the denoiser took another path than in the stem.
        """
        rows, trace = hidden
        if len(rows) != len(x):
            raise InputError(
                f"hidden has {len(rows)} rows but x has {len(x)}; select the same rows of both"
            )
        if len(rows) != len(trace.rows):
            return self._replay(rows, trace, x, timestep, context)
        if rows is trace.rows or torch.equal(rows, trace.rows):
            return self._replay(None, trace, x, timestep, context)
        # The whole batch in another order: shapes would not tell what has the batch first.
        order = rows.argsort()
        if not torch.equal(rows[order], trace.rows):
            raise InputError(f"rows {rows.tolist()} name a row twice; give each row once")
        state, own = x[order], select(context, order)
        prediction = self._replay(None, trace, state, timestep[order], own)
        x.copy_(state[rows])  # what the denoiser may have written into its input
        return prediction[rows]

    def feature(self, hidden: Hidden, x: Tensor) -> Tensor:
        """The named submodule's output, pooled: (batch, width) float32; InputError if not."""
        rows, trace = hidden

        def taken(leaf: Any) -> Any:
            if not isinstance(leaf, Kept):
                return leaf
            whole = rows is trace.rows or leaf.value.shape[:1] != trace.rows.shape
            return leaf.value if whole else leaf.value[rows]

        pooled = output = rebuilt(trace.recorded[-1].output, taken)
        if callable(self.pool):
            pooled = self.pool(output)
        elif (axis := POOLS[self.pool]) is not None:
            fits = isinstance(output, Tensor) and output.ndim == 3
            pooled = output.float().mean(dim=axis) if fits else None
        if not isinstance(pooled, Tensor) or pooled.ndim != 2 or len(pooled) != len(rows):
            seen = tuple(output.shape) if isinstance(output, Tensor) else type(output).__name__
            raise InputError(
                f"pool {self.pool!r} does not give ({len(rows)}, width) from the output of "
                f"{self.name!r}, {seen}; choose one of {', '.join(POOLS)}, or give a function"
            )
        return pooled.float()

    def _recorder(self, trace: Trace) -> StandIn:
        """Records every outermost call, and stops the denoiser behind the target's."""
        running: list[str] = []  # the recorded submodule under way, which calls others inside it

        def recorder(module: nn.Module, original: Forward, /, *args: Any, **kwargs: Any) -> Any:
            if running:
                if module is self._target:
                    raise InputError(
                        f"{self.name!r} is called from inside {running[0]!r}, which does not "
                        f"contain it; name {running[0]!r} instead"
                    )
                return original(*args, **kwargs)
            name = self._whole[module]
            running.append(name)
            try:
                recorded, output = record(module, name, len(trace.rows), original, args, kwargs)
            finally:
                running.clear()
            trace.recorded.append(recorded)
            if module is self._target:
                raise _Reached
            return output

        return recorder

    def _replay(
        self, rows: Tensor | None, trace: Trace, x: Tensor, timestep: Tensor, context: Context
    ) -> Tensor:
        """The denoiser with recorded answers for the given rows (all, in order, if None)."""
        left = trace.recorded[::-1]
        running = False

        def player(module: nn.Module, original: Forward, /, *args: Any, **kwargs: Any) -> Any:
            nonlocal running
            if running:
                return original(*args, **kwargs)
            if left[-1].module is not module:
                raise left[-1].astray()
            running = True
            try:
                output = left[-1].answer(original, rows, args, kwargs)
            finally:
                running = False
            left.pop()
            if not left:
                answers.close()  # from here on the network runs as it is
            return output

        modules = {recorded.module: None for recorded in trace.recorded}
        with replaced([self.module], _once()), replaced(modules, player) as answers:
            prediction = self.denoiser(x, timestep, context)
        if left:
            raise left[-1].astray()
        return check_prediction(prediction, x, None)

    def _require_rows(self, trace: Trace) -> None:
        batch, leaves = len(trace.rows), list[Any]()
        rebuilt(trace.recorded[-1].output, leaves.append)
        first = next((leaf for leaf in leaves if isinstance(leaf, Kept)), None)
        if first is None or first.value.ndim == 0 or len(first.value) != batch:
            shape = "no tensor" if first is None else tuple(first.value.shape)
            raise InputError(
                f"{self.name!r} returned {shape} for a batch of {batch}; the probed output needs "
                "the batch as its first dimension. A denoiser that doubles its batch for "
                "classifier-free guidance must be written with ClassifierFreeGuidance"
            )


def _once() -> StandIn:
    """Refuses the second call of a module."""
    used = False

    def once(module: nn.Module, original: Forward, /, *args: Any, **kwargs: Any) -> Any:
        nonlocal used
        if used:
            raise InputError(
                f"the denoiser calls {type(module).__name__} more than once per evaluation, so its "
                "stem is not one; for classifier-free guidance use "
                "GuidedSplit(guidance, NamedSplit(guidance.denoiser, ...))"
            )
        used = True
        return original(*args, **kwargs)

    return once


def _require_eager(denoiser: Any, module: Any) -> None:
    """Raise InputError for a part that does not call submodules through ``forward``, right here."""
    if not isinstance(module, nn.Module):
        raise InputError(f"module must be a torch.nn.Module, got {type(module).__name__}")
    compiled = "_torchdynamo_orig_callable"
    parts = {f"submodule {name!r}": part for name, part in module.named_modules() if name}
    for name, part in {"module": module, **parts, "denoiser": denoiser}.items():
        kinds = {
            "scripted": isinstance(part, torch.jit.ScriptModule),
            "data-parallel": isinstance(part, nn.DataParallel),
            "compiled": hasattr(part, compiled)
            or hasattr(getattr(part, "forward", None), compiled)
            or getattr(part, "_compiled_call_impl", None) is not None,
        }
        for kind in (kind for kind, found in kinds.items() if found):
            raise InputError(
                f"{name} is {kind}, so calls in it cannot be recorded; give the plain network, and "
                "a denoiser that calls that"
            )
