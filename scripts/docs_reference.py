"""Generate the reference pages of the site from the code: the public API and the command line, as MyST Markdown."""

from __future__ import annotations

import ast
import dataclasses
import functools
import importlib
import inspect
import json
import re
from collections.abc import Iterator, Mapping
from itertools import pairwise
from types import ModuleType
from typing import Any

import typer.main
from pydantic import BaseModel

from esupcon.cli import app
from esupcon.cli.stopping import EXIT_CODES
from esupcon.methods import Method

#: Pages of the API and the modules on each; a module that is not listed is internal.
PAGES: dict[str, tuple[str, ...]] = {
    "esupcon": ("esupcon", "esupcon.estimator"),
    "esupcon.losses": ("esupcon.losses",),
    "esupcon.functional": ("esupcon.functional",),
    "esupcon.heads": ("esupcon.heads",),
    "esupcon.models": ("esupcon.models",),
    "esupcon.methods": ("esupcon.methods",),
    "esupcon.data": ("esupcon.data", "esupcon.data.scenarios", "esupcon.data.augment", "esupcon.data.augmentations"),
    "esupcon.recipes": ("esupcon.recipes",),
    "esupcon.spec": ("esupcon.spec",),
    "esupcon.training": ("esupcon.training", "esupcon.training.objective", "esupcon.training.result"),
    "esupcon.classifier": ("esupcon.classifier",),
    "esupcon.probability": ("esupcon.probability",),
    "esupcon.doctor": ("esupcon.doctor",),
    "esupcon.experiments": (
        "esupcon.experiments.plan",
        "esupcon.experiments.grid",
        "esupcon.experiments.executors",
        "esupcon.experiments.store",
    ),
    "esupcon.report": ("esupcon.report",),
}
_SECTION = re.compile(r"^(\w[\w ]*)\n-{3,}\n", flags=re.MULTILINE)
_ENTRY = re.compile(r"([A-Za-z_]\w*(?:, [A-Za-z_]\w*)*) ?: (.*)")


# --- API -------------------------------------------------------------------------------------------------------------


def public_names(module: ModuleType) -> list[str]:
    """Return `__all__`, or what the module itself defines without an underscore."""
    if hasattr(module, "__all__"):
        return [name for name in module.__all__ if not name.startswith("_") and _is_own(module, getattr(module, name))]
    names: list[str] = []
    for node in ast.parse(inspect.getsource(module)).body:
        targets = node.targets if isinstance(node, ast.Assign) else [getattr(node, "target", node)]
        names += [getattr(one, "id", getattr(one, "name", "_")) for one in targets]
    return [name for name in names if not name.startswith("_")]


def _is_own(module: ModuleType, value: Any) -> bool:
    """Return whether a name is documented here, and not only re-exported."""
    home = getattr(value, "__module__", None) or ""
    if module.__name__ == "esupcon":
        return home in PAGES["esupcon"]  # settings and training have pages of their own
    return not home.startswith("esupcon.") or home.startswith(module.__name__)


def api_page(name: str) -> str:
    """Return the page of a package: every public name with signature and docstring."""
    lines = [f"# {name}", ""]
    seen: set[int] = set()
    for module_name in PAGES[name]:
        module = importlib.import_module(module_name)
        if module_name != name:
            lines += [f"## {module_name}", ""]
        lines += [f":::{{py:module}} {module_name}", ":::", "", markdown(module.__doc__), ""]
        for one in public_names(module):
            value = getattr(module, one)
            if id(value) not in seen or isinstance(value, str | int | float):
                seen.add(id(value))
                lines += [*_entry(one, value), ""]
    return "\n".join(lines)


def summary(name: str) -> str:
    """Return the first paragraph of a package's docstring."""
    return markdown((importlib.import_module(name).__doc__ or "").split("\n\n")[0])


def _entry(name: str, value: Any) -> Iterator[str]:
    if inspect.isclass(value) and value.__name__ == name:
        yield from _class(name, value)
    elif inspect.isroutine(value):
        yield from _directive("function", name + signature(value), markdown(value.__doc__))
    elif isinstance(value, Method):
        yield from _directive("data", name, markdown(value.summary))
    else:
        values = ", ".join(f"`{one}`" for one in value) if isinstance(value, Mapping | tuple) else f"`{value}`"
        yield from _directive("data", name, f"Values: {values}." if values else "")


