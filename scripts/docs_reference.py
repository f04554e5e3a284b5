"""Generate the reference pages of the site from the code: the public API and the command line, as MyST Markdown.

Types are printed as written in the source: evaluated ones are long and name internals of other libraries.
"""

from __future__ import annotations

import ast
import dataclasses
import functools
import importlib
import inspect
import json
import re
import sys
import textwrap
from collections.abc import Callable, Iterable, Iterator, Mapping
from types import ModuleType
from typing import Any, Literal, NamedTuple, get_args, get_origin

import typer.main
from pydantic import BaseModel

from esupcon.cli import app
from esupcon.cli.stopping import EXIT_CODES
from esupcon.estimator.calibration import CalibrateParameter, CalibrateSetting
from esupcon.methods import Method


class PublicModule(NamedTuple):
    """A module and its public names: those given, else all that it has."""

    module: str
    names: tuple[str, ...] = ()

    def public(self) -> list[str]:
        return list(self.names) or public_names(importlib.import_module(self.module))


class ApiPage(NamedTuple):
    name: str
    modules: tuple[PublicModule, ...]


def _page(name: str, *modules: str | PublicModule) -> ApiPage:
    return ApiPage(name, tuple(one if isinstance(one, PublicModule) else PublicModule(one) for one in modules))


#: In the order in which a reader meets them. Rooms that are not here are for the inside of the package.
PAGES = (
    _page("esupcon", "esupcon", PublicModule("esupcon.estimator", ("Explanation", "LabelIssues"))),
    _page("esupcon.losses", "esupcon.losses"),
    _page("esupcon.functional", "esupcon.functional"),
    _page("esupcon.heads", "esupcon.heads"),
    _page("esupcon.models", "esupcon.models"),
    _page("esupcon.methods", "esupcon.methods"),
    _page("esupcon.data", "esupcon.data", "esupcon.data.scenarios", "esupcon.data.augment"),
    _page(
        "esupcon.training",
        "esupcon.training",
        PublicModule("esupcon.spec", ("TrainSpec", "RunSpec")),
        PublicModule("esupcon.training.objective", ("BatchOutputs", "register_loss", "stage_loss")),
    ),
    _page("esupcon.probability", "esupcon.probability"),
    _page("esupcon.doctor", "esupcon.doctor"),
    _page("esupcon.artifact", "esupcon.artifact"),
    _page("esupcon.export", "esupcon.export"),
    _page(
        "esupcon.pipeline",
        PublicModule("esupcon.pipeline.training", ("train", "read_result", "Result")),
        PublicModule("esupcon.pipeline.evaluate", ("evaluate", "calibrate", "Evaluation", "Calibration")),
        PublicModule("esupcon.pipeline.predict", ("predict_files", "Prediction")),
        PublicModule("esupcon.pipeline.prepare", ("DataOptions",)),
    ),
    _page(
        "esupcon.experiments",
        PublicModule("esupcon.experiments.table", ("Table", "Column", "read_table")),
        PublicModule("esupcon.experiments.profile", ("Profile", "read_profile")),
        PublicModule("esupcon.experiments.plan", ("make_plan", "Choice", "Plan")),
        PublicModule("esupcon.experiments.spec", ("RunSpec", "Row")),
        PublicModule("esupcon.experiments.store", ("Store", "StoredRun")),
        PublicModule("esupcon.experiments.reproduce", ("reproduce", "Request")),
        PublicModule("esupcon.experiments.executor", ("Executor", "Task", "Event")),
        PublicModule("esupcon.experiments.local", ("LocalExecutor",)),
        PublicModule("esupcon.experiments.on_ray", ("RayExecutor",)),
        PublicModule("esupcon.experiments.status", ("status_of", "TableStatus")),
    ),
    _page("esupcon.report", PublicModule("esupcon.report", ("build",))),
)


def module_summary(page: ApiPage) -> str:
    """The first line of the docstring of the page's own module."""
    return docstring_markdown((importlib.import_module(page.name).__doc__ or "").split("\n\n")[0])


