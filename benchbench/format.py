"""Numbers as text, with 3 significant digits and SI units, and text of other programs made safe to show."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Sequence
from decimal import Decimal

PREFIXES = {-12: "p", -9: "n", -6: "µ", -3: "m", 0: "", 3: "k", 6: "M", 9: "G", 12: "T", 15: "P"}
COUNTS = {3: "thousand", 6: "million", 9: "billion", 12: "trillion"}  # powers of ten of counted things
BINARY = ("B", "KiB", "MiB", "GiB", "TiB", "PiB")
# Controls, invisible format characters (bidi among them), surrogates, line and paragraph separators.
HIDDEN = frozenset({"Cc", "Cf", "Cs", "Zl", "Zp"})
# Commands of CI services in a log. GitHub: `::name …::` at the start of a line and `##[name]` anywhere
# (actions/runner, ActionCommand.cs). Azure Pipelines and TeamCity: `##vso[` and `##teamcity[`. Only GitHub's
# names are listed, since names of tests contain `::`, too.
COMMAND = re.compile(
    r"::(?=(?:add-mask|add-matcher|add-path|debug|echo|endgroup|error|group|notice|remove-matcher|save-state"
    r"|set-env|set-output|stop-commands|warning)(?: |::))|##(?=\[|vso\[|teamcity\[)",
    re.IGNORECASE,
)
PREFIXED = ("FLOP", "FLOP/s", "B/s", "J", "W")  # units that a prefix is written before
LARGEST_SHARE, BEYOND = 10, ">1000 %"  # largest fraction shown as a number, and the text beyond it
SMALLEST_INTERVAL = 0.001  # fraction below which `plus_minus` shows only a bound
LONGEST_BAR = 20  # characters


def seconds(value: float) -> str:
    """`1.20 ms`; seconds are the largest unit."""
    power = second_power(value)
    return f"{_shifted(value, power)} {PREFIXES[power]}s"


def listed_seconds(values: Sequence[float]) -> str:
    """`3.55, 216, 213 ms`, in the unit of the smallest value."""
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


def per(value: float, unit: str) -> str:
    """`1.24k image/EUR`: the prefix follows the number; small values have none, such as `0.909 image/s`."""
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
    """`1.23 %` for the fraction 0.0123."""
    return f"{_shifted(value, -2)} %"


def share(value: float) -> str:
    """`5 %` for the fraction 0.05, without trailing zeros."""
    return f"{100 * value:.3g} %" if value <= LARGEST_SHARE else BEYOND


def plus_minus(value: float) -> str:
    """`±13 %` for the fraction 0.13, with two digits from 10 % on and one below."""
    if value > LARGEST_SHARE:
        return f"±{BEYOND}"
    if value < SMALLEST_INTERVAL:
        return f"±<{share(SMALLEST_INTERVAL)}"
    rounded = Decimal(f"{100 * value:.0e}" if value < 0.1 else f"{100 * value:.0f}")
    return f"±{rounded:f} %"


def bar(share: float, length: int = LONGEST_BAR) -> str:
    """A bar of `share` times `length` characters, in eighths of a character, but at least one eighth."""
    eighths = min(max(round(8 * length * share), 1), 8 * length)
    return "█" * (eighths // 8) + " ▏▎▍▌▋▊▉"[eighths % 8].strip()


def limit(value: float) -> str:
    """`3%` for the fraction 0.03, in the form in which options accept it."""
    return f"{100 * value:.3g}%"


def significant(value: float) -> str:
    """Four significant digits, with trailing zeros: `1.100`."""
    return f"{value:#.4g}".rstrip(".")


def probability(value: float) -> str:
    """`0.012`, `<0.001`."""
    return "<0.001" if value < 0.001 else f"{value:.3f}"


def count(value: float) -> str:
    """`12`, or `1.5` for a mean."""
    return f"{value:.1f}".removesuffix(".0")


def count_of(number: int, noun: str) -> str:
    """`1 case`, `2 cases`, `0 processes`, for a regular noun."""
    return f"{number} {noun if number == 1 else plural(noun)}"


def plural(noun: str) -> str:
    """The plural of a regular noun."""
    return f"{noun}es" if noun.endswith("s") else f"{noun}s"


def quantity(value: float, unit: str) -> str:
    """`value` in the form of its unit: `1.20 ms`, `62.0 MiB`, `1.24k image/s`."""
    if form := FORMS.get(unit):
        return form(value)
    return rate(value, unit) if unit in PREFIXED else per(value, unit)


def _share_measured(value: float) -> str:
    return percent(value) if value <= LARGEST_SHARE else BEYOND


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
    """`quantity` with its interval, if known: `1.080× [1.068, 1.093]`, `18.4 ms [18.1, 18.7]`."""
    if low is None or high is None:
        return quantity(value, unit)
    if unit == "×":
        return f"{significant(value)}× [{significant(low)}, {significant(high)}]"
    if unit == "s":
        return interval(low, value, high)
    return f"{quantity(value, unit)} [{quantity(low, unit)}, {quantity(high, unit)}]"


def unit_text(unit: str, power: int) -> str:
    """The unit of numbers that are divided by a power of ten: `ms`, `GFLOP/s`, `thousand images/s`."""
    if unit == "s" or unit in PREFIXED or not unit:
        return f"{PREFIXES[power]}{unit}"
    item, slash, divisor = unit.partition("/")
    items = " or ".join(map(plural, item.split(" or "))) if slash else item
    return f"{COUNTS.get(power, PREFIXES[power])} {items}{slash}{divisor}".strip()


def axis_power(value: float, unit: str) -> int:
    """The power of ten by which the numbers of an axis up to `value` are divided."""
    if unit == "s":
        return second_power(value)
    return si_power(value) if unit in PREFIXED else max(0, si_power(value))


def signed(value: float, unit: str) -> str:
    """`+1.20 ms`, `−30.0 %`, `0.00 s`."""
    value = round(value, 12)  # rounding errors of a difference count as 0
    return f"{'−' if value < 0 else '+' if value else ''}{quantity(abs(value), unit)}"


def si_power(value: float) -> int:
    """The power of ten, a multiple of 3, that leaves one to three digits before the point."""
    digits = _digits(value)
    power = 3 * (digits.adjusted() // 3) if digits else 0
    return max(min(PREFIXES), min(max(PREFIXES), power))


def visible(text: str) -> str:
    r"""`text` on one line, with control and invisible characters escaped, as in `\x1b` or `\u202e`.

    The first character of a command of a CI service is escaped, too: `\x3a:add-mask::`. Every text from files
    and other programs must pass this function before it is shown.
    """
    escaped = text
    if not text.isprintable():  # printable characters are in none of these categories
        escaped = "".join(_escape(c) if unicodedata.category(c) in HIDDEN else c for c in text)
    if "::" not in escaped and "##" not in escaped:
        return escaped
    return COMMAND.sub(lambda match: f"\\x{ord(match[0][0]):02x}{match[0][1:]}", escaped)


def _escape(character: str) -> str:
    return character.encode("unicode_escape").decode("ascii")


def _shifted(value: float, power: int) -> str:
    return f"{_digits(value).scaleb(-power):f}"


def _digits(value: float) -> Decimal:
    # Round in decimal before choosing the unit: 999.6 µs is 1.00 ms, not 1000 µs.
    return Decimal(f"{value:.2e}")


WORDS = re.compile(r"accelbench [^;,→]*[^;,→\s][;,]?|\S+")  # a command is one word, so it can be copied


def at_words(line: str, columns: int) -> list[str]:
    """Break a line between words into lines of at most `columns`; further lines are indented."""
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
    minutes, seconds = divmod(round(value), 60)
    return f"{minutes} min {seconds:02d} s" if minutes else f"{seconds} s"
