"""Faults of a user's file, and operators that an engine cannot take, with their place."""

import sys
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torch")


from benchbench.backends.onnxruntime import OnnxRuntime
from benchbench.backends.torch import Torch
from benchbench.model.case import Dtype
from benchbench.model.user_model import TORCH, parse_spec
from benchbench.worker.user_models import torch_module
from benchbench.worker.user_models.lookup import conversion_error, describe_model
from benchbench.worker.user_models.workload import ModelInference
from benchbench.workloads.base import Draw
from tests.program import accelbench

MODEL_FOLDER = Path(__file__).parent / "user_models"
pytestmark = [pytest.mark.real]
BODY = """
import torch
from torch import nn
"""
MODULE = """
class {name}(nn.Module):
    def __init__(self{more}):
        super().__init__()
        self.layer = nn.Linear(4, 4)

    def forward(self, x):
        return self.layer(x)
"""
WHOLE = """
class Whole(nn.Sequential):
    def __init__(self):
        super().__init__(Part(), Part())
"""
INPUTS = """
def inputs(batch=2):
    return torch.randn(batch, 4)
"""


def of_text(tmp_path: Path, text: str, attribute: str = "") -> dict[str, Any]:
    file = tmp_path / "mine.py"
    file.write_text(text)
    return describe_model(parse_spec(f"mine.py{attribute and ':' + attribute}", str(tmp_path)), None)


@pytest.mark.parametrize(
    ("text", "mistake", "hint"),
    [
        (BODY + INPUTS, "mine.py defines no torch module", "Name one"),
        (BODY + MODULE.format(name="Net", more=""), "mine.py has no inputs", "torch.randn(batch, 4)"),
        (
            BODY + MODULE.format(name="One", more="") + MODULE.format(name="Two", more="") + INPUTS,
            "mine.py defines One, Two",
            "accelbench run mine.py:One\naccelbench run mine.py:Two",
        ),
        (
            BODY + MODULE.format(name="Net", more=", width, depth"),
            "Net needs 'width', 'depth'. mine.py has no inputs.",
            "    return Net(width=…, depth=…)\n",
        ),
        (BODY + "model = lambda: 3\n" + INPUTS, "mine.py is int, not a torch module", "Return an nn.Module"),
    ],
)
def test_a_file_without_a_model_or_inputs_is_an_error_with_a_hint(
    tmp_path: Path, text: str, mistake: str, hint: str
) -> None:
    description = of_text(tmp_path, text)
    assert mistake in description["mistake"]
    assert hint in description["hint"]


@pytest.mark.parametrize(
    ("text", "attribute"),
    [
        (MODULE.format(name="Part", more="") + WHOLE, "Whole"),
        (MODULE.format(name="Net", more="") + "net = Net()\n", "net"),
    ],
    ids=["part", "instance"],
)
def test_the_model_is_the_only_class_not_used_by_another(tmp_path: Path, text: str, attribute: str) -> None:
    description = of_text(tmp_path, BODY + text + INPUTS)
    assert (description.get("mistake", ""), description["attribute"], description["is_default"]) == (
        "",
        attribute,
        True,
    )


def test_an_error_has_its_line_and_cause(tmp_path: Path) -> None:
    text = "try:\n    import no_such_package\nexcept ImportError as error:\n    raise RuntimeError('x')"
    description = of_text(tmp_path, f"{text} from error\n")
    assert description["mistake"] == (
        "RuntimeError: x; caused by ModuleNotFoundError: No module named 'no_such_package'"
    )
    assert description["line"] == 4


@pytest.mark.parametrize(
    ("text", "sizes"),
    [
        (
            MODULE.format(name="Net", more=", width=4, bias=True") + INPUTS,
            {"batch": 2, "width": 4, "bias": True},
        ),
        ("model = nn.Linear(4, 4)\n" + INPUTS, {"batch": 2}),
        (
            "def Model(depth=1):\n    return nn.Sequential(*(nn.Linear(4, 4) for _ in range(depth)))\n"
            + INPUTS,
            {"batch": 2, "depth": 1},
        ),
    ],
)
def test_a_class_a_function_and_an_object_are_models_and_their_parameters_sizes(
    tmp_path: Path, text: str, sizes: dict[str, Any]
) -> None:
    description = of_text(tmp_path, BODY + text)
    assert description["sizes"] == sizes
    assert description["is_default"]
    assert description["graph"]["parameters"] == 20


