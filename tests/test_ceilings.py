"""Ceilings: the search for the best product, and the stored results."""

import json
from pathlib import Path
from typing import Any

import pytest

from benchbench.analyse.roofline import Ceiling
from benchbench.diagnosis import ceilings
from benchbench.documents.doctor import ceilings_document
from benchbench.errors import UnreadableInput
from benchbench.model.case import Dtype
from benchbench.model.run import Record
from benchbench.store import runs
from tests.factories import (
    CPU,
    a_case,
    a_cost,
    a_failure,
    a_machine,
    a_measurement,
    a_record,
    a_run,
    a_run_info,
    a_telemetry,
    a_watched,
)
from tests.program import accelbench, rows
from tests.rendering import rendered
from tests.test_roofline import a_ceiling


def a_product(side: int, rate: float, **over: Any) -> Record:
    case = a_case(**({"params": dict.fromkeys("mnk", side)} | over))
    step = 2 * side**3 / rate
    measurement = a_measurement(iterations=1, block_s=(step,) * 5, cost=a_cost(flops=2 * side**3))
    return a_record(measurement, case=case, device_model=CPU.model)


@pytest.mark.parametrize(
    ("products", "tried"),
    [
        (  # backends close to the best
            [(1024, 1e11, "torch"), (1024, 0.85e11, "jax"), (1024, 0.7e11, "tensorflow")],
            [("jax", 2048), ("torch", 2048)],
        ),
        (  # the best round of each case
            [(1024, 1e11, "torch"), (1024, 1e11, "jax"), (1024, 1e10, "jax")],
            [("jax", 2048), ("torch", 2048)],
        ),
        ([(1024, 1e12, "torch"), (2048, 1.2e12, "torch")], [("torch", 4096)]),  # sizes gain
        ([(1024, 1e12, "torch"), (2048, 1.005e12, "torch")], []),
        ([(1024, 1e12, "torch"), (2048, 0.9e12, "torch")], []),
        ([(2048, 1e12, "torch"), (4096, 2e12, "torch")], []),  # the largest size
    ],
)
def test_a_larger_size_is_tried_by_the_best_backends_while_sizes_gain(
    products: list[tuple[int, float, str]], tried: list[tuple[str, int]]
) -> None:
    records = [a_product(side, rate, backend=backend) for side, rate, backend in products]
    assert [(case.target, case.params["m"]) for case in ceilings.larger_products(records)] == tried


def test_each_dtype_and_device_is_searched_separately() -> None:
    cases = ceilings.larger_products(
        [
            a_product(1024, 1e11),
            a_product(1024, 1e9, dtype=Dtype.BFLOAT16),  # a step of the next size would take 17 s
            a_product(4096, 5e14, device="cuda:0", dtype=Dtype.BFLOAT16),
        ]
    )
    assert {(case.device, case.dtype, case.params["k"]) for case in cases} == {
        ("cpu", Dtype.FLOAT32, 2048),
        ("cuda:0", Dtype.BFLOAT16, 8192),
    }


def test_oblong_products_can_be_best_but_do_not_extend_the_search() -> None:
    shape = dict(zip("mnk", ceilings.OBLONG[0], strict=True))
    oblong = a_product(4096, 9e11, params=shape, device="cuda:0")
    assert ceilings.larger_products([oblong]) == []
    assert ceilings.best_rates(a_run_info(), [oblong])[0].rate == pytest.approx(9e11)


def test_the_best_rate_of_each_device_and_quantity_is_a_ceiling() -> None:
    cost = a_cost(flops=0, bytes=10**9, items=1, item="copy")
    copied = a_measurement(iterations=1, block_s=(0.1,) * 5, cost=cost)
    best = ceilings.best_rates(
        a_run_info(),
        [
            a_product(1024, 1e11),
            a_product(2048, 2e11),
            a_product(1024, 3e11, dtype=Dtype.BFLOAT16),
            a_record(copied, case=a_case(workload="copy", params={"n": 9})),
            a_record(a_failure(), case=a_case(dtype=Dtype.FLOAT16)),
        ],
    )
    assert [ceiling.quantity for ceiling in best] == ["bfloat16", "float32", "memory"]
    assert [ceiling.rate for ceiling in best] == pytest.approx([3e11, 2e11, 1e10])
    assert {ceiling.threads for ceiling in best} == {2}
    assert best[1].case == "gemm(m=2048,n=2048,k=2048)/float32/eager@torch:cpu"
    assert {ceiling.device for ceiling in best} == {CPU.model}


def test_an_implausible_rate_is_no_ceiling() -> None:
    wild = a_product(4096, 2e15, device="cuda:0", dtype=Dtype.BFLOAT16)
    record = a_record(wild.outcome, case=wild.case, device_model="NVIDIA H100 80GB HBM3")
    assert ceilings.best_rates(a_run_info(), [record]) == []


def test_contention_during_the_measurement_of_a_ceiling_is_reported() -> None:
    busy = a_watched(a_telemetry(busy_s=tuple(0.2 * n for n in range(11))), block_s=(0.01,) * 5)
    record = a_record(busy, case=a_product(1024, 1e11).case)
    best = ceilings.best_rates(a_run_info(), [record])
    assert [n.text for n in ceilings.limiting_conditions(best, [record])] == [
        "contended: other processes used 0.5 of a core"
    ]
    text = rendered(ceilings_document(best, ["contended: \x1b[31m"]))
    assert text.endswith("contended: \\x1b[31m\n")


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("ACCELBENCH_CACHE", str(tmp_path))
    return tmp_path


def store(*stored_ceilings: Ceiling) -> Path:
    path = ceilings.ceilings_file(a_machine())
    path.parent.mkdir(exist_ok=True)
    path.write_bytes(ceilings.encode(a_machine(), stored_ceilings))
    return path


