"""A saved model, and a way to forge folders that are sealed like real ones."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from safetensors.torch import load_file, save_file
from small_classifiers import make_classifier
from torch import Tensor

from esupcon._io import file_digest, read_sealed_json, write_sealed_json


@pytest.fixture
def saved(tmp_path: Path) -> Path:
    return make_classifier().save(tmp_path / "model")


@pytest.fixture(scope="session")
def forge() -> Callable[..., None]:
    """Change config or tensors of a saved model and seal it again, as a forger who knows the format would."""

    def forged(folder: Path, *, config: dict[str, Any] | None = None, **changes: Tensor | None) -> None:
        values = read_sealed_json(folder / "config.json")
        for path, value in (config or {}).items():
            *parents, last = path.split(".")
            place = values
            for name in parents:
                place = place[name]
            place[last] = value
        tensors = load_file(folder / "model.safetensors")
        for name, tensor in changes.items():
            if tensor is None:
                del tensors[name]
            else:
                tensors[name] = tensor
        save_file(tensors, folder / "model.safetensors")
        if "files" not in (config or {}):
            values["files"]["model.safetensors"] = file_digest(folder / "model.safetensors")
        write_sealed_json(folder / "config.json", values)

    return forged
