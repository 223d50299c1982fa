"""Durations of torch's workloads on images with channels last, relative to channels first.

    OMP_WAIT_POLICY=passive python -m studies.torch_layouts THREADS [NAME …]

Builds each workload in both layouts and times them in turn. With a ratio below 1, channels last is faster.
The passive policy keeps waiting threads out of the CPU time. In one thread, torch computes 1 × 1 convolutions
without oneDNN. studies/output/torch_layouts.md has results for one and two threads.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

from benchbench.backends.base import Session
from benchbench.backends.torch import Torch
from benchbench.model.case import Dtype
from benchbench.workloads.base import Draw, Program, Workload
from studies.alternating import alternated, ratio
from tests.tiny import EVERY

SIZES: dict[str, dict[str, Any]] = {
    "conv2d": {},
    "conv2d_backward": {},
    "depthwise_conv2d": {},
    "conv_transpose2d": {},
    "conv3d": {},
    "batch_norm": {},
    "max_pool2d": {"batch": 2},
    "convnet_infer": {"batch": 8},
    "convnet_train": {"batch": 32},
    "resnet50_infer": {"batch": 1},
    "resnet50_train": {"batch": 1},
    "vgg16_train": {"batch": 1, "image": 64},
    "unet_train": {"batch": 1, "image": 64, "width": 16},
    "dcgan_train": {"batch": 4, "width": 32},
    "ssd_head_infer": {"batch": 1},
    "r3d18_train": {"batch": 1, "frames": 8, "image": 64, "width": 32},
}
DTYPES = (Dtype.FLOAT32, Dtype.BFLOAT16)
ROUNDS = 9


def program_step(work: Workload, dtype: Dtype, threads: int, *, channels_last: bool) -> Callable[[], object]:
    """Return a step of the workload in one layout."""
    session: Session = Torch().open("cpu", dtype, "eager", threads)
    session.channels_last = channels_last
    program: Program = Torch().program(session, work, work.arrays(Draw(dtype)))
    return lambda: program.step(*program.inputs)


def row(name: str, dtype: Dtype, threads: int) -> str:
    """Return a row of the table."""
    work = EVERY[name](**SIZES[name])
    programs = {str(last): program_step(work, dtype, threads, channels_last=last) for last in (False, True)}
    blocks = alternated(programs, ROUNDS)
    first, last = blocks["False"], blocks["True"]
    wall = ratio([block.wall_s for block in last], [block.wall_s for block in first])
    cpu = ratio([block.cpu_s for block in last], [block.cpu_s for block in first])
    cells = " | ".join(f"{estimate:.2f} ± {100 * half:.0f} %" for estimate, half in (wall, cpu))
    return f"| {name} | {dtype} | {cells} |"


def main() -> None:
    """Print a row for each workload and dtype."""
    import torch

    threads, *names = int(sys.argv[1]), *sys.argv[2:]
    print(f"torch {torch.__version__}, {threads} threads: channels last / first, {ROUNDS} rounds in turn\n")
    print("| workload | dtype | ratio | CPU ratio |\n| --- | --- | ---: | ---: |")
    for name in names or SIZES:
        for dtype in DTYPES:
            print(row(name, dtype, threads), flush=True)


if __name__ == "__main__":
    main()
