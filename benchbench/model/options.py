"""Options of a measurement, for the command line and the functions of `benchbench`.

They are separate from the rest of the model to keep `--help` fast. Each field of `MeasureOptions` carries its
flags, the parser of their values, and whether a resumed run or a baseline determines it.
"""

from __future__ import annotations

import inspect
import math
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, fields, replace
from enum import StrEnum
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any, Literal, TypedDict, TypeVar

from benchbench.errors import UsageError

F = TypeVar("F", bound=Callable[..., Any])
Names = str | Sequence[str]  # one or several
REVISION = "rev:"  # before the name of a revision, as a side of a comparison
Preset = Literal["brief", "quick", "default", "rigorous"]
Size = int | float | bool | str  # value of a workload parameter
DEFAULT_SUITE = "quick"
TWO_PARAMS = re.compile(r",(?=[^,=]+=)")  # a comma before a further name and its value
TIE = "="  # joins parameters with a common value
MAX_THREADS = 4096
BARE_TAG = "tag"  # name of a tag given as a value alone
TAG_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,49}")
TAG_HINT = "Write --tag branch=main, or --tag VALUE."


class Isolation(StrEnum):
    """Process of a case: forked from a template, started anew, or shared with other cases."""

    FORK = "fork"
    SPAWN = "spawn"
    SHARED = "shared"


class Allocator(StrEnum):
    """Handling of freed memory: kept for reuse as in a long-running process, or the C library's default."""

    STEADY = "steady"
    SYSTEM = "system"


class Weights(StrEnum):
    """Weights of a user's model: random, which reveals errors that zeros hide, or the model's own."""

    DRAWN = "drawn"
    AS_THEY_ARE = "as-they-are"


class Inconclusive(StrEnum):
    """Effect of undecided cases on a check."""

    PASS = "pass"  # noqa: S105, no password
    FAIL = "fail"


@dataclass(frozen=True, slots=True)
class Flag:
    """A command-line option. `kind` is the type for Typer, `least` the smallest number it accepts.

    `value` is the value that a switch gives to its field. `hidden` flags are old names, absent from the help.
    """

    names: tuple[str, ...]
    text: str
    kind: Any
    least: float | None = None
    value: object = None
    hidden: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Option:
    """Metadata of a field: its flags, and the parser of their values, which may raise UsageError.

    `is_kept_on_resume`: a resumed run keeps its original value. `of_baseline`: a check takes the value of the
    baseline.
    """

    flags: tuple[Flag, ...]
    read: Callable[[Any], Any] = lambda value: value
    is_kept_on_resume: bool = True
    of_baseline: bool = True


def split_names(texts: Sequence[str] | None) -> tuple[str, ...]:
    """`["torch,jax", "fake"]` → ("torch", "jax", "fake")."""
    return tuple(name.strip() for text in texts or () for name in text.split(",") if name.strip())


def tied_names(key: str) -> list[str]:
    """`m=n=k` → `["m", "n", "k"]`."""
    return [name.strip() for name in key.split(TIE)]


def parse_params(texts: Sequence[str]) -> dict[str, list[Size]]:
    """`["batch=32,64", "m=n=512"]` → lists of numbers, booleans or words, by key. Raises UsageError."""
    params: dict[str, list[Size]] = {}
    for text in texts:
        key, _, values = text.rpartition(TIE)
        if not values or not all(tied_names(key)):
            hint = "Write it as name=value or name=value,value; m=n=512 ties sizes."
            raise UsageError(f"Cannot read -p {text!r}.", hint)
        if TWO_PARAMS.search(text):
            separate = " ".join(f"-p {part}" for part in TWO_PARAMS.split(text))
            raise UsageError(f"-p {text} has two parameters.", f"Repeat -p for each: {separate}")
        params[TIE.join(tied_names(key))] = [_size(value.strip()) for value in values.split(",")]
    return params


def _size(text: str) -> Size:
    if text.lower() in ("true", "false"):
        return text.lower() == "true"
    for kind in (int, float):
        with suppress(ValueError):
            number = kind(text)
            return number if math.isfinite(number) else text  # `nan` may be a word but is not a size
    return text


def parse_environment(texts: Sequence[str]) -> dict[str, list[str]]:
    """`["XLA_FLAGS=,--xla_x"]` → values by variable; an empty value unsets it. Raises UsageError."""
    variables: dict[str, list[str]] = {}
    for text in texts:
        name, equals, values = text.partition("=")
        if not equals:
            raise UsageError(f"Cannot read --env {text!r}.", "Write it as NAME=value or NAME=value,value.")
        variables.setdefault(name, []).extend(values.split(","))
    return variables


