"""`accelbench run model.pt2`: what torch.export saved is a torch module, verified and measured as one."""

import io
import json
from collections.abc import Callable
from pathlib import Path
from pickle import UnpicklingError
from typing import Any
from zipfile import ZipFile

import pytest

pytest.importorskip("torch")

import torch
from torch import nn

from benchbench.errors import UsageError
from benchbench.model.case import Dtype
from benchbench.model.user_model import parse_spec
from benchbench.worker.user_models import torch_module, torch_program
from benchbench.worker.user_models.lookup import describe_model
from benchbench.worker.user_models.program_file import CouldExecute, check_program, tensors_only
from benchbench.worker.user_models.torch_reference import outputs, wide_step
from benchbench.worker.user_models.workload import ModelInference
from benchbench.worker.verify import relative_error
from benchbench.workloads._reference.torch_rounding import Widening, computed_in
from benchbench.workloads.base import Draw
from tests.deviations import deviation, mutated
from tests.model_mutants import a_bias_forgotten, weights_in_float16
from tests.program import accelbench, rows

BATCH, LENGTH = torch.export.Dim("batch", max=64), torch.export.Dim("length", max=8)
pytestmark = [
    pytest.mark.real,
    pytest.mark.usefixtures("stored_references"),
    pytest.mark.filterwarnings("ignore"),
]


