"""Encoders: architectures against their definitions, names, and modules of the user."""

from __future__ import annotations

import copy
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType, SimpleNamespace

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.nn import functional as F
from torch.testing import assert_close

from esupcon.models import MLP, ResNet, build_encoder, build_network, resolve_encoder

IMAGE, TABLE = (3, 32, 32), (10,)
# Parameters with a classifier of 1,000 classes, as published: 18, 34 and 50 by torchvision, 10 and 14 and the
# narrow 18s by pytorchcv.
PUBLISHED = {10: 5_418_792, 14: 5_788_200, 18: 11_689_512, 34: 21_797_672, 50: 25_557_032}
PUBLISHED_NARROW = {16: 831_096, 32: 3_055_880}
BLOCKS = {10: (1, 1, 1, 1), 14: (2, 2, 1, 1), 18: (2, 2, 2, 2), 34: (3, 4, 6, 3), 50: (3, 4, 6, 3)}


def count(module: nn.Module) -> int:
    return sum(parameter.numel() for parameter in module.parameters())


def on_meta(depth: int, **options: object) -> ResNet:
    """Shapes without memory."""
    with torch.device("meta"):
        return ResNet(depth, **options)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("depth", "width", "published"),
    [*((depth, 64, n) for depth, n in PUBLISHED.items()), *((18, width, n) for width, n in PUBLISHED_NARROW.items())],
)
def test_resnet_has_the_published_number_of_parameters(depth: int, width: int, published: int) -> None:
    network = on_meta(depth, width=width, stem="224x224")
    assert network.dim == width * (32 if depth == 50 else 8)
    assert count(network) + 1000 * network.dim + 1000 == published


