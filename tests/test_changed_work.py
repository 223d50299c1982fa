"""Comparisons of different versions of a work: computations, defaults, inputs and outputs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from benchbench.analyse.digest import digest, with_partner_ids
from benchbench.analyse.metrics import METRICS
from benchbench.documents.comparison import comparison_document
from benchbench.documents.gate import Gate, check_document
from benchbench.errors import NotComparable, UsageError
from benchbench.gate.checking import equal_params
from benchbench.judging.case_tests import GatePolicy
from benchbench.judging.check import Ending, check_interleaved, decide, exit_code
from benchbench.judging.comparison import compare_runs
from benchbench.judging.series import trends
from benchbench.launch import catalogue, user_models
from benchbench.launch.project import UserCode
from benchbench.launch.transport import Answer, Message
from benchbench.launch.user_models import UserModel
from benchbench.model.case import Scalar, Status, Verdict
from benchbench.model.measurement import ModelFacts
from benchbench.model.options import MeasureOptions
from benchbench.model.run import Partner, Run, RunInfo
from benchbench.model.user_model import ModelSpec
from benchbench.plan.estimates import cost_of
from benchbench.plan.rerun import Variant
from benchbench.running.request import request
from benchbench.running.sides import changed_defaults, check_comparable, heads, plan_sides
from tests.factories import a_case, a_cost, a_left_out, a_models_size, a_probe, a_run, some_rounds
from tests.rendering import rendered

FACTS = ModelFacts(inputs=("float32[64,512]",), outputs=("float32[64,512]",), parameters=1000)
BEFORE: dict[str, Any] = {"workload_version": "own:1", "model": FACTS, "cost": a_cost(flops=1000)}
AFTER: dict[str, Any] = {"workload_version": "own:2", "model": FACTS, "cost": a_cost(flops=1086, bytes=7)}
WIDER = {**AFTER, "model": replace(FACTS, outputs=("float32[64,1024]",))}
UNKNOWN = {**BEFORE, "model": None}  # as stored by versions without model facts
RULES = GatePolicy(metrics=METRICS[:1], confirm=False)


def a_version(facts: Mapping[str, Any], seconds: float = 1e-3, case: Any = None, **over: Any) -> Run:
    rounds = [seconds * wobble for wobble in (1.0, 1.002, 0.998, 1.001, 0.999)]
    return a_run(some_rounds(*rounds, case=case, **facts), **over)


def daily(versions: Sequence[Mapping[str, Any]], seconds: float = 1e-3, first: int = 0) -> list[Run]:
    """A run of each version, one a day."""
    return [
        a_version(facts, seconds, id=f"R{day}", started=f"2026-01-{day + 1:02d}T00:00:00Z")
        for day, facts in enumerate(versions, first)
    ]


def as_partners(ref: Run, new: Run) -> tuple[Run, Run]:
    first, second = ref.info.plan[0].id, new.info.plan[0].id
    of_ref = Partner(label="rev:main", run=new.info.id, cases={first: second})
    of_new = Partner(label="here", run=ref.info.id, cases={second: first})
    sides = ((ref, of_ref), (new, of_new))
    ref, new = (replace(run, info=replace(run.info, partner=partner)) for run, partner in sides)
    return ref, new


@pytest.mark.parametrize("interleaved", [False, True])
def test_a_changed_computation_is_judged_with_a_note(interleaved: bool) -> None:
    ref, new = a_version(BEFORE, id="A"), a_version(AFTER, 1.2e-3, id="B")
    comparison = compare_runs(*(as_partners(ref, new) if interleaved else (ref, new)))
    (verdict,) = comparison.verdicts
    assert verdict.verdict is Verdict.SLOWER
    assert verdict.work == "the computation changed: FLOPs +8.6 %, parameters equal"
    assert verdict.work in rendered(comparison_document(comparison, comparison.verdicts))


@pytest.mark.parametrize("facts", [WIDER, UNKNOWN | {"workload_version": "own:2"}])
def test_works_with_different_or_unknown_arrays_are_not_compared(facts: Mapping[str, Any]) -> None:
    (verdict,) = compare_runs(a_version(BEFORE, id="A"), a_version(facts, id="B")).verdicts
    assert verdict.verdict is Verdict.INCOMPARABLE
    assert verdict.work == ""


def test_a_case_with_different_defaults_is_judged_with_a_note() -> None:
    six, eight = (a_case(workload="mine", params={"width": 4, "depth": depth}) for depth in (6, 8))
    sides = (
        a_version({"cost": a_cost(flops=6)}, case=six, id="A"),
        a_version({"cost": a_cost(flops=8)}, 1.3e-3, case=eight, id="B"),
    )
    (verdict,) = compare_runs(*as_partners(*sides)).verdicts
    assert verdict.verdict is Verdict.SLOWER
    assert verdict.work.startswith("defaults differ: depth 6 → 8; ")
    ref, new = map(digest, as_partners(*sides))
    assert equal_params(ref, new) == {eight.id: {"width"}}


def test_a_check_against_code_and_against_sessions_judges_a_changed_computation() -> None:
    ref, new = map(digest, as_partners(a_version(BEFORE, id="A"), a_version(AFTER, 1.2e-3, id="B")))
    sessions = [digest(run) for run in daily([BEFORE] * 6)]
    for result in (check_interleaved(ref, new, RULES), decide(sessions, new, RULES)):
        (finding,) = result.findings
        assert finding.verdict is Verdict.SLOWER
        assert exit_code(result) == Ending.REGRESSED.code
        assert "FLOPs +8.6 %" in rendered(check_document(Gate(name="main", result=result)))
    barred = digest(a_version(WIDER, id="W"))
    assert [finding.verdict for finding in decide(sessions, barred, RULES).findings] == [Verdict.INCOMPARABLE]


def test_sessions_of_a_replaced_computation_do_not_count() -> None:
    """Otherwise the step between two accepted versions would count as noise of the machine."""
    runs = [*daily([BEFORE] * 5), *daily([AFTER] * 5, 1.3e-3, first=5)]
    sessions = [digest(run) for run in runs]
    (finding,) = decide(sessions, digest(a_version(AFTER, 1.3e-3, id="N")), RULES).findings
    assert (finding.verdict, finding.work) == (Verdict.SAME, "")
    assert finding.first is not None
    assert finding.first.against == 5


def test_a_history_spans_changed_computations_but_not_changed_arrays() -> None:
    (trend,) = trends(daily([UNKNOWN, BEFORE, AFTER, BEFORE, WIDER]), METRICS[0])
    assert [point.run for point in trend.points] == ["R0", "R1", "R2", "R3", "R4"]
    assert trend.boundaries == (4,)
    assert all(trend.boundary_reasons)


PATHS = {name: UserCode(workloads=(), python_path=(), sources=(f"/{name}",)) for name in ("base", "head")}


def a_model(
    name: str = "net", *, depth: int = 6, inputs: Sequence[str] = ("float32[64]",), **sizes: Scalar
) -> UserModel:
    """A model with these facts at any size."""
    defaults: dict[str, Scalar] = {"batch": 64, "depth": depth, **sizes}

    def ask(job: Message) -> Answer:
        params = {**defaults, **(job["params"] or {})}
        facts = {"attribute": "Net", "is_default": True, "sizes": defaults}
        facts |= a_models_size(params, flops=10 * params["depth"], inputs=inputs)
        return Answer({"described": facts | {"model_sizes": ["depth"], "input_sizes": ["batch"]}})

    return user_models.describe([ModelSpec(folder="/here", module=name)], (), lambda kind: ask)[name]


def sides(base: UserModel | UsageError | None, head: UserModel, **options: Any) -> tuple[RunInfo, RunInfo]:
    """The heads of two runs with a different model on each side."""
    of_base: dict[str, UserModel | UsageError] = {"net": base} if base else {}
    variants = [Variant(text=name, code=code) for name, code in PATHS.items()]
    measure = MeasureOptions(model=("net:Net",), backends=("torch",), modes=("eager",), **options)
    with (
        catalogue.with_models({"net": head}),
        catalogue.with_models_of(PATHS["base"], of_base),
        catalogue.with_models_of(PATHS["head"], {"net": head}),
    ):
        return plan_sides([[a_probe()]] * 2, request(measure, ["net"]), variants)


def depths(infos: Sequence[RunInfo]) -> list[Scalar]:
    return [case.params["depth"] for info in infos for case in info.plan]


def test_each_side_is_planned_at_its_own_defaults() -> None:
    infos = sides(a_model(depth=6), a_model(depth=8))
    assert depths(infos) == [6, 8]
    assert infos[0].partner
    assert infos[0].partner.cases == {infos[0].plan[0].id: infos[1].plan[0].id}
    (line,) = changed_defaults(infos)
    assert "depth 6 → 8" in line


def test_a_requested_size_applies_to_both_sides() -> None:
    infos = sides(a_model(depth=6), a_model(depth=8), params={"depth": 7})
    assert depths(infos) == [7, 7]
    assert changed_defaults(infos) == []


def test_equal_parameters_stay_equal_in_a_second_measurement() -> None:
    base, head = a_model(depth=6), a_model(depth=8)
    _, planned = sides(base, head)
    variants = [Variant(text=name, code=code) for name, code in PATHS.items()]
    with (
        catalogue.with_models_of(PATHS["base"], {"net": base}),
        catalogue.with_models_of(PATHS["head"], {"net": head}),
    ):
        terms = request(MeasureOptions(model=("net:Net",)), ["net"])
        pinned = {planned.plan[0].id: {"batch"}}
        assert depths(heads(planned.plan, [[a_probe()]] * 2, terms, variants, pinned)) == [6, 8]
        assert depths(heads(planned.plan, [[a_probe()]] * 2, terms, variants)) == [8, 8]


def test_versions_with_different_arrays_are_refused_before_measuring() -> None:
    infos = sides(a_model(), a_model(inputs=("float32[32]",)))
    assert [info.plan for info in infos] == [(), ()]
    with pytest.raises(NotComparable) as caught:
        check_comparable(infos)
    assert "float32[64] → float32[32]" in str(caught.value)


def test_a_parameter_or_model_missing_on_one_side_does_not_prevent_the_plan() -> None:
    infos = sides(a_model(), a_model(heads=4))
    assert [list(case.params) for info in infos for case in info.plan] == [
        ["batch", "depth"],
        ["batch", "depth", "heads"],
    ]
    infos = sides(None, a_model())
    statuses = [[case.status for case in info.left_out] for info in infos]
    assert statuses == [[Status.UNSUPPORTED], [Status.SKIPPED]]


def test_an_error_in_a_sides_file_is_reported_when_measured() -> None:
    infos = sides(UsageError("net.py, line 3: NameError"), a_model())
    assert depths(infos) == [6, 6]


def test_a_case_with_different_arrays_is_incomparable_in_a_check() -> None:
    reason = "inputs float32[64] → float32[32]"
    other_case = a_case(params={"m": 1})
    ref, new = a_version(BEFORE, id="A"), a_version(AFTER, id="B")
    ref, new = as_partners(ref, new)
    for side, status in ((ref, Status.INCOMPARABLE), (new, Status.SKIPPED)):
        assert side.info.partner
        side.info.partner.cases[other_case.id] = other_case.id
        left_out = (a_left_out(case=other_case, status=status, reason=reason),)
        object.__setattr__(side.info, "left_out", left_out)
    result = check_interleaved(digest(ref), digest(new), RULES)
    verdicts = {finding.case: (finding.verdict, finding.reason) for finding in result.findings}
    assert verdicts[other_case.id] == (Verdict.INCOMPARABLE, reason)
    assert exit_code(result) == Ending.NOT_COMPARABLE.code
    assert with_partner_ids(digest(ref), digest(new)).cases[other_case.id].incomparable == reason
    assert Verdict.INCOMPARABLE in {finding.verdict for finding in compare_runs(ref, new).verdicts}


def test_cost_estimates_ignore_parameters_of_another_version() -> None:
    with catalogue.with_models({"net": a_model()}):
        case = a_case(workload="net", params={"batch": 64, "depth": 6, "heads": 4})
        assert cost_of(case).flops == 60


@pytest.mark.real
def test_a_models_description_has_its_inputs_and_outputs(tmp_path: Path) -> None:
    pytest.importorskip("torch")
    from benchbench.worker.user_models.lookup import describe_model

    (tmp_path / "two.py").write_text(
        "import torch\n"
        "class Two(torch.nn.Module):\n"
        "    def forward(self, x, index):\n"
        "        return {'sum': x.sum(-1), 'rows': x[index]}\n"
        "def inputs(batch=2):\n"
        "    return torch.randn(batch, 3), torch.arange(batch)\n"
    )
    size = describe_model(ModelSpec(folder=str(tmp_path), file=str(tmp_path / "two.py")), None)["size"]
    assert size["model_facts"]["inputs"] == ("float32[2,3]", "int64[2]")
    assert size["model_facts"]["outputs"] == ("float32[2]", "float32[2,3]")
