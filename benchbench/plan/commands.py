"""Commands that measure again: one case, two runs interleaved, or a run with more heats. Pure."""

from __future__ import annotations

import shlex
from collections.abc import Collection, Mapping, Sequence

from benchbench import registry
from benchbench.model.case import Cache, Case
from benchbench.model.device import Probe
from benchbench.model.options import OPTIONS, REVISION, Weights
from benchbench.model.placement import Strategy
from benchbench.model.run import RunInfo
from benchbench.model.user_model import looks_like_model
from benchbench.store.disk import DIRTY, bisect_of, fleet_of

COMMIT_DIGITS = 12
BARE = {"--resume", "--dry-run", "--allow-failed", "--allow-unverified", "--profile", "--verbose", "-v"}
"""Options of `run` without a value that do not affect the measurement."""
WITHOUT = ("budget_s", "tags")  # options of a run that a comparison does not have


def interleaved_command(ref: RunInfo, new: RunInfo) -> str:
    """Command such as `accelbench compare --ab rev:… rev:… --suite quick`, or an empty text.

    The sides are the interpreters or versions of a framework that differ, else the commits of the user's
    workloads. The cases are selected as in the newer run.
    """
    if not {case.backend for case in new.plan} <= {*registry.entry_names("benchbench.backends")}:
        return ""  # only tests can measure the functions of a test session
    if changed := _changed_target(ref, new):
        before, after = changed
        backend = after.target.backend
        selection = (*_selection(new, ("backends", "pythons")), "--backend", backend)
        if before.target.python != after.target.python:
            sides = tuple(f"{probe.target.name}={probe.target.python}" for probe in changed)
            return _command("compare", "--ab", *sides, *selection)
        old = f"{backend}@{(before.version or '').partition('+')[0]}"
        creation = _command("env", "create", old)
        return f"{creation} && {_command('compare', '--ab', old, after.target.name, *selection)}"
    if ref.commit == new.commit or not ref.commit or DIRTY in ref.commit or not _has_user_workloads(new):
        return ""
    sides = tuple(f"{REVISION}{probe.commit[:COMMIT_DIGITS]}" for probe in (ref, new))
    if not new.commit or DIRTY in new.commit:  # the newer code has no revision
        return _command("check", "--ab", sides[0], *_selection(new))
    return _command("compare", "--ab", *sides, *_selection(new))


def longer_command(info: RunInfo, workloads: Collection[str], rounds: int) -> str:
    """Command such as `accelbench run --suite hello -w gemm --rounds 9` that repeats a run for these
    workloads.

    Empty if the run was not created by such a command.
    """
    if info.command[:1] != ("run",):
        return ""
    all_of_them = {case.workload for case in info.plan} <= {*workloads}
    without = ("rounds", "budget_s", "tags", *(() if all_of_them else ("workloads",)))
    workload_words = () if all_of_them else (OPTIONS["workloads"].flags[0].names[-1], ",".join(workloads))
    words = measuring_words(info.command[1:], without)
    return _command("run", *words, *workload_words, OPTIONS["rounds"].flags[0].names[0], str(rounds))


def _changed_target(ref: RunInfo, new: RunInfo) -> tuple[Probe, Probe] | None:
    """First target whose version differs, as probed by each run."""
    before = {probe.target.name: probe for probe in ref.probes}
    pairs = ((before[after.target.name], after) for after in new.probes if after.target.name in before)
    return next((pair for pair in pairs if pair[0].version and pair[0].version != pair[1].version), None)


def _has_user_workloads(info: RunInfo) -> bool:
    """True if some workload is the user's, so that their commits affect it."""
    names = {case.workload for case in info.plan}
    return any(not registry.find_class(registry.WORKLOADS, name, object) for name in names)


