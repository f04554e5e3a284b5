"""One training run: start or resume it, its folder and its checkpoints."""

from __future__ import annotations

import hashlib
import inspect
import io
import itertools
import math
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypedDict

import numpy as np
import torch
from numpy.typing import NDArray
from pydantic import ValidationError
from torch import Tensor, nn, optim

from esupcon._console import Log, explained, percent
from esupcon._contrast import unit_rows
from esupcon._io import (
    OwnedFolder,
    PathLike,
    first_error,
    read_sealed_json,
    write_bytes,
    write_sealed_json,
)
from esupcon.classifier.classifier import Classifier, evaluating
from esupcon.classifier.preprocessing import Rows
from esupcon.doctor import Finding, check_data
from esupcon.doctor.finding import finding
from esupcon.heads import class_means
from esupcon.methods import BUILT_IN_METHODS, Stage, get_method
from esupcon.models import FastEncoder, Network, build_network, split_encoder
from esupcon.models.fast import WHITENING_IMAGES
from esupcon.spec import RunSpec, TrainSpec
from esupcon.training.batches import FROZEN_BATCH, BatchPlan, FrozenBlocks, TrainData, derive_seed, two_views_of
from esupcon.training.devices import any_process, choose_precision, launch, n_processes, rank, torch_threads
from esupcon.training.memory import LabelMemory, can_estimate
from esupcon.training.monitor import Monitor, Progress, TrainingFailed
from esupcon.training.objective import LOSSES, check_losses
from esupcon.training.result import CHECKPOINTS, RUN_FILE, RUN_FILES, versions

if TYPE_CHECKING:
    from lightning_fabric import Fabric

#: Rows of the training data that the doctor looks at after every epoch, and that class means are estimated from.
WATCHED_ROWS, MEAN_ROWS = 512, 2000
START_OVER = "Choose another folder, or delete this one to start over (esupcon train: --overwrite)."


class TrainingInterrupted(Exception):  # noqa: N818 - not an error: the run can continue
    """Raised after a run was asked to stop and has saved a checkpoint."""


class FitOptions(TypedDict, total=False):
    """Options of `fit`, which describes them."""

    out: PathLike | None
    overwrite: bool
    encoder: nn.Module | None
    initial: Mapping[str, Tensor] | None
    devices: int
    accelerator: str
    checkpoint_seconds: float
    should_stop: Callable[[], bool]
    log: Log | None
    progress: bool | None
    announce: Callable[[Run], None] | None


@dataclass
class Position:
    """The next step to take, and how early stopping stands."""

    stage: int = 0
    epoch: int = 0
    step: int = 0
    best_accuracy: float = -1.0
    epochs_since_best: int = 0


@dataclass(frozen=True, eq=False)
class Fitted:
    """A trained classifier, and how it was trained."""

    classifier: Classifier
    run: RunSpec  # resolved: with the precision and the number of threads that were used
    data: TrainData
    history: list[dict[str, Any]]
    findings: list[Finding]
    precision_reason: str
    batch_size: int
    device: str
    noise_rate: float = 0.0  # share of wrong labels that training reckoned with

    @property
    def spec(self) -> TrainSpec:
        """The settings of the run."""
        return self.run.train

    @property
    def spec_of_folds(self) -> TrainSpec:
        """The settings for a part of the samples, as in cross-fitting: as many steps as on all of them.

        The scale of the logits, and with it the temperature, depends on the number of steps.
        """
        steps = self.spec.epochs * BatchPlan.of(len(self.data.x), self.spec.batch_size).steps_per_epoch
        return self.spec.model_copy(update={"steps": self.spec.steps or steps})

    @property
    def network(self) -> Network:
        """The trained network."""
        return self.classifier.network


