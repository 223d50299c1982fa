"""Hot, cold and rotating caches on the simulated device, whose numbers are exact."""

from collections.abc import Sequence
from itertools import islice
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from benchbench.analyse.rows import launch_share
from benchbench.backends.base import HostTimer, Session
from benchbench.backends.fake import CACHE_BYTES, LAUNCH_S, MEMORY_BYTES_S, STEP_BYTES, Fake
from benchbench.errors import SuiteError, Unsupported
from benchbench.machine.conditions import energy_j
from benchbench.model.case import Cache, Dtype, Phase, Status
from benchbench.model.measurement import Measurement
from benchbench.plan.suite import parse_suite
from benchbench.stats import median
from benchbench.store.codec import decode, to_json
from benchbench.worker import case as timed
from benchbench.worker import jobs, program
from tests.factories import CPU, a_case, a_job, a_measurement, a_record, a_watched
from tests.program import accelbench, rows

SIZE = 256  # two operands of 256 KiB
OPERANDS = 2 * 4 * SIZE * SIZE
STEP_S = 2 * SIZE**3 / 1e12
FLUSH_S = 2 * CACHE_BYTES / MEMORY_BYTES_S


def job(cache: Cache, size: int = SIZE, **over: Any) -> dict[str, Any]:
    case = a_case(backend="fake", device="sim:0", cache=cache, params={"m": size, "n": size, "k": size})
    return a_job(case, **over)


def measured(cache: Cache, size: int = SIZE) -> Measurement:
    return timed.measure_case(Fake(), job(cache, size), {})


def step_s(measurement: Measurement) -> float:
    return median(measurement.block_s) / measurement.iterations


def test_cold_steps_fetch_everything_rotating_steps_their_inputs_and_hot_steps_nothing() -> None:
    hot, rotating, cold = (step_s(measured(cache)) for cache in (Cache.HOT, Cache.ROTATE, Cache.COLD))
    assert hot == pytest.approx(STEP_S)
    assert rotating == pytest.approx(STEP_S + OPERANDS / MEMORY_BYTES_S)
    assert cold == pytest.approx(STEP_S + (OPERANDS + STEP_BYTES) / MEMORY_BYTES_S)


def test_a_cold_block_is_one_step_without_clearing() -> None:
    measurement = measured(Cache.COLD)
    assert measurement.iterations == 1
    assert measurement.cleared
    assert max(measurement.block_s) < FLUSH_S  # clearing alone takes longer
    assert measurement.batches[0].device_s == pytest.approx(FLUSH_S + measurement.block_s[0])


def test_steps_too_small_for_the_device_are_launch_bound_unless_it_is_busy_clearing() -> None:
    tiny = 2 * 16**3 / 1e12
    assert tiny < LAUNCH_S
    hot, cold = measured(Cache.HOT, 16), measured(Cache.COLD, 16)
    assert step_s(hot) == pytest.approx(LAUNCH_S)
    assert launch_share(hot) == pytest.approx(1.0)
    assert (launch_share(cold) or 0) < 0.01
    assert step_s(cold) == pytest.approx(tiny + (2 * 4 * 16**2 + STEP_BYTES) / MEMORY_BYTES_S)


@pytest.mark.real
def test_each_cache_mode_is_a_separate_case(tmp_path: Path) -> None:
    accelbench(
        "run", "-b", "fake", "-w", "gemm", "-p", "m=256", "-p", "n=256", "-p", "k=256", "--quick",
        "--cache", "hot,cold,rotate", cwd=tmp_path,
    )  # fmt: skip
    row_of = {row["cache"]: row for row in rows(tmp_path)}
    work = "gemm(m=256,n=256,k=256)/float32/eager"
    assert [row["case"] for row in row_of.values()] == [
        f"{work}@fake:sim:0",
        f"{work}/cold@fake:sim:0",
        f"{work}/rotate@fake:sim:0",
    ]
    assert row_of["hot"]["latency_s"] < row_of["rotate"]["latency_s"] < row_of["cold"]["latency_s"]
    assert "memory peaks include 64.0 MiB that clear the caches" in row_of["cold"]["notes"]
    assert "inputs rotate among 129 copies; memory peaks include their 64.5 MiB" in row_of["rotate"]["notes"]
    text = accelbench("report", cwd=tmp_path).stdout
    assert "float32 · cold caches · sim:0\n" in text
    assert "float32 · rotating inputs · sim:0\n" in text


