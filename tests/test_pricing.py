"""Items for money: the choice of the price, and empty fields without one."""

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from benchbench.analyse.pricing import FIELDS, Prices, case_price, parse_prices, valid_prices
from benchbench.analyse.rows import flatten, rows
from benchbench.documents.run import report_document
from benchbench.errors import UsageError
from benchbench.model.placement import Placement, Strategy
from tests.factories import CPU, a_case, a_cost, a_measurement, a_record, a_run
from tests.program import accelbench
from tests.rendering import columns_of, rendered

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


@given(
    st.floats(min_value=1e-3, max_value=1e12), st.floats(min_value=1e-6, max_value=1e6), st.integers(2, 100)
)
def test_items_are_inversely_proportional_to_the_price(rate: float, price: float, times: int) -> None:
    once = case_price(rate, "x", Prices(currency="EUR", per_hour={"x": price}), 1)
    dearer = case_price(rate, "x", Prices(currency="EUR", per_hour={"x": price * times}), 1)
    assert once.items_per_cost
    assert dearer.items_per_cost
    assert once.items_per_cost == pytest.approx(times * dearer.items_per_cost)


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
