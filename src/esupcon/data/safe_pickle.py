"""Reading a pickle from elsewhere: plain containers, numbers, text and NumPy arrays come out, and nothing is run.

A pickle names functions and calls them. Here every name it may use stands for a function of this file, which
takes the arguments NumPy's own would get and checks them; every other name ends the reading. Not even NumPy's
code sees the file's word for anything but a shape, a plain dtype and bytes.
"""

import io
import math
import pickle
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from esupcon.files import quoted

_PLAIN_DTYPES = ("b1", "i1", "u1", "i2", "u2", "i4", "u4", "i8", "u8", "f2", "f4", "f8")


class UnsafePickle(ValueError):  # noqa: N818 - a refusal, not a malfunction
    """The file asks for something other than data."""


class _Dtype:
    """Stands for numpy.dtype: a plain number type and its byte order."""

    def __init__(self, code: object, *_flags: object) -> None:
        text = code.decode("ascii", "replace") if isinstance(code, bytes) else code
        if text not in _PLAIN_DTYPES:
            raise UnsafePickle(f"an array of {code!r} is not one of plain numbers")
        self.dtype: np.dtype[Any] = np.dtype(str(text))

    def __setstate__(self, state: object) -> None:
        order = state[1] if isinstance(state, tuple) and len(state) > 1 else None
        order = order.decode("ascii", "replace") if isinstance(order, bytes) else order
        if order == ">":
            self.dtype = self.dtype.newbyteorder(">")
        elif order == "<":
            self.dtype = self.dtype.newbyteorder("<")
        elif order != "|":  # single bytes have none
            raise UnsafePickle(f"{order!r} is no byte order")


class _Array:
    """Stands for numpy.ndarray; takes its shape, dtype and bytes when its state is set."""

    def __init__(self) -> None:
        self.value: NDArray[Any] = np.empty(0, np.uint8)

    def __setstate__(self, state: object) -> None:
        if not isinstance(state, tuple) or len(state) != 5:
            raise UnsafePickle("an array's state is not (version, shape, dtype, order, bytes)")
        _version, shape, dtype, fortran, data = state
        if isinstance(data, str):  # Python 2 wrote bytes as text
            data = data.encode("latin-1")
        self.value = _array(data, dtype, shape, "F" if fortran else "C")


def _array(data: object, dtype: object, shape: object, order: object) -> NDArray[Any]:
    whole = isinstance(shape, tuple) and all(type(n) is int and n >= 0 for n in shape)
    if not (isinstance(data, bytes | bytearray) and isinstance(dtype, _Dtype) and whole and order in ("C", "F")):
        raise UnsafePickle("an array is not made of bytes, a dtype, a shape and an order")
    assert isinstance(shape, tuple)
    if math.prod(shape) * dtype.dtype.itemsize != len(data):
        raise UnsafePickle(f"an array of shape {shape} and {dtype.dtype} cannot hold {len(data)} bytes")
    return np.frombuffer(data, dtype.dtype).reshape(shape, order="F" if order == "F" else "C")


def _reconstruct(_subtype: object, _shape: object, _typecode: object) -> _Array:
    return _Array()


def _frombuffer(data: object, dtype: object, shape: object, order: object) -> _Array:
    made = _Array()
    made.value = _array(data, dtype, shape, order)
    return made


def _latin1(text: object, encoding: object = "latin1") -> bytes:
    """Stands for _codecs.encode, by which Python 3 writes bytes into old pickle protocols."""
    if not isinstance(text, str) or encoding not in ("latin1", b"latin1"):
        raise UnsafePickle(f"text encoded as {encoding!r}")
    return text.encode("latin-1")


def _no_bytes() -> bytes:
    """Stands for bytes, by which Python 3 writes empty ones into old pickle protocols."""
    return b""


class _StandIn:
    """May be called by the pickle, and in no way changed."""

    __slots__ = ("_call",)

    def __init__(self, call: Callable[..., object] | None) -> None:
        self._call = call

    def __call__(self, *arguments: object) -> object:
        if self._call is None:
            raise UnsafePickle("it asks to make an array without NumPy's own function for it")
        return self._call(*arguments)

    def __setstate__(self, state: object) -> None:
        raise UnsafePickle("it asks to change the reader")


_STAND_INS = {
    ("numpy", "ndarray"): _StandIn(None),  # named in the arguments of _reconstruct
    ("numpy", "dtype"): _StandIn(_Dtype),
    ("numpy.core.multiarray", "_reconstruct"): _StandIn(_reconstruct),
    ("numpy._core.multiarray", "_reconstruct"): _StandIn(_reconstruct),
    ("numpy.core.numeric", "_frombuffer"): _StandIn(_frombuffer),
    ("numpy._core.numeric", "_frombuffer"): _StandIn(_frombuffer),
    ("_codecs", "encode"): _StandIn(_latin1),
    ("__builtin__", "bytes"): _StandIn(_no_bytes),
    ("builtins", "bytes"): _StandIn(_no_bytes),
}


class _Reader(pickle._Unpickler):
    """The reader written in Python: the one written in C can be made to reserve gigabytes by a single number."""

    read: Callable[[int], bytes]
    append: Callable[[object], None]

    def find_class(self, module: str, name: str) -> Any:
        try:
            return _STAND_INS[module, name]
        except KeyError:
            raise UnsafePickle(f"it asks to run {quoted(f'{module}.{name}')}") from None

    def load_bytearray8(self) -> None:
        """Python's own makes room for as many bytes as are announced before it looks whether they are there."""
        (n_announced,) = struct.unpack("<Q", self.read(8))
        content = bytearray(self.read(n_announced))
        if len(content) != n_announced:
            raise UnsafePickle(f"{n_announced:,} bytes are announced where there are {len(content):,}")
        self.append(content)

    dispatch: ClassVar[dict[int, Any]] = {**pickle._Unpickler.dispatch, pickle.BYTEARRAY8[0]: load_bytearray8}


def read_pickle(path: Path) -> Any:
    """The data in the pickle at `path`; UnsafePickle, a ValueError, for anything but data."""
    content = io.BytesIO(path.read_bytes())  # from memory, no length the file claims is believed
    try:
        return _unwrapped(_Reader(content, encoding="bytes").load())
    except UnsafePickle as refusal:
        raise UnsafePickle(f"{path} was refused and nothing in it was run: {refusal}.") from None
    except Exception as error:  # a damaged pickle raises nearly anything
        raise UnsafePickle(
            f"{path} is not a whole pickle of plain data ({type(error).__name__}: {' '.join(str(error).split())})."
        ) from error


_SCALARS = (int, bytes, str, float, complex, bytearray, type(None))


def _unwrapped(value: object) -> object:
    """Arrays for their stand-ins, text for Python 2's byte strings as keys."""
    if isinstance(value, _SCALARS):
        return value
    match value:
        case _Array():
            return value.value
        case dict():
            return {_text(key): _unwrapped(one) for key, one in value.items()}
        case list():
            return [_unwrapped(one) for one in value]
        case tuple():
            return tuple(_unwrapped(one) for one in value)
    raise UnsafePickle(f"a {type(value).__name__.lstrip('_').lower()} stands where data should")


def _text(key: object) -> object:
    return key.decode("utf-8", "replace") if isinstance(key, bytes) else key