@dataclass
class Run:
    """State of one run."""

    run_spec: RunSpec
    data: TrainData
    classifier: Classifier  # around the network that is being trained
    fabric: Fabric
    folder: RunFolder | None
    log: Log
    progress: Progress
    should_stop: Callable[[], bool]
    checkpoint_seconds: float
    precision_reason: str
    position: Position = field(default_factory=Position)
    optimizer: optim.Optimizer | None = None  # inside a stage
    best_state: dict[str, Tensor] | None = None
    frozen: FrozenBlocks | None = None

    def __post_init__(self) -> None:
        self.method = get_method(self.spec.method)
        self.plan = BatchPlan.of(len(self.data.x), self.spec.batch_size, self.fabric.world_size)
        self.last_save = time.monotonic()
        self.classifier.between_batches = lambda done, total: self.check_stop()
        self.monitor = Monitor(self)
        self._drawn: dict[int, tuple[Rows, NDArray[np.int64]]] = {}
        self.resumed_state: dict[str, Any] | None = None  # of a checkpoint inside a stage, until that stage begins
        self.log_priors: Tensor | None = None  # added to logits in training
        if self.spec.logit_adjustment:
            counts = torch.bincount(torch.from_numpy(self.data.y), minlength=self.data.n_classes)
            shares = counts.clamp_min(1).double() / len(self.data.y)  # an absent class counts as one sample
            self.log_priors = (self.spec.logit_adjustment * shares.log()).to(self.fabric.device)
        self.labels = torch.from_numpy(self.data.y).to(self.fabric.device)
        self.memory: LabelMemory | None = None  # of the labels, which may be wrong
        if self.spec.label_noise == "auto":
            if can_estimate(self.data.n_classes, len(self.labels)):
                self.memory = LabelMemory(self.labels, self.data.n_classes, None)
        elif self.spec.label_noise:
            self.memory = LabelMemory(self.labels, self.data.n_classes, self.spec.label_noise)

    @property
    def spec(self) -> TrainSpec:
        """The settings, resolved."""
        return self.run_spec.train

    @property
    def network(self) -> Network:
        """The network that is being trained."""
        return self.classifier.network

    @property
    def out(self) -> Path | None:
        """The folder of the run."""
        return None if self.folder is None else self.folder.path

    def n_steps(self, stage: Stage) -> int:
        """Return the number of optimiser steps of a stage."""
        main = self.spec.steps or self.spec.epochs * self.plan.steps_per_epoch
        return max(1, round(main * stage.epochs))

    def seed(self, purpose: str) -> int:
        """Return the seed for one purpose in the current step."""
        at = self.position
        return derive_seed(self.spec.seed, purpose, at.stage, at.epoch, at.step)

    def for_each_part(self, stage: Stage, function: Callable[[nn.Module, bool], object]) -> None:
        """Call the function with True for the parts that a stage trains, and with False for the frozen ones."""
        for part in ("encoder", "projector", "head"):
            for module in self.network.parts((part,)):
                function(module, part in stage.trains)
        if self.frozen is not None:
            function(self.frozen.blocks, False)

    def two_views_of(self, indices: NDArray[np.int64]) -> Tensor:
        """Return two views of the chosen training samples, or what the frozen blocks return for them."""
        if self.frozen is not None:
            return self.frozen.two_views_of(indices, self.seed("views"))
        augmentation = self.data.augmentation(self.spec.augmentation)
        views = two_views_of(self.data, self.data.x[indices], augmentation, self.seed("views"), self.fabric.device)
        return views.to(self.classifier.dtype)

    def freeze_blocks(self) -> None:
        """Compute the blocks of the encoder that are not trained, if there are any, for a few views of every image."""
        spec, data = self.spec, self.data
        if spec.train_blocks is None:
            return
        self.frozen = FrozenBlocks(self.network.encoder, spec.train_blocks, mirror=self.network.mirror)
        n_batches = math.ceil(spec.cached_views / 2) * math.ceil(len(data.x) / FROZEN_BATCH)
        done = itertools.count()

        def check() -> None:
            self.check_stop()
            self.progress.show("images through frozen blocks", next(done), n_batches, log=self.log)

        with self.fabric.autocast():
            views = (data, data.augmentation(spec.augmentation), spec.cached_views)
            self.frozen.compute_views(*views, seed=spec.seed, fabric=self.fabric, check=check)

    # --- Labels that may be wrong ------------------------------------------------------------------------------------

    def targets(self, images: Tensor) -> tuple[Tensor, Tensor | None]:
        """Return the labels of training samples for pairs, and soft targets for a head; None: as the labels."""
        return (self.labels[images], None) if self.memory is None else self.memory.targets(images, self.progress_made())

    def progress_made(self, *, end_of_epoch: bool = False) -> float:
        """Return the share of the first stage that is done; what a memory of labels believes then stays."""
        at, n_steps = self.position, self.n_steps(self.method.stages[0])
        done = (at.epoch + end_of_epoch) * self.plan.steps_per_epoch + at.step * (not end_of_epoch)
        return 1.0 if at.stage else done / n_steps

    def record(self, stage: Stage, images: Tensor, outputs: Mapping[str, Tensor]) -> None:
        """Let the memory of labels see the outputs of a step of the first stage."""
        if self.memory is None or not self.memory.is_needed or self.position.stage:
            return
        embedding, logits = outputs["embedding"].detach(), outputs.get("logits")
        if logits is None and "head" in stage.trains:
            with torch.no_grad():
                logits = self.network.head(embedding)
        self.memory.record(images, embedding, None if logits is None else logits.detach())

    def believed_labels(self) -> NDArray[np.int64]:
        """Return the labels as the memory corrects them, or as given."""
        labels, _ = self.targets(torch.arange(len(self.labels), device=self.labels.device))
        return labels.cpu().numpy()

    def mix(self, views: Tensor, labels: Tensor, targets: Tensor | None) -> tuple[Tensor, Tensor | None]:
        """Return views and targets mixed in pairs (mixup), or as they are. One share is drawn per step."""
        if not self.spec.mixup:
            return views, targets
        rng = np.random.default_rng(self.seed("mixup"))
        share, order = rng.beta(self.spec.mixup, self.spec.mixup), torch.from_numpy(rng.permutation(len(views)))
        share = max(share, 1 - share)  # a mixed view counts as its larger part in pairs of samples and in the memory
        order = order.to(views.device)
        if targets is None:
            targets = nn.functional.one_hot(labels, self.data.n_classes).float()
        return torch.lerp(views[order], views, share), torch.lerp(targets[order], targets, share)

    # --- Hooks of the loop -------------------------------------------------------------------------------------------

    def begin_stage(self, stage: Stage, optimizer: optim.Optimizer) -> None:
        """Set up the monitor of a stage; restore it and the optimiser if a checkpoint was written inside it."""
        self.optimizer, state = optimizer, self.resumed_state
        self.resumed_state, self.hooks = None, let_signals_in(self.network)
        self.monitor.begin_stage(stage)
        if state is not None:
            with self._continuing():
                groups = optimizer.state_dict()["param_groups"]  # their values follow from the settings
                optimizer.load_state_dict({"state": state["optimizer"]["state"], "param_groups": groups})
                shapes = [one.shape for group in optimizer.param_groups for one in group["params"]]
                for index, values in optimizer.state_dict()["state"].items():
                    tensors = (value for value in values.values() if isinstance(value, Tensor))
                    if any(value.shape not in ((), shapes[index]) for value in tensors):
                        raise ValueError("the state of its optimiser has another shape")
                self.monitor.load_state_dict(state["monitor"])

    def end_step(self, losses: Mapping[Any, float], lr: float, *, inside_epoch: bool) -> None:
        """Record a step; save a checkpoint if it is due; raise TrainingInterrupted if the run should stop."""
        self.monitor.step(losses, lr)
        self.position.step += 1
        self.progress.step(self)
        if any_process(self.fabric, self.should_stop()):
            raise TrainingInterrupted
        if inside_epoch:
            self.save_if_due()

    def end_epoch(self, n_steps: int, lr: float) -> bool:
        """Measure and record an epoch. Return True if the run has made no progress for too long."""
        stage = self.method.stages[self.position.stage]
        accuracy, sample = self.held_out_accuracy(stage), self.sample(stage)
        if self.memory is not None and self.position.stage == 0:
            epoch = self.position.epoch + 1
            rate = self.memory.end_epoch(epoch, self.progress_made(end_of_epoch=True))
            if rate is not None:
                self.monitor.report([finding("wrong-labels", share=percent(rate, 0), epoch=epoch)])
        self.monitor.end_epoch(n_steps, lr, accuracy, sample)
        at = self.position
        at.epoch, at.step = at.epoch + 1, 0
        stop = False
        if self.spec.patience is not None and accuracy is not None:
            if accuracy > at.best_accuracy:
                at.best_accuracy, at.epochs_since_best = accuracy, 0
                self.best_state = {name: value.detach().clone() for name, value in self.network.state_dict().items()}
            else:
                at.epochs_since_best += 1
            stop = at.epochs_since_best >= self.spec.patience
        if not stop:
            self.save_if_due()
        return stop

    def end_stage(self, stage: Stage) -> None:
        """Return to the best weights of the stage, and save a checkpoint."""
        if self.best_state is not None:
            self.network.load_state_dict(self.best_state)
        self.position = Position(stage=self.position.stage + 1)
        self.best_state = self.optimizer = None
        for hook in self.hooks:
            hook.remove()
        self.save()

    def check_stop(self) -> None:
        """Raise TrainingInterrupted if the run should stop. Several processes can only stop between steps."""
        if self.fabric.world_size == 1 and self.should_stop():
            raise TrainingInterrupted

    def save_if_due(self) -> None:
        """Save a checkpoint if the last one is old."""
        if time.monotonic() - self.last_save > self.checkpoint_seconds:
            self.save()

    def save(self) -> None:
        """Save a checkpoint: everything that the rest of the run depends on."""
        self.last_save = time.monotonic()
        if self.folder is None or not self.fabric.is_global_zero:
            return
        inside, at = self.optimizer is not None, self.position
        state = {
            "network": self.network.state_dict(),
            "optimizer": self.optimizer.state_dict() if self.optimizer is not None else None,
            "position": asdict(at),
            "best_state": self.best_state,
            "monitor": self.monitor.state_dict(inside_stage=inside),
            "memory": None if self.memory is None else self.memory.state_dict(),
        }
        self.folder.save(state, (at.stage * 1_000_000 + at.epoch) * 1_000_000 + at.step)

    def resume(self) -> bool:
        """Continue from the last good checkpoint; return False if there is none."""
        state = None if self.folder is None else self.folder.load(self.fabric.device)
        if state is None:
            return False
        with self._continuing():
            at = self.position = Position(**state["position"])
            if min(at.stage, at.epoch, at.step, at.epochs_since_best, at.best_accuracy + 1) < 0:
                raise ValueError("its position is negative")
            for weights in (state["best_state"], state["network"]):
                if weights is not None:
                    self.network.load_state_dict(weights)
            self.best_state = state["best_state"]
            self.monitor.load_state_dict({**state["monitor"], "watch": None})
            if self.memory is not None:
                self.memory.load_state_dict(state["memory"])
            self.resumed_state = state if state["optimizer"] is not None else None
        self.monitor.rewrite()
        self.log(f"Continuing at epoch {at.epoch + 1}, step {at.step + 1} (run {self.run_spec.key}).")
        return True

    def _continuing(self) -> AbstractContextManager[None]:
        return explained(f"the checkpoint in {self.out} cannot be continued by this version", START_OVER)

    # --- Evaluation --------------------------------------------------------------------------------------------------

    def outputs(self, rows: Rows, *names: str) -> list[Tensor]:
        """Return outputs of the network for un-augmented rows; stop between batches if asked to."""
        if self.frozen is not None:
            with torch.no_grad(), evaluating(self.network):
                encoded = [self.frozen.rest(one) for one in self.frozen.plain(rows, self.data, self.fabric.device)]
                if self.network.mirror:
                    outputs = self.network.mean_outputs_of(encoded[0], encoded[1], names)
                else:
                    outputs = self.network.outputs_of(encoded[0], names)
            return [outputs[name] for name in names]
        try:
            outputs = self.classifier.outputs(rows, names)
        except ValueError as error:
            raise TrainingFailed(
                f"{error} The network diverged in epoch {self.position.epoch + 1}: lower the learning rate (now "
                f"{self.spec.lr or 'automatic'})."
            ) from error
        return [outputs[name] for name in names]

    def class_means(self, x: Rows, y: NDArray[np.int64]) -> Tensor:
        """Return the means of unit embeddings by class."""
        (z,) = self.outputs(x, "embedding")
        return class_means(z, torch.from_numpy(y).to(self.fabric.device), self.data.n_classes)

    def held_out_accuracy(self, stage: Stage) -> float | None:
        """Return the held-out accuracy of the head, or of the nearest class mean if the stage trains no head."""
        x, y = self.data.x_held, self.data.y_held
        if x is None or y is None or len(x) == 0:
            return None
        if "head" in stage.trains:
            (scores,) = self.outputs(x, "logits")
        else:
            means = self.class_means(*self._some_rows(MEAN_ROWS))
            scores = unit_rows(self.outputs(x, "embedding")[0]) @ unit_rows(means).T
        accuracy: float = self.fabric.broadcast(float((scores.argmax(1).cpu().numpy() == y).mean()))
        return accuracy

    def sample(self, stage: Stage) -> dict[str, Any]:
        """Return what the doctor looks at: outputs of some training rows, with logits if the head is trained."""
        x, labels = self._some_rows(WATCHED_ROWS)
        names = ("embedding", "logits") if "head" in stage.trains else ("embedding",)
        outputs = zip(names, self.outputs(x, *names), strict=True)
        return {"labels": labels, **{name: value.float().cpu().numpy() for name, value in outputs}}

    def _some_rows(self, limit: int) -> tuple[Rows, NDArray[np.int64]]:
        """Return training rows, spread evenly, and their labels."""
        if limit not in self._drawn:
            rows = np.unique(np.linspace(0, len(self.data.x) - 1, limit).astype(int))
            self._drawn[limit] = self.data.x[rows], self.data.y[rows]
        return self._drawn[limit]

    def fitted(self) -> Fitted:
        """Return the trained classifier, on the CPU and in evaluation mode."""
        self.network.requires_grad_(True).eval().to("cpu")
        if self.spec.precision == "64":
            self.network.float()
        self.classifier.between_batches = None
        return Fitted(
            classifier=self.classifier,
            run=self.run_spec,
            data=self.data,
            history=self.monitor.lines,
            findings=self.monitor.findings,
            precision_reason=self.precision_reason,
            batch_size=self.plan.batch_size,
            device=self.fabric.device.type,
            noise_rate=(self.memory.rate or 0.0) if self.memory is not None and self.memory.is_used else 0.0,
        )


