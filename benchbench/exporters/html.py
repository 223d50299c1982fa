"""One page of HTML to pass around: the finding, drawings beside their numbers, and how to repeat them.

The page is whole without its script and without its styles, which some viewers forbid, and loads nothing.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from html import escape
from importlib.resources import files
from typing import ClassVar
from zlib import crc32

from benchbench.documents.document import (
    Cell,
    Document,
    Gauge,
    Layout,
    Mark,
    Number,
    Panel,
    Roofline,
    Spread,
    Sweeps,
    Table,
    Tone,
)
from benchbench.exporters._charts import chart, legend
from benchbench.exporters._drawing import Ruler, axis, drawing, ruler_of, symbol
from benchbench.exporters._text import EMPTY, html_text
from benchbench.exporters.base import Exporter

PARTS = ("page.css", "page.js")  # beside this file
Links = Mapping[str, str]
NO_LINKS: Links = {}
LOWER_LINE = 2  # of a paragraph: its columns stand below the row
MOST_SLUG = 40  # characters
SIGN = "±"  # a value that has it is not labelled with it once more
LONG = 24  # characters of a text that may be broken anywhere
READING = (
    "In a drawing a symbol is a value with its 95 % interval, on a logarithmic ruler; a hollow one decides "
    "nothing. Below it each process has a lane: 5 to 95 % of its samples, its quartiles, its median."
)


class Html(Exporter):
    """A page of its own, or of a site; the same document gives the same bytes."""

    extension: ClassVar[str] = "html"

    def __init__(self, assets: str | None = None, links: Links = NO_LINKS, feed: str = "") -> None:
        """`assets`: where the style and the script lie, else they are in the page; `feed`: where one is.

        `links`: the text of a cell → the page it leads to; those that no cell has stand at the top.
        """
        self._assets = assets
        self._links = links
        self._feed = feed

    def export(self, document: Document) -> dict[str, bytes]:
        if self._assets is None:
            style, script = ((files("benchbench.exporters") / name).read_text("utf-8") for name in PARTS)
            head, end = f"<style>{style}</style>", f"<script>{script}</script>"
        else:
            style, script = (f"{escape(self._assets)}{name}" for name in PARTS)
            head, end = f'<link rel="stylesheet" href="{style}">', f'<script src="{script}"></script>'
        if self._feed:
            head += f'<link rel="alternate" type="application/atom+xml" href="{escape(self._feed)}">'
        return {f"{document.name}.html": _page(document, self._links, head, end).encode()}


def _page(document: Document, links: Links, head: str, end: str) -> str:
    """The finding, what is in doubt, the overview, the tables, the charts, then how it was measured."""
    finding = html_text(document.finding)
    notes = _Links(document, links)
    answers = [_cell(each, notes) for each in document.answer if str(each) != document.finding]
    facts = [each for each in document.facts if each not in document.cautions]
    below = "h3" if document.overview else "h2"
    tables = [_section(table, f"t{number}", below, notes) for number, table in enumerate(document.tables)]
    body = [
        notes.above(),
        f'<header><p class="soft">{html_text(document.title)}</p><h1>{finding}</h1>{_list(answers)}</header>',
        _cautions(document.cautions),
        _tools(_backends(document)),
        *(_section(table, f"o{number}", "h2", notes) for number, table in enumerate(document.overview)),
        *tables,
        *_charts(document),
        _below("How to read it", [*notes.texts(), *map(html_text, _reading(document))]),
        _below("How it was measured", map(html_text, facts)),
    ]
    first = (
        '<meta charset="utf-8"><meta name="viewport" content="width=device-width,initial-scale=1">'
        f'<meta name="generator" content="accelbench"><title>{finding}</title>'
    )
    return (
        f'<!doctype html>\n<html lang="en"><head>{first}{head}</head>\n<body>\n<main>\n'
        + "\n".join(filter(None, body))
        + f"\n</main>\n{end}\n</body></html>\n"
    )


def _reading(document: Document) -> list[str]:
    empty = [f"no {plot.name}: {plot.empty}" for plot in document.plots if not plot.panels]
    return [*document.notes, *([READING] if any(_drawings(document)) else []), *empty]


def _drawings(document: Document) -> Iterator[Spread]:
    """All that the tables draw, in the order in which it comes."""
    cells = (cell for table in (*document.overview, *document.tables) for cell in table.cells)
    return (part for cell in cells for part in _drawn(cell))


class _Links:
    """The footnotes of a document, numbered as they come, and the pages that its cells lead to."""

    def __init__(self, document: Document, links: Links) -> None:
        self._numbers = {text: number for number, text in enumerate(document.footnotes, start=1)}
        self._links = links
        texts = {str(cell) for table in document.tables for cell in table.cells} if links else set()
        self._above = [text for text in links if text not in texts]

    def above(self) -> str:
        """Links to other pages that no cell has."""
        links = " · ".join(map(self.linked, self._above))
        return f"<nav>{links}</nav>" if links else ""

    def linked(self, text: str) -> str:
        """The text, as a link where it leads to a page."""
        place = self._links.get(text)
        return f'<a href="{escape(place)}">{html_text(text)}</a>' if place else html_text(text)

    def marks(self, cell: Cell) -> str:
        """Links to what is said of the cell below."""
        numbers = sorted(self._numbers[text] for text in cell.footnotes if text in self._numbers)
        links = " ".join(f'<a href="#note{number}">{number}</a>' for number in numbers)
        return f"<sup>{links}</sup>" if links else ""

    def texts(self) -> Iterator[str]:
        """What is linked to."""
        for text, number in self._numbers.items():
            yield f'<span id="note{number}"><b>{number}</b> {html_text(text)}</span>'


def _cautions(lines: Sequence[str]) -> str:
    if not lines:
        return ""
    return f'<aside class="care"><h2>Read with care</h2>{_list(map(html_text, lines))}</aside>'


def _backends(document: Document) -> list[str]:
    """Those that have marks, in the order in which they come."""
    marks = (mark for spread in _drawings(document) for mark in spread.marks)
    return list(dict.fromkeys(mark.backend for mark in marks if mark.backend))


def _tools(backends: Sequence[str]) -> str:
    """What the script can do; shown by the script."""
    picks = "".join(
        f'<button class="symbol" data-pick="{html_text(name)}" aria-pressed="false">'
        f"{symbol(name)} {html_text(name)}</button>"
        for name in backends
    )
    return (
        '<div class="tools" hidden><label for="q">Filter</label><input id="q" type="search">'
        f'{picks}<button id="theme">Light or dark</button></div>'
    )


def _section(table: Table, key: str, level: str, notes: _Links) -> str:
    """A table below its title, with a name that a link can be made to."""
    title = html_text(table.title)
    name = slug(table.title) if table.title else f"table-{key}"
    heading = f'<{level}><a href="#{name}">{title}</a></{level}>' if title else ""
    facts, below = _list(map(html_text, table.facts)), _list(map(html_text, table.notes))
    grid = _grid(table, key, notes) if table.rows else ""
    if not grid and not facts and not below:
        grid = f"<p>{EMPTY}</p>"
    return (
        f'<section id="{name}" data-title="{title}">{heading}{facts}{grid}{below}{_commands(table)}</section>'
    )


def slug(title: str) -> str:
    """Letters and digits of the title, and a checksum of all of it: stable, and unlike any other."""
    words = "-".join(re.findall(r"[a-z0-9]+", title.lower()))[:MOST_SLUG].strip("-")
    return f"{words or 'table'}-{crc32(title.encode()):08x}"


def _grid(table: Table, key: str, notes: _Links) -> str:
    """The rows with their drawings; columns of a paragraph's lower lines stand below each row."""
    paragraphs = table.layout is Layout.PARAGRAPHS
    beside = [n for n, column in enumerate(table.columns) if not paragraphs or column.line < LOWER_LINE]
    lower = [n for n in range(len(table.columns)) if n not in beside]
    table = replace(table, rows=tuple(tuple(map(_with_drawing, row)) for row in table.rows))
    beside = [index for index in beside if not _is_bars(table, index)]
    rulers = {index: ruler for index in beside if (ruler := ruler_of(_spreads(table, index)))}
    heights = {index: _heights(table, index) for index in rulers}
    lines = [_axis_row(beside, rulers)] if rulers else []
    for row in table.rows:
        lines.append(_row(table, row, beside, rulers, heights, notes))
        told = [_cell(cell, notes) for index in lower if (cell := row[index]) and str(cell)]
        if told:
            lines.append(
                f'<tr class="more"><td colspan="{len(beside) + len(rulers)}">{"; ".join(told)}</td></tr>'
            )
    places = _positions(beside, rulers)
    head = "".join(_head(table.columns[index].name, at, key, index in rulers) for at, index in places)
    label = html_text(table.title) or "table"
    return (
        f'<div class="scroll" tabindex="0" role="region" aria-label="{label}"><table>'
        f'<thead><tr>{head}</tr></thead><tbody class="rows">{"".join(lines)}</tbody></table></div>'
    )


