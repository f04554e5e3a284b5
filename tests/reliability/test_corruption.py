"""Damage to a file is detected and named, or it changes nothing: never a wrong answer in silence."""

from __future__ import annotations

import hashlib
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from checks import damaged
from PIL import Image

import esupcon
from esupcon.data import Dataset
from esupcon.data import load as load_data
from esupcon.probability import Predictions
from esupcon.spec import TrainSpec
from esupcon.training import Result, TrainData, TrainingInterrupted, fit
from esupcon.training.result import training_seconds
from tiny_images import pictures, write_folder

pytestmark = pytest.mark.reliability


def quiet(line: str) -> None:
    """Ignore messages."""


def check_every_damage(
    file: Path, read: Callable[[], Any], *, named: Path | None = None, n_flips: int = 60, recovers: bool = False
) -> None:
    """`read()` gives what it gave before, or is a ValueError of one line that names the file. Most damage must be of
    the second kind, or, where `recovers`, all of the first."""
    content = file.read_bytes()
    expected = read()
    refused = 0
    for what, changed in damaged(content, n_flips):
        file.write_bytes(changed)
        try:
            found = read()
        except (ValueError, FileNotFoundError) as error:
            assert not recovers, (what, error)
            assert str(named or file) in str(error), (what, error)
            assert "\n" not in str(error), (what, error)
            refused += 1
        else:
            assert found == expected, what
    file.write_bytes(content)
    assert read() == expected
    assert recovers or refused > n_flips // 2


def test_damaged_predictions_are_refused(tmp_path: Path) -> None:
    """Compressed, longer than a read-ahead, so that the checksum at the end has to be asked for."""
    rng = np.random.default_rng(0)
    file = Predictions(rng.normal(size=(3000, 10)).round(1), rng.integers(0, 10, 3000)).save(tmp_path / "p.npz")

    def read() -> tuple[bytes, bytes]:
        found = Predictions.load(file)
        return found.logits.tobytes(), found.labels.tobytes()

    check_every_damage(file, read, n_flips=300)


@pytest.mark.parametrize("save", [np.savez, np.savez_compressed])
def test_damaged_npz_data_are_refused(tmp_path: Path, save: Any) -> None:
    file = tmp_path / "data.npz"
    rng = np.random.default_rng(0)
    save(file, x_train=rng.integers(0, 4, (300, 8, 8, 1)).astype(np.uint8), y_train=np.arange(300) % 3)
    check_every_damage(file, lambda: load_data(file, log=quiet).fingerprint, n_flips=300)


@pytest.mark.parametrize("name", ["config.json", "model.safetensors", "examples.safetensors"])
def test_damaged_model_is_refused(tmp_path: Path, name: str) -> None:
    X, y = np.random.default_rng(0).normal(size=(40, 4)), np.arange(40) % 2
    for seed in (0, 1):
        one = esupcon.ContrastiveClassifier(encoder="mlp-4x1", epochs=1, auto_calibrate=False, random_state=seed)
        one.fit(X, y).save(tmp_path / str(seed))
    folder = tmp_path / "0"

    def read() -> tuple[bytes, bytes]:
        loaded = esupcon.load(folder)
        return loaded.predict_proba(X).tobytes(), loaded.classifier_.examples.embedding.tobytes()  # type: ignore[union-attr]

    check_every_damage(folder / name, read, named=folder)
    if name != "config.json":
        shutil.copy(tmp_path / "1" / name, folder / name)  # sound, and of another model
        with pytest.raises(ValueError, match="its digest differs"):
            esupcon.load(folder)


@pytest.mark.parametrize("suffix", [".u8", ".json"])
def test_damaged_cache_is_decoded_again(tmp_path: Path, suffix: str) -> None:
    photos = write_folder(tmp_path / "photos", n_each=5)
    (photos / "nw" / "0.png").write_bytes(b"no image")
    cache = tmp_path / "cache"

    def read() -> tuple[str, Any]:
        found = load_data(photos, cache_dir=cache, log=quiet)
        return found.fingerprint, found.skipped

    read()
    (file,) = cache.glob(f"*{suffix}")
    check_every_damage(file, read, recovers=True)
    file.unlink()
    assert read() == read()
    file.write_bytes(b"")
    notes: list[str] = []
    load_data(photos, cache_dir=cache, log=notes.append)
    assert any(str(file.with_suffix(".u8")) in note and "damaged; decoding them again" in note for note in notes)


# --- Checkpoints and results -----------------------------------------------------------------------------------------

SPEC = TrainSpec(encoder="mlp-8x1", epochs=3, batch_size=16, precision="32")
DATA = TrainData(pictures(np.arange(48) % 3, 0), np.arange(48) % 3, 3)


def continued(folder: Path, log: Callable[[str], None] = quiet) -> bytes:
    return fit(SPEC, DATA, out=folder, log=log).classifier.logits(DATA.x).tobytes()


@pytest.fixture(scope="module")
def interrupted(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, bytes]:
    """A run that was stopped in its middle, and the logits it would have come to."""
    folder = tmp_path_factory.mktemp("interrupted")
    steps = iter(range(1, 100))
    with pytest.raises(TrainingInterrupted):
        fit(SPEC, DATA, out=folder, checkpoint_seconds=0, should_stop=lambda: next(steps) == 5, log=quiet)
    assert len(list(folder.glob("checkpoint-*.pt"))) == 2
    return folder, continued(tmp_path_factory.mktemp("whole"))


