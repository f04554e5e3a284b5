"""Options that several commands share."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

_DATA_PANEL = "How the data are read"

Data = Annotated[
    str,
    typer.Argument(
        metavar="DATA",
        help="digits, cifar10, cifar100, tiny_imagenet or caltech256; a folder of images by class; a .csv of "
        "path,label; a .npz; a .parquet.",
        show_default=False,
    ),
]
Model = Annotated[
    Path, typer.Argument(metavar="MODEL", help="Folder of a trained classifier, or of its run.", show_default=False)
]
Json = Annotated[bool, typer.Option("--json", help="Print one JSON document on standard output, and nothing else.")]
Plot = Annotated[
    Path | None,
    typer.Option(metavar="FILE", help="Write the reliability diagram: .png, .svg or .pdf.", show_default=False),
]
DataDir = Annotated[
    str | None,
    typer.Option(
        metavar="DIR",
        help="Where named sets lie or are downloaded to; else $ESUPCON_DATA, else the cache folder.",
        rich_help_panel=_DATA_PANEL,
        show_default=False,
    ),
]
ImageSize = Annotated[
    int | None,
    typer.Option(
        help="Side that images are resized and cropped to.",
        rich_help_panel=_DATA_PANEL,
        show_default="by the data",
    ),
]
Channels = Annotated[
    int | None,
    typer.Option(help="1 or 3.", rich_help_panel=_DATA_PANEL, show_default="by the data"),
]
SplitSeed = Annotated[
    int | None,
    typer.Option(
        help="Seed of the test part, where the data come without one.",
        rich_help_panel=_DATA_PANEL,
        show_default="0; as in training",
    ),
]
TestFraction = Annotated[
    float | None,
    typer.Option(
        help="Size of the test part, where the data come without one.",
        rich_help_panel=_DATA_PANEL,
        show_default="0.2; as in training",
    ),
]
NPerClass = Annotated[
    int | None,
    typer.Option(help="Training images of each class of caltech256.", rich_help_panel=_DATA_PANEL, show_default="60"),
]
Layout = Annotated[
    str | None,
    typer.Option(
        help="NHWC or NCHW, for a .npz whose shape leaves it open.", rich_help_panel=_DATA_PANEL, show_default=False
    ),
]
ImageColumn = Annotated[
    str | None,
    typer.Option(help="Of a .csv or .parquet.", rich_help_panel=_DATA_PANEL, show_default="found by name"),
]
LabelColumn = Annotated[
    str | None,
    typer.Option(help="Of a .csv or .parquet.", rich_help_panel=_DATA_PANEL, show_default="found by name"),
]
Strict = Annotated[
    bool,
    typer.Option("--strict", help="An unreadable file is an error; else it is left out.", rich_help_panel=_DATA_PANEL),
]
Workers = Annotated[
    int | None,
    typer.Option(help="Processes that decode images.", rich_help_panel=_DATA_PANEL, show_default="one a core"),
]


def reading(context: typer.Context) -> dict[str, object]:
    """The options above that were given, by name."""
    names = (
        "data_dir",
        "split_seed",
        "test_fraction",
        "n_per_class",
        "layout",
        "image_column",
        "label_column",
        "workers",
        "strict",
    )
    return {name: context.params[name] for name in names if context.params.get(name) not in (None, False)}
