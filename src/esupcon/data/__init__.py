"""Read images and labels from any source, draw hard settings, augment batches.

Names are imported at first use: `DataOptions` needs pydantic only, reading files needs no torch.
"""

from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, field_validator

from esupcon import lazy_names

if TYPE_CHECKING:
    from esupcon.data.dataset import Dataset, load, register_dataset, source_digest
    from esupcon.data.decode import ImageBatch, load_images
    from esupcon.data.named import NAMES

__all__ = ["NAMES", "DataOptions", "Dataset", "ImageBatch", "load", "load_images", "register_dataset", "source_digest"]

DEFAULT_MAX_PIXELS = 89_478_485  # a quarter of a gigabyte as RGB: above it Pillow warns of a decompression bomb
_LARGEST_SIDE = 4096


class DataOptions(BaseModel):
    """How a source is read. Fields with `exclude=True` do not change the data and are part of no key."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    image_size: int | tuple[int, int] | None = Field(
        None, description="Side, or height and width, that images are resized to (default: chosen from the images)."
    )
    channels: Literal[1, 3] | None = Field(None, description="1 for grey, 3 for colour (default: 3 for files).")
    split_seed: int = Field(0, ge=0, lt=2**63, description="Random seed of the test part, if the source has none.")
    test_fraction: float = Field(0.2, gt=0, lt=1, description="Share of the test part, if the source has none.")
    n_per_class: int | None = Field(None, ge=1, description="Training images per class of caltech256 (default: 60).")
    include_clutter: bool = Field(False, description="Keep the clutter class of caltech256.")
    layout: Literal["NHWC", "NCHW"] | None = Field(None, description="Layout of ambiguous .npz images: NHWC or NCHW.")
    image_column: str | None = Field(None, description="Column of a .csv or .parquet file that holds the images.")
    label_column: str | None = Field(None, description="Column of a .csv or .parquet file that holds the labels.")
    max_pixels: int = Field(DEFAULT_MAX_PIXELS, ge=1, description="Skip images with more pixels than this.")
    data_dir: Path | None = Field(
        None, exclude=True, description="Folder of named sets (default: $ESUPCON_DATA, else the user's cache folder)."
    )
    cache_dir: Path | None = Field(None, exclude=True, description="Folder for decoded images (default: as data_dir).")
    cache: bool = Field(True, exclude=True, description="Keep decoded images on disk.")
    workers: int | None = Field(None, ge=1, exclude=True, description="Decoding threads (default: one per core).")
    strict: bool = Field(False, exclude=True, description="Fail on unreadable files (default: skip them).")
    download: bool = Field(True, exclude=True, description="Download a named data set that is missing.")

    @field_validator("image_size", mode="before")
    @classmethod
    def _check_image_size(cls, value: Any) -> Any:
        sides = tuple(value) if isinstance(value, list | tuple) else (value, value)
        valid = len(sides) == 2 and all(type(side) is int and 1 <= side <= _LARGEST_SIDE for side in sides)
        if value is not None and not valid:
            raise ValueError(f"must be a side or (height, width), each from 1 to {_LARGEST_SIDE}; got {value!r}")
        return tuple(value) if isinstance(value, list) else value

    @property
    def size(self) -> tuple[int, int] | None:
        """Return (height, width), or None if the images decide."""
        return (self.image_size, self.image_size) if isinstance(self.image_size, int) else self.image_size


_HOMES = {
    **dict.fromkeys(("Dataset", "load", "register_dataset", "source_digest"), "dataset"),
    **dict.fromkeys(("ImageBatch", "load_images"), "decode"),
    "NAMES": "named",
}
__getattr__, __dir__ = lazy_names(__name__, _HOMES)
