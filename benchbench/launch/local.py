"""Workers as processes of this machine: they share its clock, its /proc and the run's folder."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from benchbench.backends.base import Backend
from benchbench.launch.process import LocalWorker
from benchbench.launch.project import UserCode
from benchbench.launch.scratch import RunScratch
from benchbench.launch.transport import NotStarted, Worker
from benchbench.machine.environment import available_bytes, oom_kills
from benchbench.machine.sampler import Sampler, Watch
from benchbench.model.case import Case
from benchbench.model.device import Target
from benchbench.model.run import Settings
from benchbench.registry import load_class

WAITING_BYTES = 2**29  # of a template that has imported a framework: 0.2 to 0.5 GB of its own


class LocalTransport:
    """One run's processes and their folder."""

    def __init__(
        self,
        settings: Settings,
        code: UserCode | None = None,
        count_oom_kills: Callable[[], int] = oom_kills,
    ) -> None:
        """`code`: where the user's own is; by default what accelbench.toml and the environment say."""
        self._settings = settings
        self.scratch = RunScratch(code)
        self._watch = Watch(settings.threads)
        self._count_oom_kills = count_oom_kills
        self._started: list[Worker] = []  # all of them, so that none is left

    def start(self, target: Target, environment: Mapping[str, str]) -> Worker:
        """A template process of the target's interpreter; one that is dead already if it cannot start."""
        try:
            folder = self.scratch.worker_folder()  # first: the run's own may have to be made again
            worker = LocalWorker(
                [target.python, "-P", "-m", "benchbench.worker", target.backend],
                self.scratch.environment(target, self._settings, environment),
                folder,
                self._settings.threads,
                self._count_oom_kills,
            )
        except OSError as error:  # no such program, no more processes or descriptors, a full disk
            return NotStarted(f"no process of {target.python}: {error.strerror}")
        self._started.append(worker)
        return worker

    def spare_workers(self) -> int:
        """In a quarter of the free memory: cases need some, and so may the other side of a comparison."""
        return available_bytes() // 4 // WAITING_BYTES

    def watch(self, case: Case) -> Sampler:
        """Samples of this machine: its clock is the workers'."""
        backend = load_class("benchbench.backends", case.backend, Backend)  # type: ignore[type-abstract]
        return self._watch.over(case, virtual=backend.virtual)

    def close(self) -> None:
        """End the processes, remove the folder."""
        for worker in self._started:
            worker.close()
        self._watch.close()
        self.scratch.close()