def parse_threads(texts: Sequence[str]) -> tuple[int, ...]:
    """`["1,2", "4"]` → (1, 2, 4). Raises UsageError."""
    return tuple(number_of_threads(text) for text in split_names(texts))


def number_of_threads(text: str) -> int:
    """Parse a number of threads. Raises UsageError if it is not between 1 and `MAX_THREADS`."""
    if not (text.isascii() and text.isdecimal() and 1 <= int(text) <= MAX_THREADS):
        raise UsageError(
            f"{text[:20]!r} is not a number of threads.",
            f"Write threads=2: 1 to {MAX_THREADS} can be asked for.",
        )
    return int(text)


def parse_interpreters(texts: Sequence[str]) -> dict[str, str]:
    """`["torch@old=/path"]` → paths by name. Raises UsageError."""
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
    tags: dict[str, str] = {}
    for text in texts:
        before, equals, after = text.partition("=")
        name, value = (before, after) if equals else (BARE_TAG, before)
        if name in tags:
            raise UsageError(f"The tag {name!r} is given twice.", "A run has one value of each.")
        tags[name] = value
    return check_tags(tags)


def check_tags(tags: Mapping[str, str]) -> dict[str, str]:
    """Return `tags` if all names and values are valid. Raises UsageError."""
    for name, value in tags.items():
        if not (isinstance(name, str) and TAG_NAME.fullmatch(name)):
            raise UsageError(f"{name!r} cannot name a tag.", TAG_HINT)
        if not (isinstance(value, str) and value.strip()):
            raise UsageError(f"The tag {name!r} has no value.", TAG_HINT)
    return dict(tags)


def seconds_in(text: str) -> float:
    """Seconds of `90`, `90s`, `10m` or `1.5h`. Raises UsageError."""
    match = re.fullmatch(r"([0-9]+(?:[.][0-9]+)?) ?([smh]?)", text.strip(), re.ASCII)
    if not match or not float(match[1]):
        raise UsageError(f"{text!r} is not a time.", "Write ten minutes as 10m, ninety seconds as 90s.")
    return float(match[1]) * {"": 1, "s": 1, "m": 60, "h": 3600}[match[2]]


def _option(
    *names: str, text: str, kind: Any, default: Any = None, least: float | None = None, **more: Any
) -> Any:
    """Field with one flag. `more` are arguments of `Option`."""
    flag = Flag(names, text, kind, least)
    return field(default=default, metadata={"option": Option(flags=(flag,), **more)})


def _names(*names: str, text: str, **more: Any) -> Any:
    return _option(*names, text=text, kind=list[str] | None, default=(), read=split_names, **more)


def _mapping(*names: str, text: str, read: Callable[[Any], Any], **more: Any) -> Any:
    flag = Flag(names, text, list[str] | None)
    return field(default_factory=dict, metadata={"option": Option(flags=(flag,), read=read, **more)})


def _switches(default: Any, *, hidden: str, **texts: str) -> Any:
    flags = [
        Flag((f"--{name}",), text, bool, value=name, hidden=name == hidden) for name, text in texts.items()
    ]
    return field(default=default, metadata={"option": Option(flags=tuple(flags))})


