"""A case's workload as a program of a framework, ready to step, and the verification of its result."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Iterator, Mapping
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
from benchbench.worker.user_models.lookup import find_model_workload
from benchbench.worker.user_models.workload import ModelOperation
from benchbench.workloads.base import Draw, Operation, Program, Workload

if TYPE_CHECKING:
    from benchbench.workloads.base import Arrays
    from benchbench.workloads.draw import Standard

Message = dict[str, Any]
MAX_INPUT_SETS = 2**14  # with more, most memory would be the framework's own objects
Inputs = tuple[Any, ...]
WrongResult = verify.WrongResult


@dataclasses.dataclass
class Runner:
    """A compiled program and its state; each call runs one step."""

    program: Program
    compiled: Callable[..., Any]
    state: tuple[Any, ...]
    inputs: Iterator[tuple[Any, ...]]  # one tuple per step
    note: Note | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        """Stop the preparation of inputs."""
        if self.program.feed:
            self.program.feed.batches.close()

    def step(self) -> Any:
        """Run a step with the next inputs and return its output. The state is replaced."""
        return self.step_on(next(self.inputs))

    def step_on(self, inputs: tuple[Any, ...]) -> Any:
        """Run a step with these inputs and return its output. The state is replaced."""
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
    """Build and compile the workload's program in the session's mode. Raises Unsupported."""
    if reason := workload.lacks(backend.name(), dtype):
        raise Unsupported(reason)
    arrays = workload.arrays(Draw(dtype, standard=normal_source(backend, workload)))
    program = backend.program(session, workload, arrays)
    inputs, note = rotate_inputs(
        cache, session, program.inputs, lambda: backend.program(session, workload, arrays).inputs
    )
    if program.feed:
        inputs = (session.exchange(program.inputs, batch) for batch in program.feed.batches)
    compiled = session.compile(program.step, len(program.state)) if program.compiles else program.step
    return Runner(program, compiled, program.state, inputs, note)


def normal_source(backend: Backend, workload: Workload) -> Standard:
    """The function that draws arrays. Simulated programs get zeros, since only sizes matter."""
    if backend.computes(workload.frameworks()):
        return random_cache.cached_normal
    return zeros


def zeros(_: tuple[int, int], shape: tuple[int, ...], real: type[Any]) -> AnyArray:
    """Replacement of `standard_normal` for simulated programs."""
    import numpy as np

    return np.zeros(shape, real)


@dataclasses.dataclass(frozen=True)
class OpenCase:
    """A case ready to step: its job, workload, session and runner, and inputs for further steps."""

    backend: Backend
    job: Message
    case: Case
    workload: Workload
    session: Session
    runner: Runner

    @property
    def dtype(self) -> Dtype:
        """The dtype in which the case computes."""
        return self.case.computes_in

    def reference(self) -> verify.Reference:
        """Reference of this process's outputs, with the expected elements. For operations only."""
        assert isinstance(self.workload, Operation)
        reference = verify.of_rank(self.workload, verify.Reference(**self.job["reference"]))
        return with_elements(self.workload, Dtype(self.job["case"]["dtype"]), reference)

    def verify(
        self, output: Any, reference: verify.Reference, description: str = "", *, others: bool = False
    ) -> tuple[verify.Deviation, tuple[Note, ...]]:
        """Verify form and elements of an operation's output. Returns the deviation, and notes on the form.

        `description` follows the tensor's name in messages. `others`: it is the output of the other inputs.
        Raises WrongResult.
        """
        assert isinstance(self.workload, Operation)
        notes = self._verify_form(output, self.workload.output_shapes)
        elements = verify.output_elements(
            self.workload, self.runner.program, output, self.session, reference.seed
        )
        expected = reference.others if others else reference.expected
        tolerance = reference.tolerance_of_others if others else reference.tolerance
        deviation = verify.output_deviation(self.workload, elements, expected, tolerance)
        require_accuracy(dataclasses.replace(deviation, tensor=f"{deviation.tensor}{description}"))
        return deviation, notes

    def _verify_form(self, output: Any, shapes: Mapping[str, tuple[int, ...]]) -> tuple[Note, ...]:
        """Check dtype, shape and finiteness of each output. Raises WrongResult.

        An output that is more precise than requested passes with a note.
        """
        session, notes = self.session, []
        for name, tensor in verify.outputs_by_name(shapes, output).items():
            dtype, requested = session.dtype_of(tensor), verify.dtype_name(session.dtype)
            if verify.is_real(dtype) and dtype != requested:
                if (requested, dtype) not in verify.WIDER:
                    raise WrongResult(f"the {name} is {dtype} instead of {requested}", None)
                if math.prod(session.shape_of(tensor)) > 1:  # sums are float32 in every framework
                    notes.append(note(NoteKind.MORE_PRECISE, output=name, dtype=dtype, asked=requested))
            if "complex" in dtype:
                raise WrongResult(f"the {name} is {dtype}, but only real numbers can be compared", None)
            shape = self.runner.program.shape_of(name, shapes[name])
            if session.world.devices == 1 and shape and (actual_shape := session.shape_of(tensor)) != shape:
                raise WrongResult(f"the {name} has the shape {actual_shape} instead of {shape}", None)
            if not session.is_finite(tensor):
                raise WrongResult(f"an element of the {name} is not finite", None)
        return tuple(notes)

    def arrays(self, renewed: Callable[[str], int] = lambda _: 0) -> dict[str, AnyArray]:
        """Arrays for the inputs of a step, without weights if the program keeps its own."""
        draw = Draw(self.dtype, standard=random_cache.cached_normal, renewed=renewed)
        program = self.runner.program
        return self.workload.input_arrays(draw) if program.inputs_of else self.workload.arrays(draw)

    def other_arrays(self, batch: int = 1) -> dict[str, AnyArray]:
        """Arrays for the other inputs of this number; 0 is the timed batch."""
        return self.arrays(lambda name: batch * self.workload.is_input(name))

    def inputs_of(self, arrays: Arrays) -> Inputs:
        """Arguments for a step with inputs made of `arrays`, and the runner's own weights."""
        make_inputs = self.runner.program.inputs_of
        inputs = (
            make_inputs(arrays)
            if make_inputs
            else self.backend.program(self.session, self.workload, arrays).inputs
        )
        return self.session.exchange(self.runner.program.inputs, inputs)

    def altered_inputs(self, alter: Callable[[AnyArray], AnyArray]) -> Inputs:
        """Arguments for a step whose float inputs are altered; integer inputs are unchanged."""
        altered = {
            name: alter(array) if self.workload.is_input(name) and array.dtype.kind == "f" else array
            for name, array in self.arrays().items()
        }
        return self.inputs_of(altered)

    def mixed_inputs(self, others: Booleans, row: int) -> Inputs:
        """Arguments for a step in which each sample is the one in `row`, of the first or the other inputs.

        `others` has shape (batch,) and is True for samples of the other inputs.
        """
        import numpy as np

        second = self.other_arrays()
        mixed = {
            name: np.stack([array[row], second[name][row]])[others.astype(int)]
            if self.workload.is_input(name)
            else array
            for name, array in self.arrays().items()
        }
        return self.inputs_of(mixed)


