"""A trace that torch.profiler wrote anywhere, as the profile of a case that is named by the file."""

from __future__ import annotations

from pathlib import Path

from benchbench.errors import UnreadableInput, Unsupported
from benchbench.model.case import Case
from benchbench.model.profile import Profile, Profiled
from benchbench.reading import parse_json, read_file, unpacked
from benchbench.traces.chrome import parse_trace

SUFFIXES = (".json", ".json.gz")
TOOL = "torch.profiler"
MOST_BYTES = 256 * 2**20  # unpacked: it takes eight times as much memory
HOW_TO = (
    "Make one with: torch.profiler.profile(…) as profiler: …; profiler.export_chrome_trace('trace.json.gz')"
)


def is_trace(name: str) -> bool:
    """Whether a run's name is that of a trace's file: no run is named so."""
    return name.endswith(SUFFIXES)


def read_trace(path: Path) -> tuple[Profiled, Profile]:
    """The case and its profile. Raises UnreadableInput."""
    content = read_file(path, MOST_BYTES, HOW_TO)
    try:
        trace = parse_json(unpacked(content, MOST_BYTES), unique=False)  # of keys nobody but torch chose
        profile = parse_trace(trace)
    except (UnreadableInput, Unsupported, LookupError, TypeError, AttributeError, ValueError) as error:
        what = f"{type(error).__name__} {error}" if isinstance(error, LookupError) else str(error)
        raise UnreadableInput(f"{path} is no trace of {TOOL}: {what[:200]}", HOW_TO) from error
    case = Case.of_call(TOOL, path.name, TOOL, "accelerator" if profile.on_device else "cpu")
    return Profiled(case=case, framework_version=None, outcome=profile), profile
