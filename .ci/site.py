"""Pages of the documentation's site that are generated, and links that leave it (hooks of MkDocs).

The README is the home page. The reference of commands comes from Typer, that of functions from docstrings.
Links to files outside docs/ lead to the repository, or become plain text if REPO_URL is not set.
"""

import re
from collections.abc import Iterator
from enum import Enum
from html import escape
from pathlib import Path
from typing import Any

from mkdocs.structure.files import File, Files

ROOT = Path(__file__).parent.parent
LINK = re.compile(r"\[((?:[^\[\]]|\[[^\]]*\])*)\]\((\.\./[^)\s]*)\)")
COMMENT = re.compile(r"<!--.*?-->", re.DOTALL)


def on_files(files: Files, config: Any) -> Files:
    """Add the generated pages."""
    home = re.sub(r"\]\((?!https?:|#)(?!docs/)", "](../", (ROOT / "README.md").read_text())
    pages = {
        "index.md": home.replace("](docs/", "]("),
        "reference/commands.md": "\n".join(_commands_page()),
        "reference/functions.md": "\n".join(_functions_page()),
    }
    for path, text in pages.items():
        files.append(File.generated(config, path, content=text))
    return files


def on_page_markdown(markdown: str, config: Any, **_more: Any) -> str:
    """Lead links out of docs/ to the repository, and remove comments, which tests use."""
    repository = (config["repo_url"] or "").rstrip("/")

    def link(match: re.Match[str]) -> str:
        text, target = match.groups()
        if target == "../README.md":
            return f"[{text}](index.md)"
        path = target.removeprefix("../")
        return f"[{text}]({repository}/blob/main/{path})" if repository else text

    return LINK.sub(link, COMMENT.sub("", markdown))


def _commands_page() -> Iterator[str]:
    """Every command with its options, in the order of `--help`."""
    import typer

    from benchbench.cli.app import VERBS, app, arranged, import_commands

    import_commands([])
    group = arranged(typer.main.get_command(app))
    yield "# Every command\n\nGenerated from the program: `accelbench COMMAND --help` prints the same.\n"
    for name in VERBS:
        yield from _command(f"accelbench {name}", group.commands[name], 2)


def _command(name: str, command: Any, level: int) -> Iterator[str]:
    yield f"{'#' * level} {name}\n"
    text, _, examples = (command.help or "").partition("Examples:")
    yield f"{escape(text.strip(), quote=False)}\n"
    if examples.strip():
        yield f"```sh\n{examples.strip()}\n```\n"
    parameters = [parameter for parameter in command.params if not getattr(parameter, "hidden", False)]
    if parameters:
        yield "| option | values | meaning |\n| --- | --- | --- |"
    for parameter in parameters:
        names = ", ".join(f"`{option}`" for option in parameter.opts) or parameter.name
        if parameter.param_type_name == "argument":
            names = f"`{parameter.metavar or parameter.name}`"
        kind = getattr(getattr(parameter, "type_descriptor", None), "annotation", None)
        choices = list(kind) if isinstance(kind, type) and issubclass(kind, Enum) else []
        values = ", ".join(str(choice.value) for choice in choices)
        values = values or ("" if getattr(parameter, "is_flag", False) else parameter.metavar or "")
        meaning = (getattr(parameter, "help", "") or "").replace(r"\[", "[")
        yield f"| {names} | {_cell(values)} | {_cell(meaning)} |"
    yield ""
    for subcommand_name, subcommand in getattr(command, "commands", {}).items():
        yield from _command(f"{name} {subcommand_name}", subcommand, level + 1)


def _cell(text: str) -> str:
    return escape(" ".join(text.split()), quote=False).replace("|", "\\|").replace("*", "\\*")


def _functions_page() -> Iterator[str]:
    """Every public function, from its signature and docstring."""
    from benchbench.api import MODULES

    yield "# Every function\n\nGenerated from the docstrings. [From Python](../api.md) has examples.\n"
    for module, names in MODULES.items():
        for name in sorted(names):
            yield f"::: benchbench.api.{module}.{name}\n"
    yield "## Keywords of functions that measure\n\n::: benchbench.model.options.MeasureKeywords\n"
