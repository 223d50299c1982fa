"""What was typed, as a request to measure."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from typing import TYPE_CHECKING

from benchbench.cli.options import Names, seconds_in, split
from benchbench.errors import UsageError
from benchbench.model.options import Allocator, Isolation

if TYPE_CHECKING:
    from benchbench.running.rounds import Request


def requested(
    *,
    suite: Names,
    workload: Names,
    device: Names,
    dtype: Names,
    mode: Names,
    cache: Names,
    param: Names,
    quick: bool,
    rigorous: bool,
    budget: str | None = None,
    rounds: int | None,
    timeout: float,
    threads: int | None,
    allocator: Allocator,
    isolation: Isolation,
    seed: int | None,
    tag: Names = None,
) -> Request:
    """Raises UsageError."""
    from benchbench import api
    from benchbench.machine.environment import usable_threads
    from benchbench.model.run import Settings
    from benchbench.plan.cases import Selection, parse_params
    from benchbench.store import tags

    return api.request(
        split(suite) or ("quick",),
        Selection(
            workloads=split(workload),
            devices=split(device),
            dtypes=tuple(api.dtype_named(name) for name in split(dtype)),
            modes=split(mode),
            caches=tuple(api.cache_named(name) for name in split(cache)),
            params=parse_params(param or []),
        ),
        Settings(
            threads=threads or usable_threads(), allocator=allocator, isolation=isolation, timeout_s=timeout
        ),
        preset=_preset({"--quick": quick, "--rigorous": rigorous, "--budget": budget}),
        budget_s=seconds_in(budget) if budget else None,
        rounds=rounds,
        seed=seed,
        command=tuple(sys.argv[1:]),
        tags=tags.parse(tag or []),
    )


def _preset(typed: Mapping[str, bool | str | None]) -> str | None:
    asked = [name for name, wanted in typed.items() if wanted]
    if len(asked) > 1:
        raise UsageError(f"{asked[0]} and {asked[1]} exclude each other.", "Give one of them.")
    return asked[0].removeprefix("--") if asked and asked[0] != "--budget" else None
