"""What the parent sees of the machine while a process times its blocks.

A thread takes a sample five times a second and counts what that costs: the parent only waits
meanwhile. The worker tells when it timed its blocks; samples of that window are kept. What they mean is
told on reading (conditions.py). `watch_neighbours` looks at other processes before anything is timed: all
but this one and those below it.
"""

from __future__ import annotations

import math
import os
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path
from threading import Event, Thread
from time import monotonic, process_time, thread_time
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

from benchbench.machine import kernel
from benchbench.machine.kernel import CpuTimes, allowed_cpus, cpu_seconds, cpu_times
from benchbench.machine.nvml import CUDA, GpuState, Nvml, connect, gpu_index
from benchbench.model.case import Case
from benchbench.model.measurement import Failure, Measurement, Telemetry, Window
from benchbench.model.note import Note, NoteKind, note

if TYPE_CHECKING:
    import psutil

INTERVAL_S = 0.2  # NVML's counters move every 20 to 100 ms; a sample costs about 0.5 ms
OF_ONE = "the energy of one of several GPUs is not that of a step"
MOST_SAMPLES = 600  # that a record keeps; of more, every second, every third, …
PAUSE_S = 0.5  # fifty ticks of /proc/stat: a fiftieth of a core can be told
NAMED = 3  # processes that are named at most, and
LEAST_CORES = 0.05  # cores one must have used for it


