"""Spins of known length on given clocks, and the results of the self-test for a pipeline."""

import json
import re
import statistics
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, replace
from itertools import islice, repeat
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from benchbench import format as fmt
from benchbench.backends.torch import CudaSession
from benchbench.diagnosis import selftest
from benchbench.diagnosis.selftest import HOST, Trial, run_trials
from benchbench.documents.doctor import selftest_document
from benchbench.errors import Unsupported
from benchbench.launch.transport import Answer, JobEnd
from benchbench.model.case import Dtype
from benchbench.model.device import Device, DeviceClass
from benchbench.model.measurement import Batch
from benchbench.timing import spin
from benchbench.timing.policy import POLICIES
from benchbench.timing.spin import (
    Shape,
    Spin,
    durations,
    measure_on_device,
    measure_on_host,
    measure_spin,
    seconds_per_cycle,
)
from tests.factories import a_probe
from tests.program import accelbench, start_accelbench
from tests.rendering import rendered

QUICK = replace(POLICIES["quick"], max_blocks=200)
ALL = {trial.shape.kind: trial.shape for trial in HOST}


class Time:
    """A clock that each reading moves by 50 ns, and a device whose cycles last 1 ns and launches 5 µs."""

    def __init__(self, tick_s: float = 5e-8, cycle_s: float = 1e-9, drift: float = 0.0) -> None:
        self.now_s, self.tick_s, self.cycle_s, self.drift = 0.0, tick_s, cycle_s, drift
        self.free_s = 0.0  # when the device will be idle

    def __call__(self) -> float:
        self.now_s += self.tick_s
        return self.now_s

    def spin(self, cycles: int) -> None:
        self.now_s += 5e-6
        self.free_s = max(self.free_s, self.now_s) + cycles * self.cycle_s
        self.cycle_s *= 1 + self.drift

    def wait(self, output: Any) -> None:
        self.now_s = max(self.now_s, self.free_s)


class Timer:
    """The timer of the pipeline, on virtual time; `scale` is its error."""

    name = "virtual"
    batch_s = 0.0
    batches: Sequence[Batch] = ()

    def __init__(self, clock: Time, scale: float = 1.0) -> None:
        self._clock, self._scale = clock, scale

    def now(self) -> float:
        return self._clock.now_s

    def no_op(self) -> None:
        pass

    def blocks(self, step: Callable[[], Any], iterations: int, count: int) -> list[float]:
        return [self._block(step, iterations) for _ in range(count)]

    def _block(self, step: Callable[[], Any], iterations: int) -> float:
        start = self._clock.now_s
        for _ in range(iterations):
            step()
        self._clock.wait(None)
        return self._scale * (self._clock.now_s - start)


@pytest.mark.parametrize("shape", [trial.shape for trial in HOST if trial.of in ("median", "mean")])
def test_durations_are_reproducible_with_the_stated_mean_and_spread(shape: Shape) -> None:
    sequence = list(islice(durations(shape), 20_000))
    assert sequence == list(islice(durations(shape), 20_000))
    assert statistics.fmean(sequence) == pytest.approx(shape.mean_s, rel=0.01)
    assert statistics.stdev(sequence) == pytest.approx(shape.sd_s, rel=0.03, abs=1e-12)


def test_a_spin_lasts_at_least_as_long_as_requested_and_records_it() -> None:
    clock = Time()
    step = Spin(iter([1e-3, 2e-3, 3e-3]), clock)
    for length_s in (1e-3, 2e-3, 3e-3):
        before = clock.now_s
        step()
        assert length_s <= step.spent_s[-1] <= clock.now_s - before
    assert step.blocks_s(1, 2) == step.spent_s[1:]
    assert step.blocks_s(3, 1) == [pytest.approx(6e-3, rel=1e-3)]


