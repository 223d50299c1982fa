"""Limits of stored values: the writer, the reader and the validator agree at every limit."""

import math
import random
import tempfile
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from benchbench.errors import CannotWrite
from benchbench.gate.baselines import encode_session
from benchbench.model.case import Case, Status
from benchbench.model.measurement import Batch, Failure, Measurement, combined
from benchbench.model.placement import Placement, Strategy
from benchbench.model.run import Record, RunInfo
from benchbench.reading import LARGEST
from benchbench.store import artifacts, codec, runs
from benchbench.store.validation import validate_path
from tests.factories import (
    a_case,
    a_cost,
    a_digest,
    a_failure,
    a_measurement,
    a_profile,
    a_profiled,
    a_record,
    a_run_info,
    a_watched,
    an_operator,
)

FAILED = a_record(a_failure())


def padded(record: Record, size: int) -> Record:
    """The record of a failure whose log makes its line this long."""
    assert isinstance(record.outcome, Failure)
    more = size - len(codec.encode(record))
    return replace(record, outcome=replace(record.outcome, log="x" * more))


def with_values(record: Record, count: int) -> Record:
    """The record of a failure whose log makes it this many values."""
    assert isinstance(record.outcome, Failure)
    line = codec.encode(record)
    more = count - sum(map(line.count, (b",", b"[", b"{")))
    return replace(record, outcome=replace(record.outcome, log="," * more))


def measured_record(**over: Any) -> Record:
    return a_record(a_measurement(**over))


def of_ranks(count: int, blocks: int, *, batches: bool = False) -> Measurement:
    source = random.Random(0)
    times = tuple(source.random() for _ in range(blocks))
    batch = tuple(Batch(blocks=1, enqueue_s=s, device_s=s, host_s=s) for s in times) if batches else ()
    measurement = a_watched(block_s=times, batches=batch)
    return combined(a_cost(), [(0, f"cuda:{number}", measurement) for number in range(count)])


def on_devices(count: int) -> Case:
    return a_case(placement=Placement(devices=count, strategy=Strategy.DATA_PARALLEL))


# The record that exceeds a limit by `beyond`, or is at the limit if `beyond` is 0.
AROUND_LIMITS: dict[str, Callable[[int], Record]] = {
    "bytes of a line": lambda beyond: padded(FAILED, codec.LIMIT + beyond),
    "values in a line": lambda beyond: with_values(FAILED, codec.MOST_VALUES + beyond),
    "a number": lambda beyond: measured_record(cold_s=math.nextafter(1e30, 0.0) * (1.0 + 1e-9 * beyond)),
    "a time from zero on": lambda beyond: measured_record(block_s=(1.0, -1e-9 * beyond)),
    "steps in a block": lambda beyond: measured_record(iterations=1 - beyond),
    "blocks": lambda beyond: measured_record(block_s=(0.01,) * (1 - beyond)),
    "digits of a parameter": lambda beyond: a_record(case=a_case(params={"m": LARGEST + beyond})),
    "a time of a calendar": lambda beyond: a_record(FAILED.outcome, started=codec.LATEST + beyond),
}
NO_RECORD = ("digits of a parameter", "a time of a calendar")  # above these, even a failure cannot be stored


@pytest.mark.real
@settings(max_examples=30, derandomize=True, deadline=None, suppress_health_check=list(HealthCheck))
@given(st.sampled_from(sorted(AROUND_LIMITS)), st.integers(-2, 2))
def test_records_at_a_limit_are_stored_and_beyond_it_fail(limit: str, beyond: int) -> None:
    record = AROUND_LIMITS[limit](beyond)
    with tempfile.TemporaryDirectory() as root:
        if beyond > 0 and limit in NO_RECORD:
            with pytest.raises(CannotWrite, match="could not be read again"):
                codec.storable_record(record)
            return
        with runs.create_in(Path(root) / "run", a_run_info(plan=(record.case,)), redact=str) as writer:
            stored_record = writer.append(record)
        run = runs.read_run(writer.folder)
        assert (run.records, run.damaged) == ((stored_record,), ())
        assert validate_path(writer.folder).faults == ()
    if beyond <= 0:
        assert stored_record == record
    else:
        assert isinstance(stored_record.outcome, Failure)
        assert stored_record.outcome.status is Status.FAILED
        assert "could not be read again" in stored_record.outcome.message


@pytest.mark.real
@pytest.mark.parametrize(
    "make",
    [
        lambda: a_record(of_ranks(512, 1000), case=on_devices(512)),
        pytest.param(
            lambda: a_record(of_ranks(512, 1000, batches=True), case=on_devices(512)),
            marks=pytest.mark.nightly,
        ),
        lambda: measured_record(block_s=tuple(random.Random(0).random() for _ in range(10**6))),
    ],
    ids=["512 ranks", "512 ranks, each block a batch", "a million blocks"],
)
def test_large_valid_values_are_stored_and_read(tmp_path: Path, make: Callable[[], Record]) -> None:
    record = make()
    with runs.create_run(tmp_path, a_run_info(plan=(record.case,))) as writer:
        assert writer.append(record) is record
    assert runs.read_run(writer.folder).records == (record,)
    assert validate_path(writer.folder).faults == ()


@pytest.mark.real
def test_an_unreadable_head_is_refused_before_measuring(tmp_path: Path) -> None:
    def info(more: int) -> RunInfo:
        return a_run_info(id="a", tags={"t": "x" * more})

    size = (runs.create_in(tmp_path / "short", info(1)).folder / runs.HEAD).stat().st_size
    with pytest.raises(CannotWrite, match="could not be read again"):
        runs.create_in(tmp_path / "long", info(codec.LIMIT - size + 2), redact=str)
    assert not (tmp_path / "long").exists()
    longest = runs.create_in(tmp_path / "longest", info(codec.LIMIT - size + 1), redact=str).folder
    assert (longest / runs.HEAD).stat().st_size == codec.LIMIT
    assert runs.read_head(longest) == info(codec.LIMIT - size + 1)
    assert validate_path(longest).faults == ()


@pytest.mark.real
def test_unreadable_sessions_and_profiles_are_not_stored() -> None:
    with pytest.raises(CannotWrite, match="could not be read again"):
        encode_session(a_digest([(a_case(suite="x" * codec.LIMIT), [0.01])]))
    large = a_profiled(a_profile(an_operator("x" * artifacts.LIMIT, 0.05)))
    profile, files = artifacts.profile_files(large, {})
    assert isinstance(profile.outcome, Failure)
    assert sum(map(len, files.values())) < 2000
