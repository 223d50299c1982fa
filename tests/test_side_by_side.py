"""Parts of a step that overlap: each is also timed alone, and the report has the hidden share."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from benchbench.analyse.rows import SHARES, hidden_share, median_share, waiting_share
from benchbench.analyse.rows import rows as rows_of
from benchbench.model.measurement import Measurement
from benchbench.store.codec import decode, encode
from benchbench.workloads.base import CONSUMER, SOURCE
from tests.factories import a_measurement, a_record, a_run
from tests.program import accelbench, rows

SECONDS = st.floats(1e-3, 1e3)


@given(SECONDS, SECONDS)
def test_all_is_hidden_if_a_step_takes_as_long_as_its_longer_part(source: float, consumer: float) -> None:
    longer = max(source, consumer)
    assert hidden_share(longer, source, consumer) == pytest.approx(1)
    assert hidden_share(source + consumer, source, consumer) == pytest.approx(0, abs=1e-6)
    assert waiting_share(longer, source, consumer) == pytest.approx(1 - consumer / longer)


@given(SECONDS, SECONDS, SECONDS)
def test_a_share_is_between_0_and_1_despite_noise(step: float, source: float, consumer: float) -> None:
    assert all(0 <= share(step, source, consumer) <= 1 for share in SHARES.values())


def test_shares_are_medians_of_processes() -> None:
    def process(source: float) -> Measurement:
        parts = {SOURCE: (source, source, 99.0), CONSUMER: (1.0, 1.0, 1.0)}
        return a_measurement(iterations=2, block_s=(2.5, 2.5, 2.5), parts_s=parts)

    shares = [median_share([process(s) for s in (0.4, 0.5, 0.25)], share).value for share in SHARES.values()]
    assert shares == pytest.approx([0.15 / 0.4, 0.2])
    assert median_share([a_measurement()], hidden_share).value is None


def test_parts_are_stored_and_a_step_without_them_reads_as_before() -> None:
    parts = {SOURCE: (0.1, 0.2), CONSUMER: (0.3, 0.4)}
    record = a_record(a_measurement(parts_s=parts))
    assert decode(encode(record)) == record
    (row,) = rows_of(a_run([a_record()]))
    assert not [note for note in row.notes if "hidden" in note.text]


@pytest.mark.real
@pytest.mark.parametrize(
    ("percent", "note"),
    [
        (0, "0 % of the shorter of its two parts is hidden behind the longer; 20.0 % of a step is waiting"),
        (100, "100 % of the shorter of its two parts is hidden behind the longer; 0 % of a step is waiting"),
    ],
)
def test_hidden_time_is_measured_and_reported(tmp_path: Path, percent: int, note: str) -> None:
    accelbench(
        *("run", "-b", "fake", "-d", "cpu", "--quick", "--rounds", "1", "-w", "overlapping"),
        *("-p", f"hidden={percent}"),
        cwd=tmp_path,
    )
    (row,) = rows(tmp_path)
    assert row["status"] == "ok"
    assert row["hidden_share"] == pytest.approx(percent / 100)
    assert row["waiting_share"] == pytest.approx(1 - 1 / (1.25 - 0.25 * percent / 100))
    assert note in row["notes"]
