"""The root command and its verbs. Each verb is registered by the file that defines it."""

from __future__ import annotations

from collections.abc import Sequence
from importlib import import_module
from typing import Annotated, Any

import typer
import typer.core

from benchbench import __version__
from benchbench.cli.help import arranged
from benchbench.cli.screen import print_answer

MEASURE, COMPARE, EXPLAIN = "Measure and report", "Compare", "Explain"  # panels of `--help`
INSPECT, EXCHANGE = "Inspect", "Other tools"
VERBS = {  # in the order of `--help`, with the file in this folder that defines each
    "run": "run",
    "fleet": "fleet",
    "time": "time",
    "report": "report",
    "compare": "compare",
    "check": "check",
    "baseline": "baseline",
    "history": "history",
    "bisect": "bisect",
    "site": "site",
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
    """A group that lists the verbs in the order of `VERBS`, with arranged options."""

    def list_commands(self, ctx: Any) -> list[str]:
        return list(VERBS)

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        command = super().get_command(ctx, cmd_name)
        return command and arranged(command)


app = typer.Typer(
    cls=InOrder,
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)


def _print_version(enabled: bool) -> None:
    if enabled:
        print_answer(f"accelbench {__version__}\n")
        raise typer.Exit


@app.callback()
def root(
    version: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Print the version.")
    ] = False,
) -> None:
    """Find out which framework, device and setting runs your work fastest, and by how much.

    Start with: accelbench run --suite hello
    """


def import_commands(arguments: Sequence[str]) -> None:
    """Import the file of the requested verb, which registers it; without a verb, all files."""
    files = [VERBS[arguments[0]]] if arguments and arguments[0] in VERBS else dict.fromkeys(VERBS.values())
    for file in files:
        import_module(f"benchbench.cli.{file}")