def let_signals_in(network: Network) -> list[Any]:
    """Make backward passes call Python after each layer: otherwise a signal would wait for their end, half a minute for
    large images. Return the handles that undo it."""
    hook = lambda parameter: None  # noqa: E731
    return [one.register_post_accumulate_grad_hook(hook) for one in network.parameters() if one.requires_grad]


# --- Start -----------------------------------------------------------------------------------------------------------


@contextmanager
def start(spec: TrainSpec | RunSpec, data: TrainData, **options: Any) -> Iterator[Run]:
    """Claim the folder, launch the processes and continue from the last checkpoint; see `FitOptions`.

    If TrainingInterrupted is raised inside, save a checkpoint. Torch's random state and its number of threads are
    restored afterwards.
    """
    asked = spec
    if isinstance(asked, TrainSpec):
        asked = RunSpec.model_validate({"source": "arrays", "content": data.fingerprint, "train": spec})
    get = options.get
    rank()  # a launch that cannot work is reported before anything else
    check_losses(get_method(asked.train.method).stages)
    encoder, initial, accelerator = get("encoder"), get("initial"), get("accelerator", "auto")
    asked = asked.model_copy(
        update={"processes": n_processes(get("devices", 1)), "objects": digest_objects(asked, encoder, initial)}
    )
    random_state = torch.get_rng_state()
    with Progress(get("progress")) as progress:
        log = get("log") or progress.say
        out = get("out")
        folder = None if out is None else RunFolder(Path(out), log)
        known = folder.read() if folder is not None and not get("overwrite", False) else None
        run_spec, reason = resolve(asked, known, accelerator, images=not data.is_table)
        try:
            with torch_threads(run_spec.train.threads):
                network, data = _initial_network(run_spec.train, data, encoder, initial)
                fabric = launch(get("devices", 1), accelerator, run_spec.train.precision)
                if not fabric.is_global_zero:
                    log = lambda line: None  # noqa: E731
                if folder is not None:
                    folder.key = run_spec.key  # every process reads the checkpoints of this run
                    refused: Exception | None = None
                    if fabric.is_global_zero:
                        about = {"precision_reason": reason, "device": fabric.device.type}
                        try:
                            folder.claim(run_spec, about, overwrite=get("overwrite", False))
                        except (ValueError, OSError) as error:
                            refused = error
                    if (refused := fabric.broadcast(refused)) is not None:  # all processes end with the same line
                        raise refused
                if fabric.world_size > 1 and fabric.device.type == "cuda":
                    network = nn.SyncBatchNorm.convert_sync_batchnorm(network)
                classes = data.classes if data.classes is not None else np.arange(data.n_classes)
                run = Run(
                    run_spec=run_spec,
                    data=data,
                    classifier=Classifier(network.to(fabric.device), data.preprocessing, classes),
                    fabric=fabric,
                    folder=folder,
                    log=log,
                    progress=progress,
                    should_stop=get("should_stop", lambda: False),
                    checkpoint_seconds=get("checkpoint_seconds", 60.0),
                    precision_reason=reason,
                )
                if not run.resume():
                    run.monitor.rewrite()
                    found = check_data(
                        data.x, data.y, data.x_held, x_test=data.x_test, n_classes=data.n_classes, classes=data.classes
                    )
                    run.monitor.report(found)
                try:
                    yield run
                except TrainingInterrupted:
                    run.save()
                    raise
        finally:
            torch.set_rng_state(random_state)


