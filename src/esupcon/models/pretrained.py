"""Architectures of the timm library as encoders: `timm:NAME`. timm is imported when one is used."""

from __future__ import annotations

import difflib
from importlib import import_module
from types import ModuleType

from torch import nn


def timm_module(name: str, input_shape: tuple[int, ...]) -> nn.Module:
    """Return the architecture without its classifier, for images of this shape, with random weights.

    Nothing is downloaded. For pretrained weights create the model with
    ``timm.create_model(name, pretrained=True, num_classes=0)`` and pass it as the encoder.
    """
    timm = _import_timm()
    # The name before a dot is the architecture, after it the tag of pretrained weights. Anything else, such as
    # a path on a hub, would be downloaded.
    architecture = name.partition(".")[0]
    if not timm.is_model(architecture):
        close = difflib.get_close_matches(architecture, timm.list_models(), n=3, cutoff=0.5)
        remedy = f" Did you mean {' or '.join(f'timm:{match}' for match in close)}?" if close else ""
        raise ValueError(f"timm has no architecture {name!r}.{remedy} timm.list_models() lists all.")
    channels, height, width = input_shape
    options: dict[str, object] = {"pretrained": False, "num_classes": 0, "in_chans": channels}
    if getattr(timm.get_pretrained_cfg(architecture), "fixed_input_size", False):
        options["img_size"] = (height, width)
    try:
        module: nn.Module = timm.create_model(architecture, **options)
    except Exception as error:
        reason = str(error).strip().partition("\n")[0]
        raise ValueError(
            f"timm could not create {architecture} for images of shape {input_shape} ({reason}). "
            "Choose an architecture for this image size, or resize the images."
        ) from error
    return module


def _import_timm() -> ModuleType:
    try:
        return import_module("timm")
    except ModuleNotFoundError as error:
        if error.name != "timm":
            raise ValueError(
                f"timm is installed but needs {error.name}, which is not. Install it with: pip install {error.name}"
            ) from error
        raise ValueError(
            "a timm: encoder needs timm, which is not installed. Install it with: pip install 'esupcon[timm]'"
        ) from error
    except Exception as error:
        reason = str(error).strip().partition("\n")[0]
        raise ValueError(
            f"timm is installed but cannot be imported ({type(error).__name__}: {reason}). "
            "Often torchvision does not match torch; install a pair of versions listed on pytorch.org."
        ) from error
