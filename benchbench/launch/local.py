"""Worker processes on this machine, and the temporary folder of a run."""

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
from benchbench.backends.base import backend_class
from benchbench.launch.process import LocalWorker
from benchbench.launch.project import UserCode, user_code, user_data, warn_of_first_execution
from benchbench.launch.transport import UnstartedWorker, Worker
from benchbench.machine.environment import available_bytes, oom_kills
from benchbench.machine.sampler import Sampler, TurnSampler, Watch
from benchbench.machine.variables import worker_environment
from benchbench.model import user_model
from benchbench.model.case import Case
from benchbench.model.device import Target
from benchbench.model.run import Settings
from benchbench.workloads._image_sets import DATA_PATHS

IDLE_WORKER_BYTES = 2**29  # private memory of a template with its framework imported: 0.2 to 0.5 GB


class LocalTransport:
    """Starts workers as processes of this machine, in the run's temporary folder."""

    can_alternate = True

    def __init__(
        self,
        settings: Settings,
        code: UserCode | None = None,
        count_oom_kills: Callable[[], int] = oom_kills,
    ) -> None:
        """`code`: the user's code; by default that of accelbench.toml and the environment."""
        self._settings = settings
        self.scratch = RunScratch(code)
        self._watch = Watch(settings.threads)
        self._count_oom_kills = count_oom_kills
        self._started: list[Worker] = []

    def start(self, target: Target, environment: Mapping[str, str], threads: int = 0) -> Worker:
        """Start a template process in the target's interpreter; an UnstartedWorker if that fails."""
        settings = replace(self._settings, threads=threads) if threads else self._settings
        try:
            folder = self.scratch.worker_folder()  # first: it creates the run's folder again if that is gone
            worker = LocalWorker(
                [target.python, "-P", "-m", "benchbench.worker", target.backend],
                self.scratch.environment(target, settings, environment),
                folder,
                settings.threads,
                self._count_oom_kills,
            )
        except OSError as error:  # no such program, no more processes or descriptors, a full disk
            return UnstartedWorker(f"no process of {target.python}: {error.strerror}")
        self._started.append(worker)
        return worker

    def spare_workers(self) -> int:
        """The number of idle workers that fit into a quarter of the free memory; cases need the rest."""
        return available_bytes() // 4 // IDLE_WORKER_BYTES

    def watch(self, case: Case) -> Sampler:
        backend = backend_class(case.backend)
        return self._watch.over(case, virtual=backend.virtual)

    def turn_sampler(self, case: Case) -> TurnSampler:
        return TurnSampler(self._watch.sources(case))

    def close(self) -> None:
        for worker in self._started:
            worker.close()
        self._watch.close()
        self.scratch.close()


PREFIX = "accelbench-run-"  # of folder names
MARKER = ".accelbench-scratch"  # file in such a folder with the folder's device and inode numbers


class RunScratch:
    """The temporary folder of one run: compile caches, random inputs, and the workers' folders."""

    def __init__(self, code: UserCode | None = None) -> None:
        """`code`: the user's code; by default that of accelbench.toml and the environment."""
        self._code = code
        self._count = 0
        remove_abandoned()
        self._create()

    def _create(self) -> None:
        self.path = Path(tempfile.mkdtemp(prefix=PREFIX))
        self._lock = os.open(self.path, os.O_RDONLY)
        with suppress(OSError):  # without locks, `remove_abandoned` of another run cannot lock it either
            fcntl.flock(self._lock, fcntl.LOCK_EX)  # the kernel releases it when this process ends
        (self.path / MARKER).write_text(_mark(self._lock))  # after the lock: unlocked and marked = abandoned
        (self.path / "package").mkdir()
        (self.path / "drawn").mkdir()
        # A link, so that another interpreter finds this package but not its neighbours in site-packages.
        (self.path / "package" / "benchbench").symlink_to(
            Path(__file__).parent.parent, target_is_directory=True
        )

    def worker_folder(self) -> Path:
        """Create a folder for one worker, and the run's folder again if a workload has removed it."""
        if not os.path.exists(self.path / MARKER):
            self.close()
            self._create()
        self._count += 1
        folder = self.path / f"worker-{self._count}"
        folder.mkdir()
        return folder

    def environment(
        self, target: Target, settings: Settings, variables: Mapping[str, str] | None = None
    ) -> dict[str, str]:
        """The environment variables of a worker. `variables`: variables that its cases set."""
        backend = backend_class(target.backend)()
        cache = str(self._cache(target, settings, variables or {}))
        extra = {**backend.environment(settings, cache), **(variables or {})}
        if backend.framework in user_model.KINDS[user_model.KERAS].frameworks:
            extra["KERAS_BACKEND"] = backend.framework
        code = self._code or user_code()
        extra |= {name: os.environ[name] for name in code.variables if name in os.environ}
        if code.sources or code.workloads:
            warn_of_first_execution()
        python_path = [str(self.path / "package"), *code.sources]
        if target.python == sys.executable:  # another interpreter must not see this one's packages
            python_path += code.python_path
        extra["PYTHONPATH"] = os.pathsep.join(python_path)
        extra[registry.DRAWN] = str(self.path / "drawn")
        extra[DATA_PATHS] = os.pathsep.join(user_data())
        extra[user_model.VARIABLE] = code.models
        extra[registry.WORKLOAD_PATH] = os.pathsep.join(code.workloads)
        return worker_environment(settings, extra, os.environ)

    def _cache(self, target: Target, settings: Settings, variables: Mapping[str, str]) -> Path:
        """The compile cache folder for a target, its variables and number of threads.

        Each target has a separate folder, since a cold start must not find programs that another target
        compiled. Targets of one interpreter that load exported models share a folder instead.
        """
        exports = backend_class(target.backend).exports
        key = [settings.threads, sorted(variables.items()), target.python if exports else ""]
        part = sha256(json.dumps(key).encode()).hexdigest()[:12]
        return self.path / "cache" / ("onnx" if exports else target.name) / part

    def close(self) -> None:
        """Remove the folder."""
        shutil.rmtree(self.path, ignore_errors=True)
        os.close(self._lock)


def remove_abandoned() -> None:
    """Remove the folders of killed runs: this user's marked folders that no process has locked.

    A folder of results with a similar name is safe: it has no marker, and a copied marker has the device and
    inode of another folder.
    """
    for path in Path(tempfile.gettempdir()).glob(f"{PREFIX}*"):
        with suppress(OSError):  # in use, another user's, or already removed
            descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
            try:
                if _is_marked(path, descriptor):
                    fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    shutil.rmtree(path, ignore_errors=True)
            finally:
                os.close(descriptor)


def _mark(folder: int) -> str:
    """The content of an open folder's marker: `device:inode`."""
    state = os.fstat(folder)
    return f"{state.st_dev}:{state.st_ino}\n"


def _is_marked(path: Path, folder: int) -> bool:
    """Whether a run of this user created `path`. `folder`: its descriptor."""
    marker = path / MARKER
    state = os.lstat(marker)
    is_users_file = stat.S_ISREG(state.st_mode) and state.st_uid == os.fstat(folder).st_uid == os.getuid()
    return is_users_file and marker.read_text() == _mark(folder)