def page_markdown(page: ApiPage) -> str:
    described = {one.module for one in page.modules}
    lines = [f"# {page.name}", ""]
    if page.name not in described:
        lines += [docstring_markdown(importlib.import_module(page.name).__doc__), ""]
    for one in page.modules:
        module = importlib.import_module(one.module)
        if one.module != page.name:
            lines += [f"## {one.module}", ""]
        lines += [f":::{{py:module}} {one.module}", ":::", "", docstring_markdown(module.__doc__), ""]
        for name in one.public():
            lines += [*_object(module, name), ""]
    return "\n".join(lines)


def _object(module: Any, name: str) -> Iterator[str]:
    value = getattr(module, name)
    if inspect.isclass(value) and value.__name__ == name:  # else an alias, such as LossName = str
        yield from _class(name, value)
    elif inspect.isroutine(value):
        yield from _directive("function", name + signature_text(value), docstring_markdown(value.__doc__))
    else:
        yield from _constant(name, value, docstring_markdown(constant_comment(module, name)))


def _constant(name: str, value: Any, said: str) -> Iterator[str]:
    if isinstance(value, Method):
        yield from _directive("data", name, docstring_markdown(value.summary))
    elif isinstance(value, Mapping | tuple) and len(value) > 3:
        entries = ", ".join(f"`{entry}`" for entry in value)
        yield from _directive("data", name, f"{said} These are {entries}.")
    else:
        yield from _directive("data", name, said, value=value_text(value))


def _class(name: str, cls: type) -> Iterator[str]:
    kind = "exception" if issubclass(cls, BaseException) else "class"
    fields = list(_fields(cls))
    signature = ""
    if kind == "class" and not fields and any("__init__" in vars(base) for base in _ours(cls)):
        signature = signature_text(cls.__init__, bound=True).removesuffix(" -> None")
    bases = [base.__name__ for base in cls.__bases__ if base.__module__.startswith("torch")]
    body = [docstring_markdown(cls.__doc__)]
    if bases:
        body.insert(0, f"A `torch.nn.{bases[0]}`.")
    body += ["\n".join(field) for field in fields]
    body += ["\n".join(member) for member in _members(cls, {field[0].split("} ")[1] for field in fields})]
    yield from _directive(kind, name + signature, "\n\n".join(part for part in body if part), depth=4)


def _ours(cls: type) -> list[type]:
    return [base for base in cls.__mro__ if base.__module__.startswith("esupcon")]


def _fields(cls: type) -> Iterator[list[str]]:
    """Fields of dataclasses, pydantic models and named tuples, with type, default and what is said about them."""
    if not (dataclasses.is_dataclass(cls) or issubclass(cls, BaseModel | tuple)):
        return
    sources: dict[str, tuple[str, str]] = {}
    for base in reversed(_ours(cls)):
        sources |= field_sources(base)
    parameters = inspect.signature(cls).parameters
    for name, (kind, comment) in sources.items():
        options: dict[str, str | None] = {"type": kind}
        default = value_text(parameters[name].default) if name in parameters else "..."
        if default not in ("...", "_empty"):
            options["value"] = default
        said = (cls.model_fields[name].description if issubclass(cls, BaseModel) else None) or comment
        yield list(_directive("attribute", name, docstring_markdown(said), **options))


def _members(cls: type, fields: set[str]) -> Iterator[list[str]]:
    seen = set(fields)
    for base in _ours(cls):
        for name, member in vars(base).items():
            if name in seen or (name.startswith("_") and name != "__call__"):
                continue
            seen.add(name)
            yield from _member(cls, name, member)


def _member(cls: type, name: str, member: Any) -> Iterator[list[str]]:
    if isinstance(member, CalibrateParameter):  # a parameter that can also be called
        member = CalibrateSetting.__call__
    if isinstance(member, property | functools.cached_property):
        getter = member.fget if isinstance(member, property) else member.func
        kind = return_text(getter)
        yield list(_directive("property", name, docstring_markdown(member.__doc__), type=kind))
        return
    options: dict[str, str | None] = {}
    function = member
    if isinstance(member, classmethod | staticmethod):
        options[type(member).__name__] = None
        function = member.__func__
    if not inspect.isfunction(function):
        return
    inherited = any(hasattr(base, name) for base in cls.__mro__ if base not in _ours(cls))
    if inherited and not function.__doc__ and name != "forward":
        return  # plumbing of the base class, such as extra_repr
    text = signature_text(function, bound=not isinstance(member, staticmethod))
    yield list(_directive("method", name + text, docstring_markdown(function.__doc__), **options))


