"""From files to a training batch: datasets, settings, augmentation.

Names are imported when first asked for: a helper process that decodes images needs none of them, and reading
files needs no torch.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from esupcon.data.datasets import Dataset, load, register_dataset
    from esupcon.data.sources import NAMES
    from esupcon.data.stream import ImageBatch, load_images

__all__ = ["NAMES", "Dataset", "ImageBatch", "load", "load_images", "register_dataset"]

_HOMES = {
    "Dataset": "datasets",
    "load": "datasets",
    "register_dataset": "datasets",
    "NAMES": "sources",
    "ImageBatch": "stream",
    "load_images": "stream",
}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(import_module(f"{__name__}.{_HOMES[name]}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
