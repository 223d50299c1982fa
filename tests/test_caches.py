"""What a step finds in the caches, on the simulated device, where every number is exact."""

import dataclasses
from collections.abc import Sequence
from itertools import islice
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from benchbench.analyse.rows import launch_share
from benchbench.backends.base import HostTimer, Session
from benchbench.backends.fake import CACHE_BYTES, LAUNCH_S, MEMORY_BYTES_S, STEP_BYTES, Fake
from benchbench.errors import Unsupported
from benchbench.machine.conditions import energy_j
from benchbench.model.case import Cache, Dtype, Phase
from benchbench.model.device import Device, DeviceClass
from benchbench.model.measurement import Measurement
from benchbench.model.status import Status
from benchbench.plan.suite import parse_suite
from benchbench.stats import median
from benchbench.store.codec import decode, to_json
from benchbench.timing.policy import POLICIES
from benchbench.worker import case as timed
from benchbench.worker import jobs, program
from tests.factories import a_case, a_measurement, a_record, a_watched
from tests.program import accelbench, rows

SIZE = 256  # two operands of 256 KiB
OPERANDS = 2 * 4 * SIZE * SIZE
STEP_S = 2 * SIZE**3 / 1e12
FLUSH_S = 2 * CACHE_BYTES / MEMORY_BYTES_S


def job(cache: Cache, size: int = SIZE, **over: Any) -> dict[str, Any]:
    case = a_case(backend="fake", device="sim:0", cache=cache, params={"m": size, "n": size, "k": size})
    policy = dataclasses.asdict(POLICIES["quick"])
    base = {"kind": "measure", "case": dataclasses.asdict(case), "threads": 1, "policy": policy}
    return base | {"warm": False, "reference": None, "verified": None} | over


def measured(cache: Cache, size: int = SIZE) -> Measurement:
    return timed.measure_case(Fake(), job(cache, size), {})


def step_s(found: Measurement) -> float:
    return median(found.block_s) / found.iterations


def test_cold_steps_fetch_all_they_touch_rotating_ones_their_inputs_and_hot_ones_nothing() -> None:
    hot, rotating, cold = (step_s(measured(cache)) for cache in (Cache.HOT, Cache.ROTATE, Cache.COLD))
    assert hot == pytest.approx(STEP_S)
    assert rotating == pytest.approx(STEP_S + OPERANDS / MEMORY_BYTES_S)
    assert cold == pytest.approx(STEP_S + (OPERANDS + STEP_BYTES) / MEMORY_BYTES_S)


def test_a_cold_block_is_one_step_and_clearing_is_not_in_it() -> None:
    found = measured(Cache.COLD)
    assert found.iterations == 1
    assert found.cleared
    assert max(found.block_s) < FLUSH_S  # clearing alone takes longer
    assert found.batches[0].device_s == pytest.approx(FLUSH_S + found.block_s[0])


def test_steps_too_small_for_the_device_are_launch_bound_unless_it_is_busy_clearing() -> None:
    tiny = 2 * 16**3 / 1e12
    assert tiny < LAUNCH_S
    hot, cold = measured(Cache.HOT, 16), measured(Cache.COLD, 16)
    assert step_s(hot) == pytest.approx(LAUNCH_S)
    assert launch_share(hot) == pytest.approx(1.0)
    assert (launch_share(cold) or 0) < 0.01
    assert step_s(cold) == pytest.approx(tiny + (2 * 4 * 16**2 + STEP_BYTES) / MEMORY_BYTES_S)


@pytest.mark.real
def test_each_way_is_a_case_of_its_own_with_its_own_name_and_row(tmp_path: Path) -> None:
    accelbench(
        "run", "-b", "fake", "-w", "gemm", "-p", "m=256", "-p", "n=256", "-p", "k=256", "--quick",
        "--cache", "hot,cold,rotate", cwd=tmp_path,
    )  # fmt: skip
    found = {row["cache"]: row for row in rows(tmp_path)}
    work = "gemm(m=256,n=256,k=256)/float32/eager"
    assert [row["case"] for row in found.values()] == [
        f"{work}@fake:sim:0",
        f"{work}/cold@fake:sim:0",
        f"{work}/rotate@fake:sim:0",
    ]
    assert found["hot"]["latency_s"] < found["rotate"]["latency_s"] < found["cold"]["latency_s"]
    assert "memory peaks include 64.0 MiB that clear the caches" in found["cold"]["notes"]
    assert "inputs rotate among 129 copies; memory peaks include their 64.5 MiB" in found["rotate"]["notes"]
    text = accelbench("report", cwd=tmp_path).stdout
    assert "float32 · cold caches · sim:0\n" in text
    assert "float32 · rotating inputs · sim:0\n" in text


