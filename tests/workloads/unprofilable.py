"""A workload whose profiler fails in the way `how`."""

from __future__ import annotations

import os
import signal
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from benchbench.errors import Unsupported
from benchbench.workloads.honest import Honest

if TYPE_CHECKING:
    from benchbench.workloads.base import Arrays, DeviceContext, Program


@dataclass(frozen=True)
class Unprofilable(Honest):
    how: str = "raise"

    summary = "A workload whose profiler fails"

    def build_fake(self, context: DeviceContext, arrays: Arrays) -> Program:
        def profile(*arguments: Any) -> Any:
            if self.how == "crash":
                os.kill(os.getpid(), signal.SIGSEGV)
            if self.how == "refuse":
                raise Unsupported("this backend has no profiler")
            raise RuntimeError("the profiler broke")

        context.profile = profile  # type: ignore[attr-defined]
        return super().build_fake(context, arrays)
