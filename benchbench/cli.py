"""Parse, call one function, print, exit: the only module that prints or exits."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from enum import StrEnum
from pathlib import Path
from time import monotonic
from typing import TYPE_CHECKING, Annotated, Any

import typer

from benchbench import __version__
from benchbench.errors import AccelbenchError, NothingToMeasure, UsageError, unknown
from benchbench.model import Allocator, Isolation

if TYPE_CHECKING:
    from types import FrameType

    from benchbench.exporters.base import Exporter
    from benchbench.fleet import Fleet
    from benchbench.matching import Judgement
    from benchbench.model import Dtype, Policy, Record, Run, RunInfo
    from benchbench.suite import Suite

app = typer.Typer(
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)


class Listing(StrEnum):
    """What `list` can list."""

    WORKLOADS = "workloads"
    BACKENDS = "backends"
    SUITES = "suites"
    RUNS = "runs"


class DataFormat(StrEnum):
    """For people, or for programs."""

    TERMINAL = "terminal"
    JSON = "json"


class ReportFormat(StrEnum):
    """Each has a file in exporters/."""

    TERMINAL = "terminal"
    MARKDOWN = "markdown"
    CSV = "csv"
    JSON = "json"
    PNG = "png"
    SVG = "svg"


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


class Interrupted(BaseException):
    """A signal asked to stop; what is finished is kept."""

    def __init__(self, number: int) -> None:
        super().__init__(number)
        self.number = number


def _option(*names: str, text: str, **more: Any) -> Any:
    return typer.Option(*names, help=text, **more)


Names = list[str] | None
SuiteOption = Annotated[Names, _option("--suite", "-s", text="A suite's name or TOML file. [default: quick]")]
WorkloadOption = Annotated[Names, _option("--workload", "-w", text="Only these workloads.")]
BackendOption = Annotated[Names, _option("--backend", "-b", text="Only these backends. [default: all found]")]
DeviceOption = Annotated[
    Names, _option("--device", "-d", text="cpu, gpu, tpu, accelerator, or a name such as cuda:1.")
]
DtypeOption = Annotated[Names, _option("--dtype", text="float32, tf32, bfloat16, float16.")]
ModeOption = Annotated[Names, _option("--mode", text="eager, compile, function, xla, jit.")]
ParamOption = Annotated[Names, _option("--param", "-p", text="Override a size: batch=32,64.")]
QuickOption = Annotated[bool, _option("--quick", text="3 rounds of about a second: a first look.")]
RigorousOption = Annotated[bool, _option("--rigorous", text="10 rounds, each to half a percent.")]
RoundsOption = Annotated[int | None, _option("--rounds", text="Processes per case.", min=1)]
TimeoutOption = Annotated[float, _option("--timeout", text="Seconds a process may take.", min=1)]
ThreadsOption = Annotated[int | None, _option("--threads", text="CPU threads. [default: all usable]", min=1)]
AllocatorOption = Annotated[
    Allocator, _option("--allocator", text="steady keeps freed memory, as a long-running process would.")
]
IsolationOption = Annotated[Isolation, _option("--isolation", text="How a case gets its process.")]
SeedOption = Annotated[int | None, _option("--seed", text="Of the order of cases. [default: random, stored]")]
ResultsOption = Annotated[
    Path, _option("--results", text="The folder that keeps runs.", envvar="ACCELBENCH_RESULTS")
]
FormatOption = Annotated[DataFormat, _option("--format", text="For people, or for programs.")]


def _print_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"accelbench {__version__}")
        raise typer.Exit


@app.callback()
def root(
    version: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Print the version.")
    ] = False,
) -> None:
    """Which framework, device and setting runs my work fastest, and by how much?"""


@app.command()
def run(
    suite: SuiteOption = None,
    workload: WorkloadOption = None,
    backend: BackendOption = None,
    device: DeviceOption = None,
    dtype: DtypeOption = None,
    mode: ModeOption = None,
    param: ParamOption = None,
    quick: QuickOption = False,
    rigorous: RigorousOption = False,
    rounds: RoundsOption = None,
    timeout: TimeoutOption = 300.0,
    threads: ThreadsOption = None,
    allocator: AllocatorOption = Allocator.STEADY,
    isolation: IsolationOption = Isolation.FORK,
    seed: SeedOption = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Show what would be measured.")] = False,
    allow_failed: Annotated[
        bool, typer.Option("--allow-failed", help="Exit 0 though a case failed.")
    ] = False,
    results: ResultsOption = Path("results"),
    format: FormatOption = DataFormat.TERMINAL,
) -> None:
    """Measure a suite: every case on every backend found, verified, then timed.

    Examples: accelbench run --suite conv; accelbench run -b torch,jax -w gemm -p m=512,1024 --quick
    """
    from benchbench import describe, store
    from benchbench import suite as suites
    from benchbench.environment import usable_threads
    from benchbench.fleet import Fleet
    from benchbench.model import Settings
    from benchbench.plan import Selection, parse_params, select, targets
    from benchbench.rounds import Request, prepare

    selection = Selection(
        workloads=_split(workload),
        devices=_split(device),
        dtypes=tuple(_dtype(name) for name in _split(dtype)),
        modes=_split(mode),
        params=parse_params(param or []),
    )
    chosen = [suites.load(name) for name in _split(suite) or ("quick",)]
    request = Request(
        entries=tuple(select(chosen, selection)),
        selection=selection,
        policy=_policy(chosen, quick, rigorous, rounds),
        settings=Settings(
            threads=threads or usable_threads(),
            allocator=allocator,
            isolation=isolation,
            timeout_s=timeout,
        ),
        seed=seed,
        command=tuple(sys.argv[1:]),
    )
    wanted = targets(_split(backend), sys.executable)
    with _signals(), Fleet(wanted, request.settings, sys.executable) as fleet:
        typer.echo("looking for backends and devices", err=True)
        info = prepare(fleet, request)
        if dry_run:
            _print_plan(info, format)
            return
        records = _measure(fleet, info, results)
    if format is DataFormat.JSON:
        _report(store.read(store.find(results, info.id)), ReportFormat.JSON, None, results)
    raise typer.Exit(4 if describe.failing(records) and not allow_failed else 0)


def _measure(fleet: Fleet, info: RunInfo, results: Path) -> list[Record]:
    """Each record is on disk before the next case starts, and shown."""
    from benchbench import describe, rounds, store

    typer.echo(describe.left_out(info.left_out), err=True, nl=False)
    if not info.plan:
        raise NothingToMeasure("No case of the selection can run here.", "accelbench devices tells why.")
    records: list[Record] = []
    begin = monotonic()
    with store.create(results, info) as writer:
        try:
            with _screen(info) as screen:
                for record in rounds.measure(fleet, info, screen.announce):
                    writer.append(record)
                    records.append(record)
                    screen.show(record)
        finally:
            typer.echo(describe.summary(records, info, monotonic() - begin), err=True, nl=False)
            typer.echo(f"time: {describe.time_split(records, fleet.stages_s)}", err=True)
            typer.echo(f"next: accelbench report {info.id}", err=True)
    return records


class _Lines:
    """A line per record: what a log can hold."""

    def announce(self, text: str) -> None:
        """Only what a case gives is worth a line in a log."""

    def show(self, record: Record) -> None:
        """The record's line."""
        from benchbench.progress import line

        typer.echo(line(record), err=True)


