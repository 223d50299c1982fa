"""What can be asked of a measurement, as the command line and the functions of `benchbench` offer it.

Apart from the other nouns, so that `--help` need not build those. A field carries the flags that set it.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, fields
from enum import StrEnum
from functools import wraps
from pathlib import Path
from typing import Any, Literal, TypedDict, TypeVar

F = TypeVar("F", bound=Callable[..., Any])
Names = str | Sequence[str]  # one or several
Preset = Literal["quick", "default", "rigorous"]
Size = int | float | bool | str  # of a workload's parameter


class Isolation(StrEnum):
    """How a case gets its process: forked from a template, started anew, or shared with other cases."""

    FORK = "fork"
    SPAWN = "spawn"
    SHARED = "shared"


class Allocator(StrEnum):
    """What the C library does with freed memory: keep it, as in a long-running process, or as it likes."""

    STEADY = "steady"
    SYSTEM = "system"


class Variance(StrEnum):
    """What tells how much a case's processes vary: all cases that are compared, or that case alone."""

    SHARED = "shared"
    OWN = "own"


@dataclass(frozen=True, slots=True)
class Flag:
    """An option of the command line. `kind`: what Typer reads; `least`: the smallest number it takes.

    `value`: of a switch, what its field becomes where it is given.
    """

    names: tuple[str, ...]
    text: str
    kind: Any
    least: float | None = None
    value: object = None


def _option(*names: str, text: str, kind: Any, default: Any = None, least: float | None = None) -> Any:
    return field(default=default, metadata={"flags": (Flag(names, text, kind, least),)})


def _names(*names: str, text: str) -> Any:
    return _option(*names, text=text, kind=list[str] | None, default=())


def _named(*names: str, text: str) -> Any:
    flag = Flag(names, text, list[str] | None)
    return field(default_factory=dict, metadata={"flags": (flag,)})


def _switches(default: Any, **texts: str) -> Any:
    flags = [Flag((f"--{name}",), text, bool, value=name) for name, text in texts.items()]
    return field(default=default, metadata={"flags": tuple(flags)})


@dataclass(frozen=True, slots=True, kw_only=True)
class MeasureOptions:
    """What to measure and how, as given: names are checked when a request is made of them.

    Empty or None means what the suite says, or for backends every one that is found. `pythons`: a target's
    name → its interpreter. Names that end in `_s` are seconds. `command`: what was typed, for the run.
    """

    suites: tuple[str, ...] = _names("--suite", "-s", text="A suite's name or TOML file. [default: quick]")
    workloads: tuple[str, ...] = _names("--workload", "-w", text="Only these workloads.")
    backends: tuple[str, ...] = _names(
        "--backend", "-b", text="Only these backends. [default: all that are installed]"
    )
    pythons: Mapping[str, str] = _named(
        "--python", text="NAME=PATH: the interpreter that a backend, or torch@old, runs under."
    )
    devices: tuple[str, ...] = _names(
        "--device", "-d", text="cpu, gpu, tpu, accelerator, or a name such as cuda:1."
    )
    dtypes: tuple[str, ...] = _names(
        "--dtype", text="float64, float32, tf32, bfloat16, float16, amp-bf16, amp-fp16, int8."
    )
    modes: tuple[str, ...] = _names(
        "--mode",
        text="eager, compile, max-autotune-no-cudagraphs, reduce-overhead, cudagraph, function, xla, "
        "tensorrt, jit, lazy, graph.",
    )
    params: Mapping[str, Size | Sequence[Size]] = _named(
        "--param", "-p", text="Override sizes: batch=32,64; m=n=k=512,1024 ties them."
    )
    caches: tuple[str, ...] = _names(
        "--cache", text="What a step finds in the caches: hot, cold, rotate. [default: hot]"
    )
    worlds: tuple[str, ...] = _names(
        "--world",
        text="Devices that compute a step together: 1,2,4, or cuda:0+cuda:1. [default: as the suite says]",
    )
    strategies: tuple[str, ...] = _names(
        "--strategy",
        text="How devices divide it: data-parallel, fully-sharded, tensor-parallel, pipeline. [default: all]",
    )
    environment: Mapping[str, str | Sequence[str]] = _named(
        "--env", text="NAME=a,b: an environment variable; each value makes separate cases."
    )
    preset: str | None = _switches(
        None,
        quick="3 rounds of one to five seconds: a first look.",
        rigorous="10 rounds, each to half a percent.",
    )
    rounds: int | None = _option(
        "--rounds", text="Processes per case, noisy or not.", kind=int | None, least=1
    )
    budget_s: float | None = _option(
        "--budget",
        text="Time to spend, most on noisy cases: 90s, 10m, 1h. At least 3 rounds.",
        kind=str | None,
    )
    timeout_s: float = _option(
        "--timeout", text="Seconds a process may take.", kind=float, default=300.0, least=1
    )
    wait_s: float | None = _option(
        "--wait-for-idle",
        text="Wait until nothing else runs here, this long at most: 10m. Then measure.",
        kind=str | None,
    )
    threads: int | None = _option(
        "--threads", text="CPU threads. [default: all usable]", kind=int | None, least=1
    )
    allocator: str = _option(
        "--allocator",
        text="steady keeps freed memory, as a long-running process would.",
        kind=Allocator,
        default=Allocator.STEADY,
    )
    isolation: str = _option(
        "--isolation", text="How a case gets its process.", kind=Isolation, default=Isolation.FORK
    )
    seed: int | None = _option(
        "--seed", text="Seed for the order of cases. [default: random, stored]", kind=int | None
    )
    tags: Mapping[str, str] = _named(
        "--tag", text="NAME=VALUE to store with the run, for `history --by NAME`."
    )
    command: tuple[str, ...] = ()

    @property
    def given(self) -> set[str]:
        """The fields that were set to other than their defaults."""
        plain = MeasureOptions(command=self.command)
        return {each.name for each in fields(self) if getattr(self, each.name) != getattr(plain, each.name)}


