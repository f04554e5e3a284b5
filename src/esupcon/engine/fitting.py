"""From a specification and data to a trained network."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from esupcon.doctor import Finding
from esupcon.engine.data import TrainData
from esupcon.engine.evaluation import outputs_of, training_class_means
from esupcon.engine.first_stage import keep_first_stage
from esupcon.engine.loop import train_stage
from esupcon.engine.progress import Progress
from esupcon.engine.run import Log
from esupcon.engine.spec import TrainSpec
from esupcon.engine.start import start
from esupcon.models import Network


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
    initial: Mapping[str, Tensor] | None = None,
    out: Path | None = None,
    shared_stage: Path | None = None,
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
    module of the caller's; `initial` is a network's state to start from. `shared_stage` is a file in which a first
    stage that other methods share is found, or left for them. `should_stop` is asked after every step: when
    it says yes the run is saved and `TrainingInterrupted` raised.
    """
    started = time.monotonic()
    random_state = torch.get_rng_state()
    with Progress(progress) as bar:
        say = log or (bar.say if bar.shown else lambda line: print(line, file=sys.stderr))
        try:
            run, optimizer_state = start(
                spec,
                data,
                encoder=encoder,
                initial=initial,
                out=out,
                shared_stage=shared_stage,
                overwrite=overwrite,
                devices=devices,
                accelerator=accelerator,
                checkpoint_seconds=checkpoint_seconds,
                should_stop=should_stop,
                log=say,
            )
            while run.position.stage < len(run.method.stages):
                train_stage(run, run.method.stages[run.position.stage], optimizer_state, bar)
                optimizer_state = None
                keep_first_stage(run)
        finally:
            torch.set_rng_state(random_state)  # the caller's randomness is not ours to advance
    if run.method.class_means_head:
        with torch.no_grad():
            run.network.head.weight.copy_(training_class_means(run.network, data, run.device))  # type: ignore[operator]
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
