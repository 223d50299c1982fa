"""Suites of published shapes, generated from suites/shapes/, whose README defines the mapping.

`python -m tests.published_shapes` writes them to suites/.
"""

import csv
from collections.abc import Iterator
from dataclasses import dataclass
from math import inf
from pathlib import Path
from typing import Any

from benchbench.launch.catalogue import workload_at
from benchbench.model.case import Dtype

SUITES = Path(__file__).parent.parent / "suites"
SHAPES = SUITES / "shapes"
FEATURES = 8  # of a recurrent layer's input: tensor cores want a multiple of 8
CELLS = {"vanilla": "rnn", "lstm": "lstm", "gru": "gru"}
SETS = {"train": "training_set", "server": "inference_server_set", "device": "inference_device_set"}
PHASES = {  # of DeepBench's training set; the others are forward only
    "gemm": ("",),
    "conv": ("", "_backward_data", "_backward_weights"),
    "rnn": ("", "_backward"),
}
KINDS = {"gemm": "matrix products", "conv": "convolutions", "rnn": "recurrent layers"}
VARIED = {"gemm": "m", "conv": "batch", "rnn": "batch"}  # the parameter in which shapes often differ

Row = dict[str, Any]
Params = dict[str, Any]


@dataclass(frozen=True)
class Published:
    name: str
    description: str
    kind: str
    rows: tuple[Row, ...]
    phases: tuple[str, ...]
    cpu_flops: float = inf  # of the largest case for CPUs

    def entries(self) -> dict[str, list[Params]]:
        """Workload → parameters of its cases, in the order of the rows."""
        cases_by_workload: dict[str, list[Params]] = {}
        for phase in self.phases:
            for row in self.rows:
                workload, params = CASES[self.kind](row)
                cases = cases_by_workload.setdefault(workload + phase, [])
                cases += [] if params in cases else [params]
        return cases_by_workload

    def on_cpu(self, workload: str, cases: list[Params]) -> list[Params]:
        """The cases that CPUs measure, too."""
        return [case for case in cases if flops(workload, case) <= self.cpu_flops]


def flops(workload: str, params: Params) -> int:
    return workload_at(workload, params).cost(Dtype.FLOAT32).flops


def published() -> Iterator[Published]:
    for kind in KINDS:
        rows = read(f"deepbench_{kind}.csv")
        for name, published in SETS.items():
            phases = PHASES[kind] if name == "train" else ("",)
            selected = tuple(row for row in rows if row["set"] == published)
            yield Published(f"deepbench-{kind}-{name}", described(kind, name), kind, selected, phases)
    models = "Matrix products of real models (pytorch/benchmark); on a CPU those of up to 0.08 GFLOP."
    rows = read("torchbench_gemm.csv")
    yield Published("gemm-models", models, "model_gemm", tuple(rows), ("",), cpu_flops=0.08e9)


def described(kind: str, name: str) -> str:
    phase = {"gemm": "", "conv": ", with each gradient", "rnn": ", forward and backward"}[kind]
    use = {"train": "training", "server": "inference on servers", "device": "inference on devices"}[name]
    return f"DeepBench's {KINDS[kind]} of {use}{phase if name == 'train' else ''}."


def read(name: str) -> list[Row]:
    with (SHAPES / name).open() as file:
        return [
            {key: int(value) if value.isdigit() else value for key, value in row.items()}
            for row in csv.DictReader(file)
        ]


def gemm(row: Row) -> tuple[str, Params]:
    flags = {"transpose_a": row["b_t"] == "true", "transpose_b": row["a_t"] == "true"}
    params = {"m": row["n"], "n": row["m"], "k": row["k"], **{name: True for name in flags if flags[name]}}
    return "gemm", params


def model_gemm(row: Row) -> tuple[str, Params]:
    return "gemm", {"m": row["M"], "n": row["N"], "k": row["K"]}


def conv(row: Row) -> tuple[str, Params]:
    assert row["stride_w"] == row["stride_h"]
    sides = {"kernel_w": (row["s_filter_w"], row["r_filter_h"]), "pad_w": (row["pad_w"], row["pad_h"])}
    params = {
        "batch": row["n"], "channels": row["c"], "height": row["h"], "width": row["w"], "filters": row["k"],
        "kernel": row["r_filter_h"], "stride": row["stride_h"], "padding": row["pad_h"],
        **{name: value for name, (value, height) in sides.items() if value != height},
    }  # fmt: skip
    return "conv2d", params


def rnn(row: Row) -> tuple[str, Params]:
    sizes = {"length": row["timesteps"], "batch": row["batch"], "hidden": row["hidden"]}
    return CELLS[row["cell"]], {**sizes, "inputs": FEATURES}


CASES = {"gemm": gemm, "model_gemm": model_gemm, "conv": conv, "rnn": rnn}


def toml(suite: Published) -> str:
    varied = VARIED.get(suite.kind, "m")
    source = "torchbench_gemm" if suite.kind == "model_gemm" else f"deepbench_{suite.kind}"
    head = (
        f'# Made of shapes/{source}.csv by tests/published_shapes.py.\ndescription = "{suite.description}"\n'
    )
    return head + "".join(entry(suite, work, cases, varied) for work, cases in suite.entries().items())


def grouped(cases: list[Params], varied: str) -> list[Params]:
    """Merge cases that differ only in `varied` into one table, with a list of its values."""
    tables: dict[tuple[Any, ...], Params] = {}
    for case in cases:
        key = tuple(item for item in case.items() if item[0] != varied)
        table = tables.setdefault(key, {**case, varied: []})
        table[varied] = [*table[varied], case[varied]]
    return [
        {**table, varied: values if len(values) > 1 else values[0]}
        for table in tables.values()
        for values in [table[varied]]
    ]


def entry(suite: Published, workload: str, cases: list[Params], varied: str) -> str:
    sizes = {"cpu": suite.on_cpu(workload, cases), "accelerator": cases}
    text = f'\n[[cases]]\nworkload = "{workload}"\n'
    for kind, selected in sizes.items():
        tables = [", ".join(map(assignment, table.items())) for table in grouped(selected, varied)]
        text += f"{kind} = [\n" + "".join(f"    {{ {table} }},\n" for table in tables) + "]\n"
    return text


def assignment(item: tuple[str, Any]) -> str:
    name, value = item
    return f"{name} = {str(value).lower()}"


def main() -> None:
    for suite in published():
        (SUITES / f"{suite.name}.toml").write_text(toml(suite))


if __name__ == "__main__":
    main()
