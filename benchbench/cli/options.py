"""Options that several commands share, and how their texts are read."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Annotated, Any

import typer

from benchbench.errors import UsageError


def option(*names: str, text: str, **more: Any) -> Any:
    return typer.Option(*names, help=_unmarked(text), **more)


def argument(text: str, **more: Any) -> Any:
    return typer.Argument(help=_unmarked(text), **more)


def _unmarked(text: str) -> str:
    return text.replace("[", r"\[")  # else Rich takes `[default: all]` for markup and leaves it out


Names = list[str] | None
TagOption = Annotated[
    Names, option("--tag", text="NAME=VALUE to store with the run, for `history --by NAME`.")
]
ResultsOption = Annotated[
    Path, option("--results", text="The folder that keeps runs.", envvar="ACCELBENCH_RESULTS")
]


def seconds_in(text: str) -> float:
    """`90`, `90s`, `10m`, `1.5h` → seconds."""
    found = re.fullmatch(r"([0-9]+(?:[.][0-9]+)?) ?([smh]?)", text.strip(), re.ASCII)
    if not found or not float(found[1]):
        raise UsageError(f"{text!r} is not a time.", "Write ten minutes as 10m, ninety seconds as 90s.")
    return float(found[1]) * {"": 1, "s": 1, "m": 60, "h": 3600}[found[2]]


def split_names(values: Names) -> tuple[str, ...]:
    """`["torch,jax", "fake"]` → ("torch", "jax", "fake")."""
    return tuple(name.strip() for value in values or () for name in value.split(",") if name.strip())
