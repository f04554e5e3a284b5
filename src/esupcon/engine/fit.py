"""From a specification and data to a trained network."""

from __future__ import annotations

import sys
import time
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from lightning_fabric import Fabric
from numpy.typing import NDArray
from torch import nn

from esupcon.doctor import Finding, check_data
from esupcon.engine.checkpoints import Checkpoints
from esupcon.engine.data import BatchPlan, TrainData, batch_of_views
from esupcon.engine.evaluation import outputs_of, training_class_means
from esupcon.engine.history import History
from esupcon.engine.loop import train_stage
from esupcon.engine.progress import Progress
from esupcon.engine.run import RUN_FILE, Log, Position, Run, claim_folder
from esupcon.engine.seeding import derive_seed
from esupcon.engine.spec import TrainSpec
from esupcon.engine.speed import choose_precision
from esupcon.files import write_json
from esupcon.methods import get_method
from esupcon.models import Network, build_network

_FABRIC_PRECISION = {"32": "32-true", "bf16": "bf16-mixed", "64": "64-true"}
PROBE_IMAGES = 64


@dataclass(frozen=True, eq=False)
class Fitted:
    """A trained network with what is needed to use it and to say how it came about."""

    network: Network
    spec: TrainSpec
    data: TrainData
    history: list[dict[str, Any]]
    findings: list[Finding]
    key: str
    precision: str
    batch_size: int
    seconds: float

    def logits(self, x: NDArray[np.generic]) -> NDArray[np.float64]:
        """Logits of un-augmented samples in the form of the training data."""
        return outputs_of(self.network, self.data, x, ("logits",), torch.device("cpu"))["logits"].double().numpy()

    def embed(self, x: NDArray[np.generic]) -> NDArray[np.float32]:
        z = outputs_of(self.network, self.data, x, ("embedding",), torch.device("cpu"))["embedding"]
        return z.float().numpy()


def fit(
    spec: TrainSpec,
    data: TrainData,
    *,
    encoder: nn.Module | None = None,
    out: Path | None = None,
    overwrite: bool = False,
    devices: int = 1,
    accelerator: str = "auto",
    checkpoint_seconds: float = 60.0,
    should_stop: Callable[[], bool] = lambda: False,
    log: Log | None = None,
    progress: bool | None = None,
) -> Fitted:
    """Train `spec.method` on `data`.

    With `out` the run keeps checkpoints, history and `run.json` in that folder; the same call continues a run that
    was killed and ends as if it had not been, bit for bit. `encoder` replaces the encoder named in the spec by a
    module of the caller's. `should_stop` is asked after every step: when it says yes the run is saved and
    `TrainingInterrupted` raised.
    """
    started = time.monotonic()
    random_state = torch.get_rng_state()
    with Progress(progress) as bar:
        say = log or (bar.say if bar.shown else lambda line: print(line, file=sys.stderr))
        try:
            run, optimizer_state = _prepare(
                spec, data, encoder, out, overwrite, devices, accelerator, checkpoint_seconds, should_stop, say
            )
            while run.position.stage < len(run.method.stages):
                train_stage(run, run.method.stages[run.position.stage], optimizer_state, bar)
                optimizer_state = None
        finally:
            torch.set_rng_state(random_state)  # the caller's randomness is not ours to advance
    if run.method.class_means_head:
        with torch.no_grad():
            run.network.head.weight.copy_(training_class_means(run.network, data, run.device))  # type: ignore[operator,union-attr]
    run.network.requires_grad_(True).eval().to("cpu")
    if run.precision == "64":
        run.network.float()
    return Fitted(
        network=run.network,
        spec=spec,
        data=data,
        history=run.history.records,
        findings=run.findings,
        key=run.key,
        precision=run.precision,
        batch_size=run.plan.batch_size,
        seconds=time.monotonic() - started,
    )