def _is_bars(table: Table, index: int) -> bool:
    """Whether a column holds nothing but bars, which say less than the drawings do."""
    parts = [part for row in table.rows if (cell := row[index]) for part in cell.parts]
    return bool(parts) and all(isinstance(part, Gauge) for part in parts)


def _positions(beside: Sequence[int], rulers: dict[int, Ruler]) -> Iterator[tuple[int, int]]:
    """The cell of each column, counted with the drawings before it."""
    position = 0
    for index in beside:
        yield position, index
        position += 2 if index in rulers else 1


def _head(name: str, position: int, key: str, drawn: bool) -> str:
    label = html_text(name) or "alternative"
    button = f'<button data-sort="{key}.{position}">{label}</button>'
    span = ' colspan="2"' if drawn else ""
    return f'<th scope="col"{span}>{button}</th>'


def _with_drawing(cell: Cell | None) -> Cell | None:
    """The cell, with a mark for a ratio that has an interval."""
    if cell is None or _drawn(cell):
        return cell
    marks = [
        Mark(label="", backend="", value=part.value, low=part.low, high=part.high, is_open=is_open)
        for part in cell.parts
        if isinstance(part, Number) and part.unit == "×" and part.low is not None and part.high is not None
        for is_open in [cell.unsure or part.low <= 1 <= part.high]
    ]
    return replace(cell, parts=(*cell.parts, Spread(tuple(marks), "×"))) if marks else cell


