"""A step that prints megabytes and crashes."""

import os
import sys
from typing import Any

from benchbench.workloads.honest import Honest


class Shouting(Honest):
    summary = "A step that prints megabytes and crashes"

    def compute(self, a: Any, b: Any) -> Any:
        print("x" * 3_000_000 + "\nthe last word", file=sys.stderr, flush=True)
        os.abort()
