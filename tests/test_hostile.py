"""Hostile input: every reader ends in bounded time with exit code 2 or 5 and the place of the fault."""

import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from benchbench.errors import AccelbenchError, SuiteError, UnreadableInput, UsageError
from benchbench.model.options import MeasureOptions
from benchbench.plan.cases import Plan, plan, without_too_large
from benchbench.plan.config import load_config
from benchbench.plan.suite import Selection, environments, load_suite, select
from benchbench.reading import read_file
from benchbench.running.request import request
from benchbench.store import runs
from benchbench.store.imports import import_files
from tests.factories import a_case, a_probe
from tests.program import accelbench, environment, rows
from tests.readers import READERS
from tests.test_architecture import ROOT

SUITE = 'description = "x"\n[[cases]]\nworkload = "gemm"\n'
BENCHMARK = {"fullname": "test_a", "stats": {"data": [0.1, 0.2], "iterations": 1}}
IMPORT = {"machine_info": {}, "benchmarks": [BENCHMARK], "datetime": "2026-01-01T00:00:00", "version": "5"}
Make = Callable[[Path], None]


def a_fifo(path: Path) -> None:
    os.mkfifo(path)


def a_device(path: Path) -> None:
    path.symlink_to("/dev/zero")


def a_folder(path: Path) -> None:
    path.mkdir()


def too_large(path: Path) -> None:
    path.touch()
    os.truncate(path, 2**40)


def has_namespaces() -> bool:
    """Whether this process can create a network namespace."""
    command = [shutil.which("unshare") or "false", "-rn", "true"]
    return subprocess.run(command, capture_output=True).returncode == 0


NO_FILES = (a_fifo, a_device, a_folder, too_large)
TOMLS = {
    "5000 digits": ("cpu = [{m = " + "1" * 5000 + "}]", "an integer of thousands of digits"),
    "400 digits": ("cpu = [{m = " + "1" * 400 + "}]", r"cases\[1\].cpu\[1\].m: an integer beyond 92"),
    "5000 levels": ("x = " + "[" * 5000 + "]" * 5000, "nested too deeply"),
    "5000 tables": ("x = " + "{a = " * 5000 + "1" + "}" * 5000, "nested too deeply"),
    "key twice": ('workload = "copy"\n', "at line 4"),
    "5000 names": ("a" + ".a" * 5000 + " = 1", "nested too deeply"),
    "escaped NUL": ('mode = ["a\\u0000b"]', r"cases\[1\].mode\[1\]: a NUL character"),
    "NUL": ('mode = ["\0"]', "at line 4"),
    "not UTF-8": ('mode = ["\udcff"]', "can't decode byte 0xff in position"),
}


@pytest.mark.parametrize("make", NO_FILES)
@pytest.mark.parametrize(
    ("name", "reader", "error"),
    [
        ("x.toml", lambda path: load_suite(str(path)), UsageError),
        ("x.toml", load_config, UsageError),
        ("x.json", lambda path: import_files([path]), UnreadableInput),
        ("run.json", lambda path: runs.read_head(path.parent), UnreadableInput),
    ],
)
def test_x11_special_and_oversized_files_are_refused(
    tmp_path: Path, make: Make, name: str, reader: Callable[[Path], object], error: type[AccelbenchError]
) -> None:
    make(tmp_path / name)
    with pytest.raises(error, match=f"{name}: "):
        reader(tmp_path / name)


@pytest.mark.parametrize(("text", "message"), TOMLS.values(), ids=TOMLS.keys())
def test_x9_hostile_toml_is_a_usage_error_with_its_place(tmp_path: Path, text: str, message: str) -> None:
    path = tmp_path / "x.toml"
    path.write_bytes((SUITE + text).encode(errors="surrogateescape"))
    with pytest.raises(SuiteError, match=f"x.toml is not valid TOML: .*{message}"):
        load_suite(str(path))
    path.write_bytes(("[[cases]]\n\n\n" + text).encode(errors="surrogateescape"))
    with pytest.raises(UsageError, match=r"x.toml: "):
        load_config(path)


def of_import(**over: object) -> bytes:
    return json.dumps(IMPORT | over).encode()


def of_benchmark(**over: object) -> bytes:
    return of_import(benchmarks=[BENCHMARK | over])


