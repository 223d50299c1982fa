"""Suites: files, errors of invalid ones, and the plans of shipped suites on accelerators."""

import itertools
import re
from itertools import groupby
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from benchbench import registry
from benchbench.backends.base import backend_class
from benchbench.documents.lists import rough_duration, suites_document
from benchbench.errors import SuiteError, UsageError
from benchbench.launch import catalogue
from benchbench.launch.catalogue import workload_at
from benchbench.machine.peaks import peaks
from benchbench.model.case import Dtype, Phase
from benchbench.model.options import MeasureOptions
from benchbench.model.run import Policy
from benchbench.plan import suite
from benchbench.plan.cases import plan
from benchbench.plan.estimates import device_classes, footprint_bytes, run_estimate
from benchbench.plan.suite import Selection, load_suite, points, select
from benchbench.running import request
from benchbench.timing.policy import POLICIES
from benchbench.workloads._reference.ops import Ops
from benchbench.workloads.operations.gemm import Gemm
from studies.accelerator_plans import H100, SUITES, planned, usable
from tests import published_shapes
from tests.factories import a_case, a_probe, a_run_info
from tests.published_shapes import CASES, FEATURES, Published, flops, published, read
from tests.tiny import COLLECTIVES, NAMES

MINIMAL: dict[str, Any] = {"description": "d", "cases": [{"workload": "gemm"}]}


def parsed(**changes: Any) -> suite.Suite:
    return suite.parse_suite({**MINIMAL, **changes}, Path("mine.toml"))


def test_full_has_every_workload_and_quick_one_of_each_kind() -> None:
    workloads_by_suite = {
        name: {entry.workload for entry in suite.load_suite(name).cases} for name in suite.suite_names()
    }
    assert workloads_by_suite["full"] == set(NAMES)
    assert workloads_by_suite["collectives"] == set(COLLECTIVES)
    networks = ("convnet_train", "resnet50_infer", "resnet50_train", "transformer_train")
    assert workloads_by_suite["quick"] == {"gemm", "conv2d", "attention", "lstm", *networks}


SIX = {"gemm", "conv2d", "attention", "lstm", "convnet_infer", "convnet_train"}


def test_full_covers_every_workload_dtype_and_mode() -> None:
    """The axes in turn on a CPU, combined on an accelerator."""
    loaded = suite.load_suite("full")
    every = [case for case in loaded.cases if case.dtype or case.mode]
    backends = [backend_class(name) for name in registry.entry_names("benchbench.backends")]
    modes = {mode for backend in backends for mode in backend.modes}
    plain = [case.workload for case in loaded.cases if case not in every]
    assert len(plain) == len(set(plain))
    assert not SIX & set(plain)
    for name in SIX:
        every_device, dtypes, model_modes = (entry for entry in every if entry.workload == name)
        assert (every_device.cpu, dtypes.accelerator, model_modes.accelerator) == ([], [], [])
        assert dtypes.cpu == model_modes.cpu != []
        assert set(every_device.dtype or []) == set(dtypes.dtype or []) == set(Dtype)
        assert set(every_device.mode or []) == set(model_modes.mode or []) == modes
        assert (dtypes.mode, model_modes.dtype) == (None, None)
    assert len(every) == 3 * len(SIX)
    assert loaded.dtype == [Dtype.FLOAT32]


def test_a_phase_selects_its_workloads_and_an_absent_one_is_refused() -> None:
    loaded = suite.load_suite("quick")

    def selected(*phases: Phase) -> set[str]:
        return {entry.workload for _, entry in select([loaded], Selection(phases=phases))}

    assert selected(Phase.TRAIN) == {"convnet_train", "resnet50_train", "transformer_train"}
    assert selected(Phase.TRAIN, Phase.FORWARD) == selected()
    with pytest.raises(UsageError) as refused:
        select([loaded], Selection(workloads=("gemm",), phases=(Phase.TRAIN,)))
    assert "forward" in refused.value.hint