def _directive(kind: str, heading: str, body: str, *, depth: int = 3, **options: str | None) -> Iterator[str]:
    fence = ":" * depth
    yield f"{fence}{{py:{kind}}} {heading}"
    for option, value in options.items():
        yield f":{option}:" + (f" {json.dumps(value)}" if value is not None else "")  # quoted: options are YAML
    yield from ("", body, fence)


# Command line

_EXAMPLE = "Example: "


def command_tree() -> Any:
    return typer.main.get_command(app)


def cli_reference() -> str:
    """Exit codes, what all commands share, then each command with its arguments, options and defaults."""
    root = command_tree()
    lines = ["## Exit codes", "", "| code | meaning |", "|--:|---|"]
    lines += [f"| {int(code)} | {meaning} |" for code, meaning in EXIT_CODES.items()]
    lines += ["", "## esupcon", "", plain_markdown(root.help), "", *_usage("esupcon [OPTIONS] COMMAND [ARGS]...")]
    lines += [":::{program} esupcon", ":::", ""]
    for option in root.params:
        lines += _cli_option(option)
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
            yield from _cli_option(option)


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


def _cli_option(option: Any) -> Iterator[str]:
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


# Source code as text

_DOC_SECTION = re.compile(r"^(\w[\w ]*)\n-{3,}\n", flags=re.MULTILINE)
_DOC_ENTRY = re.compile(r"([A-Za-z_]\w*(?:, [A-Za-z_]\w*)*) ?: (.*)")
_INLINE_CODE = re.compile(r"(`+.+?`+)", flags=re.DOTALL)


def public_names(module: ModuleType) -> list[str]:
    """`__all__`, or else what the module itself defines without an underscore, in the order of its source."""
    if hasattr(module, "__all__"):
        return [name for name in module.__all__ if not name.startswith("_")]
    return [name for name, _ in _definitions(module) if not name.startswith("_")]


def constant_comment(module: ModuleType, name: str) -> str:
    """The `#:` lines above a constant, or the comment behind it, in the module that defines it."""
    module = _home(module, name)
    return _comment(inspect.getsource(module).splitlines(), dict(_definitions(module)).get(name))


def field_sources(cls: type) -> dict[str, tuple[str, str]]:
    """The annotation of every public annotated name of a class, and the comment on it."""
    lines = inspect.getsource(inspect.getmodule(cls) or cls).splitlines()
    tree = ast.parse("\n".join(lines))
    body = next(node.body for node in ast.walk(tree) if isinstance(node, ast.ClassDef) and node.name == cls.__name__)
    known = vars(sys.modules[cls.__module__])
    return {
        node.target.id: (_annotation_text(node.annotation, known), _comment(lines, node))
        for node in body
        if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name) and node.target.id[0] != "_"
    }


def signature_text(function: Any, *, bound: bool = False) -> str:
    """`(z: Tensor, *, temperature: float = 0.1) -> Tensor`, in one line; `bound` leaves the first argument out."""
    parameters = list(inspect.signature(function).parameters.values())[1 if bound else 0 :]
    annotations = _annotations(function)
    parts: list[str] = []
    for number, parameter in enumerate(parameters):
        before = parameters[number - 1].kind if number else None
        if parameter.kind is parameter.KEYWORD_ONLY and before not in (
            parameter.KEYWORD_ONLY,
            parameter.VAR_POSITIONAL,
        ):
            parts.append("*")
        stars = {parameter.VAR_POSITIONAL: "*", parameter.VAR_KEYWORD: "**"}.get(parameter.kind, "")
        kind = annotations.get(parameter.name)
        words = f"{stars}{parameter.name}" + (f": {kind}" if kind else "")
        if parameter.default is not parameter.empty:
            words += (" = " if kind else "=") + value_text(parameter.default)
        parts.append(words)
    return f"({', '.join(parts)})" + (f" -> {annotations['return']}" if "return" in annotations else "")


def return_text(function: Any) -> str:
    return _annotations(function).get("return", "Any")


def value_text(value: Any) -> str:
    """A default as it would be typed; `...` for what cannot be, such as a function."""
    text = value.__name__ if inspect.isclass(value) else repr(value).replace("typing.", "")
    try:
        ast.parse(text, mode="eval")
    except SyntaxError:
        return "..."
    return text


