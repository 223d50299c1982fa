"""Options that several commands share, and how their texts are read."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from benchbench.errors import UsageError, unknown
from benchbench.model import Allocator, Isolation

if TYPE_CHECKING:
    from benchbench.model import Dtype


class DataFormat(StrEnum):
    """For people, or for programs."""

    TERMINAL = "terminal"
    JSON = "json"


def option(*names: str, text: str, **more: Any) -> Any:
    return typer.Option(*names, help=text, **more)


Names = list[str] | None
SuiteOption = Annotated[Names, option("--suite", "-s", text="A suite's name or TOML file. [default: quick]")]
WorkloadOption = Annotated[Names, option("--workload", "-w", text="Only these workloads.")]
BackendOption = Annotated[Names, option("--backend", "-b", text="Only these backends. [default: all found]")]
DeviceOption = Annotated[
    Names, option("--device", "-d", text="cpu, gpu, tpu, accelerator, or a name such as cuda:1.")
]
DtypeOption = Annotated[Names, option("--dtype", text="float32, tf32, bfloat16, float16.")]
ModeOption = Annotated[Names, option("--mode", text="eager, compile, function, xla, jit.")]
ParamOption = Annotated[Names, option("--param", "-p", text="Override a size: batch=32,64.")]
QuickOption = Annotated[bool, option("--quick", text="3 rounds of about a second: a first look.")]
RigorousOption = Annotated[bool, option("--rigorous", text="10 rounds, each to half a percent.")]
RoundsOption = Annotated[int | None, option("--rounds", text="Processes per case.", min=1)]
TimeoutOption = Annotated[float, option("--timeout", text="Seconds a process may take.", min=1)]
ThreadsOption = Annotated[int | None, option("--threads", text="CPU threads. [default: all usable]", min=1)]
AllocatorOption = Annotated[
    Allocator, option("--allocator", text="steady keeps freed memory, as a long-running process would.")
]
IsolationOption = Annotated[Isolation, option("--isolation", text="How a case gets its process.")]
SeedOption = Annotated[int | None, option("--seed", text="Of the order of cases. [default: random, stored]")]
ResultsOption = Annotated[
    Path, option("--results", text="The folder that keeps runs.", envvar="ACCELBENCH_RESULTS")
]
FormatOption = Annotated[DataFormat, option("--format", text="For people, or for programs.")]


def split(values: Names) -> tuple[str, ...]:
    """`["torch,jax", "fake"]` → ("torch", "jax", "fake")."""
    return tuple(name.strip() for value in values or () for name in value.split(",") if name.strip())


def dtype_named(name: str) -> Dtype:
    from benchbench.model import Dtype

    try:
        return Dtype(name)
    except ValueError:
        raise UsageError(
            f"No dtype named {name!r}.", unknown("dtypes", name, [each.value for each in Dtype])
        ) from None
