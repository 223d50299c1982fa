"""Rooflines of a report: the rate of each case relative to the limits of its device, one panel per device."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from benchbench.analyse.roofline import Roofs, case_roofs, device_of
from benchbench.analyse.rows import Row
from benchbench.analyse.view import RunView
from benchbench.documents.document import Roof, Roofline, RoofPoint
from benchbench.documents.run_table import Work
from benchbench.format import count_of, share

CEILINGS, DATASHEET = "ceilings measured here", "datasheet"
Place = tuple[str, int | None, str, int]  # device model, threads, dtype, number of devices


@dataclass
class _Group:
    """The cases of one place, with its rooflines or the reasons for their absence."""

    measured: Roofs
    datasheet: Roofs
    points: list[RoofPoint] = field(default_factory=list)

    @property
    def roofs(self) -> tuple[Roof, ...]:
        """Complete roofs, measured ceilings before the datasheet."""
        return tuple(
            Roof(label=label, flops_per_s=roofs.flops_per_s, bytes_per_s=roofs.bytes_per_s)
            for label, roofs in ((CEILINGS, self.measured), (DATASHEET, self.datasheet))
            if roofs.flops_per_s and roofs.bytes_per_s
        )

    @property
    def why_none(self) -> str:
        """Reasons for the absence of a roof."""
        reasons = [
            reason
            for roofs in (self.measured, self.datasheet)
            for rate, reason in ((roofs.flops_per_s, roofs.no_flops), (roofs.bytes_per_s, roofs.no_bytes))
            if not rate
        ]
        return "; ".join(dict.fromkeys(reasons))


def roofline_panels(view: RunView, works: Sequence[Work]) -> tuple[list[Roofline], str]:
    """Panels for each device and dtype with a known roof, and the reasons for the missing panels."""
    groups: dict[Place, _Group] = {}
    for work in works:
        for row, name in zip(work.rows, work.names, strict=True):
            if point := _roof_point(work, row, name):
                place = _place(view, row)
                if place not in groups:
                    groups[place] = _Group(
                        *case_roofs(view.run.info, row.case, row.device_name, view.ceilings)
                    )
                groups[place].points.append(point)
    panels = [
        Roofline(
            title=_place_title(place),
            summary=_summary_text(group.roofs[0], group.points),
            roofs=group.roofs,
            points=tuple(group.points),
        )
        for place, group in groups.items()
        if group.roofs
    ]
    missing_panels = [
        f"{_place_title(place)}: {group.why_none}" for place, group in groups.items() if not group.roofs
    ]
    return panels, ". ".join(missing_panels)


def _place(view: RunView, row: Row) -> Place:
    model, threads = device_of(view.run.info, row.case, row.device_name)
    return model or row.case.device, threads, str(row.case.computes_in.compute), row.case.hardware_count


def _place_title(place: Place) -> str:
    """`float32 · Example CPU, 2 threads`."""
    model, threads, dtype, count = place
    several = (count_of(threads, "thread") if threads else "", f"{count} devices" if count > 1 else "")
    return f"{dtype} · {', '.join(filter(None, (model, *several)))}"


def _roof_point(work: Work, row: Row, name: str) -> RoofPoint | None:
    """Point of a case; None without a speed or a known intensity, and for user functions."""
    rate, intensity = row.metric("flops_per_s"), row.position.flops_per_byte
    if not row.ok or row.case.dtype is None or rate.value is None or intensity is None:
        return None
    return RoofPoint(
        label=name,
        work=" ".join(work.short_title.partition(" · ")[0].split()),
        backend=row.case.backend,
        flops_per_byte=intensity,
        value=rate.value,
        low=rate.low,
        high=rate.high,
        is_undecided=bool(row.doubts),
    )


def _summary_text(roof: Roof, points: Sequence[RoofPoint]) -> str:
    """`torch eager comes closest to the roof, 82 % in gemm m=1024; memory bounds 3 of 9 works`."""
    shares = {
        point: point.value / roof.at(point.flops_per_byte) for point in points if not point.is_undecided
    }
    below = {point: ratio for point, ratio in shares.items() if ratio <= 1}
    by_memory = {point.work: roof.at(point.flops_per_byte) < roof.flops_per_s for point in points}
    above = {point.work for point, ratio in shares.items() if ratio > 1}
    best = max(below, key=lambda point: below[point], default=None)
    bound = f"memory bounds {sum(by_memory.values())} of {count_of(len(by_memory), 'work')}"
    parts = [
        f"{best.label} comes closest to the roof, with {share(round(below[best], 2))} of it in {best.work}"
        if best
        else "",
        f"{count_of(len(above), 'work')} above the roof" if above else "",
        bound,
    ]
    return "; ".join(filter(None, parts))
