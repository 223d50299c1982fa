"""Is a large product timed as others time it? `python -m studies.gpu_gemm [REPEATS]` prints TFLOP/s.

Not a test: it times, and needs an NVIDIA GPU. In each repeat a bfloat16 product of 8192³ is timed by a plain
loop between two CUDA events, by triton.testing.do_bench, which clears the cache before each call, and by
accelbench, hot and cold.
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

    def ours_s(cache: Cache) -> float:
        cold = cache is Cache.COLD
        timer, most = session.timer(session.flush if cold else None), 1 if cold else MAX_ITERATIONS
        found = measure_steps(step, timer, POLICIES["default"], most=most)
        return median(found.block_s) / found.iterations

    ways: dict[str, Callable[[], float]] = {
        "plain loop between events": lambda: plain_s(step),
        "triton.testing.do_bench": lambda: triton_s(step),
        "accelbench hot": lambda: ours_s(Cache.HOT),
        "accelbench cold": lambda: ours_s(Cache.COLD),
    }
    found: dict[str, list[float]] = {name: [] for name in ways}
    for number in range(repeats):
        names = list(ways)
        for name in names[number % len(names) :] + names[: number % len(names)]:
            found[name].append(2 * SIZE**3 / ways[name]() / 1e12)
    device = {"device": torch.cuda.get_device_name(0), "torch": torch.__version__}
    for name, rates in found.items():
        line = {"way": name, "TFLOP/s": statistics.median(rates), "least": min(rates), "most": max(rates)}
        print(json.dumps(line | device), flush=True)


def main(repeats: int) -> None:
    import torch

    if not torch.cuda.is_available():
        sys.exit(f"torch {torch.__version__} sees no CUDA device: there is nothing to compare here.")
    compare(repeats)


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 5)
