"""Workers as processes of this machine: they share its clock, its /proc and the run's folder."""

from __future__ import annotations

import fcntl
import json
import os
import shutil
import stat
import sys
import tempfile
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import replace
from hashlib import sha256
from pathlib import Path

from benchbench import registry
from benchbench.backends.base import Backend
from benchbench.launch.process import LocalWorker
from benchbench.launch.project import UserCode, tell_code_runs, user_code, user_data
from benchbench.launch.transport import NotStarted, Worker
from benchbench.machine.environment import available_bytes, oom_kills
from benchbench.machine.sampler import Sampler, TurnSampler, Watch
from benchbench.machine.variables import worker_environment
from benchbench.model import own
from benchbench.model.case import Case
from benchbench.model.device import Target
from benchbench.model.run import Settings
from benchbench.registry import load_class
from benchbench.workloads._image_sets import DATA_PATHS

WAITING_BYTES = 2**29  # of a template that has imported a framework: 0.2 to 0.5 GB of its own


class LocalTransport:
    """The processes of a run, started on this machine, and the folder they work in."""

    can_alternate = True

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

    def start(self, target: Target, environment: Mapping[str, str], threads: int = 0) -> Worker:
        """A template process of the target's interpreter; one that is dead already if it cannot start."""
        settings = replace(self._settings, threads=threads) if threads else self._settings
        try:
            folder = self.scratch.worker_folder()  # first: the run's own may have to be made again
            worker = LocalWorker(
                [target.python, "-P", "-m", "benchbench.worker", target.backend],
                self.scratch.environment(target, settings, environment),
                folder,
                settings.threads,
                self._count_oom_kills,
            )
        except OSError as error:  # no such program, no more processes or descriptors, a full disk
            return NotStarted(f"no process of {target.python}: {error.strerror}")
        self._started.append(worker)
        return worker

    def spare_workers(self) -> int:
        """How many fit into a quarter of the free memory: cases, and perhaps another pool, need the rest."""
        return available_bytes() // 4 // WAITING_BYTES

    def watch(self, case: Case) -> Sampler:
        """Samples of this machine: its clock is the workers'."""
        backend = load_class("benchbench.backends", case.backend, Backend)  # type: ignore[type-abstract]
        return self._watch.over(case, virtual=backend.virtual)

    def turn_sampler(self, case: Case) -> TurnSampler:
        """Samples of this machine before and after each of the case's turns."""
        return TurnSampler(self._watch.sources(case))

    def close(self) -> None:
        """End the processes, remove the folder."""
        for worker in self._started:
            worker.close()
        self._watch.close()
        self.scratch.close()


PREFIX = "accelbench-run-"  # of the folders' names
MARKER = ".accelbench-scratch"  # a file in such a folder that names it by device and inode


class RunScratch:
    """The private folder of one run: compile caches, drawn numbers, the workers' working folders."""

    def __init__(self, code: UserCode | None = None) -> None:
        """`code`: where the user's own is; by default what accelbench.toml and the environment say."""
        self._code = code
        self._count = 0
        remove_abandoned()
        self._make()

    def _make(self) -> None:
        self.path = Path(tempfile.mkdtemp(prefix=PREFIX))
        self._lock = os.open(self.path, os.O_RDONLY)
        with suppress(OSError):  # a file system without locks: no run there can take it for left over
            fcntl.flock(self._lock, fcntl.LOCK_EX)  # let go when this process ends, however it ends
        (self.path / MARKER).write_text(_mark(self._lock))  # after the lock: what has one is in use or left
        (self.path / "package").mkdir()
        (self.path / "drawn").mkdir()
        # A link, so that a foreign interpreter finds this package and nothing else beside it.
        (self.path / "package" / "benchbench").symlink_to(
            Path(__file__).parent.parent, target_is_directory=True
        )

    def worker_folder(self) -> Path:
        """A new folder for one worker. A workload may have removed the run's: then there is another."""
        if not os.path.exists(self.path / MARKER):
            self.close()
            self._make()
        self._count += 1
        folder = self.path / f"worker-{self._count}"
        folder.mkdir()
        return folder

    def environment(
        self, target: Target, settings: Settings, chosen: Mapping[str, str] | None = None
    ) -> dict[str, str]:
        """What a worker of `target` is started with; `chosen`: a case's own variables, but none of ours."""
        backend = registry.load_class("benchbench.backends", target.backend, Backend)()  # type: ignore[type-abstract]
        cache = str(self._cache(backend.shared_cache, target, settings, chosen or {}))
        extra = {**backend.environment(settings, cache), **(chosen or {})}
        if backend.framework in own.KINDS[own.KERAS].frameworks:
            extra["KERAS_BACKEND"] = backend.framework  # else Keras would compute with another
        code = self._code or user_code()
        extra |= {name: os.environ[name] for name in code.variables if name in os.environ}
        if code.sources or code.workloads:
            tell_code_runs()
        found = [str(self.path / "package"), *code.sources]
        if target.python == sys.executable:  # another interpreter must not see this one's packages
            found += code.python_path
        extra["PYTHONPATH"] = os.pathsep.join(found)
        extra[registry.DRAWN] = str(self.path / "drawn")
        extra[DATA_PATHS] = os.pathsep.join(user_data())
        extra[own.VARIABLE] = code.models
        extra[registry.WORKLOAD_PATH] = os.pathsep.join(code.workloads)
        return worker_environment(settings, extra, os.environ)

    def _cache(self, shared: str, target: Target, settings: Settings, chosen: Mapping[str, str]) -> Path:
        """The compile cache of one version, environment and number of threads.

        Another of these must not find its programs compiled. `shared`: what targets of one interpreter have
        in common instead; "": nothing.
        """
        known = [settings.threads, sorted(chosen.items()), target.python if shared else ""]
        part = sha256(json.dumps(known).encode()).hexdigest()[:12]
        return self.path / "cache" / (shared or target.name) / part

    def close(self) -> None:
        """Remove it all."""
        shutil.rmtree(self.path, ignore_errors=True)
        os.close(self._lock)


def remove_abandoned() -> None:
    """Remove what runs that were killed left: folders that a run of this user marked, and none has locked.

    Results may lie in a folder whose name looks alike. They have no marker, and a copy
    of one names another folder.
    """
    for path in Path(tempfile.gettempdir()).glob(f"{PREFIX}*"):
        with suppress(OSError):  # it is in use, not ours, or gone meanwhile
            descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
            try:
                if _is_marked(path, descriptor):
                    fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    shutil.rmtree(path, ignore_errors=True)
            finally:
                os.close(descriptor)


def _mark(folder: int) -> str:
    """What the marker of an open folder holds."""
    state = os.fstat(folder)
    return f"{state.st_dev}:{state.st_ino}\n"


def _is_marked(path: Path, folder: int) -> bool:
    """Whether a run of this user made the folder `path`, open as `folder`, for itself."""
    marker = path / MARKER
    state = os.lstat(marker)
    own = stat.S_ISREG(state.st_mode) and state.st_uid == os.fstat(folder).st_uid == os.getuid()
    return own and marker.read_text() == _mark(folder)
