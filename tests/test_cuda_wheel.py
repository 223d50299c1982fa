"""The signatures of torch's CUDA wheel, and calls of the CUDA driver, tested without a GPU.

The tests need the environment `torch_xla`, whose torch is built for CUDA: `accelbench env create torch_xla`.
"""

import ast
import json
import os
import re
import shutil
import subprocess
from pathlib import Path

import psutil
import pytest

from benchbench.environments.interpreters import environment_folder, interpreter_in
from benchbench.launch.local import LocalTransport
from benchbench.model.device import Target
from benchbench.model.run import Settings
from tests.test_architecture import PACKAGE, ROOT

PYTHON = interpreter_in(environment_folder("torch_xla"))
OTHERS = {"missing_modes", "join"}  # functions of the backend that need more than CUDA's API

pytestmark = [
    pytest.mark.real,
    pytest.mark.skipif(not PYTHON.exists(), reason="accelbench env create torch_xla"),
]

# Replaces every function of torch.cuda that the backend calls with a mock of the same signature.
CALLS = """
import json, sys
from contextlib import ExitStack
from types import SimpleNamespace
from unittest import mock

import torch
from benchbench.backends.torch import Torch
from benchbench.model.case import Dtype

names, answers = sys.argv[1].split(), {
    "is_available": True, "is_initialized": True, "device_count": 2, "current_device": 1,
    "get_device_name": "Example GPU", "get_device_capability": (9, 0), "max_memory_allocated": 7,
    "get_device_properties": SimpleNamespace(L2_cache_size=5),
}
with ExitStack() as replaced:
    fakes = {
        name: replaced.enter_context(mock.patch(f"torch.cuda.{name}", autospec=True)) for name in names
    }
    for name, answer in answers.items():
        fakes[name].return_value = answer
    fakes["Event"].return_value.elapsed_time.return_value = 2.0
    backend = Torch()
    devices = [device.name for device in backend.devices()[0]]
    attached = backend.attach(None)[0].name
    session = backend.open("cuda:0", Dtype.TF32, "cudagraph", 1)
    compiled = session.compile(lambda value: value + 1, 0)
    outputs = [compiled(1) for _ in range(session.calls_until_timed + 1)]
    session.reset_peak()
    with session.range("step"):
        session.spin(10)
    session.wait(None)
    blocks = session.timer().blocks(lambda: None, 2, 3)
    output = {
        "devices": devices, "attached": attached, "outputs": outputs, "blocks": blocks,
        "precision": session.precision(), "cache": session.cache_bytes(),
        "peak": session.peak_device().bytes,
        "never": sorted(name for name, fake in fakes.items() if not fake.called),
        "replays": fakes["CUDAGraph"].return_value.replay.call_count,
    }
print(json.dumps(output))
"""


def used_of_cuda() -> set[str]:
    """The names of `torch.cuda` that the backend uses, except in the functions `OTHERS`."""
    source = (PACKAGE / "backends/torch.py").read_text()
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.FunctionDef) and node.name in OTHERS:
            source = source.replace(ast.get_source_segment(source, node) or "", "")
    return set(re.findall(r"torch\.cuda\.((?:nvtx\.)?\w+)", source))


def test_the_backend_calls_cuda_with_the_wheels_signatures() -> None:
    names = used_of_cuda()
    command = [str(PYTHON), "-P", "-c", CALLS, " ".join(sorted(names))]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    process = subprocess.run(command, env=environment, capture_output=True, text=True)
    assert process.returncode == 0, process.stderr
    assert json.loads(process.stdout) == {
        "devices": ["cpu", "cuda:0", "cuda:1"],
        "attached": "cuda:1",
        "outputs": [2, 2, 2],
        "blocks": [0.002] * 3,
        "precision": {"float32_multiply": "tf32", "storage": "torch.float32"},
        "cache": 5,
        "peak": 7,
        "never": [],
        "replays": 2,
    }


