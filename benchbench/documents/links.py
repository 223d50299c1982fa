"""What lies between each two devices: a matrix, in which a slow link stands out."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import combinations

from benchbench.analyse.rows import Row
from benchbench.documents import document
from benchbench.documents.document import Cell, Content, Number, Table
from benchbench.workloads.collectives.send_recv import LINK

Link = tuple[int, int]


def link_tables(rows: Sequence[Row]) -> tuple[Table, ...]:
    """A table for each target, dtype and size of messages between two ranks; none where no two were alone."""
    found: dict[str, dict[Link, Row]] = {}
    for row in rows:
        named = LINK.fullmatch(str(row.case.params.get("pattern", "")))
        if named and row.case.workload == "send_recv" and row.value("latency_s"):
            case = row.case
            where = f"n={case.params['n']} · {case.dtype} · {case.target} {case.mode} · {case.device}"
            found.setdefault(where, {})[int(named[1]), int(named[2])] = row
    return tuple(_table(where, links) for where, links in found.items())


def _table(where: str, links: Mapping[Link, Row]) -> Table:
    ranks = range(1 + max(rank for link in links for rank in link))
    cells: dict[Link, Content] = {}
    for link in combinations(ranks, 2):
        if row := links.get(link):
            cells[link] = cells[link[::-1]] = _cell(row)
    lines = [{"rank": str(one), **{str(other): cells.get((one, other)) for other in ranks}} for one in ranks]
    return document.table(lines, title=f"Links: send_recv {where}")


def _cell(row: Row) -> Cell:
    """Of one direction while both are used, and the time of a message each way."""
    bandwidth, latency = row.value("link_bytes_per_s"), row.value("latency_s")
    assert bandwidth is not None
    assert latency is not None
    return Cell((Number(bandwidth, "B/s"), Number(latency, "s")))