@pytest.mark.real
def test_hot_and_cold_are_compared_only_where_they_are_the_two_sides(tmp_path: Path) -> None:
    options = ("-b", "fake", "-d", "cpu", "-w", "gemm", "--quick")
    for cache in ("hot", "cold"):
        accelbench("run", *options, "--cache", cache, cwd=tmp_path)
    told = accelbench("compare", "latest~1", "latest", cwd=tmp_path).stdout
    assert "gone" in told
    assert "new" in told
    sides = accelbench("compare", "--ab", "cache=hot", "cache=cold", *options, cwd=tmp_path).stdout
    assert "/cold@fake:cpu" in sides


def test_a_record_of_before_has_hot_caches_and_no_batches() -> None:
    record = a_record(a_measurement())
    text = to_json(record).replace(b',"cache":"hot"', b"").replace(b',"batches":[],"cleared":false', b"")
    assert b"cache" not in text.replace(b"compile_cache", b"")
    assert decode(text) == record


def test_an_unknown_way_is_an_error_that_lists_those_there_are(tmp_path: Path) -> None:
    done = accelbench("run", "-b", "fake", "--cache", "tepid", cwd=tmp_path, code=2)
    assert "hot, cold, rotate" in done.stderr.replace("\n", " ")
    from benchbench.errors import SuiteError

    entry = {"workload": "gemm", "cache": ["tepid"]}
    with pytest.raises(SuiteError) as error:
        parse_suite({"description": "x", "cases": [entry]}, Path("x.toml"))
    assert "hot, cold, rotate" in error.value.hint


def test_energy_of_cold_steps_is_not_told_since_clearing_is_in_it() -> None:
    assert energy_j(a_watched(cleared=True)) == "clearing the caches would be in it"


def test_a_profile_of_cold_steps_is_refused() -> None:
    answer = jobs.run_job(Fake(), job(Cache.COLD, kind="profile", iterations=1, count=1, folder="."))
    assert answer["outcome"]["status"] == Status.UNSUPPORTED


@pytest.mark.parametrize(
    ("cache", "phase", "why"),
    [
        (Cache.ROTATE, Phase.TRAIN, "do not rotate"),
        (Cache.COLD, Phase.TRAIN, ""),
        (Cache.ROTATE, Phase.FORWARD, ""),
    ],
)
def test_training_may_be_cold_and_does_not_rotate(cache: Cache, phase: Phase, why: str) -> None:
    device = Device(name="cpu", device_class=DeviceClass.CPU, model="")
    found = Fake().refuses(device, Dtype.FLOAT32, "eager", phase, cache)
    assert (why in found) if why else not found


class Sized:
    """A session with a cache of 1000 bytes whose inputs are their sizes."""

    def cache_bytes(self) -> int:
        return 1000

    def nbytes(self, array: int) -> int:
        return array


def turning(*inputs: int) -> tuple[Sequence[tuple[int, ...]], str]:
    found, note = program.rotate_inputs(
        Cache.ROTATE, cast(Session, Sized()), inputs, lambda: tuple(-x for x in inputs)
    )
    return list(islice(found, 6)), note.text if note else ""


def test_there_are_as_many_copies_as_exceed_twice_the_cache_and_each_has_its_turn() -> None:
    found, _ = turning(400, 200)
    first, again = (400, 200), (-400, -200)
    assert found == [first, again, again, again, first, again]


def test_inputs_that_fit_no_cache_are_not_copied() -> None:
    found, note = turning(1500, 501)
    assert found == [(1500, 501)] * 6
    assert "one copy" in note


def test_inputs_that_are_nothing_or_next_to_it_cannot_rotate() -> None:
    for inputs in ((), (0,)):
        with pytest.raises(Unsupported, match="no inputs"):
            turning(*inputs)
    with pytest.raises(Unsupported, match="no inputs"):
        program.rotate_inputs(Cache.ROTATE, cast(Session, Sized()), (), tuple)
    session = cast(Session, SimpleNamespace(cache_bytes=lambda: 2**24, nbytes=lambda array: array))
    with pytest.raises(Unsupported, match="copies"):
        program.rotate_inputs(Cache.ROTATE, session, (64,), tuple)


def test_on_the_host_caches_are_cleared_and_that_is_waited_for_before_the_clock_starts() -> None:
    diary: list[str] = []

    def clock() -> float:
        diary.append("clock")
        return 0.0

    def noted(what: str) -> Any:
        def note() -> str:
            diary.append(what)
            return what

        return note

    timer = HostTimer(lambda output: diary.append(f"{output} done"), before=noted("flush"), clock=clock)
    timer.blocks(noted("step"), 1, 2)
    assert diary == ["flush", "flush done", "clock", "step", "step done", "clock"] * 2
