"""A heat: the cases of one work, alive at once, each timed in short turns while the others are stopped.

A machine's speed drifts within seconds. Cases whose turns alternate meet the same drift, so their ratio is
known several times more precisely than that of processes measured one after another (docs/measuring.md).
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from random import Random

from benchbench.launch.transport import Answer, JobEnd, Message, RunningJob
from benchbench.machine.sampler import CycleWatch, TurnSampler
from benchbench.model.measurement import ENOUGH_CALM, QUIET_CORES, Failure, Measurement
from benchbench.model.run import Policy
from benchbench.model.status import Status

RETRIED = (Status.OUT_OF_MEMORY,)  # failures that the processes beside may have caused


class LiveCase:
    """The process of a case, stopped while it has no turn."""

    def __init__(
        self,
        name: str,
        begin: Callable[[], RunningJob | Answer],
        sampler: TurnSampler,
        timeout_s: float,
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        """`timeout_s`: for entering, for each turn, and for finishing."""
        self.name = name
        self.answer: Answer | None = None  # once it has ended
        self.wall_s = 0.0  # in which it was not stopped
        self.started = 0.0  # seconds since the epoch
        self._begin = begin
        self._sampler = sampler
        self._timeout_s = timeout_s
        self._clock = clock
        self._job: RunningJob | None = None
        self._cycles: list[tuple[int, float | None]] = []  # of its turns: their numbers, and others' cores

    def enter(self) -> bool:
        """Build, verify and warm up; whether it is ready for turns."""
        self.answer, self._cycles = None, []
        self.started = self.started or time.time()
        with self._timed():
            begun = self._begin()
            if isinstance(begun, Answer):
                self.answer = begun
                return False
            self._job = begun
            return self._message() is not None

    def turn(self, seconds: float) -> float | None:
        """Time blocks for so long; the CPU seconds that it took, None if it has ended instead."""
        assert self._job is not None
        with self._timed(), self._sampler.turn():
            self._job.resume()
            self._job.send({"turn": seconds})
            message = self._message()
        return None if message is None else float(message["cpu_s"])

    def count(self, cycle: int, other_cores: float | None) -> None:
        """Number its last turn, after the cycle is over."""
        self._cycles.append((cycle, other_cores))

    def finish(self) -> None:
        """End the turns; the process checks what was timed, and answers."""
        assert self._job is not None
        with self._timed():
            self._job.resume()
            self._job.send({"turn": 0})
            self.answer = self._job.result(self._timeout_s)

    def outcome(self, decode: Callable[[Answer], Measurement | Failure]) -> Measurement | Failure:
        """What was measured, with what was seen of the machine during its turns."""
        assert self.answer is not None
        outcome = decode(self.answer)
        if isinstance(outcome, Failure):
            return outcome
        turns = tuple(
            replace(turn, cycle=cycle, other_cores=other_cores)
            for turn, (cycle, other_cores) in zip(outcome.turns, self._cycles, strict=False)
        )
        return self._sampler.seen_in(replace(outcome, turns=turns))

    def _message(self) -> Message | None:
        """The job's next message, after which it is stopped; None if it has ended."""
        assert self._job is not None
        try:
            if message := self._job.receive(self._timeout_s):
                self._job.stop()
                return message
            self.answer = self._job.result(self._timeout_s)
        except TimeoutError:
            self.answer = self._job.result(0.0)
        except ValueError as error:
            self._job.result(0.0)
            self.answer = Answer(None, JobEnd.UNREADABLE, f"the worker's answer cannot be read: {error}")
        return None

    @contextmanager
    def _timed(self) -> Iterator[None]:
        begin = self._clock()
        try:
            yield
        finally:
            self.wall_s += self._clock() - begin


def run_heat(
    cases: Sequence[LiveCase],
    policy: Policy,
    random: Random,
    report: Callable[[LiveCase, str], None],
    has_room: Callable[[], bool] = lambda: True,
) -> None:
    """Measure all cases: afterwards each has an answer.

    If memory does not hold all of them at once, the heat has parts. The first case takes part in each, so
    that the ratio of any two can be chained. `report`: called as a case is prepared, timed, checked.
    `has_room`: whether memory holds one more process.
    """
    first, *others = cases
    waiting = [first, *random.sample(others, len(others))]
    living: list[LiveCase] = []
    retried: set[str] = set()
    cycle = 0
    while waiting:
        while waiting and (len(living) < 2 or has_room()):
            case = waiting.pop(0)
            report(case, "preparing")
            if case.enter():
                living.append(case)
            elif living and case.name not in retried and case.answer and _may_fit_later(case.answer):
                retried.add(case.name)
                waiting.append(case)
                break
        for case in living:
            report(case, "timing")
        cycle = take_cycles(living, policy, random, cycle)
        staying = [case for case in living if waiting and case is first]
        for case in living:
            if case not in staying:
                report(case, "checking")
                case.finish()
        living = staying


def _may_fit_later(answer: Answer) -> bool:
    """Whether a case failed for want of memory that processes beside it have."""
    outcome = (answer.reply or {}).get("outcome")
    status = outcome.get("status") if isinstance(outcome, dict) else answer.status
    return status in RETRIED


def take_cycles(living: list[LiveCase], policy: Policy, random: Random, first: int) -> int:
    """Give every living case a turn in each cycle; the number of the next cycle.

    Those that end are removed from `living`. If other programs disturbed too many cycles, there are further
    ones, up to as many as were planned.
    """
    watch = CycleWatch()
    planned, quiet, timed_s, cycle = policy.cycles, 0, 0.0, first
    while living and cycle - first < 2 * planned:
        began = time.monotonic()
        used = {case: case.turn(policy.turn_s) for case in random.sample(living, len(living))}
        timed_s += time.monotonic() - began
        living[:] = [case for case in living if used[case] is not None]
        other_cores = watch.other_cores(sum(cpu_s or 0.0 for cpu_s in used.values()))
        for case in living:
            case.count(cycle, other_cores)
        quiet += other_cores is None or other_cores <= QUIET_CORES
        cycle += 1
        done = cycle - first
        if done >= policy.min_cycles and timed_s >= policy.max_s * len(used):
            planned = min(planned, done)
        if done >= planned and quiet >= min(ENOUGH_CALM, planned / 2):
            break
    return cycle
