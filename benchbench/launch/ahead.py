"""Workers of later rounds, which import their frameworks before anything is timed.

Every round has processes of its own, since memory layout differs from process to process. Importing round by
round, the user would wait once a round; side by side, once a run.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence

from benchbench.launch.template import Template
from benchbench.launch.transport import IMPORT_TIMEOUT_S, Worker

LATE_S = 0.5  # for a message that came in while another worker was waited for


class WorkersAhead:
    """The workers of the rounds to come, the next round's first."""

    def __init__(self, start: Callable[[Template], Worker]) -> None:
        self._start = start
        self._rounds: list[dict[Template, Worker]] = []

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

    def finish(self) -> list[tuple[Template, Worker]]:
        """All of these workers, once each has imported its framework or failed to."""
        waiting = [each for started in self._rounds for each in started.items()]
        deadline = time.perf_counter() + IMPORT_TIMEOUT_S
        for _, worker in waiting:
            worker.ready(left_until(deadline))
        return waiting

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
