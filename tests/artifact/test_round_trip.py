"""What is saved comes back."""

from __future__ import annotations

import json
import math
import os
import stat
import sys
import tempfile
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from network_state import same_state
from torch import nn

from esupcon.artifact import ArtifactConfig, Classifier, load_artifact, save_artifact
from esupcon.artifact.config import config_text, parse_config


def some_rows(input_shape: tuple[int, ...], n: int = 5) -> Any:
    rng = np.random.default_rng(0)
    if len(input_shape) == 1:
        return rng.normal(size=(n, *input_shape))
    return rng.integers(0, 256, (n, *input_shape), dtype=np.uint8)


@pytest.mark.parametrize("head", ["linear", "prototype"])
@pytest.mark.parametrize("projection_dim", [None, 4])
@pytest.mark.parametrize(
    ("encoder", "shape"),
    [
        ("resnet10-w4", (3, 8, 8)),
        ("resnet50-w2", (1, 8, 8)),
        ("resnet14-w2", (3, 66, 66)),
        ("mlp-8x2", (3,)),
        ("mlp-8x1", (1, 4, 4)),
        ("identity", (6,)),
    ],
)
def test_everything_comes_back(
    make: Any, tmp_path: Path, encoder: str, shape: tuple[int, ...], head: str, projection_dim: int | None
) -> None:
    network, config = make(encoder, shape, head=head, projection_dim=projection_dim)
    X = some_rows(shape)
    before = Classifier(network, config)
    assert save_artifact(tmp_path / "model", network, config) == tmp_path / "model"
    after = load_artifact(tmp_path / "model")

    assert after.config == config
    assert same_state(after.network, network)
    assert [p.requires_grad for p in after.network.parameters()] == [True] * len(list(network.parameters()))
    assert not any(t.is_meta for t in (*after.network.parameters(), *after.network.buffers()))
    assert (before.logits(X).std(axis=0) > 0).all()  # rows that differ: equality below says something
    for method in ("logits", "predict_proba", "predict", "transform"):
        np.testing.assert_array_equal(getattr(after, method)(X), getattr(before, method)(X))


def test_the_folder_holds_three_files_readable_as_any_other(saved: Path) -> None:
    assert sorted(path.name for path in saved.iterdir()) == ["README.md", "config.json", "model.safetensors"]
    plain = saved.parent / "plain"
    plain.write_text("")
    for path in saved.iterdir():
        assert stat.S_IMODE(path.stat().st_mode) == stat.S_IMODE(plain.stat().st_mode), path
    assert list(saved.parent.glob(".*")) == []


def test_equal_models_are_equal_files(make: Any, tmp_path: Path) -> None:
    network, config = make("resnet10-w2", (1, 8, 8), created="2026-01-31T12:00:00+00:00")
    folders = [save_artifact(tmp_path / name, network, config) for name in ("a", "b")]
    for name in ("model.safetensors", "config.json", "README.md"):
        assert (folders[0] / name).read_bytes() == (folders[1] / name).read_bytes()


scalars = st.one_of(
    st.booleans(),
    st.integers(),
    st.floats(allow_nan=False, allow_infinity=False),
    st.text(st.characters(exclude_categories=["Cs"])),
)


@given(st.lists(scalars, min_size=2, max_size=6, unique=True))
def test_classes_keep_value_type_and_order(classes: list[Any]) -> None:
    config = ArtifactConfig(
        encoder="identity",
        input_shape=(2,),
        classes=classes,
        head="linear",
        method="ce",
        preprocessing={"kind": "table", "mean": [0, 0], "scale": [1, 1]},  # type: ignore[arg-type]
    )
    read = parse_config(config_text(config))
    assert read == config
    head = nn.Linear(2, len(classes))
    array = Classifier(_network(head), read).classes_
    assert list(map(type, read.classes)) == list(map(type, classes))
    assert array.tolist() == classes
    assert list(map(type, array.tolist())) == list(map(type, classes))
    for found, given_ in zip(array.tolist(), classes, strict=True):
        if isinstance(given_, float):
            assert math.copysign(1, found) == math.copysign(1, given_)


def _network(head: nn.Module) -> Any:
    from esupcon.models import Network

    return Network(nn.Identity(), head)


@pytest.mark.parametrize(
    ("classes", "kind"),
    [(["a", "b"], "U"), ([3, 1], "i"), ([0.5, 0.25], "f"), ([False, True], "b"), ([1, "1"], "O"), (["a\0", "a"], "O")],
)
def test_class_array_is_plain_where_it_can_be(make: Any, classes: list[Any], kind: str) -> None:
    network, config = make("identity", (3,), classes=classes)
    classifier = Classifier(network, config)
    assert classifier.classes_.dtype.kind == kind
    assert set(classifier.predict(some_rows((3,))).tolist()) <= set(classes)


def test_auto_is_stored_by_its_name(make: Any, tmp_path: Path) -> None:
    network, config = make("auto", (3,))
    save_artifact(tmp_path / "model", network, config)
    assert json.loads((tmp_path / "model" / "config.json").read_text())["encoder"] == "mlp"
    assert load_artifact(tmp_path / "model").config.encoder == "mlp"


