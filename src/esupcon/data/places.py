"""Where data sets lie and where decoded images are kept, when the caller does not say."""

import os
import sys
from pathlib import Path

DATA_VARIABLE = "ESUPCON_DATA"


def platform_cache() -> Path:
    """The folder for things that can be made again, as the platform has it."""
    if sys.platform == "win32":
        base = os.environ.get("LOCALAPPDATA")
        return Path(base or Path.home() / "AppData" / "Local") / "esupcon" / "Cache"
    if sys.platform == "darwin":
        return Path.home() / "Library" / "Caches" / "esupcon"
    base = os.environ.get("XDG_CACHE_HOME")
    return Path(base if base and Path(base).is_absolute() else Path.home() / ".cache") / "esupcon"


def data_root(data_dir: str | os.PathLike[str] | None) -> Path:
    """`data_dir`, else $ESUPCON_DATA, else the platform's cache folder."""
    chosen = data_dir if data_dir is not None else os.environ.get(DATA_VARIABLE)
    root = Path(chosen).expanduser() if chosen else platform_cache()
    # These say no where a folder above may not be entered, as may be of a home that is not the user's; pathlib raises.
    if os.path.exists(root) and not os.path.isdir(root):  # noqa: PTH110, PTH112
        raise NotADirectoryError(f"the data folder must be a directory; {root} is a file. Pass its parent.")
    return root.absolute()


def decoded_root(cache_dir: str | os.PathLike[str] | None) -> Path:
    """`cache_dir`, else $ESUPCON_DATA/decoded, else `decoded` in the platform's cache folder.

    `data_dir` is not consulted: it may be a shared, read-only collection.
    """
    if cache_dir is not None:
        return Path(cache_dir).expanduser().absolute()
    base = os.environ.get(DATA_VARIABLE)
    return (Path(base).expanduser() if base else platform_cache()).absolute() / "decoded"
