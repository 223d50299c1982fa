"""Does what was timed compute with the inputs it is given? Asked after timing, of the program itself."""

from __future__ import annotations

import dataclasses
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
    """Raise WrongResult where what was timed does not compute with the inputs it is given.

    An operation's output must be that of the other inputs. A training step's loss must change by more than
    it does from step to step: at some other batch of `OTHER_BATCHES`, since one may happen to be as hard.
    An update alone has no loss: see `check_every_input`. Of a pipeline see `check_fed_step`.
    """
    if isinstance(workload, Operation):
        runner.inputs = repeat(other_inputs(backend, session, workload, case.computes_in, runner))
        elements = verify.output_elements(workload, runner.program, runner.step(), session)
        reference = verify.of_rank(workload, verify.Reference(**job["reference"]))
        deviation = verify.output_deviation(workload, elements, reference.others, reference.tolerance)
        name, limit = f"{deviation.tensor} of other inputs, after timing,", deviation.tolerance
        require_accuracy(dataclasses.replace(deviation, tensor=name, tolerance=reference.stretch * limit))
        return
    if isinstance(workload, Training) and not workload.has_loss:
        check_every_input(backend, workload, case, runner, session)
        return
    if runner.program.feed:
        check_fed_step(backend, workload, case, runner, session)
        return
    before, same = (loss_of(runner.step(), session) for _ in range(2))
    for batch in range(1, OTHER_BATCHES + 1):
        runner.inputs = repeat(other_inputs(backend, session, workload, case.computes_in, runner, batch))
        if not abs(loss_of(runner.step(), session) - same) <= DRIFT * abs(
            same - before
        ):  # or is not a number
            return
    raise WrongResult("after timing, other batches have the loss of the one before", None)


def check_fed_step(
    backend: Backend, workload: Workload, case: Case, runner: Runner, session: Session
) -> None:
    """Raise WrongResult where inputs `FAR` times as large change the loss by no more than training does.

    Another batch of the pipeline would not tell: a network that has not seen it before is as wrong about it.
    """
    before, same = (loss_of(runner.step_on(runner.program.inputs), session) for _ in range(2))
    far = altered_inputs(backend, session, workload, case.computes_in, runner, lambda array: FAR * array)
    if abs(loss_of(runner.step_on(far), session) - same) <= DRIFT * abs(same - before):
        raise WrongResult("after timing, the loss does not follow from the inputs", None)


def check_every_input(
    backend: Backend, workload: Workload, case: Case, runner: Runner, session: Session
) -> None:
    """Raise WrongResult where a parameter is still a number after an update by what is none.

    That law holds whatever the optimizer has kept so far, and in every dtype.
    """
    import numpy as np

    assert runner.program.parameters
    poison = partial(np.full_like, fill_value=np.nan)
    runner.inputs = repeat(altered_inputs(backend, session, workload, case.computes_in, runner, poison))
    session.wait(runner.step())
    for name, parameter in runner.program.parameters(*runner.state).items():
        if not np.isnan(verify.sampled_elements(name, session.fetch(parameter))).all():
            raise WrongResult(f"after timing, {name} does not follow from its gradient", None)