def _prepare(
    spec: TrainSpec,
    data: TrainData,
    encoder: nn.Module | None,
    out: Path | None,
    overwrite: bool,
    devices: int,
    accelerator: str,
    checkpoint_seconds: float,
    should_stop: Callable[[], bool],
    log: Log,
) -> tuple[Run, dict[str, Any] | None]:
    method = get_method(spec.method)
    key = spec.key(data=data.fingerprint, custom_encoder=None if encoder is None else repr(encoder))
    settled = {} if out is None else claim_folder(out, key, spec, overwrite=overwrite)
    network = _initial_network(spec, data, encoder)
    fabric = _launch(devices, accelerator, "32")
    plan = BatchPlan.of(len(data.x), spec.batch_size, fabric.world_size)
    recipe = data.recipe(spec.augmentation)
    precision = settled.get("precision") or _settle_precision(spec, data, network, plan, recipe, fabric.device)
    if out is not None and fabric.is_global_zero and "precision" not in settled:
        write_json(out / RUN_FILE, {**settled, "precision": precision})
    if precision != "32":
        fabric = _launch(devices, accelerator, precision)
    if precision == "64":
        network.double()
    if precision == "bf16":
        network.to(memory_format=torch.channels_last)  # type: ignore[call-overload]  # the stubs lack this form
    run = Run(
        spec=spec,
        method=method,
        data=data,
        network=network.to(fabric.device),
        fabric=fabric,
        plan=plan,
        precision=precision,
        recipe=recipe,
        key=key,
        history=History(out if fabric.is_global_zero else None),
        checkpoints=None if out is None else Checkpoints(out, key, log),
        log=log if fabric.is_global_zero else lambda line: None,
        should_stop=should_stop,
        checkpoint_seconds=checkpoint_seconds,
    )
    return run, _resume(run)


def _initial_network(spec: TrainSpec, data: TrainData, encoder: nn.Module | None) -> Network:
    method = get_method(spec.method)
    torch.manual_seed(derive_seed(spec.seed, "weights"))
    return build_network(
        encoder=spec.encoder if encoder is None else encoder,
        input_shape=data.input_shape,
        n_classes=data.n_classes,
        head=method.head,
        projection_dim=spec.projection_dim if method.projector else None,
        temperature=spec.temperature,
    )


def _launch(devices: int, accelerator: str, precision: str) -> Fabric:
    with warnings.catch_warnings():
        # Fabric advises on hardware that is not there; what is used is said in the run's own words.
        warnings.filterwarnings("ignore", module="lightning_fabric")
        fabric = Fabric(
            accelerator=accelerator,
            devices=devices,
            strategy="ddp" if devices > 1 else "auto",
            precision=_FABRIC_PRECISION[precision],  # type: ignore[arg-type]
        )
        fabric.launch()
    return fabric


def _settle_precision(
    spec: TrainSpec, data: TrainData, network: Network, plan: BatchPlan, recipe: str, device: torch.device
) -> str:
    if spec.precision != "auto":
        return spec.precision
    indices = np.arange(min(PROBE_IMAGES, plan.batch_size))
    views, _ = batch_of_views(data, indices, recipe, spec.seed, (0, 0, 0), device)
    return choose_precision(network, views, ("logits",), device)


def _resume(run: Run) -> dict[str, Any] | None:
    """Puts the run where its last good checkpoint stands; returns the optimiser's state, if within a stage."""
    state = None if run.checkpoints is None else run.checkpoints.load(run.device)
    if state is None:
        run.history.restore([])
        run.tell(_examine(run))
        return None
    run.network.load_state_dict(state["network"])
    run.position = Position(**state["position"])
    run.findings = [Finding.from_dict(finding) for finding in state["findings"]]
    run.best_state = state["best_state"]
    run.history.restore(state["history"])
    run.log(f"Continuing at epoch {run.position.epoch + 1}, step {run.position.step + 1} (run {run.key}).")
    optimizer_state: dict[str, Any] | None = state["optimizer"]
    return optimizer_state


def _examine(run: Run) -> list[Finding]:
    data = run.data
    empty = data.x[:0], data.y[:0]
    return check_data(
        data.x,
        data.y,
        empty[0] if data.x_held is None else data.x_held,
        empty[1] if data.y_held is None else data.y_held,
        n_classes=data.n_classes,
        batch_size=run.plan.batch_size,
        method_uses_positives=any(term.loss in ("supcon", "esupcon") for s in run.method.stages for term in s.terms),
        prototypes=data.n_classes if any(t.loss == "esupcon" for s in run.method.stages for t in s.terms) else None,
        prototype_weight=run.spec.prototype_weight,
    )
