"""The program from its first line to its exit code: signals that stop it, and the message for each ending.

Signals are not handled before its imports are done, so they are few and light.
"""

from __future__ import annotations

import gc
import os
import signal
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from types import FrameType

    import typer

STOPPING = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
STORED = "nothing that was stored is lost"
UNKEPT = "nothing was to be kept"
COLLECTED = 50_000  # objects made between two collections; after each 700, they take a fifth of a long report


class Interrupted(BaseException):
    """A signal asked to stop; `kept` says what is not lost."""

    def __init__(self, number: int, kept: str) -> None:
        super().__init__(number)
        self.number = number
        self.kept = kept


@contextmanager
def signals(kept: Callable[[], str] = lambda: UNKEPT) -> Iterator[None]:
    """Turn the signals that ask to stop into Interrupted, also where a shell had them ignored.

    `kept`: what is not lost by then.
    """

    def interrupt(number: int, _frame: FrameType | None) -> None:
        raise Interrupted(number, kept())

    before = [signal.signal(each, interrupt) for each in STOPPING]
    try:
        yield
    finally:
        for each, handler in zip(STOPPING, before, strict=True):
            signal.signal(each, handler)


def _leave(number: int, _frame: FrameType | None) -> None:
    """End at once: nothing has begun, or all is done. What is being imported might swallow an exception."""
    with suppress(OSError):
        os.write(2, b"interrupted\n")
    os._exit(128 + number)


def _accelbench() -> typer.Typer:
    from benchbench.cli.app import app, import_commands

    import_commands(sys.argv[1:])
    return app


def main(program: Callable[[], typer.Typer] = _accelbench, name: str = "accelbench") -> None:
    """Run what `program` imports: expected errors become a message, a hint and an exit code (docs/cli.md)."""
    gc.set_threshold(COLLECTED)
    for each in STOPPING:
        signal.signal(each, _leave)
    try:
        code = _ended(program, name)
    except Interrupted as again:  # while the first was being told
        code = 128 + again.number
    except Exception as error:  # noqa: BLE001 - the last handler: a fault of ours, told apart from a regression
        _tell(f"internal error: {type(error).__name__}{_details()}")
        code = 70
    sys.exit(code)


def _ended(program: Callable[[], typer.Typer], name: str) -> Any:
    """The exit code of every ending that is expected."""
    import warnings

    from benchbench.cli.streams import open_streams
    from benchbench.errors import AccelbenchError, AccelbenchWarning
    from benchbench.machine.environment import check_system

    open_streams()
    warnings.simplefilter("always", AccelbenchWarning)
    warnings.showwarning = _show_warning
    from benchbench.cli.screen import USAGE_ERROR, explained

    try:
        check_system(sys.platform)
        run = program()
        with signals(lambda: STORED):
            return run(prog_name=name, standalone_mode=False)
    except (AccelbenchError, USAGE_ERROR) as error:
        _tell(*explained(error))
        return error.exit_code
    except Interrupted as stop:
        _tell(f"interrupted: {stop.kept}")
        return 128 + stop.number


def _tell(*lines: str) -> None:
    from benchbench.cli.screen import tell

    tell(*lines)


def _show_warning(message: Warning | str, *_where: Any, **_more: Any) -> None:
    """Ours as an error is told, with its hint."""
    hint = getattr(message, "hint", "")
    _tell(f"warning: {message}", *([f"hint: {hint}"] if hint else []))


def _details() -> str:
    """Where the details of an internal error were saved; empty if they cannot be."""
    try:
        return f"; details in {saved_traceback()}"
    except Exception:  # noqa: BLE001 - else a second traceback would be printed, with all that is secret
        return ""


def saved_traceback() -> str:
    """The file that the exception is written to, without local variables and without what is secret."""
    import tempfile
    import traceback

    from benchbench.redaction import own_redaction

    text = own_redaction()(traceback.format_exc())
    with tempfile.NamedTemporaryFile("w", prefix="accelbench-error-", suffix=".txt", delete=False) as file:
        file.write(text)
    return file.name
