"""After timing: what was timed computes with the inputs it is given, all of them, and was waited for.

Each check computes once more with the program that was timed. Raises WrongResult, or Implausible.
"""

from __future__ import annotations

import dataclasses
import math
import os
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from itertools import repeat
from pathlib import Path
from typing import TYPE_CHECKING, Any

from benchbench.arrays import AnyArray, Floats
from benchbench.backends.base import Backend, Session
from benchbench.format import rate
from benchbench.machine.cpu_limits import bytes_limit, flops_limit
from benchbench.machine.kernel import cpu_flags
from benchbench.model.case import Case, Dtype
from benchbench.stats import median
from benchbench.timing.sampling import (
    MAX_READBACK_RATIO,
    Samples,
    Stopwatch,
    readback_ratio,
)
from benchbench.worker import verify
from benchbench.worker.program import (
    Implausible,
    Message,
    Runner,
    WrongResult,
    altered_inputs,
    inputs_of,
    loss_of,
    mixed_inputs,
    other_arrays,
    other_inputs,
    reference_of,
    require_accuracy,
    verify_form,
)
from benchbench.worker.random_cache import cached_normal
from benchbench.worker.verify import UNIT_ROUNDOFF, UPDATE
from benchbench.workloads.base import OUTPUT, Draw, Operation, Training, Workload

if TYPE_CHECKING:
    from benchbench.workloads.base import Arrays

DRIFT = 3  # times the change of the loss from step to step: a smooth descent changes by about as much again
OTHER_BATCHES = 3
NOISE = 1e-4  # of a gradient: what two equal steps may differ by, where sums are in no fixed order
PROJECTED = 2**27  # elements of an output at most: it is read whole, in float64
SKIPPED = 3  # steps in a row that a scale of the loss may skip, each of which halves it
SPUN_STEPS, SHORTEST_SPIN_S = 4, 1e-3  # that a device spins for; a step behind it takes the host one at most
SPIN_CYCLES = 1_000_000  # whose length tells that of a cycle: half a millisecond at 2 GHz
FAR = 100.0  # times what a network was trained on, so that its loss is of that order


def waits_in_step(runner: Runner, session: Session, samples: Samples) -> bool:
    """Whether a step waits for the device before it returns, so that none is launched ahead.

    The device is made to spin, and a step launched behind that: it returns before the spin is over, unless it
    waits. Where launching is slow it takes the host as long as a step.
    """
    cycles_s = session.timer().blocks(lambda: session.spin(SPIN_CYCLES), 1, 2)[1]
    step_s = max(median(samples.block_s) / samples.iterations, SHORTEST_SPIN_S)
    session.spin(round(SPUN_STEPS * step_s / cycles_s * SPIN_CYCLES))
    start = session.clock()
    output = runner.step()
    host_s = session.clock() - start
    session.wait(output)
    return host_s > SPUN_STEPS * step_s / 2


def check_other_inputs(
    backend: Backend, workload: Workload, case: Case, runner: Runner, session: Session, job: Message
) -> None:
    """Raise WrongResult where what was timed does not compute with the inputs it is given."""
    if isinstance(workload, Operation):
        check_output(backend, workload, case, runner, session, job)
    elif isinstance(workload, Training) and not workload.has_loss:
        check_update(backend, workload, case, runner, session)
    elif runner.program.feed:
        check_fed_step(backend, workload, case, runner, session)
    elif runner.program.restart:
        assert isinstance(workload, Training)
        check_steps(backend, workload, case, runner, session, job)
    else:
        check_loss(backend, workload, case, runner, session)


def check_output(
    backend: Backend, workload: Operation, case: Case, runner: Runner, session: Session, job: Message
) -> None:
    """Raise WrongResult where an operation's output of other inputs deviates from their reference.

    The other inputs are in arrays of their own, in a case's first process; and where arrays can be
    overwritten, in those that were timed, so that an output that is kept by their addresses is told.
    """
    reference = reference_of(workload, job)
    if reference.unverified:
        return
    arrays = other_arrays(workload, case.computes_in, runner)
    timed, others = runner.program.inputs, inputs_of(backend, session, workload, runner, arrays)
    check = partial(
        check_output_of,
        workload=workload,
        runner=runner,
        session=session,
        reference=reference,
        projection=projection_of(workload, arrays, session),
    )
    overwrites = others is not timed and session.overwrites
    if overwrites:  # first: other arrays would make a program forget an output that it keeps by address
        session.overwrite(timed, others)
        check(timed)
    if not (job["warm"] and overwrites):
        check(others)
    if workload.samples_apart and [*workload.output_shapes] == [OUTPUT] and session.world.devices == 1:
        check_samples(backend, workload, case, runner, session, reference)


