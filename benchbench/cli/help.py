"""Layout of `--help`: options in panels, short types, and one example per line."""

from __future__ import annotations

from typing import Any

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
