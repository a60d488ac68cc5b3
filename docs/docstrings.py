"""Docstrings as Markdown: examples become code blocks, references to names become links."""

from __future__ import annotations

import re
from typing import Any

from griffe import Extension, Object

ROLE = re.compile(r":\w+:`([\w.]+)`")
PAGE = re.compile(r"docs/([\w/]+)\.md")
EXAMPLE = re.compile(r"^>>> .*(?:\n.+)*", re.MULTILINE)
TOGETHER = re.compile(r"^    (\w+(?:, \w+)+)(:.*(?:\n {8}.*)*)", re.MULTILINE)


class Docstrings(Extension):
    """Rewrites each docstring before it is rendered; the source stays as it is."""

    def on_object(self, *, obj: Object, **_: Any) -> None:
        """Rewrite the docstring of a module, a class, a function or an attribute."""
        if obj.docstring is not None:
            text = EXAMPLE.sub(r"```pycon\n\g<0>\n```", obj.docstring.value)
            text = PAGE.sub(r"[\g<0>](../\1.md)", ROLE.sub(reference, text))
            obj.docstring.value = TOGETHER.sub(apart, text)


def reference(role: re.Match[str]) -> str:
    """A full name links to its entry; a short or a private one is code."""
    name = role[1]
    return f"[`{name}`][{name}]" if re.match(r"muninn\.(?!.*\._)", name) else f"`{name}`"


def apart(entry: re.Match[str]) -> str:
    """One entry for each parameter that shares one, so that each is compared with the code."""
    return "\n".join(f"    {name}{entry[2]}" for name in entry[1].split(", "))
