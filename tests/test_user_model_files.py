"""Files with a model, modules in memory, their mistakes, and operators that an engine cannot take."""

import os
import sys
import threading
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torch")
pytest.importorskip("cloudpickle")

import torch

import benchbench
from benchbench.backends.onnxruntime import OnnxRuntime
from benchbench.backends.torch import Torch
from benchbench.errors import UsageError
from benchbench.launch.functions import model_file
from benchbench.model.case import Dtype
from benchbench.model.user_model import TORCH, parse_spec
from benchbench.worker.user_models import torch_module
from benchbench.worker.user_models.lookup import conversion_error, describe_model
from benchbench.workloads.base import Draw
from tests.deviations import module_text, written_model, written_spec
from tests.program import accelbench, git, rows

pytestmark = pytest.mark.real
IMPORTS = "import torch\nfrom torch import nn\n"
INPUTS = "def inputs(batch=2):\n    return torch.randn(batch, 4)\n"


def module(name: str, parameters: str = "") -> str:
    return f"""
class {name}(nn.Module):
    def __init__(self{parameters}):
        super().__init__()
        self.layer = nn.Linear(4, 4)

    def forward(self, x):
        return self.layer(x)

"""


def described(folder: Path, text: str) -> dict[str, Any]:
    return describe_model(written_spec(folder, text), None)


@pytest.mark.parametrize(
    ("text", "mistake", "hint"),
    [
        (INPUTS, "defines no torch module", "Name one"),
        (module("Net"), "has no inputs", "torch.randn(batch, 4)"),
        (module("One") + module("Two") + INPUTS, "defines One, Two", ".py:Two"),
        (
            module("Net", ", width, depth"),
            "Net needs 'width', 'depth'.",
            "    return Net(width=…, depth=…)\n",
        ),
        ("model = lambda: 3\n" + INPUTS, "is int, not a torch module", "Return an nn.Module"),
    ],
)
def test_a_file_without_a_model_or_inputs_is_an_error_with_a_hint(
    tmp_path: Path, text: str, mistake: str, hint: str
) -> None:
    description = described(tmp_path, IMPORTS + text)
    assert mistake in description["mistake"]
    assert hint in description["hint"]


FUNCTION = "def Model(depth=1):\n    return nn.Sequential(*(nn.Linear(4, 4) for _ in range(depth)))\n"
WHOLE = """class Whole(nn.Sequential):
    def __init__(self):
        super().__init__(Part())
"""


@pytest.mark.parametrize(
    ("text", "attribute", "sizes"),
    [
        (module("Net", ", width=4, bias=True"), "Net", {"width": 4, "bias": True}),
        ("model = nn.Linear(4, 4)\n", "model", {}),
        (FUNCTION, "Model", {"depth": 1}),
        (module("Part") + WHOLE, "Whole", {}),  # the class that no other uses
        (module("Net") + "net = Net()\n", "net", {}),
    ],
)
def test_a_class_a_function_and_an_object_are_models_and_their_parameters_sizes(
    tmp_path: Path, text: str, attribute: str, sizes: dict[str, Any]
) -> None:
    description = described(tmp_path, IMPORTS + text + INPUTS)
    assert (description["attribute"], description["is_default"]) == (attribute, True)
    assert description["sizes"] == {"batch": 2, **sizes}
    assert description["graph"]["parameters"] == 20


def test_an_error_has_its_line_and_cause(tmp_path: Path) -> None:
    text = "try:\n    import no_such_package\nexcept ImportError as error:\n    raise RuntimeError('x')"
    description = described(tmp_path, f"{text} from error\n")
    assert description["mistake"] == (
        "RuntimeError: x; caused by ModuleNotFoundError: No module named 'no_such_package'"
    )
    assert description["line"] == 4


