"""Where and with how many threads a case runs: its id, its record and its process."""

import os
import sys
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from benchbench.documents.run import answer, report_document
from benchbench.errors import SuiteError, UsageError
from benchbench.judging.ranking import EQUIVALENCE
from benchbench.launch.local import LocalTransport
from benchbench.launch.pool import WorkerPool
from benchbench.launch.project import UserCode
from benchbench.launch.transport import Transport, Worker
from benchbench.launch.workers import Template, template_of
from benchbench.machine.sampler import Watch
from benchbench.model.device import Target
from benchbench.model.measurement import Measurement
from benchbench.model.options import MeasureOptions, from_keywords, parse_environment, parse_threads
from benchbench.model.placement import ONE_DEVICE, Placement, Strategy, suffix
from benchbench.model.run import Record, Settings
from benchbench.plan.cases import plan
from benchbench.plan.rerun import parse_variant
from benchbench.plan.suite import environments, load_suite
from benchbench.running import recording
from benchbench.running.observer import RunObserver
from benchbench.running.request import request
from benchbench.timing.policy import POLICIES
from tests.factories import a_case, a_probe, a_run, a_run_info, some_rounds
from tests.program import folder_with

FAKE = Target(name="fake", backend="fake", python=sys.executable)
GEMM = "gemm  m=64 n=64 … · float32 · cpu"
SUITE = """description = "s"
[[cases]]
workload = "gemm"
cpu = [{ m = 8, n = 8, k = 8 }]
"""


def planned(options: MeasureOptions) -> list[str]:
    made_request = request(options)
    return [
        case.id.partition("@")[2]
        for case in plan(made_request.entries, made_request.selection, [a_probe()]).cases
    ]


def a_suite(folder: Path, line: str = "") -> str:
    path = folder / "s.toml"
    path.write_text(SUITE + line)
    return str(path)


def test_several_numbers_of_threads_are_cases_and_one_is_a_setting(tmp_path: Path) -> None:
    suite = (a_suite(tmp_path),)
    assert planned(MeasureOptions(suites=suite)) == ["torch:cpu"]
    assert planned(MeasureOptions(suites=suite, threads=(2,))) == ["torch:cpu"]
    assert planned(MeasureOptions(suites=suite, threads=(1, 2))) == [
        "torch:cpu[threads=1]",
        "torch:cpu[threads=2]",
    ]
    assert request(MeasureOptions(suites=suite, threads=(3,))).settings.threads == 3
    assert request(MeasureOptions(suites=suite, threads=(3, 3))).settings.threads == 3


def test_the_command_line_overrides_the_threads_of_a_suite(tmp_path: Path) -> None:
    suite = (a_suite(tmp_path, "threads = [1, 4]\n"),)
    assert planned(MeasureOptions(suites=suite)) == ["torch:cpu[threads=1]", "torch:cpu[threads=4]"]
    assert planned(MeasureOptions(suites=suite, threads=(4,))) == ["torch:cpu[threads=4]"]
    assert planned(MeasureOptions(suites=suite, threads=(2, 3))) == [
        "torch:cpu[threads=2]",
        "torch:cpu[threads=3]",
    ]
    with pytest.raises(SuiteError, match="'0' is not a number of threads"):
        load_suite(a_suite(tmp_path, "threads = [0]\n"))


def test_numbers_of_threads_are_comma_separated_text_or_integers() -> None:
    assert parse_threads(["1,2", "4"]) == (1, 2, 4)
    assert from_keywords((), {"threads": 2}, "f").threads == (2,)
    assert from_keywords((), {"threads": [1, 2]}, "f").threads == (1, 2)
    for wrong in ("0", "-1", "two", "1.5", "9999999", "²"):
        with pytest.raises(UsageError, match="is not a number of threads"):
            parse_threads([wrong])


