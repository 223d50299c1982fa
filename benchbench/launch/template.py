"""What a worker process is started for: a target, in an environment."""

from __future__ import annotations

from typing import NamedTuple

from benchbench.machine.environment import THREADS
from benchbench.model.case import Case


class Template(NamedTuple):
    """What the cases that one process can fork for have in common. It imports the target's framework once."""

    target: str
    environment: tuple[tuple[str, str], ...] = ()


# Without a framework. A reference's products are small, and threads that wait for the next one burn its time.
REFERENCE = Template("reference", tuple(dict.fromkeys(THREADS, "1").items()))


def template_of(case: Case) -> Template:
    """The worker that the case needs."""
    return Template(case.target, tuple(sorted(case.environment.items())))
