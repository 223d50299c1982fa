"""What torch's CUDA wheel shows without a GPU: signatures, and who asks the driver.

Both need the environment `torch_xla`, whose torch is built for CUDA: accelbench env create torch_xla.
"""

import ast
import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from benchbench.environments.interpreters import environment_folder, interpreter_in
from benchbench.launch.local import LocalTransport
from benchbench.model.device import Target
from benchbench.model.run import Settings
from tests.test_architecture import PACKAGE, ROOT

PYTHON = interpreter_in(environment_folder("torch_xla"))
OTHERS = {"missing_modes", "join"}  # functions of the backend that ask more of a machine than CUDA's API

pytestmark = [
    pytest.mark.real,
    pytest.mark.skipif(not PYTHON.exists(), reason="accelbench env create torch_xla"),
]

# Every function of torch.cuda that the backend calls is replaced by one that takes the same arguments only.
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
    found = [device.name for device in backend.devices()[0]]
    attached = backend.attach(None)[0].name
    session = backend.open("cuda:0", Dtype.TF32, "cudagraph", 1)
    compiled = session.compile(lambda value: value + 1, 0)
    outputs = [compiled(1) for _ in range(session.calls_until_timed + 1)]
    session.reset_peak()
    with session.range("step"):
        session.spin(10)
    session.wait(None)
    blocks = session.timer().blocks(lambda: None, 2, 3)
    told = {
        "devices": found, "attached": attached, "outputs": outputs, "blocks": blocks,
        "precision": session.precision(), "cache": session.cache_bytes(),
        "peak": session.peak_device().bytes,
        "never": sorted(name for name, fake in fakes.items() if not fake.called),
        "replays": fakes["CUDAGraph"].return_value.replay.call_count,
    }
print(json.dumps(told))
"""


def used_of_cuda() -> set[str]:
    """What the backend uses of `torch.cuda`, outside the functions that are not tried here."""
    source = (PACKAGE / "backends/torch.py").read_text()
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.FunctionDef) and node.name in OTHERS:
            source = source.replace(ast.get_source_segment(source, node) or "", "")
    return set(re.findall(r"torch\.cuda\.((?:nvtx\.)?\w+)", source))


def test_the_backend_calls_cuda_as_the_wheel_s_signatures_say() -> None:
    names = used_of_cuda()
    assert len(names) > 15
    command = [str(PYTHON), "-P", "-c", CALLS, " ".join(sorted(names))]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    done = subprocess.run(command, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout) == {
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


# A driver and its NVML that note who asks them what; they know of no GPU.
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
def noted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The file in which a driver without a GPU notes `process function`."""
    return notes_of_a_driver(tmp_path, monkeypatch, gpus=0)


def notes_of_a_driver(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, gpus: int) -> Path:
    """The file in which it notes `process function`. NVML tells so many GPUs; CUDA itself has none."""
    compiler = shutil.which("gcc")
    if not compiler:
        pytest.skip("a driver that notes who asks is compiled by gcc")
    (tmp_path / "driver.c").write_text(DRIVER)
    log = tmp_path / "log"
    log.touch()
    for name, flags in {"libcuda.so.1": [], "libnvidia-ml.so.1": ["-DNVML", f"-DGPUS={gpus}"]}.items():
        options = ["-shared", "-fPIC", f'-DLOG="{log}"', *flags, "driver.c", "-o", name]
        subprocess.run([compiler, *options], cwd=tmp_path, check=True)
    monkeypatch.setenv("LD_LIBRARY_PATH", str(tmp_path))
    return log


def test_calls_of_the_driver_are_noted(noted: Path) -> None:
    program = "import ctypes; print(ctypes.CDLL('libcuda.so.1').cuInit(0))"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout == "100\n"
    assert [function for _, function in asked(noted)] == ["libcuda", "cuInit"]


def test_the_process_that_cases_are_forked_from_never_calls_the_driver(noted: Path) -> None:
    """A process that has, and is forked, cannot use CUDA: the first case would not run.

    The driver is loaded all the same, by cuBLAS when torch is imported.
    """
    transport = LocalTransport(Settings(threads=1))
    worker = transport.start(Target(name="torch@cuda", backend="torch", python=str(PYTHON)), {})
    assert worker.ready().status == "ready"
    templates = set(below(os.getpid()))
    assert any("libcudart" in line for pid in templates for line in maps(pid))
    assert {function for _, function in asked(noted)} <= {"libcuda"}
    before = len(asked(noted))
    answer = worker.ask({"kind": "probe"}, 60.0, fork=True)
    transport.close()
    assert answer.reply
    assert answer.reply["missing"]["cuda"].startswith("no CUDA device is visible to torch (built for CUDA")
    probed = asked(noted)[before:]
    assert {function for _, function in probed} == {"nvmlInit", "nvmlDeviceGetCount"}
    assert not {pid for pid, _ in probed} & templates


@pytest.mark.parametrize("gpus", [0, 1])
def test_a_process_that_imports_the_compiler_calls_only_nvml(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, gpus: int
) -> None:
    """Inductor asks whether there is a GPU; NVML answers, after which a fork can still use CUDA."""
    noted = notes_of_a_driver(tmp_path, monkeypatch, gpus)
    transport = LocalTransport(Settings(threads=1))
    worker = transport.start(Target(name="torch@cuda", backend="torch", python=str(PYTHON)), {})
    assert worker.ready().status == "ready"
    kinds = [("forward", "eager"), ("train", "compile")]
    answer = worker.ask({"kind": "preload", "kinds": kinds}, 300.0, fork=False)
    transport.close()
    assert answer.reply == {}
    functions = {function for _, function in asked(noted)}
    assert "nvmlDeviceGetCount" in functions
    assert functions <= {"libcuda", "nvmlInit", "nvmlDeviceGetCount"}


def asked(noted: Path) -> list[tuple[int, str]]:
    """Process and function, in order."""
    lines = (line.split() for line in noted.read_text().splitlines())
    return [(int(pid), function) for pid, function in lines]


def below(pid: int) -> Iterator[int]:
    """The processes that it started, and those they did."""
    for path in Path(f"/proc/{pid}/task").glob("*/children"):
        for child in map(int, path.read_text().split()):
            yield child
            yield from below(child)


def maps(pid: int) -> list[str]:
    """The files that a process has mapped."""
    return Path(f"/proc/{pid}/maps").read_text().splitlines()
