"""One-line descriptions of exceptions, with their causes, for table cells."""

from __future__ import annotations

import re

from benchbench.errors import AccelbenchError, kind_of, text_of

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
