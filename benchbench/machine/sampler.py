"""Samples of the machine that the parent takes while a process times its blocks.

A thread takes five samples per second and counts its own CPU time. The worker reports the window in which it
timed its blocks, and only samples of that window are stored. conditions.py evaluates them on reading.
`watch_neighbours` finds other busy processes before anything is timed.
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
from benchbench.machine.gpus import (
    CUDA,
    Nvml,
    amd_gpu_index,
    connect,
    connect_to_amd,
    gpu_index,
)
from benchbench.machine.kernel import CpuTimes, allowed_cpus, cpu_seconds, cpu_times
from benchbench.model.case import Case
from benchbench.model.device import ROCM, kind_of
from benchbench.model.measurement import Failure, Measurement, Telemetry, Window
from benchbench.model.note import Note, NoteKind, note

if TYPE_CHECKING:
    import psutil

INTERVAL_S = 0.2  # NVML's counters move every 20 to 100 ms; a sample costs about 0.5 ms
OF_ONE = "the energy of one of several GPUs is not that of a step"
MAX_SAMPLES = 600  # per record; of more samples, every second, every third, … is stored
PAUSE_S = 0.5  # fifty ticks of /proc/stat, so the resolution is a fiftieth of a core
MAX_NAMED = 3  # processes named in a warning
MIN_CORES = 0.05  # used by a process that is named


@dataclass(frozen=True, slots=True, kw_only=True)
class Sources:
    """The available sources of a case's samples.

    `cpus`: the CPUs that the case runs on, and their hyperthread siblings. `clocks`: the CPUs whose clock can
    be read. `gpu`: the NVML index. `no_energy`: why energy is not measured.
    """

    root: Path
    cpus: tuple[int, ...]
    clocks: tuple[int, ...] = ()
    throttling: tuple[Path, ...] = ()
    packages: tuple[kernel.CpuPackage, ...] = ()
    nvml: Nvml | None = None
    gpu: int = 0
    has_more_gpus: bool = False  # the case has further GPUs, which are not sampled
    no_energy: str = ""
    notes: tuple[Note, ...] = ()


# Decimal places of the stored values; None for integers. Counters increase from sample to sample.
COUNTERS = {"busy_s": 2, "own_s": 4, "steal_s": 2, "throttled_s": 4, "waited_s": 4, "energy_j": 3}
GAUGES = {
    "load": 2, "cpu_mhz": 0, "sm_mhz": None, "memory_mhz": None, "power_w": 1, "temperature_c": None,
    "reasons": None, "gpu_busy": 2, "gpu_processes": None,
}  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class Sample:
    """One moment. `cost_s`: CPU seconds of this thread so far. `values`: by the names of a telemetry."""

    at_s: float
    cost_s: float
    values: Mapping[str, float | None]  # None or missing: unknown
    package_uj: tuple[int, ...] | None = None


def take(sources: Sources) -> Sample:
    """Read all sources."""
    root = sources.root
    cpu = kernel.cpu_times(root, sources.cpus)
    throttling = kernel.read_throttling(sources.throttling)
    memory = kernel.pressure(root, "memory")
    gpu = sources.nvml.state(sources.gpu) if sources.nvml else None
    values: dict[str, float | None] = {
        "own_s": process_time(),
        "busy_s": cpu.busy_s if cpu else None,
        "steal_s": cpu.steal_s if cpu else None,
        "throttled_s": throttling.seconds if throttling else None,
        "waited_s": memory.seconds if memory else None,
        "load": kernel.load_average(root),
        "cpu_mhz": kernel.clocks_mhz(root, sources.clocks),
    }
    if gpu:
        values |= {
            **{name: getattr(gpu, name) for name in ("sm_mhz", "memory_mhz", "power_w", "temperature_c")},
            "reasons": gpu.reasons,
            "gpu_busy": gpu.busy,
            "gpu_processes": gpu.processes,
            "energy_j": gpu.energy_j,
        }
    package_uj = kernel.read_uj(sources.packages)
    return Sample(at_s=monotonic(), cost_s=thread_time(), values=values, package_uj=package_uj)


def take_of_others(sources: Sources) -> Sample:
    """Read all sources without the CPU seconds of this process, which the window of its function has."""
    sample = take(sources)
    return replace(sample, values={**sample.values, "own_s": 0.0})


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
        sources = replace(self._sources, notes=self._notes)
        return replace(outcome, telemetry=telemetry(sources, self._samples, outcome.window))


class TurnSampler:
    """Takes samples before and after each turn of a case; the times in between belong to other cases.

    It has no thread: a thread would compute beside a function of this process, and Python warns when a
    process with several threads forks.
    """

    def __init__(self, sources: Sources, take: Callable[[Sources], Sample] = take) -> None:
        self._sources = sources
        self._take_sample = take
        self._turns: list[tuple[Sample, Sample]] = []

    def clear(self) -> None:
        """Remove the turns so far, when a case is started again."""
        self._turns.clear()

    @contextmanager
    def turn(self) -> Iterator[None]:
        """Take a sample before and after a turn."""
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
            return self._take_sample(self._sources)
        return None

    def with_telemetry(self, outcome: Measurement | Failure) -> Measurement | Failure:
        """The outcome with the samples of its turns, without the times between turns."""
        if isinstance(outcome, Failure) or not self._turns:
            return outcome
        samples, skipped = list[Sample](), list[tuple[Sample, Sample]]()
        for index, (before, after) in enumerate(self._turns):
            if index:
                skipped.append((self._turns[index - 1][1], before))
            samples += [_without(sample, skipped, self._sources.packages) for sample in (before, after)]
        turns_window = Window(began_s=samples[0].at_s, ended_s=math.inf, cpu_s=0.0)
        return replace(outcome, telemetry=telemetry(self._sources, samples, turns_window))


def _without(
    sample: Sample, skipped: Sequence[tuple[Sample, Sample]], packages: Sequence[kernel.CpuPackage]
) -> Sample:
    """The sample with counters that exclude the skipped intervals."""

    def less(name: str) -> float | None:
        """Counter without the skipped intervals; None if a reading is missing."""
        pairs = [(begin.values.get(name), end.values.get(name)) for begin, end in skipped]
        now = sample.values.get(name)
        if now is None or any(begin is None or end is None for begin, end in pairs):
            return None
        return now - sum((end or 0.0) - (begin or 0.0) for begin, end in pairs)

    return Sample(
        at_s=sample.at_s - sum(end.at_s - begin.at_s for begin, end in skipped),
        cost_s=sample.cost_s - sum(end.cost_s - begin.cost_s for begin, end in skipped),
        values={**sample.values, **{name: less(name) for name in COUNTERS}},
        package_uj=_packages_without(sample, skipped, packages),
    )


def _packages_without(
    sample: Sample, skipped: Sequence[tuple[Sample, Sample]], packages: Sequence[kernel.CpuPackage]
) -> tuple[int, ...] | None:
    """The energy counters without the skipped intervals. A counter wraps at its range."""
    if sample.package_uj is None or any(None in (a.package_uj, b.package_uj) for a, b in skipped):
        return None
    counts = list(sample.package_uj)
    for begin, end in skipped:
        for index, package in enumerate(packages):
            used = ((end.package_uj or ())[index] - (begin.package_uj or ())[index]) % package.range_uj
            counts[index] = (counts[index] - used) % package.range_uj
    return tuple(counts)


class CycleWatch:
    """Cores that other programs used, or the hypervisor withheld, since the last call."""

    def __init__(self, root: Path = Path("/")) -> None:
        self._root = root
        self._cpus = allowed_cpus()
        self._last = self._now()

    def _now(self) -> tuple[float, CpuTimes | None, float]:
        return monotonic(), cpu_times(self._root, self._cpus), process_time()

    def other_cores(self, case_cpu_s: float) -> float | None:
        """Cores since the last call; None if not known. `case_cpu_s`: CPU seconds that the cases used."""
        (began, before, began_cpu_s), (now, after, now_cpu_s) = self._last, self._now()
        self._last = now, after, now_cpu_s
        if before is None or after is None or now <= began:
            return None
        busy_s = after.busy_s - before.busy_s - case_cpu_s - (now_cpu_s - began_cpu_s)
        return max(busy_s + after.steal_s - before.steal_s, 0.0) / (now - began)


def telemetry(sources: Sources, samples: Sequence[Sample], window: Window) -> Telemetry:
    """The samples of the window, as columns."""
    in_window = [sample for sample in samples if window.began_s <= sample.at_s <= window.ended_s]
    in_window = in_window[:: -(-len(in_window) // MAX_SAMPLES) or 1]
    packages = [sample.package_uj for sample in in_window if sample.package_uj is not None]
    joules: tuple[float, ...] = ()
    if sources.packages and len(packages) == len(in_window):
        joules = kernel.used_j(packages, [package.range_uj for package in sources.packages])
    columns: dict[str, Any] = {
        name: _increase((sample.values.get(name) for sample in in_window), digits)
        for name, digits in COUNTERS.items()
    }
    for name, digits in GAUGES.items():
        columns[name] = _column((sample.values.get(name) for sample in in_window), digits)
    if joules or sources.has_more_gpus:
        columns["energy_j"] = joules
    return Telemetry(
        cpus=len(sources.cpus),
        at_s=_column((sample.at_s - window.began_s for sample in in_window), 4),
        sampler_cpu_s=in_window[-1].cost_s - in_window[0].cost_s if in_window else 0.0,
        no_energy=sources.no_energy,
        notes=sources.notes,
        **columns,
    )


def _column(values: Iterable[float | None], digits: int | None) -> tuple[Any, ...]:
    """The rounded values; empty if one is missing. `digits`: decimal places, None for integers."""
    column = list(values)
    known_values = [value for value in column if value is not None]
    return tuple(round(value, digits) for value in known_values) if len(known_values) == len(column) else ()


def _increase(values: Iterable[float | None], digits: int) -> tuple[float, ...]:
    """The counter's increase since the first value; empty if it was reset."""
    column = _column(values, 9)
    if any(after < before for before, after in pairwise(column)):
        return ()
    return tuple(round(value - column[0], digits) for value in column)


