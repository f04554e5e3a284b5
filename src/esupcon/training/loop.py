"""The training loop, for every method: stages, epochs, steps."""

from __future__ import annotations

from typing import TYPE_CHECKING, Unpack

import torch
from torch import Tensor, nn, optim

from esupcon.heads import PrototypeHead
from esupcon.methods import Stage, Term
from esupcon.models import Network
from esupcon.spec import RunSpec, TrainSpec
from esupcon.training.batches import FrozenBlocks, TrainData, seed_layers
from esupcon.training.devices import average_gradients, gather, share, totals
from esupcon.training.objective import cached_backward, term_losses
from esupcon.training.optim import build_optimizer, set_lr
from esupcon.training.run import FitOptions, Fitted, Run, start

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray


def fit(spec: TrainSpec | RunSpec, data: TrainData, **options: Unpack[FitOptions]) -> Fitted:
    """Train `spec.method` on `data` and return the classifier.

    out: folder for checkpoints, history and `run.json`. The same call again continues a run that was killed, and ends
        as if it had not been, bit for bit. Another run in the folder is an error that names the difference.
    overwrite: start over, and remove what an earlier run has written to `out`.
    encoder: a module that is trained in place of the encoder named in the spec. initial: state dict to start from.
    devices, accelerator: number of processes on this machine, and where they compute: auto, cpu, cuda, mps.
    checkpoint_seconds: time between checkpoints, 60 by default.
    should_stop: called after every step; if it returns True a checkpoint is saved and `TrainingInterrupted` raised.
    announce: called with the run before training, for example `esupcon.training.estimate.announce`.
    log, progress: receiver of messages; whether to show a bar (default: if standard error is a terminal).
    """
    with start(spec, data, **options) as run:
        if (announce := options.get("announce")) is not None:
            announce(run)
        run.freeze_blocks()
        while run.position.stage < len(run.method.stages):
            train_stage(run, run.method.stages[run.position.stage])
        if run.method.class_means_head:
            with torch.no_grad():
                run.network.head.weight.copy_(run.class_means(run.data.x, run.believed_labels()))  # type: ignore[operator]
        return run.fitted()


def train_stage(run: Run, stage: Stage) -> None:
    """Minimise the sum of the stage's terms over the parts that it trains, from the current position to its end."""
    spec, plan, at, n_steps = run.spec, run.plan, run.position, run.n_steps(stage)
    run.for_each_part(stage, nn.Module.requires_grad_)
    outputs = dict.fromkeys((*stage.outputs, "embedding") if run.memory is not None else stage.outputs)
    module: nn.Module = StageModule(run.network, tuple(outputs), run.frozen)
    if spec.compile:
        module = torch.compile(module)  # type: ignore[assignment]  # a compiled module is one
    module, optimizer = run.fabric.setup(module, build_optimizer(run.network, stage, spec, plan.batch_size))
    run.begin_stage(stage, optimizer)  # a resumed run restores optimiser and monitor here

    while (steps_before := at.epoch * plan.steps_per_epoch) < n_steps:
        steps = min(plan.steps_per_epoch, n_steps - steps_before)
        balance = run.data.y if spec.class_weight == "balanced" else None
        groups = None if spec.images_per_class is None else (run.data.y, spec.images_per_class)
        order = plan.order(spec.seed, at.stage, at.epoch, balance, groups)
        run.network.train()
        run.for_each_part(stage, nn.Module.train)  # statistics of frozen parts must not move
        while at.step < steps:
            lr = set_lr(optimizer, steps_before + at.step, n_steps, spec)
            losses = take_step(run, stage, module, optimizer, plan.indices(order, at.step))
            run.end_step(losses, lr, inside_epoch=at.step + 1 < steps)
        lr = set_lr(optimizer, steps_before + steps - 1, n_steps, spec)  # also if resumed here
        if run.end_epoch(steps, lr):
            break  # early stopping
    run.end_stage(stage)


def take_step(
    run: Run, stage: Stage, module: nn.Module, optimizer: optim.Optimizer, indices: NDArray[np.int64]
) -> dict[Term, float]:
    """Two views -> outputs -> sum of the terms -> gradient -> step. Return the value of each term."""
    fabric, spec, seed = run.fabric, run.spec, run.seed("step")
    seed_layers(seed, fabric.device)
    own, everyone = share(fabric, 2 * len(indices))  # all rows, or both views of this process's images
    images = torch.from_numpy(indices).to(fabric.device).repeat(2)
    labels, targets = run.targets(images)
    views, targets = run.mix(run.two_views_of(indices), labels, targets)
    losses: dict[Term, Tensor] = {}
    prototypes = run.network.head.weight if isinstance(run.network.head, PrototypeHead) else None

    def loss_of(outputs: dict[str, Tensor]) -> Tensor:
        about = {"prototypes": prototypes, "n_classes": run.data.n_classes, "log_priors": run.log_priors}
        soft = None if targets is None else targets[everyone]
        batch = gather(fabric, outputs, labels[everyone], targets=soft, **about)
        run.record(stage, images[everyone], batch.outputs)
        losses.update(term_losses(stage, batch, spec))
        first, *others = losses.values()
        return sum(others, start=first) * fabric.world_size  # gradients are averaged; their sum is wanted

    optimizer.zero_grad()
    if spec.micro_batch is None:
        fabric.backward(loss_of(module(views[own])))
    else:
        with fabric.no_backward_sync(module, enabled=fabric.world_size > 1):  # type: ignore[arg-type]  # it is wrapped
            cached_backward(module, views[own], 2 * spec.micro_batch, loss_of, seed=seed, check_stop=run.check_stop)
        average_gradients(fabric, run.network)
    optimizer.step()
    return totals(fabric, losses)


class StageModule(nn.Module):
    """The network as a stage uses it: a batch in, the outputs of its terms out."""

    def __init__(self, network: Network, outputs: tuple[str, ...], frozen: FrozenBlocks | None) -> None:
        super().__init__()
        self.network, self.names, self.frozen = network, outputs, frozen

    def forward(self, x: Tensor) -> dict[str, Tensor]:
        if self.frozen is not None:  # x is what the frozen blocks returned
            return self.network.outputs_of(self.frozen.rest(x), self.names)
        return self.network.outputs(x, self.names)
