"""Numbers that the documentation quotes are those of the code."""

import re

import pytest

from benchbench.analyse import drift, metrics, roofline, rows
from benchbench.backends import base
from benchbench.judging import change_points, comparison, session_cases, sessions
from benchbench.judging import comparison as verdicts
from benchbench.judging import pairs as match
from benchbench.judging import sessions as spread
from benchbench.launch import pool
from benchbench.machine import conditions, sampler
from benchbench.profiling import tables
from benchbench.running import measure, schedule
from benchbench.timing import sampling
from benchbench.timing.policy import ACCELERATOR_S, POLICIES, PROFILED_S
from benchbench.worker import case, reference, verify
from benchbench.workloads import _amp, steps
from benchbench.workloads._reference import rounding
from benchbench.workloads.operations.conv2d import Conv2d
from benchbench.workloads.operations.lstm import Lstm
from tests.test_architecture import ROOT

NUMBER = "([0-9][0-9,.]*[0-9]|[0-9])"
WORDS = {"two": 2, "three": 3, "four": 4, "five": 5, "six": 6, "eleven": 11, "twenty": 20, "half": 0.5}
WORD = f"({'|'.join(WORDS)})"
DEFAULT, QUICK = POLICIES["default"], POLICIES["quick"]
QUOTED = [
    ("measuring", f"blocks last less than 1/{NUMBER} of that", sampling.OUTGROWN),
    ("measuring", f"at least {NUMBER} times its error", reference.FLIPS_TOLERATED),
    ("measuring", f"within {NUMBER} u of zero", rounding.NEAR),
    ("measuring", f"sums round as well, within {NUMBER} u", rounding.NEAR_IN_SUMS),
    ("measuring", f"it sleeps for {WORD} a second", sampler.PAUSE_S),
    ("measuring", f"has less than {NUMBER} MiB free", measure.FULL / 2**20),
    ("measuring", f"Less than {NUMBER} GiB in the temporary", measure.SCARCE / 2**30),
    ("measuring", f"waits until {WORD} looks in a row", measure.QUIET_LOOKS),
    ("measuring", f"at least {NUMBER} ms and at least", 1000 * sampling.SHORTEST_BLOCK_S),
    ("measuring", f"at least {NUMBER} times as long as a block", sampling.OVERHEAD),
    ("measuring", f"batches of at most {NUMBER} and", sampling.MOST_BATCHED),
    ("measuring", f"until {WORD} overlapping pairs", sampling.AGREEMENTS),
    ("measuring", f"as many as {NUMBER} s hold", DEFAULT.window_s),
    ("measuring", f"s hold .`--quick`: {NUMBER} s", QUICK.window_s),
    ("measuring", f"Warm-up lasts at least {NUMBER} s", DEFAULT.warmup_min_s),
    ("measuring", f"`--quick`: {NUMBER} s.,\\s+and on an accelerator", QUICK.warmup_min_s),
    ("measuring", f"on an accelerator {NUMBER} s", ACCELERATOR_S),
    ("measuring", f"comes first .{NUMBER} s", DEFAULT.warmup_max_s),
    ("measuring", f"s, `--quick` {NUMBER} s", QUICK.warmup_max_s),
    ("measuring", f"thirds of at least {NUMBER} timed", sampling.THIRDS * sampling.LEAST_THIRD),
    ("measuring", f"blocks differ by more than {NUMBER} %", 100 * sampling.LEVELS_APART),
    ("measuring", f"% and {NUMBER} standard errors, or windows", sampling.LEVEL_ERRORS),
    ("measuring", f"or windows of {NUMBER} s wander", sampling.WINDOW_S),
    ("measuring", f"their medians' {NUMBER} % and", 100 * sampling.TAIL),
    ("measuring", f"% and {NUMBER} standard errors, so a neighbour", sampling.WANDER_ERRORS),
    ("measuring", f"They are {WORD} blocks long at least", sampling.LEAST_WINDOW),
    ("measuring", f"long at least and {WORD} in\\s+a row", sampling.LEAST_WINDOWS),
    ("checking", f"kurtosis of normal values .p ≥ {NUMBER}, Anscombe", session_cases.ALIKE_P),
    ("checking", f"chance has it\\s+.p < {NUMBER}", sessions.OUTLYING_P),
    ("checking", f"at least {NUMBER} of the case's own", sessions.OWN_SHARE),
    ("checking", f"p < {NUMBER} with five sessions", session_cases.HEAVY_P),
    ("checking", f"with t of {NUMBER} degrees\\s+of freedom: a further", spread.ENOUGH - 1),
    ("measuring", f"when the {NUMBER} % interval of the median", 100 * sampling.CONFIDENCE),
    ("measuring", f"Pairs go on for a second, {WORD} at least", sampling.PAIRS),
    ("measuring", f"more than {NUMBER} times as long in every pair", sampling.PREMATURE),
    ("measuring", f"λ = {NUMBER} .", verify.LAMBDA),
    ("measuring", f"over {NUMBER} sampled elements, and", verify.SAMPLES),
    ("measuring", f"the losses of {WORD} steps", verify.STEPS),
    ("measuring", f"The tolerance is {NUMBER} times the largest", steps.DRAWS_TOLERATED),
    ("measuring", f"likewise: {NUMBER} times the largest", Lstm.draws_tolerated),
    ("measuring", f"of at most {NUMBER} steps of", Lstm().rounding_size().length),
    ("measuring", f"elements of a tensor the {NUMBER} that deviate most", verify.SPARED),
    ("measuring", f"error of {NUMBER} runs of the NumPy", reference.DRAWS),
    ("measuring", f"In float64 it is {NUMBER} times more", reference.FLOAT64_FACTOR),
    ("measuring", f"more than {NUMBER} % off is not compared", 100 * reference.VERIFIABLE),
    ("measuring", f"more than {NUMBER} times what it changes", case.DRIFT),
    ("measuring", f"one of up to {NUMBER} other batches", case.OTHER_BATCHES),
    ("measuring", f"a batch {NUMBER} times as large", case.FAR),
    ("measuring", f"at most {WORD} processes per core", pool.WORKERS_PER_CORE),
    ("measuring", f"a half width above {NUMBER} %", 100 * (DEFAULT.continue_above or 0)),
    ("measuring", f"stops once all are within {NUMBER} %", 100 * QUICK.settled),
    ("measuring", f"the {WORD} of the cases whose intervals", schedule.SHARE),
    ("measuring", f"it is taken as {NUMBER} MiB", base.LARGEST_CACHE / 2**20),
    ("measuring", f"If timing takes more than {NUMBER} % of a block", 100 / sampling.OVERHEAD),
    ("measuring", f"`enqueue_s` exceeds {NUMBER} `device_s`", 1 - rows.DISAGREEMENT),
    ("measuring", f"samples the machine {WORD} times a second", 1 / sampler.INTERVAL_S),
    ("measuring", f"others used more than {NUMBER} of a core", conditions.tolerated_cores(1)),
    ("measuring", f"more than {NUMBER} % of the case's CPUs", conditions.tolerated_cores(100)),
    ("measuring", f"more than {NUMBER} % of the samples", 100 * conditions.MOST_THROTTLED),
    ("measuring", f"clock is below {NUMBER} % of the run's median", 100 * conditions.SLOW_CLOCK),
    ("measuring", f"waited for memory in more than {NUMBER} % of the time", 100 * conditions.MOST_WAITING),
    ("measuring", f"slowest process takes more than {NUMBER} times", metrics.FARTHEST_APART),
    ("measuring", f"Telling it needs {NUMBER} s of samples", conditions.LEAST_SPAN_S),
    ("measuring", f"at p < {NUMBER}, two-sided", drift.SIGNIFICANCE),
    ("measuring", f"with cases as blocks, at p < {NUMBER}", drift.UNEVEN_SIGNIFICANCE),
    ("measuring", f"only if steps changed by {NUMBER} % or more", 100 * drift.NOTABLE),
    ("measuring", f"over padded images allows {NUMBER} times", Conv2d().multiplications_saved),
    ("measuring", f"with stride 2 it allows {NUMBER} times", Conv2d(stride=2).multiplications_saved),
    ("measuring", f"99th percentile and {NUMBER} times their median", roofline.HIDING),
    ("measuring", f"At least {NUMBER} blocks are needed", roofline.HIDING_BLOCKS),
    ("measuring", f"More than {NUMBER} times a ceiling", roofline.BEYOND),
    ("measuring", f"at least {NUMBER} s must lie between those samples", conditions.LEAST_ENERGY_S),
    ("comparing", f"fewer than {WORD} processes with a value", match.LEAST_PROCESSES),
    ("comparing", f"p < {NUMBER} and", verdicts.ALPHA),
    ("cli", f"Where that is more than {NUMBER} %", 100 * match.PARTS_APART),
    ("comparing", f"where at least {NUMBER} % of", 100 * comparison.SHARE),
    ("comparing", f"of {WORD} or more compared cases", comparison.LEAST_CASES),
    ("api", r"threshold=(0\.[0-9]+), \*, variance", verdicts.THRESHOLD),
    ("profiling", f"differ by more than {NUMBER} % a note", 100 * tables.DISTURBED),
    ("profiling", f"for {WORD} a second", PROFILED_S),
    ("history", f"p ≥ {NUMBER}", change_points.SIGNIFICANCE),
    ("history", f"segments of {WORD} or more runs", change_points.SHORTEST),
    ("history", f"from the median of the {WORD} around it", 2 * change_points.NEIGHBOURS + 1),
    ("backends", f"All scale from {NUMBER} by", _amp.SCALE),
]  # fmt: skip


