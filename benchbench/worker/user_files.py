"""Descriptions of the workloads in a user's file, and of the mistakes in it."""

from __future__ import annotations

import dataclasses
import inspect
from collections.abc import Iterator
from contextlib import suppress
from importlib import import_module
from typing import Any, get_origin

from benchbench import registry
from benchbench.errors import UsageError, kind_of, line_of_error, text_of
from benchbench.model.case import Dtype, Phase
from benchbench.workloads.base import Workload

Message = dict[str, Any]
MAX_MESSAGE = 300  # characters of an error's text


def describe_workloads(job: Message) -> Message:
    """Describe a module, or a workload at these parameters.

    Mistakes in the user's file are part of the description.
    """
    file = job["file"]
    try:
        if "module" in job:
            return describe_module(import_module(job["module"]), file)
        kind = registry.load_class(registry.WORKLOADS, job["workload"], Workload)  # type: ignore[type-abstract]
        return {"size": describe_size(kind(**job["params"]))}
    except UsageError as error:
        return {"refused": str(error), "hint": error.hint}
    except SystemExit:
        return {"mistakes": [mistake("it calls sys.exit when it is imported", None)]}
    except BaseException as error:  # noqa: BLE001 - a user's file may fail in any way
        return {"mistakes": [mistake(short_message(error), line_of_error(error, file))]}


def describe_module(module: Any, file: str) -> Message:
    """Describe the workloads of an imported module, and the mistakes in them."""
    workloads, mistakes = [], list(incomplete_classes(module))
    for name, kind in registry.entries_of(module, Workload).items():  # type: ignore[type-abstract]
        if problem := class_mistake(kind, name, module.__name__.rpartition(".")[2]):
            mistakes.append(mistake(problem, _line_of_class(kind)))
            continue
        try:
            kind().cost(Dtype.FLOAT32)
            workloads.append(describe_class(name, kind))
        except BaseException as error:  # noqa: BLE001 - a user's class may fail in any way
            mistakes.append(mistake(f"{kind.__name__}: {short_message(error)}", line_of_error(error, file)))
    if not workloads and not mistakes:
        mistakes = [mistake("it defines no Workload class", None)]
    return {"workloads": workloads, "mistakes": mistakes}


def incomplete_classes(module: Any) -> Iterator[Message]:
    """Mistakes of classes that lack a method and have no complete subclass in the file."""
    classes = [value for value in vars(module).values() if registry.is_class_of(module, value, Workload)]
    for kind in classes:
        if inspect.isabstract(kind) and not any(kind in subclass.__mro__[1:] for subclass in classes):
            missing = ", ".join(sorted(kind.__abstractmethods__))
            yield mistake(f"{kind.__name__} lacks {missing}", _line_of_class(kind))


def class_mistake(kind: type[Workload], name: str, stem: str) -> str:
    """Mistake in a class that has all its methods, or ""."""
    if not _is_own_dataclass(kind):
        return f"{kind.__name__} is not a dataclass: write @dataclass(frozen=True) above it"
    if not isinstance(getattr(kind, "summary", None), str):
        return f'{kind.__name__} has no summary: write summary = "…"'
    if not isinstance(getattr(kind, "phase", None), Phase):
        return f"{kind.__name__} has no phase: derive it from Operation or Training"
    if problem := _parameter_mistake(kind):
        return f"{kind.__name__}: {problem}"
    if kind.reduction is Workload.reduction and not kind.draws_tolerated:
        return f"{kind.__name__} has neither reduction nor draws_tolerated, so it has no tolerance"
    if not f"{name}_".startswith(f"{stem}_"):
        return f"{kind.__name__}: in a file of several workloads, each name must begin with {stem}"
    return ""


def _parameter_mistake(kind: type[Workload]) -> str:
    for field in dataclasses.fields(kind):  # type: ignore[arg-type]  # it is one
        if field.default is dataclasses.MISSING:
            return f"the parameter {field.name} has no default"
        if type(field.default) not in (bool, int, float, str):
            return f"the default of {field.name} is not a number, boolean or string"
    return ""


def _is_own_dataclass(kind: type) -> bool:
    """True if all parameters are fields; a class derived from a dataclass must not add others."""
    if not dataclasses.is_dataclass(kind) or "__dataclass_fields__" in vars(kind):
        return dataclasses.is_dataclass(kind)
    return all(
        "ClassVar" in str(get_origin(annotation) or annotation)
        for annotation in inspect.get_annotations(kind).values()
    )


def describe_class(name: str, kind: type[Workload]) -> Message:
    """Facts about a workload that do not depend on its parameters."""
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
        "unsupported": dict(kind.unsupported),
    }


def describe_size(work: Workload) -> Message:
    """A workload at its parameters: by dtype, the cost of a step and the reason for a refusal."""
    refused = {dtype: work.refuses(dtype) for dtype in Dtype}
    costs = {dtype: None if refused[dtype] else dataclasses.asdict(work.cost(dtype)) for dtype in Dtype}
    facts = work.model_facts
    return {
        "params": work.params,
        "refused": refused,
        "costs": costs,
        "multiplications_saved": work.multiplications_saved,
        "backward_passes": work.backward_passes,
        "work_version": work.work_version,
        "model_facts": dataclasses.asdict(facts) if facts else None,
    }


def mistake(text: str, line: int | None) -> Message:
    """A mistake as JSON."""
    return {"text": text, "line": line}


def short_message(error: BaseException) -> str:
    """Type and message of an exception in one line."""
    text = error.msg if isinstance(error, SyntaxError) else text_of(error)
    return f"{kind_of(error)}{' '.join(text.split())}"[:MAX_MESSAGE]


def _line_of_class(kind: type) -> int | None:
    with suppress(OSError, TypeError):
        return inspect.getsourcelines(kind)[1]
    return None