def _selection(info: RunInfo, without: Sequence[str] = ()) -> tuple[str, ...]:
    """Options that select cases and settings: as typed, else suites, backends and devices."""
    if info.command[:1] == ("run",):
        return measuring_words(info.command[1:], (*WITHOUT, *without))
    values_by_option: Mapping[str, list[str]] = {
        "suites": [case.suite for case in info.plan],
        "backends": [case.backend for case in info.plan],
        "devices": [case.device for case in info.plan],
    }
    return tuple(
        word
        for name, values in values_by_option.items()
        if name not in without
        for value in dict.fromkeys(filter(None, values))
        for word in (OPTIONS[name].flags[0].names[0], value)
    )


def measuring_words(command: Sequence[str], without: Sequence[str] = ()) -> tuple[str, ...]:
    """Words of a `run` that select cases and settings, without the options named in `without`.

    Positional words get their option: `conv` becomes `--suite conv`.
    """
    takes = {
        name: flag.kind is not bool
        for field, option in OPTIONS.items()
        for flag in option.flags
        for name in flag.names
    }
    left_out = {name for field in without for flag in OPTIONS[field].flags for name in flag.names}
    selected, words = list[str](), iter(command)
    for word in words:
        name, equals, _ = word.partition("=")
        if not name.startswith("-"):
            name, equals = "--model" if looks_like_model(word) else "--suite", "="
            option_words = [name, word]
        else:
            if name not in takes and word[:2] in takes:  # `-wgemm`
                name, equals = word[:2], "="
            takes_value = takes.get(name, name not in BARE) and not equals
            option_words = [word, *([next(words, "")] if takes_value else [])]
        selected += option_words if name in takes and name not in left_out else []
    return tuple(selected)


def _command(*words: str) -> str:
    return shlex.join(("accelbench", *words))


def why_not_resumed(info: RunInfo) -> str:
    """Reason why an interrupted run cannot be resumed, or an empty text."""
    if info.partner:
        return "it is one side of a comparison, whose sides are measured together"
    if fleet := fleet_of(info.tags):
        return f"it is part of a fleet, which accelbench fleet --resume {fleet} finishes"
    if bisect_of(info.tags):
        return "it is part of a bisection"
    backends = registry.entry_names("benchbench.backends")
    calls = any(case.is_call or case.backend not in backends for case in info.plan)
    return "it called functions, which are not stored" if calls else ""


def command_of(case: Case, info: RunInfo | None = None) -> str:
    """Command such as `accelbench run -w gemm -p m=64 … --dtype float32 -b torch --mode eager -d cpu`.

    `info`: the run's head, for the location of a user's model. The command is empty for a function of a
    user's test, which only its test can measure, and for values with commas, which cannot be typed.
    """
    values = [*map(str, case.params.values()), *case.environment.values()]
    if case.dtype is None or any("," in value for value in values) or case.placement.hosts > 1:
        return ""
    words = ["accelbench", "run", *(_model(case, info) if info else ()), "-w", case.workload]
    for name, value in case.params.items():
        words += ["-p", f"{name}={str(value).lower() if isinstance(value, bool) else value}"]
    words += ["--dtype", case.dtype, "-b", case.target, "--mode", case.mode]
    words += _place(case)
    if case.cache is not Cache.HOT:
        words += ["--cache", case.cache]
    for name, text in case.environment.items():
        words += ["--env", f"{name}={text}"]
    if case.threads:
        words += ["--threads", str(case.threads)]
    return shlex.join(words)


def _model(case: Case, info: RunInfo) -> list[str]:
    """Options for a user's model, its inputs and weights; none for workloads of accelbench."""
    if case.workload not in info.models:
        return []
    settings, words = info.settings, ["--model", info.models[case.workload]]
    words += ["--input", settings.input] if settings.input else []
    words += ["--weights", settings.weights] if settings.weights is not Weights.DRAWN else []
    return words + (["--max-error", f"{settings.max_error:g}"] if settings.max_error is not None else [])


def _place(case: Case) -> list[str]:
    placement = case.placement
    names = "+".join(placement.names)
    words = ["-d", case.device]
    if placement.devices > 1:
        words += ["--world", names or str(placement.devices)]
    if placement.strategy not in (Strategy.SINGLE, Strategy.COLLECTIVE):
        words += ["--strategy", placement.strategy]
    return words
