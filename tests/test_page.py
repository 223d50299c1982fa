"""HTML pages: marks match the measurements, hostile text has no effect, and no script is needed."""

import base64
import gzip
import hashlib
import json
import math
import random
import re
import shlex
import shutil
from collections import Counter
from html import unescape
from html.parser import HTMLParser
from pathlib import Path
from typing import Any
from urllib.parse import unquote

import pytest

from benchbench import exporters
from benchbench.analyse.metrics import metric_named
from benchbench.analyse.roofline import Ceiling
from benchbench.documents import document
from benchbench.documents.answers import bound_text
from benchbench.documents.document import Content, Document, Number, Plot, SizedValue, Sweep, Sweeps, Tone
from benchbench.documents.run import report_document
from benchbench.exporters.drawing import COLOURS, OTHERS, PLAIN
from benchbench.exporters.page import html_page
from benchbench.exporters.site import site_files
from benchbench.judging.series import trends
from benchbench.model.case import Cache
from benchbench.model.options import Weights
from benchbench.model.placement import Placement, Strategy
from benchbench.model.run import Run, Settings
from benchbench.plan.commands import command_of
from benchbench.store import runs
from studies import page_picture
from tests.factories import a_case, a_failure, a_hostile_run, a_record, a_run, a_run_info, some_rounds
from tests.program import accelbench, rows
from tests.rendering import rendered
from tests.test_roofline import a_ceiling

DATA_PARALLEL = Placement(devices=2, strategy=Strategy.DATA_PARALLEL)
BACKENDS = ("torch", "jax", "tensorflow", "onnxruntime")


def page(document: Document) -> str:
    (content,) = html_page(document).values()
    return content.decode()


def random_run(works: int = 3, seed: int = 1, backends: tuple[str, ...] = BACKENDS) -> Run:
    """Run of some works on several backends in three rounds; some alternatives have overlapping times."""
    draw = random.Random(seed)
    records = []
    for number in range(works):
        params = {"m": 64 + number, "n": 64, "k": 64}
        base = draw.choice([1e-5, 1e-3, 0.1])
        for backend in backends:
            speed = base * draw.choice([1.0, 1.02, 1.5, 4.0])
            seconds = [speed * math.exp(draw.gauss(0, draw.choice([0.002, 0.05]))) for _ in range(3)]
            mode = "jit" if backend == "jax" else "eager"
            records += some_rounds(*seconds, case=a_case(backend=backend, params=params, mode=mode))
    return a_run(records)


