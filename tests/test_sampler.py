import json
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from benchbench.machine import kernel
from benchbench.machine.gpus import GpuState, Nvml
from benchbench.machine.sampler import (
    MAX_SAMPLES,
    OF_ONE,
    Sample,
    Sampler,
    Sources,
    TurnSampler,
    Watch,
    take,
    take_of_others,
    telemetry,
)
from benchbench.model.measurement import Measurement, Telemetry, Window
from benchbench.model.note import NoteKind, note
from benchbench.model.placement import ONE_DEVICE, Placement, Strategy
from tests.factories import a_case, a_failure, a_measurement, a_watched
from tests.machines import FakeNvml, Files, a_state, some_settings, tree
from tests.program import accelbench, rows, wait_for

WINDOW = Window(began_s=100.0, ended_s=110.0, cpu_s=5.0)
STAT = "cpu0 100 0 0 0 0 0 0 50 0 0\n"
FILES: Files = {
    "proc/stat": STAT,
    "proc/loadavg": "1.50 1.00 1.00 1/9 9\n",
    "proc/pressure/memory": "some avg10=0.00 avg60=0.00 avg300=0.00 total=3000000\n",
    "proc/self/cgroup": "0::/\n",
    "sys/fs/cgroup/cpu.stat": "nr_periods 9\nnr_throttled 2\nthrottled_usec 700000\n",
    f"{kernel.CPUS}/cpu0/cpufreq/scaling_cur_freq": "2500000\n",
}
RAPL: Files = {
    f"{kernel.RAPL}/intel-rapl:0/name": "package-0\n",
    f"{kernel.RAPL}/intel-rapl:0/energy_uj": "42\n",
    f"{kernel.RAPL}/intel-rapl:0/max_energy_range_uj": "1000\n",
}


def some_sources(root: Path = Path("/nowhere"), **over: Any) -> Sources:
    base: dict[str, Any] = {"root": root, "cpus": (0,), "clocks": (0,)}
    return Sources(**(base | over))


def a_sample(
    at_s: float, cost_s: float = 0.0, package_uj: tuple[int, ...] | None = None, **values: Any
) -> Sample:
    """A machine without any other sources."""
    return Sample(at_s=at_s, cost_s=cost_s, values={"own_s": 0.0, **values}, package_uj=package_uj)


def a_gpu_sample(at_s: float, **values: Any) -> Sample:
    state = {"sm_mhz": 345, "memory_mhz": 2619, "power_w": 70.0, "temperature_c": 30, "reasons": 1}
    state |= {"gpu_busy": 0.0, "gpu_processes": 0, "energy_j": 1000.0}
    return a_sample(at_s, **{**state, **values})


def known(sample: Sample) -> dict[str, float]:
    return {name: value for name, value in sample.values.items() if value is not None}


def test_a_sample_has_a_value_of_every_source(tmp_path: Path) -> None:
    root = tree(tmp_path, FILES | RAPL)
    packages = kernel.cpu_packages(root)
    assert not isinstance(packages, str)
    sample = take(
        some_sources(
            root, throttling=kernel.throttling_files(root), packages=packages, nvml=FakeNvml(), gpu=0
        )
    )
    times = kernel.cpu_times(root, (0,))
    assert times is not None
    others = {"busy_s": times.busy_s, "steal_s": times.steal_s, "throttled_s": 0.7, "waited_s": 3.0}
    others |= {"load": 1.5, "cpu_mhz": 2500.0, "own_s": known(sample)["own_s"]}
    assert known(sample) == a_gpu_sample(0.0, **others).values
    assert sample.package_uj == (42,)


