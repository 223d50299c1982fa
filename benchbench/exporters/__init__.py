"""Output formats. A format is a function from a document to its files: name → content, texts in UTF-8.

To add one, write the function and add a line to `FORMATS`. Modules are imported when a format is used.
"""

from __future__ import annotations

from dataclasses import dataclass
from importlib import import_module
from typing import TYPE_CHECKING, Any

from benchbench.errors import UsageError, unknown

if TYPE_CHECKING:
    from benchbench.documents.document import Document


@dataclass(frozen=True, slots=True)
class Format:
    """Output format.

    `extension`: of its files, without the dot. `function`: `module:name` below this package. `pictures`: a
    file per plot, not one text. `of_run`: only for the report of a run, read by another program. `ci`:
    written by `--out`.
    """

    extension: str
    function: str
    pictures: bool = False
    of_run: bool = False
    ci: bool = False


FORMATS = {
    "csv": Format("csv", "text:csv_file"),
    "gha-benchmark": Format("json", "ci:gha_benchmark", of_run=True, ci=True),
    "github": Format("md", "ci:github", of_run=True, ci=True),
    "html": Format("html", "page:html_page"),
    "json": Format("json", "text:json_file"),
    "junit": Format("xml", "ci:junit", of_run=True, ci=True),
    "latex": Format("tex", "text:latex"),
    "markdown": Format("md", "text:markdown"),
    "png": Format("png", "plots:png", pictures=True),
    "pytest-benchmark": Format("json", "ci:pytest_benchmark", of_run=True),
    "svg": Format("svg", "plots:svg", pictures=True),
    "terminal": Format("txt", "terminal:terminal"),
}


def export(document: Document, name: str, **options: Any) -> dict[str, bytes]:
    """Files of a document in the format `name`, with the options of its function. Raises UsageError."""
    if name not in FORMATS:
        raise UsageError(f"No format named {name!r}.", unknown("formats", name, list(FORMATS)))
    module, _, function = FORMATS[name].function.partition(":")
    files: dict[str, bytes] = getattr(import_module(f"{__name__}.{module}"), function)(document, **options)
    return files
