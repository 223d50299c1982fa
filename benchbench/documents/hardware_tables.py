"""The tables of `hardware`: per work a line for each hardware; offers by price; the machines of each type."""

from __future__ import annotations

import math
from collections.abc import Sequence

from benchbench.analyse.rows import params_text
from benchbench.choosing.choice import Aim, Extent, WorkChoice
from benchbench.choosing.hardware import HardwareComparison
from benchbench.choosing.means import gap
from benchbench.choosing.pareto import Offer, price_gain, rate_bounds
from benchbench.choosing.ranking import Contender, Ranking
from benchbench.choosing.sessions import Hardware, MachineType
from benchbench.choosing.stragglers import LEAST_MACHINES, MachineScore, Siblings
from benchbench.documents.document import Cell, Column, Content, Layout, Number, Table, Tone, table
from benchbench.documents.run_works import CACHES
from benchbench.errors import UsageError, unknown
from benchbench.format import count_of
from benchbench.model.placement import Strategy
from benchbench.stats import Difference

UNITS = {Aim.FASTEST: "s", Aim.FRUGAL: "J"}  # what an item is counted by; money for the cheapest
NAMES = {Aim.FASTEST: "rate", Aim.CHEAPEST: "per cost", Aim.FRUGAL: "per joule"}
COLUMNS = (
    Column("best in", rank=1),
    Column("rate", rank=2),
    Column("vs fastest", rank=3),
    Column("± fastest", rank=3),
    Column("per cost", rank=4),
    Column("vs cheapest", rank=5),
    Column("± cheapest", rank=10),
    Column("per joule", rank=6),
    Column("vs most frugal", rank=7),
    Column("± most frugal", rank=11),
    Column("by", rank=8),
    Column("measured", rank=9),
)
OFFER_COLUMNS = ("", "an hour", "rate", "±", "items per cost", "verdict")
UNBEATEN = "nothing is cheaper and faster"


def choice_tables(found: HardwareComparison, names: Sequence[str] = ()) -> tuple[Table, ...]:
    """Of works that several did: a line for each hardware, the fastest first.

    `names`: the columns to show, as `vs-fastest`; by default those that are not empty in all tables. Raises
    UsageError.
    """
    currency = found.prices.currency if found.prices else ""
    shown = contested_works(found)
    tables = [_choice_rows(choice, currency) for choice in shown]
    chosen = _chosen(names) if names else _filled([row for rows in tables for row in rows])
    return tuple(
        Table(
            columns=(Column(""), *(COLUMNS[index] for index in chosen)),
            rows=tuple((row[0], *(row[1 + index] for index in chosen)) for row in rows),
            layout=Layout.ALTERNATIVES,
            title=work_title(choice),
            short_title=choice.work,
        )
        for choice, rows in zip(shown, tables, strict=True)
    )


def contested_works(found: HardwareComparison) -> list[WorkChoice]:
    """The works in which there is a choice."""
    return [choice for choice in found.choices if len(choice.rankings[Aim.FASTEST].contenders) > 1]


def column_names() -> list[str]:
    """As they are typed: `vs-fastest`."""
    return [column.name.replace("± ", "interval-").replace(" ", "-") for column in COLUMNS]


def _chosen(names: Sequence[str]) -> list[int]:
    known = column_names()
    for name in names:
        if name not in known:
            raise UsageError(f"No column named {name!r}.", unknown("columns", name, known))
    return [known.index(name) for name in names]


def _filled(rows: Sequence[Sequence[Cell]]) -> list[int]:
    return [index for index in range(len(COLUMNS)) if any(str(row[1 + index]) for row in rows)]


def work_title(choice: WorkChoice) -> str:
    """`gemm  m=64 n=64 k=64 · float32`."""
    case = choice.case
    head = f"{case.workload}  {params_text(case.params)}".rstrip()
    between = case.placement.strategy is Strategy.COLLECTIVE
    devices = f"{case.placement.devices} devices" if between else ""
    return " · ".join(filter(None, (head, case.dtype, CACHES.get(case.cache, ""), devices)))


def _choice_rows(choice: WorkChoice, currency: str) -> list[tuple[Cell, ...]]:
    return [
        _choice_row(choice, contender.hardware, currency)
        for contender in choice.rankings[Aim.FASTEST].contenders
    ]


def _choice_row(choice: WorkChoice, hardware: Hardware, currency: str) -> tuple[Cell, ...]:
    fastest = choice.rankings[Aim.FASTEST].of(hardware)
    cells: list[Cell] = [Cell((hardware.label,)), Cell((", ".join(_titles(choice, hardware)),))]
    for aim in (Aim.FASTEST, Aim.CHEAPEST, Aim.FRUGAL):
        ranking = choice.rankings[aim]
        contender = ranking.of(hardware)
        unit = f"{choice.item}/{UNITS.get(aim, currency)}"
        cells += [_rate(contender, fastest, unit), *_ratio(contender, ranking)]
    by = fastest.configuration if fastest else ""
    return (*cells, Cell((by,)), Cell((extent_text(choice.extents[hardware]),)))


