"""What can be asked of a measurement, as the command line and the functions of `benchbench` offer it.

Apart from the other nouns, so that `--help` need not build those. A field carries the flags that set it, how
typed text becomes its value, and whether a resumed run or a baseline has that value already.
"""

from __future__ import annotations

import inspect
import math
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, fields, replace
from enum import StrEnum
from pathlib import Path
from typing import Any, Literal, TypedDict, TypeVar

from benchbench.errors import UsageError

F = TypeVar("F", bound=Callable[..., Any])
Names = str | Sequence[str]  # one or several
REVISION = "rev:"  # before the name of a revision, as a side of a comparison
Preset = Literal["brief", "quick", "default", "rigorous"]
Size = int | float | bool | str  # of a workload's parameter
USUAL_SUITE = "quick"
TIE = "="  # of parameters that have one value
MOST_THREADS = 4096
BARE_TAG = "tag"  # the name of a value that was given none
TAG_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,49}")
TAG_HINT = "Write --tag branch=main, or --tag VALUE."


class Isolation(StrEnum):
    """How a case gets its process: forked from a template, started anew, or shared with other cases."""

    FORK = "fork"
    SPAWN = "spawn"
    SHARED = "shared"


class Allocator(StrEnum):
    """What the C library does with freed memory: keep it, as in a long-running process, or as it likes."""

    STEADY = "steady"
    SYSTEM = "system"


class Weights(StrEnum):
    """What the weights of a user's model are: drawn, so that mistakes show, or as the model has them."""

    DRAWN = "drawn"
    AS_THEY_ARE = "as-they-are"


class Variance(StrEnum):
    """What tells how much a case's processes vary: all cases that are compared, or that case alone."""

    SHARED = "shared"
    OWN = "own"


class Inconclusive(StrEnum):
    """Effect of undecided cases on a check."""

    PASS = "pass"  # noqa: S105, no password
    FAIL = "fail"


@dataclass(frozen=True, slots=True)
class Flag:
    """An option of the command line. `kind`: what Typer reads; `least`: the smallest number it takes.

    `value`: of a switch, what its field becomes where it is given. `hidden`: from the help, an earlier name.
    """

    names: tuple[str, ...]
    text: str
    kind: Any
    least: float | None = None
    value: object = None
    hidden: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Option:
    """What a field carries: its flags, and how what was typed becomes its value, which may raise UsageError.

    `kept`: a resumed run keeps the value it was begun with. `of_baseline`: in a check, the baseline sets it.
    """

    flags: tuple[Flag, ...]
    read: Callable[[Any], Any] = lambda typed: typed
    kept: bool = True
    of_baseline: bool = True


def split_names(texts: Sequence[str] | None) -> tuple[str, ...]:
    """`["torch,jax", "fake"]` → ("torch", "jax", "fake")."""
    return tuple(name.strip() for text in texts or () for name in text.split(",") if name.strip())


def tied(key: str) -> list[str]:
    """`m=n=k` → the three names."""
    return [name.strip() for name in key.split(TIE)]


def parse_params(texts: Sequence[str]) -> dict[str, list[Size]]:
    """`["batch=32,64", "m=n=512"]` → lists of numbers, truth values or words, by key. Raises UsageError."""
    found: dict[str, list[Size]] = {}
    for text in texts:
        key, _, values = text.rpartition(TIE)
        if not values or not all(tied(key)):
            hint = "Write it as name=value or name=value,value; m=n=512 ties sizes."
            raise UsageError(f"Cannot read -p {text!r}.", hint)
        found[TIE.join(tied(key))] = [_size(value.strip()) for value in values.split(",")]
    return found


def _size(text: str) -> Size:
    if text.lower() in ("true", "false"):
        return text.lower() == "true"
    for kind in (int, float):
        with suppress(ValueError):
            number = kind(text)
            return number if math.isfinite(number) else text  # `nan` may be a word, and no size
    return text


def parse_environment(texts: Sequence[str]) -> dict[str, list[str]]:
    """`["XLA_FLAGS=,--xla_x"]` → the values of each variable, "" for its absence. Raises UsageError."""
    found: dict[str, list[str]] = {}
    for text in texts:
        name, equals, values = text.partition("=")
        if not equals:
            raise UsageError(f"Cannot read --env {text!r}.", "Write it as NAME=value or NAME=value,value.")
        found.setdefault(name, []).extend(values.split(","))
    return found