class Watch:
    """Creates the samplers of a run's cases. Connects to NVML or amdsmi when the first GPU is timed."""

    def __init__(
        self,
        threads: int,
        *,
        root: Path = Path("/"),
        environment: Mapping[str, str] = os.environ,
        connect: Callable[[], Nvml | str] = connect,
        connect_to_amd: Callable[[], Nvml | str] = connect_to_amd,
    ) -> None:
        """`threads`: number of threads of a case."""
        cpus = kernel.cpus_for(threads, root)
        self._sources = Sources(
            root=root,
            cpus=kernel.sharing_cores(cpus, root),
            clocks=cpus if kernel.clocks_mhz(root, cpus) else (),
            throttling=kernel.throttling_files(root) if list(kernel.quotas(root)) else (),
        )
        self._environment = environment
        self._connect = {False: connect, True: connect_to_amd}
        self._libraries: dict[bool, Nvml | str] = {}  # by whether it is AMD's

    def over(self, case: Case, *, virtual: bool = False) -> Sampler:
        """A sampler for the case. Devices with `virtual` time are not read."""
        return Sampler(self.sources(case, virtual=virtual))

    def sources(self, case: Case, *, virtual: bool = False) -> Sources:
        """The sources for the case's CPUs and device."""
        return self._on_cpus_of(case, self._of_device(case, virtual=virtual))

    def _on_cpus_of(self, case: Case, sources: Sources) -> Sources:
        """The sources restricted to the CPUs of a case with its own number of threads."""
        if not case.threads:
            return sources
        cpus = kernel.cpus_for(case.threads, sources.root)
        siblings = kernel.sharing_cores(cpus, sources.root)
        return replace(sources, cpus=siblings, clocks=cpus if sources.clocks else ())

    def _of_device(self, case: Case, *, virtual: bool) -> Sources:
        if virtual:
            return replace(self._sources, no_energy=f"the {case.backend} backend uses none")
        kind = kind_of(case.device)
        if kind == "cpu":
            packages = kernel.cpu_packages(self._sources.root)
            if isinstance(packages, str):
                return replace(self._sources, no_energy=packages)
            return replace(self._sources, packages=packages, no_energy="the RAPL counters gave no answer")
        if kind not in (*CUDA, ROCM):
            return replace(self._sources, no_energy=f"the energy of {case.device} is not counted")
        first = self._gpu(case.device)
        several = first.nvml is not None and case.placement.devices > 1
        return replace(first, has_more_gpus=True, no_energy=OF_ONE) if several else first

    def _gpu(self, device: str) -> Sources:
        is_amd = kind_of(device) == ROCM
        if is_amd not in self._libraries:
            self._libraries[is_amd] = self._connect[is_amd]()
        nvml = self._libraries[is_amd]
        if isinstance(nvml, str):
            return replace(self._sources, no_energy=nvml, notes=(note(NoteKind.NOT_SAMPLED, reason=nvml),))
        gpus = [nvml.settings(index) for index in range(nvml.count())]
        find_index = amd_gpu_index if is_amd else gpu_index
        index = find_index(device, gpus, self._environment)
        if isinstance(index, str):
            return replace(self._sources, no_energy=index, notes=(note(NoteKind.NOT_SAMPLED, reason=index),))
        return replace(self._sources, nvml=nvml, gpu=index, no_energy="this GPU does not count it")

    def close(self) -> None:
        """Disconnect from the libraries."""
        for library in self._libraries.values():
            if not isinstance(library, str):
                library.close()


