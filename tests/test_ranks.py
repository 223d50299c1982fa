"""A measurement of several ranks: stored rank by rank, as fast as the slowest."""

import json
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from benchbench.analyse.rows import flatten, rows
from benchbench.documents.run import report_document
from benchbench.errors import UnreadableInput
from benchbench.model.measurement import Cost, Measurement, Memory, combined
from benchbench.model.placement import Placement, Strategy
from benchbench.store import codec
from tests.factories import a_case, a_cost, a_measurement, a_record, a_run, a_watched
from tests.program import environment

TWO = Placement(devices=2, strategy=Strategy.DATA_PARALLEL)
blocks = st.lists(st.floats(1e-9, 1e3), min_size=5, max_size=5)


def of(*outcomes: Measurement, cost: Cost | None = None) -> Measurement:
    return combined(cost or a_cost(), [(0, f"cuda:{rank}", outcome) for rank, outcome in enumerate(outcomes)])


@given(st.lists(blocks, min_size=2, max_size=8), st.randoms())
def test_each_block_takes_as_long_as_its_slowest_rank(times: list[list[float]], source: Any) -> None:
    ranks = [a_measurement(block_s=tuple(block_times)) for block_times in times]
    measurement = of(*ranks)
    assert measurement.block_s == tuple(max(block) for block in zip(*times, strict=True))
    assert [rank.block_s for rank in measurement.ranks] == [rank.block_s for rank in ranks]
    source.shuffle(ranks)
    assert of(*ranks).block_s == measurement.block_s


def test_the_worst_value_of_any_rank_represents_all() -> None:
    measurement = a_measurement(cold_s=1.0, peak_host=Memory(bytes=5), relative_error=1e-3)
    unsteady = a_measurement(cold_s=2.0, peak_host=Memory(bytes=4), relative_error=1e-4, steady=False)
    combined_measurement = of(measurement, unsteady, cost=a_cost(flops=7))
    assert (
        combined_measurement.cold_s,
        combined_measurement.peak_host.bytes,
        combined_measurement.relative_error,
    ) == (2.0, 5, 1e-3)
    assert not combined_measurement.steady
    assert combined_measurement.cost.flops == 7
    unknown = of(
        measurement,
        replace(unsteady, cold_s=None, relative_error=None, peak_host=Memory(bytes=None, reason="?")),
    )
    assert (unknown.cold_s, unknown.relative_error) == (None, None)
    assert unknown.peak_host == Memory(bytes=None, reason="?")


@pytest.mark.parametrize(
    "ranks",
    [
        [a_measurement()],
        [a_measurement(), a_measurement(block_s=(0.01,))],
        [a_measurement(), a_measurement(iterations=2)],
    ],
    ids=["one rank", "other blocks", "other steps"],
)
def test_mismatched_ranks_are_not_a_measurement(ranks: Sequence[Measurement]) -> None:
    with pytest.raises(ValueError, match="rank"):
        of(*ranks)


def test_a_record_stores_every_rank_and_its_device() -> None:
    case = a_case(placement=replace(TWO, names=("cuda:0", "cuda:2")), environment={"XLA_FLAGS": "--x=[y],z%"})
    record = a_record(of(a_watched(), a_watched(block_s=(0.02,) * 5)), case=case)
    assert codec.decode(codec.encode(record)) == record


def test_records_from_before_ranks_have_one_rank() -> None:
    raw = json.loads(codec.encode(a_record()))
    del raw["crc32"], raw["outcome"]["ranks"], raw["case"]["placement"], raw["case"]["environment"]
    assert codec.decode(json.dumps(raw).encode()) == a_record()


def damaged(**over: Any) -> Measurement:
    return replace(of(a_measurement(), a_measurement()), **over)


@pytest.mark.parametrize(
    ("outcome", "devices", "message"),
    [
        (damaged(block_s=(0.005,) * 5), 2, "slowest"),
        (damaged(ranks=damaged().ranks[:1]), 2, "fewer than two ranks"),
        (damaged(ranks=damaged().ranks * 2), 2, "4 ranks of a case on 2 devices"),
        (damaged(), 1, "2 ranks of a case on 1 devices"),
        (
            damaged(ranks=(damaged().ranks[0], replace(damaged().ranks[1], cold_s=-1.0))),
            2,
            "negative or beyond",
        ),
    ],
)
def test_contradictory_ranks_are_refused(outcome: Measurement, devices: int, message: str) -> None:
    placement = TWO if devices == 2 else Placement()
    line = codec.encode(a_record(outcome, case=a_case(placement=placement)))
    with pytest.raises(UnreadableInput, match=message):
        codec.decode(line)


EXCHANGED = a_case(
    workload="all_reduce", params={"n": 250_000}, placement=Placement(devices=2, strategy=Strategy.COLLECTIVE)
)


def two_ranks() -> Measurement:
    """Steps of 1 and of 2 ms; the two ranks are late by 30 µs in turn."""
    return of(
        a_measurement(iterations=1, block_s=(1e-3,) * 4, entry_s=(0.0, 3e-5, 0.0, 3e-5)),
        a_measurement(iterations=1, block_s=(2e-3,) * 4, entry_s=(3e-5, 0.0, 3e-5, 0.0)),
        cost=a_cost(flops=0, bytes=2_000_000, link_bytes=1_000_000, items=1_000_000, item="byte"),
    )


def test_metrics_of_ranks_compare_them() -> None:
    (row,) = rows(a_run([a_record(two_ranks(), case=EXCHANGED)]))
    fields = flatten(row)
    assert fields["link_bytes_per_s"] == pytest.approx(1e6 / 2e-3)
    assert (fields["rank_spread"], fields["entry_skew_s"]) == pytest.approx((2.0, 3e-5))


def test_one_device_has_no_rank_report() -> None:
    (row,) = rows(a_run([a_record(a_measurement())]))
    fields = flatten(row)
    assert (fields["link_bytes_per_s"], fields["rank_spread"], fields["entry_skew_s"]) == (None, None, None)
    assert not [note for note in fields["notes"] if "link" in note or "rank" in note or "skew" in note]
    tables = report_document(a_run([a_record(a_measurement())])).tables
    assert "Ranks" not in [table.title for table in tables]


def test_ranks_of_several_hosts_have_no_skew() -> None:
    far = combined(a_cost(), [(host, "cpu", a_measurement()) for host in range(2)])
    (row,) = rows(a_run([a_record(far)]))
    assert row.value("rank_spread") == 1.0
    assert row.value("entry_skew_s") is None


def test_user_models_are_refused_under_a_launcher_with_a_hint(tmp_path: Path) -> None:
    def run_rank(*arguments: str) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-m", "benchbench.ranks", *arguments]
        return subprocess.run(command, capture_output=True, text=True, cwd=tmp_path, env=environment())

    assert "--model" not in run_rank("--help").stdout
    refused = run_rank("--model", "mine.py")
    assert (refused.returncode, "accelbench run mine.py" in refused.stderr) == (2, True)
