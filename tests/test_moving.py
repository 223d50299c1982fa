"""Operations that move data and compute little: wrong programs are detected in each dtype."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from benchbench.backends.base import Backend, backend_class
from benchbench.backends.fake import Fake, FakeSession
from benchbench.backends.jax import Jax
from benchbench.backends.onnxruntime import OnnxRuntime
from benchbench.backends.openvino import OpenVino
from benchbench.backends.torch import Torch
from benchbench.errors import Unsupported
from benchbench.model.case import Dtype, Status
from benchbench.model.device import Device, DeviceClass
from benchbench.model.measurement import Cost
from benchbench.plan.cases import Plan, plan
from benchbench.plan.suite import Selection, select
from benchbench.worker import verify
from benchbench.worker.case import PART_BLOCKS, time_parts
from benchbench.worker.jobs import largest_deviation
from benchbench.worker.program import build
from benchbench.worker.reference import reference
from benchbench.worker.verify import tolerance
from benchbench.workloads.base import CONSUMER, OUTPUT, SOURCE, Draw, Program
from benchbench.workloads.operations.elementwise import SCALAR
from benchbench.workloads.transfers.copies import NEXT, PRODUCT
from tests.factories import a_probe
from tests.tiny import tiny

Index = NDArray[np.int64]
pytestmark = pytest.mark.filterwarnings(
    "ignore::DeprecationWarning", "ignore::FutureWarning", "ignore::UserWarning"
)

Wrong = Callable[[Any, Any, Index], Any]  # operation, arrays in float64, index → result of a wrong program


def smallest(work: Any, arrays: Any, index: Index) -> Any:
    return np.sort(arrays["x"], axis=1)[tuple(index.T)]


def one_place_off(work: Any, arrays: Any, index: Index) -> Any:
    return work.reference(arrays, np.stack([index[:, 0], (index[:, 1] + 1) % work.output_shape[1]], axis=1))


def unsorted_rows(work: Any, arrays: Any, index: Index) -> Any:
    return arrays["x"][tuple(index.T)]


def next_row(work: Any, arrays: Any, index: Index) -> Any:
    return work.reference({**arrays, "index": (arrays["index"] + 1) % work.rows}, index)


def overwritten(work: Any, arrays: Any, index: Index) -> Any:
    table = np.zeros(work.output_shape)
    table[arrays["index"]] = arrays["x"]
    return table[tuple(index.T)]


def scaled_by(number: float) -> Wrong:
    return lambda work, arrays, index: number * work.reference(arrays, index)


def half(work: Any, arrays: Any, index: Index) -> Any:
    exact = work.reference(arrays, index)
    return np.where(index[:, 0] < work.n // 2, exact, 0.0)


def without_the_last(work: Any, arrays: Any, index: Index) -> Any:
    summed = np.moveaxis(arrays["x"], work.axis, 0)[:-1].sum(axis=0)
    return summed[index[:, 0]]


MUTANTS: list[tuple[str, dict[str, Any], str, Wrong]] = [
    ("add", {}, "difference", lambda _, arrays, index: (arrays["x"] - arrays["y"])[index[:, 0]]),
    ("copy", {}, "a bit", scaled_by(1 + 2**-20)),
    ("host_to_device", {}, "half", half),
    ("host_to_device", {}, "a bit", scaled_by(1 + 2**-20)),
    ("device_to_host", {}, "half", half),
    ("device_to_host", {}, "a bit", scaled_by(1 + 2**-20)),
    ("launch", {}, "scaled", scaled_by(1.01)),
    ("scale", {}, "another number", scaled_by(1.01)),
    ("triad", {}, "scaled b", lambda _, arrays, index: (SCALAR * arrays["b"] + arrays["c"])[index[:, 0]]),
    ("reduction", {"axis": 0}, "one less", without_the_last),
    ("reduction", {"axis": 1}, "one less", without_the_last),
    ("reduction", {}, "mean", lambda work, arrays, index: work.reference(arrays, index) / work.columns),
    ("sort", {}, "unsorted", unsorted_rows),
    ("sort", {}, "one place off", one_place_off),
    ("top_k", {}, "the smallest", smallest),
    ("top_k", {}, "one place off", one_place_off),
    ("gather", {}, "the next row", next_row),
    ("scatter", {}, "the next row", next_row),
    ("scatter", {}, "overwritten", overwritten),
]


@pytest.mark.parametrize("dtype", [Dtype.FLOAT64, Dtype.FLOAT32, Dtype.FLOAT16, Dtype.BFLOAT16])
@pytest.mark.parametrize(
    ("name", "params", "wrong"),
    [pytest.param(*mutant[:2], mutant[3], id=f"{mutant[0]}: {mutant[2]}") for mutant in MUTANTS],
)
def test_a_wrong_program_exceeds_its_tolerance(
    name: str, params: dict[str, Any], wrong: Wrong, dtype: Dtype
) -> None:
    work = tiny(name, **params)
    arrays = work.arrays(Draw(dtype))
    index = verify.sample_indices(work)[OUTPUT]
    wide = {name: array.astype(float) if array.dtype.kind == "f" else array for name, array in arrays.items()}
    exact = work.reference(arrays, index)
    assert verify.relative_error(work.reference(wide, index), exact) == 0
    assert verify.relative_error(wrong(work, wide, index), exact) > 1.5 * tolerance(work, dtype)


@pytest.mark.parametrize("name", sorted({name for name, *_ in MUTANTS}))
@pytest.mark.parametrize("dtype", [Dtype.TF32, Dtype.INT8])
def test_an_operation_without_products_refuses_dtypes_of_products(name: str, dtype: Dtype) -> None:
    assert tiny(name).refuses(dtype) == f"{dtype} affects only products, and it has none"
    assert not tiny("gemm").refuses(dtype)


def planned(backend: str, kind: DeviceClass, workload: str, **params: Any) -> Plan:
    device = Device(name={"cpu": "cpu"}.get(kind, "cuda:0"), device_class=kind, model="")
    selection = Selection(workloads=(workload,), params={name: [value] for name, value in params.items()})
    return plan(select([], selection), selection, [a_probe(backend, devices=(device,))])


@pytest.mark.parametrize("name", ["host_to_device", "device_to_host"])
@pytest.mark.parametrize("backend", ["torch", "tensorflow", "jax", "onnxruntime", "openvino"])
@pytest.mark.parametrize("pinned", [False, True])
def test_transfers_are_not_planned_on_a_cpu(name: str, backend: str, pinned: bool) -> None:
    there = planned(backend, DeviceClass.ACCELERATOR, name, pinned=pinned)
    is_planned = backend in ("torch", "jax") or (backend == "tensorflow" and not pinned)
    assert [case.params["pinned"] for case in there.cases] == [pinned] * is_planned
    here = planned(backend, DeviceClass.CPU, name, pinned=pinned)
    assert not here.cases
    assert [omission.status for omission in here.left_out] == [Status.UNSUPPORTED]
    assert "a CPU computes in the host's memory" in here.left_out[0].reason


@pytest.mark.parametrize("name", ["host_to_device", "device_to_host"])
def test_a_transfer_counts_the_bytes_that_cross_the_link(name: str) -> None:
    cost = tiny(name, n=1000).cost(Dtype.BFLOAT16)
    assert cost == Cost(flops=0, bytes=2000, link_bytes=2000, items=1, item="transfer")


class Uncompiled(FakeSession):
    def compile(self, step: Any, state: int) -> Any:
        raise AssertionError("a transfer is compiled")


@pytest.mark.parametrize("name", ["host_to_device", "device_to_host"])
def test_a_transfer_is_never_compiled(name: str) -> None:
    @dataclass(frozen=True)
    class Copied(type(tiny(name))):  # type: ignore[misc]
        def build_fake(self, context: Any, arrays: Any) -> Program:
            return Program(np.copy, (context.put_on_host(arrays["x"]),), compiles=False)

    work: Any = Copied(n=77)
    session = Uncompiled("sim:0", Dtype.FLOAT32)
    runner = build(Fake(), session, work, Dtype.FLOAT32)
    expected = reference(work, Dtype.FLOAT32)
    assert set(expected.tolerance.values()) == {0.0}
    assert largest_deviation(work, runner, session, expected).ratio == 0.0


@pytest.mark.real
@pytest.mark.parametrize("name", ["host_to_device", "device_to_host"])
@pytest.mark.parametrize("framework", ["torch", "tensorflow", "jax"])
def test_a_transfer_keeps_every_bit(framework: str, name: str) -> None:
    """On a CPU the programs copy within its memory or not at all."""
    pytest.importorskip(framework)
    backend = backend_class(framework)()
    backend.load()
    for dtype in (Dtype.FLOAT32, Dtype.BFLOAT16):
        session = backend.open("cpu", dtype, backend.modes[0], 2)
        for pinned in (False, True):
            work = tiny(name, pinned=pinned)
            if pinned and framework != "jax":
                with pytest.raises(Unsupported, match=r"pins memory|what memory to pin"):
                    build(backend, session, work, dtype)
                continue
            runner = build(backend, session, work, dtype)
            output = runner.step()
            session.wait(output)
            elements = verify.output_elements(work, runner.program, output, session)
            assert verify.worst(elements, reference(work, dtype).expected, {OUTPUT: 0.0}).error == 0.0


@pytest.mark.parametrize("backend", ["torch", "jax"])
def test_a_copy_beside_a_product_is_not_planned_on_a_cpu(backend: str) -> None:
    here = planned(backend, DeviceClass.CPU, "overlap")
    assert [(omission.status, omission.reason) for omission in here.left_out] == [
        (Status.UNSUPPORTED, "a CPU computes in the host's memory, so nothing is copied beside its work")
    ]
    assert planned(backend, DeviceClass.ACCELERATOR, "overlap").cases


def test_tensorflow_has_no_copy_beside_a_product() -> None:
    (omission,) = planned("tensorflow", DeviceClass.ACCELERATOR, "overlap").left_out
    assert "tf.data alone" in omission.reason


@pytest.mark.parametrize("wrong", [NEXT, PRODUCT])
def test_an_overlap_that_does_half_of_its_work_is_wrong(wrong: str) -> None:
    work = tiny("overlap")
    arrays, indices = work.arrays(Draw(Dtype.FLOAT32)), verify.sample_indices(work)
    expected = reference(work, Dtype.FLOAT32)
    elements = work.references(arrays, indices)
    assert verify.worst(elements, expected.expected, expected.tolerance).ratio == 0.0
    halved = {**elements, wrong: elements[wrong] * (np.arange(len(elements[wrong])) % 2)}
    assert verify.worst(halved, expected.expected, expected.tolerance).ratio > 1.5


@pytest.mark.real
def test_jax_queues_a_copy_and_a_product_and_both_are_right() -> None:
    pytest.importorskip("jax")
    backend = Jax()
    backend.load()
    session = backend.open("cpu", Dtype.FLOAT32, "jit", 2)
    work = tiny("overlap")
    runner = build(backend, session, work, Dtype.FLOAT32)
    assert set(runner.program.parts) == {SOURCE, CONSUMER}
    assert largest_deviation(work, runner, session, reference(work, Dtype.FLOAT32)).ratio < 0.7
    parts = time_parts(runner, session.timer(), 2)
    assert {name: len(blocks) for name, blocks in parts.items()} == dict.fromkeys(
        (SOURCE, CONSUMER), PART_BLOCKS
    )


@pytest.mark.real
@pytest.mark.parametrize(
    ("kind", "name", "reason"),
    [
        (Torch, "overlap", "streams on CUDA"),
        (OnnxRuntime, "host_to_device", "whole graphs only"),
        (OpenVino, "host_to_device", "whole graphs only"),
    ],
)
def test_transfers_a_framework_lacks_are_unsupported(kind: type[Backend], name: str, reason: str) -> None:
    pytest.importorskip(kind.distributions[0] if kind in (OnnxRuntime, OpenVino) else kind.framework)
    backend = kind()
    backend.load()
    mode = "graph" if kind in (OnnxRuntime, OpenVino) else backend.modes[0]
    session = backend.open("cpu", Dtype.FLOAT32, mode, 2)
    work = tiny(name)
    with pytest.raises(Unsupported, match=reason):
        backend.program(session, work, work.arrays(Draw(Dtype.FLOAT32)))
