"""Stand-in for esupcon.training.pipeline.train until it lands; to be deleted."""
# mypy: ignore-errors

from __future__ import annotations

import shutil
from contextlib import suppress
from pathlib import Path
from typing import Any

from esupcon.probability import Figures, Predictions, paper_calibration
from esupcon.spec import RunSpec
from esupcon.training.result import PREDICTIONS_FILE, Result


def train(run: RunSpec, out: Path, *, keep_model: bool = True, command: str | None = None, **more: Any) -> Result:
    import torch  # noqa: PLC0415

    from esupcon.data import source_digest  # noqa: PLC0415
    from esupcon.data.scenarios import Scenario  # noqa: PLC0415
    from esupcon.pipeline.prepare import DataOptions  # noqa: PLC0415
    from esupcon.pipeline.training import train as old_train  # noqa: PLC0415

    with suppress(ValueError, FileNotFoundError):
        return Result.read(out)
    spec = run.model_copy(update={"content": source_digest(run.source, run.data)})
    given = run.data.model_dump(exclude={"include_clutter", "max_pixels"})
    threads = torch.get_num_threads()
    torch.set_num_threads(run.train.threads or threads)  # also while it measures
    try:
        old = old_train(
            run.source,
            run.train,
            out=out,
            scenario=Scenario(**{**run.scenario, "seed": run.train.seed}),
            data=DataOptions(**given, data_dir=run.data.data_dir, workers=run.data.workers),
            validation_fraction=run.validation_fraction,
            command=command,
            **more,
        )
    finally:
        torch.set_num_threads(threads)
    if not keep_model:
        shutil.rmtree(out / "model", ignore_errors=True)
    outcome, provenance = old.outcome, dict(old.provenance)
    provenance["reused_seconds"] = provenance.pop("taken_seconds")
    provenance["device"] = f"cpu x {provenance.pop('devices')}"
    figures = dict(outcome["metrics"])
    for part in [part for part, one in figures.items() if one is not None]:
        per_class = [{"name": one["class"], **one} for one in figures[part]["per_class"]]
        for one in per_class:
            del one["class"]
        figures[part] = Figures.model_validate({**figures[part], "per_class": per_class})
    paper = None
    with suppress(OSError, ValueError):
        paper = paper_calibration(Predictions.load(out / PREDICTIONS_FILE), n_resamples=10)
    record = outcome["preparation"]
    result = Result.model_validate(
        {
            "key": spec.key,
            "run": spec,
            "precision_reason": "",
            "encoder": run.train.encoder,
            "augmentation": outcome["recipe"],
            "batch_size": outcome["batch_size"],
            "data": {
                **{name: outcome["data"][name] for name in ("name", "fingerprint", "classes", "n_skipped")},
                "input_shape": outcome["data"]["image_shape"],
            },
            "preparation": {**record, "class_counts": tuple(record["scenario"]["label_counts_after"].values())},
            "metrics": figures,
            "calibration": {"paper": paper},
            "findings": outcome["findings"],
            "provenance": provenance,
        }
    )
    result.write(out)
    return Result.read(out)