@pytest.mark.parametrize(
    "line", ["import argparse; argparse.ArgumentParser().parse_args(['--lr'])", "open('data.bin').read()"]
)
def test_a_script_that_cannot_be_imported_is_told_to_guard_its_code(tmp_path: Path, line: str) -> None:
    text = module_text()
    description = described(tmp_path, f"{text}\n{line}\n")
    assert description["line"] == text.count("\n") + 2
    assert "__main__" in description["hint"]


def test_a_file_that_exits_or_hangs_is_a_usage_error(tmp_path: Path) -> None:
    (tmp_path / "exits.py").write_text("import sys\nsys.exit(3)\n")
    (tmp_path / "sleeps.py").write_text("import time\ntime.sleep(600)\n")
    for file in ("exits.py", "sleeps.py"):
        assert file in accelbench("run", file, "-b", "torch", "--timeout", "3", cwd=tmp_path, code=2).stderr


def test_a_file_that_starts_threads_is_not_imported_before_forking(tmp_path: Path) -> None:
    threads = "import threading, time\nthreading.Thread(target=time.sleep, args=(60,), daemon=True).start()\n"
    assert described(tmp_path, module_text())["can_be_preloaded"]
    assert not described(tmp_path, threads + module_text())["can_be_preloaded"]


def test_files_of_the_same_name_in_two_folders_are_two_models(tmp_path: Path) -> None:
    parameters = []
    for width in (8, 9):
        folder = tmp_path / str(width)
        folder.mkdir()
        (folder / "same.py").write_text(module_text(init=f"self.layer = nn.Linear(16, {width})"))
        description = describe_model(parse_spec("same.py", str(folder)), None)
        parameters.append(description["graph"]["parameters"])
    assert parameters == [8 * 17, 9 * 17]


def test_a_file_changed_within_a_second_to_the_same_size_is_read_again(tmp_path: Path) -> None:
    """Imported files are read anew, too: Python itself would use the cached bytecode."""
    text = "import torch\nimport beside\nfrom torch import nn\nmodel = nn.Linear(beside.WIDTH, {width})\n"
    inputs = "def inputs(): return torch.randn(1, beside.WIDTH)\n"
    layers = []
    for width in (2, 3):
        (tmp_path / "beside.py").write_text(f"WIDTH = {width}\n")
        (tmp_path / "mine.py").write_text(text.format(width=width) + inputs)
        for name in ("beside.py", "mine.py"):
            os.utime(tmp_path / name, (1e9, 1e9))
        layer = torch_module.build(parse_spec("mine.py", str(tmp_path)), {})
        layers.append((layer.in_features, layer.out_features))
        torch_module.load.cache_clear()
        for name in ("beside", "accelbench_own_mine"):
            del sys.modules[name]
    assert layers == [(2, 2), (3, 3)]


def test_a_project_names_its_model_for_runs_and_checks(tmp_path: Path) -> None:
    text = module_text(
        "return self.layers(x)",
        init="self.layers = nn.Sequential(*[nn.Linear(256, 256) for _ in range(2)])",
        inputs="torch.randn(batch, 256)",
        batch=64,
    )
    (tmp_path / "net.py").write_text(text)
    (tmp_path / "accelbench.toml").write_text('[run]\nmodel = ["net.py"]\nbackend = ["torch"]\n')
    for arguments in (["init", "-q"], ["add", "."], ["commit", "-q", "-m", "first"]):
        git(tmp_path, *arguments)
    options = ("--mode", "eager", "--threads", "1", "--brief")
    accelbench("run", *options, "--heats", "1", cwd=tmp_path)
    assert [row["workload"] for row in rows(tmp_path)] == ["net"]
    (tmp_path / "net.py").write_text(text.replace("range(2)", "range(8)"))
    accelbench("check", "--ab", "rev:HEAD", "--no-confirm", *options, cwd=tmp_path, code=10)


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("y = y * 2 if y.sum() > 1e9 else y", "torch.export: what it does next depends on a value"),
        (
            "y = y @ torch.linalg.matrix_exp(y.T @ y * 0.1)",
            "torch.onnx: it cannot do aten.linalg_matrix_exp",
        ),
    ],
)
@pytest.mark.filterwarnings("ignore")
def test_an_unsupported_operator_is_named_with_its_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, line: str, message: str
) -> None:
    pytest.importorskip("onnxruntime")
    model = written_model(tmp_path, module_text(f"y = self.layer(x)\n{line}\nreturn y"))
    file = Path(model.spec.file)
    number = file.read_text().splitlines().index(f"        {line}") + 1
    monkeypatch.chdir(tmp_path)
    backend = OnnxRuntime()
    session = backend.open("cpu", Dtype.FLOAT32, "graph", 1)
    program = backend.program(session, model, model.arrays(Draw(Dtype.FLOAT32)))
    with pytest.raises(Exception) as caught:  # noqa: PT011 - torch's own kinds
        session.compile(program.step, 0)(*program.inputs)
    assert conversion_error(caught.value, model) == f"{message}, {file.name}, line {number}"
    assert conversion_error(ValueError("the model's own"), model) is None


