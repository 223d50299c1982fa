"""Checks after timing: the program uses all its inputs, and the timer waited for its results.

Each check runs a few more steps of the timed program. Raises WrongResult or Implausible.
"""

from __future__ import annotations

import math
import os
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from functools import partial
from itertools import repeat
from pathlib import Path
from typing import TYPE_CHECKING, Any

from benchbench.arrays import AnyArray, Floats
from benchbench.backends.base import Session
from benchbench.format import rate
from benchbench.machine.kernel import bytes_limit, cpu_flags, flops_limit
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
    Inputs,
    Message,
    OpenCase,
    Runner,
    WrongResult,
    loss_of,
    require_accuracy,
)
from benchbench.worker.random_cache import cached_normal
from benchbench.worker.verify import UNIT_ROUNDOFF, UPDATE
from benchbench.workloads.base import OUTPUT, Draw, Operation, Training, Workload

if TYPE_CHECKING:
    from benchbench.workloads.base import Arrays

MAX_DRIFT = 3  # changes of the loss per step: a smooth descent repeats about the same change
OTHER_BATCHES = 3
GRADIENT_NOISE = 1e-4  # relative difference of two equal steps whose sums have no fixed order
MAX_PROJECTED = 2**27  # elements of an output, which is read whole in float64
MAX_SKIPPED_STEPS = 3  # in a row, by a loss scale that is halved each time
SPUN_STEPS, MIN_SPIN_S = 4, 1e-3  # length of a spin; launching a step behind it takes at most one step
SPIN_CYCLES = 1_000_000  # for calibration: half a millisecond at 2 GHz
FAR = 100.0  # factor on the inputs of training, which raises the loss by about as much


def waits_in_step(runner: Runner, session: Session, samples: Samples) -> bool:
    """True if a step waits for the device before it returns, so that no step is launched ahead.

    A step is launched while the device spins. Unless it waits, it returns before the spin ends. Slow
    launching takes the host at most as long as a step.
    """
    cycles_s = session.timer().blocks(lambda: session.spin(SPIN_CYCLES), 1, 2)[1]
    step_s = max(median(samples.block_s) / samples.iterations, MIN_SPIN_S)
    session.spin(round(SPUN_STEPS * step_s / cycles_s * SPIN_CYCLES))
    start = session.clock()
    output = runner.step()
    host_s = session.clock() - start
    session.wait(output)
    return host_s > SPUN_STEPS * step_s / 2


def check_other_inputs(opened: OpenCase) -> None:
    """Raise WrongResult if the timed program does not use its inputs."""
    if isinstance(opened.workload, Operation):
        check_output(opened, opened.workload)
    elif isinstance(opened.workload, Training) and not opened.workload.has_loss:
        check_update(opened)
    elif opened.runner.program.feed:
        check_fed_step(opened)
    elif opened.runner.program.restart:
        assert isinstance(opened.workload, Training)
        check_steps(opened, opened.workload)
    else:
        check_loss(opened)


def check_output(opened: OpenCase, workload: Operation) -> None:
    """Raise WrongResult if an operation's output for other inputs deviates from the reference.

    In the first process of a case, the other inputs are new arrays. Where arrays can be overwritten, they are
    also written into the timed ones, which detects outputs cached by address.
    """
    reference = opened.reference()
    if reference.unverified:
        return
    runner, session = opened.runner, opened.session
    arrays = opened.other_arrays()
    timed, new_inputs = runner.program.inputs, opened.inputs_of(arrays)
    projection = projection_of(workload, arrays, session)

    def check(inputs: Inputs) -> None:
        runner.inputs = repeat(inputs)
        output = runner.step()
        opened.verify(output, reference, " of other inputs, after timing,", others=True)
        if projection:
            check_projection(output, projection, session, reference)

    overwrites = new_inputs is not timed and session.overwrites
    if overwrites:  # first: new arrays would evict an output that is cached by address
        session.overwrite(timed, new_inputs)
        check(timed)
    if not (opened.job["warm"] and overwrites):
        check(new_inputs)
    if workload.samples_apart and [*workload.output_shapes] == [OUTPUT] and session.world.devices == 1:
        check_samples(opened, workload, reference)