def minutes(loaded: suite.Suite, policy: Policy) -> float:
    """Minutes on a CPU with four backends, by the estimate."""
    probes = [a_probe(name) for name in ("torch", "tensorflow", "jax", "onnxruntime")]
    cases = plan(select([loaded], Selection()), Selection(), probes).cases
    return run_estimate(cases, policy, device_classes(probes)).total / 60


def test_the_time_in_the_description_of_full_is_the_estimate() -> None:
    loaded = suite.load_suite("full")
    (minutes_stated,) = re.findall(r"about (\d+) minutes on two CPU cores", loaded.description)
    assert minutes(loaded, POLICIES[loaded.policy]) == pytest.approx(int(minutes_stated), rel=0.1)


LONGEST_MIN = {"full": 60.0, "quick": 3.0, "hello": 1.0, "gemm": 4.0, "conv": 4.0, "attention": 4.0}
"""Of other suites of ours: 10. Published lists have no limit."""


@pytest.mark.parametrize(
    "name", [name for name in suite.suite_names() if not re.match("deepbench-.*-(train|server)", name)]
)
def test_a_suite_is_quick_enough_for_two_cores(name: str) -> None:
    loaded = suite.load_suite(name)
    policy = POLICIES[loaded.policy if name in {"hello", "gemm", "conv", "attention"} else "quick"]
    assert minutes(loaded, policy) <= LONGEST_MIN.get(name, 10.0)


@pytest.mark.real
def test_a_list_of_suites_abbreviates_workloads_except_in_its_data() -> None:
    document = suites_document()
    workloads_shown = {str(row[0]): str(row[3]) for row in document.tables[0].rows}
    assert (workloads_shown["conv"], workloads_shown["roofline"]) == ("conv2d", "gemm, triad")
    assert re.fullmatch(r"gemm, conv2d, attention and \d+ more", workloads_shown["full"])
    (full,) = (row["workloads"] for row in document.data if row["suite"] == "full")
    assert set(full.split(", ")) == set(NAMES)


@pytest.mark.parametrize(
    ("seconds", "text"), [(3, "about 10 s"), (89, "about 90 s"), (600, "about 10 min"), (9000, "about 2.5 h")]
)
def test_estimates_are_rounded(seconds: float, text: str) -> None:
    assert rough_duration(seconds) == text


def test_a_suite_is_named_after_its_file_and_defaults_to_float32() -> None:
    loaded = parsed()
    assert (loaded.name, loaded.policy, loaded.dtype) == ("mine", "default", [Dtype.FLOAT32])


@pytest.mark.parametrize(
    ("changes", "message", "hint"),
    [
        ({"rouns": 3}, "rouns", "Known keys"),
        ({"max-rounds": 3}, "max-rounds", "Known keys"),
        ({"descripton": "x"}, "descripton", "Did you mean 'description'?"),
        ({"cases": [{"workload": "gem"}]}, "cases 1: No workload named 'gem'", "Did you mean 'gemm'?"),
        ({"cases": [{"workload": "gemm", "cpus": []}]}, "cpus", "Did you mean 'cpu'?"),
        ({"cases": [{"workload": "gemm", "cpu": [{"mm": 1}]}]}, "no parameter 'mm'", "Did you mean 'm'?"),
        ({"cases": [{"workload": "gemm", "cpu": [{"m": "big"}]}]}, "should be of type int", "Default: 1024"),
        ({"cases": [{"workload": "gemm", "backend": ["pytroch"]}]}, "pytroch", "Did you mean 'torch'?"),
        ({"cases": [{"workload": "gemm", "dtype": ["flaot32"]}]}, "flaot32", "float32"),
        ({"policy": "quik"}, "policy 'quik'", "Did you mean 'quick'?"),
        ({"cases": 3}, "cases", "suites.md"),
        ({"thresholds": {"gemm": "a lot"}}, "thresholds: 'a lot'", "0.03"),
    ],
)
def test_an_invalid_suite_has_its_place_and_a_hint(changes: dict[str, Any], message: str, hint: str) -> None:
    with pytest.raises(SuiteError, match=message) as caught:
        parsed(**changes)
    assert str(caught.value).startswith("mine.toml")
    assert hint in caught.value.hint
    assert caught.value.exit_code == 2