def resolve(asked: RunSpec, known: RunSpec | None, accelerator: str, *, images: bool) -> tuple[RunSpec, str]:
    """Return the spec with precision and threads, and the reason for the precision.

    Both are as asked for; else as the `known` earlier process of this run had them; else as this machine has them.
    """
    train = asked.train
    wanted = known.train.precision if known is not None and train.precision == "auto" else train.precision
    precision, reason = choose_precision(wanted, accelerator, images=images)
    threads = train.threads or (known.train.threads if known is not None else None) or torch.get_num_threads()
    update = {"precision": precision, "threads": threads}
    return asked.model_copy(update={"train": train.model_copy(update=update)}), reason


def _initial_network(
    spec: TrainSpec, data: TrainData, encoder: nn.Module | None, initial: Mapping[str, Tensor] | None
) -> tuple[Network, TrainData]:
    """Return the network before its first step, and the data with the normalisation that a pretrained encoder needs."""
    method = get_method(spec.method)
    torch.manual_seed(derive_seed(spec.seed, "weights"))
    network = build_network(
        encoder=spec.encoder if encoder is None else encoder,
        input_shape=data.preprocessing.input_shape,
        n_classes=data.n_classes,
        head=method.head,
        projection_dim=spec.projection_dim if method.projector else None,
        temperature=spec.prototype_temperature or spec.temperature,
        neck=spec.neck,
        mirror=spec.test_time_flip,
        pretrained=spec.pretrained and initial is None,
    )
    split_encoder(network.encoder, spec.train_blocks or 0)  # raises if it cannot be divided so
    if pixels := getattr(network.encoder, "pixels", None):
        data = data.normalised_by(*pixels)
    if initial is not None:
        network.load_state_dict(initial)
    elif isinstance(network.encoder, FastEncoder):
        rows = np.unique(np.linspace(0, len(data.x) - 1, WHITENING_IMAGES).astype(int))
        network.encoder.whitening.fit(data.preprocessing.tensor(data.x[rows]))
    if spec.precision == "64":
        network.double()
    if not data.is_table:
        network.to(memory_format=torch.channels_last)  # type: ignore[call-overload]  # the stubs lack this form
    return network, data


