"""A planner and its contexts from a user's own file, named as ``my_policy.py:function``."""

from __future__ import annotations

import importlib.util
import inspect
import os
import sys
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import torch

from muninn.certify.certificate import Certificate
from muninn.certify.outcomes import Outcomes
from muninn.certify.sources import gather
from muninn.certify.units import Episodes
from muninn.context import Context, require_rows, select, tensors
from muninn.errors import InputError, MuninnError
from muninn.identity.rows import met_again, new_at_the_end
from muninn.model.planner import Planner


def load(target: str) -> tuple[Planner, Context | Episodes | Outcomes | int, Path]:
    """What the function of a file returns, and the file; its folder is importable from then on.

    Raises:
        InputError: there is no such file or function, it fails (the message names the line), or
            it returns something else than ``(planner, contexts)``.
    """
    file, _, name = target.rpartition(":")
    if not (file.endswith(".py") and name.isidentifier()):
        order = "; a certificate comes after it" if Path(target).suffix not in (".py", "") else ""
        raise InputError(
            f"{target!r} names no function of a file; write my_policy.py:function{order}"
        )
    path = Path(file).resolve()
    if not path.is_file():
        raise InputError(f"{path}: no such file; give the path of a Python file and a function")
    known = sys.modules.get(path.stem)
    if known is not None and Path(getattr(known, "__file__", None) or "").resolve() != path:
        raise InputError(f"{path.name} has the name of another module, {path.stem}; rename it")
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[path.stem] = module  # so that a worker process can import what is defined there
    if str(path.parent) not in sys.path:
        sys.path.insert(0, str(path.parent))
    with blamed(path):
        spec.loader.exec_module(module)
    function = getattr(module, name, None)
    if not callable(function):
        own = [k for k, v in vars(module).items() if inspect.isfunction(v) and k[0] != "_"]
        raise InputError(
            f"{path.name} has no function {name!r}; it has {', '.join(own) or 'no function'}"
        )
    with blamed(path):
        made = function()
    if not (isinstance(made, tuple) and len(made) == 2 and isinstance(made[0], Planner)):
        kinds = [type(part).__name__ for part in (made if isinstance(made, tuple) else [made])]
        raise InputError(
            f"{name}() returned {', '.join(kinds)}; it must return (planner, contexts): a "
            "muninn.Planner, and tensors (calls, ...), muninn.Episodes, muninn.Outcomes or a number"
        )
    return *made, path


@contextmanager
def blamed(path: Path, contexts: Context = None) -> Iterator[None]:
    """Turn an error that a user's file raises into one line that names the place.

    ``contexts`` are those that the file's planner was called with, if it was.

    Raises:
        InputError: names file, line and error. Errors that passed neither the file nor another of
            the user's, such as a network's, stay as they are.
    """
    try:
        yield
    except MuninnError:
        raise
    except Exception as error:
        frames = traceback.extract_tb(error.__traceback__)
        lines = [
            (path.name if Path(frame.filename).resolve() == path else frame.filename, frame.lineno)
            for frame in frames
            if _is_own(Path(frame.filename).resolve(), path)
        ]
        if isinstance(error, SyntaxError) and error.filename == str(path):
            lines = [(path.name, error.lineno)]
        if not lines:
            raise
        said = f"{type(error).__name__}: {error}".partition("\n")[0]
        hint, rows = "", [f"{name} {tuple(part.shape)[1:]}" for name, part in tensors(contexts)]
        if ("CUDA" in said or "NVIDIA" in said) and not torch.cuda.is_available():
            hint = ". torch finds no GPU here: put the planner on the CPU, or run this where one is"
        elif rows and any(word in said for word in ("shape", "size", "dimension")):
            told = ", ".join(rows)
            hint = f". Its planner was called with rows of {told}: are they what the network takes?"
        name, line = lines[-1]
        raise InputError(f"{name}, line {line}: {said}{hint}") from error


def _is_own(file: Path, path: Path) -> bool:
    """Whether a file is the user's: ``path``, or one that is of no installed package."""
    if file == path:
        return True
    others = (Path(__file__).parents[1], Path(os.__file__).parent)
    installed = "site-packages" in file.parts or any(file.is_relative_to(own) for own in others)
    return file.is_file() and not installed


def some(contexts: Context, calls: int | None, *, last: bool = False) -> Context:
    """As many calls of what a function returned as are wanted: the first ones, or the last.

    Raises:
        InputError: there are fewer, or it cannot be known how many there are.
    """
    if isinstance(contexts, Episodes | Outcomes):
        return contexts if calls is None else replace(contexts, count=calls)
    if contexts is None or isinstance(contexts, Iterator):
        if calls is None:
            raise InputError("the function leaves open how many calls there are: say --calls N")
        return calls if contexts is None else gather(contexts, calls)
    if calls is None or isinstance(contexts, int):
        return contexts if calls is None else calls
    rows = require_rows(contexts)
    if not 0 < calls <= rows:
        raise InputError(f"--calls {calls}: the function returned {rows} contexts")
    return select(contexts, slice(rows - calls, rows) if last else slice(calls))


@contextmanager
def pointed(contexts: Context, certificate: Path) -> Iterator[None]:
    """Add to an error which of a function's contexts a certificate has not seen, if it saw some.

    Raises:
        InputError: as it was raised, with the ``--calls`` that would take new contexts.
    """
    try:
        yield
    except InputError as error:
        if isinstance(contexts, Episodes | Outcomes | Iterator | int | None):
            raise
        made = Certificate.load(certificate)
        used = made.calibrated_on, made.family.tuned_on
        new = new_at_the_end("".join(used), contexts)
        if not new or not any(met_again(marks, contexts) for marks in used):
            raise
        raise InputError(f"{error}. Here the last {new} are new: --calls {new}") from error


def apart(contexts: Context, calls: int | None) -> tuple[Context, Context]:
    """The last calls of what a function returned, which judge, and those before them.

    Of an iterator those after them; where calls have no context, as many again: their noise is new.

    Raises:
        InputError: there is no other call.
    """
    if isinstance(contexts, Iterator):
        return some(contexts, calls), some(contexts, calls)
    judge = some(contexts, calls, last=True)
    if isinstance(contexts, Episodes | Outcomes | int | None):
        return judge, judge
    rows, judging = require_rows(contexts), require_rows(judge)
    if rows == judging:
        raise InputError(
            f"--compare tunes other methods on contexts that do not judge, but all {rows} judge: "
            "say --calls N with fewer"
        )
    return judge, select(contexts, slice(rows - judging))