@dataclass(frozen=True, slots=True)
class Beginning:
    """The start of a pause: CPU times of all processes, and CPU seconds of this one with its children."""

    at_s: float
    cpu: CpuTimes | None
    own_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Pause:
    """CPU times before and after `seconds` in which accelbench itself used `own_s`.

    `busiest`: (program, cores used), the busiest first; empty if unknown.
    """

    seconds: float
    cpus: int
    before: CpuTimes | None
    after: CpuTimes | None
    busiest: tuple[tuple[str, float], ...] = ()
    own_s: float = 0.0

    @property
    def cores(self) -> float | None:
        """Cores that other programs used; None if unknown."""
        if self.before is None or self.after is None:
            return None
        return max(self.after.busy_s - self.before.busy_s - self.own_s, 0.0) / self.seconds

    @property
    def stolen(self) -> float | None:
        """Cores that the hypervisor withheld; None if unknown."""
        if self.before is None or self.after is None:
            return None
        return (self.after.steal_s - self.before.steal_s) / self.seconds

    @property
    def text(self) -> str:
        """`other programs use 1.50 of 2 CPUs (python 1.00, cc1 0.50)`."""
        names = ", ".join(f"{name} {used:.2f}" for name, used in self.busiest)
        return (
            f"other programs use {self.cores or 0.0:.2f} of {self.cpus} CPUs{f' ({names})' if names else ''}"
        )


