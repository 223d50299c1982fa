"""The terminal at hand: the one place where a command prints, and files written where it says so.

What Typer says of a mistake is told in the form of our own errors: what happened, then what to do.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

import typer

from benchbench.errors import AccelbenchError

# Typer 0.25 and later bring a click of their own: the class that an error of usage is, whichever is there.
USAGE_ERROR: type[Any] = typer.BadParameter.__mro__[1]
SUGGESTION = " Did you mean "


def tell(*lines: str) -> None:
    """Beside the answer, a line each, safe to show; on a terminal broken at words."""
    from benchbench.format import at_words, visible

    columns = _columns_of_errors()
    for line in lines:
        safe = visible(line)
        typer.echo("\n".join(at_words(safe, columns)) if columns else safe, err=True)


def _columns_of_errors() -> int | None:
    """The columns of the terminal that standard error is; None where it is none, or tells no width."""
    with suppress(OSError, ValueError):
        if sys.stderr.isatty():
            return int(os.environ.get("COLUMNS") or os.get_terminal_size(sys.stderr.fileno()).columns) or None
    return None


def print_answer(text: str) -> None:
    """The answer, which an exporter made safe to show."""
    typer.echo(text, nl=False, color=color())  # else colours that are asked for are left out


def print_commands(text: str) -> None:
    """Workflow commands, which the service that runs this reads."""
    typer.echo(text, err=True, nl=False)


def width() -> int | None:
    """The terminal's columns; None where the output is a file or a pipe, which need no wrapping."""
    from shutil import get_terminal_size

    return get_terminal_size().columns if sys.stdout.isatty() else None


def color() -> bool:
    """NO_COLOR and FORCE_COLOR win over what the output is."""
    if os.environ.get("NO_COLOR"):
        return False
    return bool(os.environ.get("FORCE_COLOR")) or sys.stdout.isatty()


def write_files(files: Mapping[str, bytes], place: Path, root: Path | None = None) -> None:
    """Write files into the folder `place`; no link below `root`, by default that folder, is followed."""
    from benchbench.store import disk

    for name, content in files.items():
        disk.save_below(root or place, place / name, content)
        tell(f"wrote {place / name}")


def explained(error: Any) -> list[str]:
    """The lines of an expected error: message and hint. None where help was printed instead."""
    if isinstance(error, AccelbenchError):
        return [f"error: {error}", *error.log, *([f"hint: {error.hint}"] if error.hint else [])]
    if type(error).__name__ == "NoArgsIsHelpError":
        return list(error.message.splitlines())  # its help: empty where Rich has printed it
    message, hint = _of_typer(error)
    return [f"error: {message}", f"hint: {hint}"]


def _of_typer(error: Any) -> tuple[str, str]:
    if possible := getattr(error, "possibilities", None):
        return f"{error.message}.", f"Did you mean {' or '.join(sorted(possible))}?"
    message, suggestion, name = " ".join(error.format_message().split()).partition(SUGGESTION)
    if suggestion:
        return message, suggestion.strip() + " " + name
    sentence = message.replace("Value error, ", "").replace("Input should", "it should").rstrip(".")
    command = error.ctx.command_path if error.ctx else "accelbench"
    return f"{sentence}.", f"{command} --help shows what can be given."
