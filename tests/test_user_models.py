"""`accelbench run FILE.py`: described by a worker, verified by itself, and never executed unasked."""

from __future__ import annotations

import dataclasses
import json
import re
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torch")

from benchbench import paths
from benchbench.analyse import rows as analysed
from benchbench.documents.plan import has_failures
from benchbench.documents.run import report_document
from benchbench.errors import UsageError
from benchbench.judging.comparison import compare_runs
from benchbench.launch import catalogue, user_models
from benchbench.launch.transport import Answer, Message
from benchbench.launch.user_models import with_kind
from benchbench.model import user_model
from benchbench.model.case import Scalar, Status, Verdict
from benchbench.model.note import NoteKind, note
from benchbench.model.options import MeasureOptions, from_keywords
from benchbench.model.run import Run, Settings
from benchbench.model.user_model import (
    JAX,
    KERAS,
    TORCH,
    ModelSpec,
    kind_of_version,
    looks_like_model,
    parse_spec,
)
from benchbench.running.request import max_error, request
from benchbench.store import codec
from benchbench.worker.user_models import torch_module
from benchbench.worker.user_models.source import ModelMistake
from tests.deviations import module_text
from tests.factories import a_case, a_measurement, a_models_size, a_record, a_run
from tests.program import accelbench, rows