@pytest.mark.parametrize("name", ["newest", "both", "run.json"])
def test_damaged_checkpoint_falls_back_to_previous_one(
    tmp_path: Path, interrupted: tuple[Path, bytes], name: str
) -> None:
    """If the newest is damaged, the one before is used; if both are, the run starts over."""
    source, expected = interrupted
    file = max(source.glob("checkpoint-*.pt")) if name in ("newest", "both") else source / name
    for i, (what, changed) in enumerate(damaged(file.read_bytes(), 12)):
        folder = Path(shutil.copytree(source, tmp_path / str(i)))
        (folder / file.name).write_bytes(changed)
        if name == "both":
            min(folder.glob("checkpoint-*.pt")).write_bytes(changed)
        said: list[str] = []
        try:
            assert continued(folder, said.append) == expected, what
        except ValueError as error:
            assert name.endswith(".json"), (what, error)
            assert str(folder) in str(error), (what, error)
            assert "\n" not in str(error)
        n_damaged = sum("its checksum differs; using the checkpoint before it" in line for line in said)
        assert n_damaged == {"newest": 1, "both": 2}.get(name, n_damaged), what


def test_checkpoint_of_another_version_is_refused(tmp_path: Path, interrupted: tuple[Path, bytes]) -> None:
    """As a later version might write it: whole by its checksum, and not what is expected."""
    folder = Path(shutil.copytree(interrupted[0], tmp_path / "run"))
    for state in ({}, {"network": {}}, [1, 2], {"network": {"head.weight": torch.zeros(1)}}):
        path = max(folder.glob("checkpoint-*.pt"))
        torch.save(state, path)
        digest = hashlib.sha256(path.read_bytes()).hexdigest()[:16]
        path.rename(path.with_name(f"{path.stem[:-16]}{digest}.pt"))
        with pytest.raises(ValueError, match="cannot be continued by this version") as refusal:
            continued(folder)
        assert "\n" not in str(refusal.value)


def test_changed_result_is_refused(run: Path) -> None:
    path, text = run / "result.json", (run / "result.json").read_bytes()
    digit = str(Result.read(run).metrics.test.accuracy).encode()  # type: ignore[union-attr]
    for changed in (
        *(text.replace(digit, b"0.999", 1), text.replace(b'"seed": 0', b'"seed": 1', 1)),
        *(b"", b"{", b"[]", b"{}", b"null", b'{"schema": 1}', b"\xff\xfe", b"[" * 100_000),
    ):
        assert changed != text
        path.write_bytes(changed)
        with pytest.raises(ValueError, match=r"result\.json") as refusal:
            Result.read(run)
        assert "\n" not in str(refusal.value)


@pytest.mark.parametrize(
    "torn", [b'{"seconds": 2.', b"\xff\xfe", b"[" * 5000, b'{"seconds": NaN}', b'{"seconds": "2"}', b"7"]
)
def test_torn_timing_line_is_ignored(tmp_path: Path, torn: bytes) -> None:
    assert training_seconds(tmp_path) == 0
    whole = b'{"images_per_second": 9.0, "seconds": 1.5}\n'
    (tmp_path / "timing.jsonl").write_bytes(whole + torn + b"\n" + whole)
    assert training_seconds(tmp_path) == 3.0


# --- Formats of others, most of which have no checksum ---------------------------------------------------------------


def jpeg_folder(root: Path) -> Path:
    for k in range(2):
        (root / f"c{k}").mkdir(parents=True)
        for i, image in enumerate(pictures(np.full(4, k), k)):
            Image.fromarray(image[0]).resize((24, 24)).save(root / f"c{k}" / f"{i}.jpg")
    return root


def table(root: Path) -> Path:
    write_folder(root / "photos", n_each=4)
    lines = [f"photos/{path.parent.name}/{path.name},{path.parent.name}" for path in sorted(root.rglob("*.png"))]
    (root / "table.csv").write_text("path,label\n" + "\n".join(lines) + "\n")
    return root / "table.csv"


def parquet(root: Path) -> Path:
    pa = pytest.importorskip("pyarrow")
    import pyarrow.parquet

    write_folder(root, n_each=4)
    images = [{"bytes": path.read_bytes(), "path": None} for path in sorted(root.rglob("*.png"))]
    columns = {"image": images, "label": [f"class {i % 3}" for i in range(12)]}
    pyarrow.parquet.write_table(pa.table(columns), root / "t.parquet")
    return root / "t.parquet"


@pytest.mark.parametrize(
    ("make", "name", "n_images"),
    [
        (jpeg_folder, "c0/1.jpg", 8),
        (lambda root: write_folder(root, n_each=4), "nw/1.png", 12),
        (table, "table.csv", 12),
        (parquet, "t.parquet", 12),
    ],
    ids=["jpeg", "png", "csv", "parquet"],
)
def test_damaged_file_is_named_skipped_or_other_data(tmp_path: Path, make: Any, name: str, n_images: int) -> None:
    """Other data have another fingerprint, so no stored run is taken for theirs."""
    source, file, notes = make(tmp_path / "data"), tmp_path / "data" / name, list[str]()

    def read() -> Dataset:
        notes.clear()
        return load_data(source, cache_dir=tmp_path / "cache", image_size=8, channels=1, log=notes.append, workers=1)

    content, before = file.read_bytes(), read()
    for what, changed in damaged(content, 40):
        file.write_bytes(changed)
        try:
            found = read()
        except (ValueError, FileNotFoundError) as error:
            # A damaged table names what it cannot understand; most often itself, else a class or a picture of it.
            assert str(tmp_path / "data") in str(error) or "class" in str(error), (what, error)
            assert "\n" not in str(error), (what, error)
            continue
        n_found = len(found.x_train) + len(found.x_test) + len(found.skipped)
        assert n_found == n_images or name == "table.csv", (what, n_found)  # a line of it may be gone
        if found.skipped:
            assert any("skipped" in note for note in notes), what
    file.write_bytes(content)
    assert read().fingerprint == before.fingerprint