def test_each_number_of_threads_and_environment_has_its_own_process_and_caches() -> None:
    transport = LocalTransport(Settings(threads=5))
    torch = replace(FAKE, name="torch", backend="torch")
    environment = transport.scratch.environment
    usual, two = (environment(torch, Settings(threads=n)) for n in (5, 2))
    flagged = environment(torch, Settings(threads=5), {"XLA_FLAGS": "--x", "PYTHONPATH": "/elsewhere"})
    transport.close()
    assert (usual["OMP_NUM_THREADS"], two["OMP_NUM_THREADS"]) == ("5", "2")
    assert len({variables["TORCHINDUCTOR_CACHE_DIR"] for variables in (usual, two, flagged)}) == 3
    assert (flagged["XLA_FLAGS"], flagged["PYTHONPATH"]) == ("--x", usual["PYTHONPATH"])
    case = a_case()
    assert template_of(replace(case, threads=2)) == template_of(case)._replace(threads=2)


def test_the_cpus_of_its_threads_are_watched() -> None:
    watch = Watch(len(os.sched_getaffinity(0)))
    assert len(watch.sources(a_case(threads=1)).cpus) == 1
    assert watch.sources(a_case(threads=0)).cpus == tuple(sorted(os.sched_getaffinity(0)))


def of_threads(seconds: dict[int, float], **over: Any) -> list[Record]:
    """Six rounds of a case with each number of threads; rounds differ by a thousandth, the same for all."""
    return [
        record
        for threads, second in seconds.items()
        for record in some_rounds(
            *(second * (1 + 0.001 * number) for number in range(6)), case=a_case(threads=threads, **over)
        )
    ]


def test_the_answer_names_the_best_number_of_each_target_with_the_interval_of_its_lead() -> None:
    torch, jax = of_threads({1: 2.0, 2: 1.0, 4: 3.0}), of_threads({1: 1.0, 2: 4.0}, target="jax")
    assert answer(a_run(torch)) == [
        f"{GEMM}, torch eager: 2 threads, 2.00× as fast as 1 thread (2.00× to 2.00×)"
    ]
    assert answer(a_run([*torch, *jax]))[1:] == [
        f"{GEMM}, torch eager: 2 threads, 2.00× as fast as 1 thread (2.00× to 2.00×)",
        f"{GEMM}, jax eager: 1 thread, 4.00× as fast as 2 threads (4.00× to 4.00×)",
    ]


def test_equally_fast_numbers_of_threads_are_tied() -> None:
    one_thread, two_threads = (a_case(threads=threads) for threads in (1, 2))
    alike = some_rounds(1.0, 1.002, 1.0, case=one_thread) + some_rounds(1.0, 1.0, 1.003, case=two_threads)
    (line,) = answer(a_run(alike))
    assert f"1 thread or 2 threads, as fast as each other within {EQUIVALENCE:.0%}" in line
    assert answer(a_run(of_threads({2: 1.0}))) == []


def test_numbers_of_threads_can_be_columns() -> None:
    report = report_document(a_run(of_threads({1: 2.0, 2: 1.0})), by="threads")
    assert [column.name for column in report.tables[0].columns] == ["", "1 thread", "2 threads", "ratio"]
    assert [str(cell) for cell in report.tables[0].rows[0]][-1] == "0.500×"


FLAGS = "--xla_cpu_multi_thread_eigen=false --xla_dump_to=/tmp/[x],y%"

several = st.builds(
    lambda hosts, per_host: Placement(hosts=hosts, devices=hosts * per_host, strategy=Strategy.DATA_PARALLEL),
    st.integers(1, 64),
    st.integers(2, 64),
)
by_name = st.lists(st.integers(0, 99), min_size=2, max_size=8, unique=True).map(
    lambda numbers: Placement(
        devices=len(numbers),
        names=tuple(f"cuda:{number}" for number in numbers),
        strategy=Strategy.COLLECTIVE,
    )
)
# Strings as os.environ has them: invalid UTF-8 bytes as lone surrogates.
values = st.binary(max_size=20).map(lambda raw: raw.replace(b"\0", b"").decode(errors="surrogateescape"))
variables = st.dictionaries(st.from_regex(r"[A-Za-z_][A-Za-z0-9_]*", fullmatch=True), values, max_size=3)


runs = st.tuples(st.just(ONE_DEVICE) | several | by_name, variables, st.integers(0, 4096))