def parse_threads(texts: Sequence[str]) -> tuple[int, ...]:
    """`["1,2", "4"]` → (1, 2, 4). Raises UsageError."""
    return tuple(number_of_threads(text) for text in split_names(texts))


def number_of_threads(text: str) -> int:
    """Raises UsageError for anything but a number of threads that a process can have."""
    if not (text.isascii() and text.isdecimal() and 1 <= int(text) <= MOST_THREADS):
        raise UsageError(
            f"{text[:20]!r} is not a number of threads.",
            f"Write threads=2: 1 to {MOST_THREADS} can be asked for.",
        )
    return int(text)


def parse_interpreters(texts: Sequence[str]) -> dict[str, str]:
    """`["torch@old=/path"]` → name → path, as it was typed. Raises UsageError."""
    paths: dict[str, str] = {}
    for text in texts:
        name, equals, path = text.partition("=")
        if not (equals and name.strip() and path.strip()):
            raise UsageError(
                f"Cannot read --python {text!r}.", "Write it as NAME=PATH: torch@old=/path/to/python."
            )
        paths[name.strip()] = path.strip()
    return paths


def parse_tags(texts: Iterable[str]) -> dict[str, str]:
    """`["branch=main", "v2"]` → {"branch": "main", "tag": "v2"}. Raises UsageError."""
    found: dict[str, str] = {}
    for text in texts:
        before, equals, after = text.partition("=")
        name, value = (before, after) if equals else (BARE_TAG, before)
        if name in found:
            raise UsageError(f"The tag {name!r} is given twice.", "A run has one value of each.")
        found[name] = value
    return check_tags(found)


def check_tags(tags: Mapping[str, str]) -> dict[str, str]:
    """`tags`, if each has a name and a value. Raises UsageError."""
    for name, value in tags.items():
        if not (isinstance(name, str) and TAG_NAME.fullmatch(name)):
            raise UsageError(f"{name!r} cannot name a tag.", TAG_HINT)
        if not (isinstance(value, str) and value.strip()):
            raise UsageError(f"The tag {name!r} has no value.", TAG_HINT)
    return dict(tags)


def seconds_in(text: str) -> float:
    """`90`, `90s`, `10m`, `1.5h` → seconds. Raises UsageError."""
    found = re.fullmatch(r"([0-9]+(?:[.][0-9]+)?) ?([smh]?)", text.strip(), re.ASCII)
    if not found or not float(found[1]):
        raise UsageError(f"{text!r} is not a time.", "Write ten minutes as 10m, ninety seconds as 90s.")
    return float(found[1]) * {"": 1, "s": 1, "m": 60, "h": 3600}[found[2]]


def _option(
    *names: str, text: str, kind: Any, default: Any = None, least: float | None = None, **more: Any
) -> Any:
    """A field with one flag; `more`: how it is read and kept."""
    flag = Flag(names, text, kind, least)
    return field(default=default, metadata={"option": Option(flags=(flag,), **more)})


def _names(*names: str, text: str, **more: Any) -> Any:
    return _option(*names, text=text, kind=list[str] | None, default=(), read=split_names, **more)


def _named(*names: str, text: str, read: Callable[[Any], Any], **more: Any) -> Any:
    flag = Flag(names, text, list[str] | None)
    return field(default_factory=dict, metadata={"option": Option(flags=(flag,), read=read, **more)})


def _switches(default: Any, **texts: str) -> Any:
    flags = [Flag((f"--{name}",), text, bool, value=name) for name, text in texts.items()]
    return field(default=default, metadata={"option": Option(flags=tuple(flags))})


