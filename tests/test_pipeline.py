"""Pipelines: cuts of a chain of layers, micro-batches, and equality with one device."""

from __future__ import annotations

import re
from dataclasses import replace
from itertools import chain, combinations, pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from benchbench.analyse.rows import flatten, rows
from benchbench.analyse.scaling import RunView, scalings
from benchbench.documents.run import report_document
from benchbench.errors import UsageError
from benchbench.model.case import Dtype, Phase, Status
from benchbench.model.measurement import Failure, combined
from benchbench.model.note import NoteKind, note
from benchbench.model.placement import Placement, Strategy, World
from benchbench.model.run import Run
from benchbench.plan.cases import division_obstacle
from benchbench.worker.program import loss_of
from benchbench.workloads._layers import Dense, weights_of
from benchbench.workloads.base import Draw
from benchbench.workloads.network import Chain, Link, cut_chain
from benchbench.workloads.networks.decoders import Gpt2Train
from benchbench.workloads.networks.plain_cnns import ConvnetTrain
from benchbench.workloads.networks.residual_networks import Resnet50Train
from benchbench.workloads.steps import PipelinedTraining
from tests.factories import a_case, a_cost, a_measurement, a_probe, a_record, a_run, a_run_info
from tests.rendering import columns_of
from tests.test_architecture import ROOT
from tests.test_parallel import training_case
from tests.tiny import EVERY
from tests.verifying import Verifier, failures

STAGES = Placement(devices=2, strategy=Strategy.PIPELINE)


def in_stages(stages: int) -> Placement:
    return Placement(devices=stages, strategy=Strategy.PIPELINE)


@given(st.integers(1, 300), st.integers(2, 8))
def test_by_default_a_stage_has_at_most_four_micro_batches(batch: int, stages: int) -> None:
    work = ConvnetTrain(batch=batch).divided(in_stages(stages))
    assert batch % work.accumulate == 0
    assert work.accumulate <= 4 * stages
    assert ConvnetTrain(batch=batch).params == {"batch": batch}
    assert ConvnetTrain(batch=batch, accumulate=2).divided(in_stages(stages)).accumulate == 2


@given(st.integers(2, 6), st.integers(1, 12))
def test_the_bubble_is_the_waiting_time_of_a_stage(stages: int, micro_batches: int) -> None:
    """A stage begins with a micro-batch one tick after the stage before it, forwards and backwards."""
    work = ConvnetTrain(batch=micro_batches, accumulate=micro_batches).divided(in_stages(stages))
    ticks = 1 + max(stage + part for stage in range(stages) for part in range(micro_batches))
    assert work.bubble == pytest.approx(1 - micro_batches / ticks)


def test_a_pipeline_is_refused_with_the_reason() -> None:
    def why(work: PipelinedTraining, stages: int) -> str:
        return work.divided(in_stages(stages)).refuses(Dtype.FLOAT32)

    assert why(ConvnetTrain(), 8) == "its 4 layers or blocks cannot be divided into 8 stages"
    assert why(ConvnetTrain(batch=9, accumulate=2), 2) == (
        "a batch of 9 cannot be divided into 2 micro-batches"
    )
    assert why(ConvnetTrain(batch=2, schedule="1f1b"), 3) == (
        "schedule=1f1b needs a micro-batch for each of 3 stages, but there are 2"
    )
    assert ConvnetTrain(schedule="1f1b").refuses(Dtype.FLOAT32) == "schedule=1f1b needs a pipeline"
    assert not why(ConvnetTrain(schedule="1f1b"), 2)
    with pytest.raises(UsageError, match="No schedule named 'zigzag'"):
        ConvnetTrain(schedule="zigzag")


