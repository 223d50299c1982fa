"""A row of versions to search for a step: releases of a framework, or revisions of the user's own code."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from benchbench.environments import interpreters
from benchbench.errors import UsageError
from benchbench.launch.project import UserCode
from benchbench.plan.revision import first_parents
from benchbench.store.naming import short

RELEASE = re.compile(r"[0-9]+(\.[0-9]+)*")
MOST_RELEASES = 1000  # that a range stands for
RANGE = ".."
LIST_THEM = "Name them all, from good to bad: 2.9.1,2.10.0,2.11.0."


@dataclass(frozen=True, slots=True, kw_only=True)
class Version:
    """One of the row: a `target` by name, which may have to be built, or a `revision`, a commit's full name.

    `label` is what it is called, `about` what else is known of it.
    """

    label: str
    target: str = ""
    revision: str = ""
    about: str = ""


def releases(
    backend: str, text: str, pythons: Mapping[str, str], good: str = "", bad: str = ""
) -> list[Version]:
    """The row that is typed: `2.9..2.13`, `2.9,2.9.1,2.10`, names of targets among them; `good` before it.

    A range stands for the releases that its last number counts; where its ends differ in another number, for
    the versions in between that have an interpreter. `pythons`: name → interpreter, as given by hand.
    Raises UsageError.
    """
    interpreters.split_name(backend)
    there = [name for name in (*pythons, *interpreters.environment_names()) if name.startswith(f"{backend}@")]
    labels = [name.partition("@")[2] for name in there]
    typed = [part for part in (good, *text.split(","), bad) if part.strip()]
    row = [name for part in typed for name in _named(backend, part.strip(), labels)]
    if twice := next((name for name in row if row.count(name) > 1), ""):
        raise UsageError(f"{twice} is twice in the row.", "Each version has one place, from good to bad.")
    if len(row) < 2:
        raise UsageError("A row needs two versions at least.", f"accelbench bisect {backend} 2.9{RANGE}2.13")
    return [Version(label=name.removeprefix(f"{backend}@"), target=name) for name in row]


def _named(backend: str, part: str, there: Sequence[str]) -> list[str]:
    """The targets that a part of the row stands for."""
    if RANGE in part:
        low, _, high = part.partition(RANGE)
        return [f"{backend}@{label}" for label in _between(low, high, there)]
    name = part if part.partition("@")[0] == backend else f"{backend}@{part}"
    interpreters.split_name(name)
    return [name]


def _between(low: str, high: str, there: Iterable[str]) -> list[str]:
    """The labels of a range, in order: 2.9, 2.10, 2.11."""
    for end in (low, high):
        if not RELEASE.fullmatch(end):
            raise UsageError(f"{end!r} is no version that a range can begin or end with.", LIST_THEM)
    first, last = _numbers(low), _numbers(high)
    if first >= last:
        raise UsageError(f"{low}{RANGE}{high} is not in order.", "The good version comes first.")
    if first[:-1] == last[:-1]:  # a label such as 2.12.1 may be what 2.12 is, so it is not among them
        if last[-1] - first[-1] > MOST_RELEASES:
            raise UsageError(f"{low}{RANGE}{high} are more than {MOST_RELEASES} versions.", LIST_THEM)
        return [".".join(map(str, (*first[:-1], number))) for number in range(first[-1], last[-1] + 1)]
    found = {label for label in there if RELEASE.fullmatch(label) and first < _numbers(label) < last}
    if not found:
        raise UsageError(f"Nothing says which versions lie between {low} and {high}.", LIST_THEM)
    return [low, *sorted(found, key=_numbers), high]


def _numbers(label: str) -> tuple[int, ...]:
    return tuple(map(int, label.split(".")))


def revisions(text: str, code: UserCode, folders: Sequence[str] = ()) -> list[Version]:
    """`good..bad`: the commits from one to the other along first parents; without `bad`, to HEAD.

    `folders`: others than those of `code` that the user's code is in. Raises UsageError.
    """
    good, dots, bad = text.partition(RANGE)
    if not dots or not good.strip():
        raise UsageError(f"{text!r} is no range of revisions.", f"accelbench bisect --rev v1.0{RANGE}HEAD")
    return [
        Version(label=short(commit.name), revision=commit.name, about=commit.subject)
        for commit in first_parents(good.strip(), bad.strip() or "HEAD", code, folders)
    ]
