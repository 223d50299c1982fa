"""Tokens per second of torch's eager decode steps, by accelbench and by a loop of transformers alone.

    python -m studies.decode_by_hand [RUNS] > studies/output/decode_by_hand.md

RUNS is the number of pairs (20). The two methods alternate, in fresh processes with the same threads; each is
first in every second pair. The loop by hand fills a `DynamicCache` with a prompt. It then calls the model for
one token and crops the cache again. Both methods report the median step. First make sure with
`accelbench doctor` that no other programs run.
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from tempfile import TemporaryDirectory

from benchbench.machine.environment import default_threads, machine
from benchbench.stats import headline

CONTEXT = 128  # tokens in the cache
CONFIG = {
    "model_type": "llama",
    "architectures": ["LlamaForCausalLM"],
    "vocab_size": 8192,
    "hidden_size": 512,
    "intermediate_size": 1536,
    "num_hidden_layers": 8,
    "num_attention_heads": 8,
    "num_key_value_heads": 4,
    "max_position_embeddings": 512,
}
BY_HAND = """
import json, sys, time, statistics, torch, transformers
threads, context, fields = int(sys.argv[1]), int(sys.argv[2]), json.loads(sys.argv[3])
torch.set_num_threads(threads)
torch.manual_seed(0)
config = transformers.AutoConfig.for_model(**fields)
model = transformers.AutoModelForCausalLM.from_config(config).eval()
cache = transformers.DynamicCache(config=config)
seconds = []
with torch.no_grad():
    model(torch.randint(0, config.vocab_size, (1, context)), past_key_values=cache, use_cache=True)
    token = torch.randint(0, config.vocab_size, (1, 1))
    end = time.perf_counter() + 4.0
    while time.perf_counter() < end:
        start = time.perf_counter()
        model(token, past_key_values=cache, use_cache=True)
        seconds.append(time.perf_counter() - start)
        cache.crop(-1)
print(statistics.median(seconds[len(seconds) // 4 :]))
"""


def seconds_by_hand(threads: int) -> float:
    """Median seconds of a step in a fresh process, without the first quarter of its steps."""
    command = [sys.executable, "-W", "ignore", "-c", BY_HAND, str(threads), str(CONTEXT), json.dumps(CONFIG)]
    return float(subprocess.run(command, capture_output=True, text=True, check=True).stdout.split()[-1])


def seconds_of_accelbench(folder: str, threads: int) -> float:
    """Latency of the decode step in a run of three heats."""
    selection = ("-w", "*_decode", "-b", "torch", "--mode", "eager", "-p", f"context={CONTEXT}")
    _accelbench(folder, "run", "small.json", *selection, "--threads", str(threads), "--brief", "--heats", "3")
    report = json.loads(_accelbench(folder, "report", "latest", "--format", "json"))
    (row,) = (row for row in report["rows"] if row["status"] == "ok")
    return float(row["latency_s"])


def _accelbench(folder: str, *arguments: str) -> str:
    command = [sys.executable, "-m", "benchbench.cli", *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=True, cwd=folder).stdout


def main(runs: int) -> None:
    """Print the tokens per second of each run, and the ratio of the two methods with its interval."""
    threads, here = default_threads(), machine()
    print(f"{here.cpu}, {threads} threads, {runs} runs, `python -m studies.decode_by_hand {runs}`\n")
    print("| run | accelbench, token/s | by hand, token/s | ratio |\n| --: | --: | --: | --: |")
    ratios: list[float] = []
    with TemporaryDirectory() as folder:
        Path(folder, "small.json").write_text(json.dumps(CONFIG))
        for number in range(runs):
            if number % 2:
                tool_s = seconds_of_accelbench(folder, threads)
                hand_s = seconds_by_hand(threads)
            else:
                hand_s = seconds_by_hand(threads)
                tool_s = seconds_of_accelbench(folder, threads)
            ratios.append(hand_s / tool_s)
            print(f"| {number + 1} | {1 / tool_s:.4g} | {1 / hand_s:.4g} | {ratios[-1]:.3f} |", flush=True)
    interval = headline(ratios)
    print(f"\nTokens per second of accelbench over those by hand: {interval.mid:.3f}")
    if interval.low is not None and interval.high is not None:
        print(f"95 % interval: {interval.low:.3f} to {interval.high:.3f}")
    print(f"Single runs: {min(ratios):.3f} to {max(ratios):.3f}")


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 20)
