"""The names that compiled code uses, functions inside of it included."""

from __future__ import annotations

import dis
import functools
from types import CodeType


@functools.lru_cache(maxsize=65536)
def global_names(code: CodeType) -> frozenset[str]:
    """Names that code looks up globally."""
    return _named_by(code, ("LOAD_GLOBAL", "LOAD_NAME"))


@functools.lru_cache(maxsize=65536)
def imported_names(code: CodeType) -> frozenset[str]:
    """Modules that code imports by itself."""
    return _named_by(code, ("IMPORT_NAME",))


def all_names(code: CodeType) -> set[str]:
    """Every name in code: of globals, attributes and imports."""
    inner = [constant for constant in code.co_consts if isinstance(constant, CodeType)]
    return set(code.co_names).union(*map(all_names, inner))


def _named_by(code: CodeType, operations: tuple[str, ...]) -> frozenset[str]:
    found = {str(each.argval) for each in dis.get_instructions(code) if each.opname in operations}
    inner = [constant for constant in code.co_consts if isinstance(constant, CodeType)]
    return frozenset(found.union(*(_named_by(constant, operations) for constant in inner)))
