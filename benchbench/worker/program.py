"""A case's workload, built for a framework and ready to step, with its inputs; its result judged."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Iterator
from itertools import cycle, repeat
from typing import TYPE_CHECKING, Any, Self

from benchbench import registry
from benchbench.arrays import AnyArray, Booleans
from benchbench.backends.base import CLEARING, Backend, Session
from benchbench.errors import Unsupported
from benchbench.model.case import Cache, Case, Dtype, Phase
from benchbench.model.note import Note, NoteKind, note
from benchbench.model.placement import Placement, Strategy
from benchbench.stats import mean
from benchbench.worker import random_cache, verify
from benchbench.worker.own.lookup import find_own_workload
from benchbench.worker.own.workload import OwnOperation
from benchbench.workloads.base import Draw, Operation, Program, Workload

if TYPE_CHECKING:
    from benchbench.workloads.base import Arrays
    from benchbench.workloads.draw import Standard

Message = dict[str, Any]
MOST_SETS = 2**14  # of inputs: more would mostly be the framework's own objects
Inputs = tuple[Any, ...]
WrongResult = verify.WrongResult


@dataclasses.dataclass
class Runner:
    """A compiled program and its state: each call is one step."""

    program: Program
    compiled: Callable[..., Any]
    state: tuple[Any, ...]
    inputs: Iterator[tuple[Any, ...]]  # of one step after the other
    note: Note | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        """End what prepares the inputs."""
        if self.program.feed:
            self.program.feed.batches.close()

    def step(self) -> Any:
        """The step's output; the state is replaced."""
        return self.step_on(next(self.inputs))

    def step_on(self, inputs: tuple[Any, ...]) -> Any:
        """The step's output of these inputs; the state is replaced."""
        result = self.compiled(*self.state, *inputs)
        if not self.state:
            return result
        if not isinstance(result, tuple | list) or len(result) != len(self.state) + 1:
            raise verify.NotAnOutput(
                f"the step returned {verify.kind_of(result)}: "
                f"return its next state, {len(self.state)} values, and then the output, as one tuple"
            )
        *state, output = result
        self.state = tuple(state)
        return output


def build(
    backend: Backend, session: Session, workload: Workload, dtype: Dtype, cache: Cache = Cache.HOT
) -> Runner:
    """The workload's program for this framework, in the session's mode."""
    arrays = workload.arrays(Draw(dtype, standard=standard_of(backend, workload)))
    program = backend.program(session, workload, arrays)
    inputs, note = turns(
        cache, session, program.inputs, lambda: backend.program(session, workload, arrays).inputs
    )
    if program.feed:
        inputs = (session.exchange(program.inputs, batch) for batch in program.feed.batches)
    compiled = session.compile(program.step, len(program.state)) if program.compiles else program.step
    return Runner(program, compiled, program.state, inputs, note)


def standard_of(backend: Backend, workload: Workload) -> Standard:
    """The function that draws arrays: of a simulated program only sizes matter, and zeros take no memory."""
    if backend.computes(workload.frameworks()):
        return random_cache.cached_normal
    return zeros


def zeros(_: tuple[int, int], shape: tuple[int, ...], real: type[Any]) -> AnyArray:
    """Zeros in place of `standard_normal`."""
    import numpy as np

    return np.zeros(shape, real)


def other_inputs(
    backend: Backend, session: Session, workload: Workload, dtype: Dtype, runner: Runner, batch: int = 1
) -> tuple[Any, ...]:
    """Arguments by which the runner computes with other inputs, but with its own weights.

    `batch`: which of them; each number has its own.
    """
    return inputs_of(backend, session, workload, runner, other_arrays(workload, dtype, runner, batch))


def other_arrays(workload: Workload, dtype: Dtype, runner: Runner, batch: int = 1) -> dict[str, AnyArray]:
    """What `other_inputs` are made of."""
    draw = Draw(
        dtype, standard=random_cache.cached_normal, renewed=lambda name: batch * workload.is_input(name)
    )
    return drawn_again(workload, runner, draw)


