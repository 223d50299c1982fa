"""Rate against price as a plot: over all works together, then work by work."""

from __future__ import annotations

from collections.abc import Sequence

from benchbench.choosing.hardware import HardwareComparison
from benchbench.choosing.pareto import Offer, offers, rate_bounds
from benchbench.documents.hardware_tables import work_title
from benchbench.documents.plots import Plot, PricedPoint, PricePanel, paged

READING = (
    "A mark is hardware at its price, a line at it the 95 % interval of its rate. The black line joins what "
    "nothing else beats in both; what is beaten is grey."
)
EMPTY = "there are no prices of two devices that did the same work"


def price_plots(found: HardwareComparison, facts: Sequence[str]) -> tuple[Plot, ...]:
    """`pareto`, without a panel where there are no prices."""
    currency = found.prices.currency if found.prices else ""
    several = len(found.overall) > 1
    overall = [_overall(found.overall, found.common, currency)] if several else []
    single = [
        _panel(work_title(choice), shown, currency, f"{choice.item}/s")
        for choice in found.choices
        if len(shown := offers(choice, found.prices)) > 1
    ]
    return paged(
        Plot(
            name="pareto",
            title="Rate against price (upper left is better)",
            facts=tuple(facts),
            reading=READING,
            empty=EMPTY,
            panels=(*overall, *single),
        )
    )


def _overall(shown: Sequence[Offer], common: int, currency: str) -> PricePanel:
    """Relative to the fastest."""
    fastest = min(each.amount.mid for each in shown)
    works = "the one work" if common == 1 else f"the geometric mean of {common} works"
    return _panel(f"{works} that all did, relative to the fastest", shown, currency, "×", -fastest)


def _panel(title: str, shown: Sequence[Offer], currency: str, unit: str, scale: float = 0.0) -> PricePanel:
    """`scale`: a logarithm that rates are divided by."""
    points = []
    for offer in shown:
        value, low, high = rate_bounds(offer.amount, scale)
        points.append(
            PricedPoint(
                label=offer.hardware.label,
                price=offer.price,
                value=value,
                low=low,
                high=high,
                dominated=offer.dominated_by is not None,
            )
        )
    return PricePanel(title=title, price_unit=f"{currency} an hour", unit=unit, points=tuple(points))
