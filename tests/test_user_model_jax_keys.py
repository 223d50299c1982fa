"""JAX modules whose calls take random keys and switches, as the examples of flax and equinox do."""

import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

pytest.importorskip("jax")

from benchbench import registry
from benchbench.backends.jax import Jax
from benchbench.model.case import Dtype
from benchbench.model.user_model import JAX, parse_spec
from benchbench.worker.user_models import jax_model
from benchbench.worker.user_models.jax_model import JaxInference
from benchbench.worker.user_models.reference import model_reference, with_expected
from benchbench.worker.verify import output_deviation, output_elements
from benchbench.workloads.base import Draw

pytestmark = pytest.mark.real
NNX = """import numpy
from flax import nnx


class Model(nnx.Module):
    def __init__(self, width=64, *, rngs: nnx.Rngs):
        self.a, self.b = nnx.Linear(64, width, rngs=rngs), nnx.Linear(width, 10, rngs=rngs)
        self.dropout = nnx.Dropout(0.1)

    def __call__(self, x, *, rngs: nnx.Rngs):
        return self.b(self.dropout(nnx.gelu(self.a(x)), rngs=rngs))


def inputs(batch=8):
    return numpy.random.randn(batch, 64).astype("float32")
"""
EQUINOX = """import equinox
import jax
import numpy


class Model(equinox.Module):
    layer: equinox.nn.Linear
    dropout: equinox.nn.Dropout

    def __init__(self, width: int = 64, *, key):
        self.layer, self.dropout = equinox.nn.Linear(64, width, key=key), equinox.nn.Dropout(0.5)

    def __call__(self, x, enable_dropout, key):
        return self.dropout(jax.vmap(self.layer)(x), inference=not enable_dropout, key=key)


def inputs(batch=8):
    return numpy.random.randn(batch, 64).astype("float32"), False, jax.random.key(0)
"""


@pytest.fixture(autouse=True)
def cache_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setenv(registry.DRAWN, str(tmp_path))
    yield
    jax_model.load.cache_clear()
    for name in [name for name in sys.modules if name.endswith("keys_of_jax")]:
        del sys.modules[name]


@pytest.mark.parametrize(("package", "text"), [("flax", NNX), ("equinox", EQUINOX)])
def test_keys_and_switches_are_passed(tmp_path: Path, package: str, text: str) -> None:
    pytest.importorskip(package)
    (tmp_path / "keys_of_jax.py").write_text(text)
    spec = replace(parse_spec("keys_of_jax.py", str(tmp_path)), kind=JAX)
    workload = JaxInference(spec, jax_model.load(spec).sizes)
    reference = with_expected(workload, Dtype.FLOAT32, model_reference(workload, Dtype.FLOAT32))
    assert not reference.unverified
    backend = Jax()
    session = backend.open("cpu", Dtype.FLOAT32, "jit", 1)
    program = backend.program(session, workload, workload.arrays(Draw(Dtype.FLOAT32)))
    output = session.compile(program.step, 0)(*program.inputs)
    elements = output_elements(workload, program, output, session)
    assert output_deviation(workload, elements, reference.expected, reference.tolerance).ratio < 1
