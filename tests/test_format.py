"""Formatting of numbers, text and notes."""

import re
import string
from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from benchbench import format as fmt
from benchbench.model.note import CLAUSES, FORMATS, NoteKind, note, plain

# Within the prefixes: outside them digits are lost or zeros appear.
positive = st.floats(min_value=1e-12, max_value=1e18)
POWERS = {prefix: 10.0**power for power, prefix in fmt.PREFIXES.items()}
STEPS = {unit: 1024.0**step for step, unit in enumerate(fmt.BINARY)}


def read_si(unit: str) -> Callable[[str], float]:
    """Function that reads a number with a prefix, which is before the unit or after the digits."""

    def read(text: str) -> float:
        digits = re.match(r"[\d.]+", text)
        assert digits
        return float(digits[0]) * POWERS[text.removeprefix(digits[0]).removesuffix(unit).strip()]

    return read


def read_size(text: str) -> float:
    number, unit = text.split(" ")
    return float(number) * STEPS[unit]


FORMS: list[tuple[Callable[[float], str], Callable[[str], float]]] = [
    (fmt.seconds, read_si("s")),
    (lambda value: fmt.rate(value, "FLOP/s"), read_si("FLOP/s")),
    (lambda value: fmt.per(value, "image/s"), read_si("image/s")),
    (fmt.size, read_size),
    (fmt.ratio, lambda text: float(text.removesuffix("×"))),
    (fmt.percent, lambda text: float(text.removesuffix(" %")) / 100),
]
forms = pytest.mark.parametrize(
    ("write", "read"), FORMS, ids=["seconds", "rate", "per", "size", "ratio", "percent"]
)


@forms
@given(value=positive)
def test_formatted_values_are_accurate_to_half_a_percent(
    write: Callable[[float], str], read: Callable[[str], float], value: float
) -> None:
    assert read(write(value)) == pytest.approx(value, rel=0.0050001)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (fmt.seconds(0.0009996), "1.00 ms"),
        (fmt.seconds(12_345), "12300 s"),
        (fmt.seconds(0), "0.00 s"),
        (fmt.per(9.756, "token/s"), "9.76 token/s"),
        (fmt.size(512), "512 B"),
        (fmt.ratio(1.2345), "1.23×"),
        (fmt.percent(0.0123), "1.23 %"),
        (fmt.percent(-0.5), "-50.0 %"),
        (fmt.interval(0.0181, 0.0184, 0.0187), "18.4 ms [18.1, 18.7]"),
        (fmt.interval(0.0009, 0.0011, 0.0013), "1.10 ms [0.900, 1.30]"),
        (fmt.interval(None, 0.0184, None), "18.4 ms"),
        (fmt.count_of(1, "case"), "1 case"),
        (fmt.count_of(2, "case"), "2 cases"),
        (fmt.count_of(0, "process"), "0 processes"),
    ],
)
def test_values_have_three_digits_and_a_unit(text: str, expected: str) -> None:
    assert text == expected


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("plain µ × 数字", "plain µ × 数字"),
        ("\x1b]0;owned\x07", r"\x1b]0;owned\x07"),
        ("\x9b31m", r"\x9b31m"),
        ("a\u202eb", r"a\u202eb"),
        ("a\u200bb\ufeff", r"a\u200bb\ufeff"),
        ("one\ntwo\r\tthree", r"one\ntwo\r\tthree"),
        ("line\u2028separator", r"line\u2028separator"),
        ("\ud800", r"\ud800"),
        ("\U000e0041", r"\U000e0041"),
        ("::add-mask::token", r"\x3a:add-mask::token"),
        ("  ::Error file=x::", r"  \x3a:Error file=x::"),
        ("a ##[group]b", r"a \x23#[group]b"),
        ("##vso[task.setvariable]x", r"\x23#vso[task.setvariable]x"),
        ("test_a.py::TestB::test_c", "test_a.py::TestB::test_c"),
        ("## heading", "## heading"),
    ],
)
def test_x4_x5_control_sequences_become_visible(text: str, expected: str) -> None:
    assert fmt.visible(text) == expected


@given(st.text())
def test_visible_text_is_one_line_of_printable_characters(text: str) -> None:
    escaped = fmt.visible(text)
    assert fmt.visible(escaped) == escaped
    assert len(escaped.splitlines()) <= 1
    assert not fmt.COMMAND.search(escaped)
    escaped.encode()  # no lone surrogates


@pytest.mark.parametrize(
    ("value", "unit", "expected"),
    [
        (0.0012, "s", "1.20 ms"),
        (2048.0, "B", "2.00 KiB"),
        (1240.0, "item/s", "1.24k item/s"),
        (0.25, "item/J", "0.250 item/J"),
        (117e9, "FLOP/s", "117 GFLOP/s"),
        (31.5, "J", "31.5 J"),
        (0.0, "±", "±<0.1 %"),
        (0.0034, "±", "±0.3 %"),
        (0.0096, "±", "±1 %"),
        (0.043, "±", "±4 %"),
        (0.096, "±", "±10 %"),
        (0.134, "±", "±13 %"),
        (9.99, "±", "±999 %"),
        (11.0, "±", "±>1000 %"),
    ],
)
def test_the_unit_of_a_metric_chooses_the_format(value: float, unit: str, expected: str) -> None:
    assert fmt.quantity(value, unit) == expected


@given(st.floats(0, 1), st.integers(4, 40))
def test_a_bar_is_proportional_and_never_empty(share: float, length: int) -> None:
    text = fmt.bar(share, length)
    eighths = 8 * text.count("█") + sum(" ▏▎▍▌▋▊▉".index(mark) for mark in text if mark != "█")
    assert 1 <= len(text) <= length
    assert abs(eighths - 8 * length * share) <= max(1 - 8 * length * share, 0.5)


SAMPLES = {"count": 2, "rounds": 3, "copies": 4, "processes": 2, "samples": 22, "cores": 0.5}


@pytest.mark.parametrize("kind", NoteKind)
def test_every_kind_has_a_sentence(kind: NoteKind) -> None:
    names = [name for _, name, _, _ in string.Formatter().parse(CLAUSES[kind]) if name]
    data = {name: 0.5 if name in FORMATS else SAMPLES.get(name, name) for name in names}
    text = note(kind, **data).text
    assert text
    assert not {"{", "}"} & set(text)


def test_a_clause_omits_the_label_of_the_note() -> None:
    cause = note(NoteKind.OTHER_PROCESSES, cores=0.53)
    assert (cause.clause, cause.text) == (
        "other processes used 0.5 of a core",
        "contended: other processes used 0.5 of a core",
    )


@pytest.mark.parametrize(
    ("cores", "text"),
    [(0.53, "0.5 of a core"), (0.94, "0.9 of a core"), (0.96, "1.0 cores"), (1.62, "1.6 cores")],
)
def test_cores_are_shown_as_a_fraction_or_a_number(cores: float, text: str) -> None:
    assert note(NoteKind.STOLEN_TIME, cores=cores).clause == f"the hypervisor withheld {text}"


def test_braces_in_plain_text_are_not_placeholders() -> None:
    assert plain("{count} of {rounds}").text == "{count} of {rounds}"


def test_equal_notes_have_equal_kind_and_data_and_can_be_merged() -> None:
    notes = [note(NoteKind.RECOMPILED, count=1), note(NoteKind.RECOMPILED, count=2)] * 2
    assert list(dict.fromkeys(notes)) == notes[:2]
