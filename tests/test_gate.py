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
        """Sessions, oldest first."""
        paths = (self.folder / "results/baselines").rglob("*.json")
        return sorted(paths, key=lambda path: json.loads(path.read_text())["started"])

    @property
    def session(self) -> Path:
        return self.sessions[-1]

    def edit_sessions(self, pattern: str, replacement: str) -> None:
        for path in self.sessions:
            session = path.read_text()
            edited = re.sub(pattern, replacement, session)
            assert edited != session
            path.write_bytes(resealed(edited.encode()))

    def keep_one_session(self) -> None:
        """Keep one session, but not the session of the stored run: a run is not compared with itself."""
        for path in (*self.sessions[:-2], self.sessions[-1]):
            path.unlink()


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


@pytest.fixture(scope="module")
def slower_template(template: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    bench = Bench(Path(shutil.copytree(template, tmp_path_factory.mktemp("slower") / "bench")))
    bench.pace("0.0012 0.001")
    bench.run(*FAKE)
    return bench.folder


@pytest.fixture
def slower(slower_template: Path, tmp_path: Path) -> Bench:
    """The same folder with a newer run in which one case is slower, and with the slower pace."""
    return Bench(Path(shutil.copytree(slower_template, tmp_path / "slower")))


@pytest.mark.real
def test_unchanged_code_measured_now_passes_and_is_a_run(bench: Bench) -> None:
    result = bench.check()
    assert result["endings"] == []
    assert [finding["threshold"] for finding in result["findings"]] == [0.05, 0.05]
    assert result["confirmation"] is None
    listed = json.loads(bench.run("list", "runs", "--format", "json").stdout)
    assert [row["run"] for row in listed][-1] == result["run"]["id"]


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
    refused = bench.run("baseline", "set", "main", match[1], code=2)
    assert f"Run {match[1]} is the second test of {result['run']['id']}" in refused.stderr
    listed = json.loads(bench.run("list", "runs", "--format", "json").stdout)
    assert [row["run"] for row in listed][-1] == result["run"]["id"]


@pytest.mark.real
def test_a_temporary_slowdown_is_not_confirmed(slower: Bench) -> None:
    slower.pace("0.001 0.001")
    result = slower.check("latest")
    assert result["findings"][0]["flagged"]
    assert result["findings"][0]["verdict"] == "same"
    assert "not confirmed" in result["findings"][0]["reason"]


@pytest.mark.real
def test_no_confirm_decides_in_one_stage(slower: Bench) -> None:
    slower.pace("0.001 0.001")
    result = slower.check("latest", "--no-confirm", code=10)
    assert result["stages"] == 1
    assert result["confirmation"] is None


def test_a_run_of_another_machine_is_decided_in_one_stage_with_a_note(slower: Bench) -> None:
    hardware = r'("cpu":) ?"[^"]*"(, ?\n? *"cores")'
    for path in (slower.folder / "results").rglob("*.json"):
        text = re.sub(hardware, r'\1 "Other CPU"\2', path.read_text())
        path.write_bytes(resealed(text.encode()) if "crc32" in text else text.encode())
    machine = json.loads((next((slower.folder / "results/runs").iterdir()) / "run.json").read_text())[
        "machine"
    ]
    assert machine["cpu"] == "Other CPU"
    slower.session.parent.rename(slower.session.parent.with_name(fingerprint_of(machine)))
    result = slower.check("latest", code=10)
    assert "not measured again" in result["note"]
    assert result["stages"] == 1


def fingerprint_of(fields: dict[str, Any]) -> str:
    from benchbench.machine.environment import fingerprint
    from benchbench.model.device import Machine

    return fingerprint(Machine(**{**fields, "accelerators": tuple(fields["accelerators"])}))


@pytest.mark.real
def test_exit_zero_reports_a_regression_with_exit_code_0(slower: Bench) -> None:
    result = slower.check("latest", "--exit-zero")
    assert result["endings"] == ["regressed"]
    assert result["counts"]["slower"] == 1


@pytest.mark.real
def test_a_broken_case_ends_with_4_and_is_not_a_regression(bench: Bench) -> None:
    bench.pace("broken")
    result = bench.check("--exit-zero", code=4)
    assert result["endings"] == ["failed"]
    assert "ValueError" in result["findings"][0]["reason"]


def test_a_case_that_breaks_during_confirmation_ends_with_4(slower: Bench) -> None:
    slower.pace("broken")
    assert slower.check("latest", code=4)["findings"][0]["verdict"] == "broken"


def test_a_missing_baseline_ends_with_11_before_anything_is_measured(bench: Bench) -> None:
    process = bench.run("check", "--baseline", "mian", code=11)
    assert "Did you mean 'main'?" in process.stderr
    assert "round" not in process.stderr


def test_other_hardware_ends_with_11_and_names_the_hardware_of_the_baseline(bench: Bench) -> None:
    bench.edit_sessions(r'"cpu": "[^"]*"', '"cpu": "Other CPU"')
    bench.session.parent.rename(bench.session.parent.with_name("0123456789ab"))
    process = bench.run("check", "--baseline", "main", "--exit-zero", code=11)
    assert "has no session of this hardware" in process.stderr
    assert "Other CPU" in process.stderr


@pytest.mark.real
def test_other_work_ends_with_11(bench: Bench) -> None:
    bench.edit_sessions(r'"flops": \d+', '"flops": 7')
    result = bench.check("--exit-zero", code=11)
    assert result["findings"][0]["reason"].startswith("counted flops 7 → ")


@pytest.mark.real
def test_a_missing_backend_ends_with_11_and_never_passes(bench: Bench) -> None:
    bench.edit_sessions('(paced.*)fake:cpu(.*"device": )"cpu"', r'\1fake:cuda:0\2"cuda:0"')
    result = bench.check(code=11)
    assert result["endings"] == ["not_comparable"]
    assert result["conclusions"][0].endswith("unavailable: fake has no device 'cuda:0'")
    bench.edit_sessions('(honest.*)fake:cpu(.*"device": )"cpu"', r'\1fake:cuda:0\2"cuda:0"')
    assert "None of the selected cases" in bench.run("check", "--baseline", "main", code=3).stderr


@pytest.mark.real
def test_a_run_without_common_cases_does_not_pass(bench: Bench) -> None:
    bench.run("run", "-b", "fake", "-d", "cpu", "--quick", "-w", "gemm", "-p", "m=8")
    result = bench.check("latest", code=11)
    assert result["conclusions"] == [
        "NOT COMPARABLE: no case could be tested",
        "INCOMPLETE: 2 cases: in the baseline, but not in the plan of the run",
    ]


def test_undecided_cases_end_with_13_if_none_is_decided(bench: Bench) -> None:
    assert bench.check("latest", "--inconclusive", "fail")["counts"] == {"same": 2}
    bench.keep_one_session()
    output = bench.run("check", "latest", "--baseline", "main", code=13).stdout
    assert output.splitlines()[0].startswith("INCONCLUSIVE 2 of 2: 4 more sessions on other days")
    assert "provisional: 1 of 5 sessions; the spread between sessions is assumed to be 7 %" in output
    assert "PASS" not in output
    assert bench.check("latest", code=13)["endings"] == ["inconclusive"]
    assert bench.check("latest", "--inconclusive", "pass")["endings"] == ["inconclusive"]
    assert (
        "assumed to be 2 %"
        in bench.run("check", "latest", "--baseline", "main", "--dedicated", code=13).stdout
    )


@pytest.mark.real
def test_slower_on_one_session_is_provisional_and_ends_with_12(bench: Bench) -> None:
    bench.keep_one_session()
    bench.pace("0.003 0.001")
    result = bench.check(code=12)
    assert result["endings"] == ["provisional", "inconclusive"]
    assert any("--ab" in conclusion for conclusion in result["conclusions"])
    assert bench.check("latest", "--exit-zero")["counts"] == {"provisional": 1, "inconclusive": 1}


def test_a_run_that_lost_a_record_ends_with_11_and_never_passes(bench: Bench) -> None:
    records = next((bench.folder / "results/runs").iterdir()) / "records.jsonl"
    lines = records.read_text().splitlines(keepends=True)
    records.write_text("".join(lines[:-1]))
    result = bench.check("latest", code=11)
    assert result["endings"][0] == "incomplete"
    assert result["missing"][0]["reason"] == "records of 2 of 3 rounds"
    damaged = [line if "paced" not in line else "x" + line for line in lines]
    records.write_text("".join(damaged))
    result = bench.check("latest", "--exit-zero", code=11)
    assert result["missing"][0]["reason"] == "planned, but without a record"
    assert not any("PASS" in line for line in result["conclusions"])


def test_other_versions_end_with_11_under_strict_env(bench: Bench) -> None:
    bench.edit_sessions('"frameworks": {"fake": "[^"]*"', '"frameworks": {"fake": "0.0.9"')
    assert bench.check("latest")["changes"] == ["fake 0.0.9 → 0.1.0"]
    assert bench.check("latest", "--strict-env", code=11)["endings"][-1] == "not_comparable"


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


def test_a_damaged_session_is_skipped_with_a_warning_unless_all_are_damaged(bench: Bench) -> None:
    path, *other_paths = bench.sessions
    path.write_text("{")
    output = bench.run("check", "latest", "--baseline", "main", "--inconclusive", "pass").stderr
    assert path.name in output
    assert "1 of 6 sessions cannot be read" in output
    for other_path in other_paths:
        other_path.write_text("{")
    assert "no session can be read" in bench.run("check", "latest", "--baseline", "main", code=5).stderr


def test_a_run_is_not_compared_with_itself(bench: Bench) -> None:
    result = bench.check("latest")
    assert result["note"].endswith("is itself a session of the baseline, and left out of it")
    assert result["findings"][0]["first"]["against"] == 5
    for path in bench.sessions[:-1]:
        path.unlink()
    output = bench.run("check", "latest", "--baseline", "main", code=11).stderr
    assert "against itself it always passes" in output


def test_a_suite_limits_the_checked_cases(bench: Bench) -> None:
    suite = 'description = "d"\n[[cases]]\nworkload = "paced"\n'
    (bench.folder / "one.toml").write_text(suite)
    result = bench.check("latest", "--suite", "one.toml")
    assert [finding["case"][:5] for finding in result["findings"]] == ["paced"]
    assert result["missing"] == []
    (bench.folder / "none.toml").write_text(suite.replace("paced", "gemm"))
    output = bench.run("check", "latest", "--baseline", "main", "--suite", "none.toml", code=2).stderr
    assert "has no case of none.toml" in output


def test_results_that_cannot_be_written_end_with_6(bench: Bench) -> None:
    runs = bench.folder / "results/runs"
    runs.rename(bench.folder / "elsewhere")
    runs.write_text("a file, not a folder")
    bench.run("check", "--baseline", "main", code=6)


def test_patterns_of_the_nearest_config_file_override_its_general_threshold(bench: Bench) -> None:
    (bench.folder / "accelbench.toml").write_text(
        '[check]\nbaseline = "main"\nmax-slowdown = "30%"\nmetric = ["latency_s", "peak_host_bytes"]\n'
        '[thresholds]\n"paced*" = 0.4\n"nothing*" = "1%"\n'
    )
    inner = bench.folder / "inner"
    inner.mkdir()
    results = str(bench.folder / "results")
    process = accelbench(
        "check", "latest", "--format", "json", cwd=inner, ACCELBENCH_RESULTS=results, **paced_by(bench.folder)
    )
    data = json.loads(process.stdout)
    limits = {(finding["case"][:5], finding["metric"]): finding["threshold"] for finding in data["findings"]}
    assert limits == {
        (case, metric): value
        for case, value in (("paced", 0.4), ("hones", 0.3))
        for metric in ("latency_s", "peak_host_bytes")
    }
    assert data["idle_thresholds"] == ["accelbench.toml 'nothing*'"]
    typed = json.loads(
        accelbench(
            "check",
            "latest",
            "--max-slowdown",
            "7%",
            "--format",
            "json",
            cwd=inner,
            ACCELBENCH_RESULTS=results,
        ).stdout
    )
    assert {finding["threshold_from"] for finding in typed["findings"]} == {"--max-slowdown"}


@pytest.mark.real
def test_a_suite_can_define_thresholds(bench: Bench) -> None:
    suite = 'description = "d"\npolicy = "quick"\n[thresholds]\n"paced*" = "50%"\n'
    suite += "".join(f'[[cases]]\nworkload = "{name}"\n' for name in ("paced", "honest"))
    (bench.folder / "own.toml").write_text(suite)
    bench.pace("0.0012 0.001")
    bench.run("run", "--suite", "own.toml", "-b", "fake", "-d", "cpu")
    unnamed = bench.run("check", "latest", "--baseline", "main", "--no-confirm", code=10)
    assert "suite 'own' is not found by name" in unnamed.stderr
    (bench.folder / "accelbench.toml").write_text('[run]\nsuite = ["own.toml"]\n')
    assert bench.check("latest") == bench.check("latest", "--suite", "own.toml")
    result = bench.check("latest", "--suite", "own.toml")
    limits = {finding["case"][:5]: finding["threshold_from"] for finding in result["findings"]}
    assert limits == {"paced": "suite own 'paced*'", "hones": "default"}


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