def test_every_mode_for_user_models_has_code() -> None:
    coded_modes = {mode for kind, mode in Torch.model_code if kind == TORCH}
    assert {*Torch.model_modes, *Torch.model_only_modes} <= coded_modes


def test_only_a_user_s_model_has_the_mode_channels_last(tmp_path: Path) -> None:
    options = ("-b", "torch", "-w", "relu", "--mode", "channels_last", "--dry-run", "--format", "json")
    output = accelbench("run", *options, cwd=tmp_path, code=3).stdout
    assert "channels_last is a mode for user models only" in output


def local_module() -> torch.nn.Module:
    """A module of a class without a name that others could find."""

    class Residual(torch.nn.Module):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            self.inner = torch.nn.Linear(8, 8)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x + self.inner(x).relu()

    return Residual()


def described_object(inputs: Any, **training: Any) -> dict[str, Any]:
    with model_file(f"mine_{abs(hash(str(inputs)))}", local_module(), inputs, training) as file:
        return describe_model(parse_spec(file.name, str(file.parent)), None)


def test_a_module_in_memory_is_measured_and_verified_at_each_size(tmp_path: Path) -> None:
    run = benchbench.run_model(
        local_module(),
        lambda batch=2: torch.randn(batch, 8),
        params={"batch": [1, 4]},
        backends="torch",
        modes="eager",
        preset="brief",
        rounds=1,
        results=tmp_path,
    )
    assert {record.case.workload for record in run.records} == {"my_model"}
    assert sorted(record.case.params["batch"] for record in run.records) == [1, 4]
    assert [record.outcome.status for record in run.records] == ["ok", "ok"]


def test_inputs_are_a_function_or_arrays() -> None:
    function = described_object(lambda batch=3: torch.randn(batch, 8))
    inputs_given = described_object((torch.randn(3, 8),))
    assert (function["sizes"], inputs_given["sizes"]) == ({"batch": 3}, {})
    assert function["graph"]["flops"] == inputs_given["graph"]["flops"] == 2 * 3 * 8 * 8
    assert function["size"]["work_version"] == inputs_given["size"]["work_version"]


def test_a_loss_makes_a_training_step() -> None:
    assert described_object(torch.randn(3, 8), loss=lambda output: output.square().mean())["has_loss"]


@pytest.mark.parametrize(
    ("model", "inputs", "name"),
    [
        (lambda x: x, torch.ones(1), "mine"),
        (torch.nn.Identity(), threading.Lock(), "mine"),
        (torch.nn.Identity(), torch.ones(1), "no name"),
    ],
)
def test_other_objects_and_unpicklable_modules_are_refused(model: Any, inputs: Any, name: str) -> None:
    with pytest.raises(UsageError) as refused:
        benchbench.run_model(model, inputs, name=name)
    assert refused.value.hint