@dataclass(frozen=True, slots=True, kw_only=True)
class MeasureOptions:
    """What to measure and how, as given: names are checked when a request is made of them.

    Empty or None means what the suite says, or for backends every one that is found. `pythons`: a target's
    name → its interpreter. Names that end in `_s` are seconds. `command`: what was typed, for the run.
    """

    suites: tuple[str, ...] = _names(
        "--suite", "-s", text="A suite's name or TOML file. [default: quick]", of_baseline=False
    )
    model: tuple[str, ...] = _names(
        "--model",
        text="A model of yours: FILE.py, FILE.py:Model, package.module:Model, or a transformers JSON.",
        kept=False,
        of_baseline=False,
    )
    input: str | None = _option(
        "--input",
        text="Of a model of yours: a file of NumPy's arrays, .npz, by the names or places of its inputs.",
        kind=str | None,
        of_baseline=False,
    )
    weights: str = _option(
        "--weights",
        text="Of a model of yours: drawn, so that biases of zeros and new batch norms hide no mistake, or "
        "as-they-are.",
        kind=Weights,
        default=Weights.DRAWN,
        of_baseline=False,
    )
    max_error: str | float | None = _option(
        "--max-error",
        text="Of models of yours: let engines that lose precision, as by int8, compete if they are at most "
        "so far off: 1%.",
        kind=str | None,
    )
    workloads: tuple[str, ...] = _names(
        "--workload", "-w", text="Only these workloads: gemm,conv2d, or 'gpt2*'."
    )
    phases: tuple[str, ...] = _names("--phase", text="Only steps of these phases: forward, backward, train.")
    backends: tuple[str, ...] = _names(
        "--backend", "-b", text="Only these backends. [default: all that are installed]"
    )
    pythons: Mapping[str, str] = _named(
        "--python",
        text="The interpreter that a backend, or torch@old, runs under.",
        read=parse_interpreters,
        kept=False,
        of_baseline=False,
    )
    devices: tuple[str, ...] = _names(
        "--device", "-d", text="cpu, gpu, tpu, accelerator, or a name such as cuda:1."
    )
    dtypes: tuple[str, ...] = _names(
        "--dtype", text="float64, float32, tf32, bfloat16, float16, amp-bf16, amp-fp16, int8, float8."
    )
    modes: tuple[str, ...] = _names(
        "--mode",
        text="eager, compile, compile-freezing, max-autotune-no-cudagraphs, reduce-overhead, cudagraph, "
        "function, xla, tensorrt, jit, lazy, graph; of models of yours also channels_last, aoti, "
        "graph-dynamic.",
    )
    params: Mapping[str, Size | Sequence[Size]] = _named(
        "--param", "-p", text="Override sizes: batch=32,64; m=n=k=512,1024 ties them.", read=parse_params
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
        "--env",
        text="An environment variable; each value makes separate cases.",
        read=parse_environment,
    )
    preset: str | None = _switches(
        None,
        brief="3 heats of 10 turns, up to 8 of undecided works.",
        quick="3 heats of 10 turns, up to 8 of undecided works: a first look.",
        rigorous="8 heats of 60 turns, up to 16 of undecided works.",
    )
    rounds: int | None = field(
        default=None,
        metadata={
            "option": Option(
                flags=(
                    Flag(("--heats",), "Heats of each work, decided or not.", int | None, least=1),
                    Flag(("--rounds",), "As --heats.", int | None, least=1, hidden=True),
                ),
                of_baseline=False,
            )
        },
    )
    budget_s: float | None = _option(
        "--budget",
        text="Time to spend, most on noisy cases: 90s, 10m, 1h. At least 3 heats.",
        kind=str | None,
        read=seconds_in,
    )
    timeout_s: float = _option(
        "--timeout", text="Seconds a process may take.", kind=float, default=300.0, least=1
    )
    wait_s: float | None = _option(
        "--wait-for-idle",
        text="Wait until nothing else runs here, this long at most: 10m. Then measure.",
        kind=str | None,
        read=seconds_in,
        kept=False,
        of_baseline=False,
    )
    threads: tuple[int, ...] = _option(
        "--threads",
        text="CPU threads. 1,2,4: a case with each. [default: the cores that are usable]",
        kind=list[str] | None,
        default=(),
        read=parse_threads,
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
        "--tag", text="To store with the run, for `history --by NAME`.", read=parse_tags
    )
    command: tuple[str, ...] = ()

    @property
    def given(self) -> set[str]:
        """The fields that were set to other than their defaults."""
        plain = MeasureOptions(command=self.command)
        return {each.name for each in fields(self) if getattr(self, each.name) != getattr(plain, each.name)}

    @property
    def given_and_kept(self) -> list[str]:
        """The fields of `given` that a resumed run keeps as it was begun, sorted."""
        return sorted(name for name in self.given if OPTIONS[name].kept)

    def resuming(self, begun: MeasureOptions) -> MeasureOptions:
        """The options `begun`, with those of this object that each part of a run has of its own.

        Models stay those of `begun` where this object names none.
        """
        own = {name: getattr(self, name) for name, option in OPTIONS.items() if not option.kept}
        return replace(begun, command=self.command, **{**own, "model": self.model or begun.model})


