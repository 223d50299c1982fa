"""Versions to search for the cause of a step: releases of a framework, or revisions of the user's code."""

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
MOST_RELEASES = 1000  # releases in a range
RANGE = ".."
LIST_THEM = "Name them all, from good to bad: 2.9.1,2.10.0,2.11.0."


@dataclass(frozen=True, slots=True, kw_only=True)
class Version:
    """A version: a `target`, whose environment may not exist yet, or a `revision`, a commit's full name.

    `label`: its name in output; `about`: further information.
    """

    label: str
    target: str = ""
    revision: str = ""
    about: str = ""


def releases(
    backend: str, text: str, pythons: Mapping[str, str], good: str = "", bad: str = ""
) -> list[Version]:
    """Parse releases such as `2.9..2.13` or `2.9,2.9.1,2.10`, possibly with names of targets; `good` comes
    first, `bad` last.

    A range counts up its last number. If its ends differ in another number, it contains the versions in
    between that have an interpreter. `pythons`: name → interpreter. Raises UsageError.
    """
    interpreters.split_name(backend)
    target_names = [
        name for name in (*pythons, *interpreters.environment_names()) if name.startswith(f"{backend}@")
    ]
    labels = [name.partition("@")[2] for name in target_names]
    typed = [part for part in (good, *text.split(","), bad) if part.strip()]
    row = [name for part in typed for name in _targets_of(backend, part.strip(), labels)]
    if duplicate := next((name for name in row if row.count(name) > 1), ""):
        raise UsageError(
            f"The version {duplicate} appears twice.", "Write each version once, from good to bad."
        )
    if len(row) < 2:
        raise UsageError(
            "A search needs at least two versions.", f"accelbench bisect {backend} 2.9{RANGE}2.13"
        )
    return [Version(label=name.removeprefix(f"{backend}@"), target=name) for name in row]


def _targets_of(backend: str, part: str, labels: Sequence[str]) -> list[str]:
    """Targets that one item of the list means."""
    if RANGE in part:
        low, _, high = part.partition(RANGE)
        return [f"{backend}@{label}" for label in _between(low, high, labels)]
    name = part if part.partition("@")[0] == backend else f"{backend}@{part}"
    interpreters.split_name(name)
    return [name]


def _between(low: str, high: str, labels: Iterable[str]) -> list[str]:
    """Labels of a range, in order: 2.9, 2.10, 2.11."""
    for end in (low, high):
        if not RELEASE.fullmatch(end):
            raise UsageError(f"{end!r} cannot be an end of a range.", LIST_THEM)
    first, last = _numbers(low), _numbers(high)
    if first >= last:
        raise UsageError(f"{low}{RANGE}{high} is not in order.", "The good version comes first.")
    if first[:-1] == last[:-1]:  # without labels such as 2.12.1, which may be what 2.12 installs
        if last[-1] - first[-1] > MOST_RELEASES:
            raise UsageError(f"{low}{RANGE}{high} are more than {MOST_RELEASES} versions.", LIST_THEM)
        return [".".join(map(str, (*first[:-1], number))) for number in range(first[-1], last[-1] + 1)]
    between = {label for label in labels if RELEASE.fullmatch(label) and first < _numbers(label) < last}
    if not between:
        raise UsageError(f"The versions between {low} and {high} are unknown.", LIST_THEM)
    return [low, *sorted(between, key=_numbers), high]


def _numbers(label: str) -> tuple[int, ...]:
    return tuple(map(int, label.split(".")))


def revisions(text: str, code: UserCode, folders: Sequence[str] = ()) -> list[Version]:
    """Parse `good..bad`: the commits between them along first parents; without `bad`, up to HEAD.

    `folders`: further folders with the user's code. Raises UsageError.
    """
    good, dots, bad = text.partition(RANGE)
    if not dots or not good.strip():
        raise UsageError(f"{text!r} is not a range of revisions.", f"accelbench bisect --rev v1.0{RANGE}HEAD")
    return [
        Version(label=short(commit.name), revision=commit.name, about=commit.subject)
        for commit in first_parents(good.strip(), bad.strip() or "HEAD", code, folders)
    ]
