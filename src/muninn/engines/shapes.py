"""What was captured, by the shape of the inputs it was captured for."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Hashable
from dataclasses import dataclass
from functools import partial
from typing import Any, Generic, TypeVar

import torch

from muninn.context import Context, signature
from muninn.engines.capture import forget_workspaces, shared_pool
from muninn.errors import DenoiserError
from muninn.identity.arithmetic import arithmetic
from muninn.identity.watch import Addresses
from muninn.model.planner import Noise, Planner

MOST_SHAPES = 8  # captured at a time; the least recently used is dropped
TRIES = 3  # to capture a shape: what stood in the way once may be gone the next time

Result = TypeVar("Result")
Used = TypeVar("Used")


def _form(noise: Noise, context: Context) -> Hashable:
    """The shapes that captured work is made for."""
    return (tuple(noise.initial.shape), signature(context))


def _rounding(noise: Noise) -> str:
    """How torch rounds where the noise is."""
    return str(arithmetic(noise.initial.device))


@dataclass(frozen=True)
class _Made(Generic[Result]):
    """What was captured, or why it could not be, with which weights, and after how many tries."""

    work: Result | str
    weights: Addresses
    tries: int


class Shapes(Generic[Result]):
    """What was captured for the shapes seen last; why not, where capturing failed.

    ``make`` captures the work for given inputs in a memory pool. Work is dropped when the
    planner's weights were moved: it reads them where they were.
    """

    def __init__(self, planner: Planner, make: Callable[[Noise, Context, Any], Result]) -> None:
        self._planner = planner
        self._make = make
        self._made: OrderedDict[tuple[Hashable, str], _Made[Result]] = OrderedDict()
        self._pool: Any = None

    def run(self, noise: Noise, context: Context, use: Callable[[Result], Used]) -> Used:
        """Use the captured work for these inputs; compare weights and rounding while the device is
        busy.

        Where weights were moved or torch rounds otherwise, what came out is discarded, and the
        work is captured again and used again. Until then the memory that was captured is held, so
        that reading it does no harm.

        Raises:
            DenoiserError: as :meth:`get` does, or what ``use`` raised.
        """
        form, failed = _form(noise, context), None
        # As torch rounded when these shapes were used last.
        key = next((known for known in reversed(self._made) if known[0] == form), (form, ""))
        made = self._made.get(key)
        if made is not None and not isinstance(made.work, str):
            try:
                found = use(made.work)
            except DenoiserError as error:
                failed = error
            if key[1] == _rounding(noise) and made.weights.unchanged():
                if failed is not None:
                    raise failed
                self._made.move_to_end(key)
                return found
        return use(self.get(noise, context))

    def get(self, noise: Noise, context: Context) -> Result:
        """The captured work for these inputs, made at the first call of their shape.

        DenoiserError if it cannot be captured: a few calls try, until the weights are moved; every
        call tries where it is memory that is missing.
        """
        key = (_form(noise, context), _rounding(noise))
        made = self._made.get(key)
        if made is not None and not made.weights.unchanged():
            made = None
        if made is None or (isinstance(made.work, str) and made.tries < TRIES):
            tries = 1 if made is None else made.tries + 1
            made = None  # or it would live on beside the work that is to replace it
            self._forget_moved()
            work = self._attempt(noise, context)
            # After the capture: a network may set up tables at its first call.
            planner, again = self._planner, None
            if not isinstance(work, str):
                again = partial(self._evaluate_once, noise, context)
            weights = Addresses(planner.denoiser, planner.condition, rerun=again)
            made = self._made[key] = _Made(work, weights, tries)
            while len(self._made) > MOST_SHAPES:
                self._made.popitem(last=False)
        self._made.move_to_end(key)
        if isinstance(made.work, str):
            raise DenoiserError(
                f"the call cannot be captured in a CUDA graph ({made.work}); use engine='eager'"
            )
        return made.work

    def clear(self) -> None:
        """Drop everything that was captured."""
        self._made.clear()
        self._pool = None  # torch may be taking apart one that no graph uses

    def _evaluate_once(self, noise: Noise, context: Context) -> None:
        """Run the network once eagerly, to recreate the tensors it stores on itself."""
        planner = self._planner
        x = planner.start(noise, context)
        planner.denoiser(x, planner.timestep(0, len(x)), context)
        if planner.device.type == "cuda":
            forget_workspaces()  # of the caller's stream, on which nothing else may be eager

    def _forget_moved(self) -> None:
        """Drop all that was captured with weights that are no longer where they were."""
        moved = [key for key, made in self._made.items() if not made.weights.unchanged()]
        for key in moved:
            del self._made[key]
        if all(isinstance(made.work, str) for made in self._made.values()):
            self._pool = None  # torch may be taking apart one that no graph uses

    def _attempt(self, noise: Noise, context: Context) -> Result | str:
        """The captured work, or why it cannot be captured; DenoiserError without memory to try."""
        self._pool = self._pool or shared_pool(self._planner.device)
        pool, self._pool = self._pool, None  # a pool in which a capture failed is not used again
        try:
            work = self._make(noise, context, pool)
        except torch.cuda.OutOfMemoryError as error:
            # In the same words each time, so that it is logged once.
            raise DenoiserError(
                "there is too little memory to capture the call in a CUDA graph; the next call "
                "tries again. Free some, or use engine='eager'"
            ) from error
        except (RuntimeError, DenoiserError) as error:
            return str(error)
        self._pool = pool
        return work