def test_lost_cpu_time_during_a_spin_counts_as_true_time() -> None:
    readings = iter([0.0, 0.5, 7.0])  # the process was not scheduled until 7
    step = Spin(repeat(1.0), lambda: next(readings))
    step()
    assert step.spent_s == [7.0]


@pytest.mark.real
@pytest.mark.parametrize("shape", [trial.shape for trial in HOST if trial.of != "sd"])
def test_the_true_time_of_each_host_block_is_known(shape: Shape) -> None:
    clock = Time(tick_s=shape.seconds / 200)
    samples, true_s, drift = measure_on_host(shape, QUICK, Timer(clock), clock)
    assert len(true_s) == len(samples.block_s)
    for block_s, true in zip(samples.block_s, true_s, strict=True):
        assert true < block_s < true + samples.iterations * 2 * clock.tick_s
    assert drift == 0.0


def test_device_cycles_are_measured_by_differences_without_launching() -> None:
    clock = Time()
    assert seconds_per_cycle(clock, clock) == pytest.approx(1e-9, rel=1e-3)


def test_a_device_that_does_not_spin_is_refused() -> None:
    with pytest.raises(Unsupported, match="returns at once"):
        seconds_per_cycle(Time(cycle_s=0.0), Time())


@pytest.mark.parametrize("seconds", [1e-4, 1e-3, 1e-2])
def test_the_true_time_on_a_device_comes_from_another_clock(seconds: float) -> None:
    clock = Time()
    samples, true_s, drift = measure_on_device(seconds, QUICK, Timer(clock), clock, clock)
    assert true_s[0] / samples.iterations == pytest.approx(seconds, rel=2e-3)
    assert samples.block_s[0] == pytest.approx(true_s[0], abs=1e-5)
    assert drift < 1e-3


@pytest.mark.parametrize("device", [None, "sim:0"])
def test_a_worker_returns_measured_and_true_seconds_of_each_block(
    monkeypatch: pytest.MonkeyPatch, device: str | None
) -> None:
    clock, opened = Time(tick_s=1e-6), list[tuple[Any, ...]]()
    session = SimpleNamespace(spins=True, spin=clock.spin, wait=clock.wait, timer=lambda: Timer(clock))

    def open_session(*arguments: Any) -> Any:
        opened.append(arguments)
        return session

    monkeypatch.setattr(spin, "raw_clock", lambda: clock)
    monkeypatch.setattr(spin, "HostTimer", lambda _: Timer(clock))
    backend: Any = SimpleNamespace(open=open_session, modes=("eager", "compile"))
    job = {"shape": asdict(Shape(seconds=1e-3)), "policy": asdict(QUICK), "device": device, "threads": 3}
    answer = measure_spin(backend, job)
    assert answer.keys() == {"iterations", "block_s", "true_block_s", "drift"}
    assert len(answer["block_s"]) == len(answer["true_block_s"]) > 1
    assert answer["block_s"] == pytest.approx(answer["true_block_s"], rel=0.01)
    assert answer["true_block_s"][0] == pytest.approx(1e-3 * answer["iterations"], rel=0.01)
    assert answer["drift"] < 1e-3
    assert opened == ([("sim:0", Dtype.FLOAT32, "eager", 3)] if device else [])
    session.spins = False
    if device:
        with pytest.raises(Unsupported):
            measure_spin(backend, job)


def test_a_device_reports_the_drift_of_its_clock() -> None:
    clock = Time(drift=1e-5)
    *_, drift = measure_on_device(1e-3, QUICK, Timer(clock), clock, clock)
    assert drift > 5e-4


def test_cuda_spins_with_the_sleep_kernel_of_torch(monkeypatch: pytest.MonkeyPatch) -> None:
    slept: list[int] = []
    fake = SimpleNamespace(cuda=SimpleNamespace(_sleep=slept.append))
    monkeypatch.setitem(sys.modules, "torch", fake)
    session = object.__new__(CudaSession)  # opening one needs a device
    session.spin(1000)
    assert (session.spins, slept) == (True, [1000])


