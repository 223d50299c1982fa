"""A preset of a tenth of a second, for tests of real frameworks that ignore times."""

from dataclasses import replace
from typing import Any

from benchbench.timing.policy import POLICIES

BRIEFLY: dict[str, Any] = {
    "ACCELBENCH_TESTS_BRIEFLY": "1"
}  # environment variable for `tests.program.accelbench`


def time_briefly() -> None:
    """Shorten `--quick` in this process."""
    POLICIES["quick"] = replace(
        POLICIES["quick"],
        min_s=0.05,
        max_s=0.1,
        warmup_min_s=0.05,
        warmup_max_s=0.1,
        window_s=0.02,
        slow_s=0.05,
    )
