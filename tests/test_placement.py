"""The place where a case runs is part of its id, its record and its process."""

import sys
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from benchbench.errors import UsageError
from benchbench.launch.local import LocalTransport
from benchbench.launch.pool import WorkerPool
from benchbench.launch.project import UserCode
from benchbench.launch.transport import Transport, Worker
from benchbench.launch.workers import Template, template_of
from benchbench.model.case import Case
from benchbench.model.device import Target
from benchbench.model.measurement import Measurement
from benchbench.model.options import parse_environment
from benchbench.model.placement import ONE_DEVICE, Placement, Strategy, suffix
from benchbench.model.run import Record, Settings
from benchbench.plan.rerun import parse_variant
from benchbench.plan.suite import environments
from benchbench.running import recording
from benchbench.running.observer import RunObserver
from benchbench.timing.policy import POLICIES
from tests.factories import a_case, a_run_info
from tests.program import folder_with

FAKE = Target(name="fake", backend="fake", python=sys.executable)
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
def test_a_case_sees_the_variables_of_its_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ACCELBENCH_WORKLOADS", folder_with("surrounded"))
    plain = a_case(workload="surrounded", params={"size": 32}, backend="fake")
    cases = [plain, *(replace(plain, environment={"STEP_S": text}) for text in ("0.25", "0.5"))]
    started: Counter[Template] = Counter()
    with WorkerPool([FAKE], Settings(threads=1), sys.executable, transport=counting(started)) as pool:
        policy = replace(POLICIES["quick"], rounds=2)
        info = a_run_info(plan=tuple(cases), policy=policy, probes=tuple(pool.probe()))
        records = [record for _, record in recording.measure_rounds([pool], [info], RunObserver())]
    times = {case.id: times_of(case, records) for case in cases}
    assert list(times.values()) == [{0.001}, {0.25}, {0.5}]
    # One template for each environment; the plain one also answered the probe. With virtual time they stay.
    assert started == {template_of(case): 1 for case in cases}


def counting(started: Counter[Template]) -> Callable[[Settings, UserCode | None], Transport]:
    class Counting(LocalTransport):
        def start(self, target: Target, environment: Mapping[str, str], threads: int = 0) -> Worker:
            if target == FAKE:
                started[Template(target.name, tuple(sorted(environment.items())), threads)] += 1
            return super().start(target, environment, threads)

    return Counting


def times_of(case: Case, records: Sequence[Record]) -> set[float]:
    outcomes = [record.outcome for record in records if record.case.id == case.id]
    return {
        round(step, 9) for outcome in outcomes if isinstance(outcome, Measurement) for step in outcome.steps_s
    }


def test_each_environment_has_separate_compile_caches() -> None:
    transport = LocalTransport(Settings(threads=1))
    torch = replace(FAKE, name="torch", backend="torch")

    def environment(**own_variables: str) -> dict[str, str]:
        return transport.scratch.environment(torch, Settings(threads=1), own_variables)

    plain, flagged = environment(), environment(XLA_FLAGS="--x", PYTHONPATH="/elsewhere")
    assert flagged["XLA_FLAGS"] == "--x"
    assert flagged["PYTHONPATH"] == plain["PYTHONPATH"]
    assert flagged["TORCHINDUCTOR_CACHE_DIR"] != plain["TORCHINDUCTOR_CACHE_DIR"]
    transport.close()


@pytest.mark.parametrize("text", ["A-B=1", "=1", "A"])
def test_an_impossible_variable_that_is_typed_is_a_usage_error(text: str) -> None:
    with pytest.raises(UsageError):
        environments(parse_environment([text]))
    with pytest.raises(UsageError, match="Cannot read env:"):
        parse_variant(f"env:{text}")


def test_variables_are_read_as_typed_and_combined() -> None:
    assert parse_variant("env:A=1,env:B=").environment == {"A": "1", "B": ""}
    assert environments({"A": ["", "1"], "B": ["2"]}) == ({"B": "2"}, {"A": "1", "B": "2"})
