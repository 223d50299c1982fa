"""Imports a user's workload files for another process, and tells what they define or what is wrong with them.

`python -m benchbench.worker.user_files DESCRIPTOR`. A JSON line per question and per answer. An answer that
takes too long ends this process, and so does the end of the channel.
"""

from __future__ import annotations

import dataclasses
import inspect
import json
import os
import signal
import socket
import sys
import traceback
from collections.abc import Iterator
from contextlib import suppress
from importlib import import_module
from typing import Any, get_origin

from benchbench import registry
from benchbench.errors import UsageError, kind_of, text_of
from benchbench.model.case import Dtype, Phase
from benchbench.worker.children import die_with_parent
from benchbench.workloads.base import Workload

Message = dict[str, Any]
MOST_CHARACTERS = 300  # of an error's text


def main(descriptor: int, limit_s: float) -> None:
    """Answer until the channel closes; `limit_s`: to import a file, or to count what a workload costs."""
    die_with_parent(os.getppid(), signal.SIGCONT)  # were it stopped, it would not see the channel close
    os.set_inheritable(descriptor, False)
    registry.add_user_folders()
    with socket.socket(fileno=descriptor) as channel, channel.makefile("rwb") as lines:
        for line in lines:
            signal.setitimer(signal.ITIMER_REAL, limit_s)  # its signal ends the process
            reply = json.dumps(answer(json.loads(line)), ensure_ascii=False)
            signal.setitimer(signal.ITIMER_REAL, 0)
            lines.write(reply.encode(errors="replace") + b"\n")  # half a surrogate, of a file's name
            lines.flush()


def answer(question: Message) -> Message:
    """What a file defines, or figures of a workload at given parameters; the mistake where it has one."""
    file = question["file"]
    try:
        if "module" in question:
            return described(import_module(question["module"]), file)
        return figures(question["workload"], question["params"])
    except UsageError as error:
        return {"refused": str(error), "hint": error.hint}
    except SystemExit:
        return {"mistakes": [mistake("it calls sys.exit when it is imported", None)]}
    except BaseException as error:  # noqa: BLE001 - a user's file may fail in any way
        return {"mistakes": [mistake(told(error), line_of(error, file))]}


def described(module: Any, file: str) -> Message:
    """The workloads of an imported module, and the mistakes in them."""
    workloads, mistakes = [], list(unfinished(module))
    for name, kind in registry.entries_of(module, Workload).items():  # type: ignore[type-abstract]
        if wrong := fault(kind, name, module.__name__.rpartition(".")[2]):
            mistakes.append(mistake(wrong, _line(kind)))
            continue
        try:
            kind().cost(Dtype.FLOAT32)
            workloads.append(facts(name, kind))
        except BaseException as error:  # noqa: BLE001 - likewise
            mistakes.append(mistake(f"{kind.__name__}: {told(error)}", line_of(error, file)))
    if not workloads and not mistakes:
        mistakes = [mistake("it defines no Workload class", None)]
    return {"workloads": workloads, "mistakes": mistakes}


def unfinished(module: Any) -> Iterator[Message]:
    """Classes that lack a method, and that no other class of the file finishes."""
    own = [value for value in vars(module).values() if registry.is_class_of(module, value, Workload)]
    for kind in own:
        if inspect.isabstract(kind) and not any(kind in other.__mro__[1:] for other in own):
            missing = ", ".join(sorted(kind.__abstractmethods__))
            yield mistake(f"{kind.__name__} lacks {missing}", _line(kind))


def fault(kind: type[Workload], name: str, stem: str) -> str:
    """What is missing of a class that has all methods, if anything."""
    if not _is_own_dataclass(kind):
        return f"{kind.__name__} is not a dataclass: write @dataclass(frozen=True) above it"
    if not isinstance(getattr(kind, "summary", None), str):
        return f'{kind.__name__} has no summary: write summary = "…"'
    if not isinstance(getattr(kind, "phase", None), Phase):
        return f"{kind.__name__} has no phase: derive it from Operation or Training"
    if wrong := _parameter_fault(kind):
        return f"{kind.__name__}: {wrong}"
    if kind.reduction is Workload.reduction and not kind.draws_tolerated:
        return f"{kind.__name__} has neither reduction nor draws_tolerated: nothing gives its tolerance"
    if not f"{name}_".startswith(f"{stem}_"):
        return f"{kind.__name__}: of several workloads in a file, each name begins with the file's, {stem}"
    return ""


def _parameter_fault(kind: type[Workload]) -> str:
    for field in dataclasses.fields(kind):  # type: ignore[arg-type]  # it is one
        if field.default is dataclasses.MISSING:
            return f"the parameter {field.name} has no default"
        if type(field.default) not in (bool, int, float, str):
            return f"{field.name} is neither a number, a truth value nor a word"
    return ""


def _is_own_dataclass(kind: type) -> bool:
    """Whether its parameters are all fields: a class derived from a dataclass may add none."""
    if not dataclasses.is_dataclass(kind) or "__dataclass_fields__" in vars(kind):
        return dataclasses.is_dataclass(kind)
    return all("ClassVar" in str(get_origin(each) or each) for each in inspect.get_annotations(kind).values())


def facts(name: str, kind: type[Workload]) -> Message:
    """What a plan needs to know before parameters are chosen."""
    return {
        "name": name,
        "summary": kind.summary,
        "phase": kind.phase.value,
        "defaults": kind.fields(),
        "written_for": kind.frameworks(),
        "draws_tolerated": kind.draws_tolerated,
        "version": kind.version,
        "refused_on_cpu": kind.refused_on_cpu,
        "worlds": kind.worlds,
        "divided_by": {name: kind.strategies(name) for name in kind.frameworks()},
        "lacking": dict(kind.lacking),
        "formerly": kind.formerly,
    }


def figures(name: str, params: Message) -> Message:
    """Parameters as a case has them; by dtype, what a step costs and why it is refused, if so."""
    work = registry.load_class(registry.WORKLOADS, name, Workload)(**params)  # type: ignore[type-abstract]
    refused = {dtype: work.refuses(dtype) for dtype in Dtype}
    costs = {dtype: None if refused[dtype] else dataclasses.asdict(work.cost(dtype)) for dtype in Dtype}
    return {
        "params": work.params,
        "refused_dtypes": refused,
        "costs": costs,
        "multiplications_saved": work.multiplications_saved,
        "backward_passes": work.backward_passes,
    }


def mistake(text: str, line: int | None) -> Message:
    """A mistake, as it is sent."""
    return {"text": text, "line": line}


def told(error: BaseException) -> str:
    """Kind and text of an exception, on one line."""
    text = error.msg if isinstance(error, SyntaxError) else text_of(error)
    return f"{kind_of(error)}{' '.join(text.split())}"[:MOST_CHARACTERS]


def line_of(error: BaseException, file: str) -> int | None:
    """The line of `file` that an exception came from, if one did."""
    if isinstance(error, SyntaxError) and error.filename == file:
        return error.lineno
    lines = [each.lineno for each in traceback.extract_tb(error.__traceback__) if each.filename == file]
    return lines[-1] if lines else None


def _line(kind: type) -> int | None:
    with suppress(OSError, TypeError):
        return inspect.getsourcelines(kind)[1]
    return None


if __name__ == "__main__":
    main(int(sys.argv[1]), float(sys.argv[2]))
