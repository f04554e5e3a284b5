"""The training loop, for every method: stages, epochs, steps."""

from __future__ import annotations

import math
import time
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn, optim

from esupcon.doctor import Watch
from esupcon.doctor.setting import LOSSES as KNOWN_LOSSES
from esupcon.engine.accumulation import cached_backward
from esupcon.engine.core_record import CoreRecord, epoch_line
from esupcon.engine.data import batch_of_views
from esupcon.engine.evaluation import held_out_accuracy, outputs_of
from esupcon.engine.objective import sum_of, term_values
from esupcon.engine.optimisation import build_optimizer, lr_factor, set_lr
from esupcon.engine.processes import average_gradients, mean_over_processes, rows_of_this_process, whole_batch
from esupcon.engine.progress import Progress
from esupcon.engine.run import Position, Run, TrainingFailed, TrainingInterrupted
from esupcon.engine.seeding import derive_seed, seed_layers
from esupcon.engine.speed import channels_last
from esupcon.methods import Stage, Term
from esupcon.models import Network

WATCHED_ROWS = 512


class StageModule(nn.Module):
    """The network as a stage uses it: a batch in, the outputs of its terms out."""

    def __init__(self, network: Network, outputs: tuple[str, ...]) -> None:
        super().__init__()
        self.network, self.names = network, outputs

    def forward(self, x: Tensor) -> dict[str, Tensor]:
        return self.network.outputs(x, self.names)


def train_stage(run: Run, stage: Stage, optimizer_state: dict[str, Any] | None, progress: Progress) -> None:
    """Takes the stage from where the run stands to its end."""
    module, optimizer = _set_up(run, stage)
    if optimizer_state is not None:
        optimizer.load_state_dict(optimizer_state)
    place, n_steps = run.position, run.n_steps(stage)
    n_epochs = math.ceil(n_steps / run.plan.steps_per_epoch)
    watch = run.watch = _watch(run, stage, n_steps)
    run.core = _core(run, stage, n_steps)
    if watch is not None and run.watch_state is not None:
        watch.load_state_dict(run.watch_state)
        run.watch_state = None
    progress.start_stage(run.method.title, place.stage, len(run.method.stages), n_epochs)
    last_save = time.monotonic()

    while place.epoch < n_epochs:
        balance = run.data.y if run.spec.class_weight == "balanced" else None
        order = run.plan.order(run.spec.seed, place.stage, place.epoch, balance)
        steps = min(run.plan.steps_per_epoch, n_steps - place.epoch * run.plan.steps_per_epoch)
        _set_modes(run.network, stage)
        started, first_step = time.monotonic(), place.step
        steps_before = place.epoch * run.plan.steps_per_epoch
        while place.step < steps:
            lr = set_lr(optimizer, lr_factor(steps_before + place.step, n_steps, run.spec.warmup))
            loss, core_loss = _take_step(run, stage, module, optimizer, run.plan.indices(order, place.step))
            _ask_doctor(run, loss, core_loss, lr)
            if not math.isfinite(loss):
                raise TrainingFailed(_not_finite(run, loss))
            place.loss_sum += loss
            place.step += 1
            progress.step(place.epoch, place.step, steps, place.loss_sum / place.step, run.plan.batch_size)
            if run.should_stop():
                run.save(optimizer.state_dict())
                raise TrainingInterrupted
            if place.step < steps and time.monotonic() - last_save > run.checkpoint_seconds:
                run.save(optimizer.state_dict())
                last_save = time.monotonic()
        timing = _timing(place, time.monotonic() - started, (steps - first_step) * run.plan.batch_size)
        lr = set_lr(optimizer, lr_factor(steps_before + steps - 1, n_steps, run.spec.warmup))  # also if resumed here
        stop_early = _end_epoch(run, stage, watch, lr, steps, timing, progress)
        place.epoch, place.step, place.loss_sum = place.epoch + 1, 0, 0.0
        if stop_early:
            break
        if time.monotonic() - last_save > run.checkpoint_seconds:
            run.save(optimizer.state_dict())
            last_save = time.monotonic()
    if run.best_state is not None:
        run.network.load_state_dict(run.best_state)
    run.position = Position(stage=place.stage + 1)
    run.best_state = None
    run.save(None)


def _set_up(run: Run, stage: Stage) -> tuple[nn.Module, optim.Optimizer]:
    """Frozen parts get no gradient; the rest is wrapped for device, precision and processes."""
    for part in ("encoder", "projector", "head"):
        module = getattr(run.network, part)
        if module is not None:
            module.requires_grad_(part in stage.trains)
    lr = run.spec.stage_lr(stage, run.plan.batch_size)
    optimizer = build_optimizer(run.network, stage, run.spec, lr)
    wrapped: nn.Module = StageModule(run.network, stage.outputs)
    if run.spec.compile:
        wrapped = torch.compile(wrapped)  # type: ignore[assignment]  # a compiled module is one
    module, optimizer = run.fabric.setup(wrapped, optimizer)
    return module, optimizer


def _set_modes(network: Network, stage: Stage) -> None:
    """Trained parts in training mode; frozen ones in evaluation mode, so that their statistics stay."""
    for part in ("encoder", "projector", "head"):
        module = getattr(network, part)
        if module is not None:
            module.train(part in stage.trains)


