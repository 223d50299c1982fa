"""Checks after timing that the last timed step was right and that steps compute anew for new inputs.

A program could return a stored result for inputs that it has seen, or compute correctly only while verified.
"""

from __future__ import annotations

import dataclasses
from collections import deque
from collections.abc import Callable, Mapping
from contextlib import suppress
from itertools import count
from typing import Any

from benchbench.arrays import AnyArray
from benchbench.backends.base import Backend, Session
from benchbench.errors import Unsupported
from benchbench.model.case import Case
from benchbench.timing.sampling import CLOCK_S, Stopwatch, clamp, smallest_ratio
from benchbench.worker import verify
from benchbench.worker.program import (
    Implausible,
    Message,
    Runner,
    inputs_of,
    other_arrays,
    reference_of,
    require_accuracy,
    verify_form,
)
from benchbench.workloads.base import Operation, Training, Workload

MAX_RATIO = 2.0  # step time with new inputs, divided by that with timed inputs
MIN_DIFFERENCE_S = 10e-6  # the timer or a cache may cause a smaller difference
MAX_SETS = 3  # sets of new inputs per comparison, of which the fastest step counts
SETS_BYTES = 2**26  # all sets of a comparison together, unless one set is larger
ALIVE_BYTES, MAX_ALIVE = 2**28, 1000  # bytes and number of the sets of new inputs that stay in memory
FIRST_NEW_BATCH = 4  # other checks use the batches with lower numbers


def check_last_output(
    workload: Workload, runner: Runner, session: Session, output: Any, job: Message
) -> None:
    """Raise WrongResult if the output of the last timed step deviates from the reference.

    Training steps are not checked: their loss has no reference after so many steps.
    """
    session.refuse_unwaited(output)
    if not isinstance(workload, Operation):
        return
    reference = reference_of(workload, job)
    if reference.unverified:
        return
    verify_form(workload, runner, output, session)
    elements = verify.output_elements(workload, runner.program, output, session, reference.seed)
    deviation = verify.output_deviation(workload, elements, reference.expected, reference.tolerance)
    require_accuracy(dataclasses.replace(deviation, tensor=f"{deviation.tensor} of the last timed step"))


def check_new_inputs(
    backend: Backend,
    workload: Workload,
    case: Case,
    runner: Runner,
    session: Session,
    timer: Stopwatch,
    max_sets: int = MAX_SETS,
) -> None:
    """Raise Implausible if steps with new inputs take far longer than steps with the timed inputs.

    Such a program stores its results. If the timed arrays can be overwritten, new values are written into
    them, so that the program cannot recognise them by their address. Single steps are compared, since in a
    block of steps with the same inputs only the first one would be slow. `max_sets`: number of sets of new
    inputs per comparison.
    """
    if runner.program.feed:  # every step has new inputs
        return
    inputs = StepInputs(backend, workload, case, runner, session)
    timed_inputs, timed_arrays = runner.program.inputs, inputs.arrays(0)
    input_bytes = max(1, sum(map(session.nbytes, timed_inputs)))
    sets = min(session.world.gather(clamp(SETS_BYTES / input_bytes, 1, max_sets)))
    numbers = count(FIRST_NEW_BATCH)
    # New inputs stay alive: later ones could get their addresses, for which the program has stored results.
    alive = deque[tuple[Any, ...]](maxlen=max(sets, clamp(ALIVE_BYTES / input_bytes, 1, MAX_ALIVE)))

    def step_s(step_inputs: tuple[Any, ...]) -> float:
        return max(timer.blocks(lambda: runner.step_on(step_inputs), 1, 1)[0], CLOCK_S)

    def timed_step_s(prepare: Callable[[], None]) -> float:
        inputs.create(timed_arrays)  # as for new inputs, so that both steps follow the same work
        prepare()
        return step_s(timed_inputs)

    def new_step_s(arrays: Mapping[str, AnyArray], prepare: Callable[[], None]) -> float:
        new_inputs = inputs.replace(arrays)
        alive.append(new_inputs)
        prepare()
        return step_s(new_inputs)

    def ratio(prepare: Callable[[], None] = lambda: None) -> float:
        # All arrays are drawn first, since drawing evicts data from the caches.
        new_arrays = [inputs.arrays(next(numbers)) for _ in range(sets)]
        if session.overwrites:
            inputs.replace(timed_arrays)
        for _ in range(2):  # after the new inputs of the previous comparison, the timed ones are new again
            step_s(timed_inputs)
        timed_s = min(timed_step_s(prepare) for _ in range(sets))
        new_s = min(new_step_s(arrays, prepare) for arrays in new_arrays)
        return new_s / timed_s if new_s - timed_s > MIN_DIFFERENCE_S else 1.0

    smallest = smallest_ratio(ratio, timer, MAX_RATIO)
    if smallest > MAX_RATIO:  # caches may lack the data of new inputs, such as other rows of a table
        smallest = min(smallest, smallest_ratio(lambda: ratio(lambda: evict(session)), timer, MAX_RATIO))
    if isinstance(workload, Training):  # the next check of a training step starts with the timed batch
        inputs.replace(timed_arrays)
    if smallest > MAX_RATIO:
        raise Implausible(f"new inputs take {smallest:.1f} times as long: the program returns stored results")


@dataclasses.dataclass(frozen=True)
class StepInputs:
    """Inputs of a step with chosen values."""

    backend: Backend
    workload: Workload
    case: Case
    runner: Runner
    session: Session

    def arrays(self, number: int) -> dict[str, AnyArray]:
        """Values of the batch with this number; 0 is the timed one."""
        return other_arrays(self.workload, self.case.computes_in, self.runner, number)

    def create(self, arrays: Mapping[str, AnyArray]) -> tuple[Any, ...]:
        """Inputs with these values. A program that reads fixed memory gets the timed arrays, overwritten."""
        inputs = inputs_of(self.backend, self.session, self.workload, self.runner, arrays)
        if not self.session.overwrites:
            self.session.wait(inputs)  # JAX may still copy them
        return inputs

    def replace(self, arrays: Mapping[str, AnyArray]) -> tuple[Any, ...]:
        """The timed inputs, overwritten with these values; new inputs if the session cannot overwrite."""
        timed, inputs = self.runner.program.inputs, self.create(arrays)
        if inputs is timed or not self.session.overwrites:
            return inputs
        self.session.overwrite(timed, inputs)
        return timed


def evict(session: Session) -> None:
    """Fill the device's caches with other data, if the session can."""
    with suppress(Unsupported):
        session.wait(session.flush())
