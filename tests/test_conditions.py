"""Contention, throttling and energy of measurements, from exact telemetry."""

import json
from dataclasses import replace
from typing import Any

import msgspec
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from benchbench.machine import conditions
from benchbench.model.measurement import Measurement, Telemetry, Window
from benchbench.model.note import NoteKind, note
from tests.factories import a_case, a_failure, a_measurement, a_record, a_telemetry, a_watched
from tests.test_architecture import ROOT

SAMPLES = 11


def rising(total: float) -> tuple[float, ...]:
    """A counter that reaches `total` at the last sample, a second after the first."""
    return tuple(total * number / (SAMPLES - 1) for number in range(SAMPLES))


def with_telemetry(**telemetry: Any) -> Measurement:
    return a_watched(a_telemetry(**telemetry))


def notes_of(*outcomes: Measurement) -> list[str]:
    return [note.text for note in conditions.condition_notes(outcomes)]


SHORT = a_watched(a_telemetry(at_s=(0.125, 0.375), busy_s=(0.0, 0.5), own_s=(0.0, 0.0)), 0.4)


@pytest.mark.parametrize(
    ("rounds", "cores"),
    [
        ([with_telemetry(busy_s=rising(1.9), own_s=rising(0.1))], 0.3),  # the case uses 1.5 CPUs
        ([with_telemetry(busy_s=rising(1.4))], 0.0),  # clock ticks below the case's time
        ([with_telemetry(busy_s=rising(1.5)), with_telemetry(busy_s=rising(2.3))], 0.4),
        ([SHORT], None),  # less than half a second in all
        ([SHORT, SHORT], 0.5),
    ],
)
def test_remaining_cpu_time_is_attributed_to_others(rounds: list[Measurement], cores: float | None) -> None:
    assert conditions.other_cores(rounds) == (cores if cores is None else pytest.approx(cores))


@pytest.mark.parametrize(
    "outcome",
    [
        a_measurement(),
        a_measurement(telemetry=a_telemetry()),
        with_telemetry(busy_s=()),
        with_telemetry(own_s=()),
        a_watched(Telemetry(cpus=2)),
        a_watched(a_telemetry(at_s=(0.1,), busy_s=(0.0,), own_s=(0.0,)), 0.0),
    ],
    ids=["nothing", "no window", "no CPU times", "no own time", "no sample", "one sample"],
)
def test_a_case_without_telemetry_is_not_judged(outcome: Measurement) -> None:
    assert conditions.other_cores([outcome]) is None
    assert notes_of(outcome) == []


CAUSES = (0x04,) + (0x24,) * 4 + (0x20,) * 6


@pytest.mark.parametrize(
    ("telemetry", "notes"),
    [
        ({"busy_s": rising(1.59)}, []),  # a tenth of a core, and a fiftieth of many
        ({"busy_s": rising(1.61)}, ["contended: other processes used 0.1 of a core"]),
        ({"cpus": 64, "busy_s": rising(2.7)}, []),
        ({"cpus": 64, "busy_s": rising(2.8)}, ["contended: other processes used 1.3 cores"]),
        ({"steal_s": rising(0.1)}, []),
        ({"steal_s": rising(0.8)}, ["contended: the hypervisor withheld 0.8 of a core"]),
        ({"gpu_processes": (1,) * SAMPLES}, []),  # the case itself
        (
            {"gpu_processes": (1,) * (SAMPLES - 1) + (3,)},
            ["contended: up to 3 processes computed on the GPU at once"],
        ),
        ({"waited_s": rising(0.01)}, []),
        ({"waited_s": rising(0.25)}, ["short of memory: tasks waited 25.0 % of the time"]),
        ({"reasons": CAUSES}, ["throttled: 100 % of 11 samples (thermal slowdown, power cap)"]),
    ],
)
def test_a_disturbance_above_its_threshold_is_noted(telemetry: dict[str, Any], notes: list[str]) -> None:
    assert notes_of(with_telemetry(**telemetry)) == notes
    missing = note(NoteKind.NOT_SAMPLED, reason="no NVML: there is no NVIDIA driver")
    blind = with_telemetry(**telemetry, notes=(missing,))
    assert notes_of(blind, blind).count(missing.text) == 1