@dataclass(frozen=True, slots=True)
class Projection:
    """A product of the other inputs, times a vector of random signs: what its rows should be."""

    signs: Floats
    expected: Floats


def check_output_of(
    others: tuple[Any, ...],
    *,
    workload: Operation,
    runner: Runner,
    session: Session,
    reference: verify.Reference,
    projection: Projection | None,
) -> None:
    """Raise WrongResult where the output of the other inputs is not that of their reference."""
    runner.inputs = repeat(others)
    output = runner.step()
    verify_form(workload, runner, output, session)
    elements = verify.output_elements(workload, runner.program, output, session, reference.seed)
    deviation = verify.output_deviation(workload, elements, reference.others, reference.tolerance)
    name, limit = f"{deviation.tensor} of other inputs, after timing,", deviation.tolerance
    require_accuracy(dataclasses.replace(deviation, tensor=name, tolerance=reference.stretch * limit))
    if projection:
        check_projection(output, projection, session, reference)


def projection_of(workload: Operation, arrays: Arrays, session: Session) -> Projection | None:
    """What a product's rows should be; None of other operations, of several devices, and of a huge output."""
    import numpy as np

    is_whole = session.world.devices == 1 and not workload.differentiated
    if not (workload.projects and is_whole and math.prod(workload.output_shape) <= PROJECTED):
        return None
    signs = np.random.default_rng().choice([-1.0, 1.0], workload.output_shape[-1:])
    return Projection(signs, workload.projection(arrays, signs))


def check_projection(
    output: Any, projection: Projection, session: Session, reference: verify.Reference
) -> None:
    """Raise WrongResult where a product's rows, times a vector of random signs, are not what they should be.

    All elements at once, by far fewer operations than the product takes (Freivalds 1977, "Probabilistic
    machines can use less running time"). An element's error is that of its row, so of rows of n elements one
    element counts where it is wrong by more than √n times what rounding explains of all.
    """
    import numpy as np

    values = session.fetch(output)
    sizes = np.linalg.norm(values, axis=-1)
    sizes = np.maximum(sizes, math.sqrt(np.square(sizes).mean()))
    error = float((np.abs(values @ projection.signs - projection.expected) / sizes).max())
    limit = verify.LAMBDA * reference.stretch * reference.tolerance[OUTPUT]
    require_accuracy(verify.Deviation(f"{OUTPUT}'s rows, after timing,", error, limit))


def check_samples(
    backend: Backend,
    workload: Operation,
    case: Case,
    runner: Runner,
    session: Session,
    reference: verify.Reference,
) -> None:
    """Raise WrongResult where a program computes fewer samples than its batch has.

    Every sample is one of two whose outputs are known, by chance, which each process draws anew. So a program
    that copies one sample's output to another is found, too, in half the processes.
    """
    import numpy as np

    batch = workload.output_shape[0]
    others = np.random.default_rng().integers(0, 2, batch).astype(bool)
    row = int(verify.sample_indices(workload, reference.seed)[OUTPUT][0, 0])
    runner.inputs = repeat(mixed_inputs(backend, session, workload, case.computes_in, runner, others, row))
    output = runner.step()
    elements = verify.sample_elements(workload, runner.program, output, session, batch, reference.seed)
    for sample, (values, is_other) in enumerate(zip(elements, others, strict=True)):
        expected = reference.others if is_other else reference.expected
        error = verify.relative_error(values, expected[OUTPUT])
        limit = reference.tolerance[OUTPUT] * (reference.stretch if is_other else 1.0)
        name = f"{OUTPUT} of sample {sample} of {batch}, after timing,"
        require_accuracy(verify.Deviation(name, error, limit))


