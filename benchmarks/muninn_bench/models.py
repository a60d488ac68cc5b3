"""Where trained weights lie: a checkout's ``models/``, or what came with the package."""

from __future__ import annotations

from pathlib import Path

from muninn.errors import InputError


def model_file(name: str, variant: str | None = None) -> Path:
    """The file ``models/NAME``, looked for in the working directory, the package, the checkout.

    The ``variant`` is the one to train if there is none.

    Raises:
        InputError: it is in none of them.
    """
    package = Path(__file__).parent
    for folder in (Path("models"), package / "models", package.parents[1] / "models"):
        if (folder / name).exists():
            return folder / name
    raise InputError(
        f"models/{name} was not found; run from the project's root, or train it with "
        f"`muninn-bench train --task {Path(name).parts[0]}"
        f"{f' --variant {variant}' if variant else ''}`"
    )
