"""A pickle gives data or is refused; nothing in it is run."""

import collections
import io
import os
import pickle

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from esupcon.data.safe_pickle import UnsafePickle, read_pickle

PROTOCOLS = range(pickle.HIGHEST_PROTOCOL + 1)


def through(tmp_path, content):
    file = tmp_path / "file.pkl"
    file.write_bytes(content)
    return read_pickle(file)


@pytest.mark.parametrize("protocol", PROTOCOLS)
@pytest.mark.parametrize("dtype", ["u1", "<i4", ">i4", "f4", ">f8", "?", "i8"])
def test_arrays_of_every_protocol(tmp_path, protocol, dtype):
    array = (np.arange(24).reshape(2, 3, 4) % 7).astype(dtype)
    for one in (array, np.asfortranarray(array), array[:, ::2], array[:0], array[0, 0, 0:1]):
        got = through(tmp_path, pickle.dumps({"data": one, "labels": [1, 2]}, protocol))
        np.testing.assert_array_equal(got["data"], one)
        assert got["data"].dtype == one.dtype
        assert got["labels"] == [1, 2]


def test_text_of_python_2_comes_as_bytes_and_as_names(tmp_path):
    """{'labels': ['a', 3]} as Python 2 wrote it: short binary strings."""
    content = b"\x80\x02}q\x00(U\x06labelsq\x01]q\x02(U\x01aq\x03K\x03eu."
    assert through(tmp_path, content) == {"labels": [b"a", 3]}


plain = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text() | st.binary(),
    lambda inner: (
        st.lists(inner, max_size=4) | st.tuples(inner, inner) | st.dictionaries(st.text(max_size=5), inner, max_size=4)
    ),
    max_leaves=12,
)


@settings(max_examples=60, deadline=None)
@given(value=plain, protocol=st.sampled_from([2, 3, 4, 5]))
def test_plain_containers_come_back(tmp_path_factory, value, protocol):
    assert through(tmp_path_factory.mktemp("p"), pickle.dumps(value, protocol)) == value


class Reduces:
    """Pickled as the call it is given."""

    def __init__(self, function, *arguments):
        self.call = (function, arguments)

    def __reduce__(self):
        return self.call


def traps(mark):
    yield Reduces(os.system, f"touch {mark}")
    yield Reduces(eval, f"open({str(mark)!r}, 'w')")
    yield Reduces(exec, f"open({str(mark)!r}, 'w')")
    yield Reduces(open, str(mark), "w")
    yield Reduces(getattr, "x", "join")
    yield Reduces(np.save, str(mark), np.zeros(1))
    yield Reduces(np.fromfile, str(mark))
    yield Reduces(np.array, [1])
    yield collections.OrderedDict(a=1)
    yield collections.deque([1])
    yield np.ma.masked_array([1])
    yield np.array([object], object)
    yield np.array(["text"])
    yield np.zeros(1, [("a", "u1")])
    yield np.datetime64("2020-01-01")
    yield os.path.join
    yield os.system
    yield ValueError("x")
    yield range(3)


@pytest.mark.parametrize("protocol", [0, 2, 4, 5])
def test_hostile_and_foreign_objects_are_refused_and_not_run(tmp_path, protocol):
    mark = tmp_path / "sprung"
    for trap in traps(mark):
        for content in (trap, {"data": np.zeros(2), "labels": [trap]}):
            with pytest.raises(UnsafePickle) as caught:
                through(tmp_path, pickle.dumps(content, protocol))
            assert "\n" not in str(caught.value)
            assert not mark.exists(), trap


def test_the_refusal_says_what_was_asked_for(tmp_path):
    with pytest.raises(UnsafePickle, match=r"nothing in it was run: it asks to run posix\.system|nt\.system"):
        through(tmp_path, pickle.dumps(Reduces(os.system, "true")))


