"""Numbers as people read them: 3 significant digits, SI units. Text from data, made safe to show."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Sequence
from decimal import Decimal

PREFIXES = {-12: "p", -9: "n", -6: "µ", -3: "m", 0: "", 3: "k", 6: "M", 9: "G", 12: "T", 15: "P"}
BINARY = ("B", "KiB", "MiB", "GiB", "TiB", "PiB")
# Controls, invisible format characters (bidi among them), surrogates, line and paragraph separators.
HIDDEN = frozenset({"Cc", "Cf", "Cs", "Zl", "Zp"})
# What CI services take for a command in a log: of GitHub, `::name …::` at the start of a line and `##[name]`
# anywhere (actions/runner, ActionCommand.cs); of Azure Pipelines and TeamCity, `##vso[` and `##teamcity[`.
# Only GitHub's own names: `::` also stands in the names of tests.
COMMAND = re.compile(
    r"::(?=(?:add-mask|add-matcher|add-path|debug|echo|endgroup|error|group|notice|remove-matcher|save-state"
    r"|set-env|set-output|stop-commands|warning)(?: |::))|##(?=\[|vso\[|teamcity\[)",
    re.IGNORECASE,
)
PREFIXED = ("FLOP", "FLOP/s", "B/s", "J", "W")  # units that a prefix is written before
MOST_SHARE, MANY = 10, ">1000 %"  # beyond, how many says nothing
LEAST_SHARE = 0.001  # of an interval
LONGEST_BAR = 20  # characters


def seconds(value: float) -> str:
    """`1.20 ms`; never a prefix above one."""
    power = second_power(value)
    return f"{_shifted(value, power)} {PREFIXES[power]}s"


def listed_seconds(values: Sequence[float]) -> str:
    """`3.55, 216, 213 ms`: several in the unit of the smallest."""
    power = second_power(min(values))
    return f"{', '.join(_shifted(value, power) for value in values)} {PREFIXES[power]}s"


def second_power(value: float) -> int:
    """The power of ten of the unit that `seconds` would show `value` in."""
    return min(0, si_power(value))


def interval(low: float | None, mid: float, high: float | None) -> str:
    """`18.4 ms [18.1, 18.7]`, the bounds in the middle's unit; without bounds as `seconds`."""
    if low is None or high is None:
        return seconds(mid)
    power = second_power(mid)
    return f"{seconds(mid)} [{_shifted(low, power)}, {_shifted(high, power)}]"


def rate(value: float, unit: str) -> str:
    """`117 GFLOP/s`: `unit` with an SI prefix."""
    power = si_power(value)
    return f"{_shifted(value, power)} {PREFIXES[power]}{unit}"


def per_second(value: float, item: str) -> str:
    """`1.24k image/s`: the prefix stays with the number, for things that are no unit."""
    return per(value, f"{item}/s")


def per(value: float, unit: str) -> str:
    """`1.24k image/EUR`: a rate of things that are no unit, by anything; `0.909 image/s`, not `909m`."""
    power = max(0, si_power(value))
    return f"{_shifted(value, power)}{PREFIXES[power]} {unit}"


def size(value: float) -> str:
    """`62.0 MiB`: bytes in powers of 1024."""
    step = 0
    while abs(value) >= 1024 and step < len(BINARY) - 1:
        value /= 1024
        step += 1
    return f"{_shifted(value, 0)} {BINARY[step]}"


def ratio(value: float) -> str:
    """A ratio as text: `1.23×`."""
    return f"{_shifted(value, 0)}×"


def percent(value: float) -> str:
    """`1.23 %` of a fraction of 0.0123."""
    return f"{_shifted(value, -2)} %"


def share(value: float) -> str:
    """`5 %` of a fraction of 0.05: without zeros that say nothing."""
    return f"{100 * value:.3g} %" if value <= MOST_SHARE else MANY


def plus_minus(value: float) -> str:
    """`±13 %` of a fraction of 0.13: one digit says how far a number can be trusted, two at most."""
    if value > MOST_SHARE:
        return f"±{MANY}"
    if value < LEAST_SHARE:
        return f"±<{share(LEAST_SHARE)}"
    rounded = Decimal(f"{100 * value:.0e}" if value < 0.1 else f"{100 * value:.0f}")
    return f"±{rounded:f} %"


