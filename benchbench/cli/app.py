"""The program: its root, the signals that stop it, and the exit code of every ending."""

from __future__ import annotations

import signal
import sys
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from importlib import import_module
from typing import TYPE_CHECKING, Annotated, Any

import typer
import typer.core

from benchbench import __version__
from benchbench.cli.screen import print_answer, tell
from benchbench.cli.streams import open_streams
from benchbench.cli.usage_errors import USAGE_ERROR, explained
from benchbench.errors import AccelbenchError, AccelbenchWarning
from benchbench.machine.system import check_system

if TYPE_CHECKING:
    from types import FrameType

MEASURE, COMPARE, EXPLAIN = "Measure and report", "Compare", "Explain"  # panels of `--help`
INSPECT, EXCHANGE = "Inspect", "Other tools"
VERBS = {  # in the order of use → the file in this folder that defines it
    "run": "run",
    "fleet": "fleet",
    "report": "report",
    "compare": "compare",
    "check": "check",
    "baseline": "baseline",
    "history": "history",
    "hardware": "hardware",
    "profile": "profile",
    "doctor": "doctor",
    "list": "listing",
    "devices": "listing",
    "env": "env",
    "runs": "runs",
    "merge": "merge",
    "validate": "validate",
    "export": "export",
    "import": "export",
}


class InOrder(typer.core.TyperGroup):
    """Lists the verbs in the order of use."""

    def list_commands(self, ctx: Any) -> list[str]:
        """Those of VERBS."""
        return list(VERBS)


app = typer.Typer(
    cls=InOrder,
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)


class Interrupted(BaseException):
    """A signal asked to stop; `kept` says what is not lost."""

    def __init__(self, number: int, kept: str) -> None:
        super().__init__(number)
        self.number = number
        self.kept = kept


def _print_version(wanted: bool) -> None:
    if wanted:
        print_answer(f"accelbench {__version__}\n")
        raise typer.Exit


@app.callback()
def root(
    version: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Print the version.")
    ] = False,
) -> None:
    """Which framework, device and setting runs my work fastest, and by how much?"""


@contextmanager
def signals(kept: str = "every finished case is kept") -> Iterator[None]:
    """Turn the signals that ask to stop into Interrupted, also where a shell had them ignored."""

    def interrupt(number: int, _frame: FrameType | None) -> None:
        raise Interrupted(number, kept)

    stopping = [signal.SIGINT, signal.SIGTERM, signal.SIGHUP]
    before = [signal.signal(each, interrupt) for each in stopping]
    try:
        yield
    finally:
        for each, handler in zip(stopping, before, strict=True):
            signal.signal(each, handler)


def import_commands(typed: Sequence[str]) -> None:
    """Import the file of the verb that was typed, which registers it; all files where there is none."""
    files = [VERBS[typed[0]]] if typed and typed[0] in VERBS else dict.fromkeys(VERBS.values())
    for file in files:
        import_module(f"benchbench.cli.{file}")


def main(program: typer.Typer = app, name: str = "accelbench") -> None:
    """The program: expected errors become a message, a hint and their exit code (docs/cli.md)."""
    try:
        open_streams()
        warnings.simplefilter("always", AccelbenchWarning)
        warnings.showwarning = _show_warning
        sys.exit(_ended(program, name))
    except Exception as error:  # noqa: BLE001 - the last handler: a fault of ours, told apart from a regression
        tell(f"internal error: {type(error).__name__}{_details()}")
        sys.exit(70)


def _ended(program: typer.Typer, name: str) -> Any:
    """The exit code of every ending that is expected."""
    try:
        check_system(sys.platform)
        if program is app:
            import_commands(sys.argv[1:])
        return program(prog_name=name, standalone_mode=False)
    except (AccelbenchError, USAGE_ERROR) as error:
        tell(*explained(error))
        return error.exit_code
    except Interrupted as stop:
        tell(f"interrupted: {stop.kept}")
        return 128 + stop.number


def _show_warning(message: Warning | str, *_where: Any, **_more: Any) -> None:
    """Ours as an error is told, with its hint."""
    tell(f"warning: {message}")
    if isinstance(message, AccelbenchWarning) and message.hint:
        tell(f"hint: {message.hint}")


def _details() -> str:
    """Where the details of an internal error are; nothing where they cannot be kept, for whatever reason."""
    try:
        return f"; details in {saved_traceback()}"
    except Exception:  # noqa: BLE001 - else a second traceback would be printed, with all that is secret
        return ""


def saved_traceback() -> str:
    """The file that the exception is written to, without local variables and without what is secret."""
    import tempfile
    import traceback

    from benchbench.store.redaction import own_redaction

    text = own_redaction()(traceback.format_exc())
    with tempfile.NamedTemporaryFile("w", prefix="accelbench-error-", suffix=".txt", delete=False) as file:
        file.write(text)
    return file.name