@dataclass(frozen=True, slots=True)
class Projection:
    """Rows of a product of the other inputs, multiplied by a vector of random signs."""

    signs: Floats
    expected: Floats


def projection_of(workload: Operation, arrays: Arrays, session: Session) -> Projection | None:
    """Expected projection of a product; None for other operations, several devices or a huge output."""
    import numpy as np

    is_whole = session.world.devices == 1 and not workload.differentiated
    if not (workload.projects and is_whole and math.prod(workload.output_shape) <= MAX_PROJECTED):
        return None
    signs = np.random.default_rng().choice([-1.0, 1.0], workload.output_shape[-1:])
    return Projection(signs, workload.projection(arrays, signs))


def check_projection(
    output: Any, projection: Projection, session: Session, reference: verify.Reference
) -> None:
    """Raise WrongResult if the rows of a product, multiplied by random signs, deviate from the expected ones.

    This checks all elements with far fewer operations than the product takes (Freivalds 1977, "Probabilistic
    machines can use less running time"). A single wrong element of a row of n elements is detected if its
    error exceeds √n times the tolerance.
    """
    import numpy as np

    values = session.fetch(output)
    sizes = np.linalg.norm(values, axis=-1)
    sizes = np.maximum(sizes, math.sqrt(np.square(sizes).mean()))
    error = float((np.abs(values @ projection.signs - projection.expected) / sizes).max())
    limit = verify.LAMBDA * reference.tolerance_of_others[OUTPUT]
    require_accuracy(verify.Deviation(f"{OUTPUT}'s rows, after timing,", error, limit))


def check_samples(opened: OpenCase, workload: Operation, reference: verify.Reference) -> None:
    """Raise WrongResult if a program computes only some samples of its batch.

    Each sample is drawn at random, in each process anew, from two samples with known outputs. A program that
    copies the output of one sample to another is detected in half of the processes.
    """
    import numpy as np

    batch = workload.output_shape[0]
    from_others = np.random.default_rng().integers(0, 2, batch).astype(bool)
    row = int(verify.sample_indices(workload, reference.seed)[OUTPUT][0, 0])
    runner = opened.runner
    runner.inputs = repeat(opened.mixed_inputs(from_others, row))
    output = runner.step()
    elements = verify.sample_elements(workload, runner.program, output, opened.session, batch, reference.seed)
    for sample, (values, is_other) in enumerate(zip(elements, from_others, strict=True)):
        expected = reference.others if is_other else reference.expected
        error = verify.relative_error(values, expected[OUTPUT])
        limit = (reference.tolerance_of_others if is_other else reference.tolerance)[OUTPUT]
        name = f"{OUTPUT} of sample {sample} of {batch}, after timing,"
        require_accuracy(verify.Deviation(name, error, limit))