def _titles(choice: WorkChoice, hardware: Hardware) -> list[str]:
    """`fastest`; `fastest?` of each that may be."""
    return [f"{aim}{mark}" for aim in Aim if (mark := title_mark(choice.rankings[aim], hardware)) is not None]


def title_mark(ranking: Ranking, hardware: Hardware) -> str | None:
    """Empty of the best, `?` of each that may be it, None of others, and where nothing is compared."""
    if len(ranking.contenders) < 2:
        return None
    first = ranking.contenders[0]
    if ranking.best:
        return "" if first.hardware == hardware else None
    own = ranking.of(hardware)
    return "?" if own and (own is first or own.tied) else None


def _rate(contender: Contender | None, fastest: Contender | None, unit: str) -> Cell:
    """Items for an amount; a footnote where it is by another configuration than the rate."""
    if contender is None:
        return Cell()
    rate, *_ = rate_bounds(contender.amount)
    other = fastest is not None and contender.configuration != fastest.configuration
    return Cell((Number(rate, unit),), footnotes=(f"by {contender.configuration}",) if other else ())


def _ratio(contender: Contender | None, ranking: Ranking) -> tuple[Cell, Cell]:
    """Of its rate to that of the best, and the wider side of its interval."""
    if contender is None or len(ranking.contenders) < 2:
        return Cell(), Cell()
    if contender.behind is None:
        tone = Tone.GOOD if ranking.best else Tone.PLAIN
        return Cell((Number(1.0, "×"),), tone, unsure=ranking.best is None), Cell()
    ratio = Number(math.exp(-contender.behind.mid), "×")
    return Cell((ratio,), unsure=contender.tied), Cell((around(contender.behind),))


def extent_text(extent: Extent) -> str:
    """`2 machines, 3 days, 9 processes`."""
    counts = {"machine": extent.machines, "day": extent.days, "process": extent.processes}
    return ", ".join(count_of(count, name) for name, count in counts.items())


def offer_table(found: HardwareComparison) -> tuple[Table, ...]:
    """Rate against price over the works that all priced hardware did; nothing where there is no such work."""
    if len(found.overall) < 2:
        return ()
    works = f"{found.common} {'work' if found.common == 1 else 'works'} that all of it did"
    rows = [_offer_row(offer, found) for offer in found.overall]
    columns = [Column(name) for name in OFFER_COLUMNS]
    return (table(rows, columns, title=f"Rate against price, over {works}"),)


def _offer_row(offer: Offer, found: HardwareComparison) -> dict[str, Content]:
    best = min(found.overall, key=lambda each: each.amount.mid)
    verdict = f"{offer.dominated_by.label} is no dearer and no slower" if offer.dominated_by else UNBEATEN
    return {
        "": offer.hardware.label,
        "an hour": Number(offer.price, found.prices.currency if found.prices else ""),
        "rate": Number(math.exp(-gap(best.amount, offer.amount).mid), "×"),
        "±": None if offer is best else around(gap(best.amount, offer.amount)),
        "items per cost": Number(price_gain(offer, found.overall), "×"),
        "verdict": Cell((verdict,), Tone.PLAIN if offer.dominated_by else Tone.GOOD, unsure=offer.unsure),
    }


def around(behind: Difference) -> Number:
    """The wider side of a ratio's 95 % interval, as a fraction of it."""
    return Number(math.expm1(behind.half_width()), "±")


def sibling_tables(siblings: Sequence[Siblings]) -> tuple[Table, ...]:
    """A table for each type of which there are several machines, the slowest machine first."""
    return tuple(
        table(
            [_score_row(score) for score in each.scores],
            title=f"Machines of one type: {type_label(each.type)}",
            notes=_few(each),
        )
        for each in siblings
    )


def type_label(kind: MachineType) -> str:
    """`NVIDIA H100 PCIe in AMD EPYC 7B13`."""
    inside = f" in {kind.cpu}" if not kind.hardware.threads else ""
    return f"{kind.hardware.label}{inside}"


def _few(siblings: Siblings) -> list[str]:
    count = len(siblings.scores)
    return [f"cannot tell which is slow: {count} machines"] if count < LEAST_MACHINES else []


def _score_row(score: MachineScore) -> dict[str, Content]:
    return {
        "machine": score.machine,
        "time vs median": Number(score.ratio, "×"),
        "±": None if score.high is None else Number(score.high / score.ratio - 1, "±"),
        "cases": score.cases,
        "days": score.days,
        "verdict": Cell(("slow",), Tone.BAD) if score.slow else Cell((SLOWNESS[score.slow],)),
    }


SLOWNESS = {True: "slow", False: "as the others", None: "cannot tell"}
