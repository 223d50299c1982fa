"""What an error says, in one line: for a table cell, with what caused it."""

from __future__ import annotations

import re

from benchbench.errors import AccelbenchError, kind_of, text_of

DEEPEST = 5  # errors, each caused by the next
LONGEST_MESSAGE = 500  # characters
TRACEBACK = "(most recent call last):"  # of Python, and of TensorFlow where it names the line of an operation
EXPLANATION = "Explanation:"  # begins the line of torch's compiler that says why
NAMED = re.compile(r"[A-Za-z_][\w.]*(:|$)")  # a line of a traceback that begins with an error's type


def one_line(error: BaseException, depth: int = 0) -> str:
    """The error's type and what it says, for a table cell: of an error that only wraps another, the other's.

    An error of accelbench says what to do next in place of its type.

    What a process of the program's own raised comes as text, with a traceback; an error raised from another,
    and a group of errors, have the other one.
    """
    name = kind_of(error)
    first, inner = wrapped_message(text_of(error))
    told = f"{name}{first}" if first else name.removesuffix(": ")
    if inner:
        told = f"{inner if NAMED.match(inner) else f'{name}{inner}'} ({first})"
    if isinstance(error, AccelbenchError):
        told = f"{told} {error.hint}".rstrip()
    others = getattr(error, "exceptions", None)
    cause = error.__cause__ or (others[0] if others else None)
    if isinstance(cause, BaseException) and cause is not error and depth < DEEPEST:
        reason = one_line(cause, depth + 1)
        told = told if reason in told else f"{told}; caused by {reason}"
    return told[:LONGEST_MESSAGE]


def wrapped_message(text: str) -> tuple[str, str]:
    """The first line of what an error says, and the line with the innermost message, if that is another."""
    lines = text.strip().splitlines() or [""]
    first, rest = lines[0].strip(), [line for line in lines[1:] if line.strip()]
    if tracebacks := [number for number, line in enumerate(rest) if line.endswith(TRACEBACK)]:
        after = rest[tracebacks[-1] + 1 :]
        return first, next((line for line in after if not line.startswith((" ", "\t", "<"))), "").strip()
    explained = next((line.strip() for line in rest if line.strip().startswith(EXPLANATION)), "")
    if explained or not first.endswith(":"):
        return first, explained.removeprefix(EXPLANATION).strip()
    return first, rest[0].strip() if rest else ""


def last_lines(text: str, most: int) -> str:
    """The end of a text, at most so many characters, from the beginning of a line on."""
    if len(text) <= most:
        return text
    return text[-most:].partition("\n")[2] or text[-most:]
