"""The readers of models, checkpoints and results."""

from __future__ import annotations

import hashlib
import io
import json
import shutil
import tempfile
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import torch
from harness import Reader, in_file, of_arrays, quiet

import esupcon
from esupcon._io import OWNED, write_sealed_json
from esupcon.spec import RunSpec, TrainSpec
from esupcon.training.result import RUN_FILES, Result
from esupcon.training.run import RunFolder


def model_readers() -> Iterator[tuple[str, Reader]]:
    for kind, name in (("config", "config.json"), ("weights", "model.safetensors"), ("examples", EXAMPLES)):
        yield kind, Reader(_model_file(name), _read_model(name), _essence_of_model)
    yield "sealed-config", Reader(_model_file("config.json"), _read_sealed_config)
    yield "checkpoint", Reader(_checkpoints, _read_sealed_checkpoint)
    yield (
        "checkpoint-index",
        Reader(_checkpoint_index, in_file("checkpoint.json", _read_checkpoints)),
    )
    yield (
        "run",
        Reader(_run_files, in_file("run.json", _read_run_file)),
    )
    yield (
        "result",
        Reader(_results, in_file("result.json", lambda file: Result.read(file.parent)), _essence_of_result),
    )


EXAMPLES, SEAL = "examples.safetensors", "sha256_of_the_rest"


def _essence_of_model(found: esupcon.ContrastiveClassifier) -> Any:
    inner = found.classifier_
    weights = {name: value.numpy() for name, value in inner.network.state_dict().items()}
    kept = inner.examples
    arrays = (*weights.values(), found.classes_, kept and kept.embedding, kept and kept.codes)
    return tuple(weights), of_arrays(*arrays), repr((inner.calibration, inner.preprocessing, found.get_params()))


@cache
def _estimator() -> esupcon.ContrastiveClassifier:
    rng = np.random.default_rng(0)
    classifier = esupcon.ContrastiveClassifier(epochs=1, encoder="mlp-4x1", auto_calibrate=False, random_state=0)
    return classifier.fit(rng.normal(size=(12, 3)), np.arange(12) % 2)


@cache
def _saved_once() -> Path:
    """Saved anew it would bear another moment, and so another digest."""
    return Path(_estimator().save(Path(tempfile.mkdtemp(prefix="esupcon-fuzz-")) / "model"))


def _saved(folder: Path) -> Path:
    return Path(shutil.copytree(_saved_once(), folder / "model"))


def _model_file(name: str) -> Callable[[], list[bytes]]:
    @cache
    def seeds() -> list[bytes]:
        with tempfile.TemporaryDirectory() as folder:
            return [(_saved(Path(folder)) / name).read_bytes()]

    return seeds


def _read_model(name: str) -> Callable[[Path, bytes], object]:
    def read(folder: Path, content: bytes) -> object:
        model = _saved(folder)
        (model / name).write_bytes(content)
        return esupcon.load(model)

    return read


def _read_sealed_config(folder: Path, content: bytes) -> object:
    """Seal what a forger wrote: then only the validation of its fields protects the code."""
    model = _saved(folder)
    try:
        values = json.loads(content)
    except (ValueError, RecursionError):
        values = None
    if isinstance(values, dict):
        write_sealed_json(model / "config.json", {name: one for name, one in values.items() if name != SEAL})
    else:
        (model / "config.json").write_bytes(content)
    return esupcon.load(model)


def _checkpoints() -> list[bytes]:
    state = {
        "network": {"weight": torch.zeros(2, 2)},
        "position": {"epoch": 1},
        "history": [{"loss": 0.5}],
        "none": None,
    }
    buffer = io.BytesIO()
    torch.save(state, buffer)
    return [buffer.getvalue()]


def _read_sealed_checkpoint(folder: Path, content: bytes) -> object:
    (folder / "checkpoint-1.pt").write_bytes(content)
    listed = [{"file": "checkpoint-1.pt", "sha256": hashlib.sha256(content).hexdigest()}]
    write_sealed_json(folder / "checkpoint.json", {"key": "", "checkpoints": listed})
    return RunFolder(folder, quiet).load(torch.device("cpu"))


def _read_checkpoints(index: Path) -> object:
    _seal(index)
    return RunFolder(index.parent, quiet).load(torch.device("cpu"))


def _seal(path: Path) -> None:
    """Seal a damaged file again, so that its content is looked at."""
    try:
        value = json.loads(path.read_text())
    except (ValueError, RecursionError):
        return
    if isinstance(value, dict):
        write_sealed_json(path, value)


def _checkpoint_index() -> list[bytes]:
    return [json.dumps({"key": "", "checkpoints": [{"file": "checkpoint-1.pt", "sha256": "0" * 64}] * 2}).encode()]


def _read_run_file(path: Path) -> object:
    _seal(path)
    write_sealed_json(path.parent / OWNED, {"files": list(RUN_FILES)})
    return RunFolder(path.parent, quiet).read()


def _run_files() -> list[bytes]:
    spec = RunSpec(source="digits", train=TrainSpec())
    return [json.dumps({"key": spec.key, "spec": spec.model_dump(), "device": "cpu"}).encode()]


def _results() -> list[bytes]:
    spec = RunSpec.model_validate({"source": "digits", "content": "0" * 64, "train": TrainSpec()})
    scenario = {"settings": {"seed": 0}, "n_before": 9, "n_after": 9, "scarce_classes": None, "n_wrong_labels": 0}
    scenario |= {f"{name}_counts_{when}": {"0": 9} for name, when in (("class", "before"), ("class", "after"))}
    scenario |= {"label_counts_after": {"0": 9}, "effective_noise_rate": 0.0, "sha256": "0"}
    preparation = {"scenario": scenario, "validation_fraction": 0.1, "validation_seed": 0, "class_counts": [8]}
    preparation |= {"n_fit": 8, "n_held_out": 1, "n_test": 3}
    provenance = {"command": "", "source": "digits", "seconds": 1.0, "train_seconds": 1.0, "finished": ""}
    result = Result.model_validate(
        {
            **{"key": spec.key, "run": spec, "precision_reason": "", "encoder": "mlp", "augmentation": "digits"},
            **{
                "batch_size": 4,
                "preparation": preparation,
                "provenance": {**provenance, "device": "cpu", "versions": {}},
            },
            "data": {"name": "d", "fingerprint": "0", "classes": ["a"], "input_shape": [1, 8, 8], "n_skipped": 0},
        }
    )
    with tempfile.TemporaryDirectory() as place:
        result.write(Path(place))
        return [(Path(place) / "result.json").read_bytes()]


def _essence_of_result(found: Any) -> str:
    return str(found.model_dump_json())