def pipeline(scale: float = 1.0, noise: Callable[[list[float]], list[float]] = list) -> selftest.Ask:
    """A worker that measures on virtual time, off by the factor `scale`; `noise` changes the blocks."""

    def ask(job: dict[str, Any]) -> Answer:
        clock = Time(
            tick_s=max(job["shape"]["seconds"] / 1000, 2e-7)
        )  # shorter ones would take seconds of real time
        samples, true_s, drift = measure_on_host(Shape(**job["shape"]), QUICK, Timer(clock, scale), clock)
        blocks = noise(list(samples.block_s))
        return Answer(
            {"iterations": samples.iterations, "block_s": blocks, "true_block_s": true_s, "drift": drift}
        )

    return ask


@pytest.mark.real
def test_an_honest_pipeline_passes_every_trial_at_once() -> None:
    results = run_trials("host", None, HOST, pipeline())
    assert len(results) == len(HOST)
    assert all(result.passed and result.attempts == 1 for result in results)
    assert [trial.truth_s for trial in results[:5]] == pytest.approx([1e-5, 1e-4, 1e-3, 1e-2, 1e-1], rel=1e-3)
    assert results[5].truth_s == pytest.approx(results[5].asked_s, rel=0.1)


@pytest.mark.real
@pytest.mark.parametrize("scale", [0.97, 1.03])
def test_a_biased_pipeline_fails_every_attempt(scale: float) -> None:
    trials = [trial for trial in HOST if trial.of == "median" and trial.shape.seconds >= 1e-4]
    medians = run_trials("host", None, trials, pipeline(scale))
    assert not any(median.passed for median in medians)
    assert {median.attempts for median in medians} == {selftest.ATTEMPTS}
    assert medians[-1].error == pytest.approx(scale - 1, abs=2e-3)


def test_a_single_interruption_is_forgiven() -> None:
    hits = iter([1.0])

    def interrupted(blocks: list[float]) -> list[float]:
        return [blocks[0] + next(hits, 0.0), *blocks[1:]]

    trials = [trial for trial in HOST if trial.shape == ALL["bimodal"]]
    results = run_trials("host", None, trials, pipeline(noise=interrupted))
    assert [(result.of, result.passed, result.attempts) for result in results] == [
        ("mean", True, 2),
        ("sd", True, 2),
    ]


@pytest.mark.parametrize(
    ("answer", "note"),
    [
        (Answer(None, JobEnd.CRASHED, "killed by signal 11"), "killed by signal 11"),
        (
            Answer({"outcome": {"message": "it has no kernel that only spins"}}),
            "it has no kernel that only spins",
        ),
    ],
)
def test_a_trial_without_an_answer_fails_with_the_reason(answer: Answer, note: str) -> None:
    (results,) = run_trials("host", None, HOST[:1], lambda job: answer)
    assert (results.passed, results.note, results.measured_s) == (False, note, None)
    assert note in rendered(selftest_document([results], []))


def test_a_devices_drift_widens_its_limit() -> None:
    reply = {"iterations": 1, "block_s": [1.04] * 3, "true_block_s": [1.0] * 3}
    trial = Trial(Shape(seconds=1.0), "median", 0.01)
    (off,) = run_trials("gpu", "cuda:0", [trial], lambda job: Answer(reply | {"drift": 0.01}))
    (unsure,) = run_trials("gpu", "cuda:0", [trial], lambda job: Answer(reply | {"drift": 0.035}))
    assert (off.passed, unsure.passed) == (False, True)
    assert unsure.note == "the device's clock moved by 3.50 %"


