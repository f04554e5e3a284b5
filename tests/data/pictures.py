"""Images, folders and small CIFAR files for the tests that read data."""

import hashlib
import pickle
from pathlib import Path

import numpy as np
from PIL import Image

from esupcon.data import Dataset, load, named

RNG = np.random.default_rng(3)
CIFAR10_CLASSES = b"airplane automobile bird cat deer dog frog horse ship truck".split()


def picture(width=24, height=24, seed=0):
    """A smooth colour gradient with a bright corner, so that every turn and flip of it differs."""
    y, x = np.mgrid[0:height, 0:width]
    shift = 17 * seed % 97
    red = 40 + 180 * x / max(width - 1, 1)
    green = 30 + 190 * y / max(height - 1, 1)
    blue = np.full_like(red, 60.0 + shift)
    pixels = np.stack([red, green, blue], -1)
    pixels[: max(1, height // 4), : max(1, width // 4)] = 250
    return Image.fromarray(pixels.round().astype(np.uint8))


def saved(path: Path, image=None, **options) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    (image or picture()).save(path, **options)
    return path


def class_folder(root: Path, counts: dict[str, int], **options) -> Path:
    """root/<class>/<i>.png, every picture another."""
    seed = 0
    for name, count in counts.items():
        (root / name).mkdir(parents=True, exist_ok=True)
        for i in range(count):
            seed += 1
            saved(root / name / f"{i:03}.png", picture(seed=seed, **options))
    return root


def quietly(source, tmp_path: Path, **options) -> Dataset:
    """`load` with its cache in tmp_path; its messages become `notes` of the data set."""
    options.setdefault("cache_dir", tmp_path / "the cache")
    options.setdefault("data_dir", tmp_path)
    notes: list[str] = []
    dataset = load(source, log=notes.append, **options)
    object.__setattr__(dataset, "notes", tuple(notes))
    return dataset


def said(dataset: Dataset, *words: str) -> bool:
    """Whether one note has all the words."""
    return any(all(word in line for word in words) for line in dataset.notes)


def pickled(path, content):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(pickle.dumps(content, protocol=3))


def cifar10(root, n=20):
    """The official files, with n images a batch; returns the images and labels."""
    folder = root / "cifar-10-batches-py"
    images, labels = [], []
    for name in [*(f"data_batch_{i}" for i in range(1, 6)), "test_batch"]:
        x, y = RNG.integers(0, 256, (n, 3072)).astype(np.uint8), (np.arange(n) % 10).tolist()
        pickled(folder / name, {b"batch_label": b"x", b"labels": y, b"data": x, b"filenames": [b"f.png"] * n})
        images.append(x)
        labels.append(y)
    pickled(folder / "batches.meta", {b"num_vis": 3072, b"label_names": CIFAR10_CLASSES})
    return np.concatenate(images).reshape(-1, 3, 32, 32), np.concatenate(labels)


def cifar100(root, n=200):
    folder = root / "cifar-100-python"
    for name in ("train", "test"):
        x, y = RNG.integers(0, 256, (n, 3072)).astype(np.uint8), (np.arange(n) % 100).tolist()
        pickled(folder / name, {b"fine_labels": y, b"coarse_labels": [k // 5 for k in y], b"data": x})
    names = [f"fine{k}".encode() for k in range(100)]
    pickled(folder / "meta", {b"fine_label_names": names, b"coarse_label_names": [b"c"] * 20})


def take_for_official(monkeypatch, name, folder):
    """Accept the checksums of the files in a folder."""
    files = {file: hashlib.md5((folder / file).read_bytes()).hexdigest() for file in named._CIFAR_FILES[name]}
    monkeypatch.setitem(named._CIFAR_FILES, name, files)
