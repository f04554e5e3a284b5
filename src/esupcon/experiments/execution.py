"""One run, from its specification to a complete folder."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

from esupcon.classifier import MODEL_FOLDER
from esupcon.data.scenarios import Scenario
from esupcon.experiments.spec import RunSpec
from esupcon.experiments.store import write_spec
from esupcon.pipeline.prepare import DataOptions
from esupcon.pipeline.training import Result, train


def execute(
    spec: RunSpec,
    folder: Path,
    *,
    data_dir: str | None,
    keep_model: bool,
    command: str | None,
    shared_stage: Path | None = None,
    should_stop: Callable[[], bool],
    log: Callable[[str], None],
) -> Result:
    """Trains and measures in `folder`, taking up what an earlier process left there; ends with its specification."""
    folder.mkdir(parents=True, exist_ok=True)
    settings: dict[str, Any] = {**spec.scenario, "seed": spec.train.seed}
    result = train(
        spec.dataset,
        spec.train,
        out=folder,
        scenario=Scenario(**settings),
        data=data_options(spec, data_dir),
        validation_fraction=spec.validation_fraction,
        shared_stage=shared_stage,
        should_stop=should_stop,
        log=log,
        progress=False,
        command=command,
    )
    if not keep_model:
        shutil.rmtree(folder / MODEL_FOLDER, ignore_errors=True)
    write_spec(folder, spec)
    return result


def data_options(spec: RunSpec, data_dir: str | None, workers: int | None = 1) -> DataOptions:
    """How a run reads its data. One process decodes: the others of its machine are busy with runs of their own."""
    options: dict[str, Any] = {**spec.data, "data_dir": data_dir, "workers": workers}
    return DataOptions(**options)
