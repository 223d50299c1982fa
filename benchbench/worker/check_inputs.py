"""Whether the timed program computes with the inputs it is given: checked after timing, on that program."""

from __future__ import annotations

import dataclasses
import math
from functools import partial
from itertools import repeat

from benchbench.backends.base import Backend, Session
from benchbench.model.case import Case
from benchbench.worker import verify
from benchbench.worker.program import (
    Message,
    Runner,
    WrongResult,
    altered_inputs,
    loss_of,
    other_inputs,
    require_accuracy,
)
from benchbench.workloads.base import Operation, Training, Workload

DRIFT = 3  # times the change of the loss from step to step: a smooth descent changes by about as much again
OTHER_BATCHES = 3
FAR = 100.0  # times what a network was trained on, so that its loss is of that order


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
    else:
        check_loss(backend, workload, case, runner, session)


def check_output(
    backend: Backend, workload: Operation, case: Case, runner: Runner, session: Session, job: Message
) -> None:
    """Raise WrongResult where an operation's output of other inputs deviates from their reference."""
    runner.inputs = repeat(other_inputs(backend, session, workload, case.computes_in, runner))
    elements = verify.output_elements(workload, runner.program, runner.step(), session)
    reference = verify.of_rank(workload, verify.Reference(**job["reference"]))
    deviation = verify.output_deviation(workload, elements, reference.others, reference.tolerance)
    name, limit = f"{deviation.tensor} of other inputs, after timing,", deviation.tolerance
    require_accuracy(dataclasses.replace(deviation, tensor=name, tolerance=reference.stretch * limit))


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
