"""Kinds of plans and kinds of forecasts: JSON names its kind and is read back as that kind."""

from __future__ import annotations

import hashlib
import json
from dataclasses import asdict, fields
from functools import cached_property
from typing import TYPE_CHECKING, Any, ClassVar

from muninn.errors import InputError

if TYPE_CHECKING:
    from typing_extensions import Self


class Part:
    """A part of a program: a plan or a forecast.

    A kind of it is a frozen dataclass of plain values; ``kind="..."`` in its class statement
    registers it under that name. Engines refuse kinds that they have no code for.
    """

    part: ClassVar[str]  # "plan" or "forecast"; in JSON the key of the kind's name
    unnamed: ClassVar[str | None] = None  # the kind without a name in JSON: once the only one
    kinds: ClassVar[dict[str, Any]]
    kind: ClassVar[str] = "not registered"

    def __init_subclass__(cls, kind: str | None = None) -> None:
        if kind is not None:
            if kind in cls.kinds:
                raise InputError(f"there is a {cls.part} of kind {kind!r} already")
            cls.kind, cls.kinds[kind] = kind, cls

    def to_json(self) -> dict[str, Any]:
        """Plain values for a certificate, with the name of the kind."""
        tag = {} if self.kind == self.unnamed else {self.part: self.kind}
        own = {field.name: getattr(self, field.name) for field in fields(self)}  # type: ignore[arg-type]
        return {**tag, **json.loads(json.dumps(own, default=asdict))}

    @cached_property
    def digest(self) -> str:
        """Short hash of what it is."""
        described = json.dumps(self.to_json(), sort_keys=True)
        return hashlib.sha256(described.encode()).hexdigest()[:24]

    @classmethod
    def read(cls, **values: Any) -> Self:
        """A part of this kind from its JSON values."""
        return cls(**values)

    @classmethod
    def from_json(cls, data: dict[str, Any]) -> Self:
        """The part that :meth:`to_json` described; InputError for an unknown kind or value."""
        values = dict(data)
        kind = values.pop(cls.part, cls.unnamed)
        if kind not in cls.kinds:
            known = ", ".join(cls.kinds)
            raise InputError(f"unknown kind of {cls.part} {kind!r}; known are {known}")
        try:
            made: Self = cls.kinds[kind].read(**values)
        except TypeError as error:
            raise InputError(f"malformed {kind} {cls.part} {values}: {error}") from error
        return made