def check_steps(opened: OpenCase, workload: Training) -> None:
    """Raise WrongResult if a training step changes no parameters or ignores a sample.

    Each step starts from the initial weights, since a later network may have learnt its batch or diverged.
    The first step gets the timed batch. In each other step one sample is replaced: the last one, and one that
    each process draws at random. NaN in place of a sample would not do: some kernels drop it, and tokens have
    none. If samples are not defined, all inputs are replaced. Inputs and targets are replaced separately.

    All these steps draw the same random numbers, if any. One more step has another seed.
    """
    import numpy as np

    runner, dtype = opened.runner, opened.dtype
    arrays = workload.arrays(Draw(dtype, standard=cached_normal))
    renewed = workload.input_arrays(Draw(dtype, standard=cached_normal, renewed=workload.is_input))
    new_arrays = {name: array for name, array in renewed.items() if workload.is_input(name)}
    rows, count = workload.batched(arrays)
    once = partial(train_once, opened, workload, arrays, moving_in(workload, opened.job))
    timed = once()
    samples = dict.fromkeys((count - 1, int(np.random.default_rng().integers(count)))) if count else (None,)
    for sample in samples:
        all_names = new_arrays if sample is None else rows
        for names in workload.inputs_apart(all_names):
            mixed = {
                name: new_arrays[name]
                if sample is None
                else _with_sample(arrays[name], new_arrays[name], sample)
                for name in names
            }
            if all(np.array_equal(mixed[name], arrays[name]) for name in names):
                continue  # the same label was drawn
            runner.inputs = repeat(opened.inputs_of(arrays | mixed))
            if not timed.differs(once(), dtype):
                ignored = "its inputs" if sample is None else f"sample {sample} of {count}"
                if len(names) < len(all_names):
                    ignored += f" ({', '.join(names)})"
                raise WrongResult(f"after timing, a step of training ignores {ignored}", None)
    if runner.program.seed:
        runner.inputs = repeat(opened.inputs_of(arrays))
        if not timed.differs(once(seed=1), dtype):
            raise WrongResult(
                "after timing, a step of training ignores its random numbers: nothing is dropped", None
            )


def moving_in(workload: Training, job: Message) -> Collection[str] | None:
    """Parameters that a step must change, by the float32 reference; None: all of them."""
    if workload.all_move:
        return None
    fields = job["reference"]
    expected = (fields["float32"] or fields)["expected"]
    return {
        name.removeprefix(UPDATE) for name, way in expected.items() if name.startswith(UPDATE) and any(way)
    }


def _with_sample(array: AnyArray, other: AnyArray, sample: int) -> AnyArray:
    mixed = array.copy()
    mixed[sample] = other[sample]
    return mixed


@dataclass(frozen=True)
class TrainedOnce:
    """Loss of one step from the initial weights, and sampled elements of the gradients.

    Gradients come from the state of the optimizer; without a state, they are the updates.
    """

    loss: float
    gradients: Mapping[str, Floats]

    def differs(self, other: TrainedOnce, dtype: Dtype) -> bool:
        """True if the median difference of the nonzero gradients exceeds the noise.

        It is the median since another sample need not change sampled elements of a sparse or small tensor.
        Without any gradient, the losses are compared.
        """
        change = verify.median_change(self.gradients, other.gradients)
        if change is None:
            return self.loss != other.loss
        return not change <= max(GRADIENT_NOISE, UNIT_ROUNDOFF[dtype.compute] / 4)  # NaN differs, too


def train_once(
    opened: OpenCase,
    workload: Training,
    arrays: Mapping[str, AnyArray],
    moving: Collection[str] | None = None,
    seed: int = 0,
) -> TrainedOnce:
    """Run one step with the runner's inputs from the weights in `arrays`.

    Raises WrongResult if it does not change the parameters. In float32 every parameter changes, since even a
    gradient that should be zero is a rounding error. In 16 bits an update may be smaller than the spacing of
    the parameter, so a gradient suffices. `moving`: the parameters that must change; None: all. `seed`: seed
    of the step's random numbers.
    """
    runner, session, dtype = opened.runner, opened.session, opened.dtype
    program = runner.program
    assert program.restart
    assert program.parameters
    runner.state = ()  # otherwise both states would be in memory
    runner.state = program.restart(arrays)
    if program.seed:
        program.seed(seed)
    for _ in range(MAX_SKIPPED_STEPS + 1):
        loss = loss_of(runner.step(), session)
        after = program.parameters(*runner.state)
        elements = {name: verify.read_elements(name, tensor, session) for name, tensor in after.items()}
        initial = {name: workload.weight_of(arrays, name) for name in elements}
        updates = {name: end - verify.sampled_elements(name, initial[name]) for name, end in elements.items()}
        if dtype is not Dtype.AMP_FP16 or any(update.any() for update in updates.values()):
            break  # otherwise the gradients overflowed, and the loss scale was reduced
    tensors = program.gradients(*runner.state) if program.gradients else {}
    gradients = {name: verify.read_elements(name, tensor, session) for name, tensor in tensors.items()}
    if dtype.storage.itemsize > 2:
        for name in updates if moving is None else moving:
            if not updates[name].any() and not (session.fetch(after[name]) != initial[name]).any():
                raise WrongResult(f"after timing, a step of training does not change {name}", None)
    elif gradients and not any(values.any() for values in (*updates.values(), *gradients.values())):
        raise WrongResult("after timing, a step of training has no gradient and changes nothing", None)
    return TrainedOnce(loss, gradients or updates)


