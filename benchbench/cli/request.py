"""What was typed, as a request to measure."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING

from benchbench.cli.options import Names, dtype_named, split
from benchbench.errors import UsageError
from benchbench.model import Allocator, Isolation

if TYPE_CHECKING:
    from benchbench.model import Policy
    from benchbench.rounds import Request
    from benchbench.suite import Suite


def requested(
    *,
    suite: Names,
    workload: Names,
    device: Names,
    dtype: Names,
    mode: Names,
    param: Names,
    quick: bool,
    rigorous: bool,
    rounds: int | None,
    timeout: float,
    threads: int | None,
    allocator: Allocator,
    isolation: Isolation,
    seed: int | None,
) -> Request:
    """Raises UsageError."""
    from benchbench import suite as suites
    from benchbench.environment import usable_threads
    from benchbench.model import Settings
    from benchbench.plan import Selection, parse_params, select
    from benchbench.rounds import Request

    selection = Selection(
        workloads=split(workload),
        devices=split(device),
        dtypes=tuple(dtype_named(name) for name in split(dtype)),
        modes=split(mode),
        params=parse_params(param or []),
    )
    chosen = [suites.load(name) for name in split(suite) or ("quick",)]
    return Request(
        entries=tuple(select(chosen, selection)),
        selection=selection,
        policy=_policy(chosen, quick, rigorous, rounds),
        settings=Settings(
            threads=threads or usable_threads(),
            allocator=allocator,
            isolation=isolation,
            timeout_s=timeout,
        ),
        seed=seed,
        command=tuple(sys.argv[1:]),
    )


def _policy(suites: Sequence[Suite], quick: bool, rigorous: bool, rounds: int | None) -> Policy:
    from dataclasses import replace

    from benchbench.measure import POLICIES

    if quick and rigorous:
        raise UsageError("--quick and --rigorous exclude each other.", "Give one of them.")
    asked = "quick" if quick else "rigorous" if rigorous else suites[0].policy
    policy = POLICIES[asked]
    return replace(policy, rounds=rounds) if rounds else policy
