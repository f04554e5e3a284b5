"""`esupcon bench`."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated, Any

import typer

from esupcon.cli import options as shared
from esupcon.cli.output import answer, answer_json, say, table

if TYPE_CHECKING:
    from esupcon.bench.losses import LossTimes
    from esupcon.bench.step import StepTimes


def bench(
    sizes: Annotated[
        str, typer.Option(metavar="N,N,...", help="Numbers of embeddings to take the losses of.")
    ] = "256,1024,4096",
    classes: Annotated[int, typer.Option(min=2, metavar="K", help="Number of classes.")] = 10,
    encoder: Annotated[str, typer.Option(metavar="NAME", help="Network of the training step.")] = "resnet10-w32",
    image_size: Annotated[int, typer.Option(min=8, metavar="PIXELS", help="Side of the images.")] = 32,
    batch_size: Annotated[int, typer.Option(min=2, metavar="N", help="Images a training step.")] = 256,
    as_json: shared.Json = False,
) -> None:
    """Measure this machine: the losses beside their textbook form, and where the time of a training step goes.

    Contestants take turns and the best time of each counts. The ratios hold while the machine is otherwise idle.
    """
    numbers = _read_sizes(sizes, classes)
    import torch  # noqa: PLC0415 - slow to import

    from esupcon.bench.losses import time_losses  # noqa: PLC0415
    from esupcon.bench.step import time_step  # noqa: PLC0415

    device = "cuda" if torch.cuda.is_available() else "cpu"
    machine = {"torch": torch.__version__, "device": device, "threads": torch.get_num_threads()}
    say(f"torch {machine['torch']} on {device}, {machine['threads']} threads; {classes} classes.")
    # The smaller part first: a wrong name of an encoder is not found out after a minute.
    step = time_step(encoder, image_size=image_size, batch_size=batch_size, n_classes=classes, device=device)
    losses = [time_losses(size, n_classes=classes, device=device) for size in numbers]
    if as_json:
        answer_json(
            {
                "machine": machine,
                "losses": [asdict(one) for one in losses],
                "step": [{**asdict(one), "images_per_second": one.images_per_second} for one in step],
            }
        )
        return
    columns = ["embeddings", "SupCon", "ESupCon", "textbook SupCon", "pytorch-metric-learning"]
    answer(table(columns, [_loss_row(one) for one in losses]))
    columns = [f"{encoder}, batch {batch_size}", "views", "network", "loss", "images/s"]
    answer(table(columns, [_step_row(one) for one in step]))
    if len(step) == 1:
        say("bfloat16 does not work on this machine; train in 32 bits.")


def _read_sizes(text: str, classes: int) -> list[int]:
    try:
        sizes = [int(word) for word in text.split(",")]
    except ValueError:
        raise ValueError(f"--sizes must be numbers with commas between them, like 256,1024; got {text!r}.") from None
    if min(sizes) < 2 * classes:
        raise ValueError(f"--sizes must be at least {2 * classes}, two embeddings of each class; got {min(sizes)}.")
    return sizes


def _loss_row(one: LossTimes) -> list[str]:
    def beside(seconds: float | None) -> str:
        return "–" if seconds is None else f"{_milliseconds(seconds)} ({seconds / one.supcon:.1f}x)"

    figures: list[Any] = [f"{one.n:,}", _milliseconds(one.supcon), _milliseconds(one.esupcon)]
    return [*figures, beside(one.dense), beside(one.metric_learning)]


def _step_row(one: StepTimes) -> list[str]:
    parts = [f"{_milliseconds(part)} ({part / one.seconds:.0%})" for part in (one.views, one.network, one.loss)]
    name = "32 bits" if one.precision == "32" else "bfloat16"
    return [name, *parts, f"{one.images_per_second:,.0f}"]


def _milliseconds(seconds: float) -> str:
    return f"{1000 * seconds:,.{1 if seconds < 0.1 else 0}f} ms"
