"""Two sides measured in turn, as a command shows it."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from time import monotonic
from typing import TYPE_CHECKING

import typer

from benchbench.cli.app import signals
from benchbench.cli.screen import screen, tell
from benchbench.errors import NothingToMeasure

if TYPE_CHECKING:
    from benchbench.launch.pool import WorkerPool
    from benchbench.model.device import Target
    from benchbench.model.record import Record
    from benchbench.model.run import Run, RunInfo, Settings
    from benchbench.plan.rerun import Variant


@contextmanager
def pools(
    variants: Sequence[Variant], targets: Sequence[Sequence[Target]], settings: Settings
) -> Iterator[list[WorkerPool]]:
    """One per side, each with its interpreters, its settings and its revision of the user's code."""
    from benchbench.launch.pool import WorkerPool
    from benchbench.launch.scratch import user_code
    from benchbench.plan.revision import checked_out

    with ExitStack() as stack:
        stack.enter_context(signals())
        found = []
        for variant, wanted in zip(variants, targets, strict=True):
            code = user_code()
            if variant.revision:
                code = stack.enter_context(checked_out(variant.revision, code))
            pool = WorkerPool(wanted, variant.applied(settings), sys.executable, code)
            found.append(stack.enter_context(pool))
        typer.echo("looking for backends and devices", err=True)
        yield found


def measured_in_turn(
    found: Sequence[WorkerPool], infos: tuple[RunInfo, RunInfo], results: Path
) -> tuple[Run, Run]:
    """Both runs are stored, each record before the next process starts, and shown with its side."""
    from benchbench.documents import lists
    from benchbench.running import interleaved
    from benchbench.store import runs

    for info in infos:
        tell(lists.left_out(info.left_out))
    if not infos[0].plan:
        raise NothingToMeasure("No case can run on both sides.", "accelbench devices tells why.")
    records: list[list[Record]] = [[], []]
    begin = monotonic()
    with ExitStack() as stack:
        writers = [stack.enter_context(runs.create(results, info)) for info in infos]
        shown = stack.enter_context(screen(*infos))
        try:
            for side, record in interleaved.measure(found, infos, shown.announce):
                writers[side].append(record)
                records[side].append(record)
                shown.show(record, side)
        finally:
            for info, some in zip(infos, records, strict=True):
                typer.echo(lists.summary(some, info, monotonic() - begin), err=True, nl=False)
    first, second = (runs.read(runs.find(results, info.id)) for info in infos)
    return first, second