def _take_step(
    run: Run, stage: Stage, module: nn.Module, optimizer: optim.Optimizer, indices: NDArray[np.int64]
) -> tuple[float, float]:
    """The loss of the stage, and that of its core."""
    place = run.position
    where = (place.stage, place.epoch, place.step)
    seed = derive_seed(run.spec.seed, "step", *where)
    seed_layers(seed, run.device)
    views, labels = batch_of_views(run.data, indices, run.recipe, run.spec.seed, where, run.device)
    if run.precision == "64":
        views = views.double()
    views = channels_last(views)
    world = run.fabric.world_size
    mine = rows_of_this_process(run.fabric, len(labels))
    views, labels = views[mine], labels[mine]

    values: dict[Term, Tensor] = {}

    def loss_of(outputs: dict[str, Tensor]) -> Tensor:
        values.update(term_values(stage, whole_batch(run.fabric, run.network, outputs, labels), run.loss_settings))
        # Processes add up their anchors' shares; the average that follows is turned into a sum by `world`.
        return sum_of(values) * world

    optimizer.zero_grad()
    if run.spec.micro_batch is None:
        loss = loss_of(module(views))
        run.fabric.backward(loss)
    else:
        with run.fabric.no_backward_sync(module, enabled=world > 1):  # type: ignore[arg-type]  # it is wrapped
            loss = cached_backward(module, run.network, views, 2 * run.spec.micro_batch, loss_of, seed)
        average_gradients(run.fabric, run.network)
    optimizer.step()
    whole = float(mean_over_processes(run.fabric, loss.detach()))
    if run.core is None:
        return whole, whole
    return whole, float(mean_over_processes(run.fabric, sum_of(values, run.core.stage).detach() * world))


def _ask_doctor(run: Run, loss: float, core_loss: float, lr: float) -> None:
    if run.watch is not None:
        run.tell(run.watch.step(loss, lr))
    if run.core is not None:
        run.core.step(core_loss, lr)


def _timing(place: Position, seconds: float, images: int) -> dict[str, float]:
    rate = images / seconds if seconds > 0 else 0.0
    return {"stage": place.stage, "epoch": place.epoch, "seconds": seconds, "images_per_second": rate}


def _end_epoch(
    run: Run, stage: Stage, watch: Watch | None, lr: float, steps: int, timing: dict[str, float], progress: Progress
) -> bool:
    """Measures, records, asks the doctor; True where the run has been without progress for too long."""
    place = run.position
    accuracy = held_out_accuracy(run.network, run.data, run.device, head_is_trained="head" in stage.trains)
    accuracy = run.fabric.broadcast(accuracy)
    loss = place.loss_sum / steps
    if watch is not None:
        run.tell(watch.epoch(place.epoch, loss, accuracy, **_sample(run, stage)))
    if run.core is not None:
        without_head = held_out_accuracy(run.network, run.data, run.device, head_is_trained=False)
        without_head = run.fabric.broadcast(without_head)
        run.core.end_epoch(place.epoch, lr, steps, without_head, _sample(run, run.core.stage))
    run.history.append(epoch_line(place.stage, place.epoch, loss, lr, accuracy, run.unrecorded), timing)
    run.unrecorded = []
    progress.epoch(place.epoch, accuracy)
    if run.spec.patience is None or accuracy is None:
        return False
    if accuracy > place.best_accuracy:
        place.best_accuracy, place.epochs_since_best = accuracy, 0
        run.best_state = {name: value.detach().clone() for name, value in run.network.state_dict().items()}
    else:
        place.epochs_since_best += 1
    return place.epochs_since_best >= run.spec.patience


def _sample(run: Run, stage: Stage) -> dict[str, Any]:
    """What the doctor looks at: embeddings of some training samples, and logits where the head is in training."""
    rows = np.unique(np.linspace(0, len(run.data.x) - 1, WATCHED_ROWS).astype(int))
    names = ("embedding", "logits") if "head" in stage.trains else ("embedding",)
    sample = outputs_of(run.network, run.data, run.data.x[rows], names, run.device)
    return {**{name: value.float().cpu() for name, value in sample.items()}, "labels": run.data.y[rows]}


def _core(run: Run, stage: Stage, n_steps: int) -> CoreRecord | None:
    """Kept where other methods may take the core of this stage; not where a head decides when training ends."""
    place, state = run.position, run.core_state
    run.core_state = None
    begun = place.epoch > 0 or place.step > 0
    if run.shared_stage is None or place.stage > 0 or stage.core == stage or run.spec.patience is not None:
        return None
    watch = _watch(run, stage.core, n_steps)
    if watch is None or (begun and state is None):
        return None
    record = CoreRecord(stage.core, watch, list(run.findings), list(run.unrecorded))
    if state is not None:
        record.load_state_dict(state)
    return record


def _watch(run: Run, stage: Stage, n_steps: int) -> Watch | None:
    """The doctor, who judges a loss by what it can reach: of an own loss nobody has told him that."""
    losses: dict[str, float] = {}
    for term in stage.terms:
        losses[term.loss] = losses.get(term.loss, 0.0) + term.weight
    if not set(losses) <= set(KNOWN_LOSSES):
        return None
    return Watch(
        losses=losses,
        n_batch=run.plan.batch_size,
        n_classes=run.data.n_classes,
        n_steps=n_steps,
        temperature=run.spec.temperature,
        warmup_steps=int(run.spec.warmup * n_steps),
        head=run.method.head,
        prototype_weight=run.spec.prototype_weight,
        spce_average=run.spec.spce_average,
        class_counts=np.bincount(run.data.y, minlength=run.data.n_classes).tolist(),
        said=run.findings,
    )


def _not_finite(run: Run, loss: float) -> str:
    place = run.position
    kept = "" if run.checkpoints is None else f" The last good checkpoint is kept in {run.checkpoints.folder}."
    return (
        f"the loss became {loss} in epoch {place.epoch + 1}, step {place.step + 1}.{kept} "
        f"Lower the learning rate (now {run.spec.lr or 'automatic'}) or raise the temperature "
        f"(now {run.spec.temperature}), and look for NaN in the data."
    )
