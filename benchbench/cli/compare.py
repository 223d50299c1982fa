"""`accelbench compare`."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from benchbench.cli.app import app
from benchbench.cli.formats import print_document
from benchbench.cli.gating import first_in_turn
from benchbench.cli.options import (
    AllocatorOption,
    BackendOption,
    CacheOption,
    DeviceOption,
    DtypeOption,
    IsolationOption,
    ModeOption,
    Names,
    ParamOption,
    PythonOption,
    QuickOption,
    ResultsOption,
    RigorousOption,
    RoundsOption,
    SeedOption,
    SuiteOption,
    ThreadsOption,
    TimeoutOption,
    WorkloadOption,
    argument,
    interpreters_given,
    option,
    split,
)
from benchbench.cli.outputs import OutOption, outputs, write_outputs
from benchbench.cli.request import requested
from benchbench.errors import UsageError, unknown
from benchbench.model.options import Allocator, Isolation

if TYPE_CHECKING:
    from benchbench.model.run import Run
    from benchbench.model.status import Verdict
    from benchbench.running.rounds import Request


class TextFormat(StrEnum):
    """What a comparison can be written as."""

    TERMINAL = "terminal"
    MARKDOWN = "markdown"
    CSV = "csv"
    JSON = "json"


class Order(StrEnum):
    """Of a comparison's cases."""

    RATIO = "ratio"
    CASE = "case"


@app.command("compare")
def compare_(
    ref: Annotated[str, typer.Argument(help="The run to compare with, or a side: see docs/comparing.md.")],
    new: Annotated[str | None, argument("The run to judge. [default: latest]")] = None,
    ab: Annotated[
        bool, typer.Option("--ab", help="REF and NEW are sides, to be measured in turn now.")
    ] = False,
    metric: Annotated[str, typer.Option("--metric", help="What to compare.")] = "latency_s",
    threshold: Annotated[str, typer.Option("--threshold", help="A smaller change is none.")] = "3%",
    only: Annotated[Names, option("--only", text="Only these verdicts: slower, faster, broken, …")] = None,
    sort: Annotated[Order, typer.Option("--sort", help="ratio: worst first.")] = Order.RATIO,
    format: Annotated[TextFormat, typer.Option("--format", help="What to write.")] = TextFormat.TERMINAL,
    out: OutOption = None,
    suite: SuiteOption = None,
    workload: WorkloadOption = None,
    backend: BackendOption = None,
    python: PythonOption = None,
    device: DeviceOption = None,
    dtype: DtypeOption = None,
    mode: ModeOption = None,
    cache: CacheOption = None,
    param: ParamOption = None,
    quick: QuickOption = False,
    rigorous: RigorousOption = False,
    rounds: RoundsOption = None,
    timeout: TimeoutOption = 300.0,
    threads: ThreadsOption = None,
    allocator: AllocatorOption = Allocator.STEADY,
    isolation: IsolationOption = Isolation.FORK,
    seed: SeedOption = None,
    results: ResultsOption = Path("results"),
) -> None:
    """Two runs side by side: slower, faster, the same, or cannot tell. Never fails a build.

    With --ab it measures two sides now, a process of each in turn, and compares pair by pair.

    Examples: accelbench compare latest~1 latest; accelbench compare --ab mode=eager mode=compile -w gemm
    """
    from benchbench.analyse.metrics import metric_named
    from benchbench.comparing.attribution import blamed
    from benchbench.comparing.verdicts import compare
    from benchbench.documents import comparison
    from benchbench.plan.thresholds import fraction
    from benchbench.store import runs

    wanted = [_verdict(name) for name in split(only)]
    chosen, smallest, files = metric_named(metric), fraction(threshold), outputs(out)
    folders: list[Path] = []
    if ab:
        request = requested(
            suite=suite,
            workload=workload,
            device=device,
            dtype=dtype,
            mode=mode,
            cache=cache,
            param=param,
            quick=quick,
            rigorous=rigorous,
            rounds=rounds,
            timeout=timeout,
            threads=threads,
            allocator=allocator,
            isolation=isolation,
            seed=seed,
        )
        before, after = _in_turn(ref, new, split(backend), interpreters_given(python), request, results)
    else:
        _only_with_ab(suite, workload, backend, python, device, dtype, mode, cache, param)
        _only_with_ab(quick, rigorous, rounds, threads, seed)
        folders = [runs.find(results, each) for each in (ref, new or "latest")]
        before, after = map(runs.read, folders)
    found = compare(before, after, chosen, smallest)
    if folders:
        found = blamed(found, *folders)
    shown = comparison.chosen(found, wanted, sort.value)
    print_document(comparison.comparison_document(found, shown), format)
    write_outputs(files, after, [comparison.case_verdict(verdict) for verdict in found.verdicts])


def _only_with_ab(*options: object) -> None:
    if any(options):
        raise UsageError("Stored runs are compared as they are.", "What to measure is for --ab.")


def _in_turn(
    ref: str,
    new: str | None,
    backends: tuple[str, ...],
    pythons: dict[str, str],
    request: Request,
    results: Path,
) -> tuple[Run, Run]:
    from benchbench.plan import variants

    if new is None:
        raise UsageError("--ab needs two sides.", "accelbench compare --ab mode=eager mode=compile")
    both = [variants.parse(each, pythons) for each in (ref, new)]
    return first_in_turn(both, backends, pythons, request, results)


def _verdict(name: str) -> Verdict:
    from benchbench.model.status import Verdict

    try:
        return Verdict(name)
    except ValueError:
        raise UsageError(f"No verdict named {name!r}.", unknown("verdicts", name, list(Verdict))) from None
