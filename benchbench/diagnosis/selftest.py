"""The self-test: spins of known length are measured through a worker, and compared with the truth."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from benchbench.format import percent
from benchbench.launch.pool import WorkerPool
from benchbench.launch.transport import Answer
from benchbench.model.device import DeviceClass
from benchbench.plan.devices import backend_of
from benchbench.stats import deviation, mean, median
from benchbench.timing.policy import POLICIES
from benchbench.timing.spin import Shape

Ask = Callable[[dict[str, Any]], Answer]
Statistic = Callable[[Sequence[float]], float]


@dataclass(frozen=True, slots=True)
class Trial:
    """A spin, a statistic of its steps, and how far the measured one may be from the true one.

    `limit` is relative; `floor_s`, in seconds, holds where that is more.
    """

    shape: Shape
    of: str
    limit: float
    floor_s: float = 0.0

    @property
    def name(self) -> str:
        """`spin`, `bimodal spin`, `log-normal spin, CV 25 %`."""
        kind = "" if self.shape.kind == "constant" else f"{self.shape.kind} "
        spread = f", CV {100 * self.shape.spread:g} %" if self.shape.spread else ""
        return f"{kind}spin{spread}"

    @property
    def asked_s(self) -> float:
        """What the statistic is of the distribution that the spins are drawn from."""
        return {"mean": self.shape.mean_s, "sd": self.shape.sd_s}.get(self.of, self.shape.seconds)


ATTEMPTS = 3
STATISTICS: dict[str, Statistic] = {"median": median, "mean": mean, "sd": deviation}
NOISY = (
    Shape(kind="bimodal", seconds=1e-3, seed=1),
    Shape(kind="log-normal", seconds=2e-3, spread=0.05, seed=2),
    Shape(kind="log-normal", seconds=2e-3, spread=0.25, seed=3),
)
HOST = (  # on a quiet machine a tenth of these; a neighbour leaves caches cold around each spin
    Trial(Shape(seconds=1e-5), "median", 0.1),  # a call and two readings of a clock are not in the truth
    Trial(Shape(seconds=1e-4), "median", 0.02),
    Trial(Shape(seconds=1e-3), "median", 0.01),
    Trial(Shape(seconds=1e-2), "median", 0.005),
    Trial(Shape(seconds=1e-1), "median", 0.002),
    *(
        trial
        for shape in NOISY  # nvbench's own tolerances
        for trial in (Trial(shape, "mean", 0.025, 8e-6), Trial(shape, "sd", 0.05, 5e-6))
    ),
)
DEVICE = (
    Trial(Shape(seconds=1e-4), "median", 0.05),  # kernels are a few µs apart
    Trial(Shape(seconds=1e-3), "median", 0.01),
    Trial(Shape(seconds=1e-2), "median", 0.01),
)
VIRTUAL = "{} is not tested: the time of its virtual devices is made up, so there is nothing to hold it to"


@dataclass(frozen=True, slots=True, kw_only=True)
class Result:
    """The result of a trial: seconds of a step, a relative error and its limit. None: `note` says why."""

    where: str
    spin: str
    of: str
    asked_s: float
    truth_s: float | None = None
    measured_s: float | None = None
    error: float | None = None
    limit: float
    passed: bool
    attempts: int  # measurements made; the last counts
    note: str = ""


def run_trials(where: str, device: str | None, trials: Sequence[Trial], ask: Ask) -> list[Result]:
    """Every trial, in turn; those of one shape are of one measurement.

    `ask` has a worker do a job; `device`: None for the host. What fails is tried again: others may take the
    CPU just between the spin's clock and the pipeline's, but a pipeline that is off is off every time.
    """
    shapes = dict.fromkeys(trial.shape for trial in trials)
    return [result for shape in shapes for result in _settled(where, device, shape, trials, ask)]


def _settled(where: str, device: str | None, shape: Shape, trials: Sequence[Trial], ask: Ask) -> list[Result]:
    found: list[Result] = []
    for attempt in range(1, ATTEMPTS + 1):
        answer = ask(job_of(shape, device))
        found = [_result(where, trial, answer, attempt) for trial in trials if trial.shape == shape]
        if all(result.passed for result in found):
            break
    return found


def job_of(shape: Shape, device: str | None) -> dict[str, Any]:
    """What a worker is asked for."""
    return {
        "kind": "spin",
        "shape": dataclasses.asdict(shape),
        "device": device,
        "policy": dataclasses.asdict(POLICIES["quick"]),
    }


def _result(where: str, trial: Trial, answer: Answer, attempt: int) -> Result:
    unmeasured = Result(
        where=where,
        spin=trial.name,
        of=trial.of,
        asked_s=trial.asked_s,
        limit=trial.limit,
        passed=False,
        attempts=attempt,
    )
    reply = answer.reply or {}
    if "block_s" not in reply:
        note = reply["outcome"]["message"] if "outcome" in reply else answer.message
        return dataclasses.replace(unmeasured, note=note)
    of, iterations = STATISTICS[trial.of], reply["iterations"]
    truth, measured = (of(reply[name]) / iterations for name in ("true_block_s", "block_s"))
    limit, error = max(trial.limit + reply["drift"], trial.floor_s / truth), measured / truth - 1
    return dataclasses.replace(
        unmeasured,
        truth_s=truth,
        measured_s=measured,
        error=error,
        limit=limit,
        passed=abs(error) <= limit,
        note=f"the device's clock moved by {percent(reply['drift'])}" if reply["drift"] else "",
    )


def on_devices(pool: WorkerPool) -> tuple[list[Result], list[str]]:
    """The trials on every accelerator of the pool's targets, and why a target has none."""
    found: list[Result] = []
    notes: list[str] = []
    for probe in pool.probe():
        name = probe.target.name
        if backend_of(probe).virtual:
            notes.append(VIRTUAL.format(name))
            continue
        there = [each for each in probe.devices if each.device_class is DeviceClass.ACCELERATOR]
        if not there:
            why = probe.reason or "; ".join(reason for _, reason in probe.missing)
            notes.append(f"{name} has no accelerator{f': {why}' if why else ''}")
        for device in there:
            ask = partial(pool.ask_plain, target=name)
            found += run_trials(f"{name} {device.name}", device.name, DEVICE, ask)
    return found, notes