def test_samples_of_the_window_become_columns_with_counters_from_zero() -> None:
    samples = [
        a_gpu_sample(
            99.9 + number,
            cost_s=0.5 + 0.0625 * number,
            own_s=2.0 + 0.01 * number,
            busy_s=50.0 + number,
            steal_s=7.0 + 0.1 * number,
            throttled_s=3.0 + 0.05 * number,
            waited_s=1.0 + 0.02 * number,
            load=1.5,
            cpu_mhz=2500.4,
            energy_j=1000.0 + 70 * number,
            power_w=70.04,
            reasons=4,
        )
        for number in range(13)
    ]
    columns = telemetry(some_sources(cpus=(0, 1), no_energy="none here"), samples, WINDOW)
    steps = range(10)  # the first is before the window, the last two after it
    assert columns == Telemetry(
        cpus=2,
        at_s=tuple(round(0.9 + step, 4) for step in steps),
        busy_s=tuple(float(step) for step in steps),
        own_s=tuple(round(0.01 * step, 4) for step in steps),
        steal_s=tuple(round(0.1 * step, 2) for step in steps),
        throttled_s=tuple(round(0.05 * step, 4) for step in steps),
        waited_s=tuple(round(0.02 * step, 4) for step in steps),
        load=(1.5,) * 10,
        cpu_mhz=(2500.0,) * 10,
        energy_j=tuple(70.0 * step for step in steps),
        sm_mhz=(345,) * 10,
        memory_mhz=(2619,) * 10,
        power_w=(70.0,) * 10,
        temperature_c=(30,) * 10,
        reasons=(4,) * 10,
        gpu_busy=(0.0,) * 10,
        gpu_processes=(0,) * 10,
        sampler_cpu_s=0.5625,
        no_energy="none here",
    )


@pytest.mark.parametrize(
    ("before", "after", "energy_j"),
    [
        ({"package_uj": (900,)}, {"package_uj": (100,)}, (0.0, 200e-6)),  # it wraps round at 1000
        ({"package_uj": (900,)}, {}, ()),
        ({"energy_j": 9.0}, {"energy_j": 1.0}, ()),  # it was set back
        ({"energy_j": None}, {"energy_j": 5.0}, ()),
    ],
)
def test_energy_needs_a_continuous_counter(
    before: dict[str, Any], after: dict[str, Any], energy_j: tuple[float, ...]
) -> None:
    sources = some_sources(packages=(kernel.CpuPackage(Path("/nowhere"), 1000),) * ("package_uj" in before))
    columns = telemetry(sources, [a_sample(101.0, **before), a_sample(102.0, **after)], WINDOW)
    assert columns.energy_j == energy_j


@pytest.mark.parametrize(("count", "count_kept"), [(0, 0), (1, 1), (600, 600), (601, 301), (3000, 600)])
def test_a_long_window_stores_a_limited_number_of_samples(count: int, count_kept: int) -> None:
    samples = [a_sample(100.0 + 10 * number / count) for number in range(count)]
    assert count_kept <= MAX_SAMPLES
    assert len(telemetry(some_sources(), samples, WINDOW).at_s) == count_kept


def counting() -> tuple[FakeNvml, Callable[[], int]]:
    """GPUs that count their readings."""
    readings: list[None] = []

    def state() -> GpuState:
        readings.append(None)
        return a_state(energy_j=float(len(readings)))

    return FakeNvml(state=state), lambda: len(readings)


def test_samples_are_taken_while_a_case_runs_and_not_after_it(tmp_path: Path) -> None:
    gpu, readings = counting()
    began = time.monotonic()
    with Sampler(some_sources(tmp_path, nvml=gpu), interval_s=0.001) as sampler:
        wait_for(lambda: readings() >= 3)
    count = readings()
    window = Window(began_s=began, ended_s=time.monotonic(), cpu_s=0.0)
    measurement = sampler.with_telemetry(a_measurement(window=window))
    assert isinstance(measurement, Measurement)
    assert measurement.telemetry is not None
    assert measurement.telemetry.energy_j == tuple(float(number) for number in range(count))
    assert measurement.telemetry.at_s == tuple(sorted(measurement.telemetry.at_s))
    assert readings() == count


def test_the_cpu_seconds_of_a_process_that_times_itself_are_those_of_its_window(tmp_path: Path) -> None:
    assert take_of_others(some_sources(tmp_path)).values["own_s"] == 0


