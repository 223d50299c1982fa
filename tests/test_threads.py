"""Several numbers of threads are an axis of cases; a single one is a setting and not part of a name."""

import os
import sys
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from benchbench.documents.run import answer, report_document
from benchbench.errors import SuiteError, UsageError
from benchbench.judging.ranking import EQUIVALENCE
from benchbench.launch.local import LocalTransport
from benchbench.launch.pool import WorkerPool
from benchbench.launch.workers import Template, template_of
from benchbench.machine.sampler import Watch
from benchbench.model.device import Target
from benchbench.model.options import MeasureOptions, from_keywords, parse_threads
from benchbench.model.run import Record, Settings
from benchbench.plan.cases import plan
from benchbench.plan.suite import load_suite
from benchbench.running import recording
from benchbench.running.observer import RunObserver
from benchbench.running.request import request
from benchbench.timing.policy import POLICIES
from tests.factories import a_case, a_probe, a_run, a_run_info, some_rounds
from tests.test_placement import counting

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


def test_each_number_of_threads_has_its_own_process() -> None:
    transport = LocalTransport(Settings(threads=5))
    torch = replace(FAKE, name="torch", backend="torch")
    usual, two = (transport.scratch.environment(torch, Settings(threads=n)) for n in (5, 2))
    transport.close()
    assert (usual["OMP_NUM_THREADS"], two["OMP_NUM_THREADS"]) == ("5", "2")
    assert usual["TORCHINDUCTOR_CACHE_DIR"] != two["TORCHINDUCTOR_CACHE_DIR"]
    case = a_case()
    assert template_of(replace(case, threads=2)) == template_of(case)._replace(threads=2)


@pytest.mark.real
def test_a_worker_gets_the_number_of_threads_of_its_case() -> None:
    cases = [a_case(backend="fake", params={"m": 8, "n": 8, "k": 8}, threads=count) for count in (0, 1)]
    started: Counter[Template] = Counter()
    with WorkerPool([FAKE], Settings(threads=1), sys.executable, transport=counting(started)) as pool:
        policy = replace(POLICIES["quick"], rounds=1)
        info = a_run_info(plan=tuple(cases), policy=policy, probes=tuple(pool.probe()))
        records = [record for _, record in recording.measure_rounds([pool], [info], RunObserver())]
    assert {(record.case.threads, record.outcome.status) for record in records} == {(0, "ok"), (1, "ok")}
    assert started == {template_of(case): 1 for case in cases}


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