# A driver and its NVML without a GPU that log their calls.
DRIVER = """
#include <stdio.h>
#include <unistd.h>
static void note(const char *what) {
    FILE *file = fopen(LOG, "a");
    fprintf(file, "%d %s\\n", getpid(), what);
    fclose(file);
}
#ifdef NVML
int nvmlInit(void) { note("nvmlInit"); return 0; }
int nvmlInit_v2(void) { note("nvmlInit"); return 0; }
int nvmlDeviceGetCount_v2(unsigned *count) { note("nvmlDeviceGetCount"); *count = GPUS; return 0; }
#else
__attribute__((constructor)) static void loaded(void) { note("libcuda"); }
int cuInit(unsigned flags) { note("cuInit"); return 100; }
int cuDriverGetVersion(int *version) { note("cuDriverGetVersion"); *version = 12080; return 0; }
int cuGetProcAddress_v2(void) { note("cuGetProcAddress"); return 500; }
#endif
"""


@pytest.fixture
def log(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest) -> Path:
    """The log of a driver, with lines `process function`. The parameter: the number of GPUs of its NVML."""
    gpus = getattr(request, "param", 0)
    compiler = shutil.which("gcc")
    if not compiler:
        pytest.skip("the driver is compiled by gcc")
    (tmp_path / "driver.c").write_text(DRIVER)
    log = tmp_path / "log"
    log.touch()
    for name, flags in {"libcuda.so.1": [], "libnvidia-ml.so.1": ["-DNVML", f"-DGPUS={gpus}"]}.items():
        options = ["-shared", "-fPIC", f'-DLOG="{log}"', *flags, "driver.c", "-o", name]
        subprocess.run([compiler, *options], cwd=tmp_path, check=True)
    monkeypatch.setenv("LD_LIBRARY_PATH", str(tmp_path))
    return log


def test_the_template_process_never_calls_the_driver(log: Path) -> None:
    """CUDA cannot be used in a fork of a process that called the driver. Importing torch only loads it."""
    transport = LocalTransport(Settings(threads=1))
    worker = transport.start(Target(name="torch@cuda", backend="torch", python=str(PYTHON)), {})
    assert worker.ready().status == "ready"
    templates = {process.pid for process in psutil.Process().children(recursive=True)}
    assert any("libcudart" in Path(f"/proc/{pid}/maps").read_text() for pid in templates)
    assert {function for _, function in driver_calls(log)} <= {"libcuda"}
    before = len(driver_calls(log))
    answer = worker.run({"kind": "probe"}, 60.0, fork=True)
    transport.close()
    assert answer.reply
    assert answer.reply["missing"]["cuda"].startswith("no CUDA device is visible to torch (built for CUDA")
    probed = driver_calls(log)[before:]
    assert {function for _, function in probed} == {"nvmlInit", "nvmlDeviceGetCount"}
    assert not {pid for pid, _ in probed} & templates


@pytest.mark.parametrize("log", [0, 1], indirect=True)
def test_a_process_that_imports_the_compiler_calls_only_nvml(log: Path) -> None:
    """Inductor looks for a GPU through NVML, after which a fork can still use CUDA."""
    transport = LocalTransport(Settings(threads=1))
    worker = transport.start(Target(name="torch@cuda", backend="torch", python=str(PYTHON)), {})
    assert worker.ready().status == "ready"
    kinds = [("forward", "eager"), ("train", "compile")]
    answer = worker.run({"kind": "preload", "kinds": kinds}, 300.0, fork=False)
    transport.close()
    assert answer.reply == {}
    functions = {function for _, function in driver_calls(log)}
    assert "nvmlDeviceGetCount" in functions
    assert functions <= {"libcuda", "nvmlInit", "nvmlDeviceGetCount"}


def driver_calls(log: Path) -> list[tuple[int, str]]:
    lines = (line.split() for line in log.read_text().splitlines())
    return [(int(pid), function) for pid, function in lines]
