"""Options that several commands share, and how their texts are read."""

from __future__ import annotations

import re
import sys
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from benchbench.errors import UsageError
from benchbench.model.options import Allocator, Isolation

if TYPE_CHECKING:
    from benchbench.model.device import Target


class DataFormat(StrEnum):
    """For people, or for programs."""

    TERMINAL = "terminal"
    JSON = "json"


def option(*names: str, text: str, **more: Any) -> Any:
    return typer.Option(*names, help=_unmarked(text), **more)


def argument(text: str, **more: Any) -> Any:
    return typer.Argument(help=_unmarked(text), **more)


def _unmarked(text: str) -> str:
    return text.replace("[", r"\[")  # else Rich takes `[default: all]` for markup and leaves it out


Names = list[str] | None
SuiteOption = Annotated[Names, option("--suite", "-s", text="A suite's name or TOML file. [default: quick]")]
WorkloadOption = Annotated[Names, option("--workload", "-w", text="Only these workloads.")]
BackendOption = Annotated[Names, option("--backend", "-b", text="Only these backends. [default: all found]")]
PythonOption = Annotated[
    Names, option("--python", text="NAME=PATH: the interpreter that a backend, or torch@old, runs under.")
]
DeviceOption = Annotated[
    Names, option("--device", "-d", text="cpu, gpu, tpu, accelerator, or a name such as cuda:1.")
]
DtypeOption = Annotated[
    Names, option("--dtype", text="float64, float32, tf32, bfloat16, float16, amp-bf16, amp-fp16, int8.")
]
ModeOption = Annotated[
    Names, option("--mode", text="eager, compile, cudagraph, function, xla, tensorrt, jit, lazy, graph.")
]
CacheOption = Annotated[
    Names, option("--cache", text="What a step finds in the caches: hot, cold, rotate. [default: hot]")
]
ParamOption = Annotated[Names, option("--param", "-p", text="Override a size: batch=32,64.")]
QuickOption = Annotated[bool, option("--quick", text="3 rounds of one to five seconds: a first look.")]
RigorousOption = Annotated[bool, option("--rigorous", text="10 rounds, each to half a percent.")]
RoundsOption = Annotated[int | None, option("--rounds", text="Processes per case, of noisy ones too.", min=1)]
BudgetOption = Annotated[
    str | None, option("--budget", text="Time to spend where it tells most: 90s, 10m, 1h. At least 3 rounds.")
]
TimeoutOption = Annotated[float, option("--timeout", text="Seconds a process may take.", min=1)]
ThreadsOption = Annotated[int | None, option("--threads", text="CPU threads. [default: all usable]", min=1)]
AllocatorOption = Annotated[
    Allocator, option("--allocator", text="steady keeps freed memory, as a long-running process would.")
]
IsolationOption = Annotated[Isolation, option("--isolation", text="How a case gets its process.")]
SeedOption = Annotated[int | None, option("--seed", text="Of the order of cases. [default: random, stored]")]
TagOption = Annotated[
    Names, option("--tag", text="NAME=VALUE to file the run under, for `history --by NAME`.")
]
ResultsOption = Annotated[
    Path, option("--results", text="The folder that keeps runs.", envvar="ACCELBENCH_RESULTS")
]
FormatOption = Annotated[DataFormat, option("--format", text="For people, or for programs.")]


def seconds_in(text: str) -> float:
    """`90`, `90s`, `10m`, `1.5h` → seconds."""
    found = re.fullmatch(r"([0-9]+(?:[.][0-9]+)?) ?([smh]?)", text.strip(), re.ASCII)
    if not found or not float(found[1]):
        raise UsageError(f"{text!r} is no time.", "Write ten minutes as 10m, ninety seconds as 90s.")
    return float(found[1]) * {"": 1, "s": 1, "m": 60, "h": 3600}[found[2]]


def split(values: Names) -> tuple[str, ...]:
    """`["torch,jax", "fake"]` → ("torch", "jax", "fake")."""
    return tuple(name.strip() for value in values or () for name in value.split(",") if name.strip())


def chosen_targets(backend: Names, python: Names, *, labelled: bool = False) -> list[Target]:
    """What -b and --python name."""
    from benchbench.environments.targets import chosen

    return chosen(split(backend), python or [], sys.executable, labelled=labelled)


def interpreters_given(python: Names) -> dict[str, str]:
    """Target → interpreter, of --python and before it the environment. Raises UsageError."""
    from benchbench.environments.targets import by_hand, from_variable

    return by_hand(from_variable()) | by_hand(python or [])
