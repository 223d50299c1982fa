"""Jobs of workers that run in parallel, and accelerators that are unusable after a stuck job."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass

from benchbench.launch.transport import Answer, JobEnd, Message, Worker
from benchbench.launch.workers import REFERENCE, RunWorkers, Template, template_of
from benchbench.model.case import Case

POLL_S = 0.01  # between checks which workers have answered
# Near the time limit of a job, `collect` waits for it alone, so that the limit is applied precisely.
BLOCKING_SHARE = 0.05  # of the time limit
MAX_BLOCKING_S = 5.0


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class Job:
    """A job for one worker, and the callback for its answer."""

    message: Message
    done: Callable[[Answer], Iterable[Job]]  # returns further jobs, which depend on the answer
    case: Case | None = None  # selects the worker; None: the one without a framework
    label: str  # shown to the user while the job runs

    @property
    def template(self) -> Template:
        """The template of the worker that runs the job."""
        return REFERENCE if self.case is None else template_of(self.case)

    @property
    def uses_accelerator(self) -> bool:
        """True if the job's case is on an accelerator."""
        return self.case is not None and is_accelerator(self.case.device)


@dataclass(frozen=True, slots=True)
class _RunningJob:
    """A running job and its start time."""

    job: Job
    worker: Worker
    since: float  # by `time.monotonic`

    def is_over(self, timeout_s: float) -> bool:
        """True if the job has ended, or is so close to its time limit that `collect` should wait for it."""
        blocking_s = min(MAX_BLOCKING_S, BLOCKING_SHARE * timeout_s)
        return self.worker.has_ended() or self._remaining_s(timeout_s) <= blocking_s

    def collect(self, timeout_s: float) -> Answer:
        """Return the answer. Ends the job at its time limit."""
        return self.worker.collect(max(self._remaining_s(timeout_s), 0.0))

    def _remaining_s(self, timeout_s: float) -> float:
        return self.since + timeout_s - time.monotonic()


class JobQueues:
    """The waiting and running jobs of one `run_jobs` call, by worker.

    Workers run in parallel, one job at a time each. They are polled in one thread, since a worker ends with
    the thread that started it.
    """

    def __init__(self, workers: RunWorkers, lost: LostDevices, timeout_s: float) -> None:
        """`timeout_s`: time limit of each job."""
        self._workers = workers
        self._lost = lost
        self._timeout_s = timeout_s
        self._waiting: dict[Template, list[Job]] = {}
        self._running: dict[Template, _RunningJob] = {}

    def answers(self, jobs: Iterable[Job], begin: Callable[[Job], Message]) -> Iterator[Job]:
        """Yield each job once it has its answer, in the order in which jobs end.

        `begin`: called when a job starts; returns the message for its worker.
        """
        self._add(jobs)
        while self._waiting or self._running:
            for template in self._free_workers():
                self._start(template, begin)
            finished = [item for item, running in self._running.items() if running.is_over(self._timeout_s)]
            for template in finished:
                yield self._finish(self._running.pop(template))
            if not finished:
                time.sleep(POLL_S)

    def _add(self, jobs: Iterable[Job]) -> None:
        for job in jobs:
            self._waiting.setdefault(job.template, []).append(job)

    def _free_workers(self) -> Iterator[Template]:
        """Yield the idle workers with a waiting job that may start now.

        Only one job at a time uses an accelerator: frameworks do not share its memory well, and a TPU admits
        one process.
        """
        for template in [item for item in self._waiting if item not in self._running]:
            is_busy = any(running.job.uses_accelerator for running in self._running.values())
            if not (is_busy and self._waiting[template][0].uses_accelerator):
                yield template

    def _start(self, template: Template, begin: Callable[[Job], Message]) -> None:
        """Start the template's next job. A job on a lost device is answered at once."""
        job = self._waiting[template].pop(0)
        if not self._waiting[template]:
            del self._waiting[template]
        if job.case and (refusal := self._lost.refusal(job.case)):
            self._add(job.done(refusal))
            return
        message, worker = begin(job), self._workers.live_worker(template)
        worker.post(message, fork=True)
        self._running[template] = _RunningJob(job, worker, time.monotonic())

    def _finish(self, running: _RunningJob) -> Job:
        job, answer = running.job, running.collect(self._timeout_s)
        if job.case:
            answer = self._lost.record(job.case, answer)
        self._add(job.done(answer))
        return job


class LostDevices:
    """The accelerators that a stuck process of an earlier job still uses.

    A hanging driver can block a process in a call that not even SIGKILL interrupts. Every further
    case on that device would hang too, until its time limit.
    """

    def __init__(self) -> None:
        self._reasons: dict[str, str] = {}

    def record(self, case: Case, answer: Answer) -> Answer:
        """Return the answer unchanged. If the case's process is stuck, mark its device as lost."""
        if answer.end is JobEnd.STUCK and is_accelerator(case.device):
            self._reasons[case.device] = f"{case.device} was lost: {case.id}: {answer.message}"
        return answer

    def refusal(self, case: Case) -> Answer | None:
        """The answer to a case on a lost device; None if the device is usable."""
        reason = self._reasons.get(case.device)
        return Answer(None, JobEnd.SKIPPED, reason) if reason else None


def is_accelerator(device: str) -> bool:
    """True if the device is not a CPU."""
    return not device.startswith("cpu")
