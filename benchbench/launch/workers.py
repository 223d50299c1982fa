"""Which workers of a run there are: one per template, and those of later rounds, which import meanwhile.

Every round has processes of its own, since memory layout differs from process to process. Importing round by
round, the user would wait once a round; side by side, once a run.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import NamedTuple

from benchbench.backends.base import Backend
from benchbench.launch.transport import IMPORT_TIMEOUT_S, Greeting, Transport, Worker
from benchbench.machine.variables import THREADS
from benchbench.model.case import Case
from benchbench.model.device import Target
from benchbench.registry import load_class


class RunWorkers:
    """The workers of a run: started side by side, and ended when a round has no use for them."""

    def __init__(self, transport: Transport, targets: Mapping[str, Target]) -> None:
        """`targets`: by name, all that templates may have."""
        self._transport = transport
        self._targets = targets
        self._current: dict[Template, Worker] = {}
        self._ahead = WorkersAhead(self._started)

    def start(
        self, templates: Sequence[Template], staying: Collection[Template] = (), rounds_ahead: int = 0
    ) -> dict[Template, Greeting]:
        """Fresh workers of `templates` beside those `staying`; all others are ended. Template → its greeting.

        `rounds_ahead`: later rounds whose workers begin to import meanwhile.
        """
        begin = time.perf_counter()
        kept = {each: self._current[each] for each in staying} | self._ahead.take(templates)
        for template, worker in self._current.items():
            if template not in kept or worker is not kept[template]:
                worker.close()
        faults = {template: self._targets[template.target].fault for template in templates}
        wanted = [template for template in templates if not faults[template] and template not in kept]
        started = {template: self._started(template) for template in wanted}
        self._current = {**kept, **started}
        if rounds_ahead > 0:
            self.start_ahead(wanted, rounds_ahead)
        deadline = begin + IMPORT_TIMEOUT_S  # one for all: they import side by side
        greetings = {template: worker.ready(left_until(deadline)) for template, worker in started.items()}
        broken = {each: Greeting(status="broken", reason=fault) for each, fault in faults.items() if fault}
        known = broken | greetings
        return {template: known[template] for template in templates if template in known}

    def start_ahead(self, templates: Sequence[Template], rounds: int) -> None:
        """Workers for so many later rounds, as far as memory allows, but where time is virtual."""
        wanted = [template for template in templates if not self._is_virtual(template)]
        if wanted:
            self._ahead.begin(wanted, min(rounds, self._transport.spare_workers() // len(wanted)))

    def preload(self, kinds: Mapping[Template, Collection[tuple[str, str]]]) -> None:
        """Wait until all have imported what cases of these phases and modes will need."""
        ahead = [pair for pair in self._ahead.finish() if self._kind(pair[0]).preloads_ahead]
        workers = [*self._current.items(), *ahead]
        importing = [(template, worker) for template, worker in workers if template in kinds and worker.alive]
        for template, worker in importing:
            worker.post({"kind": "preload", "kinds": sorted(kinds[template])}, fork=False)
        for _, worker in importing:
            worker.collect(IMPORT_TIMEOUT_S)

    def staying(self, templates: Collection[Template]) -> set[Template]:
        """The templates whose worker can take another job and whose time is virtual."""
        return {each for each in templates if self._is_alive(each) and self._is_virtual(each)}

    def usable(self, template: Template) -> Worker:
        """The template's worker, started anew where there is none or it can take no other job."""
        if not self._is_alive(template):
            if template in self._current:
                self._current[template].close()
            self._current[template] = self._started(template)
            self._current[template].ready()
        return self._current[template]

    def posted(self, template: Template) -> Worker:
        """The worker that was asked last, also where it has died since."""
        return self._current[template]

    def _is_alive(self, template: Template) -> bool:
        return template in self._current and self._current[template].alive

    def _is_virtual(self, template: Template) -> bool:
        return self._kind(template).virtual

    def _kind(self, template: Template) -> type[Backend]:
        backend = self._targets[template.target].backend
        return load_class("benchbench.backends", backend, Backend)  # type: ignore[type-abstract]

    def _started(self, template: Template) -> Worker:
        target, environment = self._targets[template.target], dict(template.environment)
        return self._transport.start(target, environment, template.threads)


class Template(NamedTuple):
    """What the cases that one process can fork for have in common. It imports the target's framework once."""

    target: str
    environment: tuple[tuple[str, str], ...] = ()
    threads: int = 0  # 0: as many as the settings say


# Without a framework. A reference's products are small, and threads that wait for the next one burn its time.
REFERENCE = Template("reference", tuple(dict.fromkeys(THREADS, "1").items()))


def template_of(case: Case) -> Template:
    """The worker that the case needs."""
    return Template(case.target, tuple(sorted(case.environment.items())), case.threads)


LATE_S = 0.5  # for a message that came in while another worker was waited for


class WorkersAhead:
    """The workers of the rounds to come, the next round's first."""

    def __init__(self, start: Callable[[Template], Worker]) -> None:
        self._start = start
        self._rounds: list[dict[Template, Worker]] = []
        self._importing: list[Worker] = []  # whose greeting nobody has read yet: there is one

    def begin(self, templates: Sequence[Template], rounds: int) -> None:
        """Start the workers of that many rounds that are not started yet, and end those of other templates.

        They import side by side.
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

    def finish(self) -> list[tuple[Template, Worker]]:
        """Wait until each of these workers has imported its framework or failed to, and return them."""
        found = [each for started in self._rounds for each in started.items()]
        deadline = time.perf_counter() + IMPORT_TIMEOUT_S
        for _, worker in found:
            if worker in self._importing:
                worker.ready(left_until(deadline))
        self._importing.clear()
        return found

    def take(self, templates: Sequence[Template]) -> dict[Template, Worker]:
        """The next round's workers of these templates that are alive; its other workers are ended."""
        started = self._rounds.pop(0) if self._rounds else {}
        for template in started.keys() - templates:
            started[template].close()
        taken = {template: started[template] for template in templates if template in started}
        return {template: worker for template, worker in taken.items() if worker.alive}


def left_until(deadline: float) -> float:
    """Seconds to wait for one worker of several that are waited for in turn."""
    return max(deadline - time.perf_counter(), LATE_S)