@pytest.mark.parametrize(
    ("reasons", "causes"),
    [
        (0x00, ()),
        (0x01, ()),  # idle
        (0x02, ()),  # clock set by the user
        (0x04, ("power cap",)),
        (0x08, ("hardware slowdown",)),
        (0x20, ("thermal slowdown",)),
        (0x40, ("thermal slowdown",)),
        (0x80, ("power brake",)),
        (0x64, ("power cap", "thermal slowdown")),
    ],
)
def test_a_sample_is_marked_with_the_causes_of_throttling(reasons: int, causes: tuple[str, ...]) -> None:
    telemetry = a_telemetry(reasons=(0,) * (SAMPLES - 1) + (reasons,))
    marks = conditions.throttled_samples(telemetry)
    assert marks == [frozenset()] * (SAMPLES - 1) + [frozenset(causes)]


def test_a_clock_below_three_quarters_of_the_usual_is_marked() -> None:
    telemetry = a_telemetry(sm_mhz=(1500,) * (SAMPLES - 1) + (1499,))
    assert conditions.throttled_samples(telemetry, 2000)[-2:] == [frozenset(), frozenset({"low SM clock"})]
    assert not any(conditions.throttled_samples(telemetry))


@pytest.mark.parametrize(
    ("stopped_s", "contended"), [(0.0, False), (0.019, False), (0.021, True), (1.0, True)]
)
def test_a_quota_that_throttles_a_hundredth_of_the_time_is_noted(stopped_s: float, contended: bool) -> None:
    """The limit of two CPUs in a second between the first sample and the last."""
    notes = conditions.contended([throttled(stopped_s)])
    assert [item.kind for item in notes] == [NoteKind.QUOTA] * contended
    if stopped_s == 1.0:
        assert notes[0].text.startswith("contended: the CPU quota stopped it 50.0 % of the time")


def throttled(stopped_s: float, **over: Any) -> Measurement:
    return a_watched(a_telemetry(throttled_s=rising(stopped_s)), **over)


def test_the_step_time_of_a_throttled_case_includes_the_pauses() -> None:
    blocks = (0.001,) * 49 + (0.051,)  # half a CPU: fifty milliseconds in a hundred
    unthrottled, stopped = (throttled(stopped_s, block_s=blocks, iterations=1) for stopped_s in (0.0, 1.0))
    assert conditions.step_s(unthrottled) == 0.001
    assert conditions.step_s(stopped) == pytest.approx(0.002)
    assert conditions.step_s(stopped) * 50 == pytest.approx(sum(blocks))


@pytest.mark.parametrize(("last", "is_noted"), [(1.24, False), (1.26, True), (0.7, True)])
def test_a_mean_far_from_the_median_is_noted(last: float, is_noted: bool) -> None:
    notes = conditions.mean_notes([a_watched(block_s=(1.0, 1.0, 1.0, 1.0, last), iterations=1)] * 2)
    assert bool(notes) is is_noted
    if last > 1.25:
        assert notes[0].text == "the mean step took 1.05× the median, on which latency and rates are based"
    even = a_watched(block_s=(1.0,) * 5, iterations=1)
    assert conditions.mean_notes([a_watched(block_s=(1.0, 1.0, 1.0, 1.0, last), iterations=1), even]) == []


def marked(count: int) -> Measurement:
    """A measurement with ten samples, `count` of them under a power cap."""
    columns: dict[str, Any] = dict.fromkeys(("at_s", "busy_s", "own_s"), (0.0,) * 10)
    return with_telemetry(**columns, reasons=(4,) * count + (0,) * (10 - count))


@pytest.mark.parametrize(
    ("counts", "throttled"), [((1,), False), ((2,), True), ((2, 0), False), ((2, 1), True)]
)
def test_a_case_is_throttled_from_a_tenth_of_its_samples(counts: tuple[int, ...], throttled: bool) -> None:
    notes = notes_of(*(marked(count) for count in counts))
    share = f"{10 * sum(counts) / len(counts):.1f}"
    samples = 10 * len(counts)
    limit = f"at the GPU's power limit in {share} % of {samples} samples, as large products usually are: "
    assert notes == ([f"{limit}compare only with the same limit"] if throttled else [])