def _class(name: str, cls: type) -> Iterator[str]:
    is_record = dataclasses.is_dataclass(cls) or issubclass(cls, BaseModel)
    own = [base for base in cls.__mro__ if base.__module__.startswith("esupcon")]
    body = [markdown(cls.__doc__)]
    if issubclass(cls, BaseModel):
        for field, info in cls.model_fields.items():
            default = {} if info.is_required() or info.default_factory else {"value": repr(info.default)}
            kind = _annotation(inspect.get_annotations(cls).get(field, info.annotation))
            body.append("\n".join(_directive("attribute", field, markdown(info.description), type=kind, **default)))
    elif dataclasses.is_dataclass(cls):
        fields = ((one.name, _annotation(one.type)) for one in dataclasses.fields(cls))
        body += ["\n".join(_directive("attribute", name, "", type=kind)) for name, kind in fields]
    seen: set[str] = set()
    for base in own:
        for member_name, member in vars(base).items():
            if member_name not in seen and not member_name.startswith("_"):
                seen.add(member_name)
                body += ["\n".join(part) for part in _member(member_name, member)]
    constructor = any("__init__" in vars(base) for base in own) and not is_record
    text = signature(cls.__init__, bound=True).removesuffix(" -> None") if constructor else ""
    kind = "exception" if issubclass(cls, BaseException) else "class"
    yield from _directive(kind, name + text, "\n\n".join(part for part in body if part), depth=4)


def _member(name: str, member: Any) -> Iterator[list[str]]:
    if isinstance(member, property | functools.cached_property):
        yield list(_directive("property", name, markdown(member.__doc__)))
        return
    function = getattr(member, "__func__", member)
    if inspect.isfunction(function) and function.__doc__:
        option: dict[str, str | None] = {}
        if isinstance(member, classmethod | staticmethod):
            option = {type(member).__name__: None}
        text = signature(function, bound=not isinstance(member, staticmethod))
        yield list(_directive("method", name + text, markdown(function.__doc__), **option))


def _directive(kind: str, heading: str, body: str, *, depth: int = 3, **options: str | None) -> Iterator[str]:
    yield f"{':' * depth}{{py:{kind}}} {heading}"
    for option, value in options.items():
        yield f":{option}:" + (f" {json.dumps(value)}" if value is not None else "")  # quoted: options are YAML
    yield from ("", body, ":" * depth)


def signature(function: Any, *, bound: bool = False) -> str:
    """Return a signature in one line, with annotations as written; `bound` leaves the first parameter out."""
    given = inspect.signature(function)
    parts: list[str] = []
    starred = False
    for parameter in list(given.parameters.values())[1 if bound else 0 :]:
        if parameter.kind is parameter.KEYWORD_ONLY and not starred:
            parts.append("*")
        starred = starred or parameter.kind in (parameter.KEYWORD_ONLY, parameter.VAR_POSITIONAL)
        stars = {parameter.VAR_POSITIONAL: "*", parameter.VAR_KEYWORD: "**"}.get(parameter.kind, "")
        kind = "" if parameter.annotation is parameter.empty else f": {_annotation(parameter.annotation)}"
        default = "" if parameter.default is parameter.empty else f" = {_default(parameter.default)}"
        parts.append(f"{stars}{parameter.name}{kind}{default}")
    returned = given.return_annotation
    return f"({', '.join(parts)})" + ("" if returned is given.empty else f" -> {_annotation(returned)}")


def _annotation(annotation: Any) -> str:
    text = annotation if isinstance(annotation, str) else inspect.formatannotation(annotation)
    return re.sub(r"\b(?:typing|collections\.abc|pathlib|numpy\.typing)\.", "", text)


def _default(value: Any) -> str:
    text = value.__name__ if inspect.isclass(value) else repr(value)
    return "..." if "<" in text else text


def markdown(text: str | None) -> str:
    """Return a docstring as Markdown: lists of parameters become definition lists, dollar signs are text."""
    if not text:
        return ""
    start, *sections = _SECTION.split(inspect.cleandoc(text))
    paragraphs = [_definitions(part) if _is_list(part) else part for part in start.strip("\n").split("\n\n")]
    for title, entries in zip(sections[::2], sections[1::2], strict=True):
        shown = f"```pycon\n{entries.strip()}\n```" if entries.startswith(">>>") else _definitions(entries)
        paragraphs += [f"**{title}**", shown]
    pieces = re.split(r"(`+.+?`+)", "\n\n".join(paragraphs), flags=re.DOTALL)
    return "".join(piece if piece.startswith("`") else piece.replace("$", r"\$") for piece in pieces)


