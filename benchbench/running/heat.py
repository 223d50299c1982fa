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

from benchbench.launch.transport import Answer, JobEnd, RunningJob
from benchbench.machine.sampler import CycleWatch, TurnSampler
from benchbench.model.measurement import Failure, Measurement, are_enough, is_calm
from benchbench.model.run import Policy
from benchbench.model.status import Status


class LiveCase:
    """The process of a case, stopped while it has no turn."""

    def __init__(
        self,
        name: str,
        begin: Callable[[], RunningJob | Answer],
        sampler: TurnSampler,
        timeout_s: float,
        clock: Callable[[], float] = time.perf_counter,
        ended: Callable[[Answer], Answer] = lambda answer: answer,
        refusal: Callable[[], Answer | None] = lambda: None,
    ) -> None:
        """`timeout_s`: for entering, for each turn, and for finishing, each without the times it is stopped.

        `ended`: given the answer as soon as the process has ended. `refusal`: the answer if the case's device
        was lost meanwhile, which the process would only wait for.
        """
        self.name = name
        self.answer: Answer | None = None  # once it has ended
        self.wall_s = 0.0  # in which it was not stopped
        self.started = 0.0  # seconds since the epoch
        self._begin = begin
        self._sampler = sampler
        self._timeout_s = timeout_s
        self._clock = clock
        self._ended = ended
        self._refusal = refusal
        self._job: RunningJob | None = None
        self._cycles: list[tuple[int, float | None]] = []  # of its turns: their numbers, and others' cores

    def enter(self) -> bool:
        """Build, verify and warm up; whether it is ready for turns."""
        self.answer, self._cycles = None, []
        self._sampler.clear()
        self.started = self.started or time.time()
        with self._timed():
            begun = self._begin()
            if isinstance(begun, Answer):
                self.answer = begun
                return False
            self._job = begun
            return self._number("warm") is not None

    def turn(self, seconds: float) -> float | None:
        """Time blocks for so long; the CPU seconds that it took, None if it has ended instead."""
        with self._timed(), self._sampler.turn():
            return self._number("cpu_s") if self._begin_turn(seconds) else None

    def count(self, cycle: int, other_cores: float | None) -> None:
        """Number its last turn, after the cycle is over."""
        self._cycles.append((cycle, other_cores))

    def finish(self) -> None:
        """End the turns; the process checks what was timed, and answers."""
        assert self._job is not None
        with self._timed():
            if self._begin_turn(0):
                self.answer = self._ended(self._job.result(self._timeout_s))

    @property
    def has_hung(self) -> bool:
        """Whether it hung without computing before its first turn, as after a deadlock in a fork."""
        return self.answer is not None and self.answer.end is JobEnd.HUNG and not self._cycles

    @property
    def lacked_memory(self) -> bool:
        """Whether it failed for want of memory, which processes beside it may have had."""
        assert self.answer is not None
        outcome = (self.answer.reply or {}).get("outcome")
        status = outcome.get("status") if isinstance(outcome, dict) else self.answer.status
        return status == Status.OUT_OF_MEMORY

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
        return self._sampler.with_telemetry(replace(outcome, turns=turns))

    def _begin_turn(self, seconds: float) -> bool:
        """Wake the process for a turn; end it instead if its device is lost."""
        assert self._job is not None
        if refusal := self._refusal():
            self._job.result(0.0)
            self.answer = refusal
            return False
        self._job.resume()
        self._job.send({"turn": seconds})
        return True

    def _number(self, name: str) -> float | None:
        """The number in the job's next message, after which it is stopped; None if it has ended."""
        assert self._job is not None
        try:
            if (message := self._job.receive(self._timeout_s)) is not None:
                number = float(message[name])
                self._job.stop()
                return number
            answer = self._job.result(self._timeout_s)
        except TimeoutError:
            answer = self._job.result(0.0)
        except (KeyError, TypeError, ValueError) as error:
            self._job.result(0.0)
            answer = Answer(None, JobEnd.UNREADABLE, f"the worker's answer cannot be read: {error}")
        self.answer = self._ended(answer)
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
    watch: Callable[[], CycleWatch] = CycleWatch,
) -> int:
    """Measure all cases: afterwards each has an answer. Returns the number of parts of the heat.

    `report`: called as a case is prepared, timed, checked. `has_room`: whether memory holds one more process.
    """
    parts, cycle, count = _Parts(cases, random, report), 0, 0
    while parts.remain:
        living = parts.enter(has_room)
        together = [*living]
        for case in living:
            report(case, "timing")
        cycle = take_cycles(living, policy, random, cycle, watch())
        parts.finish(living, together)
        count += bool(together)
    return count