@pytest.mark.parametrize(("page", "pattern", "value"), QUOTED, ids=[f"{p}-{q}" for p, q, _ in QUOTED])
def test_a_quoted_number_is_the_codes(page: str, pattern: str, value: float) -> None:
    text = " ".join((ROOT / f"docs/{page}.md").read_text().split())
    quoted = re.findall(pattern, text)
    assert quoted, "the sentence is no longer there"
    for number in quoted:
        assert (WORDS[number] if number in WORDS else float(number.replace(",", ""))) == pytest.approx(value)


def test_the_times_of_one_quick_case_are_the_study_s() -> None:
    text = " ".join((ROOT / "docs/measuring.md").read_text().split())
    printed = (ROOT / "studies/output/user_time.md").read_text()
    after, before = re.findall(r"takes ([0-9.]+ s) instead of ([0-9.]+ s)", text)[0]
    later, earlier = re.findall(r"not larger: ([0-9.]+) % against ([0-9.]+) %", text)[0]
    (share,) = re.findall(r"Blocks take ([0-9]+) % of the run", text)
    for name, wall, apart in (("before", before, earlier), ("after", after, later)):
        row = next(line for line in printed.splitlines() if line.startswith(f"| {name} |"))
        assert wall in row
        assert f"{apart}%" in row
    assert f"{share}%" in row


