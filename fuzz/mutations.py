"""Inputs for a reader: sound files brought to harm in ways that shrink well, and bytes of no origin at all."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from hypothesis import strategies as st

#: What parsers stumble over: ends of ranges, signs, nothing at all, the marks of their formats.
_WORDS = (
    *(b"", b"\0", b"\xff", b"\xff" * 4, b"\0" * 8, b"\x7f\xff\xff\xff", b"\xff\xff\xff\x7f", b"\x80\0\0\0"),
    *(b"-1", b"1e999", b"99999999999999999999", b"NaN", b"null", b"[[[[", b'{"":', b"\n", b"\r\n", b",", b'"', b";"),
    *(b"../", b"/", b"\\", b"=1", b"PK\x03\x04", b"PK\x05\x06", b"\x93NUMPY", b"\x89PNG", b"\xff\xd8\xff", b"PAR1"),
)
_PLACES = st.integers(0, 2**20)
_JSON = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats()
    | st.text(max_size=8)
    | st.sampled_from([10**30, -1, "", "../x"]),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=5,
)


def inputs(seeds: Sequence[bytes]) -> st.SearchStrategy[bytes]:
    changed = st.builds(_changed, st.sampled_from(list(seeds)), st.lists(_CHANGES, min_size=1, max_size=5))
    strategies = [changed, st.binary(max_size=200)]
    as_json = [value for value in map(_json, seeds) if value is not None]
    if as_json:
        edited = st.builds(_edited, st.sampled_from(as_json), st.lists(_PLACES, min_size=1, max_size=6), _JSON)
        strategies = [edited, edited, changed]
    return st.one_of(strategies)


_CHANGES = st.one_of(
    st.tuples(st.just("flip"), _PLACES, st.integers(0, 7)),
    st.tuples(st.just("cut"), _PLACES, st.just(0)),
    st.tuples(st.just("remove"), _PLACES, st.integers(1, 64)),
    st.tuples(st.just("repeat"), _PLACES, st.integers(1, 64)),
    st.tuples(st.just("write"), _PLACES, st.sampled_from(_WORDS)),
    st.tuples(st.just("insert"), _PLACES, st.sampled_from(_WORDS) | st.binary(max_size=8)),
)


def _changed(content: bytes, changes: list[tuple[str, int, Any]]) -> bytes:
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


def _json(content: bytes) -> Any:
    try:
        return json.loads(content)
    except ValueError:
        return None


def _edited(value: Any, path: list[int], new: Any) -> bytes:
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