class _Parts:
    """The parts of a heat: one, or several if memory does not hold all cases at once.

    The first case takes part in each, so that every other is compared with it. A case that lacked memory
    beside others is tried again in a later part, then alone.
    """

    def __init__(
        self, cases: Sequence[LiveCase], random: Random, report: Callable[[LiveCase, str], None]
    ) -> None:
        self._report = report
        self._first, *others = cases
        self._waiting = [self._first, *random.sample(others, len(others))]
        self._alone: list[LiveCase] = []  # that wait to be measured alone
        self._retried: set[LiveCase] = set()
        self._staying: list[LiveCase] = []  # the first case between two parts, if it lives

    @property
    def remain(self) -> bool:
        """Whether any case waits for a part."""
        return bool(self._waiting or self._alone)

    def enter(self, has_room: Callable[[], bool]) -> list[LiveCase]:
        """The cases of the next part: those that live already and as many others as have room."""
        living = self._staying
        if not self._waiting:
            return [case for case in [self._alone.pop()] if self._is_ready(case)]
        while self._waiting and (len(living) < 2 or has_room()):
            case = self._waiting.pop(0)
            if self._is_ready(case):
                living.append(case)
            elif self._retry(case, beside=len(living)) and len(living) > 1:
                break
        return living

    def finish(self, living: Sequence[LiveCase], together: Sequence[LiveCase]) -> None:
        """End a part in which `together` were timed; only the first case stays if others wait.

        The kernel may have ended a process for want of memory while it waited.
        """
        for case in living:
            if case is not self._first:
                self._check(case)
        for case in together:
            if case.answer is not None:
                self._retry(case, beside=len(together) - 1)
        self._staying = [case for case in living if case is self._first]
        if self._staying and not self._waiting:
            self._check(self._staying.pop())

    def _is_ready(self, case: LiveCase) -> bool:
        self._report(case, "preparing")
        return case.enter()

    def _check(self, case: LiveCase) -> None:
        self._report(case, "checking")
        case.finish()

    def _retry(self, case: LiveCase, beside: int) -> bool:
        """Have a case wait again that lacked memory beside so many others; whether it does."""
        if not beside or not case.lacked_memory:
            return False
        (self._alone if beside == 1 or case in self._retried else self._waiting).append(case)
        self._retried.add(case)
        return True


def take_cycles(living: list[LiveCase], policy: Policy, random: Random, first: int, watch: CycleWatch) -> int:
    """Give every living case a turn in each cycle; the number of the next cycle.

    Those that end are removed from `living`. If other programs disturbed too many cycles, there are further
    ones, up to as many as were planned.
    """
    planned, calm, timed_s, cycle = policy.cycles, 0, 0.0, first
    while living and cycle - first < 2 * planned:
        awake_s = {case: case.wall_s for case in living}
        used = {case: case.turn(policy.turn_s) for case in random.sample(living, len(living))}
        living[:] = [case for case in living if used[case] is not None]
        timed_s += sum(case.wall_s - awake_s[case] for case in living)
        other_cores = watch.other_cores(sum(cpu_s or 0.0 for cpu_s in used.values()))
        for case in living:
            case.count(cycle, other_cores)
        calm += is_calm(other_cores)
        cycle += 1
        done = cycle - first
        if done >= policy.min_cycles and timed_s >= policy.max_s * len(living):
            planned = min(planned, done)
        if done >= planned and are_enough(calm, planned):
            break
    return cycle