def test_an_old_record_has_hot_caches_and_no_batches() -> None:
    record = a_record(a_measurement())
    text = to_json(record).replace(b',"cache":"hot"', b"").replace(b',"batches":[],"cleared":false', b"")
    assert b"cache" not in text.replace(b"compile_cache", b"")
    assert decode(text) == record


def test_an_unknown_cache_mode_is_an_error(tmp_path: Path) -> None:
    process = accelbench("run", "-b", "fake", "--cache", "tepid", cwd=tmp_path, code=2)
    assert "hot, cold, rotate" in process.stderr.replace("\n", " ")
    entry = {"workload": "gemm", "cache": ["tepid"]}
    with pytest.raises(SuiteError) as error:
        parse_suite({"description": "x", "cases": [entry]}, Path("x.toml"))
    assert "hot, cold, rotate" in error.value.hint


def test_cold_steps_have_no_energy_since_it_would_include_clearing() -> None:
    assert energy_j(a_watched(cleared=True)) == "clearing the caches would be in it"


def test_a_profile_of_cold_steps_is_refused() -> None:
    answer = jobs.run_job(Fake(), job(Cache.COLD, kind="profile", iterations=1, count=1, folder="."))
    assert answer["outcome"]["status"] == Status.UNSUPPORTED


def test_training_can_be_cold_but_not_rotate() -> None:
    def refusal(cache: Cache, phase: Phase) -> str:
        return Fake().refuses(CPU, Dtype.FLOAT32, "eager", phase, cache)

    assert "do not rotate" in refusal(Cache.ROTATE, Phase.TRAIN)
    assert not refusal(Cache.COLD, Phase.TRAIN)
    assert not refusal(Cache.ROTATE, Phase.FORWARD)


def sized(cache_bytes: int) -> Session:
    """A session whose arrays are their numbers of bytes."""
    return cast(Session, SimpleNamespace(cache_bytes=lambda: cache_bytes, nbytes=lambda array: array))


def rotated(*inputs: int) -> tuple[Sequence[tuple[int, ...]], str]:
    inputs_in_turn, note = program.rotate_inputs(
        Cache.ROTATE, sized(1000), inputs, lambda: tuple(-x for x in inputs)
    )
    return list(islice(inputs_in_turn, 6)), note.text if note else ""


def test_copies_of_the_inputs_exceed_twice_the_cache() -> None:
    inputs, _ = rotated(400, 200)
    first, again = (400, 200), (-400, -200)
    assert inputs == [first, again, again, again, first, again]
    inputs, note = rotated(1500, 501)  # larger than twice the cache
    assert inputs == [(1500, 501)] * 6
    assert "one copy" in note


def test_empty_and_tiny_inputs_cannot_rotate() -> None:
    for inputs in ((), (0,)):
        with pytest.raises(Unsupported, match="no inputs"):
            rotated(*inputs)
    with pytest.raises(Unsupported, match="copies"):
        program.rotate_inputs(Cache.ROTATE, sized(2**24), (64,), tuple)


def test_the_host_clears_caches_and_waits_before_timing() -> None:
    diary: list[str] = []

    def clock() -> float:
        diary.append("clock")
        return 0.0

    def noted(name: str) -> Any:
        def note() -> str:
            diary.append(name)
            return name

        return note

    timer = HostTimer(lambda output: diary.append(f"{output} done"), before=noted("flush"), clock=clock)
    timer.blocks(noted("step"), 1, 2)
    assert diary == ["flush", "flush done", "clock", "step", "step done", "clock"] * 2
