"""The command bench: how long the losses and the parts of a training step take on this machine."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Annotated, Any

import typer

from esupcon.cli.output import answer, note, table

SIZES, CLASSES = (256, 1024, 4096), 10  # embeddings for the losses, and their classes


def bench(
    encoder: Annotated[str, typer.Option(metavar="NAME", help="Encoder of the training step.")] = "resnet10-w32",
    image_size: Annotated[int, typer.Option(min=8, metavar="PIXELS", help="Side of the images.")] = 32,
    batch_size: Annotated[int, typer.Option(min=CLASSES, metavar="N", help="Images per training step.")] = 256,
) -> None:
    """Measure this machine: median time of the losses, and of each part of a training step in float32.

    Run it on an otherwise idle machine only.
    """
    import torch  # noqa: PLC0415 - slow to import

    from esupcon import functional as F  # noqa: PLC0415
    from esupcon.data.augment import two_views  # noqa: PLC0415
    from esupcon.models import build_network  # noqa: PLC0415

    device = "cuda" if torch.cuda.is_available() else "cpu"
    network: Any = build_network(encoder=encoder, input_shape=(3, image_size, image_size), n_classes=CLASSES)
    network.to(device, memory_format=torch.channels_last).train()
    images = torch.randint(0, 256, (batch_size, 3, image_size, image_size), dtype=torch.uint8, device=device)
    generator = torch.Generator(device=device).manual_seed(0)
    views = two_views(images, generator, "simclr").contiguous(memory_format=torch.channels_last)
    note(f"torch {torch.__version__} on {device}, {torch.get_num_threads()} threads; {CLASSES} classes.")
    rows = []
    for n in SIZES:
        z, prototypes = (torch.randn(size, 128, device=device, requires_grad=True) for size in (n, CLASSES))
        labels = torch.arange(n, device=device) % CLASSES
        losses = partial(F.supcon_loss, z, labels), partial(F.esupcon_loss, z, labels, prototypes)
        rows.append([f"{n:,}", *(_milliseconds(_seconds(partial(_backward, loss))) for loss in losses)])
    answer(table(["embeddings", "SupCon", "ESupCon"], rows))
    z = network.outputs(views, ("embedding",))["embedding"].detach().requires_grad_()
    labels = (torch.arange(batch_size, device=device) % CLASSES).repeat(2)
    step = {
        "views": _seconds(lambda: two_views(images, generator, "simclr")),
        "network": _seconds(lambda: network.outputs(views, ("embedding",))["embedding"].sum().backward()),
        "loss": _seconds(lambda: F.esupcon_loss(z, labels, network.head.weight).backward()),
    }
    rows = [[part, _milliseconds(seconds)] for part, seconds in step.items()]
    answer(table([f"{encoder}, batch {batch_size}", "time"], rows))
    answer(f"{batch_size / sum(step.values()):,.0f} images/s")


def _backward(loss: Callable[[], Any]) -> None:
    loss().backward()


def _seconds(run: Callable[[], object]) -> float:
    import torch  # noqa: PLC0415 - slow to import
    from torch.utils.benchmark import Timer  # noqa: PLC0415

    timer = Timer("run()", globals={"run": run}, num_threads=torch.get_num_threads())
    return float(timer.blocked_autorange(min_run_time=0.5).median)


def _milliseconds(seconds: float) -> str:
    return f"{1000 * seconds:,.1f} ms"