class _Bar(_Lines):
    """On a terminal: what is under way and how long it will take, below the lines."""

    def __init__(self, info: RunInfo) -> None:
        from rich.console import Console
        from rich.progress import BarColumn, Progress, TextColumn

        from benchbench.describe import forecast

        columns = (BarColumn(20), TextColumn("{task.fields[left]} left  {task.description}", markup=False))
        self.progress = Progress(*columns, console=Console(stderr=True), transient=True)
        self._forecast = forecast(info)
        total = len(info.plan) * info.policy.rounds
        self._task = self.progress.add_task("", total=total, left=self._forecast.left)

    def announce(self, text: str) -> None:
        """What is under way."""
        self.progress.update(self._task, description=text, left=self._forecast.left)

    def show(self, record: Record) -> None:
        """Above the bar."""
        from rich.text import Text

        from benchbench.progress import line

        self._forecast.add(record)
        self.progress.console.print(Text(line(record)), highlight=False)
        self.progress.update(self._task, completed=self._forecast.done, left=self._forecast.left)


@contextmanager
def _screen(info: RunInfo) -> Iterator[_Lines]:
    if not sys.stderr.isatty():
        yield _Lines()
        return
    bar = _Bar(info)
    with bar.progress:
        yield bar


def _print_plan(info: RunInfo, format: DataFormat) -> None:
    from benchbench import describe

    if format is DataFormat.JSON:
        _print_json(describe.plan_fields(info))
    else:
        typer.echo(describe.plan(info, _width()), nl=False)