def test_ceilings_are_read_back_on_the_same_hardware_only(cache: Path) -> None:
    stored_ceilings = (a_ceiling(), a_ceiling("memory", 1e10, device="GPU", threads=None))
    assert store(*stored_ceilings).parent == cache / "ceilings"
    assert ceilings.read_ceilings(a_machine(python="3.14", os="Linux 7.0")) == stored_ceilings
    assert ceilings.read_ceilings(a_machine(threads=1)) == ()


def test_a_new_measurement_replaces_the_same_quantity_and_keeps_the_others() -> None:
    before = [a_ceiling(rate=2e12), a_ceiling("memory", 1e10), a_ceiling(threads=1, rate=5e11)]
    merged = ceilings.merge(before, [a_ceiling(rate=1e12)])
    assert [(ceiling.quantity, ceiling.threads, ceiling.rate) for ceiling in merged] == [
        ("float32", 2, 1e12),
        ("memory", 2, 1e10),
        ("float32", 1, 5e11),
    ]


@pytest.mark.parametrize(
    "content",
    [
        *(b"", b"{", b"[]", b"\xff", b"[" * 10**6),
        b'{"schema": 1, "ceilings": [{"device": 3}]}',
        b'{"schema": 1, "ceilings": [{"device": "a\xa7"}]}',
    ],
)
def test_a_damaged_file_is_an_error_with_its_name(cache: Path, content: bytes) -> None:
    path = store()
    path.write_bytes(content)
    with pytest.raises(UnreadableInput, match=path.name):
        ceilings.read_ceilings(a_machine())


def test_a_newer_file_is_ignored(cache: Path) -> None:
    store().write_bytes(b'{"schema": 2, "ceilings": []}')
    assert ceilings.read_ceilings(a_machine()) == ()


def test_ceilings_show_their_share_of_the_datasheet() -> None:
    stored_ceilings = [
        a_ceiling("bfloat16", 494.5e12, device="NVIDIA H200", threads=None),
        a_ceiling("memory", 4.32e12, device="NVIDIA H200", threads=None),
        a_ceiling("float64", 6e13, device="AMD Instinct MI250X", threads=None),
    ]
    document = ceilings_document(stored_ceilings, [])
    assert [row["of_datasheet"] for row in document.data["ceilings"]] == [
        pytest.approx(0.5),
        pytest.approx(0.9),
        None,
    ]
    lines = rendered(document).splitlines()
    assert lines[0].split() == ["DEVICE", "OF", "RATE", "OF", "DATASHEET", "REACHED", "BY"]
    assert lines[1].split()[:-1] == ["NVIDIA", "H200", "bfloat16", "GEMM", "494", "TFLOP/s", "50.0", "%"]
    assert lines[2].split()[:-1] == ["NVIDIA", "H200", "memory", "4.32", "TB/s", "90.0", "%"]
    assert lines[3].split()[-2] == "–"


@pytest.mark.real
def test_ceilings_are_measured_stored_and_used_by_reports(tmp_path: Path) -> None:
    cache = str(tmp_path / "cache")
    fake = ("-b", "fake", "-d", "cpu")
    process = accelbench(
        "doctor", "--ceilings", *fake, "--format", "json", cwd=tmp_path, ACCELBENCH_CACHE=cache
    )
    rate_of = {ceiling["quantity"]: ceiling["rate"] for ceiling in json.loads(process.stdout)["ceilings"]}
    assert rate_of == {
        "float32": pytest.approx(1e12),
        "bfloat16": pytest.approx(1e12),
        "float16": pytest.approx(1e12),
        "memory": pytest.approx(1e12),
    }
    assert "kept in" in process.stderr
    arguments = ("run", *fake, "--quick", "-w", "gemm,copy")
    accelbench(*arguments, cwd=tmp_path, ACCELBENCH_CACHE=cache)
    report = json.loads(accelbench("report", "--format", "json", cwd=tmp_path, ACCELBENCH_CACHE=cache).stdout)
    shares = [row["flops_of_ceiling"] or row["bytes_of_ceiling"] for row in report["rows"]]
    assert shares == pytest.approx([1, 1])
    table = accelbench("report", cwd=tmp_path, ACCELBENCH_CACHE=cache).stdout
    assert "of ceiling" in table
    assert table.count(" 100 % ") == 2
    assert {row["flops_of_ceiling"] for row in rows(tmp_path)} == {None}  # with another cache


def test_unreadable_ceilings_are_a_warning_in_a_report(cache: Path) -> None:
    path = store(a_ceiling())
    path.write_text("{")
    runs.store_run(cache / "results", a_run())
    assert f"warning: {path}" in accelbench("report", cwd=cache, ACCELBENCH_CACHE=str(cache)).stderr


@pytest.mark.real
def test_the_documented_example_is_current(tmp_path: Path) -> None:
    arguments = ("doctor", "--ceilings", "-b", "fake", "-d", "cpu", "--dtype", "float32,bfloat16")
    process = accelbench(*arguments, cwd=tmp_path, ACCELBENCH_CACHE=str(tmp_path))
    document = Path(__file__).parent.parent / "docs/doctor.md"
    assert f"```\n$ accelbench {' '.join(arguments)}\n{process.stdout}```" in document.read_text()


def test_measurement_options_need_a_measurement(tmp_path: Path) -> None:
    process = accelbench("doctor", "-b", "fake", cwd=tmp_path, code=2)
    assert "--backend does not go without --ceilings." in process.stderr


def test_ceilings_without_a_device_have_an_exit_code(tmp_path: Path) -> None:
    accelbench("doctor", "--ceilings", "-b", "fake", "-d", "cuda", cwd=tmp_path, code=3)