def test_a_file_that_starts_threads_is_not_imported_before_forking(tmp_path: Path) -> None:
    threads = "import threading, time\nthreading.Thread(target=time.sleep, args=(60,), daemon=True).start()\n"
    assert of_text(tmp_path, BODY + MODULE.format(name="Net", more="") + INPUTS)["can_be_preloaded"]
    forget()
    text = BODY + threads + MODULE.format(name="Net", more="") + INPUTS
    assert not of_text(tmp_path, text)["can_be_preloaded"]


@pytest.fixture(autouse=True)
def anew() -> None:
    """Import a file of the same name in each test."""
    forget()


def forget() -> None:
    torch_module.load.cache_clear()
    for name in [module for module in sys.modules if module.startswith("accelbench_own_mine")]:
        del sys.modules[name]


@pytest.mark.parametrize(
    ("line", "message"),
    [
        (
            "y = y * 2 if y.sum() > 1e9 else y",
            "torch.export: what it does next depends on a value, mine.py, line",
        ),
        (
            "y = y @ torch.linalg.matrix_exp(y.T @ y * 0.1)",
            "torch.onnx: it cannot do aten.linalg_matrix_exp, mine.py, line",
        ),
    ],
)
@pytest.mark.filterwarnings("ignore")
def test_an_unsupported_operator_is_named_with_its_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, line: str, message: str
) -> None:
    pytest.importorskip("onnxruntime")
    text = MODULE.format(name="Net", more="").replace(
        "return self.layer(x)", f"y = self.layer(x)\n        {line}\n        return y"
    )
    file = tmp_path / "mine.py"
    file.write_text(BODY + text + INPUTS)
    number = file.read_text().splitlines().index(f"        {line}") + 1
    spec = parse_spec("mine.py", str(tmp_path))
    model = ModelInference(spec, torch_module.load(spec).sizes)
    monkeypatch.chdir(tmp_path)
    backend = OnnxRuntime()
    session = backend.open("cpu", Dtype.FLOAT32, "graph", 1)
    program = backend.program(session, model, model.arrays(Draw(Dtype.FLOAT32)))
    with pytest.raises(Exception) as caught:  # noqa: PT011 - torch's own kinds
        session.compile(program.step, 0)(*program.inputs)
    assert conversion_error(caught.value, model) == f"{message} {number}"


def test_an_error_of_the_model_is_not_blamed_on_the_engine(tmp_path: Path) -> None:
    spec = parse_spec("bert_tiny.py", str(MODEL_FOLDER))
    model = ModelInference(spec, torch_module.load(spec).sizes)
    assert conversion_error(ValueError("its own"), model) is None


def test_every_mode_for_user_models_has_code() -> None:
    coded_modes = {mode for kind, mode in Torch.model_code if kind == TORCH}
    assert {*Torch.model_modes, *Torch.model_only_modes} <= coded_modes


def test_only_a_user_s_model_has_the_mode_channels_last(tmp_path: Path) -> None:
    options = ("-b", "torch", "-w", "relu", "--mode", "channels_last", "--dry-run", "--format", "json")
    output = accelbench("run", *options, cwd=tmp_path, code=3).stdout
    assert "channels_last is a mode for user models only" in output


def test_a_file_that_exits_or_hangs_is_a_usage_error(tmp_path: Path) -> None:
    (tmp_path / "exits.py").write_text("import sys\nsys.exit(3)\n")
    (tmp_path / "sleeps.py").write_text("import time\ntime.sleep(600)\n")
    for file in ("exits.py", "sleeps.py"):
        assert file in accelbench("run", file, "-b", "torch", "--timeout", "3", cwd=tmp_path, code=2).stderr
