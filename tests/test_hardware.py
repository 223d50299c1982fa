"""Hardware compared by the runs of several machines: the best of each work, and prices."""

import json
import math
import random
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from inline_snapshot import snapshot

from benchbench import api
from benchbench.analyse.pricing import FIELDS, Prices, parse_prices, valid_prices
from benchbench.analyse.rows import flatten, rows
from benchbench.choosing.choice import (
    Aim,
    HardwareComparison,
    RankedHardware,
    compare_hardware,
    dominating_points,
    overall_offers,
    rank_works,
    work_choices,
)
from benchbench.choosing.sessions import Hardware, gap, mean_log, read_evidence
from benchbench.documents.document import PricePanel
from benchbench.documents.hardware import NO_PRICES, hardware_document, work_title
from benchbench.documents.run import report_document
from benchbench.errors import UsageError
from benchbench.exporters.plots import svg
from benchbench.judging.sessions import ASSUMED_SHARED
from benchbench.model.case import Case, Phase
from benchbench.model.note import NoteKind, note
from benchbench.model.placement import Placement, Strategy
from benchbench.model.run import Partner, Run
from benchbench.stats import LogEstimate
from benchbench.store import runs as store
from tests.factories import (
    CPU,
    a_case,
    a_cost,
    a_machine,
    a_measurement,
    a_record,
    a_run,
    a_telemetry,
    a_watched,
)
from tests.program import accelbench
from tests.rendering import columns_of, on_a_terminal, rendered
from tests.test_architecture import ROOT
from tests.test_plots import texts

PRICES = Prices(currency="EUR", per_hour={"H100": 4.0, "L4": 0.5, "A10": 1.0})
STEPS_S = {"H100": 0.001, "A10": 0.004, "L4": 0.005}
SMALL, LARGE = a_case(), a_case(params={"m": 512, "n": 512, "k": 512})
Steps = Sequence[tuple[Case, float]]  # seconds
NOISE = (0.999, 1.0, 1.001)


def a_gpu_run(device: str, steps_s: Steps, *, day: int = 1, machine: str = "", **over: Any) -> Run:
    """Three processes of each case on cuda:0, each drawing 100 W."""
    watts = over.get("watts", 100.0)
    telemetry = a_telemetry(energy_j=tuple(watts * 0.3 * n for n in range(11)), **telemetry_fields())
    records = [
        a_record(
            a_watched(
                **{"telemetry": telemetry, "length_s": 3.3, "block_s": (10 * noise * seconds,) * 5}
                | over.get("measured", {})
            ),
            case=replace(case, device="cuda:0"),
            round=number,
            device_model=device,
            framework_version=over.get("version", "2.13.0"),
        )
        for case, seconds in steps_s
        for number, noise in enumerate(NOISE)
    ]
    return a_run(
        records,
        id=f"{device}-{machine}-{day}",
        started=f"2026-01-{day:02}T03:04:05Z",
        machine=a_machine(accelerators=(device,)),
        machine_id=machine,
        tags=over.get("tags", {}),
    )


def telemetry_fields() -> dict[str, Any]:
    """Samples over three seconds: energy needs two."""
    return {
        "at_s": tuple(0.15 + 0.3 * number for number in range(11)),
        "busy_s": tuple(0.45 * number for number in range(11)),
    }


def a_fleet(**over: Any) -> list[Run]:
    """A machine of each type, for a day."""
    return [
        a_gpu_run(device, [(SMALL, step), (LARGE, 3 * step)], machine=f"{device}-1", **over)
        for device, step in STEPS_S.items()
    ]


def best_of(comparison: HardwareComparison, aim: Aim) -> list[str | None]:
    """The best hardware of each work; None where the lead is not significant."""
    rankings = [choice.rankings[aim] for choice in comparison.choices]
    return [ranking.best.hardware.device if ranking.best else None for ranking in rankings]