def resnet_forward(weights: dict[str, Tensor], x: Tensor, depth: int, stem: str) -> Tensor:
    """The architecture as the paper draws it, in evaluation mode, written with functions only."""

    def norm(name: str, x: Tensor) -> Tensor:
        mean, var = weights[f"{name}.running_mean"], weights[f"{name}.running_var"]
        scaled = (x - mean[:, None, None]) / (var[:, None, None] + 1e-5).sqrt()
        return scaled * weights[f"{name}.weight"][:, None, None] + weights[f"{name}.bias"][:, None, None]

    def convolve(name: str, x: Tensor, stride: int = 1) -> Tensor:
        kernel = weights[f"{name}.weight"]
        return F.conv2d(x, kernel, stride=stride, padding=(kernel.shape[-1] - 1) // 2)

    x = norm("stem.1", convolve("stem.0", x, 2 if stem == "224x224" else 1)).clamp(min=0)
    if stem == "224x224":
        x = F.max_pool2d(x, 3, 2, 1)
    for stage, n_blocks in enumerate(BLOCKS[depth]):
        for block in range(n_blocks):
            at = f"stages.{stage}.{block}"
            strides = [*[1] * (depth == 50), 2 if stage > 0 and block == 0 else 1, 1]
            y = x
            for index, stride in enumerate(strides):
                y = y.clamp(min=0) if index else y
                y = norm(f"{at}.layers.{3 * index + 1}", convolve(f"{at}.layers.{3 * index}", y, stride))
            if y.shape != x.shape:
                x = norm(f"{at}.shortcut.1", convolve(f"{at}.shortcut.0", x, max(strides)))
            x = (x + y).clamp(min=0)
    return x.flatten(2).mean(dim=2)


@pytest.mark.parametrize("stem", ["32x32", "224x224"])
@pytest.mark.parametrize("depth", PUBLISHED)
def test_resnet_forward_is_the_definition(depth: int, stem: str) -> None:
    network = ResNet(depth, width=4, stem=stem).double().eval()  # type: ignore[arg-type]
    for value in network.state_dict().values():
        if value.is_floating_point() and value.ndim == 1:
            value.uniform_(0.5, 1.5)  # norms that change their input
    x = torch.randn(3, 3, 20, 20, dtype=torch.float64)
    expected = resnet_forward(dict(network.state_dict()), x, depth, stem)
    assert (expected.std(dim=0) > 0).float().mean() > 0.5  # not a dead network
    assert_close(network(x), expected, rtol=1e-10, atol=1e-10)


def test_resnet_convolutions_start_with_kaiming_variance() -> None:
    for name, module in ResNet(18).named_modules():
        if isinstance(module, nn.Conv2d):
            fan_out = module.out_channels * module.kernel_size[0] ** 2
            assert module.weight.std().item() == pytest.approx((2 / fan_out) ** 0.5, rel=0.1), name


def test_mlp_forward_is_the_definition() -> None:
    network = MLP(6, hidden=7, layers=3).double()
    for parameter in network.parameters():
        nn.init.normal_(parameter)
    x = torch.randn(4, 6, dtype=torch.float64)
    parameters, expected = list(network.parameters()), x
    for weight, bias, gain, shift in zip(*(parameters[i::4] for i in range(4)), strict=True):
        expected = expected @ weight.T + bias
        centred = expected - expected.mean(dim=1, keepdim=True)
        expected = centred / (centred.square().mean(dim=1, keepdim=True) + 1e-5).sqrt() * gain + shift
        expected = expected.clamp(min=0)
    assert_close(network(x), expected)
    assert_close(network(x.view(4, 1, 2, 3)), expected)  # more dimensions are flattened
    assert_close(network.train()(x[:1]), expected[:1])  # a row does not depend on its batch, also in training


def test_mlp_sees_the_length_of_a_row_from_the_start() -> None:
    """Norms and cosines drop scale; without random biases rows of one direction would have one embedding."""
    network, x = MLP(4), torch.randn(32, 4)
    assert F.cosine_similarity(network(x), network(0.1 * x)).mean() < 0.9


@pytest.mark.parametrize(
    ("spec", "shape", "dim"),
    [
        ("fast", IMAGE, 256),
        ("fast-w2", (1, 8, 8), 512),
        ("resnet10", IMAGE, 512),
        ("resnet14-w8", IMAGE, 64),
        ("resnet18-w16", (1, 8, 8), 128),
        ("resnet50-w4", IMAGE, 128),
        ("mlp", TABLE, 256),
        ("mlp-32x3", TABLE, 32),
        ("mlp-32x1", IMAGE, 32),
        ("identity", TABLE, 10),
    ],
)
def test_encoder_by_name(spec: str, shape: tuple[int, ...], dim: int) -> None:
    encoder = build_encoder(spec, input_shape=shape).eval()
    x = torch.randn(2, *shape)
    assert encoder.dim == dim
    assert encoder(x).shape == (2, dim)
    assert spec != "identity" or torch.equal(encoder(x), x)


@pytest.mark.parametrize(
    ("shape", "reduces"), [((3, 64, 64), False), ((3, 65, 65), True), ((1, 8, 65), True), ((1, 65, 8), True)]
)
def test_stem_depends_on_the_longer_side(shape: tuple[int, int, int], reduces: bool) -> None:
    encoder = build_encoder("resnet10-w4", input_shape=shape)
    assert any(isinstance(module, nn.MaxPool2d) for module in encoder.modules()) is reduces
    assert encoder(torch.randn(2, *shape)).shape == (2, 32)


@pytest.mark.parametrize(("shape", "spec"), [(TABLE, "mlp"), ((3, 7, 32), "mlp"), ((1, 8, 8), "fast"), (IMAGE, "fast")])
def test_auto_depends_on_the_shape(shape: tuple[int, ...], spec: str) -> None:
    assert resolve_encoder("auto", shape) == resolve_encoder(spec, shape) == spec


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
        ("resent18", IMAGE, "the closest known is 'resnet18'. Known: auto, fast, resnet10, .*mlp.*identity.*timm:NAME"),
        ("fast-w0", IMAGE, "factor from 1 to 16; got 0"),
        ("fast", (3, 32, 7), "at least 8 x 8 pixels; got 32 x 7. Resize the images"),
        ("resnet18-w0", IMAGE, "width must be 1 to 4096; got 0. Use 64"),
        ("resnet18", TABLE, r"takes images \(C, H, W\); the data has shape \(10,\). Use 'auto'"),
        ("identity", IMAGE, r"takes embeddings \(d,\); the data has shape \(3, 32, 32\)"),
        (18, IMAGE, "an encoder is a name or an nn.Module; got int"),
    ],
)
def test_mistakes_in_names(spec: object, shape: tuple[int, ...], message: str) -> None:
    with pytest.raises(ValueError, match=message) as caught:
        build_encoder(spec, input_shape=shape)  # type: ignore[arg-type]
    assert "\n" not in str(caught.value)