@dataclass(frozen=True, slots=True, kw_only=True)
class Sources:
    """What a case's samples are read from; what tells nothing here is not asked.

    `cpus`: those that the case runs on, and their siblings. `clocks`: the CPUs that tell their clock.
    `gpu`: its index at NVML's.
    """

    root: Path
    cpus: tuple[int, ...]
    clocks: tuple[int, ...] = ()
    throttling: tuple[Path, ...] = ()
    packages: tuple[kernel.CpuPackage, ...] = ()
    nvml: Nvml | None = None
    gpu: int = 0
    others: bool = False  # whether the case has GPUs besides, which are not sampled
    no_energy: str = ""
    notes: tuple[Note, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Sample:
    """One moment. `own_s` and `cost_s`: CPU seconds of this process and of this thread so far."""

    at_s: float
    cost_s: float
    own_s: float
    cpu: kernel.CpuTimes | None
    throttling: kernel.Throttling | None
    memory: kernel.Pressure | None
    load: float | None
    cpu_mhz: float | None
    package_uj: tuple[int, ...] | None
    gpu: GpuState | None


def take(sources: Sources) -> Sample:
    """What the sources say now."""
    root = sources.root
    return Sample(
        at_s=monotonic(),
        cost_s=thread_time(),
        own_s=process_time(),
        cpu=kernel.cpu_times(root, sources.cpus),
        throttling=kernel.read_throttling(sources.throttling),
        memory=kernel.pressure(root, "memory"),
        load=kernel.load_average(root),
        cpu_mhz=kernel.clocks_mhz(root, sources.clocks),
        package_uj=kernel.read_uj(sources.packages),
        gpu=sources.nvml.state(sources.gpu) if sources.nvml else None,
    )


class Sampler:
    """Takes samples from entry to exit."""

    def __init__(self, sources: Sources, interval_s: float = INTERVAL_S) -> None:
        self._sources = sources
        self._interval_s = interval_s
        self._samples: list[Sample] = []
        self._notes: tuple[Note, ...] = sources.notes
        self._stop = Event()
        self._thread = Thread(target=self._run, daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stop.set()
        self._thread.join()

    def _run(self) -> None:
        try:
            while not self._stop.wait(self._interval_s):
                self._samples.append(take(self._sources))
        except Exception as error:  # noqa: BLE001 - a driver's fault costs telemetry, not the measurement
            self._notes += (note(NoteKind.SAMPLING_ENDED, error=f"{type(error).__name__}: {error}"),)

    def with_telemetry(self, outcome: Measurement | Failure) -> Measurement | Failure:
        """The outcome with what was seen while its blocks were timed."""
        if isinstance(outcome, Failure) or outcome.window is None:
            return outcome
        found = telemetry(replace(self._sources, notes=self._notes), self._samples, outcome.window)
        return replace(outcome, telemetry=found)


class EndSampler:
    """Takes samples where what this very process times begins and ends.

    Without a thread: it would compute beside the function that is timed, and no process with several threads
    forks without a warning.
    """

    def __init__(self, sources: Sources) -> None:
        self._sources = sources
        self._samples: list[Sample] = []

    @contextmanager
    def mark(self, part: str) -> Iterator[None]:
        """Take a sample on entry and on exit. `with_telemetry` uses the last two samples."""
        self._take()
        try:
            yield
        finally:
            self._take()

    def _take(self) -> None:
        with suppress(Exception):  # a driver's fault costs telemetry, not the measurement
            # the window's CPU seconds are of this process, and so would be the sample's
            self._samples.append(replace(take(self._sources), own_s=0.0))

    def with_telemetry(self, outcome: Measurement) -> Measurement:
        """The outcome with what was seen while its blocks were timed."""
        if outcome.window is None:
            return outcome
        return replace(outcome, telemetry=telemetry(self._sources, self._samples, outcome.window))


class TurnSampler:
    """Takes samples before and after each turn of a case; the times in between belong to other cases."""

    def __init__(self, sources: Sources) -> None:
        self._sources = sources
        self._turns: list[tuple[Sample, Sample]] = []

    def clear(self) -> None:
        """Forget the turns so far: of a process that has to begin again."""
        self._turns.clear()

    @contextmanager
    def turn(self) -> Iterator[None]:
        """Around a turn."""
        before = self._take()
        try:
            yield
        finally:
            after = self._take()
            if before and after:
                self._turns.append((before, after))

    def _take(self) -> Sample | None:
        """A sample; a driver's fault costs telemetry, not the measurement."""
        with suppress(Exception):
            return take(self._sources)
        return None

    def with_telemetry(self, outcome: Measurement | Failure) -> Measurement | Failure:
        """The outcome with the samples of its turns, as if one turn had followed upon the other."""
        if isinstance(outcome, Failure) or not self._turns:
            return outcome
        samples, skipped = list[Sample](), list[tuple[Sample, Sample]]()
        for at, (before, after) in enumerate(self._turns):
            if at:
                skipped.append((self._turns[at - 1][1], before))
            samples += [_without(sample, skipped, self._sources.packages) for sample in (before, after)]
        whole = Window(began_s=samples[0].at_s, ended_s=math.inf, cpu_s=0.0)
        return replace(outcome, telemetry=telemetry(self._sources, samples, whole))


def _without(
    sample: Sample, skipped: Sequence[tuple[Sample, Sample]], packages: Sequence[kernel.CpuPackage]
) -> Sample:
    """The sample as if the counters had not moved during the times skipped."""

    def less(count: Callable[[Sample], float | None]) -> float | None:
        """The counter without what it counted meanwhile; None if it was not read every time."""
        pairs = [(count(begin), count(end)) for begin, end in skipped]
        now = count(sample)
        if now is None or any(begin is None or end is None for begin, end in pairs):
            return None
        return now - sum((end or 0.0) - (begin or 0.0) for begin, end in pairs)

    busy, steal = (
        less(lambda each: each.cpu.busy_s if each.cpu else None),
        less(lambda each: each.cpu.steal_s if each.cpu else None),
    )
    stopped = less(lambda each: each.throttling.seconds if each.throttling else None)
    waited = less(lambda each: each.memory.seconds if each.memory else None)
    joules = less(lambda each: each.gpu.energy_j if each.gpu else None)
    return replace(
        sample,
        at_s=less(lambda each: each.at_s) or 0.0,
        cost_s=less(lambda each: each.cost_s) or 0.0,
        own_s=less(lambda each: each.own_s) or 0.0,
        cpu=None if busy is None or steal is None else kernel.CpuTimes(busy, steal),
        throttling=replace(sample.throttling, seconds=stopped)
        if sample.throttling and stopped is not None
        else None,
        memory=replace(sample.memory, seconds=waited) if sample.memory and waited is not None else None,
        package_uj=_packages_without(sample, skipped, packages),
        gpu=replace(sample.gpu, energy_j=joules) if sample.gpu else None,
    )


def _packages_without(
    sample: Sample, skipped: Sequence[tuple[Sample, Sample]], packages: Sequence[kernel.CpuPackage]
) -> tuple[int, ...] | None:
    """The energy counters without what they counted meanwhile; each begins anew at its range."""
    if sample.package_uj is None or any(None in (a.package_uj, b.package_uj) for a, b in skipped):
        return None
    counts = list(sample.package_uj)
    for begin, end in skipped:
        for at, package in enumerate(packages):
            used = ((end.package_uj or ())[at] - (begin.package_uj or ())[at]) % package.range_uj
            counts[at] = (counts[at] - used) % package.range_uj
    return tuple(counts)


class CycleWatch:
    """How much of the CPUs other programs use, or the hypervisor withholds, from one call to the next."""

    def __init__(self, root: Path = Path("/")) -> None:
        self._root = root
        self._cpus = allowed_cpus()
        self._last = self._now()

    def _now(self) -> tuple[float, CpuTimes | None, float]:
        return monotonic(), cpu_times(self._root, self._cpus), process_time()

    def other_cores(self, case_cpu_s: float) -> float | None:
        """Cores since the last call; None if not known. `case_cpu_s`: CPU seconds that the cases used."""
        (began, before, own), (now, after, own_now) = self._last, self._now()
        self._last = now, after, own_now
        if before is None or after is None or now <= began:
            return None
        busy_s = after.busy_s - before.busy_s - case_cpu_s - (own_now - own)
        return max(busy_s + after.steal_s - before.steal_s, 0.0) / (now - began)


def telemetry(sources: Sources, samples: Sequence[Sample], window: Window) -> Telemetry:
    """The samples of the window, as columns."""
    kept = [each for each in samples if window.began_s <= each.at_s <= window.ended_s]
    kept = kept[:: -(-len(kept) // MOST_SAMPLES) or 1]
    packages = [each.package_uj for each in kept if each.package_uj is not None]
    joules: tuple[float, ...] = ()
    if sources.packages and len(packages) == len(kept):
        joules = kernel.used_j(packages, [package.range_uj for package in sources.packages])
    return Telemetry(
        cpus=len(sources.cpus),
        at_s=_column((each.at_s - window.began_s for each in kept), 4),
        busy_s=_counted((each.cpu.busy_s if each.cpu else None for each in kept), 2),
        own_s=_counted((each.own_s for each in kept), 4),
        steal_s=_counted((each.cpu.steal_s if each.cpu else None for each in kept), 2),
        throttled_s=_counted((each.throttling.seconds if each.throttling else None for each in kept), 4),
        waited_s=_counted((each.memory.seconds if each.memory else None for each in kept), 4),
        load=_column((each.load for each in kept), 2),
        cpu_mhz=_column((each.cpu_mhz for each in kept), 0),
        sampler_cpu_s=kept[-1].cost_s - kept[0].cost_s if kept else 0.0,
        no_energy=sources.no_energy,
        notes=sources.notes,
        **_gpu_columns([each.gpu for each in kept])
        | ({"energy_j": joules} if joules or sources.others else {}),
    )


def _gpu_columns(states: Sequence[GpuState | None]) -> dict[str, Any]:
    found = [state for state in states if state is not None]
    if not found:
        return {}
    return {
        "sm_mhz": _column((each.sm_mhz for each in found), None),
        "memory_mhz": _column((each.memory_mhz for each in found), None),
        "power_w": _column((each.power_w for each in found), 1),
        "temperature_c": _column((each.temperature_c for each in found), None),
        "reasons": _column((each.reasons for each in found), None),
        "gpu_busy": _column((each.busy for each in found), 2),
        "gpu_processes": _column((each.processes for each in found), None),
        "energy_j": _counted((each.energy_j for each in found), 3),
    }


def _column(values: Iterable[float | None], digits: int | None) -> tuple[Any, ...]:
    """All values, or none where one is missing. No digits: whole numbers already."""
    found = list(values)
    known = [value for value in found if value is not None]
    return tuple(round(value, digits) for value in known) if len(known) == len(found) else ()


def _counted(values: Iterable[float | None], digits: int) -> tuple[float, ...]:
    """A counter as a column that begins at 0; one that was set back has none."""
    found = _column(values, 9)
    if any(after < before for before, after in pairwise(found)):
        return ()
    return tuple(round(value - found[0], digits) for value in found)


class Watch:
    """Gives the cases of a run their samplers. NVML is connected to when the first GPU is timed."""

    def __init__(
        self,
        threads: int,
        *,
        root: Path = Path("/"),
        environment: Mapping[str, str] = os.environ,
        connect: Callable[[], Nvml | str] = connect,
    ) -> None:
        """`threads`: that a case may use."""
        cpus = kernel.cpus_for(threads, root)
        self._sources = Sources(
            root=root,
            cpus=kernel.sharing_cores(cpus, root),
            clocks=cpus if kernel.clocks_mhz(root, cpus) else (),
            throttling=kernel.throttling_files(root) if list(kernel.quotas(root)) else (),
        )
        self._environment = environment
        self._connect = connect
        self._nvml: Nvml | str | None = None

    def over(self, case: Case, *, virtual: bool = False) -> Sampler:
        """A sampler of what the case runs on; nothing is read of a device whose time is `virtual`."""
        return Sampler(self.sources(case, virtual=virtual))

    def sources(self, case: Case, *, virtual: bool = False) -> Sources:
        """What tells about the case's device, or the reason why nothing does."""
        return self._on_cpus_of(case, self._of_device(case, virtual=virtual))

    def _on_cpus_of(self, case: Case, found: Sources) -> Sources:
        """`found` on the CPUs that the case has threads for."""
        if not case.threads:
            return found
        cpus = kernel.cpus_for(case.threads, found.root)
        watched = kernel.sharing_cores(cpus, found.root)
        return replace(found, cpus=watched, clocks=cpus if found.clocks else ())

    def _of_device(self, case: Case, *, virtual: bool) -> Sources:
        if virtual:
            return replace(self._sources, no_energy=f"the {case.backend} backend uses none")
        kind = case.device.partition(":")[0]
        if kind == "cpu":
            found = kernel.cpu_packages(self._sources.root)
            if isinstance(found, str):
                return replace(self._sources, no_energy=found)
            return replace(self._sources, packages=found, no_energy="the RAPL counters gave no answer")
        if kind not in CUDA:
            return replace(self._sources, no_energy=f"the energy of {case.device} is not counted")
        first = self._gpu(case.device)
        several = first.nvml is not None and case.placement.devices > 1
        return replace(first, others=True, no_energy=OF_ONE) if several else first

    def _gpu(self, device: str) -> Sources:
        if self._nvml is None:
            self._nvml = self._connect()
        nvml = self._nvml
        if isinstance(nvml, str):
            return replace(self._sources, no_energy=nvml, notes=(note(NoteKind.NOT_SAMPLED, reason=nvml),))
        gpus = [nvml.settings(index) for index in range(nvml.count())]
        index = gpu_index(device, gpus, self._environment)
        if isinstance(index, str):
            return replace(self._sources, no_energy=index, notes=(note(NoteKind.NOT_SAMPLED, reason=index),))
        return replace(self._sources, nvml=nvml, gpu=index, no_energy="this GPU does not count it")

    def close(self) -> None:
        """Let NVML go."""
        if self._nvml is not None and not isinstance(self._nvml, str):
            self._nvml.close()


@dataclass(frozen=True, slots=True)
class Beginning:
    """A moment that others are watched from: CPU times of all, and of this process and those below it."""

    at_s: float
    cpu: CpuTimes | None
    own_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Pause:
    """The CPU times around `seconds` in which accelbench itself used `own_s`.

    `busiest`: program → cores it used meanwhile, most first; empty where nobody looked.
    """

    seconds: float
    cpus: int
    before: CpuTimes | None
    after: CpuTimes | None
    busiest: tuple[tuple[str, float], ...] = ()
    own_s: float = 0.0

    @property
    def cores(self) -> float | None:
        """Cores that others used; None where the system does not tell."""
        if self.before is None or self.after is None:
            return None
        return max(self.after.busy_s - self.before.busy_s - self.own_s, 0.0) / self.seconds

    @property
    def stolen(self) -> float | None:
        """Cores' worth of time that the hypervisor withheld; None where the system does not tell."""
        if self.before is None or self.after is None:
            return None
        return (self.after.steal_s - self.before.steal_s) / self.seconds

    @property
    def text(self) -> str:
        """`others use 1.50 of 2 CPUs (python 1.00, cc1 0.50)`."""
        names = ", ".join(f"{name} {used:.2f}" for name, used in self.busiest)
        return f"others use {self.cores or 0.0:.2f} of {self.cpus} CPUs{f' ({names})' if names else ''}"


def beginning(root: Path = Path("/")) -> Beginning:
    """This moment."""
    return Beginning(time.monotonic(), cpu_times(root, allowed_cpus()), cpu_seconds())


def pause_since(
    since: Beginning,
    root: Path = Path("/"),
    sleep: Callable[[float], None] = time.sleep,
    clock: Callable[[], float] = time.monotonic,
) -> Pause:
    """The pause from `start` until now, once half a second is over."""
    sleep(max(PAUSE_S - (clock() - since.at_s), 0.0))
    now = beginning(root)
    return Pause(
        seconds=now.at_s - since.at_s,
        cpus=len(allowed_cpus()),
        before=since.cpu,
        after=now.cpu,
        own_s=now.own_s - since.own_s,
    )


def watch_neighbours(root: Path = Path("/"), sleep: Callable[[float], None] = time.sleep) -> Pause:
    """Half a second from now, in which this process sleeps, and who computed most."""
    others = _others()
    pause = pause_since(beginning(root), root, sleep)
    used = sorted(_used(others), reverse=True)[:NAMED]
    return replace(pause, busiest=tuple((name, cores) for cores, name in used if cores >= LEAST_CORES))


def _others() -> list[psutil.Process]:
    """Every process but this one and those below it, its CPU time counted from now."""
    import psutil

    own = psutil.Process()
    ours = {own.pid, *(each.pid for each in own.children(recursive=True))}
    found = [each for each in psutil.process_iter(["name"]) if each.pid not in ours]
    _used(found)
    return found


def _used(processes: Sequence[psutil.Process]) -> list[tuple[float, str]]:
    """Cores and name of each process that is still there."""
    import psutil

    found = []
    for process in processes:
        with suppress(psutil.Error):
            found.append((process.cpu_percent() / 100, str(process.info["name"] or "?")))
    return found