def test_times_between_turns_are_not_counted() -> None:
    package = kernel.CpuPackage(Path("/nowhere"), 1000)
    samples = iter(
        a_sample(at_s, busy_s=busy_s, package_uj=(energy_uj,))
        for at_s, busy_s, energy_uj in [(10, 5, 900), (11, 6, 950), (20, 50, 100), (22, 52, 300)]
    )
    sampler = TurnSampler(some_sources(packages=(package,)), take=lambda _: next(samples))
    for _ in range(2):
        with sampler.turn():
            pass
    measurement = sampler.with_telemetry(a_measurement())
    assert isinstance(measurement, Measurement)
    assert measurement.telemetry is not None
    assert measurement.telemetry.at_s == (0, 1, 1, 3)
    assert measurement.telemetry.busy_s == (0, 1, 1, 3)
    assert measurement.telemetry.energy_j == (0, 50e-6, 50e-6, 250e-6)


def test_failures_and_outcomes_without_a_window_have_no_telemetry(tmp_path: Path) -> None:
    with Sampler(some_sources(tmp_path)) as sampler:
        pass
    for outcome in (a_failure(), a_measurement()):
        assert sampler.with_telemetry(outcome) == outcome
    measurement = sampler.with_telemetry(a_watched())  # telemetry sent by a worker is ignored
    assert isinstance(measurement, Measurement)
    assert measurement.telemetry == Telemetry(cpus=1)


def test_a_failing_driver_gives_a_note_instead_of_telemetry(tmp_path: Path) -> None:
    called = threading.Event()

    def state() -> GpuState:
        called.set()
        raise RuntimeError("GPU is lost")

    with Sampler(some_sources(tmp_path, nvml=FakeNvml(state=state)), interval_s=0.001) as sampler:
        assert called.wait(30)
    measurement = sampler.with_telemetry(a_measurement(window=WINDOW))
    assert isinstance(measurement, Measurement)
    assert measurement.telemetry is not None
    assert [n.text for n in measurement.telemetry.notes] == [
        "telemetry ended early: RuntimeError: GPU is lost"
    ]


CUDA_CASE = a_case(device="cuda:0")


@contextmanager
def watching(root: Path, connect: Callable[[], Any], **environment: str) -> Iterator[Watch]:
    watch = Watch(1, root=root, environment=environment, connect=connect)
    yield watch
    watch.close()


def must_not_be_asked() -> Nvml:
    raise AssertionError("NVML was connected to")


def test_a_case_on_the_cpu_is_watched_without_nvml(tmp_path: Path) -> None:
    with watching(tree(tmp_path, RAPL), must_not_be_asked) as watch:
        sources_of_case = watch.sources(a_case())
    assert (len(sources_of_case.packages), sources_of_case.nvml, sources_of_case.notes) == (1, None, ())


@pytest.mark.parametrize(
    ("case", "reason"),
    [
        (a_case(), "this machine shows no RAPL counters"),
        (a_case(backend="fake"), "the fake backend uses none"),
        (a_case(backend="fake", device="sim:0"), "the fake backend uses none"),
        (a_case(backend="jax", device="tpu:0"), "the energy of tpu:0 is not counted"),
    ],
)
def test_a_missing_energy_counter_has_a_reason_and_no_note(tmp_path: Path, case: Any, reason: str) -> None:
    with watching(tmp_path, must_not_be_asked) as watch:
        sources_of_case = watch.sources(case, virtual=case.backend == "fake")
    assert (sources_of_case.no_energy, sources_of_case.packages, sources_of_case.notes) == (reason, (), ())


def test_nvml_is_connected_to_once_and_closed_with_the_run(tmp_path: Path) -> None:
    gpus, connections = FakeNvml([some_settings(), some_settings()]), []

    def connect() -> Nvml:
        connections.append(gpus)
        return gpus

    with watching(tmp_path, connect, CUDA_VISIBLE_DEVICES="1") as watch:
        sources_of_cases = [watch.sources(CUDA_CASE) for _ in range(2)]
        assert [(sources.nvml, sources.gpu, sources.notes) for sources in sources_of_cases] == [
            (gpus, 1, ())
        ] * 2
        assert not gpus.closed
    assert len(connections) == 1
    assert gpus.closed