def bar(share: float, length: int = LONGEST_BAR) -> str:
    """`share` of `length` characters, in eighths of one; what is not nothing is seen."""
    eighths = min(max(round(8 * length * share), 1), 8 * length)
    return "█" * (eighths // 8) + " ▏▎▍▌▋▊▉"[eighths % 8].strip()


def limit(value: float) -> str:
    """`3%` of a fraction of 0.03: as it is typed, and can be copied back."""
    return f"{100 * value:.3g}%"


def significant(value: float) -> str:
    """Four digits, zeros kept: `1.100`."""
    return f"{value:#.4g}".rstrip(".")


def probability(value: float) -> str:
    """`0.012`, `<0.001`."""
    return "<0.001" if value < 0.001 else f"{value:.3f}"


def count(value: float) -> str:
    """`12`; `1.5`, of a mean."""
    return f"{value:.1f}".removesuffix(".0")


def count_of(number: int, noun: str) -> str:
    """`1 case`, `2 cases`, `0 processes`: of a regular noun."""
    return f"{number} {noun if number == 1 else plural(noun)}"


def plural(noun: str) -> str:
    """The plural of a regular noun."""
    return f"{noun}es" if noun.endswith("s") else f"{noun}s"


def quantity(value: float, unit: str) -> str:
    """`value` in `unit`, each kind of unit in its own form: `1.20 ms`, `62.0 MiB`, `1.24k image/s`."""
    if form := FORMS.get(unit):
        return form(value)
    return rate(value, unit) if unit in PREFIXED else per(value, unit)


def _share_measured(value: float) -> str:
    return percent(value) if value <= MOST_SHARE else MANY


FORMS = {
    "s": seconds,
    "B": size,
    "×": ratio,
    "%": _share_measured,
    "±": plus_minus,
    "p": probability,
    "": count,
}


def quantity_with_interval(
    value: float, unit: str, low: float | None = None, high: float | None = None
) -> str:
    """`quantity` with its interval, where it has one: `1.080× [1.068, 1.093]`, `18.4 ms [18.1, 18.7]`."""
    if low is None or high is None:
        return quantity(value, unit)
    if unit == "×":
        return f"{significant(value)}× [{significant(low)}, {significant(high)}]"
    if unit == "s":
        return interval(low, value, high)
    return f"{quantity(value, unit)} [{quantity(low, unit)}, {quantity(high, unit)}]"


def unit_text(unit: str, power: int) -> str:
    """The unit of an axis whose numbers are divided by a power of ten: `ms`, `GFLOP/s`, `k image/s`."""
    space = "" if unit == "s" or unit in PREFIXED else " "
    return f"{PREFIXES[power]}{space}{unit}".strip()


def signed(value: float, unit: str) -> str:
    """`+1.20 ms`, `−30.0 %`, `0.00 s`; what is left of nothing when floats are subtracted is nothing."""
    value = round(value, 12)
    return f"{'−' if value < 0 else '+' if value else ''}{quantity(abs(value), unit)}"


def si_power(value: float) -> int:
    """The power of ten, a multiple of 3, that leaves one to three digits before the point."""
    digits = _digits(value)
    power = 3 * (digits.adjusted() // 3) if digits else 0
    return max(min(PREFIXES), min(max(PREFIXES), power))


def visible(text: str) -> str:
    r"""`text` on one line, with every character that would act rather than show as `\x1b` or `\u202e`.

    So is the first of what a CI service would take for a command: `\x3a:add-mask::`. All text from files and
    other programs passes here before it is shown.
    """
    shown = text
    if not text.isprintable():  # what is printable has no character of these categories
        shown = "".join(_escaped(c) if unicodedata.category(c) in HIDDEN else c for c in text)
    if "::" not in shown and "##" not in shown:
        return shown
    return COMMAND.sub(lambda found: f"\\x{ord(found[0][0]):02x}{found[0][1:]}", shown)


def _escaped(character: str) -> str:
    return character.encode("unicode_escape").decode("ascii")


def _shifted(value: float, power: int) -> str:
    return f"{_digits(value).scaleb(-power):f}"


def _digits(value: float) -> Decimal:
    # Rounded in decimal before the unit is chosen: 999.6 µs is 1.00 ms, not 1000 µs.
    return Decimal(f"{value:.2e}")


WORDS = re.compile(r"accelbench [^;,→]*[^;,→\s][;,]?|\S+")  # a command stays whole, to be copied


def at_words(line: str, columns: int) -> list[str]:
    """The line in as many as it takes, broken between words, the further ones indented."""
    if len(line) <= columns:
        return [line]
    lines, end = [""], 0
    for word in WORDS.finditer(line):
        gap = line[end : word.start()]
        if lines[-1].strip() and len(lines[-1]) + len(gap) + len(word[0]) > columns:
            lines.append("  " + word[0])
        else:
            lines[-1] += gap + word[0]
        end = word.end()
    return lines


def duration(value: float) -> str:
    """Whole seconds, or minutes and seconds."""
    minutes, rest = divmod(round(value), 60)
    return f"{minutes} min {rest:02d} s" if minutes else f"{rest} s"
