"""Is a bus bandwidth that of a loop written by hand? torch's all_reduce in place, in turn with the loop.

    python -m studies.collective_bandwidth 6 > studies/output/collective_bandwidth.md

The loop is torch's own API and nothing of accelbench's: two processes with gloo, each with a core and a
thread of its own.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from math import exp, log
from pathlib import Path

import benchbench
from benchbench.model.measurement import Measurement
from benchbench.stats import headline, mean, median

SIZES = {"1 MiB": 2**18, "64 MiB": 2**24}  # elements of float32
STEPS = {"1 MiB": 400, "64 MiB": 25}  # of the loop
WARM = 10
RANKS = 2
LOOP = """
import json, os, sys, time
rank, n, steps, warm = map(int, sys.argv[1:5])
meeting = sys.argv[5]
os.sched_setaffinity(0, [sorted(os.sched_getaffinity(0))[rank]])
import torch, torch.distributed as dist
torch.set_num_threads(1)
dist.init_process_group("gloo", init_method=f"file://{meeting}", rank=rank, world_size=2)
x, seconds = torch.randn(n), []
for step in range(warm + steps):
    dist.barrier()
    start = time.perf_counter()
    dist.all_reduce(x)
    seconds.append(time.perf_counter() - start)
print(json.dumps(seconds[warm:]), flush=True)
dist.destroy_process_group()
os._exit(0)  # gloo's threads may outlive the interpreter, which it then tells
"""


def by_hand(size: str) -> float:
    """Seconds of a step: the median of the slower rank's times."""
    with tempfile.TemporaryDirectory() as folder:
        given = [str(SIZES[size]), str(STEPS[size]), str(WARM), f"{folder}/meeting"]
        ranks = [
            subprocess.Popen([sys.executable, "-c", LOOP, str(rank), *given], stdout=subprocess.PIPE)
            for rank in range(RANKS)
        ]
        times = [json.loads(rank.communicate()[0]) for rank in ranks]
    return median([max(step) for step in zip(*times, strict=True)])


def by_accelbench(size: str) -> float:
    """Seconds of a step, of one process a rank."""
    with tempfile.TemporaryDirectory() as folder:
        run = benchbench.run(
            workloads="all_reduce",
            params={"n": SIZES[size], "in_place": True},
            worlds=RANKS,
            backends="torch",
            devices="cpu",
            preset="quick",
            rounds=1,
            results=Path(folder),
        )
    (outcome,) = (record.outcome for record in run.records)
    assert isinstance(outcome, Measurement), outcome
    return median(outcome.block_s) / outcome.iterations


def main() -> None:
    """A line per size."""
    pairs = int(sys.argv[1]) if len(sys.argv) > 1 else 8
    print("| size | by hand | accelbench | accelbench / by hand [95 %] | pairs |")
    print("| --- | --- | --- | --- | --- |")
    for size, n in SIZES.items():
        hand, ours = zip(*[(by_hand(size), by_accelbench(size)) for _ in range(pairs)], strict=True)
        ratio = headline([one / other for one, other in zip(hand, ours, strict=True)])
        moved = 2 * (RANKS - 1) / RANKS * n * 4  # nccl-tests, doc/PERFORMANCE.md
        rates = [moved / exp(mean([log(each) for each in side])) / 1e9 for side in (hand, ours)]
        columns = (size, *(f"{rate:.3g} GB/s" for rate in rates))
        print("|", " | ".join(columns), f"| {ratio.mid:.3f} [{ratio.low:.3f}, {ratio.high:.3f}] | {pairs} |")


if __name__ == "__main__":
    main()