class Narrowing(nn.Module):  # type: ignore[misc]
    """Look up words, mask some, and compute a norm in float32 for any input."""

    def __init__(self) -> None:
        super().__init__()
        self.words, self.up = nn.Embedding(40, 8), nn.Linear(8, 16)
        self.scale = nn.Parameter(torch.ones(16))

    def forward(self, words: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        y = torch.tanh(self.up(self.words(words) * mask[..., None])).to(torch.float32)
        return self.scale * (y * torch.rsqrt(y.pow(2).mean(-1, keepdim=True) + 1e-6))


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """`words.pt2` with words below 30, given by position; `named.pt2`, by name."""
    folder = tmp_path_factory.mktemp("programs")
    torch.manual_seed(0)
    words, mask = torch.randint(0, 30, (3, 5)), torch.tensor([[1, 1, 1, 1, 0]]).expand(3, 5)
    model, axes = Narrowing().eval(), {0: BATCH, 1: LENGTH}
    by_place = torch.export.export(model, (words, mask), dynamic_shapes=(axes, axes))
    torch.export.save(by_place, folder / "words.pt2")
    inputs_by_name = {"words": words, "mask": mask}
    torch.export.save(torch.export.export(model, (), inputs_by_name), folder / "named.pt2")
    torch.export.save(torch.export.export(model, (words,), {"mask": mask}), folder / "mixed.pt2")
    torch.save({"weights": words}, folder / "weights.pt2")
    return folder


def the_model(file: Path, **sizes: Any) -> ModelInference:
    spec = parse_spec(file.name, str(file.parent))
    return ModelInference(spec, {**torch_module.load(spec).sizes, **sizes})


def test_free_axes_are_sizes_with_defaults_from_the_example(folder: Path) -> None:
    description = describe_model(parse_spec("words.pt2", str(folder)), None)
    assert description["sizes"] == {"batch": 3, "words_1": 5}
    assert description["graph"]["flops"] == 2 * 3 * 5 * 8 * 16
    assert description["graph"]["parameters"] == 40 * 8 + 8 * 16 + 16 + 16
    assert describe_model(parse_spec("named.pt2", str(folder)), None)["sizes"] == {}
    model = the_model(folder / "words.pt2", batch=6, words_1=2)
    assert model.output_shapes == {"output": (6, 2, 16)}


def test_a_size_that_was_not_exported_is_an_error(folder: Path) -> None:
    description = describe_model(parse_spec("words.pt2", str(folder)), {"words_1": 9})
    assert "It was exported for words_1 from 0 to 8, not for 9." in description["mistake"]


def test_inputs_have_the_elements_of_the_example(folder: Path) -> None:
    model = the_model(folder / "words.pt2", batch=50)
    first, second = model.make_inputs(0), model.make_inputs(1)
    assert first["0"].max() < 30
    assert set(first["1"].ravel()) == {0, 1}
    assert (first["0"] != second["0"]).any()


@pytest.mark.parametrize("name", ["words", "named"])
def test_the_float64_reference_equals_that_of_the_module(folder: Path, name: str) -> None:
    model = the_model(folder / f"{name}.pt2")
    exported, _ = wide_step(model, Draw(Dtype.FLOAT32))
    module = Narrowing().double()
    module.load_state_dict(exported.state_dict())
    inputs = [torch.from_numpy(array) for array in model.make_inputs(0).values()]
    with torch.no_grad():
        (exact,) = computed_in(Widening(), lambda: {"": module(*inputs)}).values()
    assert relative_error(outputs(model, Dtype.FLOAT32, 0)["output"], exact.numpy()) < 1e-14


def test_tensors_made_by_a_program_are_on_its_device(tmp_path: Path) -> None:
    class Placed(nn.Module):  # type: ignore[misc]
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x + torch.arange(x.shape[1], dtype=torch.float32)

    torch.export.save(torch.export.export(Placed(), (torch.zeros(2, 3),)), tmp_path / "placed.pt2")
    module = torch_module.build(parse_spec("placed.pt2", str(tmp_path)), {})
    torch_program.place_on(module, "meta")
    assert module(torch.zeros(2, 3, device="meta")).device.type == "meta"
    torch_program.place_on(module, "cpu")
    assert module(torch.zeros(2, 3)).tolist() == [[0, 1, 2]] * 2


def forgotten_row(module: Any) -> None:
    module.get_parameter("up.weight").data[3].zero_()


def test_right_programs_pass_and_wrong_ones_are_detected(folder: Path) -> None:
    model = the_model(folder / "words.pt2")
    assert deviation(model).ratio < 0.8
    for wrong in (a_bias_forgotten, forgotten_row, weights_in_float16):
        assert deviation(model, computed=mutated(model, wrong)).ratio > 2, wrong


@pytest.mark.parametrize(
    ("name", "mistake"),
    [
        ("none.pt2", "There is no file none.pt2"),
        ("weights.pt2", "torch cannot read the program"),
        ("mixed.pt2", "both positional and keyword inputs"),
    ],
)
def test_an_invalid_program_file_is_an_error(folder: Path, name: str, mistake: str) -> None:
    with pytest.raises(UsageError, match=mistake):
        torch_module.load(parse_spec(name, str(folder)))


@pytest.mark.nightly
def test_a_program_is_measured_on_torch_s_engines(folder: Path) -> None:
    for engine in ("onnxruntime", "openvino", "onnxscript"):
        pytest.importorskip(engine)
    options = ("-p", "batch=2", "--brief", "--rounds", "1", "--threads", "1", "--mode", "eager,graph")
    accelbench("run", "words.pt2", "-b", "torch,onnxruntime,openvino", *options, cwd=folder)
    row_by_target = {(row["backend"], row["mode"]): row for row in rows(folder) if row["latency_s"]}
    assert set(row_by_target) == {("torch", "eager"), ("onnxruntime", "graph"), ("openvino", "graph")}
    assert all(row["status"] == "ok" and row["error_of_allowed"] < 0.8 for row in row_by_target.values())


class Payload:
    """An object whose pickle creates the file EXECUTED when it is read."""

    def __reduce__(self) -> tuple[Any, ...]:
        return Path.touch, (Path("EXECUTED"),)


def pickled() -> bytes:
    """A payload as torch saves it."""
    buffer = io.BytesIO()
    torch.save(Payload(), buffer)
    return buffer.getvalue()


CALL = "__import__('pathlib').Path('EXECUTED').touch()"


def in_graph(change: Callable[[dict[str, Any]], None]) -> Callable[[bytes], bytes]:
    """Change the graph in a file."""

    def changed(content: bytes) -> bytes:
        graph = json.loads(content)
        change(graph["graph_module"])
        return json.dumps(graph).encode()

    return changed


def size_calls(graph: dict[str, Any]) -> None:
    """A file whose first size is an expression that calls a Python function."""
    sizes = graph["graph"]["tensor_values"]["words"]["sizes"]
    next(size for size in sizes if "as_expr" in size)["as_expr"]["expr_str"] = CALL


def operator_calls(graph: dict[str, Any]) -> None:
    """A file whose first node calls a Python function."""
    graph["graph"]["nodes"][0]["target"] = "torch.os.system"


def name_calls(graph: dict[str, Any]) -> None:
    """A file whose argument name breaks out of the code of the module."""
    graph["module_call_graph"][0]["signature"]["forward_arg_names"] = [f"x={CALL}"]


def structure_imports(graph: dict[str, Any]) -> None:
    """A file whose input structure names a module to import."""
    context = json.dumps({"default_factory_module": "os", "default_factory_name": "abort"})
    spec = {"type": "collections.defaultdict", "context": context, "children_spec": []}
    graph["module_call_graph"][0]["signature"]["in_spec"] = json.dumps([1, spec])


@pytest.mark.parametrize(
    ("member", "change"),
    [
        ("data/sample_inputs/model.pt", lambda _: pickled()),
        ("data/weights/model.pt", lambda _: pickled()),
        ("models/model.json", in_graph(size_calls)),
        ("models/model.json", in_graph(operator_calls)),
        ("models/model.json", in_graph(name_calls)),
        ("models/model.json", in_graph(structure_imports)),
        ("data/aotinductor/model/library.so", lambda _: b""),
        (
            "data/constants/model_constants_config.json",
            lambda _: json.dumps({"config": {"state": {"path_name": "opaque_obj_0"}}}).encode(),
        ),
        ("DATA/WEIGHTS/weight_0", lambda _: b""),
    ],
)
def test_programs_that_could_execute_code_are_refused_before_reading(
    folder: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    member: str,
    change: Callable[[bytes], bytes],
) -> None:
    monkeypatch.chdir(tmp_path)
    with ZipFile(folder / "words.pt2") as good, ZipFile("evil.pt2", "w") as evil:
        contents = {name.partition("/")[2]: good.read(name) for name in good.namelist()}
        contents[member] = change(contents.get(member, b""))
        for name, content in contents.items():
            evil.writestr(f"evil/{name}", content)
    with pytest.raises(CouldExecute):
        check_program("evil.pt2")
    assert describe_model(parse_spec("evil.pt2", str(tmp_path)), None)["mistake"]
    assert not Path("EXECUTED").exists()


def test_a_program_of_an_earlier_torch_is_refused_likewise(tmp_path: Path) -> None:
    members = {"version": b"8.1", "serialized_exported_program.json": b"{}"}
    with ZipFile(tmp_path / "good.pt2", "w") as good, ZipFile(tmp_path / "evil.pt2", "w") as evil:
        for name, content in members.items():
            good.writestr(name, content)
            evil.writestr(name, content)
        evil.writestr("serialized_example_inputs.pt", pickled())
    check_program(str(tmp_path / "good.pt2"))
    with pytest.raises(CouldExecute):
        check_program(str(tmp_path / "evil.pt2"))


def test_a_pickle_that_reaches_torch_is_not_executed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    with tensors_only(), pytest.raises(UnpicklingError):
        torch.load(io.BytesIO(pickled()), weights_only=False)
    assert not Path("EXECUTED").exists()