def _is_list(paragraph: str) -> bool:
    lines = [line for line in paragraph.splitlines() if not line.startswith(" ")]
    return len(lines) > 1 and all(_ENTRY.fullmatch(line) for line in lines)


def _definitions(entries: str) -> str:
    lines: list[str] = []
    for line, after in pairwise([*entries.strip("\n").splitlines(), ""]):
        entry = _ENTRY.fullmatch(line)
        if entry:
            kind = "." if " : " in line and after.startswith(" ") else ""  # the type of a parameter
            lines += ["", ", ".join(f"`{name}`" for name in entry[1].split(", ")), f": {entry[2]}{kind}"]
        else:
            lines.append(f"  {line.strip()}")
    return "\n".join(lines).strip("\n")


# --- Command line ----------------------------------------------------------------------------------------------------


def command_tree() -> Any:
    """Return the command with its subcommands, as typer builds it."""
    return typer.main.get_command(app)


def cli_reference() -> str:
    """Return exit codes, common options, then each command with its arguments, options and defaults."""
    root = command_tree()
    lines = ["## Exit codes", "", "| code | meaning |", "|--:|---|"]
    lines += [f"| {int(code)} | {meaning} |" for code, meaning in EXIT_CODES.items()]
    lines += ["", "## esupcon", "", plain(root.help), "", ":::{program} esupcon", ":::", ""]
    for option in root.params:
        lines += _parameter(option)
    lines += ["| command | what it does |", "|---|---|"]
    for name, command in root.commands.items():
        first = " ".join(inspect.cleandoc(command.help).split("\n\n")[0].split())
        lines.append(f"| [{name}](#esupcon-{name}) | {plain(first)} |")
    for name, command in root.commands.items():
        lines += ["", *_command(name, command)]
    return "\n".join(lines) + "\n"


def _command(name: str, command: Any) -> Iterator[str]:
    arguments = [one for one in command.params if one.param_type_name == "argument"]
    words = [one.metavar if one.required else f"[{one.metavar}]" for one in arguments]
    yield from (f"## esupcon {name}", "", plain(inspect.cleandoc(command.help)), "")
    yield from ("```text", " ".join([f"esupcon {name}", "[OPTIONS]", *words]), "```", "")
    yield from ("For example:", "", "```console", f"$ {command.epilog.removeprefix('Example: ')}", "```", "")
    yield from (f":::{{program}} esupcon {name}", ":::", "")
    panels: dict[str, list[Any]] = {"Arguments": arguments, "Options": []}
    for one in command.params:
        if one.param_type_name == "option" and not one.hidden:
            panels.setdefault(one.rich_help_panel or "Options", []).append(one)
    for title, parameters in panels.items():
        if parameters:
            yield from (f":::{{rubric}} {title}", ":::", "")
        for parameter in parameters:
            yield from _parameter(parameter)


def _parameter(parameter: Any) -> Iterator[str]:
    heading = parameter.metavar
    if parameter.param_type_name == "option":
        kind = getattr(parameter.type_descriptor.annotation, "__args__", (parameter.type_descriptor.annotation,))[0]
        value = "" if parameter.is_flag else f" {parameter.metavar or f'<{kind.__name__.lower()}>'}"
        heading = ", ".join(f"{word}{value}" for word in (*parameter.opts, *parameter.secondary_opts))
    notes = [plain(" ".join((parameter.help or "").split()))]
    notes += ["**Required.**"] if parameter.required else []
    notes += ["May be repeated."] if parameter.multiple else []
    shown = parameter.show_default
    if isinstance(shown, str):
        notes.append(f"Default: {plain(shown)}.")
    elif parameter.default is not None and parameter.default is not False:
        notes.append(f"Default: `{parameter.default}`.")
    directive = "option" if parameter.param_type_name == "option" else "describe"
    yield from (f":::{{{directive}}} {heading}", "", " ".join(note for note in notes if note), ":::", "")


def plain(text: str) -> str:
    """Return text in which nothing is Markdown."""
    return re.sub(r"([\\`*_{}\[\]<>#$|~&])", r"\\\1", text)
