"""A result that is not finite."""

from typing import Any

from benchbench.workloads.honest import Honest


class Infinite(Honest):
    summary = "A result that is not finite"

    def compute(self, a: Any, b: Any) -> Any:
        import numpy as np

        return np.full((self.size, self.size), np.inf, np.float32)
