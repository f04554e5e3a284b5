"""Where the time of a training step goes: the views, the network, the loss."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from esupcon import functional as F
from esupcon.bench.turns import best_seconds
from esupcon.data.augment import two_views
from esupcon.engine.bfloat16 import bfloat16_works
from esupcon.models import build_network

_ROUNDS = 5


@dataclass(frozen=True)
class StepTimes:
    """Seconds of the parts of one step over `batch_size` images, each in two views."""

    precision: str
    batch_size: int
    views: float
    network: float
    loss: float

    @property
    def seconds(self) -> float:
        return self.views + self.network + self.loss

    @property
    def images_per_second(self) -> float:
        return self.batch_size / self.seconds


def time_step(
    encoder: str, *, image_size: int = 32, batch_size: int = 256, n_classes: int = 10, device: str = "cpu"
) -> list[StepTimes]:
    """ESupCon with the `simclr` recipe, in every precision that works here."""
    if batch_size < n_classes:
        raise ValueError(f"batch_size must be at least {n_classes}, an image of each class; got {batch_size}.")
    generator = torch.Generator().manual_seed(0)
    shape = (3, image_size, image_size)
    images = torch.randint(0, 256, (batch_size, *shape), generator=generator, dtype=torch.uint8).to(device)
    labels = (torch.arange(batch_size, device=device) % n_classes).repeat(2)
    network = build_network(encoder=encoder, input_shape=shape, n_classes=n_classes).to(device).train()
    network.to(memory_format=torch.channels_last)  # type: ignore[call-overload]  # the stubs lack this form
    on_device = torch.Generator(device=device).manual_seed(0)
    views = two_views(images, on_device, "simclr").contiguous(memory_format=torch.channels_last)

    def embed(precision: str) -> torch.Tensor:
        with torch.autocast(device, dtype=torch.bfloat16, enabled=precision == "bf16"):
            return network.outputs(views, ("embedding",))["embedding"]

    with torch.no_grad():
        embedding = embed("32").float()
    pulled = torch.randn_like(embedding)
    leaf, prototypes = embedding.requires_grad_(), network.head.weight
    assert isinstance(prototypes, torch.Tensor)

    def make_views() -> None:
        two_views(images, on_device, "simclr")

    def train_network(precision: str) -> None:
        network.zero_grad()
        embed(precision).float().backward(pulled)

    def take_loss() -> None:
        leaf.grad = None
        F.esupcon_loss(leaf, labels, prototypes).backward()

    precisions = ["32"] + (["bf16"] if _bf16_works(device) else [])
    contestants = {"views": make_views, "loss": take_loss}
    contestants |= {precision: lambda p=precision: train_network(p) for precision in precisions}  # type: ignore[misc]
    best = best_seconds(contestants, _ROUNDS)
    return [StepTimes(one, batch_size, best["views"], best[one], best["loss"]) for one in precisions]


def _bf16_works(device: str) -> bool:
    return torch.cuda.is_bf16_supported() if device == "cuda" else bfloat16_works()
