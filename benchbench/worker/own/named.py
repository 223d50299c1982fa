"""A user's model by its name, as the workload that a case names."""

from __future__ import annotations

import os
from collections.abc import Mapping

from benchbench.model import own
from benchbench.model.case import Scalar
from benchbench.worker.own.workload import OwnInference, OwnWorkload


def own_model(name: str, params: Mapping[str, Scalar]) -> OwnWorkload | None:
    """The user's model of that name at these parameters; None where no model is called so."""
    spec = own.from_text(os.environ.get(own.VARIABLE, "")).get(name)
    return None if spec is None else OwnInference(spec, dict(params))