MODEL_FOLDER = Path(__file__).parent / "user_models"
ONCE = ("--brief", "--rounds", "1", "--threads", "1")


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a measured model; the file leaves a note whenever it is executed."""
    folder = tmp_path_factory.mktemp("own")
    source = (MODEL_FOLDER / "bert_tiny.py").read_text()
    (folder / "bert_tiny.py").write_text(source + 'open("executed", "a").write("once\\n")\n')
    engines = ("-b", "torch,onnxruntime", "--mode", "eager,graph")
    process = accelbench("run", "bert_tiny.py", *engines, *ONCE, cwd=folder)
    assert (
        "bert_tiny: model(width=32, depth=2), inputs(batch=4, length=16); 0.0317 M parameters"
        in process.stderr
    )
    assert "verified against the model's own float64; 8 constant tensors" in process.stderr
    return folder


def test_a_missing_file_is_an_error_at_once(tmp_path: Path) -> None:
    process = accelbench("run", "nosuch.py:Net", cwd=tmp_path, code=2)
    assert process.stderr.startswith("error: There is no file nosuch.py.\nhint: ")


@pytest.mark.real
def test_a_configuration_with_remote_code_is_refused(tmp_path: Path) -> None:
    pytest.importorskip("torch")
    config = {"model_type": "bert", "text_config": {"_attn_implementation": "somebody/kernels"}}
    (tmp_path / "bert.json").write_text(json.dumps(config))
    with pytest.raises(ModelMistake):
        torch_module.load(parse_spec("bert.json", str(tmp_path)))


@pytest.mark.real
def test_a_plain_model_file_is_measured_and_verified(place: Path) -> None:
    assert "benchbench" not in (MODEL_FOLDER / "bert_tiny.py").read_text()
    measured_rows = rows(place)
    assert {(row["backend"], row["mode"], row["status"]) for row in measured_rows} == {
        ("torch", "eager", "ok"),
        ("onnxruntime", "graph", "ok"),
        ("torch", "graph", "unsupported"),
        ("onnxruntime", "eager", "unsupported"),
    }
    measured_rows = [row for row in measured_rows if row["status"] == "ok"]
    assert all(0 < row["error_of_allowed"] < 0.8 for row in measured_rows)
    assert all(row["items_per_s"] == pytest.approx(4 / row["latency_s"]) for row in measured_rows)
    assert measured_rows[0]["case"].startswith("bert_tiny(batch=4,length=16,width=32,depth=2)/float32/")


@pytest.mark.real
@pytest.mark.nightly
def test_by_default_every_engine_for_torch_models_is_tried(tmp_path: Path) -> None:
    accelbench("run", str(MODEL_FOLDER / "convolutions.py"), *ONCE, cwd=tmp_path)
    ok = {(row["backend"], row["mode"]) for row in rows(tmp_path) if row["status"] == "ok"}
    assert ok >= {("torch", "eager"), ("torch", "compile"), ("onnxruntime", "graph")}
    assert not {row["backend"] for row in rows(tmp_path)} & {"jax", "tensorflow", "fake"}


@pytest.mark.real
def test_stored_runs_are_shown_and_merged_without_executing_the_model(place: Path, tmp_path: Path) -> None:
    executed = (place / "executed").read_text()
    output = accelbench("report", "latest", cwd=place).stdout
    assert "error/allowed" in output
    accelbench("merge", str(place / "results"), "--results", str(tmp_path / "merged"), cwd=place)
    assert accelbench("report", "latest", "--results", str(tmp_path / "merged"), cwd=place).stdout
    assert (place / "executed").read_text() == executed


@pytest.mark.real
def test_an_interrupted_run_is_resumed_only_with_its_own_model(place: Path, tmp_path: Path) -> None:
    folder = tmp_path / "resumed"
    shutil.copytree(place, folder, ignore=shutil.ignore_patterns("results"))
    mine: dict[str, Any] = {"ACCELBENCH_CACHE": str(tmp_path / "cache")}
    accelbench("run", "bert_tiny.py", "-b", "torch", "--mode", "eager", *ONCE, cwd=folder, **mine)
    (run,) = (folder / "results" / "runs").iterdir()
    (run / "end.json").unlink()
    records = (run / "records.jsonl").read_text()
    (run / "records.jsonl").write_text("")
    executed = (folder / "executed").read_text()
    refused = accelbench(
        "run", "--resume", cwd=folder, code=2, ACCELBENCH_CACHE=str(tmp_path / "another user")
    )
    assert "bert_tiny.py, which was never measured from this folder" in refused.stderr
    assert (folder / "executed").read_text() == executed
    (run / "records.jsonl").write_text(records)
    source = (folder / "bert_tiny.py").read_text()
    (folder / "bert_tiny.py").write_text(
        source.replace("nn.Embedding(100, width)", "nn.Embedding(101, width)")
    )
    changed = accelbench("run", "--resume", cwd=folder, code=2, **mine)
    assert "cannot be resumed here" in changed.stderr
    (folder / "bert_tiny.py").write_text(source)
    (run / "records.jsonl").write_text("")
    accelbench("run", "--resume", cwd=folder, **mine)
    assert json.loads((run / "end.json").read_text())["records"] == 1


@pytest.mark.real
def test_a_model_that_is_right_only_in_float64_is_wrong_in_other_dtypes(tmp_path: Path) -> None:
    """Also in bfloat16, where rounding would hide more: it is verified in float32 as well."""
    options = ("-b", "torch", "--mode", "eager", "--dtype", "float32,bfloat16", *ONCE)
    forgotten_bias = "self.layer.bias if x.dtype is torch.float64 else None"
    text = module_text(f"return F.linear(x, self.layer.weight, {forgotten_bias})")
    (tmp_path / "cheating.py").write_text(text)
    accelbench("run", "cheating.py", *options, cwd=tmp_path, code=4)
    messages = {row["dtype"]: (row["status"], row["message"]) for row in rows(tmp_path)}
    assert {status for status, _ in messages.values()} == {"wrong_result"}
    assert "in float32 against float64" in messages["bfloat16"][1]


@pytest.mark.nightly
@pytest.mark.real
def test_a_lossy_engine_competes_only_within_the_allowed_error(tmp_path: Path) -> None:
    pytest.importorskip("onnxruntime")
    engine = (str(MODEL_FOLDER / "bert_tiny.py"), "-b", "onnxruntime", "--mode", "graph-dynamic", *ONCE)
    left_out = accelbench("run", *engine, cwd=tmp_path, code=3)
    assert "it is lossy, weights in int8" in left_out.stderr
    assert "--max-error 1% would let it compete" in left_out.stderr
    accelbench("run", *engine, "--max-error", "10%", cwd=tmp_path)
    (row,) = rows(tmp_path)
    assert row["status"] == "ok"
    assert row["error_of_allowed"] == pytest.approx(row["relative_error"] / 0.1)
    output = accelbench("report", "latest", cwd=tmp_path).stdout
    assert "onnxruntime graph-dynamic is lossy: its results are up to" in output
    assert "10 % was allowed" in output
    accelbench("run", *engine, "--max-error", "0.01%", cwd=tmp_path, code=4)
    (row,) = rows(tmp_path)
    assert row["status"] == "wrong_result"
    assert "exceeds 0.0001" in row["message"]


@pytest.mark.parametrize(
    ("text", "spec"),
    [
        ("my_model.py", ModelSpec(folder="/here", file="/here/my_model.py")),
        ("lib/my-model.py:Net", ModelSpec(folder="/here", file="/here/lib/my-model.py", attribute="Net")),
        ("/there/m.py", ModelSpec(folder="/here", file="/there/m.py")),
        ("pkg.models:tiny", ModelSpec(folder="/here", module="pkg.models", attribute="tiny")),
        ("bert.json", ModelSpec(folder="/here", file="/here/bert.json")),
    ],
)
def test_a_spec_names_a_file_or_a_module(text: str, spec: ModelSpec) -> None:
    assert looks_like_model(text)
    assert parse_spec(text, "/here") == spec
    assert user_model.from_text(user_model.as_text({"x": spec})) == {"x": spec}


def test_an_invalid_model_spec_is_refused_with_the_valid_forms() -> None:
    assert not looks_like_model("quick")
    for text in ("a b:c", "m.py:x y", "pkg:", "1:2"):
        with pytest.raises(UsageError, match="names no model"):
            parse_spec(text, "/here")


@pytest.mark.parametrize(
    ("file", "stem", "location"),
    [
        ("/here/lib/My-Net.py", "my_net", "lib/My-Net.py"),
        ("/else/3d.py", "model_3d", "3d.py"),
        ("/here/nanoGPT/model.py", "nanogpt", "nanoGPT/model.py"),
        (f"{paths.home()}/model.py", "model", "model.py"),
    ],
)
def test_stored_names_contain_no_path_of_the_machine(file: str, stem: str, location: str) -> None:
    spec = ModelSpec(folder="/here", file=file)
    assert (spec.stem, user_model.relative(spec)) == (stem, location)


@pytest.mark.parametrize(
    ("source", "kind"),
    [
        ("import keras\nimport numpy", KERAS),
        ("from tensorflow.keras import layers", KERAS),
        ("def f():\n    import jax.numpy as jnp", JAX),
        ("from flax import nnx", JAX),
        ("import jax\nimport torch", TORCH),
        ("import numpy", TORCH),
        ("syntax error", TORCH),
    ],
)
def test_imports_of_a_file_determine_the_kind_of_its_model(tmp_path: Path, source: str, kind: str) -> None:
    (tmp_path / "mine.py").write_text(source)
    assert with_kind(parse_spec("mine.py", str(tmp_path))).kind == kind
    assert with_kind(parse_spec("mine:model", str(tmp_path))).kind == kind


def test_the_kind_of_a_saved_model_follows_from_its_name_or_version(tmp_path: Path) -> None:
    (tmp_path / "mine.keras").touch()
    assert with_kind(parse_spec("mine.keras", str(tmp_path))).kind == KERAS
    assert [kind_of_version(f"{kind}:12345678") for kind in ("own", "own-keras", "own-jax")] == [
        TORCH,
        KERAS,
        JAX,
    ]


def test_paths_of_a_model_are_moved_to_the_checkout() -> None:
    spec = parse_spec("lib/m.py:Net", "/here")
    assert user_model.folder_of(spec) == "/here/lib"
    moved_spec = user_model.moved(spec, {"/here": "/tree", "/here/lib": "/tree/lib"})
    assert (moved_spec.folder, moved_spec.file) == ("/tree", "/tree/lib/m.py")
    assert user_model.moved(spec, {"/here/lib": "/tree/lib"}).folder == "/here"


def test_only_requested_models_are_known(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ACCELBENCH_CACHE", str(tmp_path))
    mine, theirs = parse_spec("mine.py", "/here"), parse_spec("mine.py", "/there")
    user_models.remember(mine)
    assert user_models.is_known(mine)
    assert not user_models.is_known(theirs)
    assert not user_models.is_known(parse_spec("mine.py:Net", "/here"))


def test_a_model_replaces_the_default_suite() -> None:
    assert from_keywords("quick", {"model": "m.py"}, "f").suites == ()
    assert from_keywords("conv", {"model": "m.py"}, "f").suites == ("conv",)
    assert from_keywords("quick", {}, "f").suites == ("quick",)


def describe_model(graphs: Mapping[int, int]) -> user_models.UserModel:
    """The description of a model without starting a worker.

    `graphs`: batch → FLOPs; the first is the default.
    """
    (model,) = described_steps(graphs).values()
    return model


def described_steps(
    graphs: Mapping[int, int], *, name: str = "net", has_loss: bool = False, names_taken: Sequence[str] = ()
) -> dict[str, user_models.UserModel]:
    """The same with its training step if the model has a loss."""

    def ask(job: Message) -> Answer:
        batch = (job["params"] or {"batch": next(iter(graphs))})["batch"]
        if batch not in graphs:
            return Answer({"described": {"mistake": "no such batch"}})
        params = {"batch": batch, "depth": 2}
        facts = {"attribute": "Net", "sizes": params, "is_default": True, "has_loss": has_loss}
        facts |= {"model_sizes": ["depth"], "input_sizes": ["batch"]}
        return Answer({"described": facts | a_models_size(params, flops=graphs[batch])})

    spec = ModelSpec(folder="/here", module=name)
    return user_models.describe([spec], names_taken, lambda kind: ask)


def test_a_model_is_described_at_the_requested_sizes() -> None:
    model = describe_model({1: 1000, 8: 8000})

    def description(**sizes: list[Scalar]) -> str:
        return model.summary_lines(sizes)[0].partition(" (counted")[0]

    assert description() == "net: Net(depth=2), inputs(batch=1); 2 M parameters, 1.00 kFLOP a step"
    assert description(batch=[8]) == "net: Net(depth=2), inputs(batch=8); 2 M parameters, 8.00 kFLOP a step"
    several = "net: Net(depth=2), inputs(batch=8,1); 2 M parameters, 8.00 kFLOP a step at batch=8"
    assert description(batch=[8, 1]) == several
    assert description(batch=[3]) == "net: Net(depth=2), inputs(batch=3)"  # its row has the reason


@pytest.mark.parametrize("name_taken", ["unet", "unet_train"])
def test_model_named_like_a_shipped_workload_is_named_with_its_class(name_taken: str) -> None:
    steps = described_steps({1: 1000}, name="unet", has_loss=True, names_taken=[name_taken])
    assert list(steps) == ["unet_net", "unet_net_train"]


def test_a_model_excluded_by_the_workloads_is_refused() -> None:
    model = describe_model({1: 1000})
    with catalogue.with_models({"net": model}):
        options = MeasureOptions(model=("net:Net",), workloads=("gemm",))
        with pytest.raises(UsageError, match="net is not among"):
            request(options, ["net"])
        both_requested = request(dataclasses.replace(options, workloads=("gemm", "net")), ["net"])
        assert {entry.workload for _, entry in both_requested.entries} == {"gemm", "net"}


def test_a_phase_or_pattern_selects_one_step_of_a_model() -> None:
    models = described_steps({1: 1000}, name="trained", has_loss=True)
    with catalogue.with_models(models):
        assert catalogue.models_of([models["trained"].spec]) == ["trained", "trained_train"]

        def chosen_workloads(**overrides: Any) -> list[str]:
            options = MeasureOptions(model=("trained:Net",), **overrides)
            return [entry.workload for _, entry in request(options, [*models]).entries]

        assert chosen_workloads() == ["trained", "trained_train"]
        assert (
            chosen_workloads(phases=("train",))
            == chosen_workloads(workloads=("*_train",))
            == ["trained_train"]
        )
        assert chosen_workloads(phases=("forward",)) == ["trained"]


def test_a_model_without_a_loss_has_no_training_step() -> None:
    model = describe_model({1: 1000})
    with catalogue.with_models({"net": model}):
        for options in (MeasureOptions(phases=("train",)), MeasureOptions(workloads=("net_train",))):
            with pytest.raises(UsageError) as refused:
                request(dataclasses.replace(options, model=("net:Net",)), ["net"])
            assert refused.value.hint == model.training_hint


def of_version(version: str) -> Run:
    """A run with this version of the work."""
    rounds = [a_record(a_measurement(workload_version=version), round=number) for number in range(3)]
    return a_run(rounds)


def test_a_changed_graph_is_other_work_and_the_same_graph_is_compared() -> None:
    comparison = compare_runs(of_version("own:12345678"), of_version("own:12345678"))
    changed = compare_runs(of_version("own:12345678"), of_version("own:9abcdef0"))
    assert comparison.verdicts[0].verdict is not Verdict.INCOMPARABLE
    assert changed.verdicts[0].verdict is Verdict.INCOMPARABLE
    assert codec.outcome_of(dataclasses.asdict(of_version("own:1").records[0].outcome)) is not None


def test_a_report_also_names_the_fastest_exact_engine() -> None:
    lossy = (note(NoteKind.LOSSY, how="int8", allowed=0.01),)
    modes = {"graph-dynamic": (0.001, lossy), "graph": (0.002, ()), "slow": (0.004, ())}
    records = [
        a_record(
            case=a_case(backend="onnxruntime", target="onnxruntime", mode=mode),
            round=number,
            outcome=a_measurement(
                block_s=(10 * seconds * (1 + number / 1000),) * 5, relative_error=0.002, notes=notes
            ),
        )
        for number in range(5)
        for mode, (seconds, notes) in modes.items()
    ]
    run = a_run(records, settings=Settings(threads=1, max_error=0.01))
    report = report_document(run)
    assert report.data["works"][0]["winner"] == "graph-dynamic"
    _, lossy_line, other_lines = map(str, report.answer)
    assert all(part in lossy_line for part in ("graph-dynamic", "0.2 %", "1 %"))
    assert re.search(r"\bgraph\b(?!-)", other_lines)
    assert "graph-dynamic" not in other_lines
    labels = [str(line[0]) for table in report.tables for line in table.rows]
    assert any("graph-dynamic (lossy)" in label for label in labels)


def test_max_error_is_for_user_models_only() -> None:
    with pytest.raises(UsageError, match="is for user models"):
        max_error(MeasureOptions(max_error="1%"))
    assert max_error(MeasureOptions(max_error="1%", model=("m.py",))) == 0.01
    assert max_error(MeasureOptions()) is None


def unverified(reason: str = "its outputs are integers") -> Any:
    return a_measurement(relative_error=None, notes=(note(NoteKind.UNVERIFIED, reason=reason),))


def test_unverified_models_are_unranked_and_fail_the_command() -> None:
    cases = [a_case(backend=name, target=name) for name in ("torch", "onnxruntime")]
    records = [a_record(case=cases[0], outcome=unverified()), a_record(case=cases[1])]
    rows_ = analysed.rows(a_run(records))
    assert [row.status for row in rows_] == [Status.UNVERIFIED, Status.OK]
    assert rows_[0].ok
    assert rows_[0].is_unranked
    assert has_failures(records)
    assert not has_failures(records, allow_unverified=True)
