"""The root command, its verbs, and the layout of `--help`. The file of a verb registers it."""

from __future__ import annotations

from collections.abc import Sequence
from importlib import import_module
from typing import Annotated, Any

import typer
import typer.core

from benchbench import __version__
from benchbench.cli.screen import print_answer

PANELS = {  # panels of options, and options of a panel, in the order of the help
    "What is measured": "ab of suites suite workload backend model device param dtype mode threads",
    "How long": "quick rigorous heats budget wait_for_idle",
    "Plan, resume, profile": "dry_run resume profile",
    "Output and exit code": (
        "results format output out to share plot sort by columns only top price hints limit tag "
        "allow_failed allow_unverified exit_zero strict verbose quiet"
    ),
    "For your models": "input weights max_error",
    "Rarely needed": "phase cache world strategy env python timeout allocator isolation seed",
}
PLACES = {name: (panel, place) for panel, names in PANELS.items() for place, name in enumerate(names.split())}
MAX_UNGROUPED = 8  # options without panels

TYPES = {
    "python": "NAME=PATH",
    "env": "NAME=a,b",
    "param": "NAME=a,b",
    "heats": "N",
    "rounds": "N",
    "tag": "NAME=VALUE",
    "price": "PATTERN=PRICE",
    "budget": "TIME",
    "wait_for_idle": "TIME",
    "timeout": "SECONDS",
    "format": "FORMAT",
    "threads": "N,…",
    "world": "N,…",
}
"""Placeholder of a value by option name, where the type is not clear enough."""
EXAMPLES = "Examples:"  # in docstrings followed by a space; in the help by a line break


def arranged(command: Any) -> Any:
    """Arrange the options of a Typer command, or of all commands of a group, and return it."""
    for subcommand in getattr(command, "commands", {}).values():
        arranged(subcommand)
    options = [param for param in command.params if param.param_type_name == "option"]
    for option in options:
        if option.metavar is None:
            option.metavar = _type_of(option)
        if len(options) > MAX_UNGROUPED:
            option.rich_help_panel = option.rich_help_panel or PLACES.get(option.name, (None, 0))[0]
    command.params.sort(key=_position)
    command.help = _with_example_lines(command.help or "")
    return command


def _position(param: Any) -> tuple[int, int]:
    """Sort key: arguments and options without a panel first, then the order of `PANELS`."""
    panel = getattr(param, "rich_help_panel", None)
    return (1 + list(PANELS).index(panel), PLACES[param.name][1]) if panel in PANELS else (0, 0)


def _type_of(option: Any) -> str | None:
    """Placeholder of the option's value; None keeps Typer's.

    Typer releases differ in how they mark options that may be repeated.
    """
    if option.is_flag:
        return ""
    if placeholder := TYPES.get(option.name):
        return placeholder
    is_list = option.multiple or getattr(getattr(option, "type_descriptor", None), "is_list", False)
    return "NAMES" if is_list else None


def _with_example_lines(text: str) -> str:
    """Put each example on a line of its own, without the line breaks of the source."""
    paragraphs = text.split("\n\n")
    for index, paragraph in enumerate(paragraphs):
        if paragraph.strip().startswith(f"{EXAMPLES} "):
            examples = " ".join(paragraph.split()).removeprefix(EXAMPLES).split("; ")
            paragraphs[index] = "\n".join([EXAMPLES, *map(str.strip, examples)])
    return "\n\n".join(paragraphs)


MEASURE, COMPARE, EXPLAIN = "Measure and report", "Compare", "Explain"  # panels of `--help`
INSPECT, EXCHANGE = "Inspect", "Other tools"
VERBS = {  # in the order of `--help`, with the file in this folder that defines each
    **dict.fromkeys(("run", "fleet", "time"), "run"),
    "report": "report",
    "compare": "compare",
    **dict.fromkeys(("check", "baseline"), "check"),
    **dict.fromkeys(("history", "bisect"), "compare"),
    "site": "report",
    "hardware": "compare",
    "profile": "report",
    **dict.fromkeys(("doctor", "list", "devices", "env"), "inspect"),
    **dict.fromkeys(("runs", "merge", "validate", "export", "import"), "runs"),
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
