"""A collective whose second rank has a fault, chosen by `fault`."""

from __future__ import annotations

import os
import signal
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from benchbench.workloads._collective import Collective
from benchbench.workloads.base import Program

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from benchbench.workloads.base import Arrays, DeviceContext


@dataclass(frozen=True)
class FaultyRank(Collective):
    n: int = 8
    fault: str = "none"

    summary = "each rank keeps its array; the second rank has a fault"

    def reference(self, arrays: Arrays, index: NDArray[np.int64]) -> NDArray[np.float64]:
        return np.asarray(self.stacked(arrays)[index[:, 0], index[:, 1]], np.float64)

    def build_fake(self, context: DeviceContext, arrays: Arrays) -> Program:
        fault = self.fault if self.rank == 1 else "none"
        if fault == "late":
            time.sleep(0.5)

        def step(x: Any) -> Any:
            context.spend(1e-3 if fault == "slow" else 1e-4)
            if fault == "killed":
                os.kill(os.getpid(), signal.SIGKILL)
            if fault == "hangs":
                time.sleep(600)
            if fault == "garbles":
                lines = context.world.gather.__self__._lines  # type: ignore[attr-defined]
                lines.write(b"no message\n")
                lines.flush()
            context.world.gather(None)  # waits for the others, as a collective does
            return x + 1 if fault == "wrong" else x

        return Program(step, (context.put(self.own(arrays)),))
