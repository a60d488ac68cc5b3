"""Where the time of a call goes on the host: clocks at the seams of the code that runs."""

from __future__ import annotations

import functools
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any
from unittest import mock

REST = "the rest"


class Clock:
    """Wall-clock time by part, each moment counted for the innermost part only."""

    stands_in = True  # is no part of the network that it times

    def __init__(self) -> None:
        self._inside = [REST]
        self.start()

    def start(self) -> None:
        """Begin; time counts for the rest until a part is entered."""
        self.seconds: dict[str, float] = defaultdict(float)
        self.entries = Counter[str]()
        self._since = time.perf_counter()

    def stop(self) -> None:
        """Count the time since then for the part that is entered."""
        now = time.perf_counter()
        self.seconds[self._inside[-1]] += now - self._since
        self._since = now

    def timed(self, inner: Callable[..., Any], part: str) -> Callable[..., Any]:
        """The function, its time counted for a part."""

        @functools.wraps(inner)
        def outer(*arguments: Any, **named: Any) -> Any:
            self.stop()
            self._inside.append(part)
            self.entries[part] += 1
            try:
                return inner(*arguments, **named)
            finally:
                self.stop()
                self._inside.pop()

        return outer

    @contextmanager
    def at(self, seams: Sequence[tuple[Any, str, str]]) -> Iterator[None]:
        """Time seams, each an owner, its attribute and a part, until the block ends.

        Raises:
            AttributeError: an owner has no such attribute.
        """
        with ExitStack() as stack:
            for owner, name, part in seams:
                timed = self.timed(getattr(owner, name), part)
                stack.enter_context(mock.patch.object(owner, name, timed))
            yield
