"""A step that prints a fake answer."""

import json
from typing import Any

from benchbench.workloads.honest import Honest


class Talkative(Honest):
    summary = "A step that prints a fake answer"

    def compute(self, a: Any, b: Any) -> Any:
        print(json.dumps({"exit": 0, "reply": {}}), flush=True)
        return a @ b
