"""A build that returns zeros."""

from typing import Any

from benchbench.workloads.honest import Honest


class Zeros(Honest):
    summary = "A build that returns zeros"

    def compute(self, a: Any, b: Any) -> Any:
        import numpy as np

        return np.zeros((self.size, self.size), np.float32)
