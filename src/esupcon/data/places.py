"""Shim: moved to esupcon.data.cache.cache_root; to be deleted."""

from pathlib import Path

from esupcon.data.cache import cache_root


def platform_cache() -> Path:
    """Return the cache folder, or a path that cannot be written if this user has no home folder."""
    return cache_root() or Path("/dev/null/esupcon")
