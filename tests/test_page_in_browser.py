"""Pages in a headless Chromium: visible content, restrictions, accessibility and keys."""

import functools
import importlib.util
import threading
from collections.abc import Callable, Iterator
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from benchbench import format as fmt
from benchbench.documents.document import Document
from benchbench.documents.run import RunReport, report_document
from benchbench.exporters.drawing import colour
from tests.browser import Tab, a_browser, needs_chromium
from tests.factories import a_case, a_failure, a_record, a_run
from tests.test_documents import DOCUMENTS
from tests.test_page import BACKENDS, HOSTILE, page, random_run
from tests.test_plots import CEILINGS, saturating

pytestmark = [pytest.mark.real, needs_chromium, pytest.mark.xdist_group("browser")]
Show = Callable[..., None]

VERBS = (
    *("report", "compare", "check", "history", "hardware", "profile", "profile of two", "bisect"),
    *("doctor", "doctor --ceilings"),
)
WIDTHS = (320, 400, 800, 1600)  # pixels
# Jenkins' htmlpublisher serves reports without scripts, inline styles or external resources.
JENKINS = "sandbox; default-src 'none'; style-src 'self'"
UNFOLD = "for (const each of document.querySelectorAll('details')) each.open = true"
AXE = importlib.util.find_spec("axe_playwright_python")
NO_AXE = "no axe-core: pip install --no-deps -c constraints.txt axe-playwright-python"

SHOWN = """[...document.querySelectorAll('section')].map(section => [section.dataset.title,
  [...section.querySelectorAll('tbody > tr:not(.axis)')].filter(row => row.checkVisibility())
    .map(row => row.cells[0].textContent)])"""  # including text that is not painted yet
UNPAINTED = """[...document.querySelectorAll('svg path, svg text')].filter(each =>
  getComputedStyle(each).fill === 'none' && getComputedStyle(each).stroke === 'none').length"""
RULERS = """[...document.querySelectorAll('table')].map(table =>
  [...table.querySelectorAll('.axis svg, tbody td:has(g) svg')].map(drawing => {
    const box = drawing.getBoundingClientRect(); return [box.x, box.width]; }))"""
PAINTED = """Promise.all([...document.querySelectorAll('img.chart')].map(async chart => {
  chart.loading = 'eager'; await chart.decode();
  const canvas = Object.assign(document.createElement('canvas'), {width: 800, height: 400});
  const context = canvas.getContext('2d'); context.drawImage(chart, 0, 0, 800, 400);
  const data = context.getImageData(0, 0, 800, 400).data, colours = new Set();
  for (let at = 0; at < data.length; at += 4)
    colours.add('#' + [0, 1, 2].map(part => data[at + part].toString(16).padStart(2, '0')).join(''));
  return [...colours];
}))"""
CENSUS = """[...document.querySelectorAll('*')].map(each =>
  [each.tagName, ...each.getAttributeNames().sort()].join(' ')).sort()"""
VIOLATIONS = """axe.run({resultTypes: ['violations']}).then(found => found.violations.map(each =>
  [each.id, each.nodes.map(node => node.html + node.failureSummary)]))"""
# Cells with overlapping texts, by their bounding boxes.
OVERLAPS = """(() => {
  const boxes = cell => { const range = document.createRange(); range.selectNodeContents(cell);
    return [...range.getClientRects()].filter(box => box.width > 1 && box.height > 1); };
  const meet = (a, b) => a.left < b.right - 1 && b.left < a.right - 1
    && a.top < b.bottom - 1 && b.top < a.bottom - 1;
  const found = [];
  for (const row of document.querySelectorAll('tbody > tr')) {
    const cells = [...row.cells].map(boxes);
    cells.forEach((own, at) => cells.slice(at + 1).forEach(others => {
      if (own.some(a => others.some(b => meet(a, b)))) found.push(row.innerText); }));
  }
  return found;
})()"""


@pytest.fixture(scope="module")
def tab() -> Iterator[Tab]:
    with a_browser() as browser:
        yield Tab(browser)


@pytest.fixture
def show(tab: Tab, tmp_path: Path) -> Show:
    """Open the page of a document with all sections unfolded."""

    def show(document: Document, state: str = "") -> None:
        path = tmp_path / "page.html"
        path.write_text(page(document))
        tab.open(path.as_uri() + state)
        tab.value(UNFOLD)

    return show


@functools.cache
def documents(name: str) -> tuple[Document, ...]:
    """Documents of every verb about something of this name."""
    return tuple(DOCUMENTS[verb](name, Path("nowhere")) for verb in VERBS)


def with_a_failure() -> RunReport:
    failed = a_record(a_failure(message="no room"), case=a_case(backend="openvino"))
    return report_document(a_run([*random_run().records, failed]))


class Jenkins(SimpleHTTPRequestHandler):
    """Serves a folder under the rules of Jenkins."""

    def end_headers(self) -> None:
        self.send_header("Content-Security-Policy", JENKINS)
        super().end_headers()

    def log_message(self, *_: Any) -> None:
        pass


@pytest.fixture
def jenkins(tmp_path: Path) -> Iterator[str]:
    """Address of the files in the test's folder."""
    handler = functools.partial(Jenkins, directory=str(tmp_path))
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()


def test_every_value_is_visible_without_scripts_and_styles(tab: Tab, jenkins: str, tmp_path: Path) -> None:
    report = with_a_failure()
    (tmp_path / "page.html").write_text(page(report))
    tab.window(1280)
    tab.open(f"{jenkins}/page.html")
    assert tab.value("getComputedStyle(document.body).maxWidth") == "none"
    assert not tab.value("document.querySelector('.tools').checkVisibility()")
    assert not tab.value(UNPAINTED)
    shown = " ".join(tab.value("document.body.innerText").split())
    values = [
        fmt.seconds(row["latency_s"]) if row["latency_s"] else row["message"] for row in report.data["rows"]
    ]
    texts = [*values, *map(str, report.answer), *(work["work"] for work in report.data["works"])]
    assert [text for text in texts if " ".join(text.split()) not in shown] == []