def check_loss(opened: OpenCase) -> None:
    """Raise WrongResult if the loss of a training step is about the same for every other batch.

    It must change by more than from step to step. `OTHER_BATCHES` are tried, since one may happen to be as
    hard as the first. If the loss fluctuates too much to decide, inputs of NaN must give a loss of NaN.
    """
    runner, session = opened.runner, opened.session
    first_loss, second_loss = (loss_of(runner.step(), session) for _ in range(2))
    for batch in range(1, OTHER_BATCHES + 1):
        runner.inputs = repeat(opened.inputs_of(opened.other_arrays(batch)))
        change = abs(loss_of(runner.step(), session) - second_loss)
        if not change <= MAX_DRIFT * abs(second_loss - first_loss):  # true for NaN, too
            return
    poison_inputs(opened)
    if not math.isnan(loss_of(runner.step(), session)):
        raise WrongResult("after timing, the loss does not depend on the batch", None)


def poison_inputs(opened: OpenCase) -> None:
    """Replace the inputs of all further steps by NaN."""
    import numpy as np

    opened.runner.inputs = repeat(opened.altered_inputs(partial(np.full_like, fill_value=np.nan)))


def check_fed_step(opened: OpenCase) -> None:
    """Raise WrongResult if inputs `FAR` times as large change the loss by no more than a step of training.

    For steps with an input pipeline. Another batch of the pipeline would not do: for a network that gets each
    batch for the first time, all batches are equally hard.
    """
    runner, session = opened.runner, opened.session
    first_loss, second_loss = (loss_of(runner.step_on(runner.program.inputs), session) for _ in range(2))
    far = opened.altered_inputs(lambda array: FAR * array)
    change = abs(loss_of(runner.step_on(far), session) - second_loss)
    if change <= MAX_DRIFT * abs(second_loss - first_loss):
        raise WrongResult("after timing, the loss does not depend on the inputs", None)


def check_update(opened: OpenCase) -> None:
    """Raise WrongResult unless gradients of NaN make all elements of every parameter NaN.

    This holds for every state of the optimizer and every dtype.
    """
    import numpy as np

    runner, session = opened.runner, opened.session
    assert runner.program.parameters
    poison_inputs(opened)
    session.wait(runner.step())
    for name, parameter in runner.program.parameters(*runner.state).items():
        if not np.isnan(verify.sampled_elements(name, session.fetch(parameter))).all():
            raise WrongResult(f"after timing, {name} does not depend on its gradient", None)


def check_cpu_limits(workload: Workload, case: Case, step_s: float) -> None:
    """Raise Implausible if a step is faster than all cores of the machines of the case allow.

    FLOPs are limited only if the workload knows how many multiplications an algorithm can save.
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


def check_waited(opened: OpenCase, timer: Stopwatch, iterations: int) -> None:
    """Raise Implausible if results can be read only long after the timer reports their completion."""
    workload, session, runner = opened.workload, opened.session, opened.runner
    program = runner.program
    sampled = workload if isinstance(workload, Operation) and not workload.whole else None
    sample_indices = verify.sample_indices(sampled) if sampled else {}
    index = {name: program.index_of(name, indices) for name, indices in sample_indices.items()}

    def finish(output: Any) -> None:
        if not index:
            for tensor in output if isinstance(output, tuple) else (output,):
                session.fetch(tensor)
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
