"""Output of commands: the only module that prints. Errors of Typer get the form of our own errors."""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

import typer

from benchbench.errors import AccelbenchError, nearest

# Typer's usage error; since 0.25 Typer has its own copy of click.
USAGE_ERROR: type[Any] = typer.BadParameter.__mro__[1]
SUGGESTION = " Did you mean "
CHOICES = re.compile(r"'([\w.-]+)'(?!:)")  # in `Invalid value for 'subject': 'x' is not one of 'a', 'b'`


def print_message(*lines: str) -> None:
    """Print lines to standard error, escaped, and wrapped at words on a terminal."""
    from benchbench.format import at_words, visible

    columns = _stderr_columns()
    for line in lines:
        safe = visible(line)
        typer.echo("\n".join(at_words(safe, columns)) if columns else safe, err=True)


def print_code(text: str) -> None:
    """Print lines of code to standard error, escaped and not wrapped."""
    from benchbench.format import visible

    for line in text.splitlines():
        typer.echo(visible(line), err=True)


def _stderr_columns() -> int | None:
    """Columns of the terminal of standard error; None without a terminal or a known width."""
    with suppress(OSError, ValueError):
        if sys.stderr.isatty():
            return int(os.environ.get("COLUMNS") or os.get_terminal_size(sys.stderr.fileno()).columns) or None
    return None


def print_answer(text: str) -> None:
    """Print a result that an exporter has escaped."""
    typer.echo(text, nl=False, color=color())  # without `color`, echo would strip requested colours


def print_commands(text: str) -> None:
    """Print workflow commands of a CI service to standard error."""
    typer.echo(text, err=True, nl=False)


def width() -> int | None:
    """Columns of the terminal; None if the output is a file or pipe."""
    from shutil import get_terminal_size

    return get_terminal_size().columns if sys.stdout.isatty() else None


def color() -> bool:
    """True if output is coloured: NO_COLOR, then FORCE_COLOR, then whether it is a terminal."""
    if os.environ.get("NO_COLOR"):
        return False
    return bool(os.environ.get("FORCE_COLOR")) or sys.stdout.isatty()


def write_files(files: Mapping[str, bytes], place: Path, root: Path | None = None) -> None:
    """Write files into the folder `place`. No link below `root` (default: `place`) is followed."""
    from benchbench.store import disk

    for name, content in files.items():
        disk.save_below(root or place, place / name, content)
        print_message(f"wrote {place / name}")


def error_lines(error: Any) -> list[str]:
    """Lines of an expected error: message, log and hint. Empty if Typer printed the help instead."""
    if isinstance(error, AccelbenchError):
        return [f"error: {error}", *error.log, *(f"hint: {error.hint}".splitlines() if error.hint else [])]
    if type(error).__name__ == "NoArgsIsHelpError":
        return list(error.message.splitlines())  # the help text; empty if Rich printed it
    message, hint = _typer_message(error)
    return [f"error: {message}", f"hint: {hint}"]


def _typer_message(error: Any) -> tuple[str, str]:
    if possible := getattr(error, "possibilities", None):
        return f"{error.message}.", nearest(error.option_name, possible) or f"Known: {', '.join(possible)}."
    message, suggestion, name = " ".join(error.format_message().split()).partition(SUGGESTION)
    if suggestion:
        return message, suggestion.strip() + " " + name
    sentence = message.replace("Value error, ", "").replace("Input should", "it should").rstrip(".")
    command = error.ctx.command_path if error.ctx else "accelbench"
    word, *choices = CHOICES.findall(sentence) if " is not one of " in sentence else [""]
    suggestion = nearest(word, choices)
    return f"{sentence}.", suggestion or f"{command} --help shows the options."
