"""What a worker is started for."""

from __future__ import annotations

from typing import NamedTuple

from benchbench.machine.environment import THREADS
from benchbench.model.case import Case


class Template(NamedTuple):
    """A process that imports a framework and forks one for each case: its cases differ in neither."""

    target: str
    environment: tuple[tuple[str, str], ...] = ()


# Without a framework. A reference's products are small, and threads that wait for the next one burn its time.
REFERENCE = Template("reference", tuple(dict.fromkeys(THREADS, "1").items()))


def template_of(case: Case) -> Template:
    """The worker that the case needs."""
    return Template(case.target, tuple(sorted(case.environment.items())))
