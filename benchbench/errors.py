"""Every expected error: what happened, what to do next, and the exit code.

AccelbenchError
├── UsageError        2   a name, key or value that is not known
│   └── SuiteError    2   a suite file, with file and key
├── NothingToMeasure  3
├── UnsupportedSystem 3   a system that accelbench does not run on
├── UnreadableInput   5   a run or file that cannot be read
├── CannotWrite       6   a full or read-only disk
├── CannotBuild       7   an environment that pip cannot make, or whose framework does not import
└── NotComparable    11   no baseline, none of this hardware, or versions with other inputs or outputs
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from enum import Enum
from pathlib import Path
from typing import TypeVar

E = TypeVar("E", bound=Enum)


class AccelbenchError(Exception):
    """Carries a hint: what to do next. `log`: lines of what another program said."""

    exit_code = 70

    def __init__(self, message: str, hint: str = "", log: Sequence[str] = ()) -> None:
        super().__init__(message)
        self.hint = hint
        self.log = tuple(log)
        if hint:
            self.add_note(f"hint: {hint}")  # in the traceback that a script or a notebook shows


def kind_of(error: BaseException) -> str:
    """`ValueError: `, to stand before what an error says; "" for one of accelbench: its type says nothing."""
    own = type(error).__module__.partition(".")[0] == __name__.partition(".")[0]
    return "" if own else f"{type(error).__name__}: "


def text_of(error: BaseException) -> str:
    """The message of any exception, of one whose own `__str__` raises, too."""
    try:
        return str(error)
    except BaseException as other:  # noqa: BLE001 - a method of the user's may raise anything
        return f"(its __str__ raises {type(other).__name__})"


class UsageError(AccelbenchError):
    """Something typed is not known."""

    exit_code = 2


class SuiteError(UsageError):
    """A suite file says something it cannot mean."""


class NothingToMeasure(AccelbenchError):
    """No case of the selection can run on this machine."""

    exit_code = 3


class Unsupported(Exception):
    """This framework, device, dtype or mode cannot do what the case asks; the message says why."""


class UnsupportedSystem(AccelbenchError):
    """Nothing can be measured on this system."""

    exit_code = 3


class UnreadableInput(AccelbenchError):
    """A stored file is missing, damaged or from a newer version."""

    exit_code = 5


class CannotWrite(AccelbenchError):
    """Results cannot be stored."""

    exit_code = 6


class CannotBuild(AccelbenchError):
    """An environment cannot be built, or its framework cannot be imported."""

    exit_code = 7


class NotComparable(AccelbenchError):
    """There is nothing a run can be held against: neither a pass nor a regression."""

    exit_code = 11


def member(kind: type[E], name: str) -> E:
    """The member of an enumeration that `name` means. Raises UsageError."""
    try:
        return kind(name)
    except ValueError:
        word = kind.__name__.lower()
        hint = unknown(f"{word}s", name, [each.value for each in kind])
        raise UsageError(f"No {word} named {name!r}.", hint) from None


class AccelbenchWarning(UserWarning):
    """Something a result does without; carries a hint: what to do about it."""

    def __init__(self, message: str, hint: str = "") -> None:
        super().__init__(message)
        self.hint = hint


def unknown(kind: str, name: str, valid: list[str]) -> str:
    """A hint for an unknown name: the nearest valid one, else all of them."""
    return nearest(name, valid) or f"Known {kind}: {', '.join(valid) or 'none'}."


def nearest(name: str, valid: list[str]) -> str:
    """A hint at the valid name that resembles an unknown one, empty where none does."""
    from difflib import get_close_matches

    near = get_close_matches(name, valid, n=1)
    return f"Did you mean {near[0]!r}?" if near else ""


def page(name: str) -> str:
    """Where a page of the documentation is, for a hint: in a wheel it comes with the package."""
    package = Path(__file__).parent
    shipped = package / "docs"
    return str((shipped if os.path.isdir(shipped) else package.parent / "docs") / f"{name}.md")
