"""Failure messages: the innermost message is the headline; the record has the traceback."""

from typing import Any

import pytest

from benchbench.errors import MAX_MESSAGE, UsageError, one_line

DATA_LOADER = """Caught ValueError in DataLoader worker process 0.
Original Traceback (most recent call last):
  File "/tmp/data.py", line 6, in __getitem__
    try: {}["x"]
         ~~^^^^^
KeyError: 'x'

The above exception was the direct cause of the following exception:

Traceback (most recent call last):
  File "/site-packages/torch/utils/data/_utils/worker.py", line 374, in _worker_loop
    data = fetcher.fetch(index)
           ^^^^^^^^^^^^^^^^^^^^
ValueError: bad sample
second line
"""
GRAPH = """Graph execution error:

Detected at node StringToNumber defined at (most recent call last):
  File "/tmp/graph.py", line 6, in <module>

  File "/tmp/graph.py", line 5, in f

StringToNumberOp could not correctly convert string: a
\t [[{{node StringToNumber}}]] [Op:__inference_f_29]"""
COMPILER = "backend='inductor' raised:\nCppCompileError: C++ compile error\n\nCommand:\ng++"
EXPLAINED = (
    "RuntimeError when making fake tensor call\n  Explanation: Dynamo failed: shape '[3]'\n  Hint: none"
)
HEADLINES = {  # real messages of torch and TensorFlow
    DATA_LOADER: "ValueError: bad sample (Caught ValueError in DataLoader worker process 0.)",
    GRAPH: "RuntimeError: StringToNumberOp could not correctly convert string: a (Graph execution error:)",
    COMPILER: "CppCompileError: C++ compile error (backend='inductor' raised:)",
    EXPLAINED: "RuntimeError: Dynamo failed: shape '[3]' (RuntimeError when making fake tensor call)",
    "plain\nand more": "RuntimeError: plain",
    "it ends here:": "RuntimeError: it ends here:",
    "cut off\nTraceback (most recent call last):\n  File": "RuntimeError: cut off",
    "": "RuntimeError",
}


@pytest.mark.parametrize("text", HEADLINES)
def test_the_innermost_wrapped_message_is_the_headline(text: str) -> None:
    assert one_line(RuntimeError(text)).strip() == HEADLINES[text]


@pytest.mark.parametrize("text", [RuntimeError("mute"), KeyboardInterrupt(), 3])
def test_an_error_without_readable_text_is_named_by_its_type(text: Any) -> None:
    class MuteError(Exception):
        def __str__(self) -> str:
            if isinstance(text, BaseException):
                raise text
            return text  # type: ignore[no-any-return]

    assert one_line(MuteError()).startswith("MuteError: ")


def test_the_cause_of_an_error_is_named_once() -> None:
    outer, inner = RuntimeError("no data"), FileNotFoundError(2, "No such file", "x.npz")
    outer.__cause__ = inner
    text = "RuntimeError: no data; caused by FileNotFoundError: [Errno 2] No such file: 'x.npz'"
    assert one_line(outer) == text
    inner.__cause__ = inner
    assert one_line(inner).count("FileNotFoundError") == 1
    inner.__cause__ = outer
    assert len(one_line(outer)) <= MAX_MESSAGE
    repeated = ValueError("no data")
    repeated.__cause__ = RuntimeError("no data")
    assert one_line(repeated).count("no data") == 2
    assert one_line(ExceptionGroup("several", [KeyError("x")])).endswith("caused by KeyError: 'x'")


def test_an_error_of_accelbench_shows_its_hint_instead_of_its_type() -> None:
    assert one_line(UsageError("There is no batch=9.", "-p batch=8 is the largest.")) == (
        "There is no batch=9. -p batch=8 is the largest."
    )
    raised = RuntimeError("no data")
    raised.__cause__ = UsageError("It has no array.")
    assert one_line(raised) == "RuntimeError: no data; caused by It has no array."


@pytest.mark.real
@pytest.mark.filterwarnings("ignore:os.fork")  # from JAX, if another test imported it
def test_the_error_of_a_data_loaders_worker_is_the_headline() -> None:
    data = pytest.importorskip("torch.utils.data")

    class Broken(data.Dataset):  # type: ignore[misc,name-defined]
        def __len__(self) -> int:
            return 1

        def __getitem__(self, index: int) -> int:
            raise OSError(28, "No space left on device")

    with pytest.raises(OSError, match="DataLoader") as caught:
        next(iter(data.DataLoader(Broken(), num_workers=1)))
    assert one_line(caught.value).startswith("OSError: [Errno 28] No space left on device (Caught OSError")