def test_the_page_lists_networks_with_stages() -> None:
    def offering(framework: str) -> set[str]:
        return {name for name, kind in EVERY.items() if Strategy.PIPELINE in kind.strategies(framework)}

    page = (ROOT / "docs/devices.md").read_text().partition("### Pipelines")[2].partition("###")[0]
    lines = [line.split("|")[1:4] for line in page.splitlines() if line.startswith("| `")]
    cells_by_name = {name: cells for names, *cells in lines for name in re.findall(r"`(\w+)`", names)}
    assert cells_by_name.keys() == {
        n for n, kind in EVERY.items() if Strategy.DATA_PARALLEL in kind.strategies("torch")
    }
    assert {name for name, (torch, _) in cells_by_name.items() if "–" not in torch} == offering("torch")
    assert {name for name, (_, jax) in cells_by_name.items() if "–" not in jax} == offering("jax")
    assert not offering("tensorflow")


@pytest.mark.parametrize(
    ("backend", "workload", "reason"),
    [
        ("tensorflow", "gpt2_train", "TensorFlow has no schedule of stages"),
        ("torch_xla", "gpt2_train", "torch's stages need a process each, and in SPMD one drives all devices"),
        (
            "jax",
            "convnet_train",
            "it has no pipeline step on jax; there is data-parallel, fully-sharded, tensor-parallel",
        ),
        ("jax", "gpt2_train", None),
        ("torch", "unet_train", "it has no pipeline step on torch; there is data-parallel, fully-sharded"),
        ("torch", "convnet_train", None),
    ],
)
def test_a_plan_has_the_reason_for_missing_stages(backend: str, workload: str, reason: str | None) -> None:
    probe = a_probe(backend=backend)
    case = a_case(workload=workload, params={}, phase=Phase.TRAIN, backend=backend, placement=STAGES)
    obstacle = division_obstacle(case, EVERY[workload], probe, probe.devices[0])
    assert obstacle == (reason and (Status.UNSUPPORTED, reason))


@pytest.mark.parametrize("stages", [2, 4, 12])
def test_a_pipeline_is_verified_in_as_many_stages(stages: int) -> None:
    for work in (Resnet50Train(), Gpt2Train(batch=32)):
        small = work.divided(in_stages(stages)).small()
        assert small.placement == in_stages(stages)
        assert len(cut_chain(small.links(), stages)) == stages
        assert small.accumulate == min(2 * stages, work.divided(in_stages(stages)).accumulate)
        assert not small.refuses(Dtype.FLOAT32)
        assert not isinstance(small, Gpt2Train) or small.depth % stages == 0


def test_a_report_shows_idle_time_and_bubble_of_stages() -> None:
    bubble = note(NoteKind.PIPELINE, stages=2, micro_batches=8, share=1 / 9)
    staged = a_case(placement=STAGES)
    measurement = combined(a_cost(), [(0, "cpu", a_measurement(notes=(bubble,))) for _ in range(2)])
    run = replace(a_run([a_record(measurement, case=staged)]), idle={staged.id: 0.25})
    (row,) = rows(run)
    assert row.notes[-1].text.startswith("a stage was idle for 25.0 % of a profiled step")
    assert flatten(row)["idle_share"] == 0.25
    document = report_document(run)
    columns = columns_of(document, [table.title for table in document.tables].index("Ranks"))
    assert (columns["bubble"], columns["idle"]) == (("11.1 %",), ("25.0 %",))
    assert columns["strategy"] == ("pipeline",)


@pytest.mark.parametrize(
    ("of_ranks", "loss"), [([[], [2.0]], 2.0), ([[1.0], [3.0]], 2.0), ([[], [None]], np.nan)]
)
def test_a_rank_without_a_loss_does_not_count(of_ranks: list[Any], loss: float) -> None:
    class Session:
        world = World(devices=2, processes=2, gather=lambda value: of_ranks)

        def fetch(self, output: Any) -> Any:
            return np.asarray(output)

    session: Any = Session()
    assert loss_of(np.empty(0), session) == pytest.approx(loss, nan_ok=True)


def test_a_schedule_is_compared_with_one_device_which_has_none() -> None:
    single = a_case(workload="convnet_train", params={"batch": 16}, phase=Phase.TRAIN)
    staged = replace(single, params={"batch": 16, "schedule": "1f1b"}, placement=STAGES)
    records = tuple(a_record(a_measurement(), case=case) for case in (single, staged))
    run = Run(info=a_run_info(plan=(single, staged)), records=records)
    assert [scaling.single.case for scaling in scalings(RunView(run))] == [single]


