"""How `--help` shows a verb: its options in panels, with short types, and an example a line."""

from __future__ import annotations

from typing import Any

WHAT, LENGTH = "What is measured", "How long"
MACHINE, OUTPUT = "Machine and processes", "Output and exit code"
PANELS = {
    WHAT: "suites suite model workload backend device dtype mode param cache world strategy env ab of",
    LENGTH: "brief quick rigorous rounds budget timeout wait_for_idle",
    MACHINE: "python threads allocator isolation seed",
    OUTPUT: (
        "tag allow_failed allow_unverified exit_zero strict verbose quiet results format output out to share "
        "plot sort by columns only top price hints limit"
    ),
}
PANEL_OF = {name: panel for panel, names in PANELS.items() for name in names.split()}
FEW = 8  # options: so many are read at a glance, without panels

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
"""An option → what is typed behind it, where its kind does not say that."""
EXAMPLES = "Examples:"  # as docstrings have them: behind it a space; with a line for each, a line break


def arranged(command: Any) -> Any:
    """The command of Typer, shown so; of a group all its commands."""
    for each in getattr(command, "commands", {}).values():
        arranged(each)
    options = [each for each in command.params if each.param_type_name == "option"]
    for each in options:
        if each.metavar is None:
            each.metavar = _type_of(each)
        if len(options) > FEW:
            each.rich_help_panel = each.rich_help_panel or PANEL_OF.get(each.name)
    command.params.sort(key=_place)
    command.help = _with_examples_apart(command.help or "")
    return command


def _place(param: Any) -> int:
    """Panels come in the order of `PANELS`, behind arguments and what has none."""
    panel = getattr(param, "rich_help_panel", None)
    return 1 + list(PANELS).index(panel) if panel in PANELS else 0


def _type_of(option: Any) -> str | None:
    """None leaves it to Typer. Its releases tell in two ways whether an option can be given several times."""
    if option.is_flag:
        return ""
    if known := TYPES.get(option.name):
        return known
    is_list = option.multiple or getattr(getattr(option, "type_descriptor", None), "is_list", False)
    return "NAMES" if is_list else None


def _with_examples_apart(text: str) -> str:
    """The paragraph of examples with a line for each: no command is broken where its source was."""
    paragraphs = text.split("\n\n")
    for at, paragraph in enumerate(paragraphs):
        if paragraph.strip().startswith(f"{EXAMPLES} "):
            examples = " ".join(paragraph.split()).removeprefix(EXAMPLES).split("; ")
            paragraphs[at] = "\n".join([EXAMPLES, *map(str.strip, examples)])
    return "\n\n".join(paragraphs)
