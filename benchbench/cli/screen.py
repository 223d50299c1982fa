"""Output of commands: the only module that prints. Errors of Typer get the form of our own errors.

Standard output and error survive closed pipes, closed terminals and full disks.
"""

from __future__ import annotations

import io
import os
import re
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from select import select
from typing import TYPE_CHECKING, Any

import typer

from benchbench.errors import AccelbenchError, CannotWrite, nearest

if TYPE_CHECKING:
    from rich.status import Status
    from rich.text import Text

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


def plain_text(text: str, style: str = "") -> Text:
    """One line for Rich, escaped, without markup, and cut off at the edge."""
    from rich.text import Text

    from benchbench.format import visible

    return Text(visible(text), style=style, no_wrap=True, overflow="ellipsis")


@contextmanager
def status_line() -> Iterator[Status | None]:
    """Status line of the terminal of standard error; None without a terminal."""
    if not sys.stderr.isatty():
        yield None
        return
    from rich.console import Console

    with Console(stderr=True).status("") as status:
        yield status


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


class Stream(io.FileIO):
    """A standard stream of bytes. After an error, further output is dropped."""

    def __init__(self, descriptor: int, *, is_required: bool) -> None:
        """`is_required`: an error raises CannotWrite, except that the reader closed the pipe."""
        super().__init__(descriptor, "w", closefd=False)
        self._needed = is_required
        self._lost = False

    def write(self, content: Any) -> int:
        """Write and return the number of bytes. Raises CannotWrite."""
        try:
            return len(content) if self._lost else self._write_all(content)
        except OSError as error:
            self._lost = True
            if self._needed and not isinstance(error, BrokenPipeError):
                hint = "Nothing that was stored is lost. Print it again, or to a file where there is room."
                raise CannotWrite(f"standard output: {error.strerror}", hint) from error
            return len(content)

    def _write_all(self, content: Any) -> int:
        while (count := super().write(content)) is None:  # a non-blocking descriptor is full
            select([], [self], [])
        return count


def open_streams() -> None:
    """Replace the standard streams: losing standard output is an error, losing standard error is not.

    Descriptors that are closed are opened to the null device. Otherwise a file could get their number, and
    messages of libraries would be written into it.
    """
    for descriptor in range(3):
        try:
            os.fstat(descriptor)
        except OSError:
            os.open(os.devnull, os.O_RDWR)  # uses the lowest free descriptor, which is this one
    sys.stdout = text_stream(sys.stdout, 1, is_required=True)
    sys.stderr = text_stream(sys.stderr, 2, is_required=False)


def text_stream(original: Any, descriptor: int, *, is_required: bool) -> io.TextIOWrapper:
    """Text stream with Python's settings, except that unencodable characters are escaped."""
    with suppress(OSError, ValueError, AttributeError):
        original.flush()
    stream = Stream(descriptor, is_required=is_required)
    encoding = getattr(original, "encoding", None) or "utf-8"
    buffering = not is_required or stream.isatty()
    return io.TextIOWrapper(
        io.BufferedWriter(stream), encoding, errors="backslashreplace", line_buffering=buffering
    )