@given(runs, runs)
def test_ids_are_equal_only_for_equal_cases(one: tuple[Any, ...], other: tuple[Any, ...]) -> None:
    first, second = (
        replace(a_case(), placement=placement, environment=environment, threads=threads)
        for placement, environment, threads in (one, other)
    )
    assert (first.id == second.id) == (first == second)


def test_suffixes_are_as_documented() -> None:
    placement = Placement(hosts=2, devices=8, strategy=Strategy.DATA_PARALLEL)
    assert suffix(ONE_DEVICE, {}) == ""
    assert suffix(placement, {}) == "[hosts=2,devices=8,strategy=data-parallel]"
    split = Placement(devices=2, names=("cuda:0", "cuda:2"), strategy=Strategy.COLLECTIVE)
    assert suffix(split, {}) == "[devices=2,on=cuda:0+cuda:2,strategy=collective]"
    assert suffix(ONE_DEVICE, {"XLA_FLAGS": FLAGS}) == (
        "[env:XLA_FLAGS=--xla_cpu_multi_thread_eigen=false%20--xla_dump_to=/tmp/%5Bx%5D%2Cy%25]"
    )


@pytest.mark.parametrize("fields", [{"hosts": 2}, {"devices": 2}, {"devices": 0}, {"hosts": 2, "devices": 3}])
def test_hosts_have_equal_numbers_of_devices(fields: dict[str, int]) -> None:
    with pytest.raises(ValueError, match="devices"):
        Placement(**fields)  # type: ignore[arg-type]


@pytest.mark.parametrize("environment", [{"": "1"}, {"A=B": "1"}, {"A": "\0"}])
def test_an_impossible_variable_of_a_case_is_refused(environment: dict[str, str]) -> None:
    with pytest.raises(ValueError, match="environment"):
        a_case(environment=environment)


@pytest.mark.real
def test_a_case_gets_its_variables_and_its_number_of_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ACCELBENCH_WORKLOADS", folder_with("surrounded"))
    plain = a_case(workload="surrounded", params={"size": 32}, backend="fake")
    cases = [plain, *(replace(plain, environment={"STEP_S": text}) for text in ("0.25", "0.5"))]
    cases.append(replace(plain, threads=1))
    started: Counter[Template] = Counter()
    with WorkerPool([FAKE], Settings(threads=1), sys.executable, transport=counting(started)) as pool:
        policy = replace(POLICIES["quick"], rounds=2)
        info = a_run_info(plan=tuple(cases), policy=policy, probes=tuple(pool.probe()))
        records = [record for _, record in recording.measure_rounds([pool], [info], RunObserver())]
    outcomes: dict[str, set[float]] = {case.id: set() for case in cases}
    for record in records:
        assert isinstance(record.outcome, Measurement)
        outcomes[record.case.id] |= {round(step, 9) for step in record.outcome.steps_s}
    assert list(outcomes.values()) == [{0.001}, {0.25}, {0.5}, {0.001}]
    # One template for each environment; the plain one also answered the probe. With virtual time they stay.
    assert started == {template_of(case): 1 for case in cases}


def counting(started: Counter[Template]) -> Callable[[Settings, UserCode | None], Transport]:
    class Counting(LocalTransport):
        def start(self, target: Target, environment: Mapping[str, str], threads: int = 0) -> Worker:
            if target == FAKE:
                started[Template(target.name, tuple(sorted(environment.items())), threads)] += 1
            return super().start(target, environment, threads)

    return Counting


@pytest.mark.parametrize("text", ["A-B=1", "=1", "A"])
def test_an_impossible_variable_that_is_typed_is_a_usage_error(text: str) -> None:
    with pytest.raises(UsageError):
        environments(parse_environment([text]))
    with pytest.raises(UsageError, match="Cannot read env:"):
        parse_variant(f"env:{text}")


def test_variables_are_read_as_typed_and_combined() -> None:
    assert parse_variant("env:A=1,env:B=").environment == {"A": "1", "B": ""}
    assert environments({"A": ["", "1"], "B": ["2"]}) == ({"B": "2"}, {"A": "1", "B": "2"})