def digest_objects(
    asked: RunSpec, encoder: nn.Module | None = None, initial: Mapping[str, Tensor] | None = None
) -> str | None:
    """Return the digest of what decides a run and came as Python objects; None if nothing did.

    Objects are an encoder with its weights, initial weights, and a custom method with its losses; the latter are
    covered by `asked.plugins` if they come from there.
    """
    method, custom = get_method(asked.train.method), []
    if not asked.plugins and method not in BUILT_IN_METHODS:
        custom.append(repr(method))
        for name in dict.fromkeys(term.loss for stage in method.stages for term in stage.terms):
            try:
                custom.append(inspect.getsource(LOSSES[name]))
            except (OSError, TypeError):  # defined at a prompt
                custom.append(name)
    if encoder is None and initial is None and not custom:
        return None
    digest = hashlib.sha256("\n".join([*custom, repr(encoder)]).encode())
    for state in ({} if encoder is None else encoder.state_dict(), initial or {}):
        for name, value in state.items():
            digest.update(f"{name} {value.dtype} {tuple(value.shape)}".encode())
            digest.update(value.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy().tobytes())
    return digest.hexdigest()


# --- Folder and checkpoints ------------------------------------------------------------------------------------------


class RunFolder:
    """The folder of a run: `run.json` with its key and settings, and its two newest checkpoints.

    The name of a checkpoint has the number of its step, the key of the run and the digest of the file. The one before
    it is kept, so a process killed at any moment leaves at least one that can be read.
    """

    def __init__(self, path: Path, log: Log) -> None:
        self.path, self.log, self.key = path, log, ""
        self.kept: list[str] = []  # checkpoints, newest first
        self.files = OwnedFolder(path, RUN_FILES)

    def read(self) -> RunSpec | None:
        """Return the settings of the run that the folder holds; None if it holds none."""
        if rank() == 0:
            self.files.claim()  # raises for files of others
        return self._stored()[1] if (self.path / RUN_FILE).exists() else None

    def claim(self, spec: RunSpec, about: Mapping[str, Any], *, overwrite: bool = False) -> None:
        """Reserve the folder for this run. Raise a ValueError that names the difference if it holds another one."""
        self.files.claim()
        if overwrite:
            self.files.clear()
        elif (self.path / RUN_FILE).exists():
            stored, before = self._stored()
            changed = [spec.difference(before)] if spec.key != before.key else []
            if stored.get("device") != about["device"]:
                changed.append(f"device was {stored.get('device')}, now {about['device']}")
            if changed:
                raise ValueError(f"{self.path} holds another run: {'; '.join(changed)}. {START_OVER}")
            return
        record = {"key": spec.key, "spec": spec.model_dump(mode="json"), **about, "versions": versions()}
        write_sealed_json(self.path / RUN_FILE, record)

    def save(self, state: dict[str, Any], number: int) -> None:
        """Save a checkpoint and keep the one before it."""
        buffer = io.BytesIO()
        torch.save(state, buffer)
        name = f"checkpoint-{number:015d}-{self.key}-{_digest(buffer.getvalue())}.pt"
        write_bytes(self.path / name, buffer.getvalue())
        self.kept = [name, *self.kept[:1]]
        self.clear_checkpoints(self.kept)

    def load(self, device: torch.device) -> dict[str, Any] | None:
        """Return the newest checkpoint of this run that is undamaged; None if there is none. Nothing is executed."""
        for path in sorted(self.path.glob(f"checkpoint-[0-9]*-{self.key}-*.pt"), reverse=True):
            problem = "its checksum differs"
            try:
                content = path.read_bytes() if path.is_file() else b""  # reading a pipe may never end
                if path.stem.endswith(f"-{_digest(content)}"):
                    state: dict[str, Any] = torch.load(io.BytesIO(content), map_location=device, weights_only=True)
                    self.kept = [path.name]
                    return state
            except Exception as error:  # torch raises nearly anything for a file that is not a state
                problem = str(error).partition("\n")[0]
            self.log(f"{path} cannot be read: {problem}; using the checkpoint before it.")
        return None

    def clear_checkpoints(self, kept: Sequence[str] = ()) -> None:
        """Remove the checkpoints, except those that are `kept`; a finished run keeps none."""
        for path in self.path.glob(CHECKPOINTS):
            if path.name not in kept:
                path.unlink(missing_ok=True)

    def _stored(self) -> tuple[dict[str, Any], RunSpec]:
        path = self.path / RUN_FILE
        try:
            stored = read_sealed_json(path)
            return stored, RunSpec.read(stored.get("spec"))
        except ValidationError as error:
            raise ValueError(f"{path} does not describe a run ({first_error(error)}). {START_OVER}") from error
        except ValueError as error:
            raise ValueError(f"{error} {START_OVER}") from error


def _digest(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()[:16]