def test_a_suite_can_be_a_path(tmp_path: Path) -> None:
    path = tmp_path / "own.toml"
    path.write_text('description = "d"\n[[cases]]\nworkload = "gemm"\n')
    assert suite.load_suite(str(path)).name == "own"
    with pytest.raises(UsageError, match="No suite named"):
        suite.load_suite("../suites/quick")  # a name of ours, but no path


@pytest.mark.parametrize(
    ("typed", "message"),
    [
        ("resnet50", "Did you mean 'resnet50_infer' or 'resnet50_train'?"),
        ("gem", "Did you mean 'gemm'?"),
        ("nosuch", "Known workloads: "),
    ],
)
def test_an_unknown_workload_suggests_all_that_contain_it(typed: str, message: str) -> None:
    with pytest.raises(UsageError) as refused:
        catalogue.workload_named(typed)
    assert message in refused.value.hint


def test_names_that_begin_with_a_text_are_suggested_first() -> None:
    names = ["a_cnn", "cnn_train", "gemm", "mnist_cnn_train"]
    assert catalogue.name_hint("cnn", names) == "Did you mean 'cnn_train', 'a_cnn' or 'mnist_cnn_train'?"


def test_a_pattern_selects_every_workload_that_it_matches_once() -> None:
    selected = request.selection(MeasureOptions(workloads=("gemm", "gpt2*", "gpt2_train"))).workloads
    gpt2 = [name for name in catalogue.workload_names() if name.startswith("gpt2")]
    assert len(gpt2) > 1
    assert selected == ("gemm", *gpt2)


def test_a_pattern_without_matches_is_refused_with_a_suggestion() -> None:
    with pytest.raises(UsageError, match="No workload matches 'resnet50x\\*'") as refused:
        catalogue.expand_patterns(["resnet50x*"])
    assert "Did you mean 'resnet50_" in refused.value.hint


def test_implied_sizes_of_a_suite_are_stated() -> None:
    small = a_case(suite="quick", workload="gemm", params={"m": 64, "n": 8, "k": 8})

    def stated(*command: str) -> list[str]:
        return [*suite.implied_sizes(a_run_info(plan=(small,), command=command))]

    (line,) = stated("run", "-w", "gemm", "-p", "m=64")
    assert "quick" in line
    assert "n=8" in line
    assert "m=64" not in line
    assert not stated("run")
    assert not stated("run", "quick", "-w", "gemm")
    assert not stated("run", "--suite=quick", "-w", "gemm")


CARD_BYTES = 80 * 2**30


@pytest.mark.parametrize("suite", SUITES)
def test_every_workload_is_planned_in_16_bits_and_in_float32(suite: str) -> None:
    cases = sorted(planned(suite), key=lambda case: case.workload)
    assert cases
    for name, group in groupby(cases, key=lambda case: case.workload):
        narrow = Dtype.AMP_BF16 if name.endswith("_train") else Dtype.BFLOAT16
        assert {narrow, Dtype.FLOAT32} <= {case.dtype for case in group}, name


@pytest.mark.parametrize("suite", SUITES)
def test_every_case_fits_a_card_of_80_gb(suite: str) -> None:
    assert max(map(footprint_bytes, planned(suite))) < 0.8 * CARD_BYTES


