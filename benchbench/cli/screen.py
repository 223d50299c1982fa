"""The terminal at hand, files written where a command says so, and lines beside its answer."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable, Mapping
from pathlib import Path

import typer


def tell(lines: Iterable[str]) -> None:
    """Beside the answer, safe to show."""
    from benchbench.format import visible

    for line in lines:
        typer.echo(visible(line), err=True)


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
        typer.echo(f"wrote {place / name}", err=True)