class Devices:
    """A pool of a target with a GPU, one without, and one with virtual devices."""

    def __init__(self) -> None:
        self.jobs: list[tuple[str | None, Any]] = []

    def probe(self) -> list[Any]:
        gpu = Device(name="cuda:0", device_class=DeviceClass.ACCELERATOR, model="GPU")
        return [
            a_probe("torch", devices=(gpu,)),
            a_probe("jax", missing=(("gpu", "a CPU build"),)),
            a_probe("fake", devices=(replace(gpu, name="sim:0"),)),
        ]

    def run_job(self, job: dict[str, Any], target: str | None = None) -> Answer:
        self.jobs.append((target, job["device"]))
        return pipeline()(job)


@pytest.mark.real
def test_every_accelerator_is_tried_and_its_absence_noted() -> None:
    pool: Any = Devices()
    results, notes = selftest.on_devices(pool)
    assert {result.where for result in results} == {"torch cuda:0"}
    assert pool.jobs == [("torch", "cuda:0")] * 3
    assert notes == ["jax has no accelerator: a CPU build", selftest.VIRTUAL.format("fake")]


@pytest.mark.real
def test_a_worker_spins_on_the_host_but_not_on_devices_without_a_kernel() -> None:
    from benchbench.backends.fake import Fake
    from benchbench.worker import jobs

    job = selftest.job_of(Shape(seconds=1e-4), None) | {"threads": 1}
    reply = jobs.run_job(Fake(), job)
    assert len(reply["block_s"]) == len(reply["true_block_s"]) > 0
    refused = jobs.run_job(Fake(), job | {"device": "sim:0"})
    assert refused["outcome"]["message"] == "it has no kernel that only spins"


def test_the_true_time_uses_another_clock_than_the_pipeline() -> None:
    raw = time.clock_gettime(time.CLOCK_MONOTONIC_RAW)
    assert raw <= spin.raw_clock()() <= time.clock_gettime(time.CLOCK_MONOTONIC_RAW)


@pytest.mark.real
def test_the_selftest_runs_prints_and_fails_when_a_trial_does(tmp_path: Path) -> None:
    process = start_accelbench("doctor", "--selftest", "--format", "json", cwd=tmp_path)
    output, _ = process.communicate(timeout=120)
    results = json.loads(output)["results"]
    assert [result["of"] for result in results] == [trial.of for trial in HOST]
    assert all(result["truth_s"] >= result["asked_s"] * 0.9 for result in results if result["of"] == "median")
    assert process.returncode == (0 if all(result["passed"] for result in results) else 4)


DOCUMENT = (Path(__file__).parent.parent / "docs/doctor.md").read_text()


def test_the_documented_example_matches_the_output() -> None:
    results = [
        selftest.Result(
            where="host",
            spin=trial.name,
            of=trial.of,
            asked_s=trial.asked_s,
            truth_s=truth,
            measured_s=truth * (1 + error),
            error=error,
            limit=trial.limit,
            passed=True,
            attempts=1,
        )
        for trial, truth, error in [(HOST[2], 1.001e-3, 1e-3), (HOST[-1], 1.33e-3, 1.64e-3)]
    ]
    assert f"```\n{rendered(selftest_document(results, []))}```" in DOCUMENT


def test_the_document_has_every_limit() -> None:
    limits_by_spin = dict(re.findall(r"^\| ([^|]+) \| median \| ([0-9.]+) %", DOCUMENT, re.MULTILINE))
    for suffix, trials in (("", HOST[:5]), (" on a GPU", selftest.DEVICE)):
        for trial in trials:
            name = fmt.seconds(trial.shape.seconds).replace(".00", "").replace(".0", "")
            (limit,) = [
                limit
                for spins, limit in limits_by_spin.items()
                if name in spins and spins.endswith("s" + suffix)
            ]
            assert float(limit) == pytest.approx(100 * trial.limit)


def test_modes_exclude_each_other(tmp_path: Path) -> None:
    process = accelbench("doctor", "--selftest", "--ceilings", cwd=tmp_path, code=2)
    assert "exclude each other" in process.stderr
    process = accelbench("doctor", "--selftest", "--dtype", "float32", cwd=tmp_path, code=2)
    assert "It is for --ceilings" in process.stderr
