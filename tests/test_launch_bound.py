"""The mark of launch-bound rounds, on both sides of its thresholds."""

import pytest

from benchbench.analyse.rows import launch_notes, launch_share, rows
from benchbench.model.measurement import Batch
from tests.factories import a_measurement, a_record, a_run


def batches(*shares: float) -> tuple[Batch, ...]:
    """Blocks of 10 ms on the device, launched in these shares of that time."""
    return tuple(Batch(blocks=5, enqueue_s=0.01 * share, device_s=0.01, host_s=0.05) for share in shares)


@pytest.mark.parametrize(("share", "bound"), [(0.79, False), (0.81, True), (1.0, True), (0.02, False)])
def test_a_host_that_is_not_done_launching_a_fifth_of_the_block_before_the_device_is_the_bound(
    share: float, bound: bool
) -> None:
    notes = [n.text for n in launch_notes([a_measurement(batches=batches(share))])]
    assert [note.startswith("launch-bound: ") for note in notes] == [True] * bound


def test_one_delayed_batch_does_not_decide() -> None:
    assert launch_share(a_measurement(batches=batches(0.1, 0.1, 1.0))) == pytest.approx(0.1)
    assert not launch_notes([a_measurement(batches=batches(0.1, 0.1, 1.0))])


def test_a_row_notes_the_share_and_rounds_that_were_launch_bound() -> None:
    bound, free = a_measurement(batches=batches(0.97)), a_measurement(batches=batches(0.5))
    table = rows(a_run([a_record(result, round=n) for n, result in enumerate((bound, free, bound))]))
    text = "launch-bound: launching took the host 97.0 % of the device's time, in 2 of 3 rounds"
    assert text in [note.text for note in table[0].notes]


def test_blocks_timed_by_the_host_are_never_marked() -> None:
    assert launch_share(a_measurement()) is None
    assert not launch_notes([a_measurement()])


@pytest.mark.parametrize(("cost_s", "marked"), [(1e-5, False), (1.1e-5, True), (None, False), (0.0, False)])
def test_a_block_shorter_than_a_thousand_timings_is_marked(cost_s: float | None, marked: bool) -> None:
    notes = [n.text for n in launch_notes([a_measurement(timer_cost_s=cost_s, block_s=(0.01,) * 5)])]
    assert [note.startswith("timing takes ") for note in notes] == [True] * marked