def test_the_fastest_cheapest_and_most_efficient_hardware_may_differ() -> None:
    runs = [
        a_gpu_run("H100", [(SMALL, 0.001)], watts=700),
        a_gpu_run("A10", [(SMALL, 0.004)], watts=60),
        a_gpu_run("L4", [(SMALL, 0.0045)], watts=300),
    ]
    comparison = compare_hardware(runs, PRICES)
    assert [best_of(comparison, aim) for aim in Aim] == [["H100"], ["L4"], ["A10"]]
    (work,) = hardware_document(comparison).data["works"]
    h100 = next(offer for offer in work["hardware"] if offer["device"] == "H100")
    assert h100["items_per_s"]["value"] == pytest.approx(1000, rel=1e-3)
    assert h100["items_per_cost"]["value"] == pytest.approx(1000 * 3600 / 4, rel=1e-3)
    assert h100["items_per_j"]["value"] == pytest.approx(50 / (700 * 3.3), rel=1e-3)


def test_one_day_per_machine_does_not_decide_a_difference_of_the_size_between_days() -> None:
    def best(days: int, slower: float, **over: Any) -> list[str | None]:
        runs = [
            a_gpu_run(device, [(SMALL, seconds)], day=day, machine=device)
            for device, seconds in (("A", 0.001), ("B", slower))
            for day in range(1, days + 1)
        ]
        return best_of(compare_hardware(runs, **over), Aim.FASTEST)

    assert (best(1, 0.00108), best(5, 0.00108)) == ([None], ["A"])
    assert (best(1, 0.0012), best(1, 0.0012, dedicated=True)) == ([None], ["A"])


TRAINED = a_case(workload="convnet_train", params={"batch": 64}, phase=Phase.TRAIN)


def on_devices(case: Case, devices: int, strategy: Strategy = Strategy.DATA_PARALLEL) -> Case:
    return replace(case, placement=Placement(devices=devices, strategy=strategy))


@pytest.mark.parametrize(
    ("price", "per_hour", "cheapest"),
    [({}, 32.0, "H100"), ({"8 x H1*": 20.0}, 20.0, "8 × H100"), ({"4 x H100": 1.0}, 32.0, "H100")],
)
def test_eight_devices_cost_eight_times_one_unless_they_have_a_price(
    price: dict[str, float], per_hour: float, cheapest: str
) -> None:
    """Eight devices are seven times as fast, so items cost more unless the eight cost less than 28."""
    runs = [a_gpu_run("H100", [(TRAINED, 0.07), (on_devices(TRAINED, 8), 0.01)], machine="m")]
    comparison = compare_hardware(runs, Prices(currency="EUR", per_hour={**PRICES.per_hour, **price}))
    (choice,) = comparison.choices
    best = {aim: ranking.contenders[0].hardware.label for aim, ranking in choice.rankings.items()}
    assert (best[Aim.FASTEST], best[Aim.CHEAPEST]) == ("8 × H100", cheapest)
    (work,) = hardware_document(comparison).data["works"]
    assert [(row["devices"], row["price_per_hour"]) for row in work["hardware"]] == [(8, per_hour), (1, 4.0)]
    assert work["hardware"][0]["items_per_s"]["configuration"] == (
        "torch eager [devices=8,strategy=data-parallel]"
    )


def test_ranks_that_share_a_cpu_have_its_price_once() -> None:
    single, pair = a_case(device="cpu"), on_devices(a_case(device="cpu"), 2)
    assert (single.hardware_count, pair.hardware_count) == (1, 1)
    on_hosts = replace(single, placement=Placement(hosts=2, devices=4, strategy=Strategy.PIPELINE))
    assert (on_hosts.hardware_count, replace(on_hosts, device="cuda:0").hardware_count) == (2, 4)


def test_collectives_of_different_numbers_of_devices_are_different_works() -> None:
    summed = a_case(workload="all_reduce", params={"n": 1024})
    pair, four = (on_devices(summed, count, Strategy.COLLECTIVE) for count in (2, 4))
    comparison = compare_hardware([a_gpu_run("H100", [(pair, 0.01), (four, 0.02)])])
    assert [choice.work for choice in comparison.choices] == [
        "all_reduce(n=1024)/float32[devices=2,strategy=collective]",
        "all_reduce(n=1024)/float32[devices=4,strategy=collective]",
    ]
    assert work_title(comparison.choices[1]) == "all_reduce  n=1024 · float32 · 4 devices"


