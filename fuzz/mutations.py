"""What can happen to a sound file: bytes that change, end or come twice, and JSON with another value in it."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

Change = tuple[str, int, Any]

#: What parsers stumble over: ends of ranges, signs, nothing at all, the marks of their formats, nesting beyond reason.
WORDS = (
    *(b"", b"\0", b"\xff", b"\xff" * 4, b"\0" * 8, b"\x7f\xff\xff\xff", b"\xff\xff\xff\x7f", b"\x80\0\0\0"),
    *(b"-1", b"1e999", b"99999999999999999999", b"NaN", b"null", b"[[[[", b'{"":', b"\n", b"\r\n", b",", b'"', b";"),
    *(b"../", b"/", b"\\", b"=1", b"PK\x03\x04", b"PK\x05\x06", b"\x93NUMPY", b"\x89PNG", b"\xff\xd8\xff", b"PAR1"),
    *(b"[" * 5000, b'{"a":' * 5000, b"9" * 400, b"\xed\xa0\x80", b"\xe2\x80\xa8", b"\x1b[2J"),
)
#: Values that no writer of ours writes, or not in most places.
ODD_VALUES: tuple[Any, ...] = (
    *(None, True, False, 0, 1, -1, 2**31, 2**63, 10**30, 10**400, 0.5, -0.5, 1e-320, 1e300),
    *(float("nan"), float("inf"), float("-inf"), "", "a", "0", "1", "nan", "../x", "\ud800", "\0", "<b>", "a\nb"),
    *([], {}, [[]], [None], {"": None}, {"a": []}, [0.5] * 3),
)
CHANGES = ("flip", "cut", "remove", "repeat", "write", "insert")
LONGEST = 64  # of what is removed or repeated


def changed(content: bytes, changes: Sequence[Change]) -> bytes:
    """The content after each (kind, place, how); a place beyond the end counts from the beginning again."""
    found = bytearray(content)
    for kind, where, how in changes:
        at = where % (len(found) + 1)
        if kind == "flip" and at < len(found):
            found[at] ^= 1 << how
        elif kind == "cut":
            del found[at:]
        elif kind == "remove":
            del found[at : at + how]
        elif kind == "repeat":
            found[at:at] = found[at : at + how] * 4
        elif kind == "write":
            found[at : at + len(how)] = how
        elif kind == "insert":
            found[at:at] = how
    return bytes(found)


def as_json(content: bytes) -> Any:
    """The value where the content is a document of JSON, else None."""
    try:
        return json.loads(content)
    except ValueError:
        return None


def edited(value: Any, path: Sequence[int], new: Any) -> bytes:
    """The document with another value at the place that `path` leads to."""
    copy = json.loads(json.dumps(value))
    place = copy
    for depth, step in enumerate(path):
        if not isinstance(place, dict | list) or not place:
            break
        keys = list(place) if isinstance(place, dict) else range(len(place))
        key = keys[step % len(keys)]
        inner = place[key]  # type: ignore[index]  # a key of either
        if depth == len(path) - 1 or not isinstance(inner, dict | list) or not inner:
            place[key] = new  # type: ignore[index]
            break
        place = inner
    return json.dumps(copy).encode()
