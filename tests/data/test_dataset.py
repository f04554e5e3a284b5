"""The Dataset itself, and what importing it costs."""

import subprocess
import sys

import numpy as np
import pytest
from pictures import class_folder, quietly, said

import esupcon.data
from esupcon.data import Dataset


def made(**changes):
    fields = {
        "x_train": np.zeros((4, 3, 2, 2), np.uint8),
        "y_train": np.array([0, 1, 0, 1]),
        "x_test": np.ones((2, 3, 2, 2), np.uint8),
        "y_test": np.array([0, 1]),
        "classes": ("a", "b"),
    }
    return Dataset(**{**fields, **changes})


def test_what_it_says_of_itself():
    data = made(name="toy")
    assert (data.n_classes, data.image_shape) == (2, (3, 2, 2))
    assert repr(data) == "Dataset('toy', 4 train and 2 test images of 3x2x2, 2 classes)"


def test_the_fingerprint_is_of_the_content():
    assert made().fingerprint == made(name="other", notes=("x",)).fingerprint
    changed = np.zeros((4, 3, 2, 2), np.uint8)
    changed[3, 2, 1, 1] = 1
    others = [
        made(x_train=changed),
        made(y_train=np.array([0, 1, 1, 1])),
        made(x_test=np.zeros((2, 3, 2, 2), np.uint8)),
        made(y_test=np.array([1, 1])),
        made(classes=("a", "c")),
        made(x_train=np.zeros((4, 3, 1, 4), np.uint8), x_test=np.ones((2, 3, 1, 4), np.uint8)),
    ]
    assert len({made().fingerprint, *(other.fingerprint for other in others)}) == 7
    assert len(made().fingerprint) == 64


def test_the_fingerprint_is_the_same_mapped_or_in_memory(tmp_path):
    class_folder(tmp_path / "set" / "train", {"a": 5, "b": 5})
    class_folder(tmp_path / "set" / "test", {"a": 2, "b": 2})
    mapped = quietly(tmp_path / "set", tmp_path)
    loose = quietly(tmp_path / "set", tmp_path, cache=False)
    assert isinstance(mapped.x_train, np.memmap)
    assert not isinstance(loose.x_train, np.memmap)
    assert mapped.fingerprint == loose.fingerprint


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"x_train": np.zeros((4, 3, 2, 2))}, "uint8"),
        ({"x_test": np.zeros((2, 2, 2), np.uint8)}, "x_test must be uint8"),
        ({"y_train": np.zeros(3, np.int64)}, r"int64 \(4,\)"),
        ({"y_test": np.array([0.0, 1.0])}, "y_test must be int64"),
        ({"y_test": np.array([0, 2])}, r"0\.\.1; it has 0 to 2"),
        ({"y_test": np.array([-1, 0])}, "it has -1 to 0"),
        ({"x_test": np.ones((2, 1, 2, 2), np.uint8)}, "alike"),
    ],
)
def test_what_does_not_fit_is_refused(changes, message):
    with pytest.raises(ValueError, match=message):
        made(**changes)


def test_mapped_images_become_tensors_without_a_warning(tmp_path):
    """Read-only arrays would make torch warn, and a write would reach the cache."""
    torch = pytest.importorskip("torch")
    class_folder(tmp_path / "set" / "train", {"a": 2, "b": 2})
    class_folder(tmp_path / "set" / "test", {"a": 2, "b": 2})
    data = quietly(tmp_path / "set", tmp_path)
    before = data.fingerprint
    torch.from_numpy(data.x_train)[:] = 0
    assert quietly(tmp_path / "set", tmp_path).fingerprint == before


def test_what_a_source_says_reaches_the_log_and_the_notes(tmp_path):
    root = class_folder(tmp_path / "set", {"a": 5, "b": 5})
    lines = []
    data = esupcon.data.load(root, cache_dir=tmp_path / "cache", log=lines.append)
    assert tuple(lines) == data.notes
    assert said(data, "image_size is 24")


def test_importing_the_package_is_light():
    code = (
        "import sys, esupcon.data\n"
        "print([name for name in ('torch', 'sklearn', 'pyarrow', 'rich', 'PIL', 'numpy') if name in sys.modules])\n"
        "esupcon.data.load\n"
        "print([name for name in ('torch', 'sklearn', 'pyarrow', 'rich') if name in sys.modules])\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout.splitlines() == ["[]", "[]"]


def test_public_names():
    assert set(esupcon.data.__all__) <= set(dir(esupcon.data))
    for name in esupcon.data.__all__:
        assert getattr(esupcon.data, name) is not None
    with pytest.raises(AttributeError, match="nonsense"):
        esupcon.data.nonsense  # noqa: B018 - looked up for its refusal