@dataclass(frozen=True, slots=True, kw_only=True)
class MeasureOptions:
    """Options of a measurement. Names are validated when a request is made from them.

    Empty or None means the suite's value, or all installed backends. `pythons` has interpreters by target
    name. Fields that end in `_s` are seconds. `command` is stored with the run.
    """

    suites: tuple[str, ...] = _names(
        "--suite", "-s", text="A suite's name or TOML file. [default: quick]", of_baseline=False
    )
    model: tuple[str, ...] = _names(
        "--model",
        text="Your model: FILE.py, FILE.py:Model, package.module:Model, or a transformers JSON.",
        is_kept_on_resume=False,
        of_baseline=False,
    )
    input: str | None = _option(
        "--input",
        text=".npz file with NumPy arrays, named after its inputs or by position.",
        kind=str | None,
        of_baseline=False,
    )
    weights: str = _option(
        "--weights",
        text="drawn (random, so that zero biases and new batch norms hide no errors), or as-they-are.",
        kind=Weights,
        default=Weights.DRAWN,
        of_baseline=False,
    )
    max_error: str | float | None = _option(
        "--max-error",
        text="Largest error allowed for engines that reduce precision, such as int8: 1%.",
        kind=str | None,
    )
    workloads: tuple[str, ...] = _names(
        "--workload", "-w", text="Only these workloads: gemm,conv2d, or 'gpt2*'."
    )
    phases: tuple[str, ...] = _names("--phase", text="Only these phases: forward, backward, train.")
    backends: tuple[str, ...] = _names(
        "--backend", "-b", text="Only these backends. [default: all installed]"
    )
    pythons: Mapping[str, str] = _mapping(
        "--python",
        text="Interpreter for a backend or a label such as torch@old.",
        read=parse_interpreters,
        is_kept_on_resume=False,
        of_baseline=False,
    )
    devices: tuple[str, ...] = _names(
        "--device", "-d", text="Devices: cpu, gpu, tpu, accelerator, or a name such as cuda:1."
    )
    dtypes: tuple[str, ...] = _names(
        "--dtype", text="Dtypes: float64, float32, tf32, bfloat16, float16, amp-bf16, amp-fp16, int8, float8."
    )
    modes: tuple[str, ...] = _names(
        "--mode",
        text="Modes: eager, compile, compile-freezing, max-autotune-no-cudagraphs, reduce-overhead, "
        "cudagraph, function, xla, jit, lazy, graph; for your models also channels_last, "
        "graph-dynamic.",
    )
    params: Mapping[str, Size | Sequence[Size]] = _mapping(
        "--param",
        "-p",
        text="Override parameters: batch=32,64; m=n=k=512,1024 for equal values.",
        read=parse_params,
    )
    caches: tuple[str, ...] = _names(
        "--cache", text="State of the caches before a step: hot, cold, rotate. [default: hot]"
    )
    worlds: tuple[str, ...] = _names(
        "--world",
        text="Devices that share a step: 1,2,4, or cuda:0+cuda:1. [default: the suite's]",
    )
    strategies: tuple[str, ...] = _names(
        "--strategy",
        text="Parallel strategies: data-parallel, fully-sharded, tensor-parallel, pipeline. [default: all]",
    )
    environment: Mapping[str, str | Sequence[str]] = _mapping(
        "--env",
        text="Environment variable; each value makes separate cases.",
        read=parse_environment,
    )
    preset: str | None = _switches(
        None,
        hidden="brief",  # hardly differs from `quick`
        brief="3 heats of 10 turns, up to 8 for undecided works.",
        quick="3 heats of 10 turns, up to 8 for undecided works.",
        rigorous="8 heats of 60 turns, up to 16 for undecided works.",
    )
    rounds: int | None = field(
        default=None,
        metadata={
            "option": Option(
                flags=(
                    Flag(("--heats",), "Exact number of heats of each work.", int | None, least=1),
                    Flag(("--rounds",), "Same as --heats.", int | None, least=1, hidden=True),
                ),
                of_baseline=False,
            )
        },
    )
    budget_s: float | None = _option(
        "--budget",
        text="Time limit: 90s, 10m, 1h. Noisy cases get most of it; all get at least 3 heats.",
        kind=str | None,
        read=seconds_in,
    )
    timeout_s: float = _option(
        "--timeout", text="Time limit of a process in seconds.", kind=float, default=300.0, least=1
    )
    wait_s: float | None = _option(
        "--wait-for-idle",
        text="Wait until the machine is idle, for at most this long: 10m. Then measure.",
        kind=str | None,
        read=seconds_in,
        is_kept_on_resume=False,
        of_baseline=False,
    )
    threads: tuple[int, ...] = _option(
        "--threads",
        text="CPU threads; 1,2,4 makes a case for each. [default: the usable cores]",
        kind=list[str] | None,
        default=(),
        read=parse_threads,
    )
    allocator: str = _option(
        "--allocator",
        text="steady: keep freed memory like a long-running process.",
        kind=Allocator,
        default=Allocator.STEADY,
    )
    isolation: str = _option(
        "--isolation",
        text="Process of a case: forked, started anew, or shared.",
        kind=Isolation,
        default=Isolation.FORK,
    )
    seed: int | None = _option(
        "--seed", text="Seed for the order of cases. [default: random, stored]", kind=int | None
    )
    tags: Mapping[str, str] = _mapping(
        "--tag", text="NAME=VALUE stored with the run, for `history --by NAME`.", read=parse_tags
    )
    command: tuple[str, ...] = ()

    @property
    def changed_fields(self) -> set[str]:
        """Names of the fields that differ from their defaults."""
        defaults = MeasureOptions(command=self.command)
        names = [field.name for field in fields(self)]
        return {name for name in names if getattr(self, name) != getattr(defaults, name)}

    @property
    def changed_kept_fields(self) -> list[str]:
        """Changed fields whose original values a resumed run keeps, sorted."""
        return sorted(name for name in self.changed_fields if OPTIONS[name].is_kept_on_resume)

    def resuming(self, begun: MeasureOptions) -> MeasureOptions:
        """Options of a resumed run: those of `begun`, with the fields of this object that are not kept.

        The models of `begun` are used if this object names none.
        """
        replaced = {
            name: getattr(self, name) for name, option in OPTIONS.items() if not option.is_kept_on_resume
        }
        return replace(begun, command=self.command, **{**replaced, "model": self.model or begun.model})


