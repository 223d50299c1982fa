"""`--input file.npz`, `--weights as-they-are`: a model on the user's own numbers, still verified."""

import dataclasses
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from benchbench import paths
from benchbench.arrays import AnyArray
from benchbench.errors import UsageError
from benchbench.launch import user_models
from benchbench.model.case import Dtype
from benchbench.model.note import NoteKind
from benchbench.model.options import MeasureOptions, Weights
from benchbench.model.run import Settings
from benchbench.model.user_model import ModelSpec, parse_spec
from benchbench.running.measure import model_specs
from benchbench.running.resume import with_models
from benchbench.worker.user_models import input_file
from benchbench.worker.user_models.lookup import describe_model, model_workload
from benchbench.worker.user_models.source import ModelMistake
from benchbench.worker.user_models.workload import INPUT
from benchbench.workloads.base import Draw
from tests.factories import a_run
from tests.program import accelbench, rows

MODEL_FOLDER = Path(__file__).parent / "user_models"
SPEC = ModelSpec(folder="", file="mine.py")
IDS, MASK = np.arange(12).reshape(3, 4), np.ones((3, 4), np.int64)
OWN_INPUTS: dict[str, AnyArray] = {"ids": np.zeros((3, 7), np.int64), "mask": np.zeros((3, 7), np.int64)}


def with_inputs(spec: ModelSpec, folder: Path, *unnamed: AnyArray, **by_name: AnyArray) -> ModelSpec:
    file = folder / f"given{len([*folder.iterdir()])}.npz"
    save: Any = np.savez
    save(file, *unnamed, **by_name)
    return dataclasses.replace(spec, input=str(file))


def test_arrays_are_found_by_name_position_or_argument_name(tmp_path: Path) -> None:
    by_place = {"0": OWN_INPUTS["ids"], "1": OWN_INPUTS["mask"]}
    by_argument = with_inputs(SPEC, tmp_path, mask=MASK, ids=IDS)
    unnamed = with_inputs(SPEC, tmp_path, IDS, MASK)
    for spec, names in (
        (by_argument, OWN_INPUTS),
        (unnamed, OWN_INPUTS),
        (by_argument, by_place),
        (unnamed, by_place),
    ):
        arrays = input_file.arrays_for(spec, names, ("ids", "mask", "more"), {"batch": 3})
        assert list(arrays) == list(names)
        assert [array.tolist() for array in arrays.values()] == [IDS.tolist(), MASK.tolist()]
    single = with_inputs(SPEC, tmp_path, anything=IDS.astype(np.int16))
    (found_alone,) = input_file.arrays_for(single, {"": OWN_INPUTS["ids"]}, (), {}).values()
    assert found_alone.dtype == np.int64


def test_fewer_samples_are_the_first_and_more_have_the_same_elements(tmp_path: Path) -> None:
    spec = with_inputs(SPEC, tmp_path, ids=IDS, mask=MASK)

    def of(batch: int) -> AnyArray:
        model_inputs = {name: np.zeros((batch, 7), np.int64) for name in OWN_INPUTS}
        return input_file.arrays_for(spec, model_inputs, (), {"batch": batch})["ids"]

    assert of(2).tolist() == IDS[:2].tolist()
    assert of(8)[:3].tolist() == IDS.tolist()
    assert {*of(8)[3:].flat} <= {*IDS.flat}
    input_file.check_size(spec, {"batch": 3})
    with pytest.raises(ModelMistake, match="fewer than batch=4"):
        input_file.check_size(spec, {"batch": 4})


