"""What a run folder is of, so that a command that goes on never mixes two runs."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from muninn.errors import InputError
from muninn.files import write_whole


def require_same_run(folder: Path, identity: dict[str, Any]) -> None:
    """Write into ``run.json`` what a run is of, or compare it with what the folder is of.

    Raises:
        InputError: the folder is of another run.
    """
    path, own = folder / "run.json", json.loads(json.dumps(identity))
    if not path.is_file():
        write_whole(path, json.dumps(own, indent=1) + "\n")
        return
    known = json.loads(path.read_text())
    if other := [name for name in own if known.get(name) != own[name]]:
        raise InputError(
            f"{folder} holds a run with other {', '.join(other)}; delete it, or choose another "
            "folder with --out"
        )
