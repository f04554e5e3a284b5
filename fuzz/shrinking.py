"""Inputs for a reader as Hypothesis draws them, which shrinks what it finds."""

from __future__ import annotations

from collections.abc import Sequence

from hypothesis import strategies as st
from mutations import LONGEST, ODD_VALUES, WORDS, as_json, changed, edited

_PLACES = st.integers(0, 2**20)
_VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8) | st.sampled_from(ODD_VALUES),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=5,
)
_CHANGES = st.one_of(
    st.tuples(st.just("flip"), _PLACES, st.integers(0, 7)),
    st.tuples(st.just("cut"), _PLACES, st.just(0)),
    st.tuples(st.just("remove"), _PLACES, st.integers(1, LONGEST)),
    st.tuples(st.just("repeat"), _PLACES, st.integers(1, LONGEST)),
    st.tuples(st.just("write"), _PLACES, st.sampled_from(WORDS)),
    st.tuples(st.just("insert"), _PLACES, st.sampled_from(WORDS) | st.binary(max_size=8)),
)


def inputs(seeds: Sequence[bytes]) -> st.SearchStrategy[bytes]:
    """Sound files brought to harm, and bytes of no origin at all."""
    harmed = st.builds(changed, st.sampled_from(list(seeds)), st.lists(_CHANGES, min_size=1, max_size=5))
    documents = [value for value in map(as_json, seeds) if value is not None]
    if not documents:
        return st.one_of(harmed, st.binary(max_size=200))
    other = st.builds(edited, st.sampled_from(documents), st.lists(_PLACES, min_size=1, max_size=6), _VALUES)
    return st.one_of(other, other, harmed)
