"""The reference of the public API: which modules are public, and each name's signature and docstring, as MyST."""

from __future__ import annotations

import dataclasses
import functools
import importlib
import inspect
import json
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

from docs_source import (
    constant_comment,
    docstring_markdown,
    field_sources,
    public_names,
    return_text,
    signature_text,
    value_text,
)
from pydantic import BaseModel

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
        "esupcon.engine",
        "esupcon.engine",
        PublicModule("esupcon.engine.objective", ("BatchOutputs", "LossSettings", "register_loss", "stage_loss")),
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
    _page("esupcon.report", PublicModule("esupcon.report.build", ("write_report",))),
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
