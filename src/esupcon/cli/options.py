"""Options that several commands share, and options generated from the fields of pydantic models."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, Literal, get_args, get_origin

import typer
from pydantic import BaseModel
from pydantic.fields import FieldInfo

Command = Callable[..., None]
_DATA = (
    "digits, cifar10, cifar100, tiny_imagenet or caltech256; a folder with one folder per class; a .csv with columns "
    "path,label; a .npz; a .parquet."
)


def argument(metavar: str, text: str) -> Any:
    """Return a typer argument."""
    return typer.Argument(metavar=metavar, help=text, show_default=False)


def option(text: str, *names: str, panel: str | None = None, **more: Any) -> Any:
    """Return a typer option that shows no default unless one is given."""
    return typer.Option(*names, help=text, rich_help_panel=panel, **{"show_default": False, **more})


Data = Annotated[str, argument("DATA", _DATA)]
Model = Annotated[Path, argument("MODEL", "Folder of a trained model or of its run.")]
Json = Annotated[bool, option("Print one JSON document on standard output.", "--json")]
Plot = Annotated[Path | None, option("Write the reliability diagram: .png, .svg or .pdf.", metavar="FILE")]


def takes(
    target: str,
    model: type[BaseModel],
    panel: str,
    *,
    only: Sequence[str] = (),
    defaults: Mapping[str, str] | None = None,
    spelled: Mapping[str, str] | None = None,
) -> Callable[[Command], Command]:
    """Replace the parameter `target` by one option per field of `model`, and pass what the user set as a dict.

    `only` restricts the fields. `defaults` are texts shown instead of the model's defaults, `spelled` other names of
    options. The model alone validates.
    """
    names = only or tuple(model.model_fields)

    def decorate(command: Command) -> Command:
        own = inspect.signature(command, eval_str=True).parameters
        kept = [one.replace(kind=inspect.Parameter.KEYWORD_ONLY) for name, one in own.items() if name != target]
        typed = {name: (spelled or {}).get(name) or name.replace("_", "-") for name in names}
        fields = {name: model.model_fields[name] for name in names}
        added = [_parameter(name, fields[name], panel, typed[name], (defaults or {}).get(name)) for name in names]

        def run(**given: Any) -> None:
            chosen = {name: given.pop(name) for name in names}
            chosen |= {name: False for name in names if fields[name].default is True and chosen[name]}
            command(**given, **{target: {name: value for name, value in chosen.items() if value is not None}})

        run.__name__, run.__doc__ = command.__name__, command.__doc__
        run.__signature__ = inspect.Signature([*kept, *added])  # type: ignore[attr-defined]  # typer reads it
        run.__annotations__ = {parameter.name: parameter.annotation for parameter in [*kept, *added]}
        return run

    return decorate


def _parameter(name: str, field: FieldInfo, panel: str, typed: str, shown: str | None) -> inspect.Parameter:
    """Return the parameter of an option that leaves everything but its basic type to the model."""
    kinds = [field.annotation, *get_args(field.annotation)]
    choices = [value for one in kinds if get_origin(one) is Literal for value in get_args(one)]
    basic = [str] if any(isinstance(value, str) for value in choices) else kinds
    kind: Any = next((one for one in (*basic, *map(type, choices)) if one in (bool, int, float)), str)
    if shown is None and field.default is not None and kind is not bool:
        shown = str(field.default)
    names = f"--{typed}/--no-{typed}" if kind is bool else f"--{typed}"
    if field.default is True:  # only turned off; a second column of names would take the width of the texts
        names = f"--no-{typed}"
    made = option(field.description or "", names, panel=panel, show_default=shown or False)
    return inspect.Parameter(
        name, inspect.Parameter.KEYWORD_ONLY, default=None, annotation=Annotated[kind | None, made]
    )