@pytest.mark.parametrize(
    "arrays",
    [
        {"ids": IDS},
        {"ids": IDS, "masks": MASK},
        {"ids": IDS, "mask": MASK[:2]},
        {"ids": IDS, "mask": MASK[0]},
        {"ids": IDS.astype(float), "mask": MASK},
        {"ids": IDS, "mask": MASK.astype(bool)},
        {"ids": IDS, "mask": MASK.astype(complex)},
        {"ids": np.full((3, 4), 2**63, np.uint64), "mask": MASK},
        {"ids": IDS, "mask": np.array([[object()] * 4] * 3)},
        {},
    ],
)
def test_mismatched_arrays_are_an_error_with_a_hint(tmp_path: Path, arrays: dict[str, AnyArray]) -> None:
    spec = with_inputs(SPEC, tmp_path, **arrays)
    with pytest.raises(ModelMistake) as mistake:
        input_file.arrays_for(spec, OWN_INPUTS, ("ids", "mask"), {"batch": 3})
    assert mistake.value.hint


def test_a_file_without_arrays_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "given.npz").write_text("text")
    with pytest.raises(ModelMistake, match=r"given\.npz is not a file of arrays"):
        input_file.read_arrays(str(tmp_path / "given.npz"))


def test_the_digest_depends_on_elements_but_not_on_order(tmp_path: Path) -> None:
    original = with_inputs(SPEC, tmp_path, ids=IDS, mask=MASK)
    turned = with_inputs(SPEC, tmp_path, mask=MASK, ids=IDS)
    changed = with_inputs(SPEC, tmp_path, ids=IDS + 1, mask=MASK)
    assert input_file.digest(original) == input_file.digest(turned) != input_file.digest(changed)


def test_model_options_need_a_model_and_an_existing_file(tmp_path: Path) -> None:
    for options in (
        MeasureOptions(input="x.npz"),
        MeasureOptions(weights="as-they-are"),
        MeasureOptions(model=("mine.py",), input=str(tmp_path / "nosuch.npz")),
        MeasureOptions(model=("mine.py",), weights="as_they_are"),
    ):
        with pytest.raises(UsageError) as refused:
            model_specs(options)
        assert refused.value.hint
    plain, onnx = model_specs(MeasureOptions(model=("mine.py", "mine.onnx"), weights="as-they-are"))
    assert (plain.as_they_are, onnx.as_they_are) == (True, False)


def the_sizes(spec: ModelSpec) -> dict[str, Any]:
    facts = describe_model(spec, None)
    assert "mistake" not in facts, facts
    return facts


@pytest.mark.real
def test_a_torch_module_computes_with_the_first_inputs_and_others_are_these_shuffled(tmp_path: Path) -> None:
    pytest.importorskip("torch")
    spec = parse_spec("convolutions.py", str(MODEL_FOLDER))
    images = np.random.default_rng(0).standard_normal((3, 3, 17, 17))
    with_file = with_inputs(spec, tmp_path, images)
    facts = the_sizes(with_file)
    assert facts["sizes"] == {"batch": 3, "width": 8}
    inputs = f"inputs-{input_file.digest(with_file)}"
    model = model_workload(with_file, facts["sizes"])
    assert facts["size"]["work_version"] == f"own:{model.graph_of()['digest']}+{inputs}"
    (first,) = model.input_arrays(Draw(Dtype.FLOAT64)).values()
    (second,) = model.input_arrays(Draw(Dtype.FLOAT64, renewed=lambda _: 1)).values()
    assert np.array_equal(first, images.astype(np.float32))
    assert not np.array_equal(first, second)
    assert np.array_equal(np.sort(first, axis=None), np.sort(second, axis=None))
    assert "fewer than batch=4" in describe_model(with_file, {"batch": 4})["mistake"]
    assert describe_model(with_file, {"batch": 2})["graph"]["flops"] * 3 == facts["graph"]["flops"] * 2
    weights = model.weights(Draw(Dtype.FLOAT32))  # calibrated on more samples than the file has
    assert all(np.isfinite(weight).all() for weight in weights.values())


@pytest.mark.real
def test_inputs_of_a_file_are_matched_by_argument_names(tmp_path: Path) -> None:
    pytest.importorskip("torch")
    source = (MODEL_FOLDER / "bert_tiny.py").read_text().partition("\ndef inputs")[0]
    (tmp_path / "mute.py").write_text(source)
    spec = parse_spec("mute.py", str(tmp_path))
    assert "has no inputs" in describe_model(spec, None)["mistake"]
    ids = np.arange(8).reshape(2, 4)
    facts = the_sizes(with_inputs(spec, tmp_path, ids))
    assert "batch" not in facts["sizes"]
    assert facts["graph"]["flops"] > 0