def test_each_hardware_is_ranked_by_the_best_of_its_frameworks() -> None:
    slow, fast = a_case(mode="eager"), a_case(backend="jax", mode="jit")
    runs = [a_gpu_run("A", [(slow, 0.004), (fast, 0.001)]), a_gpu_run("B", [(slow, 0.002)])]
    (choice,) = compare_hardware(runs).choices
    first, second = choice.rankings[Aim.FASTEST].contenders
    assert (first.hardware.device, first.configuration) == ("A", "jax jit")
    assert (second.hardware.device, second.configuration) == ("B", "torch eager")


def test_a_cpu_is_labelled_and_priced_by_its_threads() -> None:
    record = [a_record(a_watched(block_s=(0.01 * noise,) * 5), round=n) for n, noise in enumerate(NOISE)]
    prices = Prices(currency="EUR", per_hour={"Example CPU, 2 threads": 0.25, "*CPU*": 9.0})
    (choice,) = compare_hardware([a_run(record)], prices).choices
    (contender,) = choice.rankings[Aim.CHEAPEST].contenders
    assert contender.hardware.label == "Example CPU, 2 threads"
    assert contender.amount.mid == pytest.approx(math.log(0.001 * 0.25 / 3600), abs=1e-3)


@pytest.mark.parametrize(
    ("over", "why"),
    [
        ({"relative_error": None}, "not verified"),
        ({"notes": (note(NoteKind.UNRANKED, reason="more ranks than cores"),)}, "not ranked"),
        ({"steady": False}, "still warming up"),
        (
            {"telemetry": a_telemetry(**{**telemetry_fields(), "busy_s": tuple(2.0 * n for n in range(11))})},
            "contended",
        ),
    ],
)
def test_an_unreliable_case_is_omitted_with_the_reason(over: dict[str, Any], why: str) -> None:
    runs = [a_gpu_run("A", [(SMALL, 0.001)], measured=over), a_gpu_run("B", [(SMALL, 0.002)])]
    comparison = compare_hardware(runs)
    assert [session.hardware.device for session in comparison.evidence.sessions] == ["B"]
    assert comparison.evidence.left_out == {f"{why}, on A": 1}
    assert f"left out 1×: {why}, on A" in hardware_document(comparison).notes


def test_a_simulated_case_counts_without_verification_and_a_half_of_a_comparison_never() -> None:
    over = {"relative_error": None, "notes": (note(NoteKind.SIMULATED),)}
    run = a_gpu_run("A", [(SMALL, 0.001)], measured=over)
    assert compare_hardware([run]).evidence.left_out == {}
    half = replace(run, info=replace(run.info, partner=Partner(label="x", run="y", cases={})))
    assert compare_hardware([half]).evidence.sessions == ()


def test_versions_that_differ_are_reported_and_older_ones_do_not_count() -> None:
    runs = [
        a_gpu_run("A", [(SMALL, 0.009)], version="2.12.0", day=1, machine="a"),
        a_gpu_run("A", [(SMALL, 0.001)], day=2, machine="a"),
        a_gpu_run("B", [(SMALL, 0.002)], version="2.12.0", machine="b"),
    ]
    document = hardware_document(result := compare_hardware(runs))
    assert "torch differs: 2.12.0 on B; 2.13.0 on A" in document.facts
    assert result.evidence.left_out == {"torch 2.12.0, not 2.13.0, on A": 1}
    other_work = {"cost": a_cost(flops=1)}
    assert compare_hardware(
        [runs[2], a_gpu_run("A", [(SMALL, 1.0)], day=3, measured=other_work)]
    ).evidence.left_out == {"another version of the workload gemm": 1}


def test_machines_can_be_identified_by_a_tag() -> None:
    runs = [a_gpu_run("H100", [(SMALL, 0.001)], tags={"node": f"n{number}"}) for number in range(2)]
    (choice,) = compare_hardware(runs, by="node").choices
    assert [extent.machines for extent in choice.sample_sizes.values()] == [2]
    with pytest.raises(UsageError, match="No run has a tag 'nod'"):
        compare_hardware(runs, by="nod")