def beginning(root: Path = Path("/")) -> Beginning:
    """Read the CPU times now."""
    return Beginning(time.monotonic(), cpu_times(root, allowed_cpus()), cpu_seconds())


def pause_since(
    since: Beginning,
    root: Path = Path("/"),
    sleep: Callable[[float], None] = time.sleep,
    clock: Callable[[], float] = time.monotonic,
) -> Pause:
    """The pause from `since` until now. Sleeps first if less than PAUSE_S has passed."""
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
    """Sleep for PAUSE_S; return the pause with the busiest other programs."""
    others = _others()
    pause = pause_since(beginning(root), root, sleep)
    used = sorted(_used(others), reverse=True)[:MAX_NAMED]
    return replace(pause, busiest=tuple((name, cores) for cores, name in used if cores >= MIN_CORES))


def _others() -> list[psutil.Process]:
    """All processes except this one and its descendants, with their CPU time counted from now."""
    import psutil

    this = psutil.Process()
    own_pids = {this.pid, *(child.pid for child in this.children(recursive=True))}
    others = [process for process in psutil.process_iter(["name"]) if process.pid not in own_pids]
    _used(others)
    return others


def _used(processes: Sequence[psutil.Process]) -> list[tuple[float, str]]:
    """(cores, name) of each process that still exists. Cores are counted since the last call."""
    import psutil

    usage = []
    for process in processes:
        with suppress(psutil.Error):
            usage.append((process.cpu_percent() / 100, str(process.info["name"] or "?")))
    return usage
