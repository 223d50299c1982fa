"""Comparison of the winner that accelbench names with the winner of a loop written by hand.

    python -m studies.by_hand [RUNS] > studies/output/by_hand.md

RUNS is the number of comparisons (20). In each, a loop by hand measures one engine after another, each in a
fresh process by `timeit`. It takes the smallest of five repeats of at least 0.2 s, after a warm-up. Then
`accelbench run` measures the same product. The truth is the geometric mean of all ratios that accelbench
measured in heats. First make sure with `accelbench doctor` that no other programs run.

By hand, OpenVINO reads and writes bound tensors. With `request.infer([a, b])`, which copies them, the loop
named ONNX Runtime in 10 of 10 runs.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections import Counter
from math import exp, log
from statistics import mean
from tempfile import TemporaryDirectory
from time import perf_counter

from benchbench.machine.environment import machine

SIZE = 512
TIE = 1.02  # engines within this ratio of the fastest are correct winners
SETUP = f"""
import timeit, numpy as np
a, b = (np.random.default_rng(seed).standard_normal(({SIZE}, {SIZE}), dtype="float32") for seed in (0, 1))
"""
ONNX = f"""
import onnx
from onnx import TensorProto, helper
values = [helper.make_tensor_value_info(name, TensorProto.FLOAT, [{SIZE}, {SIZE}]) for name in "aby"]
node = helper.make_node("MatMul", ["a", "b"], ["y"])
graph = helper.make_graph([node], "product", values[:2], values[2:])
model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
"""
ENGINES = {
    "torch": "import torch; a, b = torch.from_numpy(a), torch.from_numpy(b); step = lambda: a @ b",
    "jax": "import jax; a, b = jax.device_put(a), jax.device_put(b); f = jax.jit(lambda a, b: a @ b)\n"
    "step = lambda: f(a, b).block_until_ready()",
    "tensorflow": "import tensorflow as tf; a, b = tf.constant(a), tf.constant(b)\n"
    "f = tf.function(lambda a, b: a @ b); step = lambda: f(a, b)",
    "onnxruntime": f"{ONNX}import onnxruntime\n"
    "session = onnxruntime.InferenceSession(model.SerializeToString())\n"
    "step = lambda: session.run(None, {'a': a, 'b': b})",
    "openvino": f"{ONNX}import openvino; core = openvino.Core()\n"
    "compiled = core.compile_model(core.read_model(model.SerializeToString()), 'CPU',"
    " {'INFERENCE_PRECISION_HINT': 'f32'}); request = compiled.create_infer_request()\n"
    "request.set_input_tensor(0, openvino.Tensor(a)); request.set_input_tensor(1, openvino.Tensor(b))\n"
    "step = lambda: request.infer(share_inputs=True, share_outputs=True)",
}
TIMING = """
timer = timeit.Timer(step)
count, _ = timer.autorange()
print(min(timer.repeat(5, count)) / count)
"""


def seconds_by_hand(engine: str) -> float:
    """Return the seconds of a step, measured by hand in a fresh process."""
    process = subprocess.run(
        [sys.executable, "-c", SETUP + ENGINES[engine] + TIMING], capture_output=True, text=True, check=True
    )
    return float(process.stdout.split()[-1])


def ratios_of_accelbench(folder: str) -> tuple[str, dict[str, float]]:
    """Return the name of the winner (empty without one) and each engine's time relative to the fastest."""
    backends = ",".join(ENGINES)
    size = f"m=n=k={SIZE}"
    _accelbench("run", "-w", "gemm", "-p", size, "-b", backends, "--quick", "--results", folder)
    report = json.loads(_accelbench("report", "latest", "--format", "json", "--results", folder))
    (work,) = report["works"]
    rows = [row for row in report["rows"] if row["latency_s"]]
    fastest = min(row["latency_s"] for row in rows)
    ratios = {row["backend"]: row["latency_s"] / fastest for row in rows}
    return (work["winner"] or "").split()[0] if work["winner"] else "", ratios


def _accelbench(*arguments: str) -> str:
    command = [sys.executable, "-m", "benchbench.cli", *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout


def main(runs: int) -> None:
    """Print both methods' winners and times."""
    hand_winners, tool_winners = Counter[str](), Counter[str]()
    hand_s, tool_s = [], []
    logs: dict[str, list[float]] = {name: [] for name in ENGINES}
    with TemporaryDirectory() as folder:
        for _ in range(runs):
            start = perf_counter()
            seconds = {name: seconds_by_hand(name) for name in ENGINES}
            hand_winners[min(seconds, key=lambda name: seconds[name])] += 1
            hand_s.append(perf_counter() - start)
            start = perf_counter()
            winner, ratios = ratios_of_accelbench(folder)
            tool_winners[winner] += 1
            tool_s.append(perf_counter() - start)
            for name, ratio in ratios.items():
                logs[name].append(log(ratio))
    means = {name: mean(values) for name, values in logs.items()}
    truth = {name: exp(value - min(means.values())) for name, value in means.items()}
    right = {name for name, ratio in truth.items() if ratio <= TIE}
    here = machine()
    print(f"{here.cpu}, {here.threads} threads, {runs} runs, `python -m studies.by_hand {runs}`\n")
    print(
        "Ratios by all heats: "
        + ", ".join(f"{name} {truth[name]:.3f}" for name in sorted(truth, key=lambda name: truth[name]))
    )
    print("\n| | seconds a run | right | wrong | no winner | winners |")
    print("| --- | --: | --: | --: | --: | --- |")
    for label, winners, spent_s in (
        ("by hand", hand_winners, hand_s),
        ("accelbench", tool_winners, tool_s),
    ):
        count_right = sum(count for name, count in winners.items() if name in right)
        none = winners[""]
        names = ", ".join(f"{name} {count}" for name, count in winners.most_common() if name)
        wrong = runs - count_right - none
        print(f"| {label} | {mean(spent_s):.0f} | {count_right} | {wrong} | {none} | {names} |")


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 20)
