"""`esupcon train`."""

from __future__ import annotations

import shlex
import sys
from pathlib import Path
from typing import Annotated, Any

import typer

from esupcon.cli import options as shared
from esupcon.cli.output import INTERVALS, answer, answer_json, complain, figures_table, say
from esupcon.cli.stopping import Stopper
from esupcon.methods import METHODS
from esupcon.pipeline.provenance import is_first_process

_RECIPE, _SETTING, _RUN = "The recipe", "A harder setting", "The run"


def _option(help_text: str, panel: str, default: str | bool = False) -> Any:
    return typer.Option(help=help_text, rich_help_panel=panel, show_default=default)


def train(
    context: typer.Context,
    data: shared.Data,
    out: Annotated[Path, typer.Option(metavar="DIR", help="Folder of the run.", show_default=False)],
    method: Annotated[str | None, _option(", ".join(METHODS) + ".", _RECIPE, "esupcon")] = None,
    encoder: Annotated[
        str | None, _option("resnet18, resnet10-w32, mlp-256x2, timm:NAME, ...", _RECIPE, "auto")
    ] = None,
    epochs: Annotated[int | None, _option("Passes over the training data.", _RECIPE, "by its size, and said")] = None,
    steps: Annotated[int | None, _option("Optimiser steps, instead of epochs.", _RECIPE)] = None,
    batch_size: Annotated[int | None, _option("Images a step, each in two views.", _RECIPE, "256")] = None,
    lr: Annotated[float | None, _option("Learning rate.", _RECIPE, "by method and batch size")] = None,
    temperature: Annotated[float | None, _option("Divides every cosine similarity.", _RECIPE, "0.1")] = None,
    prototype_weight: Annotated[
        float | None, _option("Weight of the prototype term of esupcon.", _RECIPE, "1.0")
    ] = None,
    augmentation: Annotated[str | None, _option("auto, simclr, digits, table, none, ...", _RECIPE, "auto")] = None,
    seed: Annotated[int | None, _option("Decides everything that is drawn.", _RECIPE, "0")] = None,
    optimizer: Annotated[str | None, _option("sgd or adamw.", _RECIPE, "sgd")] = None,
    momentum: Annotated[float | None, _option("Of sgd.", _RECIPE, "0.9")] = None,
    weight_decay: Annotated[
        float | None, _option("Not applied to norms, biases and prototypes.", _RECIPE, "0.0005")
    ] = None,
    warmup: Annotated[
        float | None, _option("Share of the steps in which the rate rises from 0.", _RECIPE, "0.1")
    ] = None,
    prototype_lr: Annotated[
        float | None, _option("Rate of the prototypes, relative to the encoder's.", _RECIPE, "1.0")
    ] = None,
    spce_average: Annotated[str | None, _option("class or batch.", _RECIPE, "class")] = None,
    projection_dim: Annotated[
        int | None, _option("Width of the projection, where the method has one.", _RECIPE, "128")
    ] = None,
    class_weight: Annotated[str | None, _option("balanced: draw every class equally often.", _RECIPE)] = None,
    n_train: Annotated[
        int | None, _option("Use so many training samples; the held-out part is taken from them.", _SETTING)
    ] = None,
    imbalance_rate: Annotated[float | None, _option("Keep this share of half of the classes.", _SETTING)] = None,
    noise_rate: Annotated[float | None, _option("Make this share of the training labels wrong.", _SETTING)] = None,
    noise_kind: Annotated[str, _option("shuffle, symmetric or pair.", _SETTING, True)] = "shuffle",
    validation_fraction: Annotated[
        float, _option("Share of the training data held out to watch the run and to calibrate.", _RUN, True)
    ] = 0.1,
    patience: Annotated[
        int | None, _option("Stop after so many epochs without a better held-out accuracy.", _RUN)
    ] = None,
    micro_batch: Annotated[
        int | None, _option("Images encoded at once, to save memory; the losses see the whole batch.", _RUN)
    ] = None,
    precision: Annotated[str | None, _option("auto, 32, bf16 or 64.", _RUN, "auto: the faster one here")] = None,
    compile_network: Annotated[bool, typer.Option("--compile", help="torch.compile it.", rich_help_panel=_RUN)] = False,
    devices: Annotated[int, _option("Processes or accelerators.", _RUN, True)] = 1,
    accelerator: Annotated[str, _option("auto, cpu, cuda or mps.", _RUN, True)] = "auto",
    checkpoint_seconds: Annotated[float, _option("Save the run this often.", _RUN, True)] = 60.0,
    overwrite: Annotated[
        bool, typer.Option("--overwrite", help="Start over, whatever the folder holds.", rich_help_panel=_RUN)
    ] = False,
    data_dir: shared.DataDir = None,
    image_size: shared.ImageSize = None,
    channels: shared.Channels = None,
    split_seed: shared.SplitSeed = None,
    test_fraction: shared.TestFraction = None,
    n_per_class: shared.NPerClass = None,
    layout: shared.Layout = None,
    image_column: shared.ImageColumn = None,
    label_column: shared.LabelColumn = None,
    strict: shared.Strict = False,
    workers: shared.Workers = None,
    as_json: shared.Json = False,
) -> None:
    """Train a classifier on labelled images.

    The same command again continues a run that was stopped or killed, and shows the result of a finished one.
    """
    from esupcon.data.scenarios import Scenario  # noqa: PLC0415 - slow to import, as are the next
    from esupcon.engine import TrainingInterrupted, TrainSpec  # noqa: PLC0415
    from esupcon.pipeline.prepare import DataOptions  # noqa: PLC0415
    from esupcon.pipeline.training import train as run  # noqa: PLC0415

    given = {name: value for name, value in context.params.items() if value is not None}
    spec = TrainSpec(**{name: given[name] for name in TrainSpec.model_fields if name in given}, compile=compile_network)
    reading = DataOptions(**{name: given[name] for name in DataOptions.__dataclass_fields__ if name in given})
    scenario = Scenario(n_train, imbalance_rate, noise_rate, noise_kind, seed=spec.seed)  # type: ignore[arg-type]  # it checks the kind
    with Stopper() as stopper:
        try:
            result = run(
                data,
                spec,
                out=out,
                scenario=scenario,
                data=reading,
                validation_fraction=validation_fraction,
                choose_epochs=epochs is None,
                devices=devices,
                accelerator=accelerator,
                overwrite=overwrite,
                checkpoint_seconds=checkpoint_seconds,
                should_stop=stopper,
                log=say,
            )
        except TrainingInterrupted:
            again = shlex.join(["esupcon", *(word for word in sys.argv[1:] if word != "--overwrite")])
            complain(f"stopped, and saved in {out}. To go on: {again}")
            raise typer.Exit(stopper.exit_code) from None
    if not is_first_process():
        return
    if as_json:
        answer_json({"out": str(out), "already_finished": result.already_finished, **result.as_dict()})
        return
    if result.already_finished:
        say(f"{out} holds this run, finished; nothing was trained. --overwrite trains it again.")
    title = METHODS[spec.method].title
    for part, words in (("test", "test"), ("held_out", "held-out")):
        figures = result.outcome["metrics"][part]
        if figures is not None:
            answer(f"{title} on {result.outcome['data']['name']}: {figures['n']:,} {words} samples")
            answer(figures_table([("value", figures)]))
            say(INTERVALS)
            break
    answer(f"Model:  {result.model}\nNext:   {shlex.join(['esupcon', 'evaluate', str(result.model), data])}")
