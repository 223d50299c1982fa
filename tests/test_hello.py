"""One real case of each backend: the suite `hello`, as a new user runs it."""

from importlib.util import find_spec
from pathlib import Path

import pytest

from tests.program import accelbench, rows

BACKENDS = [name for name in ("torch", "tensorflow", "jax", "onnxruntime", "openvino") if find_spec(name)]


@pytest.mark.real
@pytest.mark.skipif(not BACKENDS, reason="no framework is installed")
def test_every_backend_measures_and_verifies_hello(tmp_path: Path) -> None:
    accelbench("run", "--suite", "hello", "--rounds", "1", "-b", ",".join(BACKENDS), cwd=tmp_path)
    measured_rows = rows(tmp_path)
    expected = {(backend, workload) for backend in BACKENDS for workload in ("gemm", "conv2d")}
    assert {(row["backend"], row["workload"]) for row in measured_rows} == expected
    assert all(row["latency_s"] > 0 and row["relative_error"] < 1e-4 for row in measured_rows)