def check_steps(
    backend: Backend, workload: Training, case: Case, runner: Runner, session: Session, job: Message
) -> None:
    """Raise WrongResult where a training step moves no parameters, or learns nothing from a sample.

    Each step begins with the weights that training began with: later ones may be those of a network that has
    learnt its batch, or diverged. The first step is given the batch that was timed; in each of the others one
    sample is another: the last, and one by chance, which each process draws anew. NaN in place of a sample
    would tell as much, but some frameworks' kernels swallow it, and tokens have none. Where nobody says what
    a sample is, all inputs are others.

    All of these steps draw the same random numbers, if they draw any; one more draws others.
    """
    import numpy as np

    dtype = case.computes_in
    arrays = workload.arrays(Draw(dtype, standard=cached_normal))
    drawn = workload.input_arrays(Draw(dtype, standard=cached_normal, renewed=workload.is_input))
    others = {name: array for name, array in drawn.items() if workload.is_input(name)}
    rows, count = workload.batched(arrays)
    once = partial(train_once, runner, session, workload, arrays, dtype, moving_in(workload, job))
    timed = once()
    samples = dict.fromkeys((count - 1, int(np.random.default_rng().integers(count)))) if count else (None,)
    for sample in samples:
        mixed = (
            others
            if sample is None
            else {name: _with_sample(arrays[name], others[name], sample) for name in rows}
        )
        runner.inputs = repeat(inputs_of(backend, session, workload, runner, arrays | mixed))
        if not timed.differs(once(), dtype):
            what = "its inputs" if sample is None else f"sample {sample} of {count}"
            raise WrongResult(f"after timing, nothing is learnt from {what}", None)
    if runner.program.seed:
        runner.inputs = repeat(inputs_of(backend, session, workload, runner, arrays))
        if not timed.differs(once(seed=1), dtype):
            raise WrongResult("after timing, other random numbers change nothing: nothing is dropped", None)


def moving_in(workload: Training, job: Message) -> Collection[str] | None:
    """The parameters that a step must move, as float32's reference tells; None: all of them."""
    if workload.all_move:
        return None
    fields = job["reference"]
    expected = (fields["plain"] or fields)["expected"]
    return {
        name.removeprefix(UPDATE) for name, way in expected.items() if name.startswith(UPDATE) and any(way)
    }


def _with_sample(array: AnyArray, other: AnyArray, sample: int) -> AnyArray:
    mixed = array.copy()
    mixed[sample] = other[sample]
    return mixed


@dataclasses.dataclass(frozen=True)
class TrainedOnce:
    """What one step from the first weights did: its loss, and sampled elements of the gradients.

    These are as the optimizer's state tells them, or without a state the updates.
    """

    loss: float
    gradients: Mapping[str, Floats]

    def differs(self, other: TrainedOnce, dtype: Dtype) -> bool:
        """Whether the gradients differ by more than noise: by the median over the tensors that have any.

        The median: of a sparse tensor, or one of few elements, another sample need not change those
        that are looked at. Without any gradient the loss tells.
        """
        import numpy as np

        def changes() -> Iterator[float]:
            for name, own in self.gradients.items():
                if size := float(np.linalg.norm(own)):
                    yield float(np.linalg.norm(other.gradients[name] - own)) / size

        found = list(changes())
        if not found:
            return self.loss != other.loss
        return not median(found) <= max(NOISE, UNIT_ROUNDOFF[dtype.compute] / 4)  # NaN differs, too


def train_once(
    runner: Runner,
    session: Session,
    workload: Training,
    arrays: Mapping[str, AnyArray],
    dtype: Dtype,
    moving: Collection[str] | None = None,
    seed: int = 0,
) -> TrainedOnce:
    """One step with the runner's inputs, from the weights in `arrays`. Raises WrongResult where none moved.

    In float32 every parameter moves, since even a gradient that should be zero is a rounding error. In 16
    bits an update may be less than the spacing of the parameter, so a gradient will do. `moving`: the
    parameters that must, if not all. `seed`: of what the step draws.
    """
    program = runner.program
    assert program.restart
    assert program.parameters
    runner.state = ()  # or both would be in memory
    runner.state = program.restart(arrays)
    if program.seed:
        program.seed(seed)
    for _ in range(SKIPPED + 1):
        loss = loss_of(runner.step(), session)
        after = program.parameters(*runner.state)
        moved = {name: verify.read_elements(name, tensor, session) for name, tensor in after.items()}
        begun = {name: workload.weight_of(arrays, name) for name in moved}
        updates = {name: end - verify.sampled_elements(name, begun[name]) for name, end in moved.items()}
        if dtype is not Dtype.AMP_FP16 or any(update.any() for update in updates.values()):
            break  # else the gradients overflowed, and the scale of the loss is less now
    kept = program.gradients(*runner.state) if program.gradients else {}
    gradients = {name: verify.read_elements(name, tensor, session) for name, tensor in kept.items()}
    if dtype.storage.itemsize > 2:
        for name in updates if moving is None else moving:
            if not updates[name].any() and not (session.fetch(after[name]) != begun[name]).any():
                raise WrongResult(f"after timing, a step of training does not move {name}", None)
    elif gradients and not any(values.any() for values in (*updates.values(), *gradients.values())):
        raise WrongResult("after timing, a step of training gives no gradient and moves nothing", None)
    return TrainedOnce(loss, gradients or updates)