def _spreads(table: Table, index: int) -> list[Spread]:
    return [spread for row in table.rows for spread in _drawn(row[index])]


def _heights(table: Table, index: int) -> list[str]:
    """The labels of a column's marks where a row has several: each has one height in all rows."""
    spreads = _spreads(table, index)
    if all(len(spread.marks) == 1 for spread in spreads):
        return []
    return sorted({mark.label for spread in spreads for mark in spread.marks})


def _axis_row(beside: Sequence[int], rulers: dict[int, Ruler]) -> str:
    """The rulers' ticks, in cells as those below, so that they align where styles are forbidden."""
    cells = [
        f'<td></td><td class="draw">{axis(rulers[index])}</td>' if index in rulers else "<td></td>"
        for index in beside
    ]
    return f'<tr class="axis" aria-hidden="true">{"".join(cells)}</tr>'


def _row(
    table: Table,
    row: Sequence[Cell | None],
    beside: Sequence[int],
    rulers: dict[int, Ruler],
    heights: dict[int, list[str]],
    notes: _Links,
) -> str:
    """A row; a reason instead of numbers takes all the cells that it leaves empty."""
    drawn = {index: _drawn(row[index]) for index in rulers}
    marks = [mark for spreads in drawn.values() for spread in spreads for mark in spread.marks]
    alone = marks[0].backend if len(marks) == 1 else ""
    backend = f' data-b="{html_text(alone)}"' if alone else ""
    shown = beside
    if table.layout is Layout.ALTERNATIVES:
        last = max((index for index in beside if row[index] is not None), default=0)
        shown = [index for index in beside if index <= last]
    cells = []
    for index in shown:
        spreads = drawn.get(index, [])
        ends_early = len(shown) < len(beside) and index == shown[-1] and not spreads
        rest = len(beside) - len(shown) + 1 + sum(each >= index for each in rulers) if ends_early else 0
        span = f' colspan="{rest}"' if ends_early else ""
        cells.append(_data_cell(row[index], table.columns[index].name, span, notes))
        if index in rulers and not ends_early:
            drawings = "".join(drawing(each, rulers[index], heights[index]) for each in spreads)
            cells.append(f'<td class="draw">{drawings}</td>')
    return f"<tr{backend}>{''.join(cells)}</tr>"


