"""A step that prints what looks like an answer."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import TYPE_CHECKING

from benchbench.workloads.honest import Honest

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray


@dataclass(frozen=True)
class Talkative(Honest):
    summary = "A step that prints what looks like an answer"

    def compute(self, a: NDArray[np.float32], b: NDArray[np.float32]) -> NDArray[np.float32]:
        print(json.dumps({"exit": 0, "reply": {}}), flush=True)
        return a @ b