def test_dry_run_changes_neither_modes_nor_statistics_nor_random_state() -> None:
    layers = nn.Conv2d(3, 5, 3), nn.BatchNorm2d(5).eval(), nn.BatchNorm2d(5), nn.AdaptiveAvgPool2d(1), nn.Flatten()
    module = nn.Sequential(*layers, nn.Dropout())
    modes, state = [part.training for part in module.modules()], copy.deepcopy(module.state_dict())
    random_state = torch.get_rng_state()
    assert build_encoder(module, input_shape=(3, 8, 8)).dim == 5
    assert [part.training for part in module.modules()] == modes
    assert all(torch.equal(value, state[name]) for name, value in module.state_dict().items())
    assert torch.equal(torch.get_rng_state(), random_state)
    build_encoder(Returning(lambda x: torch.randn(len(x), 5)), input_shape=(3, 8, 8))
    assert torch.equal(torch.get_rng_state(), random_state)


def test_custom_module_itself_is_trained() -> None:
    module = nn.Linear(4, 3).double()
    module.dim = 99  # type: ignore[assignment]  # not trusted: the dry run gives the width
    network = build_network(encoder=module, input_shape=(4,), n_classes=2)
    x = torch.randn(5, 4, dtype=torch.float64)
    assert network.encoder.dim == 3
    assert module.weight in set(network.parameters())
    assert torch.equal(network.outputs(x, ("embedding",))["embedding"], module(x))


@pytest.mark.parametrize("module", [ResNet(10, width=4), MLP(3 * 8 * 8, hidden=8)])
def test_built_encoders_are_not_wrapped_again(module: nn.Module) -> None:
    assert build_encoder(module, input_shape=(3, 8, 8)) is module
    custom = build_encoder(nn.Flatten(), input_shape=(3, 8, 8))
    assert build_encoder(custom, input_shape=(3, 8, 8)) is custom


class Returning(nn.Module):
    def __init__(self, function: Callable[[Tensor], object]) -> None:
        super().__init__()
        self.forward = function


@pytest.mark.parametrize(
    ("module", "message"),
    [
        (nn.Conv2d(3, 4, 3), r"Conv2d must map a batch of shape \(2, 3, 8, 8\) to \(2, dim\); .*\(2, 4, 6, 6\)"),
        (nn.Conv2d(1, 4, 3), r"\(RuntimeError: .*channels.*\). Check it against your data"),
        (Returning(lambda x: (x, x)), "it returned tuple. Pool"),
        (Returning(lambda x: x.flatten(1).long()), "it returned torch.int64"),
        (nn.Sequential(nn.Flatten(), nn.LazyLinear(4)), r"Sequential has lazy layers.*Run it once on a batch"),
    ],
)
@pytest.mark.filterwarnings("ignore:Lazy modules")
def test_modules_that_are_not_encoders(module: nn.Module, message: str) -> None:
    with pytest.raises(ValueError, match=message) as caught:
        build_encoder(module.train(), input_shape=(3, 8, 8))
    assert "\n" not in str(caught.value)
    assert all(part.training for part in module.modules())