def test_a_wrong_best_is_rarely_claimed() -> None:
    """Four equal machines in each of five works, so any claim is wrong. Days differ by 7 %, as assumed."""
    source = random.Random(6)
    wrong = 0
    for _ in range(200):
        works = [
            [
                RankedHardware(
                    hardware=Hardware(str(number)),
                    configuration="",
                    amount=mean_log([[source.gauss(0, ASSUMED_SHARED)] * 3], ASSUMED_SHARED),
                )
                for number in range(4)
            ]
            for _ in range(5)
        ]
        wrong += any(ranking.best for ranking in rank_works(works))
    assert wrong / 200 <= 0.05


prices = st.floats(0.01, 100, allow_nan=False)
points = st.lists(st.tuples(prices, prices) | st.tuples(st.sampled_from((1.0, 2.0)), prices), max_size=12)


@given(points)
def test_the_front_is_not_dominated_and_dominates_all_other_offers(offers: list[tuple[float, float]]) -> None:
    best = dominating_points(offers)
    front = [number for number, by in enumerate(best) if by is None]
    assert bool(front) == bool(offers)
    for number, by in enumerate(best):
        beaten_by = [
            rival
            for rival in offers
            if rival[0] <= offers[number][0] and rival[1] <= offers[number][1] and rival != offers[number]
        ]
        assert bool(beaten_by) == (by is not None)
        if by is not None:
            assert by in front
            assert offers[by] in beaten_by


@given(st.floats(0.001, 0.2), st.integers(1, 9))
def test_more_days_never_widen_the_interval(spread: float, days: int) -> None:
    def half(count: int) -> float:
        values = [spread * (-1) ** number for number in range(2 * count)]
        return mean_log([[place] for place in values], spread).half_width()

    assert half(days + 1) <= half(days) * (1 + 1e-9)


def test_the_gap_of_two_means_uses_welch_s_formula() -> None:
    first, second = LogEstimate(1.0, 0.3, 4), LogEstimate(2.0, 0.4, 9)
    difference = gap(first, second)
    assert (difference.mid, difference.error) == pytest.approx((1.0, 0.5))
    assert difference.degrees == pytest.approx(0.25**2 / (0.09**2 / 4 + 0.16**2 / 9))


def test_overall_only_works_that_all_priced_hardware_did_count() -> None:
    runs = [a_gpu_run("H100", [(SMALL, 0.001), (LARGE, 0.1)]), a_gpu_run("L4", [(SMALL, 0.005)])]
    offers, common = overall_offers(work_choices(read_evidence(runs).sessions, PRICES, 0.07), PRICES)
    assert common == 1
    assert [(offer.hardware.device, offer.dominated_by) for offer in offers] == [("L4", None), ("H100", None)]


def the_example() -> list[Run]:
    """The example of docs/hardware.md: three GPUs, two networks, and one GPU type in three machines."""
    infer = a_case(workload="resnet50_infer", params={"batch": 32, "image": 224})
    train = a_case(workload="resnet50_train", params={"batch": 32, "image": 224})
    speeds = {
        "NVIDIA H100 PCIe": ({"node1": 1.0, "node2": 1.01, "node3": 0.99}, 0.004, 0.03, 340),
        "NVIDIA L4": ({"node4": 1.0}, 0.017, 0.16, 70),
        "NVIDIA A10": ({"node5": 1.0}, 0.0175, 0.165, 145),
    }
    image = {"cost": a_cost(items=32, item="image")}
    return [
        a_gpu_run(
            device,
            [(infer, infer_s * factor), (train, train_s * factor)],
            machine=machine,
            watts=watts * infer_s * 400 * factor,
            measured=image,
        )
        for device, (machines, infer_s, train_s, watts) in speeds.items()
        for machine, factor in machines.items()
    ]


EXAMPLE_PRICES = Prices(currency="EUR", per_hour={"*H100*": 2.5, "*L4": 0.7, "*A10": 0.9})


