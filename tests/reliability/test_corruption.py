"""Damage to a file that we wrote is detected and named, or it changes nothing: never a wrong answer in silence."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from damage import damaged

import esupcon
from esupcon.classifier import load_classifier
from esupcon.data import load
from esupcon.probability import Predictions
from esupcon.spec import TrainSpec
from esupcon.training import TrainData, TrainingInterrupted, fit
from tiny_images import pictures, write_folder, write_npz

pytestmark = pytest.mark.reliability

N_FLIPS = 60


def check_every_damage(
    file: Path, read: Callable[[], Any], *, named: str | None = None, n_flips: int = N_FLIPS, recovers: bool = False
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
            message = str(error)
            assert (named or file.name) in message, (what, message)
            assert "\n" not in message, (what, message)
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
    check_every_damage(file, lambda: load(file, log=lambda line: None).fingerprint, n_flips=300)


@pytest.mark.parametrize("place", [134, 140, 177, 178, 184, -3])
def test_damaged_npz_directory_is_refused(tmp_path: Path, place: int) -> None:
    """Found by flipping: the parsers below raised tokenize.TokenError and OSError there."""
    file = write_npz(tmp_path / "data.npz")
    content = file.read_bytes()
    for bit in range(8):
        changed = bytearray(content)
        changed[place] ^= 1 << bit
        file.write_bytes(changed)
        try:
            load(file, log=lambda line: None)
        except ValueError as error:
            assert str(file) in str(error)


@pytest.mark.parametrize("name", ["config.json", "model.safetensors"])
def test_damaged_model_is_refused(run: Path, name: str) -> None:
    images = pictures(np.arange(9) % 3, 0)
    file = run / "model" / name

    def read() -> bytes:
        return load_classifier(run / "model").logits(images).tobytes()

    check_every_damage(file, read, named=str(run / "model"))


@pytest.mark.parametrize("name", ["config.json", "model.safetensors", "examples.safetensors"])
def test_damaged_estimator_is_refused(tmp_path: Path, name: str) -> None:
    rng = np.random.default_rng(0)
    X, y = rng.normal(size=(40, 4)), np.arange(40) % 2
    classifier = esupcon.ContrastiveClassifier(epochs=2, auto_calibrate=False, random_state=0).fit(X, y)
    folder = Path(classifier.save(tmp_path / "model"))

    def read() -> tuple[bytes, Any]:
        loaded = esupcon.load(folder)
        assert isinstance(loaded, esupcon.ContrastiveClassifier)
        examples = loaded.classifier_.examples
        return loaded.predict_proba(X).tobytes(), None if examples is None else examples.embedding.tobytes()

    check_every_damage(folder / name, read, named=str(folder))


@pytest.mark.parametrize("suffix", [".u8", ".json"])
def test_damaged_cache_is_decoded_again(tmp_path: Path, suffix: str) -> None:
    photos = write_folder(tmp_path / "photos", n_each=5)
    (photos / "nw" / "0.png").write_bytes(b"no image")
    cache = tmp_path / "cache"

    def read() -> tuple[str, Any]:
        found = load(photos, cache_dir=cache, log=lambda line: None)
        return found.fingerprint, found.skipped

    read()
    (file,) = cache.glob(f"*{suffix}")
    check_every_damage(file, read, recovers=True)
    file.write_bytes(b"")
    notes = load(photos, cache_dir=cache, log=lambda line: None).notes
    assert any(str(file.with_suffix(".u8")) in note and "damaged; decoding them again" in note for note in notes)


def small_data() -> TrainData:
    labels = np.arange(48) % 3
    return TrainData(pictures(labels, 0), labels, 3)


def test_examples_of_another_model_are_refused(tmp_path: Path) -> None:
    X, y = np.random.default_rng(0).normal(size=(12, 3)), np.arange(12) % 2
    for seed in (0, 1):
        quick = esupcon.ContrastiveClassifier(epochs=1, encoder="mlp-4x1", auto_calibrate=False, random_state=seed)
        quick.fit(X, y).save(tmp_path / str(seed))
    shutil.copy(tmp_path / "0" / "examples.safetensors", tmp_path / "1" / "examples.safetensors")
    with pytest.raises(ValueError, match="its digest differs"):
        esupcon.load(tmp_path / "1")


@pytest.fixture(scope="module")
def interrupted(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, bytes]:
    """A run that was stopped in its middle, and the logits it would have come to."""
    folder, whole = tmp_path_factory.mktemp("interrupted"), tmp_path_factory.mktemp("whole")
    expected = fit(spec(), small_data(), out=whole, log=lambda line: None)
    steps = iter(range(1, 100))
    with pytest.raises(TrainingInterrupted):
        fit(
            *(spec(), small_data()),
            out=folder,
            checkpoint_seconds=0,
            should_stop=lambda: next(steps) == 5,
            log=lambda line: None,
        )
    assert len(list(folder.glob("checkpoint-*.pt"))) == 2
    return folder, expected.classifier.logits(small_data().x).tobytes()


def spec() -> TrainSpec:
    return TrainSpec(encoder="mlp-8x1", epochs=3, batch_size=16, precision="32")


@pytest.mark.parametrize("name", ["newest", "checkpoint.json", "run.json"])
def test_damaged_checkpoint_falls_back_to_previous_one(
    tmp_path: Path, interrupted: tuple[Path, bytes], name: str
) -> None:
    """The newest is damaged: the one before serves. What names them is damaged: the run starts over, or says so."""
    source, expected = interrupted
    file = max(source.glob("checkpoint-*.pt")) if name == "newest" else source / name
    said: list[str] = []
    for i, (what, changed) in enumerate(damaged(file.read_bytes(), 12)):
        folder = Path(shutil.copytree(source, tmp_path / str(i)))
        (folder / file.name).write_bytes(changed)
        said.clear()
        try:
            found = fit(spec(), small_data(), out=folder, log=said.append)
        except ValueError as error:
            assert name != "newest", (what, error)
            assert str(folder) in str(error) or "run.json" in str(error), (what, error)
            assert "\n" not in str(error)
        else:
            assert found.classifier.logits(small_data().x).tobytes() == expected, what
            if name == "newest":
                assert any(str(folder / file.name) in line and "the checkpoint before it" in line for line in said), (
                    what
                )


def test_two_damaged_checkpoints_restart_the_run(tmp_path: Path, interrupted: tuple[Path, bytes]) -> None:
    source, expected = interrupted
    folder = Path(shutil.copytree(source, tmp_path / "run"))
    for file in folder.glob("checkpoint-*.pt"):
        file.write_bytes(file.read_bytes()[:-100])
    said: list[str] = []
    assert (
        fit(spec(), small_data(), out=folder, log=said.append).classifier.logits(small_data().x).tobytes() == expected
    )
    assert sum("is damaged: its checksum differs" in line for line in said) == 2


def test_checkpoint_of_another_version_is_refused(tmp_path: Path, interrupted: tuple[Path, bytes]) -> None:
    """As a later version might write it: whole by its checksum, and not what is expected."""
    import hashlib
    import io

    import torch

    from esupcon._io import read_sealed_json, write_sealed_json

    folder = Path(shutil.copytree(interrupted[0], tmp_path / "run"))
    for state in ({}, {"network": {}}, [1, 2], {"network": {"head.weight": torch.zeros(1)}}):
        buffer = io.BytesIO()
        torch.save(state, buffer)
        index = read_sealed_json(folder / "checkpoint.json")
        index["checkpoints"][0]["sha256"] = hashlib.sha256(buffer.getvalue()).hexdigest()
        (folder / index["checkpoints"][0]["file"]).write_bytes(buffer.getvalue())
        write_sealed_json(folder / "checkpoint.json", index)
        with pytest.raises(ValueError, match="cannot be continued by this version") as refusal:
            fit(spec(), small_data(), out=folder, log=lambda line: None)
        assert "\n" not in str(refusal.value)


def test_changed_digit_in_result_is_refused(run: Path) -> None:
    from esupcon.training import Result

    path = run / "result.json"
    text = path.read_text()
    accuracy = str(Result.read(run).metrics.test.accuracy)
    assert accuracy in text
    for changed in (text.replace(accuracy, "0.999", 1), text.replace('"seed": 0', '"seed": 1', 1)):
        assert changed != text
        path.write_text(changed)
        with pytest.raises(ValueError, match=r"result\.json was changed after it was written") as refusal:
            Result.read(run)
        assert "\n" not in str(refusal.value)


@pytest.mark.parametrize("content", [b"", b"{", b"[]", b"{}", b"null", b'{"schema": 1}', b"\xff\xfe", b"[" * 100_000])
def test_truncated_result_is_refused(run: Path, content: bytes) -> None:
    from esupcon.training import Result

    (run / "result.json").write_bytes(content)
    with pytest.raises(ValueError, match=r"result\.json") as refusal:
        Result.read(run)
    assert "\n" not in str(refusal.value)


@pytest.mark.parametrize(
    "torn", [b'{"seconds": 2.', b"\xff\xfe", b"[" * 5000, b'{"seconds": NaN}', b'{"seconds": "2"}', b"7"]
)
def test_torn_timing_line_is_ignored(tmp_path: Path, torn: bytes) -> None:
    from esupcon.training.result import training_seconds

    assert training_seconds(tmp_path) == 0
    whole = b'{"images_per_second": 9.0, "seconds": 1.5}\n'
    (tmp_path / "timing.jsonl").write_bytes(whole + torn + b"\n" + whole)
    assert training_seconds(tmp_path) == 3.0
