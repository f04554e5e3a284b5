"""Compare the resolved settings of every run of the shipped tables with a stored list, so that no change alters them.

`plans.json` was written before the redesign of version 0.2. Rewrite it only to change the paper's settings on purpose:
`python tests/experiments/test_plan_snapshot.py`.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from esupcon.experiments.plan import SETTINGS, make_plan, shipped
from esupcon.methods import METHODS
from esupcon.spec import RunSpec, TrainSpec

SNAPSHOT = Path(__file__).with_name("plans.json")
# Fields that were added after the snapshot, with the value that keeps the old behaviour.
ADDED_LATER: dict[str, Any] = {
    **{"threads": 1, "content": None, "processes": 1, "objects": None, "cross_fit": False, "encoder_lr": 1.0},
    **{"contrast_weight": 1.0, "logit_adjustment": 0.0, "ce_power": 0.0, "mixup": 0.0},
    **{"label_noise": None, "images_per_class": None, "pretrained": True},
    **{"schedule": "cosine", "label_smoothing": 0.0, "neck": "none", "train_blocks": None, "cached_views": 4},
    **{
        "priors": "training",
        "prototype_temperature": None,
        "prototype_share": None,
        "prototype_average": "class",
        "test_time_flip": False,
    },
}


def snapshot() -> dict[str, Any]:
    """Return all runs as `table/profile: [dataset, setting, method, seeds, index of settings]`.

    `settings` lists each distinct set of settings once; `common` holds the values that all of them share.
    """
    settings: list[dict[str, Any]] = []
    plans: dict[str, list[list[Any]]] = {}
    for profile in shipped("profiles"):
        for table in shipped("tables"):
            runs: dict[tuple[str, str, str, int], list[int]] = {}
            for row in make_plan(table, profile).rows:
                resolved = resolved_settings(row.spec)
                if resolved not in settings:
                    settings.append(resolved)
                runs.setdefault((row.dataset, row.setting, row.method, settings.index(resolved)), []).append(row.seed)
            plans[f"{table}/{profile}"] = [[*run[:3], seeds, run[3]] for run, seeds in runs.items()]
    common = {name: value for name, value in settings[0].items() if all(one[name] == value for one in settings)}
    own = [{name: value for name, value in one.items() if name not in common} for one in settings]
    return {"common": common, "settings": own, "plans": plans}


def resolved_settings(spec: RunSpec) -> dict[str, Any]:
    """Return everything that decides a run except data set, method and seed, as plain values."""
    train = spec.train
    run = spec.model_dump(exclude={"source", "train", "plugins"})
    settings = {**run, **train.model_dump(exclude={"method", "seed", "lr"})}
    settings["data"] = spec.data.model_dump(exclude_defaults=True)
    # The peak rate of each stage says what lr=None means.
    settings["stage_lr"] = [train.stage_lr(stage, train.batch_size) for stage in METHODS[train.method].stages]
    for name, value in ADDED_LATER.items():
        assert settings.pop(name, value) == value, f"{name}: {settings}"
    return settings


def test_every_run_of_the_shipped_tables_keeps_its_settings() -> None:
    stored, found = (_expand(content) for content in (json.loads(SNAPSHOT.read_text()), snapshot()))
    assert found.keys() == stored.keys()
    for name, runs in stored.items():
        assert found[name] == runs, name


def test_no_default_of_the_package_reaches_a_plan() -> None:
    """A new training setting needs an entry in SETTINGS: the value that keeps the tables of the paper as they are."""
    assert SETTINGS.keys() == TrainSpec.model_fields.keys() - {"method", "seed"}


def _expand(content: dict[str, Any]) -> dict[str, list[list[Any]]]:
    settings = [{**content["common"], **own} for own in content["settings"]]
    return {name: [[*run[:4], settings[run[4]]] for run in runs] for name, runs in content["plans"].items()}


if __name__ == "__main__":
    lines = [f'"common": {json.dumps(snapshot()["common"])}']
    lines.append('"settings": [\n' + ",\n".join(json.dumps(one) for one in snapshot()["settings"]) + "\n]")
    plans = [
        f"{json.dumps(name)}: [\n" + ",\n".join(json.dumps(run) for run in runs) + "\n]"
        for name, runs in snapshot()["plans"].items()
    ]
    lines.append('"plans": {\n' + ",\n".join(plans) + "\n}")
    SNAPSHOT.write_text("{\n" + ",\n".join(lines) + "\n}\n")