def test_the_usual_clock_is_each_devices_median() -> None:
    def record(device: str, *clocks: int) -> Any:
        return a_record(with_telemetry(sm_mhz=clocks), case=a_case(device=device))

    records = [
        record("cuda:0", 1000, 1000),
        record("cuda:0", 2000, 2000, 2000),
        record("cuda:1", 500),
        record("cpu"),
        a_record(a_measurement()),
        a_record(a_failure()),
    ]
    assert conditions.median_clocks_mhz(records) == {"cuda:0": 2000, "cuda:1": 500}


def energy(joules: tuple[float, ...], at_s: tuple[float, ...], length_s: float, **over: Any) -> float | str:
    telemetry = a_telemetry(at_s=at_s, busy_s=(), own_s=(), energy_j=joules, **over)
    return conditions.energy_j(a_watched(telemetry, length_s, iterations=10, block_s=(0.2,) * 4))


def test_a_steps_energy_is_mean_power_over_the_window_by_its_steps() -> None:
    assert energy((0.0, 70.0, 600.0), (0.5, 1.0, 3.5), 4.0) == pytest.approx(600 / 3 * 4 / 40)


@pytest.mark.parametrize(
    ("joules", "at_s", "length_s", "reason"),
    [
        ((0.0, 600.0), (0.1, 2.0), 2.2, "blocks were timed for 2.2 s, needs 2 s"),
        ((0.0,), (0.1,), 0.2, "blocks were timed for 0.2 s, needs 2 s"),
        ((0.0, 0.0), (0.0, 3.0), 3.0, "the counter did not move"),
        ((), (), 9.0, "this machine shows no RAPL counters"),
    ],
)
def test_energy_without_two_seconds_of_a_counter_has_a_reason(
    joules: tuple[float, ...], at_s: tuple[float, ...], length_s: float, reason: str
) -> None:
    assert energy(joules, at_s, length_s) == reason


@given(
    joules=st.lists(st.just(0.0) | st.floats(1e-6, 1e6), max_size=5).map(sorted),
    gaps=st.lists(st.floats(0, 10), max_size=5),
    length=st.floats(0, 100),
)
def test_energy_is_positive_or_has_a_reason(joules: list[float], gaps: list[float], length: float) -> None:
    count = min(len(joules), len(gaps))
    at_s = tuple(sum(gaps[: number + 1]) for number in range(count))
    energy_or_reason = energy(tuple(joules[:count]), at_s, max(length, sum(gaps)))
    assert energy_or_reason if isinstance(energy_or_reason, str) else energy_or_reason > 0


# Simulation of a machine without other programs: ticks of /proc/stat, the sampler's cost, and housekeeping


def with_other_load(process: Measurement, cores: float) -> Measurement:
    telemetry = process.telemetry
    assert telemetry
    busy = np.add(telemetry.busy_s, cores * np.subtract(telemetry.at_s, telemetry.at_s[0]))
    return replace(process, telemetry=replace(telemetry, busy_s=tuple(busy)))


def test_recorded_runs_are_contended_only_with_a_neighbour() -> None:
    """Runs on two cores of a virtual machine without other programs (`studies/quiet_runs.py`)."""
    for processes in json.loads((ROOT / "tests/data/quiet_runs.json").read_bytes()):
        parts = [
            (msgspec.convert(process["window"], Window), msgspec.convert(process["telemetry"], Telemetry))
            for process in processes
        ]
        run = [a_measurement(window=window, telemetry=telemetry) for window, telemetry in parts]
        assert conditions.contended(run) == []
        assert conditions.other_cores(run) is not None
        noisy = [with_other_load(process, 0.5) for process in run]
        assert NoteKind.OTHER_PROCESSES in [note.kind for note in conditions.contended(noisy)]