IMPORTS = {
    "key twice": (b'{"version": "4", ' + of_import()[1:], "the key 'version' appears twice"),
    "name of 9 MB": (of_benchmark(fullname="a" * 9_000_000), "has 9000000 characters"),
    "cpus": (of_import(machine_info={"cpu": {"count": 10**309}}), "more than 30 digits"),
    "levels": (b'{"x":' * 100_000, "recursion"),
    "sum overflows": (of_benchmark(stats={"data": [1e308, 1e308]}), "no duration"),
    "NaN": (of_import().replace(b"0.1", b"NaN"), "not valid JSON"),
    "date": (of_import(datetime="0001-01-01T00:00:00+23:59"), ""),
    "twice": (of_import(benchmarks=[BENCHMARK] * 2), "test_a appears twice"),
    "many": (
        of_import(benchmarks=[{**BENCHMARK, "fullname": f"{n}"} for n in range(10_001)]),
        "10001 benchmarks",
    ),
}


@pytest.mark.parametrize(("content", "message"), IMPORTS.values(), ids=IMPORTS.keys())
def test_x9_a_hostile_import_is_refused_with_its_reason(tmp_path: Path, content: bytes, message: str) -> None:
    path = tmp_path / "x.json"
    path.write_bytes(content)
    if not message:
        assert import_files([path]).records
        return
    with pytest.raises(UnreadableInput, match=f"x.json.*{message}"):
        import_files([path])


@pytest.mark.parametrize(
    "options",
    [
        MeasureOptions(timeout_s=float("inf")),
        MeasureOptions(timeout_s=float("nan")),
        MeasureOptions(budget_s=1e300),
        MeasureOptions(rounds=10**400),
        MeasureOptions(threads=(10**30,)),
        MeasureOptions(workloads=("gemm",), params={"m": 10**310}),
        MeasureOptions(workloads=("gemm",), params={"m": float("inf")}),
    ],
    ids=str,
)
def test_excessive_numbers_are_usage_errors(options: MeasureOptions) -> None:
    with pytest.raises(UsageError):
        request(options)


def test_x11_too_many_cases_are_refused_before_creating_them(tmp_path: Path) -> None:
    sizes = ", ".join(map(str, range(1, 401)))
    (tmp_path / "x.toml").write_text(f"{SUITE}cpu = [{{m = [{sizes}], n = [{sizes}]}}]\n")
    selection = Selection()
    entries = list(select([load_suite(str(tmp_path / "x.toml"))], selection))
    with pytest.raises(UsageError, match="has 160,000 cases"):
        plan(entries, selection, [a_probe()])


@pytest.mark.parametrize("table", ["cpu", "accelerator"])
def test_x11_cases_of_absent_devices_are_counted_before_creating_them(tmp_path: Path, table: str) -> None:
    many = ", ".join(map(str, range(1, 1001)))
    entry = f"{table} = [{{m = [{many}], n = [{many}], k = [{many}]}}]\n"
    (tmp_path / "x.toml").write_text(f"{SUITE}{entry}")
    suite = load_suite(str(tmp_path / "x.toml"))
    with pytest.raises(UsageError, match="has 1,000,000,000 cases"):
        plan(select([suite], Selection()), Selection(), [a_probe()])
    selection = Selection(params={"m": [2], "n": [2], "k": [2]})
    planned = plan(select([suite], selection), selection, [a_probe()])
    assert len(planned.cases) == 1


def test_x11_environments_are_counted_before_creating_them() -> None:
    with pytest.raises(UsageError, match="has 10,000,000,000 cases"):
        environments({f"V{number}": [str(value) for value in range(10)] for number in range(10)})


def test_x12_a_case_larger_than_the_memory_is_omitted_with_the_reason() -> None:
    small, huge = a_case(), a_case(params={"m": 2**40, "n": 64, "k": 64})
    limited_plan = without_too_large(Plan((small, huge), ()), 8 * 2**30)
    assert limited_plan.cases == (small,)
    assert [omission.reason for omission in limited_plan.left_out] == [
        "its arrays need 512 TiB, and this machine has 8.00 GiB of memory"
    ]
    assert without_too_large(Plan((huge,), ()), 0).cases == (huge,)


def test_a_file_is_read_up_to_the_allowed_size(tmp_path: Path) -> None:
    (tmp_path / "x").write_bytes(b"12345")
    assert read_file(tmp_path / "x", 5) == b"12345"
    with pytest.raises(AccelbenchError, match="larger than 4 bytes"):
        read_file(tmp_path / "x", 4)