# Beside these, tests/test_parallel.py verifies the CNN and GPT-2 in stages, and nightly every network.
@pytest.mark.real
def test_both_schedules_of_torch_are_verified(verifier: Verifier) -> None:
    pytest.importorskip("torch")
    staged: dict[str, Any] = {"batch": 8, "schedule": "1f1b"}
    errors = verifier.errors_of(
        [
            training_case("torch", Dtype.FLOAT32, "gpt2_train", STAGES, **staged),
            training_case("torch", Dtype.FLOAT32, "convnet_train", in_stages(3), optimizer="adamw", **staged),
            training_case("torch", Dtype.FLOAT32, "llama_train", STAGES, batch=8),
            training_case("torch", Dtype.AMP_BF16, "gpt2_train", STAGES, batch=8),
        ]
    )
    assert len(errors) == 4
    assert not failures(errors)


@pytest.mark.nightly
@pytest.mark.real
def test_equal_blocks_are_verified_in_jax(verifier: Verifier) -> None:
    pytest.importorskip("jax")
    errors = verifier.errors_of(
        [
            training_case("jax", Dtype.FLOAT32, "gpt2_train", in_stages(4), batch=8, optimizer="momentum"),
            training_case("jax", Dtype.AMP_BF16, "gpt2_train", STAGES, batch=8),
        ]
    )
    assert len(errors) == 2
    assert not failures(errors)


@pytest.mark.real
@pytest.mark.parametrize(
    ("backend", "case", "reason"),
    [
        ("torch", {"dtype": Dtype.AMP_FP16}, "overflows only in its own gradients"),
        ("jax", {"params": {"schedule": "1f1b"}}, "JAX supports only the schedule gpipe"),
        (
            "jax",
            {"name": "transformer_train", "placement": in_stages(3)},
            "2 blocks cannot be divided into 3 equal stages",
        ),
    ],
)
def test_a_step_that_a_framework_cannot_divide_into_stages_is_unsupported(
    verifier: Verifier, backend: str, case: dict[str, Any], reason: str
) -> None:
    pytest.importorskip(backend)
    planned = training_case(
        backend,
        case.get("dtype", Dtype.FLOAT32),
        case.get("name", "gpt2_train"),
        case.get("placement", STAGES),
        batch=8,
        **case.get("params", {}),
    )
    (error,) = verifier.errors_of([planned]).values()
    assert isinstance(error, Failure)
    assert error.status == "unsupported"
    assert reason in error.message


MUTANTS = '''
from dataclasses import dataclass
from pathlib import Path

from benchbench.workloads._programs.jax_layers import JaxForward
from benchbench.workloads.networks.plain_cnns import ConvnetTrain
from benchbench.workloads.networks.decoders import Gpt2Train


@dataclass(frozen=True)
class StagesSkipOne(Gpt2Train):
    """The blocks of the second stage hand on what they are given."""

    def torch(self):
        model = super().torch()
        model.layers[-1].forward = lambda x, positions=None, cache=None: x
        return model

    def block(self, nn, x, place):
        import jax

        computed = super().block(nn, x, place)
        if not isinstance(nn, JaxForward):
            return computed
        return jax.numpy.where(jax.lax.axis_index("devices") == 1, x, computed)


@dataclass(frozen=True)
class StagesDropTheLast(Gpt2Train):
    """The last micro-batch does not come through."""

    def build_torch(self, context, arrays):
        from torch.distributed import pipelining

        class Dropping(pipelining.ScheduleGPipe):
            def __init__(self, stage, n_microbatches, loss_fn):
                super().__init__(stage, n_microbatches - 1, loss_fn=loss_fn)

            def step(self, *inputs, target=None, **options):
                def others(tensor):
                    return tensor[: -(len(tensor) // (self._n_microbatches + 1))]

                kept = None if target is None else others(target)
                return super().step(*map(others, inputs), target=kept, **options)

        pipelining.ScheduleGPipe = Dropping
        return super().build_torch(context, arrays)

    def output(self, nn, x):
        part = len(x) // self.accumulate
        return super().output(nn, x.at[-part:].set(0) if isinstance(nn, JaxForward) else x)


@dataclass(frozen=True)
class StagesShareNothing(Gpt2Train):
    """Those that have the table of tokens do not tell each other its gradients."""

    def build_torch(self, context, arrays):
        import torch.distributed as dist

        dist.all_reduce = lambda *given, **named: None
        return super().build_torch(context, arrays)
'''


