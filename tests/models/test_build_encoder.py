"""Encoders by name."""

from __future__ import annotations

import sys
from types import ModuleType, SimpleNamespace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from esupcon.models import MLP, ResNet, build_encoder, resolve_spec

IMAGE, TABLE = (3, 32, 32), (10,)


@pytest.mark.parametrize(
    ("spec", "shape", "dim"),
    [
        ("resnet10", IMAGE, 512),
        ("resnet14-w8", IMAGE, 64),
        ("resnet18-w16", (1, 8, 8), 128),
        ("resnet34-w4", IMAGE, 32),
        ("resnet50-w4", IMAGE, 128),
        ("mlp", TABLE, 256),
        ("mlp-32x3", TABLE, 32),
        ("mlp-32x1", IMAGE, 32),
        ("identity", TABLE, 10),
    ],
)
def test_names(spec: str, shape: tuple[int, ...], dim: int) -> None:
    encoder = build_encoder(spec, input_shape=shape).eval()
    assert encoder.dim == dim
    assert encoder(torch.randn(2, *shape)).shape == (2, dim)


def test_identity_gives_the_rows() -> None:
    x = torch.randn(3, 10)
    assert torch.equal(build_encoder("identity", input_shape=TABLE)(x), x)


@pytest.mark.parametrize(
    ("shape", "reduces"), [((3, 64, 64), False), ((3, 65, 65), True), ((1, 8, 65), True), ((1, 65, 8), True)]
)
def test_stem_follows_the_longer_side(shape: tuple[int, int, int], reduces: bool) -> None:
    encoder = build_encoder("resnet10-w4", input_shape=shape)
    assert any(isinstance(module, nn.MaxPool2d) for module in encoder.modules()) is reduces
    assert encoder(torch.randn(2, *shape)).shape == (2, 32)


@pytest.mark.parametrize(
    ("shape", "spec"),
    [
        (TABLE, "mlp"),
        ((1, 8, 8), "resnet10-w16"),
        ((3, 12, 12), "resnet10-w16"),
        ((3, 12, 13), "resnet18"),
        ((3, 64, 64), "resnet18"),
        ((3, 224, 224), "resnet18"),
    ],
)
def test_auto_by_shape(shape: tuple[int, ...], spec: str) -> None:
    assert resolve_spec("auto", shape) == spec
    with torch.device("meta"):
        found, meant = (build_encoder(name, input_shape=shape) for name in ("auto", spec))
    assert [p.shape for p in found.parameters()] == [p.shape for p in meant.parameters()]


def test_other_specs_resolve_to_themselves() -> None:
    assert resolve_spec("resnet50-w8", IMAGE) == "resnet50-w8"


@settings(max_examples=40)
@given(depth=st.sampled_from([10, 14, 18, 34, 50]), width=st.integers(1, 4096), large=st.booleans())
def test_every_width_is_built(depth: int, width: int, large: bool) -> None:
    shape = (3, 65, 65) if large else IMAGE
    with torch.device("meta"):
        encoder = build_encoder(f"resnet{depth}-w{width}", input_shape=shape)
    assert isinstance(encoder, ResNet)
    assert encoder.dim == width * (32 if depth == 50 else 8)
    assert encoder.stem[0].weight.shape[:2] == (width, 3)


@given(hidden=st.integers(1, 500), layers=st.integers(1, 64), d=st.integers(1, 50))
def test_every_mlp_is_built(hidden: int, layers: int, d: int) -> None:
    with torch.device("meta"):
        encoder = build_encoder(f"mlp-{hidden}x{layers}", input_shape=(d,))
    assert isinstance(encoder, MLP)
    assert [m.in_features for m in encoder.modules() if isinstance(m, nn.Linear)] == [d, *[hidden] * (layers - 1)]


@given(st.text(max_size=30))
def test_any_other_text_is_refused_in_one_line(spec: str) -> None:
    try:
        with torch.device("meta"):
            build_encoder(spec, input_shape=IMAGE)
    except ValueError as error:
        assert "\n" not in str(error)