def test_other_precisions_and_layouts_are_stored_as_float32(make: Any, tmp_path: Path) -> None:
    network, config = make("resnet10-w4", (3, 8, 8))
    expected = network.state_dict()
    for name, form in (("wide", torch.float64), ("last", torch.channels_last)):
        changed = network.to(form) if isinstance(form, torch.dtype) else network.float().to(memory_format=form)
        back = load_artifact(save_artifact(tmp_path / name, changed.train(), config)).network
        assert not any(part.training for part in back.modules())
        for key, value in back.state_dict().items():
            assert value.dtype == (torch.float32 if value.is_floating_point() else torch.int64)
            assert value.is_contiguous()
            assert torch.equal(value, expected[key].to(value.dtype))


class Own(nn.Module):
    """A user's encoder: shared weights, a mask with infinities, a buffer that is not stored."""

    def __init__(self, width: int = 5) -> None:
        super().__init__()
        self.first = nn.Linear(3, width)
        self.second = nn.Linear(width, width)
        self.third = self.second
        self.register_buffer("mask", torch.tensor([0.0, -torch.inf]))
        self.register_buffer("scratch", torch.zeros(1), persistent=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.third(self.second(self.first(x)))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_own_encoder_is_passed_again(make: Any, tmp_path: Path, dtype: torch.dtype) -> None:
    network, config = make(Own(), (3,), projection_dim=4)
    save_artifact(tmp_path / "model", network, config)
    module = Own().to(dtype)
    back = load_artifact(tmp_path / "model", encoder=module)
    assert back.config.encoder == "custom"
    assert module.second is module.third
    assert torch.equal(module.second.weight, network.encoder.module.second.weight)
    X = some_rows((3,))
    np.testing.assert_allclose(back.logits(X), Classifier(network, config).logits(X), rtol=1e-5, atol=1e-5)


class OfALibrary(nn.Module):
    """As some architectures of timm are: with a buffer that is not stored, and that zeros would spoil."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.convolution = nn.Conv2d(channels, 6, 3)
        self.register_buffer("scale", torch.full((6,), 3.0), persistent=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.convolution(x).mean(dim=(2, 3)) * self.scale


def test_timm_encoder(make: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    timm = ModuleType("timm")
    timm.is_model = lambda name: name == "small"  # type: ignore[attr-defined]
    timm.get_pretrained_cfg = lambda name: None  # type: ignore[attr-defined]
    timm.create_model = lambda name, **options: OfALibrary(options["in_chans"])  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "timm", timm)
    network, config = make("timm:small", (3, 8, 8))
    back = load_artifact(save_artifact(tmp_path / "model", network, config))
    assert same_state(back.network, network)
    X = some_rows((3, 8, 8))
    np.testing.assert_array_equal(back.transform(X), Classifier(network, config).transform(X))


def test_own_resnet_too(make: Any, tmp_path: Path) -> None:
    from esupcon.models import ResNet

    network, config = make(ResNet(10, width=2, in_channels=1), (1, 8, 8))
    save_artifact(tmp_path / "model", network, config)
    back = load_artifact(tmp_path / "model", encoder=ResNet(10, width=2, in_channels=1))
    assert same_state(back.network, network)


def test_loaded_models_do_not_hang_on_their_files(saved: Path) -> None:
    classifier = load_artifact(saved)
    expected = classifier.logits(some_rows((3,)))
    weights = saved / "model.safetensors"
    size = weights.stat().st_size
    with weights.open("r+b") as file:
        file.write(bytes(size))
    np.testing.assert_array_equal(classifier.logits(some_rows((3,))), expected)


def test_loading_leaves_the_random_state_alone(saved: Path) -> None:
    before = torch.get_rng_state()
    load_artifact(saved)
    load_artifact(saved).save(saved.parent / "again")
    assert torch.equal(torch.get_rng_state(), before)


def test_config_survives_white_space_and_line_ends(saved: Path) -> None:
    file = saved / "config.json"
    file.write_bytes(json.dumps(json.loads(file.read_text()), indent=8).replace("\n", "\r\n").encode())
    load_artifact(saved)


def test_fields_that_a_later_version_adds_do_not_shut_older_models_out(saved: Path, forge: Any) -> None:
    """An older file lacks the field, and its digest was taken without."""
    values = json.loads((saved / "config.json").read_text())
    for name in ("data_fingerprint", "calibration_temperature", "metrics"):
        del values[name]
    (saved / "config.json").write_text(json.dumps(values))
    forge(saved)
    assert load_artifact(saved).config.data_fingerprint is None


def test_defaults_say_when_and_with_what(make: Any) -> None:
    _, config = make()
    assert set(config.versions) == {"esupcon", "torch", "python"}
    assert config.created.endswith("+00:00")
    assert config.schema_version == 1
    assert config.n_classes == 3


def test_relative_paths_and_home_of_nowhere(make: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    with tempfile.TemporaryDirectory() as folder:
        monkeypatch.chdir(folder)
        save_artifact("a/b/model", *make())
        assert load_artifact(os.path.join("a", "b", "model")).config.method == "esupcon"  # noqa: PTH118 - text is accepted