@pytest.mark.real
@pytest.mark.parametrize(
    ("backend", "mode", "names"),
    [
        ("torch", "eager", ["stages_skip_one", "stages_drop_the_last", "stages_share_nothing"]),
        ("jax", "jit", ["stages_skip_one", "stages_drop_the_last"]),
    ],
)
def test_skipped_stages_and_batches_are_wrong(
    fresh_verifier: Verifier,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    backend: str,
    mode: str,
    names: list[str],
) -> None:
    pytest.importorskip(backend)
    (tmp_path / "stages.py").write_text(MUTANTS)
    monkeypatch.setenv("ACCELBENCH_WORKLOADS", str(tmp_path))
    staged = {"backend": backend, "mode": mode, "phase": Phase.TRAIN, "placement": STAGES}
    cases = [a_case(workload=name, params={"batch": 8}, **staged) for name in names]
    errors = fresh_verifier.errors_of(cases)
    assert len(errors) == len(names)
    statuses = [error.status if isinstance(error, Failure) else error for error in errors.values()]
    assert statuses == ["wrong_result"] * len(names)


CHAINS = [name for name, kind in EVERY.items() if issubclass(kind, Chain) and name.endswith("_train")]


def chain_of(name: str) -> Chain:
    network = EVERY[name]()
    assert isinstance(network, Chain)
    return network


def links_that_cost(costs: list[int]) -> list[Link]:
    return [
        Link(layers=(Dense(name=f"dense{at}", inputs=cost, outputs=1),), outputs=1)
        for at, cost in enumerate(costs)
    ]


@given(st.data())
def test_the_cut_minimises_the_longest_stage(data: st.DataObject) -> None:
    costs = data.draw(st.lists(st.integers(0, 9), min_size=1, max_size=8))
    stages = data.draw(st.integers(1, len(costs)))
    links = links_that_cost(costs)
    cut = cut_chain(links, stages)
    assert list(chain.from_iterable(cut)) == links
    assert all(cut)
    every = [
        max(sum(costs[start:end]) for start, end in pairwise([0, *ends, len(costs)]))
        for ends in combinations(range(1, len(costs)), stages - 1)
    ]
    assert max(sum(link.flops for link in stage) for stage in cut) == 2 * min(every)


def test_equal_cuts_have_even_stages_before_the_last() -> None:
    assert [len(stage) for stage in cut_chain(links_that_cost([1, 1, 1, 1, 10]), 3)] == [2, 2, 1]


def test_a_stage_of_gpt2_with_the_logits_has_fewer_blocks() -> None:
    assert [len(stage) for stage in cut_chain(chain_of("gpt2_train").links(), 2)] == [9, 5]


@pytest.mark.parametrize("name", CHAINS)
def test_the_links_of_a_network_have_all_its_weights(name: str) -> None:
    network = chain_of(name).tiny()
    weights = [weight for link in network.links() for weight in weights_of(link.layers)]
    assert weights == list(network.weights())
    assert {shared for link in network.links() for shared in link.shares} <= set(weights)
    longer = network.lengthened(4)
    assert len(longer.links()) >= 4


@pytest.mark.real
@pytest.mark.parametrize("name", CHAINS)
def test_links_of_a_torch_module_have_the_stated_output_sizes(name: str) -> None:
    torch = pytest.importorskip("torch")
    from benchbench.workloads._programs.torch_pipeline import torch_links

    network = chain_of(name).tiny()
    with torch.device("meta"):
        model = network.torch().train()
        (images_or_tokens,) = network.inputs(Draw(Dtype.FLOAT32)).values()
        x = torch.from_numpy(images_or_tokens).to("meta")
        for link, function in zip(network.links(), torch_links(network, model), strict=True):
            x = function(x)
            assert x.numel() == network.batch * link.outputs