@pytest.mark.real
def test_weights_as_they_are_equal_those_of_the_model(tmp_path: Path) -> None:
    pytest.importorskip("torch")
    from benchbench.worker.user_models import torch_module
    from benchbench.worker.user_models.reference import model_reference

    spec = dataclasses.replace(parse_spec("convolutions.py", str(MODEL_FOLDER)), as_they_are=True)
    facts = the_sizes(spec)
    assert facts["size"]["work_version"].endswith("+as-they-are")
    parameters = torch_module.tensors_of(torch_module.build(spec, facts["sizes"]))
    model: Any = model_workload(spec, facts["sizes"])
    weights = model.weights(Draw(Dtype.FLOAT32))
    assert all(
        np.array_equal(weights[f"weight:{name}"], parameter.numpy(force=True))
        for name, parameter in parameters.items()
    )
    random_model: Any = model_workload(dataclasses.replace(spec, as_they_are=False), facts["sizes"])
    changed = [
        name
        for name, weight in random_model.weights(Draw(Dtype.FLOAT32)).items()
        if (weight != weights[name]).any()
    ]
    assert len(changed) >= facts["graph"]["constants"] > 0
    assert model_reference(model, Dtype.FLOAT32).tolerance


@pytest.mark.real
def test_a_jax_function_uses_the_inputs_of_a_file_and_its_own_parameters(tmp_path: Path) -> None:
    pytest.importorskip("jax")
    from benchbench.launch.user_models import with_kind

    plain = with_kind(parse_spec("jax_mlp.py", str(MODEL_FOLDER)))
    samples = np.random.default_rng(1).standard_normal((5, 12)).astype(np.float32)
    spec = dataclasses.replace(with_inputs(plain, tmp_path, x=samples), as_they_are=True)
    facts = the_sizes(spec)
    assert facts["sizes"]["batch"] == 5
    arrays = model_workload(spec, facts["sizes"]).arrays(Draw(Dtype.FLOAT32))
    assert np.array_equal(arrays[INPUT], samples)
    assert not arrays["weight:bias"].any()


@pytest.mark.real
def test_given_inputs_and_weights_are_verified_with_a_note_on_limits(tmp_path: Path) -> None:
    pytest.importorskip("torch")
    (tmp_path / "mine.py").write_text((MODEL_FOLDER / "bert_tiny.py").read_text())
    np.savez(tmp_path / "given.npz", np.arange(20).reshape(2, 10))
    options = ("-b", "torch", "--mode", "eager", "--brief", "--rounds", "1", "--threads", "1")
    arguments = ("mine.py", "--input", "given.npz", "--weights", "as-they-are")
    accelbench("run", *arguments, *options, cwd=tmp_path)
    (row,) = rows(tmp_path)
    assert row["params"] == {"batch": 2, "width": 32, "depth": 2}
    assert row["status"] == "ok"
    (run,) = (tmp_path / "results" / "runs").iterdir()
    (record,) = map(json.loads, (run / "records.jsonl").read_text().splitlines())
    assert NoteKind.WEIGHTS_AS_THEY_ARE in {note["kind"] for note in record["outcome"]["notes"]}
    assert record["outcome"]["workload_version"].endswith("+as-they-are")


def test_resumed_runs_keep_inputs_and_weights(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ACCELBENCH_CACHE", str(tmp_path))
    user_models.remember(parse_spec("mine.py", paths.working_folder()))
    settings = Settings(threads=1, input="given.npz", weights=Weights.AS_THEY_ARE)
    run = a_run(settings=settings, models={"mine": "mine.py"})
    options = with_models(MeasureOptions(), run)
    assert (options.model, options.input, options.weights) == (("mine.py",), "given.npz", "as-they-are")
    with pytest.raises(UsageError, match=r"There is no file given\.npz"):
        model_specs(options)