def altered_inputs(
    backend: Backend,
    session: Session,
    workload: Workload,
    dtype: Dtype,
    runner: Runner,
    alter: Callable[[AnyArray], AnyArray],
) -> tuple[Any, ...]:
    """Arguments by which the runner computes with altered inputs: floats are, indices are not."""
    arrays = drawn_again(workload, runner, Draw(dtype, standard=random_cache.cached_normal))
    altered = {
        name: alter(array) if workload.is_input(name) and array.dtype.kind == "f" else array
        for name, array in arrays.items()
    }
    return inputs_of(backend, session, workload, runner, altered)


def mixed_inputs(
    backend: Backend,
    session: Session,
    workload: Operation,
    dtype: Dtype,
    runner: Runner,
    others: Booleans,
    row: int,
) -> tuple[Any, ...]:
    """Arguments whose every sample is that in `row`: of the other inputs where `others` says so.

    `others`: of each sample of the batch, shape (batch,).
    """
    import numpy as np

    first, second = (
        drawn_again(workload, runner, Draw(dtype, standard=random_cache.cached_normal, renewed=renewed))
        for renewed in (lambda _: 0, workload.is_input)
    )
    mixed = {
        name: np.stack([array[row], second[name][row]])[others.astype(int)]
        if workload.is_input(name)
        else array
        for name, array in first.items()
    }
    return inputs_of(backend, session, workload, runner, mixed)


def drawn_again(workload: Workload, runner: Runner, draw: Draw) -> dict[str, AnyArray]:
    """What other inputs are made of: no weights where the program keeps its own."""
    return workload.input_arrays(draw) if runner.program.inputs_of else workload.arrays(draw)


def inputs_of(
    backend: Backend, session: Session, workload: Workload, runner: Runner, arrays: Arrays
) -> tuple[Any, ...]:
    """Arguments by which the runner computes with inputs made of `arrays`."""
    made = runner.program.inputs_of
    others = made(arrays) if made else backend.program(session, workload, arrays).inputs
    return session.exchange(runner.program.inputs, others)


def open_case(backend: Backend, job: Message) -> tuple[Case, Workload, Session]:
    """The case, its workload and an open session; precision is read back before anything is built."""
    case, world = case_of(job["case"]), backend.world
    session = backend.open(backend.device_of(case.device), case.computes_in, case.mode, job["threads"])
    session.world = world
    workload = workload_of(job["case"])
    return case, workload.divided(case.placement, world.rank if world.processes > 1 else None), session


def loss_of(output: Any, session: Session) -> float:
    """The loss that a training step returned; of several ranks, the mean over their equal parts of the batch.

    A rank whose output is empty has no loss: in a pipeline only the last rank has one. Raises NotAnOutput.
    """
    loss = verify.require_array(output, "the loss, after the next state,")
    own = [float(value) for value in session.fetch(loss).reshape(-1)[:1]]
    of_ranks = session.world.gather([value if math.isfinite(value) else None for value in own])
    losses = [value for rank in of_ranks for value in rank]
    return math.nan if None in losses else mean(losses)


def reference_of(workload: Operation, job: Message) -> verify.Reference:
    """The reference of what this process computes, with its elements."""
    reference = verify.of_rank(workload, verify.Reference(**job["reference"]))
    if not reference.kept:
        return reference
    return with_elements(workload, Dtype(job["case"]["dtype"]), reference)


def with_elements(workload: Workload, dtype: Dtype, reference: verify.Reference) -> verify.Reference:
    """The reference with its elements where these are in the run's folder, as those of a user's model."""
    if not reference.kept:
        return reference
    from benchbench.worker.own.reference import own_expected  # needs autograd

    assert isinstance(workload, OwnOperation)
    return own_expected(workload, dtype, reference)