def test_the_page_shows_the_printed_output_and_files_have_its_numbers() -> None:
    page = (ROOT / "docs/hardware.md").read_text()
    document = hardware_document(compare_hardware(the_example(), EXAMPLE_PRICES))
    assert on_a_terminal(document, 130) in page.split("```\n")
    line = next(line for line in rendered(document, "csv").splitlines() if line.startswith("NVIDIA A10"))
    assert [round(float(field), 3) for field in line.split(",")[2:8] if field] == snapshot(
        [1828.572, 0.229, 0.211, 7314288.152, 0.635, 0.211]
    )
    data = json.loads(rendered(document, "json"))
    for work in data["works"]:
        for hardware in work["hardware"]:
            rate = hardware["items_per_s"]
            assert rate["low"] < rate["value"] < rate["high"]
    assert [(offer["device"], offer["dominated_by"] is None) for offer in data["offers"]] == snapshot(
        [("NVIDIA L4", True), ("NVIDIA A10", False), ("NVIDIA H100 PCIe", True)]
    )


@pytest.mark.real
def test_the_plot_draws_dominated_offers_in_grey_and_a_panel_for_each_work() -> None:
    runs = [*a_fleet(), a_gpu_run("V100", [(SMALL, 0.02), (LARGE, 0.06)])]
    prices = Prices(currency="EUR", per_hour={**PRICES.per_hour, "V100": 3.0})
    (plot,) = (document := hardware_document(compare_hardware(runs, prices))).plots()
    panels = [panel for panel in plot.panels if isinstance(panel, PricePanel)]
    assert [panel.unit for panel in panels] == ["×", "product/s", "product/s"]
    assert [(point.label, point.dominated) for point in panels[0].points] == [
        ("L4", False),
        ("A10", False),
        ("V100", True),
        ("H100", False),
    ]
    assert max(point.value for point in panels[0].points) == 1.0
    picture = svg(document)["pareto.svg"]
    assert {"price, EUR an hour", "products/s", "V100", "1k"} <= set(texts(picture))
    assert b"#a6a6a6" in picture  # dominated offers


def test_without_prices_a_note_has_the_command_and_the_plot_is_empty() -> None:
    document = hardware_document(compare_hardware(a_fleet()))
    assert NO_PRICES in document.notes
    assert document.plots()[0].panels == ()
    assert "per cost" not in columns_of(document)


def test_a_narrow_terminal_drops_columns_with_a_hint() -> None:
    comparison = compare_hardware(a_fleet(), PRICES)
    narrow = on_a_terminal(hardware_document(comparison), 60)
    assert "widen the terminal, or choose by --columns" in " ".join(narrow.split())
    assert list(columns_of(hardware_document(comparison, ["per-cost", "vs-cheapest"]))) == [
        "",
        "per cost",
        "vs cheapest",
    ]
    with pytest.raises(UsageError, match="No column named 'per-costs'"):
        hardware_document(comparison, ["per-costs"])


def test_runs_are_chosen_by_tag_and_by_day(tmp_path: Path) -> None:
    for day, tag in ((1, "old"), (2, "new"), (3, "new")):
        store.store_run(tmp_path, a_gpu_run("A", [(SMALL, 0.001)], day=day, tags={"batch": tag}))
    assert len(api.hardware(results=tmp_path).runs) == 3
    assert api.hardware(results=tmp_path, tags={"batch": "new"}).runs == ("A--2", "A--3")
    assert api.hardware(results=tmp_path, since="2026-01-03").runs == ("A--3",)
    assert api.hardware(["A--1"], results=tmp_path).runs == ("A--1",)
    with pytest.raises(UsageError, match="'soon' is no date"):
        api.hardware(results=tmp_path, since="soon")


@pytest.mark.real
def test_the_command_prints_tables_and_keeps_the_plot(tmp_path: Path) -> None:
    for run in a_fleet():
        store.store_run(tmp_path / "results", run)
    process = accelbench("hardware", "--price", "*=2 EUR", "--columns", "rate", cwd=tmp_path)
    assert "fastest: H100 in 2 of 2" in process.stdout
    assert (tmp_path / "results/pareto.png").read_bytes().startswith(b"\x89PNG")