@pytest.mark.parametrize(
    "content",
    [
        b"cos\nsystem\n(S'true'\ntR.",  # protocol 0 call
        b"(S'true'\nios\nsystem\n.",  # INST
        b"\x80\x02cbuiltins\neval\nU\x011\x85R.",
        b"\x80\x04\x8c\x05numpy\x8c\x16testing._private.utils\x93.",  # a dotted path through an admitted module
        b"\x80\x04\x8c\x05numpy\x8c\x10ndarray.__class__\x93.",
        b"\x80\x02cnumpy\nload\nU\x01x\x85R.",
        b"\x80\x02Pid\n.",  # persistent identifier
        b"\x80\x02\x82\x01.",  # extension registry
        b"\x80\x02]cnumpy\nndarray\nb.",  # setting the state of a list
        b"\x80\x02cnumpy\nndarray\n.",  # the stand-in itself
        b"\x80\x02cnumpy\ndtype\nU\x02u1\x85R.",
        b"\x80\x02cnumpy\nndarray\n)\x81}U\x05valueU\x01xsb.",  # state that is no array's
        b"\x80\x02cnumpy\ndtype\nU\x02O8\x85R.",
        b"\x80\x02cnumpy\ndtype\nU\x02u1\x85R(K\x03U\x01?NNNJ\xff\xff\xff\xffJ\xff\xff\xff\xffK\x00tb.",
        b"\x80\x03c_codecs\nencode\nX\x01\x00\x00\x00xX\x05\x00\x00\x00rot13\x86R.",
        b"\x80\x02cnumpy\ndtype\n}U\x05_callK\x01sb.",  # changing the reader itself
        b"\x80\x02c_codecs\nencode\nN}U\x0c__defaults__K\x01s\x86b.",
        b"",
        b".",
        b"\x80\x02",
        b"not a pickle at all",
        b"\x80\x7f.",
        b"\x80\x04\x8e\xff\xff\xff\xff\xff\xff\xff\x7f.",  # bytes of impossible length
    ],
)
def test_hand_made_pickles_are_refused(tmp_path, content):
    with pytest.raises(UnsafePickle):
        through(tmp_path, content)


def test_a_single_number_cannot_reserve_gigabytes(tmp_path):
    """An entry of the memo numbered four thousand million: an array by index would need 32 GB."""
    assert through(tmp_path, b"\x80\x02K\x07r\xff\xff\xff\xff.") == 7


def test_an_array_must_hold_what_its_shape_says(tmp_path):
    good = pickle.dumps(np.arange(4, dtype=np.uint8), 2)
    bad = good.replace(b"K\x04\x85", b"K\x05\x85")
    assert bad != good
    with pytest.raises(UnsafePickle, match="cannot hold 4 bytes"):
        through(tmp_path, bad)


def test_a_structure_that_contains_itself_is_refused(tmp_path):
    loop = []
    loop.append(loop)
    with pytest.raises(UnsafePickle):
        through(tmp_path, pickle.dumps(loop))


@settings(max_examples=300, deadline=None)
@given(data=st.data())
def test_damage_of_any_kind_is_refused_or_gives_data(tmp_path_factory, data):
    folder = tmp_path_factory.mktemp("d")
    whole = bytearray(pickle.dumps({"data": np.arange(6, dtype=np.uint8), "labels": [1, 2]}, 2))
    for _ in range(data.draw(st.integers(1, 3))):
        whole[data.draw(st.integers(0, len(whole) - 1))] = data.draw(st.integers(0, 255))
    try:
        through(folder, bytes(whole[: data.draw(st.integers(0, len(whole)))]))
    except UnsafePickle as refusal:
        assert str(folder) in str(refusal)


def test_it_agrees_with_pickle_on_the_official_form(tmp_path):
    content = {"batch_label": b"x", "data": np.arange(12, dtype=np.uint8).reshape(2, 6), "labels": [0, 1]}
    written = pickle.dumps(content, 2)
    ours, theirs = through(tmp_path, written), pickle.load(io.BytesIO(written))
    assert ours.keys() == theirs.keys()
    np.testing.assert_array_equal(ours["data"], theirs["data"])