@pytest.mark.parametrize("width", [400, 1600])
def test_all_drawings_of_a_table_have_the_ruler_of_its_axis(width: int, tab: Tab, show: Show) -> None:
    """Marks have the measured values on that ruler (tests/test_page.py)."""
    report = report_document(random_run())
    tab.window(width)
    show(report)
    tables = [boxes for boxes in tab.value(RULERS) if boxes]
    assert [len(boxes) for boxes in tables] == [
        1 + len(report.tables),
        *[1 + len(BACKENDS)] * len(report.tables),
    ]
    assert all(boxes == [boxes[0]] * len(boxes) for boxes in tables)


def test_the_charts_of_a_page_are_loaded_with_their_colours(tab: Tab, show: Show) -> None:
    report = report_document(a_run(saturating("torch", 50)), ceilings=CEILINGS)
    tab.window(1280)
    show(report)
    colours = tab.value(PAINTED)
    assert len(colours) == 2
    assert all(colour("torch").lower() in shades for shades in colours)


def test_hostile_text_has_no_effect(tab: Tab, show: Show) -> None:
    tab.window(1280)
    for plain, hostile in zip(documents("a" * len(HOSTILE)), documents(HOSTILE), strict=True):
        show(plain)
        census = tab.value(CENSUS)
        show(hostile)
        assert tab.value(CENSUS) == census
        assert tab.complaints == []
        assert len([address for address in tab.requests if not address.startswith("data:")]) == 1


@pytest.mark.parametrize("name", ["gemm", "a" * 120])
def test_pages_fit_the_window_without_overlapping_text(name: str, tab: Tab, show: Show) -> None:
    for document in (report_document(random_run()), *documents(name)):
        show(document)
        for width in WIDTHS:
            tab.window(width)
            page_width, window_width = tab.value("[document.documentElement.scrollWidth, innerWidth]")
            assert page_width <= window_width == width, document.name
            assert tab.value(OVERLAPS) == [], (document.name, width)


@pytest.mark.nightly  # needs a package that the test extra does not have
@pytest.mark.skipif(not AXE, reason=NO_AXE)
def test_axe_finds_no_accessibility_fault(tab: Tab, show: Show) -> None:
    assert AXE
    assert AXE.origin
    axe = (Path(AXE.origin).parent / "axe.min.js").read_text()
    for document in (with_a_failure(), *documents("gemm")):
        show(document)
        tab.value(f"{axe};0")
        for theme, width in (("light", 1600), ("dark", 400)):
            tab.window(width, scheme=theme)
            assert tab.value(VIOLATIONS) == [], (document.name, theme)


def test_filters_sorting_and_folding_work_with_the_keyboard(tab: Tab, show: Show) -> None:
    tab.window(1280)
    report = report_document(random_run())
    show(report)
    title = report.tables[0].title
    before = dict(tab.value(SHOWN))[title]
    focus_on(tab, "#q")
    tab.type("jax")
    assert dict(tab.value(SHOWN))[title] == ["jax jit"]
    tab.value("document.getElementById('q').select()")
    tab.type(" ")
    focus_on(tab, "[data-pick=jax]")
    assert tab.value("getComputedStyle(document.activeElement).outlineStyle") != "none"
    tab.press(" ")
    assert tab.value("document.activeElement.getAttribute('aria-pressed')") == "true"
    faded = tab.value("[...document.querySelectorAll('.faded')].map(each => each.dataset.b)")
    assert {*faded} == {*BACKENDS} - {"jax"}
    focus_on(tab, "[data-sort='t0.1']")
    tab.press("Enter")
    assert tab.value("document.activeElement.closest('th').getAttribute('aria-sort')") == "ascending"
    tab.press("Enter")
    assert tab.value("document.activeElement.closest('th').getAttribute('aria-sort')") == "descending"
    turned = dict(tab.value(SHOWN))[title]
    assert turned == before[::-1]
    focus_on(tab, "summary")
    tab.press("Enter")
    assert not tab.value("document.activeElement.parentElement.open")
    assert "pick=jax" in tab.value("location.hash")


def focus_on(tab: Tab, selector: str) -> None:
    """Press the tabulator until this element has the focus."""
    for _ in range(200):
        if tab.value(f"document.activeElement.matches({selector!r})"):
            return
        tab.press("Tab")
    raise AssertionError(f"no key leads to {selector}")


def test_a_link_restores_order_rows_and_theme(tab: Tab, show: Show) -> None:
    tab.window(1280)
    report = report_document(random_run())
    title = report.tables[0].title
    show(report)
    plain = dict(tab.value(SHOWN))[title]
    assert len(plain) == len(BACKENDS)
    show(report, "#?sort=t0.1.down")
    assert dict(tab.value(SHOWN))[title] == plain[::-1]
    show(report, "#?q=jax&pick=jax&theme=dark")
    assert dict(tab.value(SHOWN))[title] == ["jax jit"]
    assert tab.value("document.querySelector('[data-pick=jax]').getAttribute('aria-pressed')") == "true"
    assert tab.value("document.documentElement.dataset.theme") == "dark"
    tab.value("document.getElementById('theme').click()")
    assert tab.value("[document.documentElement.dataset.theme, location.hash.includes('theme=light')]") == [
        "light",
        True,
    ]
