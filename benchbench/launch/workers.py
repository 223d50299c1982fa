"""The workers of a run: one per template, and prefetched ones for later rounds.

Every round has new processes, since memory layout differs from process to process. Workers of later rounds
import their frameworks in parallel with the first round's, so the user waits for imports only once.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import NamedTuple

from benchbench.backends.base import Backend, backend_class
from benchbench.launch.transport import IMPORT_TIMEOUT_S, Greeting, Transport, Worker
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
