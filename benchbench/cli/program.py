"""The main function: signal handling, and the message and exit code for every error.

Signals are handled only after the imports, so imports are few and light.
"""

from __future__ import annotations

import gc
import os
import signal
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from types import FrameType

    import typer

STOPPING = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
STORED = "nothing that was stored is lost"
NOTHING_TO_KEEP = "nothing was stored"
MAX_IMPORT_S = 3.0  # until a verb is called
GC_THRESHOLD = 50_000  # allocations between collections; Python's 700 takes a fifth of a long report


class Interrupted(BaseException):
    """A signal asked the program to stop. `interruption_message` says which results are stored."""

    def __init__(self, number: int, interruption_message: str) -> None:
        super().__init__(number)
        self.number = number
        self.interruption_message = interruption_message


@contextmanager
def signals(interruption_message: Callable[[], str] = lambda: NOTHING_TO_KEEP) -> Iterator[None]:
    """Raise Interrupted for signals that stop a program, even if the shell ignores them.

    `interruption_message` is called on a signal and returns a text on which results are stored.
    """

    def interrupt(number: int, _frame: FrameType | None) -> None:
        raise Interrupted(number, interruption_message())

    previous = [signal.signal(number, interrupt) for number in STOPPING]
    try:
        yield
    finally:
        for number, handler in zip(STOPPING, previous, strict=True):
            signal.signal(number, handler)


def process_start() -> float:
    """Time at which this program started, in seconds since the epoch.

    A shell that replaces itself by its last command has started before, so older times do not count.
    """
    import time

    import psutil

    return max(psutil.Process().create_time(), time.time() - MAX_IMPORT_S)


def _exit_at_once(number: int, _frame: FrameType | None) -> None:
    """Exit without an exception, since code that is being imported might swallow it."""
    with suppress(OSError):
        os.write(2, b"interrupted\n")
    os._exit(128 + number)


def _import_accelbench() -> typer.Typer:
    from benchbench.cli.app import app, import_commands

    import_commands(sys.argv[1:])
    return app


def main(program: Callable[[], typer.Typer] = _import_accelbench, name: str = "accelbench") -> None:
    """Run the application that `program` imports and exit with its code.

    Expected errors become a message, a hint and an exit code (docs/cli.md).
    """
    gc.set_threshold(GC_THRESHOLD)
    for number in STOPPING:
        signal.signal(number, _exit_at_once)
    try:
        code = _run(program, name)
    except Interrupted as second:  # while the first one was being reported
        code = 128 + second.number
    except Exception as error:  # noqa: BLE001 - last handler: exit code 70 tells an internal error from a regression
        _print_message(f"internal error: {type(error).__name__}{_details()}")
        code = 70
    sys.exit(code)


def _run(program: Callable[[], typer.Typer], name: str) -> Any:
    """Run the application and return its exit code, also after an expected error."""
    import warnings

    from benchbench.cli.screen import USAGE_ERROR, error_lines, open_streams
    from benchbench.errors import AccelbenchError, AccelbenchWarning

    open_streams()
    warnings.simplefilter("always", AccelbenchWarning)
    warnings.showwarning = _show_warning
    try:
        check_system(sys.platform)
        application = program()
        with signals(lambda: STORED):
            return application(prog_name=name, standalone_mode=False)
    except (AccelbenchError, USAGE_ERROR) as error:
        _print_message(*error_lines(error))
        return error.exit_code
    except Interrupted as stop:
        _print_message(f"interrupted: {stop.interruption_message}")
        return 128 + stop.number


def check_system(platform: str, root: Path = Path("/")) -> None:
    """Raise UnsupportedSystem without fork or, on Linux, without /proc.

    Processes of cases are forked; /proc lists their remaining processes and the available memory.
    """
    from benchbench.errors import UnsupportedSystem

    if platform == "linux" and not os.path.exists(root / "proc/self"):
        raise UnsupportedSystem(
            "accelbench needs /proc, and it is not mounted here.",
            "mount -t proc proc /proc mounts it; containers have it by default.",
        )
    if platform in {"win32", "cygwin", "emscripten", "wasi"}:
        raise UnsupportedSystem(
            f"accelbench needs a system that can fork processes; {platform} cannot.", "On Windows, use WSL 2."
        )


def _print_message(*lines: str) -> None:
    from benchbench.cli.screen import print_message

    print_message(*lines)


def _show_warning(message: Warning | str, *_where: Any, **_more: Any) -> None:
    """Print a warning of this package like an error, with its hint."""
    hint = getattr(message, "hint", "")
    _print_message(f"warning: {message}", *([f"hint: {hint}"] if hint else []))


def _details() -> str:
    """Text with the path of the saved traceback, or empty if it cannot be saved."""
    try:
        return f"; details in {saved_traceback()}"
    except Exception:  # noqa: BLE001 - Python would print a second traceback, with secrets in it
        return ""


def saved_traceback() -> str:
    """Write the current traceback to a file, without local variables and secrets, and return its path."""
    import tempfile
    import traceback

    from benchbench.redaction import process_redaction

    text = process_redaction()(traceback.format_exc())
    with tempfile.NamedTemporaryFile("w", prefix="accelbench-error-", suffix=".txt", delete=False) as file:
        file.write(text)
    return file.name