@app.command()
def report(
    run: Annotated[
        str, typer.Argument(help="An id, the start of one, latest, latest~1, or a run's folder.")
    ] = "latest",
    format: Annotated[ReportFormat, typer.Option("--format", help="What to write.")] = ReportFormat.TERMINAL,
    output: Annotated[
        Path | None,
        typer.Option("--output", "-o", help="File, or folder for plots. [default: screen; the run]"),
    ] = None,
    results: ResultsOption = Path("results"),
) -> None:
    """Tables and plots of a run. With the terminal's table come the plots, as PNG files.

    Examples: accelbench report; accelbench report latest~1 --format markdown
    """
    from benchbench import store

    path = store.find(results, run)
    _report(store.read(path), format, output, path / "plots")


def _report(run: Run, format: ReportFormat, output: Path | None, plots: Path) -> None:
    from benchbench import store
    from benchbench.report import report as tabulated

    found = tabulated(run)
    if format in (ReportFormat.PNG, ReportFormat.SVG):
        _save(_exporter(format).export(found), output or plots)
        return
    text = b"".join(_exporter(format).export(found).values())
    if output:
        store.save(output, text)
        typer.echo(f"wrote {output}", err=True)
        return
    typer.echo(text.decode(), nl=False)
    if format is ReportFormat.TERMINAL:
        _save(_exporter(ReportFormat.PNG).export(found), plots)


def _exporter(format: ReportFormat) -> Exporter:
    from benchbench import folder
    from benchbench.exporters.base import Exporter

    if format is ReportFormat.TERMINAL:
        from benchbench.exporters.terminal import Terminal

        return Terminal(_width() or 100, color=_color())
    return folder.load("benchbench.exporters", format.value, Exporter)()  # type: ignore[type-abstract]


def _save(files: Mapping[str, bytes], place: Path) -> None:
    from benchbench import store

    for name, content in files.items():
        store.save(place / name, content)
        typer.echo(f"wrote {place / name}", err=True)


@app.command()
def history(
    case: Annotated[
        list[str] | None, typer.Argument(help="Parts of case ids, or patterns. [default: all]")
    ] = None,
    metric: Annotated[
        str, typer.Option("--metric", help="A number of the rows, such as cold_s.")
    ] = "latency_s",
    threshold: Annotated[
        float, typer.Option("--threshold", min=0, help="The smallest change to tell, as a fraction.")
    ] = 0.03,
    results: ResultsOption = Path("results"),
    format: FormatOption = DataFormat.TERMINAL,
) -> None:
    """Every stored run over time, and the runs between which a case became slower or faster.

    Examples: accelbench history; accelbench history gemm --metric peak_host_bytes --format json
    """
    from benchbench import store, trend

    wanted = trend.metric_named(metric)
    runs = [store.read(store.find(results, name)) for name in store.runs(results) or ("latest",)]
    found = trend.trends(runs, wanted, case or (), threshold)
    if format is DataFormat.JSON:
        _print_json(trend.fields(found))
    else:
        typer.echo(trend.text(found), nl=False)


@app.command("list")
def list_(
    what: Annotated[Listing, typer.Argument(help="What to list.")],
    results: ResultsOption = Path("results"),
    format: FormatOption = DataFormat.TERMINAL,
) -> None:
    """What there is to run, and what has been run.

    Examples: accelbench list workloads; accelbench list runs --format json
    """
    from benchbench import describe

    rows = describe.runs(results) if what is Listing.RUNS else describe.LISTS[what]()
    _print_rows(rows, format)


@app.command()
def devices(backend: BackendOption = None, format: FormatOption = DataFormat.TERMINAL) -> None:
    """Every backend with its version and devices, and why one cannot be used.

    Examples: accelbench devices; accelbench devices -b torch --format json
    """
    from benchbench import describe
    from benchbench.environment import usable_threads
    from benchbench.fleet import Fleet
    from benchbench.model import Settings
    from benchbench.plan import targets

    settings = Settings(threads=usable_threads())
    with _signals(), Fleet(targets(_split(backend), sys.executable), settings, sys.executable) as fleet:
        typer.echo("importing every backend", err=True)
        rows = describe.devices(fleet.probe())
    _print_rows(rows, format)


@app.command("compare")
def compare_(
    ref: Annotated[str, typer.Argument(help="The run to compare with: an id, latest~1, a run's folder.")],
    new: Annotated[str, typer.Argument(help="The run to judge.")] = "latest",
    metric: Annotated[str, typer.Option("--metric", help="What to compare.")] = "latency_s",
    threshold: Annotated[str, typer.Option("--threshold", help="A smaller change is none.")] = "3%",
    only: Annotated[Names, _option("--only", text="Only these verdicts: slower, faster, broken, …")] = None,
    sort: Annotated[Order, typer.Option("--sort", help="ratio: worst first.")] = Order.RATIO,
    format: Annotated[TextFormat, typer.Option("--format", help="What to write.")] = TextFormat.TERMINAL,
    results: ResultsOption = Path("results"),
) -> None:
    """Two runs side by side: slower, faster, the same, or cannot tell. Never fails a build.

    Examples: accelbench compare latest~1 latest; accelbench compare latest~1 --only slower,broken
    """
    from benchbench import comparison, store
    from benchbench.compare import compare
    from benchbench.trend import metric_named

    wanted = [_judgement(name) for name in _split(only)]
    chosen, smallest = metric_named(metric), _fraction(threshold)
    before, after = (store.read(store.find(results, selector)) for selector in (ref, new))
    found = compare(before, after, chosen, smallest)
    shown = comparison.chosen(found, wanted, sort.value)
    typer.echo(comparison.FORMATS[format](found, shown), nl=False)