def test_the_last_run_of_a_day_counts() -> None:
    runs = [a_gpu_run("H100", [(SMALL, step)], machine=f"m{step}") for step in (1e-3, 3e-3)]
    later = a_gpu_run("H100", [(SMALL, 2e-3)], machine="m0.001")
    later = replace(later, info=replace(later.info, id="LATER", started="2026-01-01T13:04:05Z"))
    (choice,), (expected,) = (compare_hardware(fleet).choices for fleet in ([later, *runs], [later, runs[1]]))
    assert choice.rankings == expected.rankings
    assert [size.days for size in choice.sample_sizes.values()] == [2]


def test_processes_that_vary_more_than_days_give_the_error_of_the_mean() -> None:
    days = [[-0.3, 0.0, 0.3]] * 3
    amount = mean_log(days, 0.001)
    assert amount.error == pytest.approx(0.1)
    assert amount.degrees == 6


EUROS = Prices(currency="EUR", per_hour={"Example*": 0.5})


def the_row(prices: Prices | None, device: str = CPU.model) -> dict[str, Any]:
    record = a_record(a_measurement(cost=a_cost(items=3)), device_model=device)
    (row,) = rows(a_run([record]), prices=prices)
    return flatten(row)


def test_a_price_determines_the_items_per_unit_of_money() -> None:
    row = the_row(EUROS)
    assert (row["price_per_hour"], row["currency"]) == (0.5, "EUR")
    assert the_row(EUROS, device="")["price_per_hour"] == 0.5  # an unnamed CPU is that of the machine
    assert row["items_per_cost"] == pytest.approx(3 / 1e-3 * 3600 / 0.5)
    assert not [note for note in row["notes"] if note.startswith(FIELDS)]


@pytest.mark.parametrize("prices", [None, Prices(currency="EUR", per_hour={"Example": 1.0})])
def test_without_a_price_the_fields_are_null_with_the_reason(prices: Prices | None) -> None:
    row = the_row(prices)
    for name in FIELDS:
        assert row[name] is None
        assert f"{name}: no price of Example CPU is given" in row["notes"]


@pytest.mark.parametrize(
    ("device", "price"),
    [
        ("NVIDIA H100 80GB HBM3", 2.0),  # an exact name counts before a pattern
        ("nvidia h100 pcie", 3.0),
        ("NVIDIA H100 NVL", 3.0),
        ("NVIDIA A100", 4.0),
        ("NVIDIA A100 80GB", None),  # a name without a star must match completely
        ("Graphics [1234]", 5.0),
        ("Graphics 1", None),
        ("", None),
    ],
)
def test_exact_names_override_patterns_and_the_first_pattern_counts(device: str, price: float | None) -> None:
    amounts = {"*H100*": 3.0, "*H100 P*": 9.0, "NVIDIA H100 80GB HBM3": 2.0}
    prices = Prices(currency="EUR", per_hour=amounts | {"NVIDIA A10?": 4.0, "Graphics [1234]": 5.0})
    assert prices.price_of(device) == price


@pytest.mark.parametrize(
    ("device", "count", "price"),
    [
        ("H100", 1, 3.0),
        ("H100", 2, 6.0),
        ("H100", 8, 20.0),
        ("H100", 4, 11.0),
        ("A100", 8, None),  # the price of eight is neither the price of one nor that of four
        ("A100", 4, 5.0),
        ("A100", 1, None),
    ],
)
def test_several_devices_have_a_joint_or_multiplied_price(
    device: str, count: int, price: float | None
) -> None:
    amounts = {"*H100*": 3.0, "8 x *H100*": 20.0, "4 × H100": 11.0, "4 x *": 5.0}
    assert Prices(currency="EUR", per_hour=amounts).price_of(device, count) == price


