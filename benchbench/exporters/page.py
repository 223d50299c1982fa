"""Report as one HTML page: the finding, numbers with drawings, and the commands to repeat them.

The page is complete without its script and styles, which some viewers forbid, and loads nothing.
"""

from __future__ import annotations

import re
from base64 import b64encode
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from hashlib import sha256
from html import escape
from importlib.resources import files
from urllib.parse import quote
from zlib import crc32

from benchbench.documents.document import (
    Bars,
    Cell,
    Document,
    Gauge,
    Layout,
    Mark,
    Number,
    Panel,
    Plot,
    Roofline,
    Spread,
    Strips,
    Sweeps,
    Table,
    Tone,
)
from benchbench.exporters.drawing import Ruler, axis, drawing, ruler_of, symbol
from benchbench.exporters.text import EMPTY, html_text

OWN_FILES = "'self' file:"  # sources of the style and script of a site; a page on a disk has no origin
PARTS = ("page.css", "page.js")  # in this folder
Links = Mapping[str, str]
NO_LINKS: Links = {}
LOWER_LINE = 2  # columns of a paragraph from this line on are below the row
MAX_SLUG_LENGTH = 40  # characters
DATA_URL_SAFE = " !$'()*+,/:;<=>?@[]^`{|}"  # characters without an escape in a quoted data URL
SIGN = "±"  # a value with this sign needs no label with it
LONG = 24  # longer texts may be broken anywhere
READING = (
    "A symbol is a value with its 95 % interval, on a logarithmic ruler; a hollow symbol is undecided. Below "
    "it, each process has a lane: 5 to 95 % of its samples, its quartiles, its median."
)


def html_page(document: Document, *, assets: str | None = None, links: Links = NO_LINKS) -> dict[str, bytes]:
    """A separate page, or one of a site. Equal documents give equal bytes.

    `assets`: address of style and script; None includes them in the page. `links`: text of a cell → address
    of its link; links without a cell are at the top.
    """
    if assets is None:
        style, script = ((files("benchbench.exporters") / name).read_text("utf-8") for name in PARTS)
        head, end = f"<style>{style}</style>", f"<script>{script}</script>"
        head = _policy(_hash_source(style), _hash_source(script)) + head
    else:
        style, script = (f"{escape(assets)}{name}" for name in PARTS)
        head, end = f'<link rel="stylesheet" href="{style}">', f'<script src="{script}"></script>'
        head = _policy(OWN_FILES, OWN_FILES) + head
    return {f"{document.name}.html": _page(document, links, head, end).encode()}


def _policy(styles: str, scripts: str) -> str:
    """Content-Security-Policy of a page: nothing is loaded but its own style, script and charts."""
    policy = (
        f"default-src 'none'; style-src {styles}; script-src {scripts}; img-src data:; base-uri 'none'; "
        "form-action 'none'"
    )
    return f'<meta http-equiv="Content-Security-Policy" content="{policy}">'


def _hash_source(text: str) -> str:
    """Source expression that allows exactly this text (CSP level 2)."""
    return f"'sha256-{b64encode(sha256(text.encode()).digest()).decode()}'"


