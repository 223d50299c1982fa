"""The one loop over records: rounds of every case in shuffled order, a process each."""

from __future__ import annotations

import dataclasses
import os
import random
import time
from collections.abc import Callable, Iterator, Sequence
from datetime import UTC, datetime
from itertools import count
from pathlib import PurePath

from benchbench import __version__
from benchbench.launch.pool import WorkerPool
from benchbench.machine.environment import machine, tuning_variables
from benchbench.machine.identity import machine_id, name_hashes
from benchbench.model.case import Case
from benchbench.model.device import Probe
from benchbench.model.measurement import Failure
from benchbench.model.record import Record
from benchbench.model.run import RunInfo
from benchbench.plan.cases import Plan, fitting, plan
from benchbench.plan.devices import check_devices, devices_asked
from benchbench.plan.doubling import why_needless
from benchbench.plan.revision import commit_tag
from benchbench.running.groundwork import Announce
from benchbench.running.recorder import Recorder
from benchbench.running.request import Request, Terms
from benchbench.running.schedule import due, in_blocks
from benchbench.store.ulid import new_id
from benchbench.timing.policy import of_rounds


def prepare(pool: WorkerPool, request: Request, *, measured: bool = True) -> RunInfo:
    """Probe, plan, and the head of the run. Raises UsageError for a device or mode that does not exist.

    `measured`: the run will be made, so workers of its later rounds may import while devices are looked for.
    """
    probes = pool.probe(later_rounds=request.policy.rounds - 1 if measured else 0)
    check_devices(devices_asked(request.entries, request.selection.devices), probes)
    chosen = plan(request.entries, request.selection, probes)
    return run_head(probes, fitting(chosen, machine().memory_bytes), request)


def run_head(probes: Sequence[Probe], chosen: Plan, terms: Terms) -> RunInfo:
    """Of a run that begins now, filed under the commit it is made at unless the tags name another."""
    now = time.time()
    return RunInfo(
        id=new_id(now),
        started=datetime.fromtimestamp(now, UTC).isoformat(timespec="seconds"),
        command=terms.command,
        version=__version__,
        machine=machine(),
        settings=terms.settings,
        policy=terms.policy,
        seed=random.SystemRandom().randrange(2**32) if terms.seed is None else terms.seed,
        probes=tuple(_shareable(probe) for probe in probes),
        plan=chosen.cases,
        left_out=chosen.left_out,
        tags={**commit_tag(), **terms.tags},
        machine_id=machine_id(),
        name_hashes=name_hashes(),
        variables=tuning_variables(os.environ),
    )


def _shareable(probe: Probe) -> Probe:
    """Without the path of the interpreter: results are shown to others, home folders are not."""
    target = dataclasses.replace(probe.target, python=PurePath(probe.target.python).name)
    return dataclasses.replace(probe, target=target)


def measure_rounds(
    pools: Sequence[WorkerPool],
    infos: Sequence[RunInfo],
    announce: Announce,
    clock: Callable[[], float] = time.perf_counter,
    earlier: Sequence[Record] = (),
) -> Iterator[tuple[int, Record]]:
    """(side, record) in the order measured: of one run, or of two sides that are interleaved.

    In each round works are shuffled, and within a work its cases (`in_blocks`). Of two sides each case is
    measured on one and then on the other, and in the next round the other way about. A case that fails is not
    measured again, on no side.
    `clock`: seconds, by which cases and the policy's budget are timed. `earlier`: the records that one run
    has already, none of which is made again.
    """
    began = clock() - sum(record.stages_s.get("wall", 0.0) for record in earlier)
    done = max((record.round for record in earlier), default=0)
    for pool, info in zip(pools, infos, strict=True):
        pool.start_ahead(info.plan, info.policy.rounds - 1 - done)
    recorders = [
        Recorder(pool, info, announce, clock, order=len(earlier))
        for pool, info in zip(pools, infos, strict=True)
    ]
    announce("importing frameworks for all rounds")
    for pool, info in zip(pools, infos, strict=True):
        pool.await_ahead(info.plan)
    yield from _Rounds(pools, infos, recorders, announce, lambda: clock() - began, earlier)


class _Rounds:
    """The rounds of one run, or of two that share their order and their rounds."""

    def __init__(
        self,
        pools: Sequence[WorkerPool],
        infos: Sequence[RunInfo],
        recorders: Sequence[Recorder],
        announce: Announce,
        spent_s: Callable[[], float],
        earlier: Sequence[Record] = (),
    ) -> None:
        self._pools = pools
        self._recorders = recorders
        self._announce = announce
        self._spent_s = spent_s
        self._info = infos[0]
        # sides are compared pair by pair: further rounds of what is noisy on one of them are not foreseen
        self._policy = (
            infos[0].policy if len(infos) == 1 else of_rounds(infos[0].policy, infos[0].policy.rounds)
        )
        self._sides = {cases[0].id: cases for cases in zip(*(info.plan for info in infos), strict=True)}
        failed = {record.case.id for record in earlier if isinstance(record.outcome, Failure)}
        self._pending = [case for case in infos[0].plan if case.id not in failed]
        self._made = [list(earlier), *([] for _ in infos[1:])]  # the records of each side
        self._earlier = {(record.case.id, record.round) for record in earlier}

    def __iter__(self) -> Iterator[tuple[int, Record]]:
        importing_s, fresh = 0.0, True
        for number in count():
            left_s = (self._policy.budget_s or 0.0) - self._spent_s() - importing_s
            if not (cases := due(self._policy, number, self._pending, self._made[0], left_s)):
                return
            order = in_blocks(cases, self._info.seed, number)
            if not (order := [case for case in order if (case.id, number) not in self._earlier]):
                continue
            if not fresh:
                importing_s = self._restart(number, order)
            fresh = False
            for case in order:
                yield from self._measure(case, number)

    def _restart(self, number: int, cases: Sequence[Case]) -> float:
        """Fresh templates of what the round needs; the seconds it took."""
        self._announce(f"round {number + 1}: importing frameworks")
        before = self._spent_s()
        for side, pool in enumerate(self._pools):
            pool.start([self._sides[case.id][side] for case in cases])
        return self._spent_s() - before

    def _measure(self, case: Case, number: int) -> Iterator[tuple[int, Record]]:
        failed, needless = False, self._why_needless(case)
        for side in sorted(range(len(self._pools)), reverse=number % 2 == 1):
            own = self._sides[case.id][side]
            self._announce(f"round {number + 1}: {own.id}")
            record = self._recorders[side].record(own, number, needless)
            failed |= isinstance(record.outcome, Failure)
            self._made[side].append(record)
            yield side, record
        if failed:
            self._pending.remove(case)

    def _why_needless(self, case: Case) -> str:
        """Why a case is measured on no side: on one of them, the sequence that it belongs to has ended."""
        if not case.doubles:
            return ""
        sides = zip(self._sides[case.id], self._made, strict=True)
        return next(filter(None, (why_needless(own, made) for own, made in sides)), "")