@pytest.mark.real
@pytest.mark.skipif(not has_namespaces(), reason="a network of its own needs unshare -n")
def test_x17_a_run_without_a_network_measures_the_same(tmp_path: Path) -> None:
    command = ["unshare", "-rn", sys.executable, "-m", "benchbench.cli"]
    options = ["run", "-w", "gemm", "-b", "fake", "--rounds", "1", "-p", "m=8"]
    subprocess.run([*command, *options], cwd=tmp_path, env=environment(), check=True)
    accelbench(*options, cwd=tmp_path)
    isolated, usual = (
        {row["case"]: row["latency_s"] for row in rows(tmp_path, run)} for run in ("latest~1", "latest")
    )
    assert isolated == usual


# Fuzzing

FOUND = ROOT / "tests/data/fuzzing"  # content that once caused other errors, a folder per reader
JSONS = [name for name in READERS if name not in ("suite", "config", "fleet")]
HOSTILE: list[Any] = [
    *(None, True, -1, 0, 1, 2**63, 10**29, -0.0, 1e308, 5e-324, 1e29),
    *("", "x", "nan", "\x1b[31m", "../x", [], {}),
    *([1e308, 1e308], [0.0], {"x": 1}, [[]], "9" * 400, "é\u202e😀", "2026-01-01"),
]
EXAMPLES = 60  # for each reader; a study tries more


def paths_in(value: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """The path to every value inside a JSON value."""
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    return [path, *(inner for key, item in items for inner in paths_in(item, (*path, key)))]


def changed(value: Any, path: tuple[Any, ...], new: Any) -> Any:
    """A copy with `new` at a path; without the value at that path if `new` is `...`."""
    if not path:
        return None if new is ... else new
    first, remaining = path[0], path[1:]
    if isinstance(value, dict):
        if not remaining and new is ...:
            return {name: item for name, item in value.items() if name != first}
        return value | {first: changed(value[first], remaining, new)}
    inner = [] if not remaining and new is ... else [changed(value[first], remaining, new)]
    return [*value[:first], *inner, *value[first + 1 :]]


@st.composite
def nearly_valid(draw: st.DrawFn, contents: list[bytes]) -> bytes:
    """Valid JSON without a checksum and with a few values changed or removed."""
    value = json.loads(draw(st.sampled_from(contents)))
    for name in ("crc32", "checksums"):
        value.pop(name, None)
    for _ in range(draw(st.integers(1, 3))):
        path = draw(st.sampled_from(paths_in(value)))
        value = changed(value, path, draw(st.sampled_from([..., *HOSTILE]) | st.floats(0, 1e29)))
        if not isinstance(value, dict):
            break
    return json.dumps(value).encode()


def read(name: str, content: bytes) -> None:
    with tempfile.TemporaryDirectory() as folder, suppress(AccelbenchError):
        READERS[name][0](content, Path(folder))


@pytest.mark.parametrize("name", READERS)
def test_valid_content_is_read(name: str, tmp_path: Path) -> None:
    for number, content in enumerate(READERS[name][1]):
        (tmp_path / str(number)).mkdir()
        READERS[name][0](content, tmp_path / str(number))


@pytest.mark.real
@pytest.mark.parametrize("name", JSONS)
def test_x9_json_with_changed_values_is_read_or_refused(name: str) -> None:
    @settings(max_examples=EXAMPLES, derandomize=True, deadline=None, suppress_health_check=list(HealthCheck))
    @given(nearly_valid(READERS[name][1]))
    def check(content: bytes) -> None:
        read(name, content)

    check()


@pytest.mark.real
@pytest.mark.parametrize("name", READERS)
def test_x9_bytes_changed_at_random_are_read_or_refused(name: str) -> None:
    @settings(max_examples=EXAMPLES, derandomize=True, deadline=None, suppress_health_check=list(HealthCheck))
    @given(st.sampled_from(READERS[name][1]), st.integers(0), st.integers(0, 9), st.binary(max_size=9))
    @example(b"", 0, 0, b"")
    def check(content: bytes, place: int, removed: int, new: bytes) -> None:
        place %= len(content) + 1
        read(name, content[:place] + new + content[place + removed :])

    check()


@pytest.mark.parametrize(
    "path", sorted(FOUND.glob("*/*")), ids=lambda path: f"{path.parent.name}-{path.name}"
)
def test_content_that_once_caused_other_errors_is_read_or_refused(path: Path) -> None:
    read(path.parent.name, path.read_bytes())