def flag_of(name: str) -> str:
    """How a field of MeasureOptions is typed: `--quick/--rigorous`."""
    (field,) = (each for each in fields(MeasureOptions) if each.name == name)
    flags: tuple[Flag, ...] = field.metadata["flags"]
    return "/".join(flag.names[0] for flag in flags)


class MeasureKeywords(TypedDict, total=False):
    """The same as keywords of a function; names may be one or several."""

    workloads: Names
    backends: Names
    pythons: Mapping[str, str | Path] | None
    devices: Names
    dtypes: Names
    modes: Names
    params: Mapping[str, Size | Sequence[Size]] | None
    caches: Names
    worlds: int | str | Sequence[int | str] | None
    strategies: Names
    environment: Mapping[str, str | Sequence[str]] | None
    preset: Preset | None
    rounds: int | None
    budget_s: float | None
    timeout_s: float
    wait_s: float | None
    threads: int | None
    allocator: Allocator | str
    isolation: Isolation | str
    seed: int | None
    tags: Mapping[str, str] | None


def from_keywords(suite: Names, given: MeasureKeywords, command: str) -> MeasureOptions:
    """Options of what a function was given. Raises TypeError for a keyword that is none."""
    plain = MeasureOptions()
    values = {
        name: _normal(value, getattr(plain, name, None)) for name, value in {"suites": suite, **given}.items()
    }
    return MeasureOptions(**values, command=(command,))


def _normal(value: Any, default: Any) -> Any:
    """One name as several, one size as several, nothing as the default."""
    if value is None:
        return default
    if isinstance(default, tuple):
        return several(str(value) if isinstance(value, int) else [str(each) for each in several(value)])
    if isinstance(default, dict):
        return {name: str(each) if isinstance(each, Path) else each for name, each in value.items()}
    return value


def several(given: Names) -> tuple[str, ...]:
    """One name or several, as several."""
    return (given,) if isinstance(given, str) else tuple(given)


def takes_keywords(*, only: Sequence[str] = (), without: Sequence[str] = ()) -> Callable[[F], F]:
    """A decorator: a function with `**given: Unpack[MeasureKeywords]` takes and shows these of the keywords.

    `only`, `without`: their names. Any other keyword is a TypeError, as ever.
    """
    keywords = [
        inspect.Parameter(
            name, inspect.Parameter.KEYWORD_ONLY, default=_shown(name), annotation=kind.__forward_arg__
        )
        for name, kind in MeasureKeywords.__annotations__.items()
        if name not in without and (not only or name in only)
    ]

    def decorate(function: F) -> F:
        signature = inspect.signature(function)
        parameters = signature.parameters.values()
        before = [each for each in parameters if each.kind is inspect.Parameter.POSITIONAL_OR_KEYWORD]
        after = [each for each in parameters if each.kind is inspect.Parameter.KEYWORD_ONLY]
        shown = signature.replace(parameters=[*before, *keywords, *after])

        @wraps(function)
        def checked(*arguments: Any, **given: Any) -> Any:
            shown.bind(*arguments, **given)
            return function(*arguments, **given)

        checked.__signature__ = shown  # type: ignore[attr-defined]
        return checked  # type: ignore[return-value]

    return decorate


def _shown(name: str) -> Any:
    default = getattr(MeasureOptions(), name)
    return None if isinstance(default, dict) else default
