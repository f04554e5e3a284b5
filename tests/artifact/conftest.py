"""Small models to save, and a way to forge folders that are sealed as the real ones are."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from safetensors.torch import load_file, save_file
from torch import Tensor

from esupcon.artifact import ArtifactConfig, ImagePreprocessing, TablePreprocessing, save_artifact
from esupcon.artifact.config import text_digest
from esupcon.artifact.weights import _tensors_digest
from esupcon.models import Network, build_network

Make = Callable[..., tuple[Network, ArtifactConfig]]


@pytest.fixture(scope="session")
def make() -> Make:
    """A network with statistics that are not those of the start, and its config."""

    def made(encoder: Any = "mlp-8x2", input_shape: tuple[int, ...] = (3,), **settings: Any) -> Any:
        classes = settings.pop("classes", ["cat", "dog", "eel"])
        head = settings.pop("head", "prototype")
        projection_dim = settings.pop("projection_dim", None)
        network = build_network(
            encoder=encoder,
            input_shape=input_shape,
            n_classes=len(classes),
            head=head,
            projection_dim=projection_dim,
            temperature=0.2,
        )
        for name, buffer in network.named_buffers():
            if name.endswith("running_mean"):
                buffer.uniform_(-0.2, 0.2)
            elif name.endswith("running_var"):
                buffer.uniform_(0.5, 1.5)
        config = ArtifactConfig(
            encoder=encoder if isinstance(encoder, str) else "custom",
            input_shape=input_shape,
            classes=classes,
            head=head,
            temperature=0.2,
            projection_dim=projection_dim,
            preprocessing=preprocessing_for(input_shape),
            method="esupcon",
            **settings,
        )
        return network.eval(), config

    return made


def preprocessing_for(input_shape: tuple[int, ...]) -> ImagePreprocessing | TablePreprocessing:
    if len(input_shape) == 1:
        d = input_shape[0]
        return TablePreprocessing(mean=[0.1 * i for i in range(d)], scale=[1.0 + i for i in range(d)])
    c, h, w = input_shape
    return ImagePreprocessing(channels=c, image_size=(h, w), mean=[0.4, 0.5, 0.6][:c], std=[0.2, 0.3, 0.4][:c])


@pytest.fixture
def saved(make: Make, tmp_path: Path) -> Path:
    return save_artifact(tmp_path / "model", *make())


@pytest.fixture(scope="session")
def forge() -> Callable[..., None]:
    """Change config or tensors of a saved model and seal it again, as a forger who knows the format would."""

    def forged(folder: Path, *, config: dict[str, Any] | None = None, **changes: Tensor | None) -> None:
        values = json.loads((folder / "config.json").read_text())
        values |= config or {}
        text = json.dumps(values)
        (folder / "config.json").write_text(text)
        tensors = load_file(folder / "model.safetensors")
        for name, value in changes.items():
            if value is None:
                del tensors[name]
            else:
                tensors[name] = value
        seal = {"format_version": 1, "config_sha256": text_digest(text), "tensors_sha256": _tensors_digest(tensors)}
        save_file(tensors, folder / "model.safetensors", metadata={"esupcon": json.dumps(seal)})

    return forged
