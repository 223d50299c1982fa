"""What Typer says of a mistake, in the form of our own errors: what happened, then what to do."""

from __future__ import annotations

from typing import Any

import typer

from benchbench.errors import AccelbenchError

# Typer 0.25 and later bring a click of their own: the class that an error of usage is, whichever is there.
USAGE_ERROR: type[Any] = typer.BadParameter.__mro__[1]
SUGGESTION = " Did you mean "


def explained(error: Any) -> list[str]:
    """The lines of an expected error: message and hint. None where help was printed instead."""
    if isinstance(error, AccelbenchError):
        return [f"error: {error}", *error.log, *([f"hint: {error.hint}"] if error.hint else [])]
    if type(error).__name__ == "NoArgsIsHelpError":
        return list(error.message.splitlines())  # its help: empty where Rich has printed it
    message, hint = _of_typer(error)
    return [f"error: {message}", f"hint: {hint}"]


def _of_typer(error: Any) -> tuple[str, str]:
    if possible := getattr(error, "possibilities", None):
        return f"{error.message}.", f"Did you mean {' or '.join(sorted(possible))}?"
    message, suggestion, name = " ".join(error.format_message().split()).partition(SUGGESTION)
    if suggestion:
        return message, suggestion.strip() + " " + name
    sentence = message.replace("Value error, ", "").replace("Input should", "it should").rstrip(".")
    command = error.ctx.command_path if error.ctx else "accelbench"
    return f"{sentence}.", f"{command} --help shows what can be given."