def verify_form(workload: Operation, runner: Runner, output: Any, session: Session) -> tuple[Note, ...]:
    """Check dtype, shape and finiteness of all of each output. Raises WrongResult.

    An output that is more precise than was asked for is right, and a note says so.
    """
    notes, shapes = [], workload.output_shapes
    for name, tensor in verify.outputs_by_name(shapes, output).items():
        found, asked = session.dtype_of(tensor), verify.dtype_name(session.dtype)
        if verify.is_real(found) and found != asked:
            if (asked, found) not in verify.WIDER:
                raise WrongResult(f"the {name} is {found}, and {asked} was asked for", None)
            if math.prod(session.shape_of(tensor)) > 1:  # a sum is kept in float32 everywhere
                notes.append(note(NoteKind.MORE_PRECISE, output=name, dtype=found, asked=asked))
        if "complex" in found:
            raise WrongResult(f"the {name} is {found}, and only real numbers can be compared", None)
        shape = runner.program.shape_of(name, shapes[name])
        if session.world.devices == 1 and shape and (has := session.shape_of(tensor)) != shape:
            raise WrongResult(f"the {name} has the shape {has}, and not {shape}", None)
        if not session.is_finite(tensor):
            raise WrongResult(f"an element of the {name} is not finite", None)
    return tuple(notes)


def require_accuracy(deviation: verify.Deviation) -> float:
    """The relative error. Raises WrongResult beyond the tolerance."""
    if not math.isfinite(deviation.error):
        raise WrongResult(f"the {deviation.tensor} is not finite", None)
    if deviation.ratio > 1:
        raise WrongResult(
            f"relative error {deviation.error:.2g} of the {deviation.tensor} against float64"
            f" exceeds {deviation.tolerance:.2g}",
            deviation.error,
        )
    return deviation.error


class Implausible(Exception):
    """A time that cannot be true."""


def case_of(fields: Message) -> Case:
    """The case that JSON describes."""
    kinds = {"dtype": Dtype, "phase": Phase, "cache": Cache}
    typed = {name: kind(fields[name]) for name, kind in kinds.items()}
    return Case(**{**fields, **typed, "placement": placement_of(fields["placement"])})


def workload_of(fields: Message) -> Workload:
    """The instance that `workload`, `params` and `placement` name; a user's own model before any other."""
    if own := find_own_workload(fields["workload"], fields["params"]):
        return own
    kind = registry.load_class("benchbench.workloads", fields["workload"], Workload)  # type: ignore[type-abstract]
    return kind(**fields["params"]).divided(placement_of(fields["placement"]))


def placement_of(fields: Message) -> Placement:
    """The placement that JSON describes."""
    names = tuple(fields.get("names", ()))
    return Placement(**{**fields, "names": names, "strategy": Strategy(fields["strategy"])})


def turns(
    cache: Cache, session: Session, inputs: Inputs, again: Callable[[], Inputs]
) -> tuple[Iterator[Inputs], Note | None]:
    """The inputs of one step after the other, without end, and a note on the copies, if there are any.

    `again()` makes another copy. Rotating copies together exceed twice the last-level cache, so that none is
    still in it when its turn comes again. Raises Unsupported where nothing can rotate.
    """
    if cache is not Cache.ROTATE:
        return repeat(inputs), None
    held, wanted = sum(map(session.nbytes, inputs)), CLEARING * session.cache_bytes()
    if held == 0:
        raise Unsupported("it has no inputs to rotate")
    count = wanted // held + 1
    if count > MOST_SETS:
        raise Unsupported(f"{count} copies of its inputs would be needed: take cold caches instead")
    if count == 1:
        return repeat(inputs), note(NoteKind.INPUTS_EXCEED_CACHE, bytes=held)
    sets = [inputs, *(again() for _ in range(count - 1))]
    return cycle(sets), note(NoteKind.COPIES_IN_PEAKS, copies=count, bytes=count * held)