OPTIONS: Mapping[str, Option] = {  # all fields except `command`
    field.name: field.metadata["option"] for field in fields(MeasureOptions) if field.metadata
}


def flag_of(name: str) -> str:
    """Flags of a field of MeasureOptions: `--quick/--rigorous`."""
    return "/".join(flag.names[0] for flag in OPTIONS[name].flags)


class MeasureKeywords(TypedDict, total=False):
    """Keyword arguments for the same options, in the types that callers may pass: one name or several.

    Type checkers accept only a TypedDict here (PEP 692), and keywords have more types than the fields of
    `MeasureOptions`. So each name is written twice; a test compares them.
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


def requested_options(
    function: Callable[..., Any],
    suite: Names,
    keywords: MeasureKeywords,
    options: MeasureOptions | None = None,
) -> MeasureOptions:
    """Return `options`, or build them from the keywords. Raises TypeError for an unknown keyword."""
    parameters = inspect.signature(function).parameters
    for name in keywords:
        if name not in parameters:
            raise TypeError(f"{function.__name__}() got an unexpected keyword argument {name!r}")
    return options or from_keywords(suite, keywords, f"benchbench.{function.__name__}")


def from_keywords(suite: Names, keywords: MeasureKeywords, command: str) -> MeasureOptions:
    """Build options from the keywords of a function. Raises TypeError for an unknown keyword."""
    defaults = MeasureOptions()
    if keywords.get("model") and suite == DEFAULT_SUITE:  # a model replaces the default suite
        suite = ()
    values = {
        name: _normalized(name, value, getattr(defaults, name, None))
        for name, value in {"suites": suite, **keywords}.items()
    }
    return MeasureOptions(**values, command=(command,))


def _normalized(name: str, value: Any, default: Any) -> Any:
    """Convert the value of a keyword to the type of its field; None gives the default."""
    if value is None:
        return default
    if name == "threads":
        return tuple(
            number_of_threads(str(count)) for count in ([value] if isinstance(value, int) else value)
        )
    if isinstance(value, str) and OPTIONS[name].read is split_names:
        return split_names([value])
    if isinstance(default, tuple):
        return several(str(value) if isinstance(value, int) else [str(item) for item in several(value)])
    if isinstance(default, dict):
        return {name: str(item) if isinstance(item, Path) else item for name, item in value.items()}
    return str(value) if isinstance(value, Path) else value


def several(names: Names) -> tuple[str, ...]:
    """Tuple of one name or several names."""
    return (names,) if isinstance(names, str) else tuple(names)


def takes_keywords(*, only: Sequence[str] = (), without: Sequence[str] = ()) -> Callable[[F], F]:
    """Decorator that shows the keywords of `**given: Unpack[MeasureKeywords]` in the function's signature.

    `only` and `without` select keywords. The function is not wrapped: `requested_options` rejects others.
    """
    keywords = [
        inspect.Parameter(
            name, inspect.Parameter.KEYWORD_ONLY, default=_default(name), annotation=kind.__forward_arg__
        )
        for name, kind in MeasureKeywords.__annotations__.items()
        if name not in without and (not only or name in only)
    ]

    def decorate(function: F) -> F:
        signature = inspect.signature(function)
        parameters = signature.parameters.values()
        positional = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.VAR_POSITIONAL)
        before = [parameter for parameter in parameters if parameter.kind in positional]
        after = [parameter for parameter in parameters if parameter.kind is inspect.Parameter.KEYWORD_ONLY]
        new_signature = signature.replace(parameters=[*before, *keywords, *after])
        function.__signature__ = new_signature  # type: ignore[attr-defined]
        return function

    return decorate


def _default(name: str) -> Any:
    """Default of an option for a signature; None instead of an empty mapping."""
    default = getattr(MeasureOptions(), name)
    return None if isinstance(default, dict) else default


@dataclass(frozen=True, slots=True)
class Rule:
    """Threshold for cases whose id contains `pattern` or matches it (* and ?). An empty suite means all."""

    pattern: str
    value: float  # 0.05 means 5 %
    source: str
    suite: str = ""

    def names(self, suite: str, case: str) -> bool:
        """True if the rule applies to this case."""
        return self.suite in ("", suite) and fnmatchcase(case, f"*{self.pattern}*")


@dataclass(frozen=True, slots=True)
class Threshold:
    """A fraction and its source."""

    value: float
    source: str


DEFAULT = Rule("", 0.05, "default")  # sessions of one machine differ by a few per cent


def threshold(suite: str, case: str, rules: Iterable[Rule]) -> Threshold:
    """Threshold of a case: the first matching rule, else the default."""
    rule = next((rule for rule in rules if rule.names(suite, case)), DEFAULT)
    return Threshold(rule.value, rule.source)
