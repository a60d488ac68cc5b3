"""Kinds of plans and kinds of forecasts: JSON names its kind and is read back as that kind."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import asdict
from typing import Any, Generic, TypeVar

from muninn.errors import InputError

Part = TypeVar("Part")
Class = TypeVar("Class", bound=type)


class Kinds(Generic[Part]):
    """All kinds of one part of a program, by name.

    A new kind is a frozen dataclass of plain values that follows the part's protocol, decorated
    with :meth:`register`. Engines refuse kinds that they have no code for.

    Args:
        part: ``plan`` or ``forecast``; in JSON the key of the kind's name.
        unnamed: the kind whose JSON has no name, because it was once the only one.
    """

    def __init__(self, part: str, unnamed: str | None = None) -> None:
        self.part = part
        self._unnamed = unnamed
        self._classes: dict[str, Any] = {}

    def register(self, name: str) -> Callable[[Class], Class]:
        """Class decorator that makes a dataclass the kind ``name``.

        Raises:
            InputError: another class has the name.
        """

        def add(made: Class) -> Class:
            if name in self._classes:
                raise InputError(f"there is a {self.part} of kind {name!r} already")
            self._classes[name] = made
            return made

        return add

    def name(self, part: Part) -> str:
        """The name of a part's kind; that of its class where it is not registered."""
        names = (name for name, made in self._classes.items() if made is type(part))
        return next(names, type(part).__name__)

    def to_json(self, part: Part) -> dict[str, Any]:
        """Plain values for a certificate, with the name of the kind."""
        name = self.name(part)
        tag = {} if name == self._unnamed else {self.part: name}
        return {**tag, **json.loads(json.dumps(asdict(part)))}  # type: ignore[call-overload]

    def from_json(self, data: dict[str, Any]) -> Part:
        """The part that :meth:`to_json` described.

        Raises:
            InputError: the kind is unknown, or its values are not those of the kind.
        """
        values = dict(data)
        name = values.pop(self.part, self._unnamed)
        if name not in self._classes:
            known = ", ".join(self._classes)
            raise InputError(f"unknown kind of {self.part} {name!r}; known are {known}")
        try:
            made: Part = self._classes[name](**values)
        except TypeError as error:
            raise InputError(f"malformed {name} {self.part} {values}: {error}") from error
        return made
