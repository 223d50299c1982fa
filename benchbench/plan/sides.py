"""Commands that measure anew what stored runs did: two of them interleaved, or one with more rounds. Pure."""

from __future__ import annotations

import shlex
from collections.abc import Collection, Mapping, Sequence

from benchbench import registry
from benchbench.model.device import Probe
from benchbench.model.options import OPTIONS
from benchbench.model.own import looks_like_model
from benchbench.model.run import RunInfo
from benchbench.plan.rerun import REVISION
from benchbench.store.naming import DIRTY
from benchbench.workloads.base import Workload

COMMIT_DIGITS = 12
BARE = {"--resume", "--dry-run", "--allow-failed", "--allow-unverified", "--profile", "--verbose", "-v"}
"""Options of `run` that take no value and do not say what is measured."""
WITHOUT = ("budget_s", "tags")  # options of a run that two sides do not take


def interleaved_command(ref: RunInfo, new: RunInfo) -> str:
    """`accelbench compare --ab rev:… rev:… --suite quick`; empty where nothing that can be told differs.

    The sides are what differs: the interpreters or versions of a framework, else the commits of the user's
    own workloads. The cases are those of the newer run, as they were asked for.
    """
    if not {case.backend for case in new.plan} <= {*registry.entry_names("benchbench.backends")}:
        return ""  # functions of a test session: only its tests can measure them
    if changed := _changed_target(ref, new):
        before, after = changed
        backend = after.target.backend
        alone = (*_selection(new, ("backends", "pythons")), "--backend", backend)
        if before.target.python != after.target.python:
            sides = tuple(f"{each.target.name}={each.target.python}" for each in changed)
            return _typed("compare", "--ab", *sides, *alone)
        old = f"{backend}@{(before.version or '').partition('+')[0]}"
        made = _typed("env", "create", old)
        return f"{made} && {_typed('compare', '--ab', old, after.target.name, *alone)}"
    if ref.commit == new.commit or not ref.commit or DIRTY in ref.commit or not _of_the_user(new):
        return ""
    sides = tuple(f"{REVISION}{each.commit[:COMMIT_DIGITS]}" for each in (ref, new))
    if not new.commit or DIRTY in new.commit:  # what it measured has no name
        return _typed("check", "--ab", sides[0], *_selection(new))
    return _typed("compare", "--ab", *sides, *_selection(new))


def longer_command(info: RunInfo, workloads: Collection[str], rounds: int) -> str:
    """`accelbench run --suite hello -w gemm --rounds 9`: of these workloads, as the run was asked for.

    Empty where no such command made it.
    """
    if info.command[:1] != ("run",):
        return ""
    all_of_them = {case.workload for case in info.plan} <= {*workloads}
    without = ("rounds", "budget_s", "tags", *(() if all_of_them else ("workloads",)))
    chosen = () if all_of_them else (OPTIONS["workloads"].flags[0].names[-1], ",".join(workloads))
    words = measuring_words(info.command[1:], without)
    return _typed("run", *words, *chosen, OPTIONS["rounds"].flags[0].names[0], str(rounds))


def _changed_target(ref: RunInfo, new: RunInfo) -> tuple[Probe, Probe] | None:
    """The first target of another version, as each run found it."""
    before = {probe.target.name: probe for probe in ref.probes}
    pairs = ((before[after.target.name], after) for after in new.probes if after.target.name in before)
    return next((pair for pair in pairs if pair[0].version and pair[0].version != pair[1].version), None)


def _of_the_user(info: RunInfo) -> bool:
    """Whether some workload does not come with accelbench, so that a commit of the user's tells its code."""
    names = {case.workload for case in info.plan}
    return any(not registry.find_class(registry.WORKLOADS, name, Workload) for name in names)  # type: ignore[type-abstract]


def _selection(info: RunInfo, without: Sequence[str] = ()) -> tuple[str, ...]:
    """The options that say what was measured and how: as typed, else suites, backends and devices."""
    if info.command[:1] == ("run",):
        return measuring_words(info.command[1:], (*WITHOUT, *without))
    known: Mapping[str, list[str]] = {
        "suites": [case.suite for case in info.plan],
        "backends": [case.backend for case in info.plan],
        "devices": [case.device for case in info.plan],
    }
    return tuple(
        word
        for name, values in known.items()
        if name not in without
        for value in dict.fromkeys(filter(None, values))
        for word in (OPTIONS[name].flags[0].names[0], value)
    )


def measuring_words(command: Sequence[str], without: Sequence[str] = ()) -> tuple[str, ...]:
    """The words of a `run` that say what is measured and how, but the options named by `without`.

    What stands without a flag is given the one it has elsewhere: `conv` is `--suite conv`.
    """
    takes = {
        name: flag.kind is not bool
        for field, option in OPTIONS.items()
        for flag in option.flags
        for name in flag.names
    }
    left_out = {name for field in without for flag in OPTIONS[field].flags for name in flag.names}
    kept, words = list[str](), iter(command)
    for word in words:
        name, equals, _ = word.partition("=")
        if not name.startswith("-"):
            name, equals = "--model" if looks_like_model(word) else "--suite", "="
            own = [name, word]
        else:
            if name not in takes and word[:2] in takes:  # `-wgemm`
                name, equals = word[:2], "="
            takes_value = takes.get(name, name not in BARE) and not equals
            own = [word, *([next(words, "")] if takes_value else [])]
        kept += own if name in takes and name not in left_out else []
    return tuple(kept)


def _typed(*words: str) -> str:
    return shlex.join(("accelbench", *words))