def test_only_one_of_several_gpus_is_sampled_without_energy(tmp_path: Path) -> None:
    gpus = FakeNvml([some_settings(), some_settings()])
    two = Placement(devices=2, strategy=Strategy.DATA_PARALLEL)
    with watching(tmp_path, lambda: gpus) as watch:
        single_sources, pair_sources = (
            watch.sources(replace(CUDA_CASE, placement=placement)) for placement in (ONE_DEVICE, two)
        )
    samples = [a_gpu_sample(at_s) for at_s in (101.0, 102.0)]
    assert telemetry(single_sources, samples, WINDOW).energy_j
    columns = telemetry(pair_sources, samples, WINDOW)
    assert (columns.energy_j, columns.no_energy) == ((), OF_ONE)
    assert columns.sm_mhz


@pytest.mark.parametrize(
    ("library", "reason"),
    [
        ("no NVML: there is no NVIDIA driver", "no NVML: there is no NVIDIA driver"),
        (FakeNvml([some_settings(name="A"), some_settings(name="B")]), "cannot tell which GPU"),
    ],
)
def test_a_gpu_that_is_not_watched_has_one_note(tmp_path: Path, library: Any, reason: str) -> None:
    with watching(tmp_path, lambda: library) as watch:
        sources_of_case = watch.sources(CUDA_CASE)
    assert sources_of_case.nvml is None
    assert reason in sources_of_case.no_energy
    assert sources_of_case.notes == (note(NoteKind.NOT_SAMPLED, reason=sources_of_case.no_energy),)


def test_sources_without_values_are_not_read(tmp_path: Path) -> None:
    first = kernel.allowed_cpus()[:1]
    stat = "sys/fs/cgroup/cpu.stat"
    files = {"proc/self/cgroup": "0::/\n", stat: "nr_periods 0\n", "sys/fs/cgroup/cpu.max": "max 100000\n"}
    with watching(tree(tmp_path, files), must_not_be_asked) as watch:
        sources_of_case = watch.sources(a_case())
    assert (sources_of_case.clocks, sources_of_case.throttling) == ((), ())

    files["sys/fs/cgroup/cpu.max"] = "200000 100000\n"
    files[f"{kernel.CPUS}/cpu{first[0]}/cpufreq/scaling_cur_freq"] = "2500000\n"
    with watching(tree(tmp_path, files), must_not_be_asked) as watch:
        sources_of_case = watch.sources(a_case())
    assert (sources_of_case.clocks, sources_of_case.throttling) == (first, ((tmp_path / stat).resolve(),))


DAWDLING = ("run", "-b", "fake", "-d", "cpu", "-w", "dawdling", "--quick", "--rounds")


@pytest.mark.real  # waits for a time-out
def test_a_run_stores_the_telemetry_of_its_timed_blocks(tmp_path: Path) -> None:
    accelbench(*DAWDLING, "1", cwd=tmp_path)
    (records_file,) = (tmp_path / "results").rglob("records.jsonl")
    outcome = json.loads(records_file.read_text().splitlines()[0])["outcome"]
    window, columns = outcome["window"], outcome["telemetry"]
    length = window["ended_s"] - window["began_s"]
    assert length >= 0.005 * len(outcome["block_s"])
    assert 0 < window["cpu_s"] < length
    assert columns["at_s"] == sorted(columns["at_s"])
    assert 0 <= columns["at_s"][0] <= columns["at_s"][-1] <= length
    assert len(columns["own_s"]) == len(columns["at_s"])
    assert columns["sampler_cpu_s"] > 0
    (row,) = rows(tmp_path)
    assert "energy_j: the fake backend uses none" in row["notes"]


@pytest.mark.real
@pytest.mark.skipif(not Path("/proc/stat").exists(), reason="who uses the CPUs is known on Linux only")
def test_a_busy_neighbour_is_noted(tmp_path: Path) -> None:
    neighbours = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in kernel.allowed_cpus()]
    try:
        accelbench(*DAWDLING, "1", cwd=tmp_path)
    finally:
        for neighbour in neighbours:
            neighbour.kill()
            neighbour.wait()
    (row,) = rows(tmp_path)
    assert row["status"] == "ok"
    assert [note for note in row["notes"] if note.startswith("contended: other processes used ")]