def test_what_is_said_of_drifting_runs_is_the_study_s() -> None:
    text = " ".join((ROOT / "docs/measuring.md").read_text().split())
    quiet, walks, uneven = (ROOT / "studies/output/drift.txt").read_text().split("\n\n")
    figures = re.compile(r"([0-9.]+)%")
    (most,) = re.findall(rf"at most {NUMBER} % were said to drift", text)
    assert float(most) == max(map(float, figures.findall(quiet)))

    def columns(table: str) -> list[list[float]]:
        """Of 30 cases, with 3, 5 and 10 rounds: told, shuffled, in order, slower."""
        rows = [figures.findall(line) for line in table.splitlines() if line.startswith("   30 ")]
        return [[float(each) for each in column] for column in zip(*rows, strict=True)]

    three = f"{NUMBER}, {NUMBER} and {NUMBER} %"
    (walked,) = re.findall(rf"in {three} of comparisons .*? instead of {three}; slower in {three}", text)
    _, shuffled, ordered, slower = columns(walks)
    assert [float(each) for each in walked] == [*ordered, *(round(each + 1e-9) for each in shuffled), *slower]
    (shifted,) = re.findall(rf"that was so in {three}, instead of {three} ", text)
    _, shuffled, ordered, _ = columns(uneven)
    assert [float(each) for each in shifted] == [*ordered, *shuffled]


def test_the_table_of_presets_is_that_of_the_policies() -> None:
    text = (ROOT / "docs/measuring.md").read_text()
    for preset, policy in {
        "`--quick`": QUICK,
        "default": DEFAULT,
        "`--rigorous`": POLICIES["rigorous"],
    }.items():
        noisy = policy.rounds if policy.continue_above is None else 2 * policy.rounds
        most = policy.most_rounds
        cells = (policy.rounds, most, noisy, f"{100 * policy.precision:g} %", f"{policy.max_s:g}")
        assert f"| {preset} | {' | '.join(map(str, cells))} |" in text


@pytest.mark.parametrize(
    ("page", "study"),
    [
        ("devices.md", "collective_bandwidth.md"),
        ("fleet.md", "fleet_daemons.txt"),
        ("measuring.md", "user_time.md"),
    ],
)
def test_a_page_quotes_the_ratios_that_a_study_printed(page: str, study: str) -> None:
    printed = (ROOT / "studies/output" / study).read_text().replace(" to ", " ")
    quoted = re.findall(r"(\d\.\d{3,4}) \[(\d\.\d{3,4}), (\d\.\d{3,4})\]", (ROOT / "docs" / page).read_text())
    assert len(quoted) >= 2
    figures = re.findall(r"\d\.\d{3,4}", printed)
    for ratio in quoted:
        assert "".join(ratio) in "".join(figures)
