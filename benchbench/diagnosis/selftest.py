"""Self-test: measure spins of known length through a worker, and compare the results with the truth."""

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
from benchbench.plan.cases import backend_of
from benchbench.stats import deviation, mean, median
from benchbench.timing.policy import POLICIES
from benchbench.timing.spin import Shape

Ask = Callable[[dict[str, Any]], Answer]
Statistic = Callable[[Sequence[float]], float]


@dataclass(frozen=True, slots=True)
class Trial:
    """A spin, a statistic of its steps, and the tolerance of the measured statistic.

    The tolerance is the larger of `limit`, a relative error, and `floor_s`, in seconds.
    """

    shape: Shape
    of: str
    limit: float
    floor_s: float = 0.0

    @property
    def name(self) -> str:
        """Name such as `spin`, `bimodal spin` or `log-normal spin, CV 25 %`."""
        kind = "" if self.shape.kind == "constant" else f"{self.shape.kind} "
        spread = f", CV {100 * self.shape.spread:g} %" if self.shape.spread else ""
        return f"{kind}spin{spread}"

    @property
    def asked_s(self) -> float:
        """The statistic of the distribution from which spins are drawn."""
        return {"mean": self.shape.mean_s, "sd": self.shape.sd_s}.get(self.of, self.shape.seconds)


ATTEMPTS = 3
STATISTICS: dict[str, Statistic] = {"median": median, "mean": mean, "sd": deviation}
NOISY = (
    Shape(kind="bimodal", seconds=1e-3, seed=1),
    Shape(kind="log-normal", seconds=2e-3, spread=0.05, seed=2),
    Shape(kind="log-normal", seconds=2e-3, spread=0.25, seed=3),
)
HOST = (  # errors are a tenth of these on a quiet machine; other programs leave caches cold for each spin
    Trial(Shape(seconds=1e-5), "median", 0.1),  # the truth excludes a call and two clock readings
    Trial(Shape(seconds=1e-4), "median", 0.02),
    Trial(Shape(seconds=1e-3), "median", 0.01),
    Trial(Shape(seconds=1e-2), "median", 0.005),
    Trial(Shape(seconds=1e-1), "median", 0.002),
    *(
        trial
        for shape in NOISY  # nvbench's tolerances
        for trial in (Trial(shape, "mean", 0.025, 8e-6), Trial(shape, "sd", 0.05, 5e-6))
    ),
)
DEVICE = (
    Trial(Shape(seconds=1e-4), "median", 0.05),  # kernels are a few µs apart
    Trial(Shape(seconds=1e-3), "median", 0.01),
    Trial(Shape(seconds=1e-2), "median", 0.01),
)
VIRTUAL = "{} is not tested: its devices are simulated, so there is no true time to compare with"


@dataclass(frozen=True, slots=True, kw_only=True)
class Result:
    """Result of a trial: seconds of a step, the relative error and its limit. `note`: why values are None."""

    where: str
    spin: str
    of: str
    asked_s: float
    truth_s: float | None = None
    measured_s: float | None = None
    error: float | None = None
    limit: float
    passed: bool
    attempts: int  # number of measurements; the last one counts
    note: str = ""


def run_trials(place: str, device: str | None, trials: Sequence[Trial], ask: Ask) -> list[Result]:
    """Run every trial; trials of one shape share a measurement.

    `ask` sends a job to a worker; `device`: None for the host. A failed trial is repeated: other programs may
    take the CPU between the spin's clock and the pipeline's, but a wrong pipeline is always wrong.
    """
    shapes = dict.fromkeys(trial.shape for trial in trials)
    return [result for shape in shapes for result in _repeated_trials(place, device, shape, trials, ask)]


def _repeated_trials(
    place: str, device: str | None, shape: Shape, trials: Sequence[Trial], ask: Ask
) -> list[Result]:
    results: list[Result] = []
    for attempt in range(1, ATTEMPTS + 1):
        answer = ask(job_of(shape, device))
        results = [_result(place, trial, answer, attempt) for trial in trials if trial.shape == shape]
        if all(result.passed for result in results):
            break
    return results


def job_of(shape: Shape, device: str | None) -> dict[str, Any]:
    """Message of the job for a worker."""
    return {
        "kind": "spin",
        "shape": dataclasses.asdict(shape),
        "device": device,
        "policy": dataclasses.asdict(POLICIES["quick"]),
    }


def _result(place: str, trial: Trial, answer: Answer, attempt: int) -> Result:
    unmeasured = Result(
        where=place,
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
    """Run the trials on every accelerator of the pool's targets. Returns results, and why a
    target has none.
    """
    results: list[Result] = []
    notes: list[str] = []
    for probe in pool.probe():
        name = probe.target.name
        if backend_of(probe).virtual:
            notes.append(VIRTUAL.format(name))
            continue
        accelerators = [device for device in probe.devices if device.device_class is DeviceClass.ACCELERATOR]
        if not accelerators:
            reason = probe.reason or "; ".join(reason for _, reason in probe.missing)
            notes.append(f"{name} has no accelerator{f': {reason}' if reason else ''}")
        for device in accelerators:
            ask = partial(pool.run_job, target=name)
            results += run_trials(f"{name} {device.name}", device.name, DEVICE, ask)
    return results, notes
