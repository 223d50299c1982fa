"""The workers of a run, one per template, with prefetched ones for later rounds, and the queues of jobs.

Every round has new processes, since memory layout differs from process to process. Workers of later rounds
import their frameworks in parallel with the first round's, so the user waits for imports only once.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from benchbench.backends.base import Backend, backend_class
from benchbench.launch.transport import IMPORT_TIMEOUT_S, Answer, Greeting, JobEnd, Message, Transport, Worker
from benchbench.machine.variables import THREADS
from benchbench.model.case import Case
from benchbench.model.device import Target


class RunWorkers:
    """The workers of a run. They are started in parallel, and ended when a round does not use them."""

    def __init__(self, transport: Transport, targets: Mapping[str, Target]) -> None:
        """`targets`: all targets of the run by name."""
        self._transport = transport
        self._targets = targets
        self._current: dict[Template, Worker] = {}
        self._prefetched = PrefetchedWorkers(self._start)

    def start(
        self, templates: Sequence[Template], reusable: Collection[Template] = (), rounds_ahead: int = 0
    ) -> dict[Template, Greeting]:
        """Start new workers for `templates`, keep the `reusable` ones, end all others. Return the greetings.

        `rounds_ahead`: number of later rounds whose workers are started too, without waiting for greetings.
        """
        begin = time.perf_counter()
        workers = {template: self._current[template] for template in reusable}
        workers |= self._prefetched.pop_round(templates)
        for template, worker in self._current.items():
            if worker is not workers.get(template):
                worker.close()
        faults = {template: self._targets[template.target].fault for template in templates}
        missing = [template for template in templates if not faults[template] and template not in workers]
        started = {template: self._start(template) for template in missing}
        self._current = {**workers, **started}
        if rounds_ahead > 0:
            self.prefetch_workers(missing, rounds_ahead)
        deadline = begin + IMPORT_TIMEOUT_S  # shared, since they import in parallel
        greetings = {template: worker.ready(remaining_s(deadline)) for template, worker in started.items()}
        for template, fault in faults.items():
            if fault:
                greetings[template] = Greeting(status="broken", reason=fault)
        return {template: greetings[template] for template in templates if template in greetings}

    def prefetch_workers(self, templates: Sequence[Template], rounds: int) -> None:
        """Start workers for `rounds` later rounds, as far as memory allows; none for virtual time."""
        templates = [template for template in templates if not self._is_virtual(template)]
        if templates:
            self._prefetched.begin(templates, min(rounds, self._transport.spare_workers() // len(templates)))

    def preload(self, kinds: Mapping[Template, Collection[tuple[str, str]]]) -> None:
        """Import what each template's (phase, mode) pairs need, in all workers, and wait for that."""
        prefetched = [pair for pair in self._prefetched.wait() if self._backend(pair[0]).preloads_ahead]
        workers = [*self._current.items(), *prefetched]
        importing = [(template, worker) for template, worker in workers if template in kinds and worker.alive]
        for template, worker in importing:
            worker.post({"kind": "preload", "kinds": sorted(kinds[template])}, fork=False)
        for _, worker in importing:
            worker.collect(IMPORT_TIMEOUT_S)

    def reusable(self, templates: Collection[Template]) -> set[Template]:
        """The templates with virtual time whose worker can run another job."""
        return {item for item in templates if self._is_alive(item) and self._is_virtual(item)}

    def live_worker(self, template: Template) -> Worker:
        """The template's worker. A missing or dead one is started first."""
        if not self._is_alive(template):
            if template in self._current:
                self._current[template].close()
            self._current[template] = self._start(template)
            self._current[template].ready()
        return self._current[template]

    def latest_worker(self, template: Template) -> Worker:
        """The template's latest worker, which may be dead."""
        return self._current[template]

    def _is_alive(self, template: Template) -> bool:
        return template in self._current and self._current[template].alive

    def _is_virtual(self, template: Template) -> bool:
        return self._backend(template).virtual

    def _backend(self, template: Template) -> type[Backend]:
        backend = self._targets[template.target].backend
        return backend_class(backend)

    def _start(self, template: Template) -> Worker:
        target, environment = self._targets[template.target], dict(template.environment)
        return self._transport.start(target, environment, template.threads)


class Template(NamedTuple):
    """The properties of a worker: cases that share them are forked from the same process."""

    target: str
    environment: tuple[tuple[str, str], ...] = ()
    threads: int = 0  # 0: the run's setting


# The worker without a framework, which computes references. It uses one thread, since the products are small
# and idle threads of a BLAS library spin.
REFERENCE = Template("reference", tuple(dict.fromkeys(THREADS, "1").items()))


def template_of(case: Case) -> Template:
    """The template of the worker that runs the case."""
    return Template(case.target, tuple(sorted(case.environment.items())), case.threads)


MIN_WAIT_S = 0.5  # to read a message that arrived while another worker was waited for


class PrefetchedWorkers:
    """Workers started in advance for later rounds, in the order of rounds."""

    def __init__(self, start: Callable[[Template], Worker]) -> None:
        self._start = start
        self._rounds: list[dict[Template, Worker]] = []
        self._importing: list[Worker] = []  # workers whose greeting is unread

    def begin(self, templates: Sequence[Template], rounds: int) -> None:
        """Start the missing workers of the next `rounds` rounds, and end those of other templates.

        They import in parallel.
        """
        self._rounds += [{} for _ in range(rounds - len(self._rounds))]
        for started in self._rounds:
            for template in started.keys() - templates:
                started.pop(template).close()
        for started in self._rounds[:rounds]:
            for template in templates:
                if template not in started:
                    started[template] = self._start(template)
                    self._importing.append(started[template])

    def wait(self) -> list[tuple[Template, Worker]]:
        """Wait until every worker has imported its framework or failed, and return all of them."""
        workers = [pair for started in self._rounds for pair in started.items()]
        deadline = time.perf_counter() + IMPORT_TIMEOUT_S
        for _, worker in workers:
            if worker in self._importing:
                worker.ready(remaining_s(deadline))
        self._importing.clear()
        return workers

    def pop_round(self, templates: Sequence[Template]) -> dict[Template, Worker]:
        """Remove and return the next round's live workers of these templates; end its other workers."""
        started = self._rounds.pop(0) if self._rounds else {}
        for template in started.keys() - templates:
            started[template].close()
        return {item: started[item] for item in templates if item in started and started[item].alive}


def remaining_s(deadline: float) -> float:
    """Seconds until the deadline (by `time.perf_counter`), at least MIN_WAIT_S."""
    return max(deadline - time.perf_counter(), MIN_WAIT_S)


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
