"""Profiles: seconds of a step by operator, explanations of differences, and their display."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from inline_snapshot import snapshot

from benchbench.documents.profile import differences_document, profile_document
from benchbench.errors import UsageError
from benchbench.model.profile import Operator, Profile
from benchbench.profiling import Kind, OperatorTable, difference, kind, operator_table, pairs, select_profiles
from tests.factories import a_case, a_profile, a_profiled, an_operator
from tests.rendering import rendered

HERE = Path("results/runs/R/artifacts")


def a_table(
    *operators: Operator, measured_s: float | None = 0.01, case: Any = None, **over: Any
) -> OperatorTable:
    profile = a_profile(*operators, **over)
    return operator_table(a_profiled(profile, case=case or a_case()), profile, measured_s)


@pytest.mark.parametrize(
    ("names", "expected"),
    [
        ("aten::mkldnn_convolution Conv2DBackpropInput sm90_xmma_dgrad_x", Kind.CONVOLUTION),
        ("aten::mm aten::addmm MatMul _MklMatMul dot __cublas$gemm FullyConnected", Kind.PRODUCT),
        ("aten::native_batch_norm _MklNativeFusedBatchNormEx LayerNormalization MVN", Kind.NORMALISATION),
        ("wrapped_reduce-window MaxPoolGrad BiasAddGrad aten::sum Mean aten::_log_softmax", Kind.REDUCTION),
        ("transpose_copy_fusion aten::copy_ aten::to Reshape aten::fill_ ReorderInput", Kind.COPY),
        (
            "aten::add_ AddV2 multiply_subtract_fusion Relu convert_fusion Mul DequantizeLinear Eltwise",
            Kind.ELEMENTWISE,
        ),
        ("ResourceApplyMomentum Optimizer.step#SGD.step aten::_foreach_add_", Kind.OPTIMIZER),
        ("ncclDevKernel_AllReduce_Sum all-gather.3", Kind.COMMUNICATION),
        ("aten::empty cudaLaunchKernel aten::normal_ simulated ReadVariableOp", Kind.OTHER),
    ],
)
def test_the_kind_of_an_operator_follows_from_its_name(names: str, expected: Kind) -> None:
    assert {kind(name) for name in names.split()} == {expected}


def test_an_unknown_number_of_gaps_is_not_shown() -> None:
    uncounted = replace(a_table().gaps, count=0, longest_s=0.0, median_s=0.0, after="")
    for gaps, text in ((uncounted, ""), (replace(uncounted, total_s=0.0), "; 0 gaps")):
        (table,) = profile_document([replace(a_table(), gaps=gaps)], 5, HERE).tables
        assert table.facts[-1] == f"operators were running 90.0 % of the time{text}"


def test_a_table_shows_one_step_and_adds_up() -> None:
    table = a_table()
    assert table.step_s == 0.01
    assert {row.name: row.self_s for row in table.rows} == pytest.approx(
        {"aten::convolution": 0.007, "aten::relu": 0.002}
    )
    assert [row.share for row in table.rows] == pytest.approx([0.7, 0.2])
    assert [row.calls for row in table.rows] == [1, 1]
    assert sum(row.self_s for row in table.rows) + table.idle_s == pytest.approx(table.step_s)
    assert table.kinds == pytest.approx({"convolution": 0.007, "elementwise": 0.002})


def test_a_device_table_has_device_time() -> None:
    launched = an_operator("aten::mm", 0.01, device_self_s=0.05, device_total_s=0.06, kernels=("gemm",))
    (row,) = a_table(launched, on_device=True).rows
    assert (row.self_s, row.total_s, row.host_self_s) == pytest.approx((0.005, 0.006, 0.001))


@pytest.mark.parametrize(
    ("plain_s", "measured_s", "notes"),
    [
        (0.0095, 0.0095, []),
        (None, None, []),
        (0.005, 0.005, ["the profiler made a step 100% longer"]),
        (0.01, 0.02, ["without the profiler, a step took 50% shorter than when it was timed"]),
        (None, 0.02, ["without the profiler, a step took 50% shorter than when it was timed"]),
    ],
)
def test_a_step_disturbed_by_the_profiler_or_the_machine_is_noted(
    plain_s: float | None, measured_s: float | None, notes: list[str]
) -> None:
    table = a_table(measured_s=measured_s, plain_step_s=(plain_s,) * 3 if plain_s else ())
    assert [note.partition(":")[0] for note in table.notes] == notes


def test_a_few_slow_steps_are_not_attributed_to_the_profiler() -> None:
    table = a_table(step_s=(0.01,) * 9 + (0.1,), plain_step_s=(0.01,) * 10, measured_s=0.01)
    (note,) = table.notes
    assert note == "the mean step is 90% longer than the median: a few of them were delayed"


@pytest.mark.parametrize(
    ("calls", "steps", "is_noted"),
    [(80, 10, False), (78, 10, False), (77, 10, True), (73, 10, True), (14, 3, False), (5, 10, True)],
)
def test_fractional_calls_mean_lost_events(calls: int, steps: int, is_noted: bool) -> None:
    table = a_table(an_operator("mm", 0.05, calls=calls), an_operator("relu", 0.0005, calls=5), steps=steps)
    lost = [note for note in table.notes if "lost" in note]
    assert lost == (
        [f"mm ran {calls / steps:.2f} times a step: the profiler may have lost events"] * is_noted
    )


def test_the_slowed_operator_is_listed_first_with_its_share() -> None:
    ref = a_table(an_operator("clamp", 0.02), an_operator("mm", 0.06))
    new = a_table(an_operator("clamp", 0.062), an_operator("mm", 0.0605), wall_s=0.14)
    comparison = difference(ref, new)
    assert comparison.change_s == pytest.approx(0.004)
    assert [(change.name, change.kind) for change in comparison.changes] == [
        ("clamp", "elementwise"),
        ("mm", "matrix product"),
    ]
    assert comparison.changes[0].change_s == pytest.approx(0.0042)
    assert comparison.changes[0].share == pytest.approx(1.05)
    assert comparison.explained == pytest.approx(1.0625)


def test_operators_that_only_one_side_has_are_aligned_by_kind() -> None:
    ref = a_table(an_operator("aten::mkldnn_convolution", 0.05), an_operator("aten::relu", 0.01))
    new = a_table(
        an_operator("convolution (ynn_fusion)", 0.03),
        an_operator("convolution", 0.01),
        an_operator("sort", 0.02),
    )
    changes = {change.name: change for change in difference(ref, new).changes}
    merged = changes["aten::mkldnn_convolution → convolution (ynn_fusion) and 1 more"]
    assert merged.kind == "convolution"
    assert [merged.ref_s, merged.new_s] == pytest.approx([0.005, 0.004])
    assert changes["aten::relu"].new_s is None
    assert changes["sort"].ref_s is None


@st.composite
def tables(draw: st.DrawFn) -> OperatorTable:
    names = draw(
        st.lists(st.sampled_from(["conv", "mm", "relu", "sum", "copy", "x"]), unique=True, min_size=1)
    )
    return a_table(*(an_operator(name, draw(st.floats(0, 0.015))) for name in names))


@given(tables(), tables())
def test_operators_and_idle_time_add_up_to_the_difference(ref: OperatorTable, new: OperatorTable) -> None:
    comparison = difference(ref, new)
    total = sum(change.change_s for change in comparison.changes) + comparison.idle_change_s
    assert total == pytest.approx(comparison.change_s, abs=1e-12)
    sizes = [abs(change.change_s) for change in comparison.changes]
    assert sizes == sorted(sizes, reverse=True)


@given(tables(), tables())
def test_swapping_sides_reverses_every_change(ref: OperatorTable, new: OperatorTable) -> None:
    there, back = difference(ref, new), difference(new, ref)
    assert sorted(change.change_s for change in there.changes) == pytest.approx(
        sorted(-change.change_s for change in back.changes), abs=1e-12
    )


def test_equal_cases_of_two_runs_or_two_single_cases_are_pairs() -> None:
    torch, jax = a_table(), a_table(case=a_case(backend="jax", mode="jit"))
    assert pairs([torch, jax], [jax]) == [(jax, jax)]
    assert pairs([torch], [jax]) == [(torch, jax)]
    table = a_table(case=a_case(params={"m": 1}))
    with pytest.raises(UsageError, match="No case was profiled in both runs"):
        pairs([torch, table], [jax])


def test_cases_are_chosen_by_parts_of_their_id_or_by_a_pattern() -> None:
    profiles = [a_profiled(), a_profiled(case=a_case(backend="jax", mode="jit"))]
    assert select_profiles(profiles, ()) == profiles
    assert select_profiles(profiles, ("@jax",)) == select_profiles(profiles, ("gemm*jit@*",)) == profiles[1:]
    assert select_profiles([], ("@jax",)) == []
    with pytest.raises(UsageError, match="No profiled case matches tensorflow"):
        select_profiles(profiles, ("tensorflow",))


def test_a_difference_shows_both_sides_and_how_much_is_explained() -> None:
    ref = a_table(an_operator("clamp", 0.02), an_operator("mm", 0.06))
    new = a_table(
        an_operator("clamp", 0.06),
        an_operator("mm", 0.06),
        wall_s=0.14,
        measured_s=0.0141,
        plain_step_s=(),
        step_s=(),
    )
    assert rendered(differences_document([difference(ref, new)], 1)) == snapshot("""\
a step of 10.0 ms → 14.0 ms, +4.00 ms, most by clamp: +4.00 ms

gemm(m=64,n=64,k=64)/float32/eager@torch:cpu
profiled: a step of 10.0 ms → 14.0 ms, +4.00 ms (+40.0 %)
timed: a step of 10.0 ms → 14.1 ms, +4.10 ms
operators explain 100 % of the difference
OPERATOR     KIND         REF      NEW      CHANGE    OF THE DIFFERENCE
clamp        elementwise  2.00 ms  6.00 ms  +4.00 ms  100 %
1 other                                     0.00 s    0 %
no operator               2.00 ms  2.00 ms  0.00 s    0 %
total                     10.0 ms  14.0 ms  +4.00 ms  100 %
""")


def test_a_difference_within_the_noise_is_not_explained() -> None:
    comparison = difference(a_table(), a_table(wall_s=0.101))
    output = rendered(differences_document([comparison], 5))
    assert "nothing to explain" in output
    assert "explain 1" not in output


def test_a_profile_of_one_operator_shows_no_rest() -> None:
    profile: Profile = a_profile(an_operator("only", 0.1))
    table = operator_table(a_profiled(profile), profile, None)
    assert "others" not in rendered(profile_document([table], 1, HERE))