@pytest.mark.parametrize("suite", SUITES)
def test_16_bits_can_reach_several_times_the_share_of_an_h100_that_float32_can(suite: str) -> None:
    gpu = peaks(H100)
    assert gpu
    by_dtype = {case.dtype: 0.0 for case in planned(suite)}
    for case in planned(suite):
        by_dtype[case.dtype] = max(by_dtype[case.dtype], usable(case, gpu))
    assert by_dtype[Dtype.FLOAT32] < 0.07
    assert max(by_dtype.values()) > 8 * by_dtype[Dtype.FLOAT32]


# Published shapes

PUBLISHED = {suite.name: suite for suite in published()}


@pytest.mark.parametrize("suite", PUBLISHED.values(), ids=PUBLISHED)
def test_a_suite_matches_the_published_list(suite: Published) -> None:
    assert (published_shapes.SUITES / f"{suite.name}.toml").read_text() == published_shapes.toml(suite)


@pytest.mark.parametrize("suite", PUBLISHED.values(), ids=PUBLISHED)
def test_the_cases_are_exactly_the_rows(suite: Published) -> None:
    for entry in load_suite(suite.name).cases:
        cases = suite.entries()[entry.workload]
        assert points_in(entry.accelerator) == in_order(cases)
        assert points_in(entry.cpu) == in_order(suite.on_cpu(entry.workload, cases)) != []


def points_in(tables: list[Any]) -> list[str]:
    return in_order([point for axes in tables for point in points(axes)])


def in_order(cases: list[dict[str, Any]]) -> list[str]:
    return sorted(str(sorted(case.items())) for case in cases)


def test_no_row_is_lost() -> None:
    for kind, count in {"gemm": 248, "conv": 217, "rnn": 125}.items():
        suites = [suite for suite in PUBLISHED.values() if suite.kind == kind]
        assert sum(len(suite.rows) for suite in suites) == len(read(f"deepbench_{kind}.csv")) == count
    assert len(PUBLISHED["gemm-models"].rows) == 220


def test_product_flops_match_the_published_ones() -> None:
    for row in read("deepbench_gemm.csv"):
        assert flops(*CASES["gemm"](row)) == row["flops"]


def test_convolution_flops_and_sides_match_the_published_ones() -> None:
    for row in read("deepbench_conv.csv"):
        workload, params = CASES["conv"](row)
        convolution: Any = workload_at(workload, params)
        assert convolution.output_shape == (row["n"], row["k"], row["out_h"], row["out_w"])
        phases = published_shapes.PHASES["conv"]
        assert {flops(workload + phase, params) for phase in phases} == {row["fwd_flops"]}


def test_recurrent_product_flops_match_the_published_ones() -> None:
    for row in read("deepbench_rnn.csv"):
        hidden = row["hidden"]
        flops_counted = flops(*CASES["rnn"](row))
        assert flops_counted * hidden == row["fwd_flops_recurrent_only"] * (hidden + FEATURES)


@pytest.mark.parametrize(("a_t", "b_t"), [*itertools.product((False, True), repeat=2)])
def test_a_column_major_product_equals_the_row_major_one_in_memory(a_t: bool, b_t: bool) -> None:
    """The product that cuBLAS computes on column-major matrices equals ours on the same memory."""
    row = {"m": 3, "n": 4, "k": 5, "a_t": str(a_t).lower(), "b_t": str(b_t).lower()}
    source = np.random.default_rng(0)
    a = np.asfortranarray(source.standard_normal((5, 3) if a_t else (3, 5)))
    b = np.asfortranarray(source.standard_normal((4, 5) if b_t else (5, 4)))
    c = (a.T if a_t else a) @ (b.T if b_t else b)
    _, params = CASES["gemm"](row)
    ours = Gemm(**params).forward(Ops(), {"a": by_rows(b), "b": by_rows(a)})
    np.testing.assert_allclose(ours, by_rows(np.asfortranarray(c)))


def by_rows(matrix: Any) -> Any:
    """The memory of a column-major matrix, read by rows."""
    return matrix.ravel(order="K").reshape(matrix.shape[::-1])