def check_loss(backend: Backend, workload: Workload, case: Case, runner: Runner, session: Session) -> None:
    """Raise WrongResult where a training step's loss is about the same for every other batch.

    It must change by more than it does from step to step. One batch may happen to be as hard as the first, so
    `OTHER_BATCHES` are tried. Where training is not smooth, the loss changes so much by itself that none of
    them tells; then inputs of NaN must give no number.
    """
    before, same = (loss_of(runner.step(), session) for _ in range(2))
    for batch in range(1, OTHER_BATCHES + 1):
        runner.inputs = repeat(other_inputs(backend, session, workload, case.computes_in, runner, batch))
        change = abs(loss_of(runner.step(), session) - same)
        if not change <= DRIFT * abs(same - before):  # a loss that is no number has changed, too
            return
    poison_inputs(backend, workload, case, runner, session)
    if not math.isnan(loss_of(runner.step(), session)):
        raise WrongResult("after timing, other batches have the loss of the one before", None)


def poison_inputs(backend: Backend, workload: Workload, case: Case, runner: Runner, session: Session) -> None:
    """Have the runner compute with NaN from here on."""
    import numpy as np

    poison = partial(np.full_like, fill_value=np.nan)
    runner.inputs = repeat(altered_inputs(backend, session, workload, case.computes_in, runner, poison))


def check_fed_step(
    backend: Backend, workload: Workload, case: Case, runner: Runner, session: Session
) -> None:
    """Raise WrongResult where inputs `FAR` times as large change the loss by no more than a step of training.

    Of a step that an input pipeline feeds. Another batch of the pipeline would not tell: to a network that
    sees each batch for the first time, all of them are equally hard.
    """
    before, same = (loss_of(runner.step_on(runner.program.inputs), session) for _ in range(2))
    far = altered_inputs(backend, session, workload, case.computes_in, runner, lambda array: FAR * array)
    if abs(loss_of(runner.step_on(far), session) - same) <= DRIFT * abs(same - before):
        raise WrongResult("after timing, the loss does not follow from the inputs", None)


def check_update(backend: Backend, workload: Workload, case: Case, runner: Runner, session: Session) -> None:
    """Raise WrongResult where gradients of NaN leave any element of a parameter a number.

    They must not, whatever state the optimizer has, and in every dtype.
    """
    import numpy as np

    assert runner.program.parameters
    poison_inputs(backend, workload, case, runner, session)
    session.wait(runner.step())
    for name, parameter in runner.program.parameters(*runner.state).items():
        if not np.isnan(verify.sampled_elements(name, session.fetch(parameter))).all():
            raise WrongResult(f"after timing, {name} does not follow from its gradient", None)


def check_cpu_limits(workload: Workload, case: Case, step_s: float) -> None:
    """Raise Implausible where a step is faster than all cores of the case's machines could make it.

    FLOPs count only where it is known how many multiplications an algorithm can save.
    """
    dtype, cores = case.computes_in, case.placement.hosts * (os.cpu_count() or 1)
    flags, cost = cpu_flags(Path("/")), workload.cost(dtype)
    for work, limit, unit, saved in (
        (cost.flops, flops_limit(flags, cores, dtype), "FLOP/s", workload.multiplications_saved),
        (cost.bytes, bytes_limit(flags, cores), "B/s", 1.0),
    ):
        if limit and saved and work / step_s > saved * limit:
            raise Implausible(
                f"{rate(work / step_s, unit)} exceed {rate(saved * limit, unit)}, "
                f"which {cores} cores like these do not reach"
            )


def check_waited(
    workload: Workload, runner: Runner, session: Session, timer: Stopwatch, iterations: int
) -> None:
    """Raise Implausible where results can be read only long after the timer says that they are there."""
    program = runner.program
    sampled = workload if isinstance(workload, Operation) and not workload.whole else None
    places = verify.sample_indices(sampled) if sampled else {}
    index = {name: program.index_of(name, asked) for name, asked in places.items()}

    def finish(output: Any) -> None:
        if not index:
            for each in output if isinstance(output, tuple) else (output,):
                session.fetch(each)
            return
        for name, tensor in verify.outputs_by_name(index, output).items():
            session.take(tensor, index[name])

    def finished(output: Any) -> Any:
        if isinstance(output, tuple):
            return tuple(map(session.finished, output))
        return session.finished(output)

    ratio = readback_ratio(runner.step, finish, timer, iterations, finished)
    if ratio > MAX_READBACK_RATIO:
        raise Implausible(
            f"reading its results took {ratio:.0f} times the time measured: the timer did not wait for them"
        )
