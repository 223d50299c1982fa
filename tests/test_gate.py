"""The gate from a shell, on the fake backend: every exit code and its causes."""

import json
import re
import shutil
from pathlib import Path
from typing import Any

import pytest

from benchbench.analyse.pricing import Prices
from benchbench.launch.project import find_config
from benchbench.plan import config
from tests.program import accelbench, add_sessions, paced_by, resealed

FAKE = ("run", "-b", "fake", "-d", "cpu", "--quick", "-w", "paced,honest")


class Bench:
    """A folder with a baseline of two cases and five days; `pace` sets the step time of one case."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def pace(self, text: str) -> None:
        (self.folder / "pace").write_text(text)

    def run(self, *arguments: str, code: int = 0, **more: Any) -> Any:
        return accelbench(*arguments, **{"cwd": self.folder, "code": code, **paced_by(self.folder), **more})

    def check(self, *arguments: str, code: int = 0) -> dict[str, Any]:
        process = self.run("check", "--baseline", "main", *arguments, "--format", "json", code=code)
        data: dict[str, Any] = json.loads(process.stdout)
        assert data["exit_code"] == code
        return data

    @property
    def sessions(self) -> list[Path]:
        return list((self.folder / "results/baselines").rglob("*.json"))

    def edit_sessions(self, pattern: str, replacement: str) -> None:
        for path in self.sessions:
            session = path.read_text()
            edited = re.sub(pattern, replacement, session)
            assert edited != session
            path.write_bytes(resealed(edited.encode()))


@pytest.fixture(scope="module")
def template(tmp_path_factory: pytest.TempPathFactory) -> Path:
    bench = Bench(tmp_path_factory.mktemp("template"))
    bench.pace("0.001 0.001")
    bench.run(*FAKE)
    bench.run("baseline", "set", "main")
    add_sessions(bench.folder / "results", 5)
    return bench.folder


@pytest.fixture
def bench(template: Path, tmp_path: Path) -> Bench:
    return Bench(Path(shutil.copytree(template, tmp_path / "bench")))


@pytest.mark.real
def test_slower_code_is_measured_again_and_ends_with_10(bench: Bench) -> None:
    bench.pace("0.0012 0.001")
    process = bench.run("check", "--baseline", "main", code=10)
    assert "1 flagged, measuring again: paced" in process.stderr
    assert process.stdout.splitlines()[0].startswith("FAIL 1 of 2: paced(size=32)")
    result = bench.check(code=10)
    slower, other_finding = result["findings"]
    assert (slower["verdict"], other_finding["flagged"]) == ("slower", False)
    assert slower["first"]["ratio"] == pytest.approx(1.2, rel=0.01)
    assert slower["confirmation"]["ratio"] == pytest.approx(1.2, rel=0.01)
    again = bench.folder / "results/runs" / result["run"]["id"] / "runs" / result["confirmation"]["run"]["id"]
    assert len((again / "records.jsonl").read_text().splitlines()) == 3
    assert "paced" in bench.run("report", str(again), "--format", "csv").stdout
    output = bench.run("check", "latest", "--baseline", "main", code=10).stdout
    match = re.search(r"measured again: run (\w+)", output)
    assert match
    assert "paced" in bench.run("report", match[1], "--format", "csv").stdout
    assert match[1] not in bench.run("list", "runs").stdout + bench.run("history", "--format", "json").stdout
    assert bench.check("latest", "--exit-zero")["endings"] == ["regressed"]
    refused = bench.run("baseline", "set", "main", match[1], code=2)
    assert f"Run {match[1]} is the second test of {result['run']['id']}" in refused.stderr
    listed = json.loads(bench.run("list", "runs", "--format", "json").stdout)
    assert [row["run"] for row in listed][-1] == result["run"]["id"]


@pytest.mark.real
def test_a_broken_case_ends_with_4_and_is_not_a_regression(bench: Bench) -> None:
    bench.pace("broken")
    result = bench.check("--exit-zero", code=4)
    assert result["endings"] == ["failed"]
    assert "ValueError" in result["findings"][0]["reason"]


def test_a_missing_baseline_ends_with_11_before_anything_is_measured(bench: Bench) -> None:
    process = bench.run("check", "--baseline", "mian", code=11)
    assert "Did you mean 'main'?" in process.stderr
    assert "round" not in process.stderr


@pytest.mark.real
def test_a_missing_backend_ends_with_11_and_never_passes(bench: Bench) -> None:
    bench.edit_sessions('(paced.*)fake:cpu(.*"device": )"cpu"', r'\1fake:cuda:0\2"cuda:0"')
    result = bench.check(code=11)
    assert result["endings"] == ["not_comparable"]
    assert result["conclusions"][0].endswith("unavailable: fake has no device 'cuda:0'")
    bench.edit_sessions('(honest.*)fake:cpu(.*"device": )"cpu"', r'\1fake:cuda:0\2"cuda:0"')
    assert "None of the selected cases" in bench.run("check", "--baseline", "main", code=3).stderr


def test_options_decide_about_few_sessions_and_other_versions(bench: Bench) -> None:
    assert bench.check("latest", "--inconclusive", "fail")["counts"] == {"same": 2}
    bench.edit_sessions('"frameworks": {"fake": "[^"]*"', '"frameworks": {"fake": "0.0.9"')
    assert bench.check("latest")["changes"] == ["fake 0.0.9 → 0.1.0"]
    assert bench.check("latest", "--strict-env", code=11)["endings"][-1] == "not_comparable"
    (_, *others) = (path for path in bench.sessions if "-" in path.stem)  # not the session of the run itself
    for path in others:
        path.unlink()
    output = bench.run("check", "latest", "--baseline", "main", "--dedicated", code=13).stdout
    assert output.splitlines()[0].startswith("INCONCLUSIVE 2 of 2: 4 more sessions on other days")
    assert "provisional: 1 of 5 sessions; the spread between sessions is assumed to be 2 %" in output
    assert bench.check("latest", "--inconclusive", "pass")["endings"] == ["inconclusive"]


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        (("check",), 2, "Which baseline?"),
        (("check", "latest", "--baseline", "main", "--metric", "latencies"), 2, "No metric"),
        (("check", "latest", "--baseline", "main", "--max-slowdown", "5"), 2, "between 0% and 100%"),
        (("check", "latest", "--baseline", "main", "--suite", "quik"), 2, "Did you mean 'quick'?"),
        (("check", "nosuch", "--baseline", "main"), 5, "No run 'nosuch'"),
    ],
)
def test_usage_errors_have_an_exit_code_and_a_hint(
    bench: Bench, arguments: tuple[str, ...], code: int, message: str
) -> None:
    process = bench.run(*arguments, code=code)
    assert message in process.stderr
    assert "hint: " in process.stderr


def test_patterns_of_the_nearest_config_file_override_its_general_threshold(bench: Bench) -> None:
    (bench.folder / "accelbench.toml").write_text(
        '[check]\nbaseline = "main"\nmax-slowdown = "30%"\nmetric = ["latency_s", "peak_host_bytes"]\n'
        '[thresholds]\n"paced*" = 0.4\n"nothing*" = "1%"\n'
    )
    inner = bench.folder / "inner"
    inner.mkdir()
    command = ("check", "latest", "--format", "json")
    results: Any = {"ACCELBENCH_RESULTS": str(bench.folder / "results")}
    data = json.loads(accelbench(*command, cwd=inner, **results).stdout)
    limits = {(finding["case"][:5], finding["metric"]): finding["threshold"] for finding in data["findings"]}
    assert limits == {
        (case, metric): value
        for case, value in (("paced", 0.4), ("hones", 0.3))
        for metric in ("latency_s", "peak_host_bytes")
    }
    assert data["idle_thresholds"] == ["accelbench.toml 'nothing*'"]
    typed = json.loads(accelbench(*command, "--max-slowdown", "7%", cwd=inner, **results).stdout)
    assert {finding["threshold_from"] for finding in typed["findings"]} == {"--max-slowdown"}


@pytest.mark.parametrize(
    ("text", "hint"),
    [
        ("[chekc]\n", "Did you mean 'check'?"),
        ("[check]\nbaselin = 'x'\n", "Did you mean 'baseline'?"),
        ("[thresholds]\n'gemm' = 5\n", "0.03"),
        ("[check]\nmax-slowdown = 'a lot'\n", "0.03"),
        ("[price]\ncurrenci = 'EUR'\n", "Did you mean 'currency'?"),
        ("[price]\ncurrency = 'EUR'\n[price.per-hour]\nH100 = -1\n", "above zero"),
        ("[price]\ncurrency = ' '\n[price.per-hour]\nH100 = 1\n", "--price"),
        ("[code]\nworkload = ['x']\n", "Did you mean 'workloads'?"),
        ("[run]\nsuits = ['x']\n", "Did you mean 'suite'?"),
        ("not = = toml", "checking.md"),
    ],
)
def test_an_error_in_the_config_file_is_reported_with_its_place(bench: Bench, text: str, hint: str) -> None:
    (bench.folder / "accelbench.toml").write_text(text)
    process = bench.run("check", "latest", "--baseline", "main", code=2)
    assert "accelbench.toml" in process.stderr
    assert hint in process.stderr


def test_the_documentation_shows_a_file_that_is_read(tmp_path: Path) -> None:
    document = (Path(__file__).parent.parent / "docs/checking.md").read_text()
    path = tmp_path / "accelbench.toml"
    path.write_text(document.split("```toml\n")[1].split("```")[0])
    loaded = config.load_config(path)
    assert (loaded.code.workloads, loaded.code.sources) == (["benchmarks"], ["src"])
    assert (loaded.run.suite, loaded.run.backend) == ([str(tmp_path / "benchmarks/suite.toml")], ["torch"])
    assert loaded.check.baseline == "main"
    assert [(rule.pattern, rule.value) for rule in config.config_thresholds(loaded)] == [
        ("attention*bfloat16", 0.1),
        ("gemm(m=64", 0.08),
    ]
    assert config.prices(loaded) == Prices(
        currency="EUR", per_hour={"NVIDIA H100 80GB HBM3": 2.5, "*A100*": 1.8}
    )
    assert find_config(tmp_path / "a" / "b") == path
