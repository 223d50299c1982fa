"""Jobs of many workers side by side, those of each worker one after the other.

This process waits for all of them in one thread: a worker ends with the thread that started it.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass

from benchbench.launch.lost_devices import LostDevices, is_accelerator
from benchbench.launch.template import REFERENCE, Template, template_of
from benchbench.launch.transport import Answer, Message, Worker
from benchbench.launch.workers import RunWorkers
from benchbench.model.case import Case

LOOK_S = 0.01  # between two looks at which workers have answered
LAST_PART = 0.05  # of a job's time, in which it alone is waited for, and at most
LAST_S = 5.0


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class Job:
    """What one worker is asked, and what is done with its answer."""

    message: Message
    done: Callable[[Answer], Iterable[Job]]  # gives the jobs that the answer makes possible
    case: Case | None = None  # whose worker is asked; None: the one without a framework
    label: str  # for the user, while it is under way

    @property
    def template(self) -> Template:
        """The worker that it needs."""
        return REFERENCE if self.case is None else template_of(self.case)

    @property
    def uses_accelerator(self) -> bool:
        """Whether it computes on one."""
        return self.case is not None and is_accelerator(self.case.device)


@dataclass(frozen=True, slots=True)
class _Begun:
    """A job under way."""

    job: Job
    worker: Worker
    since: float  # by `time.monotonic`

    def is_over(self, timeout_s: float) -> bool:
        """Whether its answer is there, or its time is nearly over."""
        return self.worker.has_ended() or self._left(timeout_s) <= min(LAST_S, LAST_PART * timeout_s)

    def collect(self, timeout_s: float) -> Answer:
        """The answer, or how it ended when its time was over."""
        return self.worker.collect(max(self._left(timeout_s), 0.0))

    def _left(self, timeout_s: float) -> float:
        return self.since + timeout_s - time.monotonic()


class JobQueues:
    """The jobs of one call: those that wait, by worker, and those under way."""

    def __init__(self, workers: RunWorkers, lost: LostDevices, timeout_s: float) -> None:
        """`timeout_s`: of each job."""
        self._workers = workers
        self._lost = lost
        self._timeout_s = timeout_s
        self._waiting: dict[Template, list[Job]] = {}
        self._begun: dict[Template, _Begun] = {}

    def answers(self, jobs: Iterable[Job], begin: Callable[[Job], Message]) -> Iterator[Job]:
        """Each job, once its answer was given to it; in the order in which they end.

        `begin`: called when a job begins; the message for its worker.
        """
        self._add(jobs)
        while self._waiting or self._begun:
            for template in self._startable():
                self._start(template, begin)
            over = [each for each, begun in self._begun.items() if begun.is_over(self._timeout_s)]
            for template in over:
                yield self._ended(self._begun.pop(template))
            if not over:
                time.sleep(LOOK_S)

    def _add(self, jobs: Iterable[Job]) -> None:
        for job in jobs:
            self._waiting.setdefault(job.template, []).append(job)

    def _startable(self) -> Iterator[Template]:
        """Workers that are free and have a job, at most one of all on an accelerator.

        Frameworks do not share an accelerator's memory well, and a TPU admits one process.
        """
        for template in [each for each in self._waiting if each not in self._begun]:
            taken = any(begun.job.uses_accelerator for begun in self._begun.values())
            if not (taken and self._waiting[template][0].uses_accelerator):
                yield template

    def _start(self, template: Template, begin: Callable[[Job], Message]) -> None:
        """Begin the worker's next job; a job on a lost device has its answer without one."""
        job = self._waiting[template].pop(0)
        if not self._waiting[template]:
            del self._waiting[template]
        if job.case and (refusal := self._lost.refusal(job.case)):
            self._add(job.done(refusal))
            return
        message, worker = begin(job), self._workers.usable(template)
        worker.post(message, fork=True)
        self._begun[template] = _Begun(job, worker, time.monotonic())

    def _ended(self, begun: _Begun) -> Job:
        answer = begun.collect(self._timeout_s)
        if begun.job.case:
            answer = self._lost.recorded(begun.job.case, answer)
        self._add(begun.job.done(answer))
        return begun.job
