"""Functions of the user's measured: one as a run, two interleaved, one beside what is claimed of it.

As every case, each round in a process of its own, which finds the function again. Before that one process
calls it once, to see what has to be waited for: the parent imports no framework.
"""

from __future__ import annotations

import dataclasses
import os
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import msgspec

from benchbench.backends.base import Backend
from benchbench.errors import UnreadableInput, UsageError
from benchbench.judging.claims import Claim, judge_claim
from benchbench.launch.pool import WorkerPool
from benchbench.launch.project import no_code
from benchbench.launch.transport import Answer
from benchbench.model.case import Case
from benchbench.model.device import Probe, Target
from benchbench.model.function import FUNCTIONS, PYTHON, Call
from benchbench.model.measurement import Measurement
from benchbench.model.run import Partner, Run, RunInfo
from benchbench.model.status import Status
from benchbench.plan.cases import Plan
from benchbench.registry import DRAWN, load_class
from benchbench.running.measure import Bench, Team, measuring
from benchbench.running.observer import RunObserver
from benchbench.running.recording import run_head
from benchbench.running.request import Terms
from benchbench.store import runs

REMEDY = "Name what has to be waited for: --backend torch, or backend='torch'."


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Asked:
    """A function, and what is said of how to wait for it; None: as its first call tells."""

    call: Call
    backend: str | None = None
    device: str | None = None


def measure_function(asked: Asked, terms: Terms, results: Path, observer: RunObserver) -> Run:
    """The function measured and stored as a run of one case.

    Raises UsageError for a function that is not found or leaves its work undone, CannotWrite.
    """
    with _measuring([asked], terms, results, observer) as (_, infos, bench):
        bench.record(infos)
    return runs.read_run(results / runs.RUNS / infos[0].id)


def measure_functions(
    asked: tuple[Asked, Asked], terms: Terms, results: Path, observer: RunObserver
) -> tuple[Run, Run]:
    """Two functions measured interleaved, stored as runs that are each other's partner. Raises likewise."""
    with _measuring(asked, terms, results, observer) as ((first, second), (a, b), bench):
        of_a = Partner(label=first.workload, run=b.id, cases={first.id: second.id})
        of_b = Partner(label=second.workload, run=a.id, cases={second.id: first.id})
        bench.record([dataclasses.replace(a, partner=of_a), dataclasses.replace(b, partner=of_b)])
    return runs.read_run(results / runs.RUNS / a.id), runs.read_run(results / runs.RUNS / b.id)


def measure_claimed(
    asked: Asked, claimed_s: float, terms: Terms, results: Path, observer: RunObserver
) -> tuple[Run, Claim | None]:
    """The function measured, and what is claimed of it beside that; no claim where nothing was measured."""
    with _measuring([asked], terms, results, observer) as ((case,), infos, bench):
        (records,) = bench.record(infos)
        measured = [each.outcome for each in records if isinstance(each.outcome, Measurement)]
        returned_s = None
        if measured:
            observer.stage(f"timing {case.workload} until it returns")
            answer, _ = bench.pools[0].ask(case, {"kind": "call unwaited"})
            returned_s = _seconds_in(answer)
        found = judge_claim(claimed_s, measured, terms.policy.planned, returned_s)
    return runs.read_run(results / runs.RUNS / infos[0].id), found


@contextmanager
def _measuring(
    asked: Sequence[Asked], terms: Terms, results: Path, observer: RunObserver
) -> Iterator[tuple[list[Case], list[RunInfo], Bench]]:
    """The case of each function, the head of its run, and where both are measured."""
    if DRAWN in os.environ:
        hint = "Put the call under `if __name__ == '__main__':`."
        raise UsageError("A function is measured while its file is imported to find it.", hint)
    cases = _looked_at(asked, terms, observer)
    teams = [
        Team(
            targets=[Target(name=case.target, backend=case.backend, python=sys.executable)],
            settings=terms.settings,
            code=no_code(),
            calls={case.workload: each.call},
        )
        for case, each in zip(cases, asked, strict=True)
    ]
    with measuring(teams, terms.wait_s, results, observer) as bench:
        probes = [_usable(probe) for (probe,) in bench.probe(terms.policy.rounds - 1)]
        infos: list[RunInfo] = []
        for case, probe in zip(cases, probes, strict=True):
            own = dataclasses.replace(terms, seed=infos[0].seed) if infos else terms
            infos.append(run_head([probe], Plan((case,), ()), own))
        yield cases, infos, bench


def _looked_at(asked: Sequence[Asked], terms: Terms, observer: RunObserver) -> list[Case]:
    """The case of each function. Raises UsageError for one that cannot be measured."""
    for each in asked:
        if each.backend:
            load_class("benchbench.backends", each.backend, Backend)  # type: ignore[type-abstract]
    python = Target(name=PYTHON, backend=PYTHON, python=sys.executable)
    with WorkerPool([python], terms.settings, sys.executable, no_code()) as pool:
        return [_case(each, pool.look_at(each.call, each.backend, each.device), observer) for each in asked]


class _Seen(msgspec.Struct):
    """The reply to a look at a function."""

    backend: str
    device: str


class _Refused(msgspec.Struct):
    """The same where it cannot be measured."""

    refused: str
    hint: str


def _case(asked: Asked, answer: Answer, observer: RunObserver) -> Case:
    """The case, as the first call tells.

    Where that call failed it is made as well as can be, so that a record tells why. Raises UsageError.
    """
    name = asked.call.function.name
    seen = _Seen(backend=asked.backend or PYTHON, device=asked.device or "cpu")
    outcome = (answer.reply or {}).get("outcome")
    if isinstance(outcome, dict) and outcome.get("status") == Status.UNSUPPORTED:
        raise UsageError(f"{name}: {outcome.get('message')}.", REMEDY)
    if answer.reply is not None and outcome is None:
        seen = _read(answer)
        if asked.backend is None:
            observer.note(f"{name}: {_told(seen)}")
    return Case.of_call(FUNCTIONS, name, seen.backend, seen.device)


def _read(answer: Answer) -> _Seen:
    """Raises UsageError for a function that the worker refused."""
    try:
        if "refused" not in (answer.reply or {}):
            return msgspec.convert(answer.reply, _Seen)
        refused = msgspec.convert(answer.reply, _Refused)
    except msgspec.ValidationError as error:
        raise UnreadableInput(f"The worker's answer cannot be read: {error}.") from error
    raise UsageError(refused.refused, refused.hint)


def _told(seen: _Seen) -> str:
    if seen.backend == PYTHON:
        return "it returns nothing of a framework, so a call is over when it returns"
    return f"it returns what is {seen.backend}'s, which is waited for on {seen.device}"


def _usable(probe: Probe) -> Probe:
    """Raises UsageError for a backend that cannot be imported here."""
    if probe.status != "ready":
        raise UsageError(f"{probe.target.name}: {probe.reason}", probe.remedy)
    return probe


def _seconds_in(answer: Answer) -> float | None:
    found = (answer.reply or {}).get("returned_s")
    return found if isinstance(found, float) and found > 0 else None
