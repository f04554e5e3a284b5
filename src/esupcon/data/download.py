"""Fetching one file: resumed where it broke off, checked, and under its own name only when whole."""

import hashlib
import http.client
import os
import socket
import time
import urllib.error
import urllib.request
from pathlib import Path

from esupcon.data.locking import exclusive
from esupcon.data.progress import Say, progress_bar

_BLOCK = 1 << 18
_MOST_BYTES = 8 << 30  # a server that never ends must not fill the disk
_TRANSIENT_STATUS = (408, 429, 500, 502, 503, 504)


class DownloadFailed(OSError):  # noqa: N818 - what has happened, for a sentence to quote
    """The file could not be had; the message says why in a few words."""


class _Interrupted(Exception):  # noqa: N818 - not an error yet: there may be another attempt
    pass


class _NoConnection(_Interrupted):
    pass


def download(
    url: str, target: Path, md5: str, note: Say, *, attempts: int = 4, timeout: float = 30.0, pause: float = 1.0
) -> None:
    """Fetch `url` to `target`. What an earlier attempt left in `target`.part is continued, not fetched again."""
    part = target.with_name(target.name + ".part")
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        part.touch()
    except OSError as error:
        raise DownloadFailed(f"nothing can be written to {target.parent} ({error.strerror})") from None

    def waiting() -> None:
        note(f"another process is downloading {target.name}; waiting for it")

    with exclusive(target.with_name(target.name + ".lock"), waiting):
        if target.exists():
            part.unlink(missing_ok=True)
            return
        note(f"downloading {url} to {target}")
        try:
            resumed = _fetch_all(url, part, attempts, timeout, pause)
        except DownloadFailed:
            if part.exists() and part.stat().st_size == 0:
                part.unlink()
            raise
        if md5_of(part) != md5 and resumed:  # the beginning may be of another version: once more, from it
            part.unlink()
            _fetch_all(url, part, attempts, timeout, pause)
        found = md5_of(part)
        if found != md5:
            part.unlink()
            raise DownloadFailed(f"what came had md5 {found}, not {md5}, and was deleted")
        os.replace(part, target)  # noqa: PTH105 - the one call that replaces on every platform


def md5_of(file: Path) -> str:
    digest = hashlib.md5(usedforsecurity=False)  # the checksum the sets are published with
    with file.open("rb") as handle:
        while block := handle.read(_BLOCK):
            digest.update(block)
    return digest.hexdigest()


def _fetch_all(url: str, part: Path, attempts: int, timeout: float, pause: float) -> bool:
    """Returns whether the file was begun by someone else."""
    resumed = part.exists() and part.stat().st_size > 0
    for attempt in range(attempts):
        try:
            _fetch(url, part, timeout)
        except _Interrupted as reason:
            if attempt == 0 and isinstance(reason, _NoConnection):  # offline or refused: waiting will not help
                raise DownloadFailed(str(reason)) from None
            if attempt == attempts - 1:
                raise DownloadFailed(f"{reason}; {attempts} attempts were made") from None
            time.sleep(pause * 2**attempt)
        else:
            break
    return resumed


def _fetch(url: str, part: Path, timeout: float) -> None:
    """One connection: append to `part` what is missing."""
    have = part.stat().st_size if part.exists() else 0
    request = urllib.request.Request(url, headers={"User-Agent": "esupcon", "Accept-Encoding": "identity"})
    if have:
        request.add_header("Range", f"bytes={have}-")
    try:
        with urllib.request.urlopen(request, timeout=timeout) as response:
            if have and not _continues(response, have):
                have = 0  # the server begins at the beginning; so do we
            length = response.headers.get("Content-Length")
            total = have + int(length) if length and length.isdigit() else None
            _receive(response, part, have, total)
    except urllib.error.HTTPError as error:
        error.close()
        if error.code == 416:  # nothing beyond what we have: whole, or too long
            if error.headers.get("Content-Range", "").endswith(f"/{have}"):
                return
            part.unlink()
            raise _Interrupted("the server has less than was fetched before") from None
        if error.code in _TRANSIENT_STATUS:
            raise _Interrupted(f"the server answered {error.code} {error.reason}") from None
        raise DownloadFailed(f"the server answered {error.code} {error.reason}") from None
    except urllib.error.URLError as error:
        if isinstance(error.reason, socket.gaierror):
            raise _NoConnection("its address cannot be resolved; this machine may be offline") from None
        raise _NoConnection(f"no connection ({error.reason})") from None
    except (http.client.HTTPException, ConnectionError, TimeoutError) as error:
        raise _Interrupted(f"the connection broke off ({error or type(error).__name__})") from None


def _continues(response: http.client.HTTPResponse, have: int) -> bool:
    return response.status == 206 and response.headers.get("Content-Range", "").startswith(f"bytes {have}-")


def _receive(response: http.client.HTTPResponse, part: Path, have: int, total: int | None) -> None:
    with progress_bar(part.stem, total, in_bytes=True) as advance, part.open("r+b" if have else "wb") as file:
        file.seek(have)
        advance(have)
        while block := response.read(_BLOCK):
            have += len(block)
            if have > _MOST_BYTES:
                raise DownloadFailed(f"more than {_MOST_BYTES >> 30} GB came")
            try:
                file.write(block)
            except OSError as error:
                raise DownloadFailed(f"{part} cannot be written ({error.strerror})") from None
            advance(len(block))
    if total is not None and have < total:
        raise _Interrupted(f"the connection broke off at {have:,} of {total:,} bytes")
