"""Lists of files in batches, in bounded memory."""

import itertools
import tempfile
from pathlib import Path

import numpy as np
import pytest
from pictures import class_folder, picture, quietly, saved

from esupcon.data import load_images


@pytest.fixture
def paths(tmp_path):
    return [saved(tmp_path / f"{i:02}.png", picture(20 + i, 30, seed=i)) for i in range(25)]


@pytest.mark.parametrize("batch_size", [1, 7, 25, 100])
@pytest.mark.parametrize("workers", [1, 2])
def test_batches_are_the_files_in_order(paths, batch_size, workers):
    batches = list(load_images(iter(paths), 16, batch_size=batch_size, workers=workers))
    assert [len(batch.paths) for batch in batches[:-1]] == [batch_size] * (len(batches) - 1)
    assert [path for batch in batches for path in batch.paths] == [str(path) for path in paths]
    (whole,) = load_images(paths, 16, batch_size=25)
    together = np.concatenate([batch.images for batch in batches])
    np.testing.assert_array_equal(together, whole.images)
    assert together.shape == (25, 3, 16, 16)
    assert together.dtype == np.uint8


def test_a_batch_stays_what_it_was(paths):
    """The next batch is not decoded into the memory of the last one."""
    batches = load_images(paths, 16, batch_size=5)
    first = next(batches)
    before = first.images.copy()
    next(batches)
    np.testing.assert_array_equal(first.images, before)
    batches.close()


def test_files_are_decoded_as_load_decodes_them(tmp_path):
    root = class_folder(tmp_path / "set", {"a": 4, "b": 4}, width=50, height=31)
    data = quietly(root, tmp_path, image_size=(12, 10), channels=1)
    (batch,) = load_images(sorted(root.rglob("*.png")), (12, 10), channels=1)
    loaded = np.concatenate([data.x_train, data.x_test])
    assert {image.tobytes() for image in batch.images} == {image.tobytes() for image in loaded}


def test_unreadable_files_are_reported_in_their_batch(paths, tmp_path):
    mixed = [paths[0], tmp_path / "absent.png", paths[1], tmp_path / "gone.png", tmp_path / "lost.png"]
    first, second = load_images(mixed, 8, batch_size=3)
    assert first.paths == [str(paths[0]), str(paths[1])]
    assert [path for path, _ in first.skipped] == [str(tmp_path / "absent.png")]
    assert (second.paths, second.images.shape) == ([], (0, 3, 8, 8))
    assert len(second.skipped) == 2


def test_an_endless_list_is_read_as_far_as_it_is_asked_for(paths):
    batches = load_images(itertools.cycle(paths), 8, batch_size=10, workers=1)
    for _ in range(4):
        assert len(next(batches).paths) == 10
    batches.close()


def test_nothing_is_left_behind(paths, tmp_path, monkeypatch):
    (tmp_path / "temporary").mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "temporary"))
    list(load_images(paths, 8))
    batches = load_images(paths, 8, batch_size=3)
    next(batches)
    assert any(Path(tmp_path / "temporary").iterdir())
    batches.close()
    assert list(Path(tmp_path / "temporary").iterdir()) == []


def test_an_empty_list_has_no_batches():
    assert list(load_images([], 8)) == []


@pytest.mark.parametrize(("size", "options"), [(0, {}), (8, {"batch_size": 0}), (8, {"channels": 2}), ((4, 0), {})])
def test_mistakes_are_told_at_once(size, options):
    with pytest.raises(ValueError, match="load_images needs"):
        load_images(["x"], size, **options)
