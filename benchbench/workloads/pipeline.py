"""A training step that can also be divided into stages: some of the layers on each device."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import gcd
from typing import TYPE_CHECKING, Any, Self

from benchbench.errors import UsageError, unknown
from benchbench.model.case import Dtype
from benchbench.model.note import NoteKind, note
from benchbench.model.placement import Placement, Strategy
from benchbench.workloads._programs import jax_pipeline, torch_pipeline
from benchbench.workloads.base import DeviceContext, Program
from benchbench.workloads.chain import BlockChain, Chain
from benchbench.workloads.steps import TrainingStep

if TYPE_CHECKING:
    from benchbench.workloads.base import Arrays

SCHEDULES = ("gpipe", "1f1b")  # the first is what every framework has
MICRO_BATCHES_OF_STAGE = 4  # with so many the bubble is small: Huang et al. 2019, "GPipe", 2.3
CHECKED_OF_STAGE = 2  # where it is verified: more of them take no other way


@dataclass(frozen=True)
class PipelinedTraining(TrainingStep, Chain):
    """A training step whose layers can form a pipeline; its micro-batches are those of `accumulate`.

    Where `accumulate` is 1, a pipeline has up to four micro-batches per stage, as many as divide the batch.
    """

    schedule: str = SCHEDULES[0]  # of a pipeline's micro-batches
    added = frozenset({"schedule"})

    def __post_init__(self) -> None:
        """Raise UsageError also for a schedule that is not known."""
        super().__post_init__()
        if self.schedule not in SCHEDULES:
            raise UsageError(
                f"No schedule named {self.schedule!r}.", unknown("schedules", self.schedule, [*SCHEDULES])
            )

    @classmethod
    def strategies(cls, framework: str) -> Sequence[Strategy]:
        """torch cuts any chain, JAX one of equal blocks."""
        cuts = framework == "torch" or (framework == "jax" and issubclass(cls, BlockChain))
        return (*super().strategies(framework), *([Strategy.PIPELINE] if cuts else []))

    @property
    def is_pipeline(self) -> bool:
        """Whether its devices have a stage each."""
        return self.placement.strategy is Strategy.PIPELINE

    def divided(self, placement: Placement, rank: int | None = None, replicas: int = 1) -> Self:
        """A pipeline also gets its number of micro-batches."""
        instance = super().divided(placement, rank, replicas)
        if instance.is_pipeline and self.accumulate == 1:
            most = MICRO_BATCHES_OF_STAGE * placement.devices
            object.__setattr__(instance, "accumulate", gcd(self.batch, most))
        return instance

    def small(self) -> Self:
        """A pipeline has a few micro-batches, each half as large as a small batch on one device."""
        if not self.is_pipeline:
            return super().small()
        devices, tiny = self.placement.devices, self.tiny().lengthened(self.placement.devices)
        count = min(self.accumulate, CHECKED_OF_STAGE * devices)
        sizes: dict[str, Any] = {"batch": count * max(1, tiny.batch // 2), "accumulate": count}
        return replace(tiny, **sizes).divided(self.placement, self.rank, self.replicas)

    def refuses(self, dtype: Dtype) -> str:
        """More stages than layers are refused, too, and a schedule where there is no pipeline."""
        if self.schedule != SCHEDULES[0] and not self.is_pipeline:
            return f"schedule={self.schedule} is of a pipeline"
        if self.is_pipeline:
            links, stages, count = len(self.links()), self.placement.devices, self.accumulate
            if links < stages:
                return f"its {links} layers or blocks cannot be divided into {stages} stages"
            if self.schedule == "1f1b" and count < stages:
                return f"schedule=1f1b needs a micro-batch for each of {stages} stages, and there are {count}"
        return super().refuses(dtype)

    @property
    def bubble(self) -> float:
        """The share of a step in which a stage has nothing to compute, where all take equally long.

        (p − 1) / (m + p − 1) of p stages and m micro-batches, with either schedule: Huang et al. 2019,
        "GPipe", 2.3; Narayanan et al. 2021, 2.2.
        """
        idle = self.placement.devices - 1
        return idle / (self.accumulate + idle)

    def build_torch(self, context: DeviceContext, arrays: Arrays) -> Program:
        if not self.is_pipeline:
            return super().build_torch(context, arrays)
        program = torch_pipeline.pipelined_training(self, self.update, self.schedule, context, arrays)
        return self._noted(program)

    def build_jax(self, context: DeviceContext, arrays: Arrays) -> Program:
        if not self.is_pipeline:
            return super().build_jax(context, arrays)
        assert isinstance(self, BlockChain)  # as `strategies` says
        program = jax_pipeline.pipelined_scan(self, self.update, self.schedule, context, arrays)
        return self._noted(program)

    def _noted(self, program: Program) -> Program:
        stages, count = self.placement.devices, self.accumulate
        bubble = note(NoteKind.PIPELINE, stages=stages, micro_batches=count, share=self.bubble)
        return replace(program, notes=(*program.notes, bubble))
