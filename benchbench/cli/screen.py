"""The terminal at hand: the one place where a command prints, and files written where it says so."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from pathlib import Path

import typer


def tell(*lines: str) -> None:
    """Beside the answer, a line each, safe to show."""
    from benchbench.format import visible

    for line in lines:
        typer.echo(visible(line), err=True)


def print_answer(text: str) -> None:
    """The answer, which an exporter made safe to show."""
    typer.echo(text, nl=False, color=color())  # else colours that are asked for are left out


def print_commands(text: str) -> None:
    """Workflow commands, which the service that runs this reads."""
    typer.echo(text, err=True, nl=False)


def width() -> int | None:
    """Of the terminal; None where the output is a file or a pipe, which need no wrapping."""
    from shutil import get_terminal_size

    return get_terminal_size().columns if sys.stdout.isatty() else None


def color() -> bool:
    """NO_COLOR and FORCE_COLOR win over what the output is."""
    if os.environ.get("NO_COLOR"):
        return False
    return bool(os.environ.get("FORCE_COLOR")) or sys.stdout.isatty()


def write_files(files: Mapping[str, bytes], place: Path, run: Path | None = None) -> None:
    """Into the folder `place`; of one in the folder `run` no link is followed."""
    from benchbench.store import disk

    for name, content in files.items():
        if run:
            disk.save_below(run, place / name, content)
        else:
            disk.save(place / name, content)
        tell(f"wrote {place / name}")
