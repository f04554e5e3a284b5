"""How long a run will take, from a few real steps of a copy of its network. The estimate never changes the result."""

from __future__ import annotations

import copy
import math
import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np
from torch import nn

from esupcon._console import Log, count, duration
from esupcon.classifier.classifier import Classifier
from esupcon.models import resolve_encoder
from esupcon.training.batches import FROZEN_BATCH, FrozenBlocks, TrainData
from esupcon.training.loop import StageModule, take_step
from esupcon.training.optim import build_optimizer
from esupcon.training.run import WATCHED_ROWS, Position, Run, let_signals_in, start

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from esupcon.methods import Stage
    from esupcon.spec import RunSpec

#: Beyond this estimate, say what would be quicker.
LONG_SECONDS = 1800
QUICKER = "Quicker: --minutes 30, a smaller --image-size, or --encoder fast."
#: Rows whose predictions are timed.
TIMED_ROWS = 128
#: Trainings of cross-fitting, each with as many steps, beside the one whose network is kept.
CROSS_FITTED = 3


@dataclass(frozen=True)
class Estimate:
    """Seconds of a run: before the first epoch, of an epoch, and after the last one, with all predictions."""

    before: float
    epoch: float
    after: float

    def total(self, epochs: int) -> float:
        """Return the seconds of a run with this number of epochs."""
        return self.before + epochs * self.epoch + self.after


def estimate(run: Run) -> Estimate:
    """Return how long a run takes. All processes of the run must call this."""
    trial, data, spec, n = copy.copy(run), run.data, run.spec, len(run.data.x)
    network = copy.deepcopy(run.network)
    let_signals_in(network)
    trial.position, trial.should_stop = Position(), lambda: False  # a signal ends the command here, at once
    trial.memory = None  # the steps timed here must not be remembered
    trial.classifier = Classifier(network, run.classifier.preprocessing, run.classifier.classes_)
    n_held, n_test = (0 if part is None else len(part) for part in (data.x_held, data.x_test))
    n_watched = min(n, WATCHED_ROWS) + n_held  # after every epoch
    some = data.x[: TIMED_ROWS if spec.train_blocks is None else FROZEN_BATCH]
    batch, before = np.arange(run.plan.batch_size), 0.0
    per_row = _seconds(lambda: trial.classifier.outputs(some, ("logits",))) / len(some)
    if spec.train_blocks is not None:  # their outputs are computed once, also those of the rows watched
        frozen = trial.frozen = FrozenBlocks(network.encoder, spec.train_blocks, mirror=network.mirror)
        few = replace(data, x=data.x[:FROZEN_BATCH], y=data.y[:FROZEN_BATCH])
        options = (few, data.augmentation(spec.augmentation), 2 * run.fabric.world_size, spec.seed, run.fabric)
        with run.fabric.autocast():
            seconds = _seconds(lambda: frozen.compute_views(*options, check=lambda: None))
        n_views = 2 * math.ceil(spec.cached_views / (2 * run.fabric.world_size))
        before = seconds / (2 * len(few.x)) * (n_views * n + n_watched * (1 + network.mirror))
        batch, n_watched = batch % len(few.x), 0
    n_steps = [run.n_steps(stage) for stage in run.method.stages]
    steps = sum(n * _step(trial, stage, batch) for stage, n in zip(run.method.stages, n_steps, strict=True))
    epoch = (steps + sum(n_steps) / run.plan.steps_per_epoch * n_watched * per_row) / spec.epochs
    predicted = n + n_held + n_test
    if run.run_spec.cross_fit and data.x_held is None:
        trained = 1 + CROSS_FITTED
        before, epoch, predicted = trained * before, trained * epoch, predicted + CROSS_FITTED * n
    return Estimate(before, epoch, predicted * per_row)


def _step(trial: Run, stage: Stage, batch: NDArray[np.int64]) -> float:
    """Return the seconds of one step of a stage."""
    trial.for_each_part(stage, nn.Module.requires_grad_)
    made = build_optimizer(trial.network, stage, trial.spec, trial.plan.batch_size)
    module, optimizer = trial.fabric.setup(StageModule(trial.network, stage.outputs, trial.frozen), made)
    for group in optimizer.param_groups:
        group["lr"] = 0.0  # a rate that is too high must fail in training, where the message is better
    trial.network.train()
    trial.for_each_part(stage, nn.Module.train)
    return _seconds(lambda: take_step(trial, stage, module, optimizer, batch))


def _seconds(function: Callable[[], object]) -> float:
    """Return the median time of up to five calls within a second, after one that prepares kernels and memory."""
    function()
    found: list[float] = []
    while not found or (len(found) < 5 and sum(found) < 1):
        began = time.perf_counter()
        function()
        found.append(time.perf_counter() - began)
    return statistics.median(found)


def announce(run: Run, *, more: float = 0.0) -> None:
    """Print what is trained and how long it will take, with `more` seconds for what follows."""
    spec, shape = run.spec, run.data.preprocessing.input_shape
    seconds = more + estimate(run).total(max(0, spec.epochs - run.position.epoch))
    pixels = f" at {shape[1]} x {shape[2]} pixels" if len(shape) == 3 else ""
    epochs, steps = count(spec.epochs, "epoch"), count(run.plan.steps_per_epoch, "step")
    what = f"{run.method.title}: encoder {resolve_encoder(spec.encoder, shape)}{pixels}, {epochs} of {steps}"
    run.log(f"{what}, about {duration(seconds)} on {count(spec.threads or 1, 'core')}.")
    if seconds > LONG_SECONDS:
        run.log(QUICKER)


def fit_into(
    minutes: float | None, asked: RunSpec, data: TrainData, accelerator: str, log: Log, *, more: float = 0.0
) -> tuple[RunSpec, float]:
    """Return the run, with as many epochs as fit into `minutes` if given, and the seconds that it will take."""
    with start(asked, data, accelerator=accelerator, log=log, progress=False) as run:
        found, train = estimate(run), run.spec
    if minutes is not None:
        epochs = (60 * minutes - more - found.total(0)) / found.epoch
        train = train.model_copy(update={"epochs": max(1, int(epochs)), "steps": None})
    return asked.model_copy(update={"train": train}), more + found.total(train.epochs)
