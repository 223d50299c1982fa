"""Products in float8: inputs, tolerance, detection of mistakes, and unsupported cases."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from benchbench.backends.base import Backend
from benchbench.backends.fake import Fake
from benchbench.backends.jax import Jax, JaxSession
from benchbench.backends.onnxruntime import OnnxRuntime
from benchbench.backends.tensorflow import TensorFlow
from benchbench.backends.torch import CpuSession, Torch
from benchbench.errors import Unsupported
from benchbench.model.case import Dtype, Phase
from benchbench.model.device import Device, DeviceClass
from benchbench.worker.reference import reference
from benchbench.worker.verify import relative_error, sample_indices
from benchbench.workloads.base import Draw, Operation
from benchbench.workloads.draw import rounded
from benchbench.workloads.operations.elementwise import Relu
from benchbench.workloads.operations.gemm import Gemm, Linear
from tests.tiny import tiny

GPU = Device(name="gpu:0", device_class=DeviceClass.ACCELERATOR, model="Example GPU")
CPU = Device(name="cpu", device_class=DeviceClass.CPU, model="")
# Multiples of 16, which cuBLASLt needs; a CPU takes any size.
PRODUCTS = [
    Gemm(m=48, n=32, k=64), Gemm(m=48, n=32, k=64, transpose_a=True, transpose_b=True),
    Linear(batch=16, inputs=64, outputs=48), Gemm(m=16, n=16, k=4096),
]  # fmt: skip


def output(framework: str, work: Any) -> Any:
    arrays = work.arrays(Draw(Dtype.FLOAT8))
    if framework == "torch":
        pytest.importorskip("torch")
        session: Any = CpuSession("cpu", Dtype.FLOAT8, "eager")
        program = work.build_torch(session, arrays)
        result = program.step(*program.inputs)
    else:
        jax: Any = pytest.importorskip("jax")
        session = JaxSession(jax.devices("cpu")[0], Dtype.FLOAT8)
        program = work.build_jax(session, arrays)
        result = jax.jit(program.step)(*program.inputs)
    assert "float8_e4m3fn" in str(program.inputs[0].dtype)
    assert session.dtype_of(result) == "bfloat16"
    return session.fetch(result)


@pytest.mark.real
@pytest.mark.parametrize("framework", ["torch", "jax"])
@pytest.mark.parametrize("work", PRODUCTS)
def test_a_product_in_float8_is_within_its_tolerance(framework: str, work: Operation) -> None:
    exact, (index,) = reference(work, Dtype.FLOAT8), sample_indices(work).values()
    values = output(framework, work)[tuple(index.T)]
    assert relative_error(values, exact.expected["output"]) < exact.tolerance["output"] < 0.03


def without_a_product(work: Any) -> Any:
    arrays = dict(work.arrays(Draw(Dtype.FLOAT8)))
    arrays["a"] = arrays["a"].copy()
    arrays["a"][:, ::20] = 0
    return arrays["a"] @ arrays["b"]


def of_fewer_bits(work: Any) -> Any:
    """The product with a mantissa of two bits, as in E5M2."""
    a, b = (work.arrays(Draw(Dtype.FLOAT8))[name] for name in "ab")
    _, exponents = np.frexp(a)
    spacing = np.ldexp(1.0, exponents - 3)
    return (np.rint(a / spacing) * spacing) @ b


def transposed(work: Any) -> Any:
    a, b = (work.arrays(Draw(Dtype.FLOAT8))[name] for name in "ab")
    return (a @ b).T


@pytest.mark.parametrize("mistake", [without_a_product, of_fewer_bits, transposed])
@pytest.mark.parametrize("size", [64, 1024])
def test_mistakes_in_float8_exceed_the_tolerance(mistake: Callable[[Any], Any], size: int) -> None:
    work = Gemm(m=64, n=64, k=size)
    exact, (index,) = reference(work, Dtype.FLOAT8), sample_indices(work).values()
    wrong = mistake(work)[tuple(index.T)]
    assert relative_error(wrong, exact.expected["output"]) > exact.tolerance["output"]


def test_inputs_are_float8_numbers() -> None:
    values = np.array([0.0, 1.0, 1.06, -1.07, 0.0009, 0.001, 300.0, 1000.0, 2**-6 * 1.0625], np.float32)
    expected = [0.0, 1.0, 1.0, -1.125, 0.0, 2**-9, 288.0, 448.0, 2**-6]
    assert rounded(values, Dtype.FLOAT8).tolist() == expected
    matrix = Gemm(m=64, n=64, k=64).arrays(Draw(Dtype.FLOAT8))["a"]
    np.testing.assert_array_equal(rounded(matrix, Dtype.FLOAT8), matrix)


@pytest.mark.parametrize(
    ("backend", "device", "phase", "reason"),
    [
        (Torch(), GPU, Phase.FORWARD, ""),
        (Jax(), GPU, Phase.FORWARD, ""),
        (Torch(), CPU, Phase.FORWARD, "a CPU has no tensor cores"),
        (Jax(), GPU, Phase.BACKWARD, "forward products only"),
        (TensorFlow(), GPU, Phase.FORWARD, "it has the dtypes"),
        (OnnxRuntime(), GPU, Phase.FORWARD, "it has the dtypes"),
    ],
)
def test_unsupported_float8_has_a_reason(backend: Backend, device: Device, phase: Phase, reason: str) -> None:
    refusal = backend.refuses(device, Dtype.FLOAT8, backend.modes[0], phase)
    assert reason in refusal
    assert bool(refusal) == bool(reason)


@pytest.mark.real
def test_torch_needs_sizes_that_cublaslt_accepts() -> None:
    pytest.importorskip("torch")
    work = Gemm(m=7, n=24, k=32)
    with pytest.raises(Unsupported, match=r"multiples of 16 .*24 and 32"):
        work.build_torch(CpuSession("cpu", Dtype.FLOAT8, "eager"), work.arrays(Draw(Dtype.FLOAT8)))


def test_only_products_support_float8() -> None:
    assert not Gemm().refuses(Dtype.FLOAT8)
    assert not Linear().refuses(Dtype.FLOAT8)
    assert Relu().refuses(Dtype.FLOAT8)
    for name in ("gpt2_prefill", "resnet50_infer", "gpt2_train", "attention"):
        assert tiny(name).refuses(Dtype.FLOAT8)


def test_a_float8_product_counts_one_byte_per_element() -> None:
    work = replace(Gemm(), m=8, n=8, k=8)
    assert work.cost(Dtype.FLOAT8).bytes == 3 * 64
    assert Dtype("fp8") is Dtype.FLOAT8
    assert (Dtype.FLOAT8.storage, Dtype.FLOAT8.compute) == (Dtype.BFLOAT16, Dtype.FLOAT8)
    assert Dtype.FLOAT8 in Fake.dtypes
