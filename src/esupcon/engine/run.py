"""One run: what is fixed when it starts, and where it stands."""

from __future__ import annotations

import re
import shutil
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import torch
from lightning_fabric import Fabric

from esupcon.doctor import Finding, Watch
from esupcon.engine.checkpoints import Checkpoints
from esupcon.engine.core_record import CoreRecord
from esupcon.engine.data import BatchPlan, TrainData
from esupcon.engine.history import History
from esupcon.engine.objective import LossSettings
from esupcon.engine.spec import TrainSpec
from esupcon.files import quoted, read_json, write_json
from esupcon.methods import Method, Stage
from esupcon.models import Network

RUN_FILE = "run.json"
# What a process was writing beside its place when it was killed: files of a run, and the folder of its model.
_UNFINISHED = re.compile(r"\.(.+\.(json|jsonl|npz|pt)|model)\.[0-9a-f]{8}(\.new|\.old)?")
Log = Callable[[str], None]


class TrainingInterrupted(Exception):  # noqa: N818 - it is not an error: the run can go on
    """The run was asked to stop and has saved where it stands."""


class TrainingFailed(ValueError):  # noqa: N818
    """The run cannot go on; the message says why, and what to do."""


@dataclass
class Position:
    """Where the run stands: the next step to take, and what it has gathered on the way."""

    stage: int = 0
    epoch: int = 0
    step: int = 0
    loss_sum: float = 0.0
    best_accuracy: float = -1.0
    epochs_since_best: int = 0

    def as_dict(self) -> dict[str, Any]:
        return asdict(self)


@dataclass
class Run:
    spec: TrainSpec
    method: Method
    data: TrainData
    network: Network
    fabric: Fabric
    plan: BatchPlan
    precision: str
    recipe: str
    key: str
    history: History
    checkpoints: Checkpoints | None
    log: Log
    should_stop: Callable[[], bool]
    checkpoint_seconds: float
    findings: list[Finding] = field(default_factory=list)
    unrecorded: list[Finding] = field(default_factory=list)  # said since the last line of the history
    position: Position = field(default_factory=Position)
    best_state: dict[str, torch.Tensor] | None = None
    watch: Watch | None = None
    watch_state: dict[str, Any] | None = None  # of the checkpoint, until the stage it belongs to takes it
    shared_stage: Path | None = None  # where a first stage that other methods share is found, or left for them
    core: CoreRecord | None = None
    core_state: dict[str, Any] | None = None  # as watch_state

    @property
    def device(self) -> torch.device:
        return self.fabric.device

    @property
    def loss_settings(self) -> LossSettings:
        return LossSettings(
            temperature=self.spec.temperature,
            prototype_weight=self.spec.prototype_weight,
            spce_average=self.spec.spce_average,
            n_classes=self.data.n_classes,
        )

    def n_steps(self, stage: Stage) -> int:
        """Optimiser steps of a stage."""
        main = self.spec.steps or self.spec.epochs * self.plan.steps_per_epoch
        return max(1, round(main * stage.epochs))

    def tell(self, findings: list[Finding]) -> None:
        """Says each finding, and keeps it for the next line of the history."""
        for finding in findings:
            self.findings.append(finding)
            self.unrecorded.append(finding)
            self.log(str(finding))

    def save(self, optimizer_state: dict[str, Any] | None) -> None:
        if self.checkpoints is None or not self.fabric.is_global_zero:
            return
        state = {
            "network": self.network.state_dict(),
            "optimizer": optimizer_state,
            "position": self.position.as_dict(),
            "history": self.history.records,
            "findings": [finding.as_dict() for finding in self.findings],
            "unrecorded": [finding.as_dict() for finding in self.unrecorded],
            "best_state": self.best_state,
            "watch": None if optimizer_state is None or self.watch is None else self.watch.state_dict(),
            "core": None if optimizer_state is None or self.core is None else self.core.state_dict(),
        }
        place = self.position
        self.checkpoints.save(state, (place.stage * 1_000_000 + place.epoch) * 1_000_000 + place.step)


def claim_folder(folder: Path, key: str, spec: TrainSpec, *, overwrite: bool) -> dict[str, Any]:
    """Makes the folder this run's; returns what an earlier process of the same run has settled.

    A folder that holds another run is never continued: the error names the settings that differ.
    """
    folder.mkdir(parents=True, exist_ok=True)
    _sweep(folder)
    path = folder / RUN_FILE
    if path.exists() and not overwrite:
        known = read_json(path)
        if not isinstance(known, dict) or "key" not in known:
            raise ValueError(f"{path} does not describe a run. Choose another folder, or pass --overwrite.")
        if known["key"] != key:
            raise ValueError(
                f"{folder} holds another run: {_difference(known, spec)}. Choose another folder, or pass --overwrite."
            )
        return known
    if overwrite:
        for name in ("history.jsonl", "timing.jsonl", "checkpoint.json", "predictions.npz", "result.json"):
            (folder / name).unlink(missing_ok=True)
        for old in folder.glob("checkpoint-*.pt"):
            old.unlink(missing_ok=True)
    settled: dict[str, Any] = {"key": key, "spec": spec.model_dump()}
    write_json(path, settled)
    return settled


def _sweep(folder: Path) -> None:
    for path in folder.iterdir():
        if _UNFINISHED.fullmatch(path.name):
            if path.is_dir():
                shutil.rmtree(path, ignore_errors=True)
            else:
                path.unlink(missing_ok=True)


def _difference(known: dict[str, Any], spec: TrainSpec) -> str:
    before, now = known.get("spec"), spec.model_dump()
    if not isinstance(before, dict):
        return "its settings cannot be read"
    changed = [
        f"{name} was {quoted(before.get(name))}, now {now[name]}" for name in now if before.get(name) != now[name]
    ]
    return "; ".join(changed) or "its data differ"
