"""Does accelbench time a large product on a GPU as other timers do?

    python -m studies.gpu_gemm [REPEATS]      # prints TFLOP/s; needs an NVIDIA GPU

Each repeat times a bfloat16 product of two 8192 × 8192 matrices by four timers. One is a plain loop between
two CUDA events. One is triton.testing.do_bench, which clears the cache before each call. The others are
accelbench with a hot and with a cold cache.
"""

import json
import statistics
import sys
from collections.abc import Callable
from typing import Any

from benchbench.backends.torch import Torch
from benchbench.model.case import Cache, Dtype
from benchbench.stats import median
from benchbench.timing.policy import POLICIES
from benchbench.timing.sampling import MAX_ITERATIONS, measure_steps
from benchbench.worker.program import build
from benchbench.workloads.operations.gemm import Gemm

SIZE = 8192
CALLS = 100


def plain_s(step: Callable[[], Any]) -> float:
    import torch

    begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    for _ in range(CALLS):  # warm-up
        step()
    begin.record()
    for _ in range(CALLS):
        step()
    end.record()
    torch.cuda.synchronize()
    return float(begin.elapsed_time(end)) / 1e3 / CALLS


def triton_s(step: Callable[[], Any]) -> float:
    from triton.testing import do_bench

    return float(do_bench(step, warmup=500, rep=1000, return_mode="median")) / 1e3


def compare(repeats: int) -> None:
    import torch

    session = Torch().open("cuda:0", Dtype.BFLOAT16, "eager", 2)
    step = build(Torch(), session, Gemm(m=SIZE, n=SIZE, k=SIZE), Dtype.BFLOAT16).step

    def accelbench_s(cache: Cache) -> float:
        cold = cache is Cache.COLD
        timer, max_iterations = session.timer(session.flush if cold else None), 1 if cold else MAX_ITERATIONS
        steps = measure_steps(step, timer, POLICIES["default"], most=max_iterations)
        return median(steps.block_s) / steps.iterations

    timers: dict[str, Callable[[], float]] = {
        "plain loop between events": lambda: plain_s(step),
        "triton.testing.do_bench": lambda: triton_s(step),
        "accelbench hot": lambda: accelbench_s(Cache.HOT),
        "accelbench cold": lambda: accelbench_s(Cache.COLD),
    }
    rates: dict[str, list[float]] = {name: [] for name in timers}
    for number in range(repeats):
        names = list(timers)
        for name in names[number % len(names) :] + names[: number % len(names)]:
            rates[name].append(2 * SIZE**3 / timers[name]() / 1e12)
    device = {"device": torch.cuda.get_device_name(0), "torch": torch.__version__}
    for name, values in rates.items():
        line = {"way": name, "TFLOP/s": statistics.median(values), "least": min(values), "most": max(values)}
        print(json.dumps(line | device), flush=True)


def main(repeats: int) -> None:
    import torch

    if not torch.cuda.is_available():
        sys.exit(f"torch {torch.__version__} sees no CUDA device: there is nothing to compare here.")
    compare(repeats)


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 5)
