"""Is the headline what a bare timed loop gives? `python -m studies.headline [PAIRS]` prints ratios.

Not a test: it times, and a time is no reason to fail. Each pair is one process of accelbench and one bare
process, in turn; gemm 1024³, float32, CPU.
"""

import json
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

from tests.program import accelbench, rows

N = 1024
TIMED = """
import time
for _ in range(20): step()
times = []
end = time.perf_counter() + 2
while time.perf_counter() < end:
    start = time.perf_counter(); step(); times.append(time.perf_counter() - start)
print(sorted(times)[len(times) // 2])
"""
BARE = {
    "torch": f"import torch\na, b = torch.randn({N}, {N}), torch.randn({N}, {N})\nstep = lambda: a @ b",
    "jax": (
        f"import jax\na, b = (jax.random.normal(jax.random.key(i), ({N}, {N})) for i in (0, 1))\n"
        "f = jax.jit(lambda a, b: a @ b)\nstep = lambda: f(a, b).block_until_ready()"
    ),
    "tensorflow": (
        f"import tensorflow as tf\na, b = tf.random.normal(({N}, {N})), tf.random.normal(({N}, {N}))\n"
        "f = tf.function(lambda a, b: a @ b)\nstep = lambda: f(a, b)"
    ),
}


def bare(backend: str) -> float:
    program = BARE[backend] + TIMED
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    return float(done.stdout)


def ours(backend: str, folder: Path) -> float:
    sizes = [each for name in "mnk" for each in ("-p", f"{name}={N}")]
    accelbench(
        "run", "-b", backend, "-d", "cpu", "-w", "gemm", *sizes, "--quick", "--rounds", "1", cwd=folder
    )
    (row,) = rows(folder)
    latency: float = row["latency_s"]
    return latency


def main(pairs: int) -> None:
    for backend in BARE:
        with tempfile.TemporaryDirectory() as folder:
            found = [(ours(backend, Path(folder)), bare(backend)) for _ in range(pairs)]
        ratios = [a / b for a, b in found]
        mine, theirs = (statistics.median(side) for side in zip(*found, strict=True))
        line = {"backend": backend, "accelbench_s": mine, "bare_s": theirs, "pairs": pairs}
        print(json.dumps({**line, "median_ratio": statistics.median(ratios), "ratios": ratios}))


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 5)
