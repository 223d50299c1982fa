"""Checks after timing that the last timed step was right and that steps compute anew for new inputs.

A program could return a stored result for inputs that it has seen, or compute correctly only while verified.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping
from contextlib import suppress
from itertools import count
from typing import Any

from benchbench.arrays import AnyArray
from benchbench.backends.base import Session
from benchbench.errors import Unsupported
from benchbench.timing.sampling import CLOCK_S, Stopwatch, clamp, smallest_ratio
from benchbench.worker.program import Implausible, Inputs, OpenCase
from benchbench.workloads.base import Operation, Training

MAX_RATIO = 2.0  # step time with new inputs, divided by that with timed inputs
MIN_DIFFERENCE_S = 10e-6  # the timer or a cache may cause a smaller difference
MAX_SETS = 3  # sets of new inputs per comparison, of which the fastest step counts
SETS_BYTES = 2**26  # all sets of a comparison together, unless one set is larger
ALIVE_BYTES, MAX_ALIVE = 2**28, 1000  # bytes and number of the sets of new inputs that stay in memory
FIRST_NEW_BATCH = 4  # other checks use the batches with lower numbers


def check_last_output(opened: OpenCase, output: Any) -> None:
    """Raise WrongResult if the output of the last timed step deviates from the reference.

    Training steps are not checked: their loss has no reference after so many steps.
    """
    opened.session.refuse_unwaited(output)
    if isinstance(opened.workload, Operation):
        reference = opened.reference()
        if not reference.unverified:
            opened.verify(output, reference, " of the last timed step")


def check_new_inputs(opened: OpenCase, timer: Stopwatch, max_sets: int = MAX_SETS) -> None:
    """Raise Implausible if steps with new inputs take far longer than steps with the timed inputs.

    Such a program stores its results. If the timed arrays can be overwritten, new values are written into
    them, so that the program cannot recognise them by their address. Single steps are compared, since in a
    block of steps with the same inputs only the first one would be slow. `max_sets`: number of sets of new
    inputs per comparison.
    """
    runner, session = opened.runner, opened.session
    if runner.program.feed:  # every step has new inputs
        return
    timed_inputs, timed_arrays = runner.program.inputs, opened.other_arrays(0)
    input_bytes = max(1, sum(map(session.nbytes, timed_inputs)))
    sets = min(session.world.gather(clamp(SETS_BYTES / input_bytes, 1, max_sets)))
    numbers = count(FIRST_NEW_BATCH)
    # New inputs stay alive: later ones could get their addresses, for which the program has stored results.
    alive = deque[tuple[Any, ...]](maxlen=max(sets, clamp(ALIVE_BYTES / input_bytes, 1, MAX_ALIVE)))

    def step_s(step_inputs: tuple[Any, ...]) -> float:
        return max(timer.blocks(lambda: runner.step_on(step_inputs), 1, 1)[0], CLOCK_S)

    def timed_step_s(prepare: Callable[[], None]) -> float:
        create_inputs(opened, timed_arrays)  # as for new inputs, so that both steps follow the same work
        prepare()
        return step_s(timed_inputs)

    def new_step_s(arrays: Mapping[str, AnyArray], prepare: Callable[[], None]) -> float:
        new_inputs = replace_inputs(opened, arrays)
        alive.append(new_inputs)
        prepare()
        return step_s(new_inputs)

    def ratio(prepare: Callable[[], None] = lambda: None) -> float:
        # All arrays are drawn first, since drawing evicts data from the caches.
        new_arrays = [opened.other_arrays(next(numbers)) for _ in range(sets)]
        if session.overwrites:
            replace_inputs(opened, timed_arrays)
        for _ in range(2):  # after the new inputs of the previous comparison, the timed ones are new again
            step_s(timed_inputs)
        timed_s = min(timed_step_s(prepare) for _ in range(sets))
        new_s = min(new_step_s(arrays, prepare) for arrays in new_arrays)
        return new_s / timed_s if new_s - timed_s > MIN_DIFFERENCE_S else 1.0

    smallest = smallest_ratio(ratio, timer, MAX_RATIO)
    if smallest > MAX_RATIO:  # caches may lack the data of new inputs, such as other rows of a table
        smallest = min(smallest, smallest_ratio(lambda: ratio(lambda: evict(session)), timer, MAX_RATIO))
    if isinstance(opened.workload, Training):  # the next check of a training step starts with the timed batch
        replace_inputs(opened, timed_arrays)
    if smallest > MAX_RATIO:
        raise Implausible(f"new inputs take {smallest:.1f} times as long: the program returns stored results")


def create_inputs(opened: OpenCase, arrays: Mapping[str, AnyArray]) -> Inputs:
    """Inputs with these values. A program that reads fixed memory gets the timed arrays, overwritten."""
    inputs = opened.inputs_of(arrays)
    if not opened.session.overwrites:
        opened.session.wait(inputs)  # JAX may still copy them
    return inputs


def replace_inputs(opened: OpenCase, arrays: Mapping[str, AnyArray]) -> Inputs:
    """The timed inputs, overwritten with these values; new inputs if the session cannot overwrite."""
    timed, inputs = opened.runner.program.inputs, create_inputs(opened, arrays)
    if inputs is timed or not opened.session.overwrites:
        return inputs
    opened.session.overwrite(timed, inputs)
    return timed


def evict(session: Session) -> None:
    """Fill the device's caches with other data, if the session can."""
    with suppress(Unsupported):
        session.wait(session.flush())
