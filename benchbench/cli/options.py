"""Options that several commands share, and how their texts are read; those of a measurement.

These are made of the fields of `MeasureOptions`, and read into one.
"""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import wraps
from pathlib import Path
from typing import Annotated, Any, get_type_hints

import typer

from benchbench.errors import UsageError
from benchbench.model.options import OPTIONS, Flag, MeasureOptions


def option(*names: str, text: str, **more: Any) -> Any:
    return typer.Option(*names, help=_unmarked(text), **more)


def argument(text: str, **more: Any) -> Any:
    return typer.Argument(help=_unmarked(text), **more)


def _unmarked(text: str) -> str:
    return text.replace("[", r"\[")  # else Rich takes `[default: all]` for markup and leaves it out


Names = list[str] | None
TagOption = Annotated[Names, option("--tag", text="To store with the run, for `history --by NAME`.")]
ResultsOption = Annotated[
    Path, option("--results", text="The folder that keeps runs.", envvar="ACCELBENCH_RESULTS")
]


def measure_options(
    *, only: Sequence[str] = (), without: Sequence[str] = (), hidden: Sequence[str] = ()
) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """A decorator: where a command takes `options`, its program takes the flags of those fields.

    `only`, `without`: names of fields. `hidden`: of those that are refused with a reason, so that no help
    shows them. Typer reads the signature that this leaves behind.
    """
    chosen = [name for name in OPTIONS if name not in without and (not only or name in only)]

    def decorate(command: Callable[..., None]) -> Callable[..., None]:
        @wraps(command)
        def program(**typed: Any) -> None:
            own = {name: typed.pop(name) for name in own_names}
            command(**own, options=_options(chosen, typed))

        parameters = list(_expanded(command, chosen, hidden))
        own_names = [name for name in inspect.signature(command).parameters if name != "options"]
        program.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
        program.__annotations__ = {each.name: each.annotation for each in parameters}
        return program

    return decorate


def _expanded(
    command: Callable[..., None], chosen: Sequence[str], hidden: Sequence[str]
) -> Iterator[inspect.Parameter]:
    """The command's parameters, with those of the flags in place of `options`."""
    hints, plain = get_type_hints(command, include_extras=True), MeasureOptions()
    for name, parameter in inspect.signature(command).parameters.items():
        if name != "options":
            yield parameter.replace(annotation=hints[name], kind=inspect.Parameter.KEYWORD_ONLY)
            continue
        for each in chosen:
            for flag in OPTIONS[each].flags:
                yield _parameter(flag, getattr(plain, each), hidden=each in hidden or flag.hidden)


def _parameter(flag: Flag, default: Any, *, hidden: bool) -> inspect.Parameter:
    more: dict[str, Any] = {"min": flag.least} if flag.least else {}
    if flag.kind is bool:
        default = False
    elif flag.kind == list[str] | None:
        default = None
    return inspect.Parameter(
        _name(flag),
        inspect.Parameter.KEYWORD_ONLY,
        default=default,
        annotation=Annotated[flag.kind, option(*flag.names, text=flag.text, hidden=hidden, **more)],
    )


def _name(flag: Flag) -> str:
    return flag.names[0].removeprefix("--").replace("-", "_")


def _options(chosen: Sequence[str], typed: Mapping[str, Any]) -> MeasureOptions:
    """Raises UsageError."""
    values: dict[str, Any] = {}
    for name in chosen:
        given = [flag for flag in OPTIONS[name].flags if _is_given(typed[_name(flag)])]
        if len(given) > 1:
            raise UsageError(
                f"{given[0].names[0]} and {given[1].names[0]} exclude each other.", "Give one of them."
            )
        for flag in given:
            values[name] = flag.value or OPTIONS[name].read(typed[_name(flag)])
    return MeasureOptions(**values, command=tuple(sys.argv[1:]))


def _is_given(value: Any) -> bool:
    return value is not None and value is not False  # a seed may be 0
