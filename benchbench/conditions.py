"""What surrounds a measurement, judged: how much of a neighbour is too much."""

from __future__ import annotations


def tolerated_cores(threads: int) -> float:
    """Cores that others may use of the CPUs a case runs on before the case counts as contended.

    Threads that share a step equally wait for the slowest of them: what others take may all come from
    one, and a tenth of its core makes the step a tenth longer. Housekeeping grows with the CPUs, so on
    many it is 2 % of them.
    """
    return max(0.1, 0.02 * threads)
