"""Short names of cases: they fit in little room and still differ."""

from hypothesis import given
from hypothesis import strategies as st

from benchbench.documents.comparison import comparison_document
from benchbench.documents.document import Column, Document, table
from benchbench.documents.plan import plan_document
from benchbench.documents.short_names import case_cells, short_params, varying_params
from benchbench.exporters.terminal import narrow_table, render
from benchbench.judging.comparison import compare_runs
from tests.factories import a_case, a_run, a_run_info, some_rounds

SIZES = {"batch": 8, "channels": 64, "height": 28, "width": 28, "filters": 64, "kernel": 3, "padding": 1}


def test_a_short_id_has_the_parameters_that_differ() -> None:
    ids = [a_case(workload="conv2d", params={**SIZES, "kernel": kernel}).id for kernel in (1, 3)]
    ids += [a_case(workload="lone", params=SIZES).id, a_case(params={"m": 8}).id, "pytest::a_test"]
    assert [cell.short for cell in case_cells(ids).values()] == [
        "conv2d(kernel=1,…)/float32/eager@torch:cpu",
        "conv2d(kernel=3,…)/float32/eager@torch:cpu",
        "lone(batch=8,channels=64,…)/float32/eager@torch:cpu",
        "gemm(m=8)/float32/eager@torch:cpu",
        "",
    ]


params = st.dictionaries(st.sampled_from("mnkb"), st.integers(1, 3), min_size=1)


@given(st.lists(st.tuples(st.sampled_from(["gemm", "conv2d"]), params), max_size=8))
def test_different_cases_have_different_short_ids(sizes: list[tuple[str, dict[str, int]]]) -> None:
    names = sorted({name for _, sizes_of_case in sizes for name in sizes_of_case})
    cases = [
        (workload, {name: sizes_of_case.get(name, 0) for name in names}) for workload, sizes_of_case in sizes
    ]
    ids = {a_case(workload=workload, params=sizes_of_case).id for workload, sizes_of_case in cases}
    assert len({cell.short for cell in case_cells(ids).values()}) == len(ids)


def test_a_narrow_comparison_has_short_ids() -> None:
    cases = [a_case(workload="conv2d", params={**SIZES, "kernel": kernel}) for kernel in (1, 3)]
    ref, new = (
        a_run([record for case in cases for record in some_rounds(step, 1.01 * step, step, case=case)])
        for step in (1.0, 2.0)
    )
    comparison = compare_runs(ref, new)
    document = comparison_document(comparison, comparison.verdicts)
    assert "slower  conv2d(kernel=1,…)/float32/eager@torch:cpu\n" in render(document, 80)
    assert f"slower  {cases[0].id}\n" in render(document, 120)


def test_a_narrow_plan_has_short_ids() -> None:
    case = a_case(workload="resnet50_infer", params={"batch": 1, "image": 224, "depth": 50})
    document = plan_document(a_run_info(plan=(case,)))
    assert "resnet50_infer(batch=1,image=224,…)/float32/eager@torch:cpu  " in render(document, 70)
    assert f"{case.id}  " in render(document, 90)


def rows_of_words(*words: str) -> Document:
    return Document(name="x", title="x", tables=(table([{f"c{n}": word for n, word in enumerate(words)}]),))


def test_no_word_of_a_grid_is_broken() -> None:
    words = ("attention_backward", "optimizer=momentum of the network", "scaled dot-product attention")
    output = render(rows_of_words(*words), 60)
    assert max(map(len, output.splitlines())) <= 60
    assert set(" ".join(words).split()) <= set(output.split())


@given(st.lists(st.tuples(st.integers(1, 12), st.integers(0, 3)), min_size=2, max_size=6), st.integers(1, 80))
def test_columns_of_high_rank_are_dropped_first_and_named(fields: list[tuple[int, int]], width: int) -> None:
    columns = [Column(f"c{number}", rank=rank) for number, (_, rank) in enumerate(fields)]
    row = {f"c{number}": "x" * length for number, (length, _) in enumerate(fields)}
    wide = table([row], columns)
    narrow = narrow_table(wide, {}, width)
    dropped_ranks = [column.rank for column in columns if column not in narrow.columns]
    assert all(column.rank < min(dropped_ranks, default=9) for column in narrow.columns)
    assert {column for column in columns if column.rank == 0} <= set(narrow.columns)
    needed_width = sum(max(2, len(str(row[column.name]))) + 2 for column in narrow.columns) - 2
    assert needed_width <= width or not any(column.rank for column in narrow.columns)
    text = render(Document(name="x", title="x", tables=(wide,)), width)
    assert ("noroomfor" in "".join(text.split())) == bool(dropped_ranks)


def test_words_wrap_if_they_do_not_fit() -> None:
    assert render(rows_of_words("a" * 20, "b" * 20, ""), 30) == f"{'a' * 20}\n  c1: {'b' * 20}\n"


def test_a_parameter_that_some_sizes_lack_varies() -> None:
    """Parameters with a default that is left out, such as `streams`."""
    sizes = [("infer", {"batch": 2, "image": 64}), ("infer", {"batch": 2, "image": 64, "streams": 2})]
    varying = varying_params(sizes)
    assert varying == {("infer", "streams")}
    assert [short_params(*size, varying) for size in sizes] == [{"batch": 2, "image": 64}, {"streams": 2}]
