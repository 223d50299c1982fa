"""Pages for all runs of a results folder: an index, and a page per run and per case.

The pages share a style file and a script file. Equal runs give equal bytes.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from importlib.resources import files
from urllib.parse import quote

from benchbench.documents.comparison import comparison_document, comparison_summary, select_verdicts
from benchbench.documents.document import Cell, Content, Document, Tone, table
from benchbench.documents.history import history_document
from benchbench.documents.run import report_document
from benchbench.exporters.page import PARTS, html_page, slug
from benchbench.format import count_of, ratio
from benchbench.judging.comparison import compare_runs
from benchbench.judging.series import Trend
from benchbench.model.case import Verdict
from benchbench.model.run import Run, RunInfo

File = tuple[str, bytes]  # path below the site's folder, and content
Linked = dict[str, str]  # text of a cell → address of its link
HOME: Linked = {"all runs": "../index.html"}


@dataclass(frozen=True, slots=True)
class _Entry:
    """Row of a run in the index."""

    info: RunInfo
    finding: str
    against: str  # comparison with the previous run; empty for the first run
    worse: bool


def site_files(runs: Iterable[Run], trends: Sequence[Trend]) -> Iterator[File]:
    """Yield the files of the site; `runs` are in the order of their starts, and read once.

    A run is compared with the previous one: the newest that measured one of the same cases. Shared files come
    first and the index last, so that an interrupted site has no page without styles and no dead link.
    """
    for name in PARTS:
        yield name, (files("benchbench.exporters") / name).read_bytes()
    entries: list[_Entry] = []
    newest: dict[str, Run] = {}  # case id → the last run that measured it
    for run in runs:
        ids = {record.case.id for record in run.records}
        previous_runs = {
            previous.info.id: previous for case_id in ids if (previous := newest.get(case_id))
        }.values()
        entry, pages = _run_pages(run, max(previous_runs, key=lambda run: run.info.started, default=None))
        entries.append(entry)
        yield from pages
        newest |= dict.fromkeys(ids, run)
    for trend in trends:
        yield f"cases/{slug(trend.case)}.html", _page(history_document([trend]), HOME)
    yield "index.html", _index(entries, trends)


def _run_pages(run: Run, earlier: Run | None) -> tuple[_Entry, list[File]]:
    """Row in the index, page of the run, and page of its comparison with the previous run, if
    there is one.
    """
    report, path = report_document(run), f"runs/{run.info.id}"
    if earlier is None:
        return _Entry(run.info, report.summary, "", worse=False), [(f"{path}.html", _page(report, HOME))]
    comparison = compare_runs(earlier, run)
    summary_text = comparison_summary(comparison)
    comparison_page = comparison_document(comparison, select_verdicts(comparison, (), "ratio"))
    links = {f"compared with run {earlier.info.id}: {summary_text}": f"{quote(run.info.id)}-before.html"}
    worse = any(verdict.verdict is Verdict.SLOWER for verdict in comparison.verdicts)
    pages = [
        (f"{path}-before.html", _page(comparison_page, HOME)),
        (f"{path}.html", _page(report, HOME | links)),
    ]
    return _Entry(run.info, report.summary, summary_text, worse), pages


def _page(document: Document, links: Linked) -> bytes:
    (content,) = html_page(document, assets="../", links=links).values()
    return content


def _index(entries: Sequence[_Entry], trends: Sequence[Trend]) -> bytes:
    """Runs, newest first, then cases, those with the latest changes first."""
    worse = [entry for entry in entries if entry.worse]
    newest = entries[-1] if entries else None
    links = {entry.info.id: f"runs/{quote(entry.info.id)}.html" for entry in entries}
    links |= {trend.case: f"cases/{slug(trend.case)}.html" for trend in trends}
    document = Document(
        name="index",
        title=f"{count_of(len(entries), 'run')}; in {len(worse)} a case was slower than in the previous run",
        summary_line=newest.finding if newest else "no runs yet",
        tables=(
            table([_run_row(entry) for entry in reversed(entries)], title="Runs"),
            table(
                [_case_row(trend) for trend in sorted(trends, key=_last_change, reverse=True)], title="Cases"
            ),
        ),
    )
    (content,) = html_page(document, assets="", links=links).values()
    return content


def _run_row(entry: _Entry) -> dict[str, Content]:
    info = entry.info
    return {
        "run": info.id,
        "started": info.started,
        "finding": entry.finding,
        "compared with the previous run": Cell((entry.against,), Tone.BAD if entry.worse else Tone.PLAIN),
        "machine": info.machine.cpu,
        "tags": " ".join(f"{name}={value}" for name, value in info.tags.items()),
    }


def _case_row(trend: Trend) -> dict[str, Content]:
    changes = trend.history.changes
    change_text = f"{changes[-1].direction} {ratio(changes[-1].ratio)}" if changes else "no change"
    tone = Tone.BAD if changes and changes[-1].direction == "slower" else Tone.PLAIN
    return {
        "case": trend.case,
        "runs": len(trend.points) + len(trend.missing),
        "last change": Cell((change_text,), tone),
        "in run": trend.sides(changes[-1])[1].run if changes else None,
    }


def _last_change(trend: Trend) -> str:
    changes = trend.history.changes
    return trend.sides(changes[-1])[1].started if changes else ""