OPTIONS: Mapping[str, Option] = {  # all fields but `command`
    each.name: each.metadata["option"] for each in fields(MeasureOptions) if each.metadata
}


def flag_of(name: str) -> str:
    """How a field of MeasureOptions is typed: `--quick/--rigorous`."""
    return "/".join(flag.names[0] for flag in OPTIONS[name].flags)


class MeasureKeywords(TypedDict, total=False):
    """The same as keywords of a function, in the types that a caller may give: a name, or several.

    A type checker takes keywords from a TypedDict alone (PEP 692), and a field of `MeasureOptions` has one
    type where a keyword may have several. So each name is written twice, and a test compares them.
    """

    model: Names
    input: str | Path | None
    weights: Weights | str
    max_error: str | float | None
    workloads: Names
    phases: Names
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
    threads: int | Sequence[int] | None
    allocator: Allocator | str
    isolation: Isolation | str
    seed: int | None
    tags: Mapping[str, str] | None


def asked_of(
    function: Callable[..., Any], suite: Names, given: MeasureKeywords, options: MeasureOptions | None = None
) -> MeasureOptions:
    """`options`, else the options that the keywords make. Raises TypeError for an unknown keyword."""
    takes = inspect.signature(function).parameters
    for name in given:
        if name not in takes:
            raise TypeError(f"{function.__name__}() got an unexpected keyword argument {name!r}")
    return options or from_keywords(suite, given, f"benchbench.{function.__name__}")


def from_keywords(suite: Names, given: MeasureKeywords, command: str) -> MeasureOptions:
    """The options that a function was given as keywords. Raises TypeError for an unknown keyword."""
    plain = MeasureOptions()
    if given.get("model") and suite == USUAL_SUITE:  # a model takes the place of what is measured unasked
        suite = ()
    values = {
        name: _normal(name, value, getattr(plain, name, None))
        for name, value in {"suites": suite, **given}.items()
    }
    return MeasureOptions(**values, command=(command,))


def _normal(name: str, value: Any, default: Any) -> Any:
    """The value of a keyword as a field has it: a tuple of names, also of `torch,jax`; None: the default."""
    if value is None:
        return default
    if name == "threads":
        return tuple(number_of_threads(str(each)) for each in ([value] if isinstance(value, int) else value))
    if isinstance(value, str) and OPTIONS[name].read is split_names:
        return split_names([value])
    if isinstance(default, tuple):
        return several(str(value) if isinstance(value, int) else [str(each) for each in several(value)])
    if isinstance(default, dict):
        return {name: str(each) if isinstance(each, Path) else each for name, each in value.items()}
    return str(value) if isinstance(value, Path) else value


def several(given: Names) -> tuple[str, ...]:
    """One name or several names, as a tuple."""
    return (given,) if isinstance(given, str) else tuple(given)


def takes_keywords(*, only: Sequence[str] = (), without: Sequence[str] = ()) -> Callable[[F], F]:
    """A decorator: help() shows these of the keywords for `**given: Unpack[MeasureKeywords]`.

    `only`, `without`: their names. The function itself stays what it is; `asked_of` refuses other keywords.
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
        positional = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.VAR_POSITIONAL)
        before = [each for each in parameters if each.kind in positional]
        after = [each for each in parameters if each.kind is inspect.Parameter.KEYWORD_ONLY]
        shown = signature.replace(parameters=[*before, *keywords, *after])
        function.__signature__ = shown  # type: ignore[attr-defined]
        return function

    return decorate


def _shown(name: str) -> Any:
    default = getattr(MeasureOptions(), name)
    return None if isinstance(default, dict) else default