@pytest.fixture
def timm(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """The parts of timm that are called. `created` holds the arguments of every call. Pretrained weights are all 7."""
    module, names, created = ModuleType("timm"), ["resnet18", "vit_tiny", "plain", "broken"], []

    def create_model(name: str, **options: object) -> nn.Module:
        created.append((name, options))
        if name == "broken":
            raise AssertionError("Input height (32) should be divisible by patch size (14).\nmore")
        made = nn.Sequential(nn.Conv2d(options["in_chans"], 6, 3), nn.AdaptiveAvgPool2d(1), nn.Flatten())
        if options["pretrained"] and name.endswith(".gone"):
            raise OSError("no connection\nmore")
        if options["pretrained"]:
            nn.init.constant_(made[0].weight, 7)
        return made

    def get_pretrained_cfg(name: str) -> SimpleNamespace:
        if name.endswith(".none"):
            raise RuntimeError("Invalid pretrained tag (none) for resnet18.")
        mean, std = (0.5, 0.4, 0.3), (0.2, 0.2, 0.1)
        source = {"file": None, "url": "https://x.org/w.pth", "hf_hub_id": f"timm/{name}"}
        fixed, known = name.startswith("vit"), name != "plain"
        return SimpleNamespace(has_weights=known, fixed_input_size=fixed, mean=mean, std=std, **source)

    module.created, module.create_model = created, create_model  # type: ignore[attr-defined]
    module.is_model, module.list_models = names.__contains__, lambda: names  # type: ignore[attr-defined]
    module.get_pretrained_cfg = get_pretrained_cfg  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "timm", module)
    return module


@pytest.mark.parametrize(
    ("name", "shape", "options"),
    [("resnet18.a1_in1k", (1, 16, 16), {}), ("vit_tiny", (3, 32, 48), {"img_size": (32, 48)})],
)
def test_timm_encoder_has_no_classifier(
    timm: ModuleType, name: str, shape: tuple[int, ...], options: dict[str, object]
) -> None:
    encoder = build_encoder(f"timm:{name}", input_shape=shape, pretrained=False)
    assert encoder(torch.randn(2, *shape)).shape == (2, encoder.dim) == (2, 6)
    assert timm.created == [(name, {"pretrained": False, "num_classes": 0, "in_chans": shape[0], **options})]
    assert encoder.pixels is None
    assert not (encoder.module[0].weight == 7).any()


def test_timm_encoder_has_pretrained_weights_by_default(timm: ModuleType, capsys: pytest.CaptureFixture[str]) -> None:
    encoder = build_encoder("timm:resnet18", input_shape=IMAGE)
    assert (encoder.module[0].weight == 7).all()
    assert encoder.pixels == ((0.5, 0.4, 0.3), (0.2, 0.2, 0.1))
    source = "from the cache of timm or from huggingface.co/timm/resnet18"
    assert capsys.readouterr().err == f"esupcon: Loading the weights of timm:resnet18, about 0 MB, {source}.\n"


def test_name_of_a_timm_encoder_is_checked_without_its_weights(timm: ModuleType) -> None:
    with torch.device("meta"):
        build_encoder("timm:resnet18", input_shape=IMAGE)
    assert [options["pretrained"] for _, options in timm.created] == [False]


@pytest.mark.usefixtures("timm")
@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("resnet81", "timm has no architecture 'resnet81'. Did you mean timm:resnet18"),
        ("broken", r"could not create broken for images of shape \(3, 32, 32\) \(AssertionError: Input height"),
        (
            "resnet18.none",
            r"no weights 'resnet18.none' \(RuntimeError: Invalid .*list_pretrained\('resnet18\.\*'\)",
        ),
        (
            "resnet18.gone",
            r"loaded from huggingface.co/timm/resnet18.gone \(OSError: no conn.*--no-pretrained",
        ),
        ("plain", "timm has no pretrained weights for 'plain'. For random weights: --no-pretrained"),
    ],
)
def test_mistakes_in_timm_names(name: str, message: str) -> None:
    with pytest.raises(ValueError, match=message) as caught:
        build_encoder(f"timm:{name}", input_shape=IMAGE)
    assert "\n" not in str(caught.value)


def test_timm_that_cannot_be_imported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "timm.py").write_text("raise RuntimeError('operator torchvision::nms does not exist')")
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.delitem(sys.modules, "timm", raising=False)
    with pytest.raises(ValueError, match=r"RuntimeError: .*torchvision::nms.*pip install 'esupcon\[timm\]'"):
        build_encoder("timm:resnet18", input_shape=IMAGE)