def _page(document: Document, links: Links, head: str, end: str) -> str:
    """Finding, cautions, overview, tables, charts, and how it was measured."""
    finding = html_text(document.summary)
    notes, plots = _Links(document, links), document.plots()
    facts = [item for item in document.facts if item not in document.cautions]
    level = "h3" if document.overview else "h2"
    tables = [_section(table, f"t{number}", level, notes) for number, table in enumerate(document.tables)]
    body = [
        notes.above(),
        f"<header>{_top_line(document.title)}<h1>{finding}</h1>{_answers(document, notes)}</header>",
        _cautions(document.cautions),
        _tools(_backends(document)),
        *(_section(table, f"o{number}", "h2", notes) for number, table in enumerate(document.overview)),
        *(["<h2>Details of each work</h2>"] if document.overview and tables else []),
        *tables,
        *_charts(plots),
        _titled_list("How to read it", [*notes.texts(), *map(html_text, _reading(document, plots))]),
        _titled_list("How it was measured", map(html_text, facts)),
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


def _top_line(title: str) -> str:
    """The title, and the switch of the theme, which the script makes visible."""
    switch = '<button id="theme" hidden aria-label="Light or dark" title="Light or dark">◐</button>'
    return f'<div class="top"><p class="soft">{html_text(title)}</p>{switch}</div>'


def _answers(document: Document, notes: _Links) -> str:
    """List of the answers: the name of the work, then the sentence on it."""
    items = []
    for cell in document.answer:
        work, separator, sentence = str(cell).partition(": ")
        if str(cell) == document.summary:
            continue
        if separator:
            text = f"<b>{notes.details(cell, html_text(work))}:</b> {html_text(sentence)}"
        else:
            text = notes.linked(work)
        tone = "" if cell.tone is Tone.PLAIN else f' class="{cell.tone}"'
        items.append(f"<li{tone}>{text}{notes.marks(cell)}{_code(cell)}</li>")
    return f'<ul class="answers">{"".join(items)}</ul>' if items else ""


def fragment(document: Document) -> str:
    """The finding, the answers and the tables, without styles: for a cell of a notebook."""
    notes = _Links(document, NO_LINKS)
    answers = [_cell(item, notes) for item in document.answer if str(item) != document.summary]
    tables = [
        f"<p><b>{html_text(table.title)}</b></p>{_grid(table, '', notes)}"
        for table in document.tables
        if table.rows
    ]
    head = f"<p><b>{html_text(document.summary)}</b></p>{_list(answers)}"
    reading = _list([*notes.texts(), *map(html_text, document.notes)])
    return f"<div>{head}{_cautions(document.cautions)}{''.join(tables)}{reading}</div>"


def _reading(document: Document, plots: Sequence[Plot]) -> list[str]:
    empty = [f"no {plot.name}: {plot.empty}" for plot in plots if not plot.panels]
    return [*document.notes, *([READING] if any(_drawings(document)) else []), *empty]


def _drawings(document: Document) -> Iterator[Spread]:
    """Yield all drawings of the tables in order."""
    cells = (cell for table in (*document.overview, *document.tables) for cell in table.cells)
    return (part for cell in cells for part in _spreads_in(cell))


class _Links:
    """Footnotes of a document, numbered, and links of its cells."""

    def __init__(self, document: Document, links: Links) -> None:
        self._numbers = {text: number for number, text in enumerate(document.footnotes, start=1)}
        self._links = links
        texts = {str(cell) for table in document.tables for cell in table.cells} if links else set()
        self._above = [text for text in links if text not in texts]
        self._titles = {table.title for table in document.tables}

    def above(self) -> str:
        """Links without a cell."""
        links = " · ".join(map(self.linked, self._above))
        return f"<nav>{links}</nav>" if links else ""

    def linked(self, text: str) -> str:
        """The text, with its link if it has one."""
        address = self._links.get(text)
        return f'<a href="{escape(address)}">{html_text(text)}</a>' if address else html_text(text)

    def details(self, cell: Cell, text: str) -> str:
        """The HTML `text`, as a link to the table of the cell's details if the page has one."""
        return f'<a href="#{slug(cell.link)}">{text}</a>' if cell.link and cell.link in self._titles else text

    def marks(self, cell: Cell) -> str:
        """Links to the cell's footnotes."""
        numbers = sorted(self._numbers[text] for text in cell.footnotes if text in self._numbers)
        links = " ".join(f'<a href="#note{number}">{number}</a>' for number in numbers)
        return f"<sup>{links}</sup>" if links else ""

    def texts(self) -> Iterator[str]:
        """Footnotes."""
        for text, number in self._numbers.items():
            yield f'<span id="note{number}"><b>{number}</b> {html_text(text)}</span>'


def _cautions(lines: Sequence[str]) -> str:
    if not lines:
        return ""
    return f'<aside class="care"><h2>Read with care</h2>{_list(map(html_text, lines))}</aside>'


def _backends(document: Document) -> list[str]:
    """Backends with marks, in order of appearance."""
    marks = (mark for spread in _drawings(document) for mark in spread.marks)
    return list(dict.fromkeys(mark.backend for mark in marks if mark.backend))


def _tools(backends: Sequence[str]) -> str:
    """Controls of the script, which makes them visible."""
    picks = "".join(
        f'<button class="symbol" data-pick="{html_text(name)}" aria-pressed="false">'
        f"{symbol(name)} {html_text(name)}</button>"
        for name in backends
    )
    return f'<div class="tools" hidden><label for="q">Filter</label><input id="q" type="search">{picks}</div>'


def _section(table: Table, key: str, level: str, notes: _Links) -> str:
    """Table with its title, and an anchor for links."""
    title = html_text(table.title)
    name = slug(table.title) if table.title else f"table-{key}"
    heading = f'<{level}><a href="#{name}">{title}</a></{level}>' if title else ""
    facts, notes_below = _list(map(html_text, table.facts)), _list(map(html_text, table.notes))
    grid = _grid(table, key, notes) if table.rows else ""
    if not grid and not facts and not notes_below:
        grid = f"<p>{EMPTY}</p>"
    body = f"{heading}{facts}{grid}{notes_below}{_commands(table)}"
    return f'<section id="{name}" data-title="{title}">{body}</section>'


def slug(title: str) -> str:
    """Letters and digits of a title, and its checksum: stable and unique."""
    words = "-".join(re.findall(r"[a-z0-9]+", title.lower()))[:MAX_SLUG_LENGTH].strip("-")
    return f"{words or 'table'}-{crc32(title.encode()):08x}"


def _grid(table: Table, key: str, notes: _Links) -> str:
    """Rows with their drawings; lower lines of paragraphs are below each row.

    `key` names the table for the script that sorts it; empty without a script.
    """
    paragraphs = table.layout is Layout.PARAGRAPHS
    columns = [n for n, column in enumerate(table.columns) if not paragraphs or column.line < LOWER_LINE]
    lower_columns = [n for n in range(len(table.columns)) if n not in columns]
    table = replace(table, rows=tuple(tuple(map(_with_drawing, row)) for row in table.rows))
    columns = [index for index in columns if not _is_bars(table, index)]
    rulers = {index: ruler for index in columns if (ruler := ruler_of(_spreads(table, index)))}
    heights = {index: _heights(table, index) for index in rulers}
    lines = [_axis_row(columns, rulers)] if rulers else []
    for row in table.rows:
        lines.append(_row(table, row, columns, rulers, heights, notes))
        details = [_cell(cell, notes) for index in lower_columns if (cell := row[index]) and str(cell)]
        if details:
            lines.append(
                f'<tr class="more"><td colspan="{len(columns) + len(rulers)}">{"; ".join(details)}</td></tr>'
            )
    positions = _positions(columns, rulers)
    head = "".join(
        _head(table.columns[index].name, position, key, index in rulers) for position, index in positions
    )
    label = html_text(table.title) or "table"
    return (
        f'<div class="scroll" tabindex="0" role="region" aria-label="{label}"><table>'
        f'<thead><tr>{head}</tr></thead><tbody class="rows">{"".join(lines)}</tbody></table></div>'
    )


def _is_bars(table: Table, index: int) -> bool:
    """True if a column contains only bars, which drawings replace."""
    parts = [part for row in table.rows if (cell := row[index]) for part in cell.parts]
    return bool(parts) and all(isinstance(part, Gauge) for part in parts)


def _positions(columns: Sequence[int], rulers: dict[int, Ruler]) -> Iterator[tuple[int, int]]:
    """Yield the position of each column, counting drawings."""
    position = 0
    for index in columns:
        yield position, index
        position += 2 if index in rulers else 1


def _head(name: str, position: int, key: str, has_drawing: bool) -> str:
    label = html_text(name) or "alternative"
    button = f'<button data-sort="{key}.{position}">{label}</button>' if key else label
    span = ' colspan="2"' if has_drawing else ""
    return f'<th scope="col"{span}>{button}</th>'


def _with_drawing(cell: Cell | None) -> Cell | None:
    """Add a drawing to a ratio with an interval."""
    if cell is None or _spreads_in(cell):
        return cell
    marks = [
        Mark(label="", backend="", value=part.value, low=part.low, high=part.high, is_undecided=is_undecided)
        for part in cell.parts
        if isinstance(part, Number) and part.unit == "×" and part.low is not None and part.high is not None
        for is_undecided in [cell.unsure or part.low <= 1 <= part.high]
    ]
    return replace(cell, parts=(*cell.parts, Spread(tuple(marks), "×"))) if marks else cell


def _spreads(table: Table, index: int) -> list[Spread]:
    return [spread for row in table.rows for spread in _spreads_in(row[index])]


def _heights(table: Table, index: int) -> list[str]:
    """Labels of a column's marks if a row has several: each has the same height in all rows."""
    spreads = _spreads(table, index)
    if all(len(spread.marks) == 1 for spread in spreads):
        return []
    return sorted({mark.label for spread in spreads for mark in spread.marks})


def _axis_row(columns: Sequence[int], rulers: dict[int, Ruler]) -> str:
    """Ticks of the rulers, in cells like those below, so that they are aligned without styles."""
    cells = [
        f'<td></td><td class="draw">{axis(rulers[index])}</td>' if index in rulers else "<td></td>"
        for index in columns
    ]
    return f'<tr class="axis" aria-hidden="true">{"".join(cells)}</tr>'


def _row(
    table: Table,
    row: Sequence[Cell | None],
    columns: Sequence[int],
    rulers: dict[int, Ruler],
    heights: dict[int, list[str]],
    notes: _Links,
) -> str:
    """Row of a table; a reason without numbers spans all empty cells."""
    spreads_by_column = {index: _spreads_in(row[index]) for index in rulers}
    marks = [mark for spreads in spreads_by_column.values() for spread in spreads for mark in spread.marks]
    single_backend = marks[0].backend if len(marks) == 1 else ""
    backend = f' data-b="{html_text(single_backend)}"' if single_backend else ""
    filled = columns
    if table.layout is Layout.ALTERNATIVES:
        last = max((index for index in columns if row[index] is not None), default=0)
        filled = [index for index in columns if index <= last]
    cells = []
    for index in filled:
        spreads = spreads_by_column.get(index, [])
        ends_early = len(filled) < len(columns) and index == filled[-1] and not spreads
        span_columns = (
            len(columns) - len(filled) + 1 + sum(item >= index for item in rulers) if ends_early else 0
        )
        span = f' colspan="{span_columns}"' if ends_early else ""
        cells.append(_data_cell(row[index], table.columns[index].name, span, notes))
        if index in rulers and not ends_early:
            drawings = "".join(drawing(item, rulers[index], heights[index]) for item in spreads)
            cells.append(f'<td class="draw">{drawings}</td>')
    return f"<tr{backend}>{''.join(cells)}</tr>"


def _spreads_in(cell: Cell | None) -> list[Spread]:
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
    text = notes.details(cell, notes.linked(text))
    toned = text if cell.tone is Tone.PLAIN or not text else f'<span class="{cell.tone}">{text}</span>'
    return toned + notes.marks(cell) + _code(cell)


def _code(cell: Cell) -> str:
    """The cell's code, or an empty text."""
    lines = "<br>".join(map(html_text, cell.code.splitlines()))
    return f"<pre><code>{lines}</code></pre>" if cell.code else ""


def _commands(table: Table) -> str:
    """Commands that measure each row again, folded."""
    lines = [f"<li><code>{html_text(command)}</code></li>" for command in table.commands if command]
    if not lines:
        return ""
    return f"<details><summary>Commands that measure these again</summary><ul>{''.join(lines)}</ul></details>"


def _charts(plots: Sequence[Plot]) -> Iterator[str]:
    """Charts on the first page of each plot; tables have all numbers."""
    panels_by_plot = [(plot, plot.panels) for plot in plots if plot.panels and plot.page == 1]
    if all(isinstance(panels[0], Bars | Strips) for _, panels in panels_by_plot):
        return
    from benchbench.exporters.plots import chart

    for plot, panels in panels_by_plot:
        figures = [_figure(panel, svg) for panel in panels if (svg := chart(panel))]
        if figures:
            more = f"{plot.more} more: --format png -o FOLDER draws all. " if plot.more else ""
            yield f"<h2>{html_text(plot.shared or plot.title)}</h2>"
            yield f'<div class="charts">{"".join(figures)}</div>'
            yield f'<p class="soft">{more}{html_text(plot.reading)}</p>'


def _figure(panel: Panel, svg: bytes) -> str:
    """Chart with its caption and, if it is too wide, scrolling by keys.

    An image cannot run scripts, and its styles and ids do not meet those of the page.
    """
    finding = panel.summary if isinstance(panel, Sweeps | Roofline) else ""
    details = panel.details if isinstance(panel, Sweeps) else ""
    head = f"<h3>{html_text(finding)}</h3>" if finding else ""
    details_below = f"<p>{html_text(details)}</p>" if details else ""
    caption = f"<figcaption>{head}{html_text(panel.title)}{details_below}</figcaption>"
    content = quote(b" ".join(svg.split()), safe=DATA_URL_SAFE)
    image = f'<img class="chart" alt="" src="data:image/svg+xml,{content}">'
    return f'<figure tabindex="0">{caption}{image}</figure>'


def _titled_list(title: str, lines: Iterable[str]) -> str:
    items = _list(lines)
    return f"<h2>{title}</h2>{items}" if items else ""


def _list(lines: Iterable[str]) -> str:
    items = "".join(f"<li>{line}</li>" for line in lines)
    return f"<ul>{items}</ul>" if items else ""
