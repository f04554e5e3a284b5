"""The reference of the command line, read from the commands themselves: nothing to keep up to date."""

from __future__ import annotations

import inspect
from collections.abc import Iterable, Iterator
from typing import Any

import typer.main
from docs_source import constant_comment, plain_markdown, public_names

from esupcon.cli import app, exit_codes

_EXAMPLE = "Example: "


def command_tree() -> Any:
    return typer.main.get_command(app)


def cli_reference() -> str:
    """Exit codes, what all commands share, then each command with its arguments, options and defaults."""
    root = command_tree()
    lines = ["## Exit codes", "", "| code | meaning |", "|--:|---|", "| 0 | done |"]
    for name in public_names(exit_codes):
        lines += [f"| {int(getattr(exit_codes, name))} | {constant_comment(exit_codes, name)} |"]
    lines += ["", "## esupcon", "", plain_markdown(root.help), "", *_usage("esupcon [OPTIONS] COMMAND [ARGS]...")]
    lines += [":::{program} esupcon", ":::", ""]
    for option in root.params:
        lines += _option(option)
    names = ", ".join(f"`{name}`" for name in root.context_settings["help_option_names"])
    lines += [f"{names} after any command shows its help.", ""]
    lines += ["| command | what it does |", "|---|---|"]
    for name, command in root.commands.items():
        lines.append(f"| [{name}](#esupcon-{name}) | {plain_markdown(_first_paragraph(command.help))} |")
    for name, command in root.commands.items():
        lines += ["", *_command(name, command)]
    return "\n".join(lines) + "\n"


def _command(name: str, command: Any) -> Iterator[str]:
    words = [_argument_name(one) if one.required else f"[{_argument_name(one)}]" for one in _arguments(command)]
    yield from (f"## esupcon {name}", "", plain_markdown(inspect.cleandoc(command.help)), "")
    yield from _usage(" ".join([f"esupcon {name}", "[OPTIONS]", *words]))
    if command.epilog and command.epilog.startswith(_EXAMPLE):
        yield from ("For example:", "", "```console", f"$ {command.epilog.removeprefix(_EXAMPLE)}", "```", "")
    yield from (f":::{{program}} esupcon {name}", ":::", "")
    if _arguments(command):
        yield from (":::{rubric} Arguments", ":::", "")
    for argument in _arguments(command):
        yield from _described("describe", _argument_name(argument), argument)
    for panel, options in _panels(command):
        yield from (f":::{{rubric}} {panel}", ":::", "")
        for option in options:
            yield from _option(option)


def _usage(line: str) -> Iterable[str]:
    return "```text", line, "```", ""


def _arguments(command: Any) -> list[Any]:
    return [one for one in command.params if one.param_type_name == "argument"]


def _panels(command: Any) -> list[tuple[str, list[Any]]]:
    """Options under the headings that help shows them under; those without one first."""
    panels: dict[str, list[Any]] = {"Options": []}
    for one in command.params:
        if one.param_type_name == "option" and not one.hidden:
            panels.setdefault(one.rich_help_panel or "Options", []).append(one)
    return [(title, options) for title, options in panels.items() if options]


def _argument_name(argument: Any) -> str:
    return str(argument.metavar or argument.name.upper())


def _option(option: Any) -> Iterator[str]:
    value = "" if option.is_flag else f" {option.metavar or value_kind(option)}"
    return _described("option", ", ".join(f"{word}{value}" for word in (*option.opts, *option.secondary_opts)), option)


def value_kind(option: Any) -> str:
    """`<int>`, as in the help; of an option that may be repeated, what each is."""
    kind = option.type_descriptor.annotation
    inner = getattr(kind, "__args__", (kind,))[0]
    return f"<{inner.__name__.lower()}>"


def _described(directive: str, heading: str, parameter: Any) -> Iterator[str]:
    notes = [plain_markdown(" ".join((parameter.help or "").split()))]
    if parameter.required:
        notes.append("**Required.**")
    if parameter.multiple:
        notes.append("May be repeated.")
    if default := default_words(parameter):
        notes.append(f"Default: {default}.")
    if parameter.envvar:
        notes.append(f"Environment: `{parameter.envvar}`.")
    yield from (f":::{{{directive}}} {heading}", "", " ".join(note for note in notes if note), ":::", "")


def default_words(parameter: Any) -> str:
    """What help shows as the default: a value, or words for one that is found at run time."""
    if isinstance(parameter.show_default, str):
        return plain_markdown(parameter.show_default)
    if parameter.default is None or parameter.default is False:
        return ""
    return f"`{parameter.default}`"


def _first_paragraph(text: str) -> str:
    return " ".join(inspect.cleandoc(text).split("\n\n")[0].split())
