"""What was typed, as a request to measure."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

from benchbench.cli.options import Names, split
from benchbench.errors import UsageError
from benchbench.model import Allocator, Isolation

if TYPE_CHECKING:
    from benchbench.rounds import Request


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
    from benchbench import api
    from benchbench.environment import usable_threads
    from benchbench.model import Settings
    from benchbench.plan import Selection, parse_params

    return api.request(
        split(suite) or ("quick",),
        Selection(
            workloads=split(workload),
            devices=split(device),
            dtypes=tuple(api.dtype_named(name) for name in split(dtype)),
            modes=split(mode),
            params=parse_params(param or []),
        ),
        Settings(
            threads=threads or usable_threads(), allocator=allocator, isolation=isolation, timeout_s=timeout
        ),
        preset=_preset(quick, rigorous),
        rounds=rounds,
        seed=seed,
        command=tuple(sys.argv[1:]),
    )


def _preset(quick: bool, rigorous: bool) -> str | None:
    if quick and rigorous:
        raise UsageError("--quick and --rigorous exclude each other.", "Give one of them.")
    return "quick" if quick else "rigorous" if rigorous else None
