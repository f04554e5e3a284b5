"""From files to a training batch: datasets, settings, augmentation.

Names are imported when first asked for: a helper process that decodes images needs none of them, and reading
files needs no torch.
"""

from typing import TYPE_CHECKING

from esupcon.lazy import names_from

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

__getattr__, __dir__ = names_from(__name__, _HOMES)
