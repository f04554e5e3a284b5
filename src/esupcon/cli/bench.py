"""The command bench: how long the losses and the parts of a training step take on this machine."""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated, Any

import typer

from esupcon.cli.output import answer, note, table

SIZES, CLASSES = (256, 1024, 4096), 10  # embeddings for the losses, and their classes
TIMED_SECONDS = 1.0  # of calls of each loss and of each part


def bench(
    encoder: Annotated[str, typer.Option(metavar="NAME", help="Encoder of the training step.")] = "resnet10-w32",
    image_size: Annotated[int, typer.Option(min=8, metavar="PIXELS", help="Side of the images.")] = 32,
    batch_size: Annotated[int, typer.Option(min=CLASSES, metavar="N", help="Images per training step.")] = 256,
) -> None:
    """Measure this machine: time of the losses, and of each part of a training step.

    Other work on the machine makes the times longer.
    """
    import torch  # noqa: PLC0415 - slow to import

    device = "cuda" if torch.cuda.is_available() else "cpu"
    step = {part: _milliseconds(run) for part, run in _step(encoder, image_size, batch_size, device).items()}
    note(f"torch {torch.__version__} on {device}, {torch.get_num_threads()} threads; {CLASSES} classes.")
    rows = [[f"{n:,}", *(f"{_milliseconds(run):,.1f} ms" for run in _losses(n, device))] for n in SIZES]
    answer(table(["embeddings", "SupCon", "ESupCon"], rows))
    rows = [[part, f"{milliseconds:,.1f} ms"] for part, milliseconds in step.items()]
    answer(table([f"{encoder}, batch {batch_size}", "time"], rows))
    answer(f"{1000 * batch_size / (step['views'] + step['network'] + step['loss']):,.0f} images/s in float32")


def _milliseconds(run: Callable[[], object]) -> float:
    """Return the median time of a call."""
    import torch  # noqa: PLC0415 - slow to import
    from torch.utils.benchmark import Timer  # noqa: PLC0415

    timer = Timer("run()", globals={"run": run}, num_threads=torch.get_num_threads())
    return 1000 * timer.blocked_autorange(min_run_time=TIMED_SECONDS).median


def _losses(n: int, device: str) -> tuple[Callable[[], object], ...]:
    """Return SupCon and ESupCon of random embeddings, each with its backward pass."""
    import torch  # noqa: PLC0415 - slow to import

    from esupcon import functional as F  # noqa: PLC0415

    z, prototypes = (torch.randn(rows, 128, device=device, requires_grad=True) for rows in (n, CLASSES))
    labels = torch.arange(n, device=device) % CLASSES
    return (
        lambda: F.supcon_loss(z, labels).backward(),
        lambda: F.esupcon_loss(z, labels, prototypes).backward(),
    )


def _step(encoder: str, size: int, batch_size: int, device: str) -> dict[str, Callable[[], object]]:
    """Return the parts of one step: views, loss, forward and backward pass of the network in each precision."""
    import torch  # noqa: PLC0415 - slow to import

    from esupcon import functional as F  # noqa: PLC0415
    from esupcon.data.augment import two_views  # noqa: PLC0415
    from esupcon.models import build_network  # noqa: PLC0415
    from esupcon.training.devices import bfloat16_works  # noqa: PLC0415

    images = torch.randint(0, 256, (batch_size, 3, size, size), dtype=torch.uint8, device=device)
    labels = (torch.arange(batch_size, device=device) % CLASSES).repeat(2)
    network: Any = build_network(encoder=encoder, input_shape=(3, size, size), n_classes=CLASSES)
    network.to(device, memory_format=torch.channels_last).train()
    generator = torch.Generator(device=device).manual_seed(0)
    views = two_views(images, generator, "simclr").contiguous(memory_format=torch.channels_last)

    def embed(bf16: bool) -> torch.Tensor:
        with torch.autocast(device, dtype=torch.bfloat16, enabled=bf16):
            embedding: torch.Tensor = network.outputs(views, ("embedding",))["embedding"]
        return embedding.float()

    z = embed(False).detach().requires_grad_()
    parts: dict[str, Callable[[], object]] = {
        "views": lambda: two_views(images, generator, "simclr"),
        "network": lambda: embed(False).sum().backward(),
        "loss": lambda: F.esupcon_loss(z, labels, network.head.weight).backward(),
    }
    if torch.cuda.is_bf16_supported() if device == "cuda" else bfloat16_works():
        parts["network in bf16"] = lambda: embed(True).sum().backward()
    return parts