def _drawn(cell: Cell | None) -> list[Spread]:
    return [part for part in cell.parts if isinstance(part, Spread)] if cell else []


def _data_cell(cell: Cell | None, name: str, span: str, notes: _Links) -> str:
    if cell is None:
        return f"<td{span}></td>"
    first = next((part for part in cell.parts if isinstance(part, Number)), None)
    numeric = first is not None and cell.parts[0] is first
    value = f' data-v="{first.value:.4g}"' if first is not None and numeric else ""
    text = str(cell)
    style = ' class="long"' if len(text) > LONG and not numeric else ""
    label = html_text(name.removeprefix(SIGN).strip() if text.startswith(SIGN) else name)
    label = f' data-n="{label}"' if label and text else ""
    return f"<td{style}{value}{label}{span}>{_toned(cell, text, notes)}</td>"


def _cell(cell: Cell, notes: _Links) -> str:
    return _toned(cell, str(cell), notes)


def _toned(cell: Cell, text: str, notes: _Links) -> str:
    text = notes.linked(text)
    toned = text if cell.tone is Tone.PLAIN or not text else f'<span class="{cell.tone}">{text}</span>'
    return toned + notes.marks(cell)


def _commands(table: Table) -> str:
    """The command that measures each row again, folded."""
    lines = [f"<li><code>{html_text(command)}</code></li>" for command in table.commands if command]
    if not lines:
        return ""
    return f"<details><summary>Commands that measure these again</summary><ul>{''.join(lines)}</ul></details>"


def _charts(document: Document) -> Iterator[str]:
    """The first page of each plot: nobody looks at hundreds, and every number is in a table."""
    for plot in document.plots:
        panels = plot.panels if plot.page == 1 else ()
        figures = [_figure(panel, made) for panel in panels if (made := chart(panel))]
        if figures:
            more = f"{plot.more} more: --format png -o FOLDER draws all. " if plot.more else ""
            yield f"<h2>{html_text(plot.shared or plot.title)}</h2>"
            yield f'<div class="charts">{"".join(figures)}</div>'
            yield f'<p class="soft">{more}{html_text(plot.reading)}</p>'


def _figure(panel: Panel, made: str) -> str:
    """The chart below its finding, where it has one; keys move one that is too wide."""
    finding = panel.finding if isinstance(panel, Sweeps | Roofline) else ""
    details = panel.details if isinstance(panel, Sweeps) else ""
    head = f"<h3>{html_text(finding)}</h3>" if finding else ""
    below = f"<p>{html_text(details)}</p>" if details else ""
    keys = "".join(f"<span>{line} {html_text(label)}</span>" for label, line in legend(panel))
    key = f'<p class="symbol">{keys}</p>' if keys else ""
    caption = f"<figcaption>{head}{html_text(panel.title)}{below}</figcaption>"
    return f'<figure tabindex="0">{caption}{key}{made}</figure>'


def _below(title: str, lines: Iterable[str]) -> str:
    told = _list(lines)
    return f"<h2>{title}</h2>{told}" if told else ""


def _list(lines: Iterable[str]) -> str:
    items = "".join(f"<li>{line}</li>" for line in lines)
    return f"<ul>{items}</ul>" if items else ""
