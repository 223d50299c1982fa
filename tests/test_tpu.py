"""Steps of JAX compiled for a TPU, ahead of time, by libtpu: no TPU is needed, and none computes.

`TPU_LIBRARY_PATH` names the library:

    pip install --no-deps --target DIR -c constraints.txt libtpu
    TPU_LIBRARY_PATH=DIR/libtpu/libtpu.so pytest -m nightly tests/test_tpu.py
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

import pytest

from benchbench.backends.jax import MATMUL_PRECISION, Jax, JaxSession
from benchbench.model.case import Dtype
from benchbench.workloads.base import Draw, Workload
from tests.tiny import EVERY, NAMES, tiny

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

pytestmark = [
    pytest.mark.nightly,  # convolutions and their gradients take 8 to 100 s each
    pytest.mark.real,
    pytest.mark.skipif("TPU_LIBRARY_PATH" not in os.environ, reason="TPU_LIBRARY_PATH names no libtpu"),
]
HOST = {  # variables that libtpu would request from the metadata server of Google's cloud
    "TPU_SKIP_MDS_QUERY": "1",
    "TPU_ACCELERATOR_TYPE": "v5litepod-4",
    "TPU_WORKER_HOSTNAMES": "localhost",
}
UNCOMPILED = {"device_to_host", "host_to_device"}  # more than one program
MOVED = {"overlap"}  # puts an array into pinned memory, which needs the device
COMPILED = [
    name for name in NAMES if "jax" in EVERY[name].frameworks() and name not in UNCOMPILED | MOVED
]  # fmt: skip
MIXED = ["bert_base_train", "gpt2_train", "llama_train", "transformer_train"]
NARROW = ["gemm", "attention", "attention_backward", "conv2d", "lstm", "gpt2_decode", "llama_prefill"]
CASES = [
    *((name, Dtype.FLOAT32) for name in COMPILED),
    *((name, Dtype.BFLOAT16) for name in NARROW),
    *((name, Dtype.AMP_BF16) for name in MIXED),
]


class CompilingSession(JaxSession):
    """Its device has no memory: arrays stay on the host, and the step is traced with their shapes."""

    def put(self, array: NDArray[np.generic]) -> Any:
        return self._typed(array)

    def committed(self, array: Any) -> Any:
        return array


@pytest.fixture(scope="module")
def tpu() -> Any:
    """The first device of a TPU v5e."""
    pytest.importorskip("jax")
    from jax.experimental import topologies

    with pytest.MonkeyPatch.context() as patched:
        for name, value in HOST.items():
            patched.setenv(name, value)
        yield topologies.get_topology_desc(platform="tpu", topology_name="v5e:2x2").devices[0]


def compiled(tpu: Any, workload: Workload, dtype: Dtype) -> Any:
    """The step compiled for that device, with the memory of the state reused."""
    import jax
    import numpy as np

    backend, session = Jax(), CompilingSession(tpu, dtype)
    sharding = jax.sharding.SingleDeviceSharding(tpu)
    program = backend.program(session, workload, workload.arrays(Draw(dtype)))
    arguments = jax.tree.map(
        lambda array: jax.ShapeDtypeStruct(np.shape(array), array.dtype, sharding=sharding),
        (*program.state, *program.inputs),
    )
    with jax.default_matmul_precision(MATMUL_PRECISION.get(dtype)):
        step: Any = session.compile(program.step, len(program.state))
        return step.lower(*arguments).compile()


@pytest.mark.parametrize(
    ("name", "dtype"), [pytest.param(name, dtype, id=f"{name}-{dtype}") for name, dtype in CASES]
)
def test_a_step_compiles_for_a_tpu(name: str, dtype: Dtype, tpu: Any) -> None:
    assert compiled(tpu, tiny(name), dtype).memory_analysis().output_size_in_bytes > 0


def test_float32_is_multiplied_in_float32_and_not_as_a_tpu_does_by_itself(tpu: Any) -> None:
    """By default a TPU rounds operands to bfloat16."""
    work = tiny("gemm")
    assert "operand_precision={highest,highest}" in compiled(tpu, work, Dtype.FLOAT32).as_text()
    assert "highest" not in compiled(tpu, work, Dtype.BFLOAT16).as_text()
