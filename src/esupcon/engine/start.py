"""How a run starts, or starts again: folder, network, processes, precision, the last good checkpoint."""

from __future__ import annotations

import logging
import os
import warnings
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from lightning_fabric import Fabric
from torch import Tensor, nn

from esupcon.doctor import Finding, check_data
from esupcon.engine.bfloat16 import bfloat16_works
from esupcon.engine.checkpoints import Checkpoints
from esupcon.engine.data import BatchPlan, TrainData, batch_of_views
from esupcon.engine.first_stage import take_first_stage
from esupcon.engine.history import History
from esupcon.engine.objective import check_losses
from esupcon.engine.run import RUN_FILE, Log, Position, Run, claim_folder
from esupcon.engine.seeding import derive_seed
from esupcon.engine.speed import choose_precision
from esupcon.files import write_json
from esupcon.methods import get_method
from esupcon.models import Network, build_network
from esupcon.spec import TrainSpec, key_of

# For float64 the network and its input are converted here: Fabric's own double precision would round the outputs
# to float32 before the loss sees them.
_FABRIC_PRECISION = {"32": "32-true", "bf16": "bf16-mixed", "64": "32-true"}
PROBE_IMAGES = 64


def start(
    spec: TrainSpec,
    data: TrainData,
    *,
    encoder: nn.Module | None,
    initial: Mapping[str, Tensor] | None,
    out: Path | None,
    shared_stage: Path | None,
    overwrite: bool,
    devices: int,
    accelerator: str,
    checkpoint_seconds: float,
    should_stop: Callable[[], bool],
    log: Log,
) -> tuple[Run, dict[str, Any] | None]:
    """The run where it stands, and the optimiser's state if it stands within a stage."""
    check_losses(get_method(spec.method).stages)
    key = key_of(
        {"spec": spec.model_dump(), "data": data.fingerprint, "encoder": None if encoder is None else repr(encoder)}
    )
    network = _initial_network(spec, data, encoder)
    if initial is not None:
        network.load_state_dict(initial)
    if _n_processes(devices) == (1, 1):
        settled = {} if out is None else claim_folder(out, key, spec, overwrite=overwrite)
        precision = _settle_precision(spec, data, network, settled)
        if out is not None:
            write_json(out / RUN_FILE, {**settled, "precision": precision})
        fabric = _launch(devices, accelerator, precision)
    else:
        # All processes must agree without having spoken: a rule, not a measurement.
        fast = "bf16" if torch.cuda.is_available() and torch.cuda.is_bf16_supported() else "32"
        precision = fast if spec.precision == "auto" else spec.precision
        fabric = _launch(devices, accelerator, precision)
        _claim(fabric, out, key, spec, overwrite)
    if precision == "64":
        network.double()
    if not data.is_table:
        network.to(memory_format=torch.channels_last)  # type: ignore[call-overload]  # the stubs lack this form
    if fabric.world_size > 1 and fabric.device.type == "cuda":
        network = nn.SyncBatchNorm.convert_sync_batchnorm(network)
    first = fabric.is_global_zero
    run = Run(
        spec=spec,
        method=get_method(spec.method),
        data=data,
        network=network.to(fabric.device),
        fabric=fabric,
        plan=BatchPlan.of(len(data.x), spec.batch_size, fabric.world_size),
        precision=precision,
        recipe=data.recipe(spec.augmentation),
        key=key,
        history=History(out if first else None),
        checkpoints=None if out is None else Checkpoints(out, key, log),
        log=log if first else lambda line: None,
        should_stop=should_stop,
        checkpoint_seconds=checkpoint_seconds,
        shared_stage=shared_stage,
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


def _n_processes(devices: int) -> tuple[int, int]:
    """Processes on this machine, and machines: as torchrun started them, or as asked for."""
    if "LOCAL_WORLD_SIZE" in os.environ and "WORLD_SIZE" in os.environ:
        here = int(os.environ["LOCAL_WORLD_SIZE"])
        return here, int(os.environ["WORLD_SIZE"]) // here
    return devices, 1


def _launch(devices: int, accelerator: str, precision: str) -> Fabric:
    here, machines = _n_processes(devices)
    for name in ("lightning.fabric", "lightning_fabric"):  # its own lines would stand between ours
        logging.getLogger(name).setLevel(logging.ERROR)
    with warnings.catch_warnings():
        # Fabric advises on hardware that is not there; what is used is said in the run's own words.
        warnings.filterwarnings("ignore", module="lightning_fabric")
        fabric = Fabric(
            accelerator=accelerator,
            devices=here,
            num_nodes=machines,
            strategy="ddp" if here * machines > 1 else "auto",
            precision=_FABRIC_PRECISION[precision],  # type: ignore[arg-type]
        )
        fabric.launch()
    return fabric


def _claim(fabric: Fabric, out: Path | None, key: str, spec: TrainSpec, overwrite: bool) -> None:
    """The first process claims the folder; the others learn whether it could."""
    problem = None
    if out is not None and fabric.is_global_zero:
        try:
            claim_folder(out, key, spec, overwrite=overwrite)
        except ValueError as error:
            problem = str(error)
    problem = fabric.broadcast(problem)
    if problem is not None:
        raise ValueError(problem)


def _settle_precision(spec: TrainSpec, data: TrainData, network: Network, settled: dict[str, Any]) -> str:
    """As asked for; as an earlier process of this run has settled it; else measured."""
    if spec.precision == "bf16" and not torch.cuda.is_available() and not bfloat16_works():
        raise ValueError(
            "precision bf16 needs a processor that computes in bfloat16; this one stops with an illegal instruction. "
            "Use precision 32, or try ONEDNN_MAX_CPU_ISA=AVX512_CORE_BF16 in the environment."
        )
    if spec.precision != "auto":
        return spec.precision
    if "precision" in settled:
        if settled["precision"] not in _FABRIC_PRECISION:
            raise ValueError(
                f"{RUN_FILE} names the precision {settled['precision']!r:.100}; expected one of "
                f"{', '.join(_FABRIC_PRECISION)}. It is damaged: pass --overwrite to start over."
            )
        return str(settled["precision"])
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    indices = np.arange(min(PROBE_IMAGES, len(data.x)))
    views, _ = batch_of_views(data, indices, data.recipe(spec.augmentation), spec.seed, (0, 0, 0), torch.device("cpu"))
    return choose_precision(network, views, ("logits",), device)


def _resume(run: Run) -> dict[str, Any] | None:
    """Puts the run where its last good checkpoint stands; returns the optimiser's state, if within a stage."""
    state = None if run.checkpoints is None else run.checkpoints.load(run.device)
    if state is None:
        if take_first_stage(run):
            return None
        run.history.restore([])
        run.tell(_examine(run))
        return None
    try:
        optimizer_state = _restore(run, state)
    except (KeyError, TypeError, ValueError, AttributeError, RuntimeError) as error:
        assert run.checkpoints is not None
        reason = str(error).partition("\n")[0]
        raise ValueError(
            f"the checkpoint in {run.checkpoints.folder} is not one that this esupcon can continue ({reason}). "
            "Pass --overwrite to start over."
        ) from error
    run.log(f"Continuing at epoch {run.position.epoch + 1}, step {run.position.step + 1} (run {run.key}).")
    return optimizer_state


def _restore(run: Run, state: dict[str, Any]) -> dict[str, Any] | None:
    run.network.load_state_dict(state["network"])
    run.position = Position(**state["position"])
    run.findings = [Finding.from_dict(finding) for finding in state["findings"]]
    run.unrecorded = [Finding.from_dict(finding) for finding in state["unrecorded"]]
    run.best_state, run.watch_state, run.core_state = state["best_state"], state["watch"], state.get("core")
    run.history.restore(state["history"])
    optimizer_state: dict[str, Any] | None = state["optimizer"]
    return optimizer_state


def _examine(run: Run) -> list[Finding]:
    losses = {term.loss for stage in run.method.stages for term in stage.terms}
    return check_data(
        run.data.x,
        run.data.y,
        run.data.x_held,
        run.data.y_held,
        n_classes=run.data.n_classes,
        batch_size=run.plan.batch_size,
        method_uses_positives=bool(losses & {"supcon", "spce", "esupcon"}),
        prototypes=run.data.n_classes if "esupcon" in losses else None,
        prototype_weight=run.spec.prototype_weight,
    )