def open_case(backend: Backend, job: Message) -> tuple[Case, Workload, Session]:
    """Return the case, its workload and an open session."""
    case, world = case_of(job["case"]), backend.world
    session = backend.open(backend.device_of(case.device), case.computes_in, case.mode, job["threads"])
    session.world = world
    workload = workload_of(job["case"])
    return case, workload.divided(case.placement, world.rank if world.processes > 1 else None), session


def loss_of(output: Any, session: Session) -> float:
    """Loss that a training step returned; with several ranks, the mean over their equal parts of the batch.

    A rank with an empty output has no loss; in a pipeline only the last rank has one. Raises NotAnOutput.
    """
    loss = verify.require_array(output, "the loss, after the next state,")
    rank_losses = [float(value) for value in session.fetch(loss).reshape(-1)[:1]]
    losses_by_rank = session.world.gather([value if math.isfinite(value) else None for value in rank_losses])
    losses = [value for rank in losses_by_rank for value in rank]
    return math.nan if None in losses else mean(losses)


def with_elements(workload: Workload, dtype: Dtype, reference: verify.Reference) -> verify.Reference:
    """Load the expected elements from the run's folder if they are stored there, as for user models."""
    if not reference.in_run_folder:
        return reference
    from benchbench.worker.user_models.reference import with_expected  # needs autograd

    assert isinstance(workload, ModelOperation)
    return with_expected(workload, dtype, reference)


def require_accuracy(deviation: verify.Deviation) -> float:
    """Return the relative error. Raises WrongResult if it exceeds the tolerance."""
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
    """Case from its JSON fields."""
    kinds = {"dtype": Dtype, "phase": Phase, "cache": Cache}
    converted = {name: kind(fields[name]) for name, kind in kinds.items()}
    return Case(**{**fields, **converted, "placement": placement_of(fields["placement"])})


def workload_of(fields: Message) -> Workload:
    """Workload from the JSON fields of a case. User models take precedence over built-in workloads."""
    if model_workload := find_model_workload(fields["workload"], fields["params"]):
        return model_workload
    kind = registry.load_class("benchbench.workloads", fields["workload"], Workload)  # type: ignore[type-abstract]
    return kind(**fields["params"]).divided(placement_of(fields["placement"]))


def placement_of(fields: Message) -> Placement:
    """Placement from its JSON fields."""
    names = tuple(fields.get("names", ()))
    return Placement(**{**fields, "names": names, "strategy": Strategy(fields["strategy"])})


def rotate_inputs(
    cache: Cache, session: Session, inputs: Inputs, copy_inputs: Callable[[], Inputs]
) -> tuple[Iterator[Inputs], Note | None]:
    """Endless iterator of inputs, and a note on the copies if there are any.

    With `Cache.ROTATE`, copies made by `copy_inputs()` rotate. Together they exceed twice the last-level
    cache, so that a copy has left the cache before its next use. Raises Unsupported if there are no inputs,
    or too many copies are needed.
    """
    if cache is not Cache.ROTATE:
        return repeat(inputs), None
    input_bytes, clearing_bytes = sum(map(session.nbytes, inputs)), CLEARING * session.cache_bytes()
    if input_bytes == 0:
        raise Unsupported("it has no inputs to rotate")
    count = clearing_bytes // input_bytes + 1
    if count > MAX_INPUT_SETS:
        raise Unsupported(f"{count} copies of its inputs would be needed; use --cache cold instead")
    if count == 1:
        return repeat(inputs), note(NoteKind.INPUTS_EXCEED_CACHE, bytes=input_bytes)
    sets = [inputs, *(copy_inputs() for _ in range(count - 1))]
    return cycle(sets), note(NoteKind.COPIES_IN_PEAKS, copies=count, bytes=count * input_bytes)
