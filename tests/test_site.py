"""The site: linked pages of all stored runs."""

import re
import shutil
from pathlib import Path
from urllib.parse import unquote

from benchbench.analyse.metrics import metric_named
from benchbench.exporters.site import site_files
from benchbench.judging.series import trends
from benchbench.model.run import Run
from benchbench.store import runs
from tests.factories import a_case, a_hostile_run, a_run, some_rounds
from tests.program import accelbench

ATOM = "{http://www.w3.org/2005/Atom}"
HOSTILE = '"><script>alert(1)</script>../../x'


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


def test_the_same_runs_give_the_same_bytes() -> None:
    assert site_of(a_series()) == site_of(a_series())


def test_hostile_names_are_escaped() -> None:
    files = site_of([a_hostile_run(HOSTILE)])
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