def docstring_markdown(text: str | None) -> str:
    """Our docstrings are Markdown, but for dollar signs, which are no mathematics, and for lists of parameters."""
    if not text:
        return ""
    start, *sections = _DOC_SECTION.split(inspect.cleandoc(text))
    paragraphs = [_definition_list(part) if _is_list(part) else part for part in start.strip("\n").split("\n\n")]
    for title, entries in zip(sections[::2], sections[1::2], strict=True):
        paragraphs += [f"**{title}**", _definition_list(entries)]
    return _without_mathematics("\n\n".join(paragraphs))


def plain_markdown(text: str) -> str:
    """Text in which nothing is markup."""
    return re.sub(r"([\\`*_{}\[\]<>#$|~&])", r"\\\1", text)


def _is_list(paragraph: str) -> bool:
    """Whether these are lines `name: what it is`, of which long ones go on indented."""
    lines = [line for line in paragraph.splitlines() if not line.startswith(" ")]
    return len(lines) > 1 and all(_DOC_ENTRY.fullmatch(line) for line in lines)


def _definition_list(entries: str) -> str:
    lines: list[str] = []
    for line in entries.strip("\n").splitlines():
        entry = _DOC_ENTRY.fullmatch(line)
        if entry:
            names = ", ".join(f"`{name}`" for name in entry[1].split(", "))
            lines += ["", names, f": {entry[2]}"]
        else:
            lines.append(f"  {line.strip()}")
    return "\n".join(lines).strip("\n")


def _without_mathematics(text: str) -> str:
    return "".join(part if part.startswith("`") else part.replace("$", r"\$") for part in _INLINE_CODE.split(text))


def _annotations(function: Any) -> dict[str, str]:
    node = ast.parse(textwrap.dedent(inspect.getsource(inspect.unwrap(function)))).body[0]
    assert isinstance(node, ast.FunctionDef)
    given = node.args
    arguments = [*given.posonlyargs, *given.args, *given.kwonlyargs, given.vararg, given.kwarg]
    found = {one.arg: one.annotation for one in arguments if one is not None} | {"return": node.returns}
    known = inspect.unwrap(function).__globals__
    return {name: _annotation_text(node, known) for name, node in found.items() if node is not None}


def _annotation_text(annotation: ast.expr, known: dict[str, Any]) -> str:
    """As written, but for the names of a few words to choose from or of a callable, which stand for themselves."""

    class Spelled(ast.NodeTransformer):
        def visit_Name(self, node: ast.Name) -> ast.expr:
            value = known.get(node.id)
            if get_origin(value) is Callable or (get_origin(value) is Literal and len(get_args(value)) <= 5):
                return ast.parse(repr(value).replace("typing.", "").replace("collections.abc.", ""), mode="eval").body
            return node

    return ast.unparse(Spelled().visit(annotation))


def _home(module: ModuleType, name: str) -> ModuleType:
    for node in ast.walk(ast.parse(inspect.getsource(module))):
        if isinstance(node, ast.ImportFrom) and node.module and any(one.name == name for one in node.names):
            return importlib.import_module(node.module)
    return module


def _definitions(module: ModuleType) -> Iterator[tuple[str, ast.stmt]]:
    for node in ast.parse(inspect.getsource(module)).body:
        if isinstance(node, ast.FunctionDef | ast.ClassDef):
            yield node.name, node
        elif isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
            yield node.target.id, node
        elif isinstance(node, ast.Assign):
            names = [one for target in node.targets for one in ast.walk(target) if isinstance(one, ast.Name)]
            yield from ((name.id, node) for name in names)


def _comment(lines: list[str], node: ast.stmt | None) -> str:
    if node is None or node.end_lineno is None:
        return ""
    behind = lines[node.end_lineno - 1][node.end_col_offset or 0 :].strip()
    if behind.startswith("#") and not behind.startswith(("# noqa", "# type:")):
        return behind.lstrip("#: ")
    above: list[str] = []
    for line in reversed(lines[: node.lineno - 1]):
        if not line.strip().startswith("#:"):
            break
        above.insert(0, line.strip().removeprefix("#:").strip())
    return " ".join(above)