class Census(HTMLParser):
    """Counts elements by tag and attribute names, and collects the visible text."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.elements: Counter[tuple[str, tuple[str, ...]]] = Counter()
        self.words: list[str] = []
        self._inside: list[str] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements[tag, tuple(sorted(name for name, _ in attrs))] += 1
        self._inside.append(tag)

    def handle_endtag(self, tag: str) -> None:
        while self._inside and self._inside.pop() != tag:
            pass

    def handle_data(self, data: str) -> None:
        if not {"style", "script"} & set(self._inside):
            self.words.append(data)


def sections(text: str) -> dict[str, str]:
    """Sections by title."""
    matches = re.findall(r'<section id="[^"]+" data-title="([^"]*)">(.*?)</section>', text, re.DOTALL)
    return {unescape(title): body for title, body in matches}


def read_back(table: str) -> list[list[tuple[float, bool, tuple[float, ...]]]]:
    """Value, hollowness and interval of the marks in each row, read with the ticks of the axis."""
    axis, *rows = re.findall(r"<tr.*?</tr>", table.split("<tbody")[1], re.DOTALL)
    labels = re.findall(r'<text x="([\d.]+)"[^>]*>([\d.]+)(?:×| (.?s))</text>', axis)
    scale = {"": 1.0, "s": 1.0, "ms": 1e-3, "µs": 1e-6, "ns": 1e-9}
    ticks = [(float(x), math.log(float(value) * scale[unit])) for x, value, unit in labels]
    (first_x, first), (last_x, last) = ticks[0], ticks[-1]
    per_pixel = (last - first) / (last_x - first_x)

    def value_at(x: str) -> float:
        return math.exp(first + (float(x) - first_x) * per_pixel)

    mark = r'(?:d="M([\d.]+),[\d.]+H([\d.]+)"/>)?<path ([^>]*?)transform="translate\(([\d.]+)'
    return [
        [
            (value_at(x), 'fill="none"' in paint, tuple(value_at(end) for end in ends if end))
            for *ends, paint, x in re.findall(mark, row)
        ]
        for row in rows
    ]


@pytest.mark.parametrize("seed", range(8))
def test_marks_have_the_measured_values(seed: int) -> None:
    report = report_document(random_run(seed=seed))
    sections_by_title = sections(page(report))
    for table in report.tables:
        rows = [row for row in report.rows if f"m={row.case.params['m']} " in table.title]
        rows.sort(key=lambda row: row.value("latency_s") or 0.0)
        marks = [mark for marks in read_back(sections_by_title[table.title]) for mark in marks]
        for (value, _, interval), row in zip(marks, rows, strict=True):
            latency = row.metrics["latency_s"]
            expected = (latency.value, latency.low, latency.high)
            assert (value, *interval) == pytest.approx(expected, rel=0.02)  # about one pixel of the axis


@pytest.mark.parametrize("seed", range(12))
def test_page_and_data_have_the_same_verdicts_and_open_works_are_not_green(seed: int) -> None:
    report = report_document(random_run(works=5, seed=seed))
    marks_by_row = read_back(sections(page(report))["Fastest per work"])
    overview = report.overview[0]
    answers = dict(zip((work["work"] for work in report.data["works"]), report.answer[1:], strict=True))
    for work, row, marks in zip(report.data["works"], overview.rows, marks_by_row, strict=True):
        assert str(row[0]) == work["work"]
        answer = answers[work["work"]]
        assert (answer.tone is Tone.GOOD) == (work["standing"] == "won")
        assert marks[0][1] == (work["standing"] != "won")
        rivals = [rival for rival in work["rivals"] if rival["ratio"]]
        assert len(marks) == 1 + len(rivals)
        for (value, hollow, _), rival in zip(marks[1:], rivals, strict=True):
            assert abs(math.log(value / rival["ratio"])) < 0.02
            assert hollow != rival["slower"]
        sentence = str(answer).partition(": ")[2]
        assert sentence == work["answer"]
        assert sentence.startswith(f"{work['winner']},") or work["standing"] != "won"
    for table, work in zip(report.tables, report.data["works"], strict=True):
        section, is_decided = sections(page(report))[table.title], work["standing"] == "won"
        assert ('<span class="good">1.00×</span>' in section) == is_decided
        assert ("1.00× ?" in section) != is_decided
        assert read_back(section)[0][0][1] != is_decided


HOSTILE = "<script>alert(1)</script>\"' onload=x javascript:1 </style> {{7*7}} \u202e \x1b[31m &amp;"


def test_hostile_text_adds_no_element_and_no_attribute() -> None:
    plain, hostile = (
        Census(page(report_document(a_hostile_run(text), ceilings=ceilings_of(text))))
        for text in ("a" * len(HOSTILE), HOSTILE)
    )
    assert hostile.elements == plain.elements
    assert any("<script>alert(1)</script>" in words for words in hostile.words)
    assert not {"\u202e", "\x1b"} & set("".join(hostile.words))


def ceilings_of(device: str) -> tuple[Ceiling, ...]:
    """Ceilings that are sufficient for a roofline."""
    return tuple(a_ceiling(quantity, 1e12, device=device, threads=None) for quantity in ("float32", "memory"))


@pytest.mark.parametrize("theme", ["light", "dark"])
@pytest.mark.parametrize("shade", [*COLOURS.values(), *OTHERS, PLAIN])
def test_mark_colours_have_enough_contrast_in_both_themes(shade: str, theme: str) -> None:
    """At least 3:1, as WCAG 2.1 requires for graphics (1.4.11). Without styles the attribute applies."""
    style = Path(exporters.__file__).with_name("page.css").read_text()
    (variables,) = re.findall(rf":root\[data-theme={theme}\]{{(.*?)}}", style)
    values = dict(re.findall(r"--(\w+):(#\w+)", variables))
    for paint in ("fill", "stroke"):
        override = re.search(rf'\[{paint}="{shade}"\]{{{paint}:var\(--(\w+)\)}}', style)
        assert contrast(values[override[1]] if override else shade, values["paper"]) >= 3


def contrast(first: str, second: str) -> float:
    low, high = sorted(map(luminance, (first, second)))
    return (high + 0.05) / (low + 0.05)


def luminance(shade: str) -> float:
    """Relative luminance of an sRGB colour, as defined by WCAG."""
    digits = shade[1:] if len(shade) == 7 else "".join(2 * digit for digit in shade[1:])
    parts = [int(digits[index : index + 2], 16) / 255 for index in (0, 2, 4)]
    linear = [part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in parts]
    return sum(share * part for share, part in zip((0.2126, 0.7152, 0.0722), linear, strict=True))


def test_system_themes_equal_the_selectable_themes() -> None:
    style = Path(exporters.__file__).with_name("page.css").read_text()
    light, dark, *selectable = re.findall("--ink:[^}]*", style)
    assert [light, dark] == selectable


def test_a_page_allows_only_its_own_style_and_script() -> None:
    text = page(report_document(random_run()))
    (policy,) = re.findall(r'http-equiv="Content-Security-Policy" content="([^"]*)"', text)
    assert policy.startswith("default-src 'none'; ")
    for tag in ("style", "script"):
        (content,) = re.findall(rf"<{tag}>(.*?)</{tag}>", text, re.DOTALL)
        digest = base64.b64encode(hashlib.sha256(content.encode()).digest()).decode()
        assert f"{tag}-src 'sha256-{digest}';" in policy
    assert not re.search(r' (style|on\w+)="', text)  # the policy forbids them


def test_more_works_than_the_answer_lists_have_their_answers_in_the_overview() -> None:
    report = report_document(random_run(works=14))
    (answers,) = {column.name for column in report.overview[0].columns} & {"answer"}
    assert answers
    assert "answer" not in {c.name for c in report_document(random_run(works=5)).overview[0].columns}


def test_a_page_loads_no_other_resource() -> None:
    text = page(report_document(random_run()))
    charts = re.findall(r'src="(data:[^"]*)"', text)
    assert charts
    assert not any(re.search(r"url\((?!%23)|href=%22(?!%23)", chart) for chart in charts)
    rest = re.sub(r'src="data:[^"]*"', "", text)
    assert not re.search(r"(?:src|href)=\"(?!#)|url\(|@import|<link", rest)


def test_every_number_of_the_tables_is_on_the_page_without_a_script() -> None:
    report = report_document(random_run())
    words = "".join(Census(page(report)).words)
    for table in report.tables:
        for cell in table.cells:
            assert str(cell) in words or set(str(cell)) <= set("█▉▊▋▌▍▎▏")
    for line in (*report.facts, *report.notes, *map(str, report.answer)):
        assert line in words


def test_the_heading_is_the_answer_and_cautions_precede_the_numbers() -> None:
    run = a_run(random_run().records, damaged=("records.jsonl line 3 is damaged",))
    report = report_document(run)
    text = page(report)
    (heading,) = re.findall("<h1>(.*?)</h1>", text)
    assert unescape(heading) == str(report.answer[0])
    assert str(report.answer[0]) in rendered(report, "markdown").replace("\\", "")
    assert f"<title>{heading}</title>" in text
    assert text.index("line 3 is damaged") < text.index("Fastest per work")


def test_each_work_of_the_answers_and_of_the_overview_links_to_its_details() -> None:
    report = report_document(random_run())
    text = page(report)
    anchors = {f"#{name}" for name in re.findall('<section id="([^"]*)"', text)}
    answers, rest = text.split("</header>", 1)
    links = re.findall(r'<b><a href="([^"]*)">', answers)
    assert len(set(links)) == len(report.answer) - 1  # the first line is the headline
    assert set(links) <= anchors
    assert set(re.findall(r'<td[^>]*><a href="(#[^"]*)">', rest)) == set(links)


@pytest.mark.parametrize(("bound", "text"), [(1.0004, "1.000×"), (1.004, "1.004×"), (1.0051, "1.01×")])
def test_a_small_bound_is_not_rounded_to_none(bound: float, text: str) -> None:
    assert bound_text(bound) == text


def test_a_case_without_a_speed_has_a_row_with_the_reason() -> None:
    failed = a_record(a_failure(message="no room"), case=a_case(backend="jax", mode="jit"))
    report = report_document(a_run([*some_rounds(0.001, 0.001, 0.001), failed]))
    assert "no room" in sections(page(report))[report.tables[0].title]
    assert "no room" in sections(page(report))["Results per backend and device"]


def test_labels_do_not_repeat_the_sign_of_the_value() -> None:
    interval = Number(0.22, "±")
    cells: dict[str, Content] = {"rate": Number(2.0, "×"), "±": interval, "± fastest": interval}
    text = page(Document(name="x", title="x", tables=(document.table([cells]),)))
    labels = re.findall(r'<td[^>]*?(?: data-n="([^"]*)")?>([^<]*)</td>', text)
    assert labels == [("rate", "2.00×"), ("", "±22 %"), ("fastest", "±22 %")]


def test_sizes_are_drawn_as_lines() -> None:
    sweep = Sweep(
        label="torch eager",
        backend="torch",
        points=tuple(SizedValue(size=2.0**n, value=0.001 * n, low=None, high=None) for n in (1, 2, 3)),
    )
    panel = Sweeps(title="gemm", axis="m = n", unit="s", sweeps=(sweep,))
    plot = Plot(name="sizes", title="Sizes", facts=(), reading="how", empty="", panels=(panel,))
    text = page(Document(name="report", title="Run", plots=lambda: (plot,)))
    assert text.count("<img") == 1
    assert "m = n" in unquote(text)


def test_a_page_takes_forty_kilobytes_and_two_per_case() -> None:
    content = page(report_document(random_run(works=50))).encode()
    assert len(content) <= 40_000 + 200 * 2_000
    assert len(gzip.compress(content)) <= 60_000


@pytest.mark.real
def test_every_command_on_a_page_plans_only_its_row(tmp_path: Path) -> None:
    selection = ("-w", "gemm", "-p", "m=8", "-p", "n=8,16", "-p", "k=8", "--cache", "hot,cold")
    accelbench("run", *selection, "-b", "fake", "--rounds", "1", cwd=tmp_path)
    text = accelbench("report", "--format", "html", cwd=tmp_path).stdout
    planned, page_commands = [], [unescape(command) for command in re.findall("<code>(.*?)</code>", text)]
    printed_commands = accelbench("report", "--commands", cwd=tmp_path, COLUMNS="60").stdout.splitlines()
    assert printed_commands == page_commands
    refused = accelbench("report", "--commands", "--format", "csv", cwd=tmp_path, code=2)
    assert "--format" in refused.stderr
    for text in page_commands:
        arguments = shlex.split(text)[1:]
        plan = json.loads(accelbench(*arguments, "--dry-run", "--format", "json", cwd=tmp_path).stdout)
        (case,) = plan["cases"]
        planned.append(case["case"])
    assert len(planned) == 4
    assert sorted(planned) == sorted(row["case"] for row in rows(tmp_path))


@pytest.mark.parametrize(
    ("over", "options"),
    [
        ({"threads": 3}, " --threads 3"),
        ({"cache": Cache.COLD}, " --cache cold"),
        ({"environment": {"SOME_FLAG": "--a=1 --b"}}, " --env 'SOME_FLAG=--a=1 --b'"),
        ({"placement": DATA_PARALLEL}, " --world 2 --strategy data-parallel"),
    ],
)
def test_the_command_of_a_case_has_all_that_selects_it(over: dict[str, Any], options: str) -> None:
    assert command_of(a_case(**over)) == command_of(a_case()) + options


def test_the_command_of_a_user_model_has_its_location_and_options() -> None:
    settings = Settings(threads=1, input="in.npz", weights=Weights.AS_THEY_ARE, max_error=0.01)
    info = a_run_info(models={"net": "lib/net.py:Net"}, settings=settings)
    options = "--model lib/net.py:Net --input in.npz --weights as-they-are --max-error 0.01 -w net"
    assert options in command_of(a_case(workload="net"), info)
    assert command_of(a_case(), info) == command_of(a_case())


def test_a_case_that_options_cannot_describe_has_no_command() -> None:
    assert command_of(a_case(environment={"A": "1,2"})) == ""
    assert command_of(a_case(dtype=None)) == ""


def test_the_page_in_the_readme_is_up_to_date() -> None:
    assert page_picture.PAGE.read_bytes() == page_picture.page(), "python -m studies.page_picture"


def test_a_report_of_one_backend_is_a_page_without_an_answer() -> None:
    report = report_document(random_run(backends=("torch",)))
    assert [table.title for table in report.overview] == ["Results per backend and device"]
    assert "torch" in page(report)


# The site of all stored runs

HOSTILE_NAME = '"><script>alert(1)</script>../../x'


def a_series(steps: int = 12, change_at: int = 6, case: str = "gemm") -> list[Run]:
    """Daily runs of a case, twice as slow from one of them on."""
    runs = []
    for day in range(1, steps + 1):
        pace = 0.001 * (1 + 0.001 * (day % 3)) * (2 if day > change_at else 1)
        records = some_rounds(pace, pace * 1.001, pace * 0.999, case=a_case(workload=case))
        started = f"2026-01-{day:02d}T03:04:05Z"
        runs.append(a_run(records, id=f"202601{day:02d}-030405-abcd", started=started))
    return runs


def site_of(runs: list[Run]) -> dict[str, bytes]:
    files = list(site_files(runs, trends(runs, metric_named("latency_s"))))
    assert len({name for name, _ in files}) == len(files)
    return dict(files)


def links_of(name: str, content: bytes) -> set[str]:
    """Files of the site that a page links to or loads."""
    links = re.findall(r'(?:href|src)="(?!data:)([^"#]+)"', content.decode())
    folder = Path(name).parent
    return {
        str((folder / unquote(link)).as_posix()).replace("runs/../", "").replace("cases/../", "")
        for link in links
    }


def test_every_link_resolves_and_every_page_is_reachable() -> None:
    files = site_of([*a_series(), a_run(id="20260201-030405-abcd", started="2026-02-01T03:04:05Z")])
    reached = {"index.html"}
    for _ in range(3):
        reached |= {
            link
            for name in reached & files.keys()
            if name.endswith("html")
            for link in links_of(name, files[name])
        }
    assert reached == set(files)


def test_a_trend_over_four_days_is_drawn_without_a_warning() -> None:
    pages = [content for name, content in site_of(a_series(5)).items() if name.startswith("cases/")]
    assert all(b"<img" in page for page in pages)


def test_a_run_is_compared_with_the_latest_earlier_run_of_a_common_case() -> None:
    series = a_series(3)
    run = a_run(some_rounds(1e-3, 1e-3, 1e-3, case=a_case(workload="lstm")), id="20260102-100000-abcd",
                  started="2026-01-02T10:00:00Z")  # fmt: skip
    files = site_of([series[0], series[1], run, series[2]])
    assert f"runs/{series[0].info.id}-before.html" not in files
    assert f"runs/{run.info.id}-before.html" not in files
    text = files[f"runs/{series[2].info.id}-before.html"].decode()
    assert f"Comparison of {series[2].info.id} with {series[1].info.id}" in text


def test_the_index_lists_slowdowns() -> None:
    index = site_of(a_series())["index.html"].decode()
    assert '<span class="bad">slower 2.00×</span>' in index
    assert index.count('<span class="bad">1 of 1 case slower') == 1


def test_hostile_names_are_escaped() -> None:
    files = site_of([a_hostile_run(HOSTILE_NAME)])
    for name, content in files.items():
        assert ".." not in name
        assert b"<script>alert" not in content


def test_shared_files_are_written_first_and_the_index_last() -> None:
    names = list(site_of(a_series(2)))
    assert set(names[:2]) == {"page.css", "page.js"}
    assert names[-1] == "index.html"


def test_symbolic_links_in_the_site_folder_are_not_followed(tmp_path: Path) -> None:
    runs.store_run(tmp_path / "results", a_series(1)[0])
    victim, public = tmp_path / "victim", tmp_path / "public"
    victim.mkdir()
    public.mkdir()
    (victim / "file").write_text("precious")
    (public / "index.html").symlink_to(victim / "file")
    accelbench("site", "-o", "public", cwd=tmp_path)
    assert (victim / "file").read_text() == "precious"
    assert not (public / "index.html").is_symlink()
    shutil.rmtree(public / "runs")
    (public / "runs").symlink_to(victim)
    accelbench("site", "-o", "public", cwd=tmp_path, code=6)
    assert [path.name for path in victim.iterdir()] == ["file"]
    accelbench("site", "--results", "nothing", cwd=tmp_path, code=5)
