"""Bus bandwidth of torch's in-place all_reduce, by accelbench and by a loop written by hand.

    python -m studies.collective_bandwidth [PAIRS] > studies/output/collective_bandwidth.md

Both methods alternate, PAIRS times (8). The loop uses torch alone: two processes with gloo, each with one
core and one thread. Prints a row for each size.
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
os._exit(0)  # gloo prints an error if its threads outlive the interpreter
"""


def by_hand(size: str) -> float:
    """Return the median seconds of a step of the slower rank, in a loop by hand."""
    with tempfile.TemporaryDirectory() as folder:
        arguments = [str(SIZES[size]), str(STEPS[size]), str(WARM), f"{folder}/meeting"]
        ranks = [
            subprocess.Popen([sys.executable, "-c", LOOP, str(rank), *arguments], stdout=subprocess.PIPE)
            for rank in range(RANKS)
        ]
        times = [json.loads(rank.communicate()[0]) for rank in ranks]
    return median([max(step) for step in zip(*times, strict=True)])


def by_accelbench(size: str) -> float:
    """Return the median seconds of a step, measured by accelbench in one process per rank."""
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
    """Print a row for each size."""
    pairs = int(sys.argv[1]) if len(sys.argv) > 1 else 8
    print("| size | by hand | accelbench | accelbench / by hand [95 %] | pairs |")
    print("| --- | --- | --- | --- | --- |")
    for size, n in SIZES.items():
        hand, tool = zip(*[(by_hand(size), by_accelbench(size)) for _ in range(pairs)], strict=True)
        ratio = headline([hand_s / tool_s for hand_s, tool_s in zip(hand, tool, strict=True)])
        bytes_moved = 2 * (RANKS - 1) / RANKS * n * 4  # nccl-tests, doc/PERFORMANCE.md
        rates = [bytes_moved / exp(mean([log(seconds) for seconds in side])) / 1e9 for side in (hand, tool)]
        columns = (size, *(f"{rate:.3g} GB/s" for rate in rates))
        print("|", " | ".join(columns), f"| {ratio.mid:.3f} [{ratio.low:.3f}, {ratio.high:.3f}] | {pairs} |")


if __name__ == "__main__":
    main()
