"""Checks right after timing: the last timed step was right, and a step does its work for new inputs, too."""

from __future__ import annotations

import dataclasses
from collections import deque
from collections.abc import Callable, Mapping
from contextlib import suppress
from itertools import count as numbers
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

NEW_INPUTS_SLOWER = 2.0  # times as long as with inputs that were seen before
SMALLEST_GAIN_S = 10e-6  # a difference below this may be the timer's, or a cache's
MOST_SETS = 3  # of new inputs that are compared at once: the fastest step counts
SETS_BYTES = 2**26  # of all of these sets together, unless one is larger
ALIVE_BYTES, MOST_ALIVE = 2**28, 1000  # of sets of new inputs that stay in memory; number of sets
FIRST_NEW = 4  # batches below this number are used by other checks


def check_last_output(
    workload: Workload, runner: Runner, session: Session, output: Any, job: Message
) -> None:
    """Raise WrongResult if the output of the last timed step deviates from the reference.

    A program may compute right results only as long as it is watched. The loss of a training step has no
    reference after so many steps.
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
    most_sets: int = MOST_SETS,
) -> None:
    """Raise Implausible if steps with new inputs take far longer than with those that were timed.

    Such a program keeps its results. New contents are written into the arrays that were timed, where these
    can be overwritten, so the address tells it nothing. Single steps are compared, since a block of steps
    with the same inputs would hide the first one. `most_sets`: of new inputs, compared at once.
    """
    if runner.program.feed:  # its inputs are new in every step
        return
    refill = Refill(backend, workload, case, runner, session)
    timed = runner.program.inputs
    input_bytes = max(1, sum(map(session.nbytes, timed)))
    sets = min(session.world.gather(clamp(SETS_BYTES / input_bytes, 1, most_sets)))
    drawn, timed_arrays = numbers(FIRST_NEW), refill.arrays(0)
    # New inputs stay alive, or the next ones might get their identity and find the results kept for them.
    alive = deque[tuple[Any, ...]](maxlen=max(sets, clamp(ALIVE_BYTES / input_bytes, 1, MOST_ALIVE)))

    def seconds(inputs: tuple[Any, ...]) -> float:
        return max(timer.blocks(lambda: runner.step_on(inputs), 1, 1)[0], CLOCK_S)

    def seen_s(prepare: Callable[[], None]) -> float:
        refill.prepared(timed_arrays)  # the same work as for new inputs, without a change of the timed ones
        prepare()
        return seconds(timed)

    def new_s(arrays: Mapping[str, AnyArray], prepare: Callable[[], None]) -> float:
        inputs = refill(arrays)
        alive.append(inputs)
        prepare()
        return seconds(inputs)

    def ratio(prepare: Callable[[], None] = lambda: None) -> float:
        new_arrays = [refill.arrays(next(drawn)) for _ in range(sets)]  # before: drawing evicts caches
        if session.overwrites:
            refill(timed_arrays)
        for _ in range(2):  # so that the timed inputs are no longer new after the ratio before this one
            seconds(timed)
        seen = min(seen_s(prepare) for _ in range(sets))
        new = min(new_s(arrays, prepare) for arrays in new_arrays)
        return new / seen if new - seen > SMALLEST_GAIN_S else 1.0

    slower = smallest_ratio(ratio, timer, NEW_INPUTS_SLOWER)
    if slower > NEW_INPUTS_SLOWER:  # a table's rows that were not looked up before may be in no cache
        evicted = smallest_ratio(lambda: ratio(lambda: evict(session)), timer, NEW_INPUTS_SLOWER)
        slower = min(slower, evicted)
    if isinstance(workload, Training):  # whose next check begins with the timed batch
        refill(timed_arrays)
    if slower > NEW_INPUTS_SLOWER:
        raise Implausible(f"new inputs take {slower:.1f} times as long: it keeps its results")


@dataclasses.dataclass(frozen=True)
class Refill:
    """New contents for the inputs of a runner."""

    backend: Backend
    workload: Workload
    case: Case
    runner: Runner
    session: Session

    def arrays(self, number: int) -> dict[str, AnyArray]:
        """Contents of the inputs by their number: 0 has the timed ones."""
        return other_arrays(self.workload, self.case.computes_in, self.runner, number)

    def prepared(self, arrays: Mapping[str, AnyArray]) -> tuple[Any, ...]:
        """Inputs with these contents; the timed arrays themselves for a program that reads fixed memory."""
        inputs = inputs_of(self.backend, self.session, self.workload, self.runner, arrays)
        if not self.session.overwrites:
            self.session.wait(inputs)  # JAX may still copy them
        return inputs

    def __call__(self, arrays: Mapping[str, AnyArray]) -> tuple[Any, ...]:
        """Inputs with these contents: the timed arrays, overwritten, where that is possible."""
        timed, inputs = self.runner.program.inputs, self.prepared(arrays)
        if inputs is timed or not self.session.overwrites:
            return inputs
        self.session.overwrite(timed, inputs)
        return timed


def evict(session: Session) -> None:
    """Fill the device's caches with other data, if the session can."""
    with suppress(Unsupported):
        session.wait(session.flush())
