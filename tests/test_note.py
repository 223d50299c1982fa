"""Notes: a kind with data, put into words when it is shown."""

import string

import pytest

from benchbench.model.note import CLAUSES, FORMATS, NoteKind, note, plain

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
