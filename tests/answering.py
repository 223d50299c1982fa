"""Answer the jobs of a worker pool without a worker."""

from collections.abc import Callable, Iterable

from benchbench.launch.transport import Answer
from benchbench.launch.workers import Job


def answer_all(jobs: Iterable[Job], answer_of: Callable[[Job], Answer]) -> list[Job]:
    """Answer jobs, and the jobs that their answers queue; return all in order."""
    queue = list(jobs)
    for job in queue:  # the queue grows meanwhile
        queue += job.done(answer_of(job))
    return queue
