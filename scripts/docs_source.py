"""What the references read from the code: public names, signatures, docstrings, comments on constants.

Annotations are taken as they are written, since evaluated ones are long and name the inside of other libraries.
"""

from __future__ import annotations

import ast
import importlib
import inspect
import re
import sys
import textwrap
from collections.abc import Callable, Iterator
from types import ModuleType
from typing import Any, Literal, get_args, get_origin

_SECTION = re.compile(r"^(\w[\w ]*)\n-{3,}\n", flags=re.MULTILINE)
_ENTRY = re.compile(r"([A-Za-z_]\w*(?:, [A-Za-z_]\w*)*) ?: (.*)")
_CODE = re.compile(r"(`+.+?`+)", flags=re.DOTALL)


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
    start, *sections = _SECTION.split(inspect.cleandoc(text))
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
    return len(lines) > 1 and all(_ENTRY.fullmatch(line) for line in lines)


def _definition_list(entries: str) -> str:
    lines: list[str] = []
    for line in entries.strip("\n").splitlines():
        entry = _ENTRY.fullmatch(line)
        if entry:
            names = ", ".join(f"`{name}`" for name in entry[1].split(", "))
            lines += ["", names, f": {entry[2]}"]
        else:
            lines.append(f"  {line.strip()}")
    return "\n".join(lines).strip("\n")


def _without_mathematics(text: str) -> str:
    return "".join(part if part.startswith("`") else part.replace("$", r"\$") for part in _CODE.split(text))


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
