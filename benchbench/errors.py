"""Expected errors, each with a message, a hint for the next step, and an exit code.

AccelbenchError
├── UsageError        2   a name, key or value that is not known
│   └── SuiteError    2   a suite file, with file and key
├── NothingToMeasure  3
├── UnsupportedSystem 3   a system that accelbench does not run on
├── UnreadableInput   5   a run or file that cannot be read
├── CannotWrite       6   a full or read-only disk
├── CannotBuild       7   an environment that pip cannot make, or whose framework does not import
└── NotComparable    11   no baseline, none of this hardware, a run refused as a baseline, or versions with
                          other inputs or outputs
"""

from __future__ import annotations

import os
import re
import traceback
from collections.abc import Sequence
from enum import Enum
from pathlib import Path
from typing import TypeVar

E = TypeVar("E", bound=Enum)


class AccelbenchError(Exception):
    """An expected error. `hint`: the next step for the user. `log`: output lines of another program."""

    exit_code = 70

    def __init__(self, message: str, hint: str = "", log: Sequence[str] = ()) -> None:
        super().__init__(message)
        self.hint = hint
        self.log = tuple(log)
        if hint:
            self.add_note(f"hint: {hint}")  # for tracebacks in scripts and notebooks


def kind_of(error: BaseException) -> str:
    """Prefix for an error's message, such as `ValueError: `; "" for accelbench's own errors."""
    is_ours = type(error).__module__.partition(".")[0] == __name__.partition(".")[0]
    return "" if is_ours else f"{type(error).__name__}: "


def text_of(error: BaseException) -> str:
    """The message of any exception, even if its `__str__` raises."""
    try:
        return str(error)
    except BaseException as other:  # noqa: BLE001 - a method of the user's may raise anything
        return f"(its __str__ raises {type(other).__name__})"


class UsageError(AccelbenchError):
    """The user gave an unknown or unusable name, key or value."""

    exit_code = 2


class SuiteError(UsageError):
    """A suite file has a mistake."""


class NothingToMeasure(AccelbenchError):
    """None of the selected cases can run on this machine."""

    exit_code = 3


class Unsupported(Exception):
    """A framework, device, dtype or mode cannot run the case; the message is the reason."""


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
    """Nothing can be compared with the run, so it is neither a pass nor a regression."""

    exit_code = 11


def member(kind: type[E], name: str) -> E:
    """The member of an enumeration with the value `name`. Raises UsageError."""
    try:
        return kind(name)
    except ValueError:
        word = kind.__name__.lower()
        hint = unknown(f"{word}s", name, [choice.value for choice in kind])
        raise UsageError(f"No {word} named {name!r}.", hint) from None


class AccelbenchWarning(UserWarning):
    """A limitation of a result. `hint`: the remedy."""

    def __init__(self, message: str, hint: str = "") -> None:
        super().__init__(message)
        self.hint = hint


def unknown(kind: str, name: str, valid: list[str]) -> str:
    """Hint for an unknown name: the most similar valid name, else all valid names."""
    return nearest(name, valid) or f"Known {kind}: {', '.join(valid) or 'none'}."


def nearest(name: str, valid: list[str]) -> str:
    """Hint with the valid name that is most similar to an unknown one, or ""."""
    from difflib import get_close_matches

    near = get_close_matches(name, valid, n=1)
    return f"Did you mean {near[0]!r}?" if near else ""


def page(name: str) -> str:
    """Path of a documentation page, for hints: in the package of a wheel, or in the repository."""
    package = Path(__file__).parent
    folder = package / "docs"
    return str((folder if os.path.isdir(folder) else package.parent / "docs") / f"{name}.md")


MAX_DEPTH = 5  # errors in a chain of causes
MAX_MESSAGE = 500  # characters
TRACEBACK = "(most recent call last):"  # in tracebacks of Python, and of TensorFlow operations
EXPLANATION = "Explanation:"  # prefix of the reason in messages of torch's compiler
ERROR_TYPE = re.compile(r"[A-Za-z_][\w.]*(:|$)")  # start of a traceback line with the type of an error


def one_line(error: BaseException, depth: int = 0) -> str:
    """The type and message of an error and of its causes, in one line.

    For an error that only wraps another, the inner message comes first. An error of accelbench ends with its
    hint. The inner message is found in the text (a traceback of a subprocess), in `__cause__`, or in a
    group's members.
    """
    name = kind_of(error)
    first, inner = wrapped_message(text_of(error))
    message = f"{name}{first}" if first else name.removesuffix(": ")
    if inner:
        message = f"{inner if ERROR_TYPE.match(inner) else f'{name}{inner}'} ({first})"
    if isinstance(error, AccelbenchError):
        message = f"{message} {error.hint}".rstrip()
    members = getattr(error, "exceptions", None)
    cause = error.__cause__ or (members[0] if members else None)
    if isinstance(cause, BaseException) and cause is not error and depth < MAX_DEPTH:
        cause_text = one_line(cause, depth + 1)
        message = message if cause_text in message else f"{message}; caused by {cause_text}"
    return message[:MAX_MESSAGE]


def wrapped_message(text: str) -> tuple[str, str]:
    """Return the first line of an error's message, and the line with the innermost message or ""."""
    lines = text.strip().splitlines() or [""]
    first, following = lines[0].strip(), [line for line in lines[1:] if line.strip()]
    if traceback_lines := [number for number, line in enumerate(following) if line.endswith(TRACEBACK)]:
        after = following[traceback_lines[-1] + 1 :]
        return first, next((line for line in after if not line.startswith((" ", "\t", "<"))), "").strip()
    explanation = next((line.strip() for line in following if line.strip().startswith(EXPLANATION)), "")
    if explanation or not first.endswith(":"):
        return first, explanation.removeprefix(EXPLANATION).strip()
    return first, following[0].strip() if following else ""


def last_lines(text: str, max_characters: int) -> str:
    """Return the last lines of a text, at most `max_characters`."""
    if len(text) <= max_characters:
        return text
    return text[-max_characters:].partition("\n")[2] or text[-max_characters:]


def line_of_error(error: BaseException, file: str) -> int | None:
    """Line of the user's file that an exception or one of its causes was raised from, if any."""
    if isinstance(error, SyntaxError) and error.filename == file:
        return error.lineno
    lines = [frame.lineno for frame in traceback.extract_tb(error.__traceback__) if frame.filename == file]
    if lines:
        return lines[-1]
    return line_of_error(error.__cause__, file) if error.__cause__ else None