@pytest.mark.parametrize(
    ("spec", "shape", "message"),
    [
        ("resnet20", IMAGE, "unknown encoder 'resnet20'; the closest known is 'resnet"),
        ("resent18", IMAGE, "the closest known is 'resnet18'. Known: auto, resnet10, .*mlp.*identity.*timm:NAME"),
        ("resnet18-w", IMAGE, "unknown encoder"),
        ("resnet18-32", IMAGE, "unknown encoder"),
        ("ResNet18", IMAGE, "the closest known is 'resnet18'"),
        ("mlp-256", TABLE, "the closest known is 'mlp'"),
        ("", TABLE, "unknown encoder ''"),
        ("resnet18-w0", IMAGE, "width must be 1 to 4096"),
        ("resnet18-w999999999", IMAGE, "width must be 1 to 4096"),
        ("mlp-256x999999999", TABLE, "layers must be 1 to 64"),
        ("resnet18", TABLE, r"takes images \(C, H, W\); the data has shape \(10,\). Use 'mlp'"),
        ("timm:resnet18", TABLE, r"takes images \(C, H, W\)"),
        ("identity", IMAGE, r"rows that are embeddings already.* shape \(3, 32, 32\)"),
        ("mlp", (), r"input_shape is \(C, H, W\)"),
        ("mlp", (0,), r"input_shape is \(C, H, W\)"),
        ("resnet18", (2, 3, 32, 32), "without the batch"),
        (None, TABLE, "an encoder is a name or an nn.Module; got NoneType"),
        (18, IMAGE, "an encoder is a name or an nn.Module; got int"),
    ],
)
def test_mistakes(spec: object, shape: tuple[int, ...], message: str) -> None:
    with pytest.raises(ValueError, match=message) as caught:
        build_encoder(spec, input_shape=shape)  # type: ignore[arg-type]
    assert "\n" not in str(caught.value)


class Pooling(nn.Module):
    def __init__(self, in_chans: int) -> None:
        super().__init__()
        self.convolution = nn.Conv2d(in_chans, 6, 3)
        self.register_buffer("index", torch.arange(3), persistent=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.convolution(x).mean(dim=(2, 3))


@pytest.fixture
def timm(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """As much of timm as is called, under its real names; `asked` holds what it was asked to make."""
    module = ModuleType("timm")
    names = ["resnet18", "vit_tiny_patch16_224", "broken"]
    module.asked = []  # type: ignore[attr-defined]

    def create_model(name: str, *, pretrained: bool, num_classes: int, in_chans: int, **more: object) -> nn.Module:
        module.asked.append((name, pretrained, num_classes, in_chans, more))
        if name == "broken":
            raise AssertionError("Input height (32) should be divisible by patch size (14).\nmore")
        return Pooling(in_chans)

    module.create_model = create_model  # type: ignore[attr-defined]
    module.is_model = names.__contains__  # type: ignore[attr-defined]
    module.list_models = lambda: names  # type: ignore[attr-defined]
    module.get_pretrained_cfg = lambda name: SimpleNamespace(  # type: ignore[attr-defined]
        fixed_input_size=name.startswith("vit")
    )
    monkeypatch.setitem(sys.modules, "timm", module)
    return module


def test_timm_without_weights_or_classifier(timm: ModuleType) -> None:
    encoder = build_encoder("timm:resnet18.a1_in1k", input_shape=(1, 16, 16))
    assert encoder.dim == 6
    assert encoder(torch.randn(2, 1, 16, 16)).shape == (2, 6)
    assert timm.asked == [("resnet18", False, 0, 1, {})]


def test_timm_architectures_of_fixed_size_get_the_size(timm: ModuleType) -> None:
    build_encoder("timm:vit_tiny_patch16_224", input_shape=(3, 32, 48))
    assert timm.asked == [("vit_tiny_patch16_224", False, 0, 3, {"img_size": (32, 48)})]


@pytest.mark.usefixtures("timm")
@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("resnet81", "timm has no architecture 'resnet81'. Did you mean timm:resnet18"),
        ("hf-hub:someone/model", "timm has no architecture 'hf-hub:someone/model'"),
        ("", "timm has no architecture ''"),
        ("broken", r"could not make broken for images of shape \(3, 32, 32\) \(Input height"),
    ],
)
def test_timm_mistakes(name: str, message: str) -> None:
    with pytest.raises(ValueError, match=message) as caught:
        build_encoder(f"timm:{name}", input_shape=IMAGE)
    assert "\n" not in str(caught.value)


def test_timm_missing_says_how_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "timm", None)  # makes the import fail as an absent package does
    with pytest.raises(ValueError, match=r"pip install 'esupcon\[timm\]'"):
        build_encoder("timm:resnet18", input_shape=IMAGE)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("raise RuntimeError('operator torchvision::nms does not exist')", "torchvision does not fit torch"),
        ("import a_package_that_is_not_there", "needs a_package_that_is_not_there"),
    ],
)
def test_timm_that_cannot_be_imported(
    tmp_path: object, monkeypatch: pytest.MonkeyPatch, text: str, message: str
) -> None:
    from pathlib import Path

    package = Path(str(tmp_path)) / "timm"
    package.mkdir()
    (package / "__init__.py").write_text(text)
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.delitem(sys.modules, "timm", raising=False)
    with pytest.raises(ValueError, match=message):
        build_encoder("timm:resnet18", input_shape=IMAGE)