def test_a_row_of_several_devices_has_the_price_of_all() -> None:
    two = Placement(devices=2, strategy=Strategy.DATA_PARALLEL)
    measurement = a_measurement(cost=a_cost(items=3))
    case = a_case(device="cuda:0", placement=two)
    (row,) = rows(a_run([a_record(measurement, case=case, device_model="Example GPU")]), prices=EUROS)
    fields = flatten(row)
    assert fields["price_per_hour"] == 1.0
    assert fields["items_per_cost"] == pytest.approx(3 / 1e-3 * 3600 / 1.0)


def test_command_line_prices_override_the_file() -> None:
    prices = parse_prices(["Example CPU = 2", "a=b*=1.25"], EUROS)
    assert prices == Prices(currency="EUR", per_hour={"Example CPU": 2.0, "a=b*": 1.25, "Example*": 0.5})
    assert parse_prices([], EUROS) == EUROS
    again = parse_prices(["Example*=7"], Prices(currency="EUR", per_hour={"*": 1.0, "Example*": 0.5}))
    assert again
    assert again.price_of("Example CPU") == 7.0


@pytest.mark.parametrize(
    ("text", "before", "message"),
    [
        ("H100", None, "is not a price"),
        ("H100=", None, "is not a price"),
        ("=2 EUR", None, "is not a price"),
        ("H100=-2 EUR", None, "is not a price"),
        ("H100=1e3 EUR", None, "is not a price"),
        ("H100=2,5 EUR", None, "is not a price"),
        ("H100=0 EUR", None, "0.0 is not a price of 'H100'"),
        ("H100=2", None, "no currency"),
        ("H100=2 USD", EUROS, "EUR and USD"),
    ],
)
def test_a_price_that_cannot_be_read_is_an_error(text: str, before: Prices | None, message: str) -> None:
    with pytest.raises(UsageError, match=message) as caught:
        parse_prices([text], before)
    assert caught.value.hint


@pytest.mark.parametrize("amount", [0.0, -1.0, float("inf"), float("nan")])
def test_a_price_is_a_number_above_zero(amount: float) -> None:
    with pytest.raises(UsageError, match="is not a price of 'x'"):
        valid_prices(Prices(currency="EUR", per_hour={"x": amount}))


def test_the_table_shows_a_price_only_if_there_is_one() -> None:
    run = a_run([a_record(), a_record(case=a_case(device="cuda:0"), device_model="Other")])
    with_price = report_document(run, prices=EUROS)
    assert columns_of(with_price)["per cost"] == ("7.20M product/EUR", "")
    assert "price: 0.5 EUR an hour of Example CPU" in with_price.facts
    without = report_document(run)
    assert "per cost" not in columns_of(without)
    assert not [text for text in without.facts if "price" in text]


def test_a_currency_cannot_break_the_table() -> None:
    evil = report_document(a_run(), prices=Prices(currency="\x1b[31m", per_hour={"*": 1.0}))
    assert r"M product/\x1b[31m" in rendered(evil)
    assert "\x1b" not in rendered(evil)


@pytest.mark.real
def test_report_reads_the_nearest_file_and_prefers_the_command_line(tmp_path: Path) -> None:
    def prices_shown(*arguments: str) -> set[tuple[float | None, str | None]]:
        process = accelbench("report", "--format", "json", *arguments, cwd=tmp_path)
        return {(row["price_per_hour"], row["currency"]) for row in json.loads(process.stdout)["rows"]}

    accelbench("run", "-b", "fake", "-d", "cpu", "-w", "gemm", "--rounds", "1", cwd=tmp_path)
    assert prices_shown() == {(None, None)}
    (tmp_path / "accelbench.toml").write_text("[price]\ncurrency = 'USD'\n[price.per-hour]\n'*' = 3\n")
    assert prices_shown() == {(3.0, "USD")}
    assert prices_shown("--price", "*=1.5 USD") == {(1.5, "USD")}
    table = accelbench("report", "--format", "markdown", cwd=tmp_path).stdout
    assert "| per cost |" in table
    (tmp_path / "accelbench.toml").write_text("[price]\ncurrency = 3\n")
    process = accelbench("run", "-b", "fake", "-d", "cpu", "--format", "json", cwd=tmp_path, code=2)
    assert "accelbench.toml" in process.stderr
    assert len(list((tmp_path / "results/runs").iterdir())) == 1