def _judgement(name: str) -> Judgement:
    from benchbench.matching import Judgement

    try:
        return Judgement(name)
    except ValueError:
        raise UsageError(f"No verdict named {name!r}.", unknown("verdicts", name, list(Judgement))) from None


def _fraction(text: str) -> float:
    """`3%` and `0.03` → 0.03."""
    number = text.strip()
    try:
        found = float(number.removesuffix("%")) / (100 if number.endswith("%") else 1)
    except ValueError:
        found = 0.0
    if not 0 < found < 1:
        raise UsageError(f"{text!r} is not between 0 % and 100 %.", "Write three per cent as 3% or 0.03.")
    return found


def _print_rows(rows: Sequence[Mapping[str, str]], format: DataFormat) -> None:
    from benchbench import describe

    if format is DataFormat.JSON:
        _print_json(rows)
    else:
        typer.echo(describe.table(rows, _width()), nl=False)


def _print_json(value: object) -> None:
    import json

    typer.echo(json.dumps(value, indent=2, ensure_ascii=False))


def _width() -> int | None:
    """Of the terminal; None where the output is a file or a pipe, which need no wrapping."""
    from shutil import get_terminal_size

    return get_terminal_size().columns if sys.stdout.isatty() else None


def _color() -> bool:
    """NO_COLOR and FORCE_COLOR win over what the output is."""
    if os.environ.get("NO_COLOR"):
        return False
    return bool(os.environ.get("FORCE_COLOR")) or sys.stdout.isatty()


def _split(values: Names) -> tuple[str, ...]:
    """`["torch,jax", "fake"]` → ("torch", "jax", "fake")."""
    return tuple(name.strip() for value in values or () for name in value.split(",") if name.strip())


def _dtype(name: str) -> Dtype:
    from benchbench.model import Dtype

    try:
        return Dtype(name)
    except ValueError:
        raise UsageError(
            f"No dtype named {name!r}.", unknown("dtypes", name, [each.value for each in Dtype])
        ) from None


def _policy(suites: Sequence[Suite], quick: bool, rigorous: bool, rounds: int | None) -> Policy:
    from dataclasses import replace

    from benchbench.measure import POLICIES

    if quick and rigorous:
        raise UsageError("--quick and --rigorous exclude each other.", "Give one of them.")
    asked = "quick" if quick else "rigorous" if rigorous else suites[0].policy
    policy = POLICIES[asked]
    return replace(policy, rounds=rounds) if rounds else policy


@contextmanager
def _signals() -> Iterator[None]:
    """Turn the signals that ask to stop into Interrupted, also where a shell had them ignored."""
    stopping = [signal.SIGINT, signal.SIGTERM, signal.SIGHUP]
    before = [signal.signal(each, _interrupt) for each in stopping]
    try:
        yield
    finally:
        for each, handler in zip(stopping, before, strict=True):
            signal.signal(each, handler)


def _interrupt(number: int, _frame: FrameType | None) -> None:
    raise Interrupted(number)


def main() -> None:
    """The program: expected errors become a message, a hint and their exit code (docs/cli.md)."""
    try:
        app()
    except AccelbenchError as error:
        typer.echo(f"error: {error}", err=True)
        if error.hint:
            typer.echo(f"hint: {error.hint}", err=True)
        sys.exit(error.exit_code)
    except Interrupted as stop:
        typer.echo("interrupted: every finished case is kept", err=True)
        sys.exit(128 + stop.number)
    except Exception as error:  # noqa: BLE001 - the last handler: a fault of ours, told apart from a regression
        typer.echo(f"internal error: {type(error).__name__}; details in {_saved_traceback()}", err=True)
        sys.exit(70)


def _saved_traceback() -> str:
    import tempfile
    import traceback

    with tempfile.NamedTemporaryFile("w", prefix="accelbench-error-", suffix=".txt", delete=False) as file:
        traceback.print_exc(file=file)
    return file.name


if __name__ == "__main__":
    main()
