"""Options shared by several commands, and the options of a measurement.

The latter are generated from the fields of `MeasureOptions`.
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
    return typer.Option(*names, help=_escape_markup(text), **more)


def argument(text: str, **more: Any) -> Any:
    return typer.Argument(help=_escape_markup(text), **more)


def _escape_markup(text: str) -> str:
    return text.replace("[", r"\[")  # Rich would treat `[default: all]` as markup and drop it


Names = list[str] | None
TagOption = Annotated[Names, option("--tag", text="NAME=VALUE stored with the run, for `history --by NAME`.")]
PriceOption = Annotated[
    Names, option("--price", text="Price per hour: DEVICE=AMOUNT CURRENCY, as in '*H100*=2.5 EUR'.")
]
ResultsOption = Annotated[
    Path, option("--results", text="Folder of stored runs.", envvar="ACCELBENCH_RESULTS")
]


def measure_options(
    *, only: Sequence[str] = (), without: Sequence[str] = (), hidden: Sequence[str] = ()
) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Decorator that replaces the parameter `options` of a command by flags for its fields.

    `only` and `without` select fields by name. Flags of `hidden` fields are accepted but not shown in the
    help; the command rejects them with a reason. Typer reads the resulting signature.
    """
    names = [name for name in OPTIONS if name not in without and (not only or name in only)]

    def decorate(command: Callable[..., None]) -> Callable[..., None]:
        @wraps(command)
        def wrapper(**arguments: Any) -> None:
            others = {name: arguments.pop(name) for name in other_names}
            command(**others, options=_build_options(names, arguments))

        parameters = list(_expanded_parameters(command, names, hidden))
        other_names = [name for name in inspect.signature(command).parameters if name != "options"]
        wrapper.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
        wrapper.__annotations__ = {parameter.name: parameter.annotation for parameter in parameters}
        return wrapper

    return decorate


def _expanded_parameters(
    command: Callable[..., None], names: Sequence[str], hidden: Sequence[str]
) -> Iterator[inspect.Parameter]:
    """Parameters of the command, with those of the flags in place of `options`."""
    hints, defaults = get_type_hints(command, include_extras=True), MeasureOptions()
    for parameter_name, parameter in inspect.signature(command).parameters.items():
        if parameter_name != "options":
            yield parameter.replace(annotation=hints[parameter_name], kind=inspect.Parameter.KEYWORD_ONLY)
            continue
        for name in names:
            for flag in OPTIONS[name].flags:
                yield _parameter(flag, getattr(defaults, name), hidden=name in hidden or flag.hidden)


def _parameter(flag: Flag, default: Any, *, hidden: bool) -> inspect.Parameter:
    more: dict[str, Any] = {"min": flag.least} if flag.least else {}
    if flag.kind is bool:
        default = False
    elif flag.kind == list[str] | None:
        default = None
    return inspect.Parameter(
        _argument_name(flag),
        inspect.Parameter.KEYWORD_ONLY,
        default=default,
        annotation=Annotated[flag.kind, option(*flag.names, text=flag.text, hidden=hidden, **more)],
    )


def _argument_name(flag: Flag) -> str:
    return flag.names[0].removeprefix("--").replace("-", "_")


def _build_options(names: Sequence[str], arguments: Mapping[str, Any]) -> MeasureOptions:
    """Build the options from parsed arguments. Raises UsageError if two flags set one field."""
    values: dict[str, Any] = {}
    for name in names:
        set_flags = [flag for flag in OPTIONS[name].flags if _is_set(arguments[_argument_name(flag)])]
        if len(set_flags) > 1:
            raise UsageError(
                f"{set_flags[0].names[0]} and {set_flags[1].names[0]} exclude each other.",
                "Give one of them.",
            )
        for flag in set_flags:
            values[name] = flag.value or OPTIONS[name].read(arguments[_argument_name(flag)])
    return MeasureOptions(**values, command=tuple(sys.argv[1:]))


def _is_set(value: Any) -> bool:
    return value is not None and value is not False  # a seed may be 0
