"""The command line: `muninn --help` lists what it does."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from muninn.errors import MuninnError

console = Console()
app = typer.Typer(
    help="Certified caching for trajectory diffusion: fast plans, close to full compute.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
)


@app.callback()
def _commands() -> None:
    """Typer runs an app of one command without its name; this keeps the name."""


def main() -> None:
    """Run the command line; a Muninn error is one clear line and exit code 2."""
    try:
        app()
    except (MuninnError, OSError) as error:
        console.print(f"[bold red]error:[/] {error}", highlight=False)
        sys.exit(2)


@app.command()
def inspect(certificate: Annotated[Path, typer.Argument(help="Certificate file.")]) -> None:
    """Print a certificate for a person."""
    from muninn.certify.certificate import Certificate
    from muninn.certify.describe import print_certificate

    print_certificate(console, Certificate.load(certificate))


if __name__ == "__main__":
    main()
