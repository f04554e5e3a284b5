"""Stores of runs for tests, written without training: every file that a run leaves, with figures the tests choose."""

from __future__ import annotations

import json
import zlib
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np

from esupcon.experiments.plan import Plan, Row
from esupcon.experiments.store import Store
from esupcon.probability import Predictions, paper_calibration
from esupcon.spec import RunSpec, TrainSpec
from stored_results import figures, make_result

CLASSES = ("cat", "dog", "owl", "yak")
METHODS = ("ce", "supcon_ce", "esupcon")
HOSTILE = "<script>alert(1)</script>"


def row(method: str = "ce", seed: int = 0, *, dataset: str = "cifar10", setting: str = "full", **given: Any) -> Row:
    """Return a planned run; `given` are fields of Row and training settings."""
    place = {"table": "full", "profile": "cpu", "dataset": dataset, "setting": setting, "method": method, "seed": seed}
    place |= {name: given.pop(name) for name in list(given) if name in Row.model_fields}
    n_train = None if setting == "full" else 1 + zlib.crc32(setting.encode())  # settings differ, so must keys
    train = TrainSpec(method=method, seed=seed, **{"threads": 1, **given})
    return Row(**place, spec=RunSpec(source=dataset, n_train=n_train, train=train))


def write_run(
    store: Store,
    one: Row,
    *,
    accuracy: float | None = 0.75,
    held_out_accuracy: float | None = None,
    classes: Sequence[str] = CLASSES,
    findings: Sequence[Mapping[str, str]] = (),
    n_test: int = 80,
    epochs: int | None = 4,
    held_out: bool = True,
    predictions: bool = True,
    embedding: bool = True,
    batch_size: int = 64,
    **provenance: Any,
) -> Path:
    """Write the folder of a run; None and False leave a file out."""
    folder = store.run_folder(one.key)
    folder.mkdir(parents=True, exist_ok=True)
    rng = np.random.default_rng(int(one.key, 16))
    k, n = len(classes), n_test
    labels = np.arange(n) % k
    logits = rng.normal(size=(n, k))
    logits[np.arange(n), labels] += 2.0
    if predictions:
        Predictions(logits, labels).save(folder / "predictions.npz")
    if embedding:
        dim = max(32, k)
        centres = np.linalg.qr(rng.normal(size=(dim, dim)))[0][:k]
        z = centres[labels] + 0.12 * rng.normal(size=(n, dim))
        arrays = {"z": (z / np.linalg.norm(z, axis=1, keepdims=True)).astype(np.float16), "labels": labels}
        if one.method != "ce":
            arrays["prototypes"] = centres.astype(np.float16)
        np.savez_compressed(folder / "embedding.npz", **arrays)
    if epochs is not None:
        stages = [0] * epochs + ([1] if one.method.startswith("supcon_ce") else [])
        with (folder / "history.jsonl").open("w") as history, (folder / "timing.jsonl").open("w") as timing:
            for i, stage in enumerate(stages):
                at, watched = {"stage": stage, "epoch": i}, 0.5 + 0.05 * i if held_out else None
                print(json.dumps({**at, "loss": 3.0 / (i + 1), "held_out_accuracy": watched}), file=history)
                print(json.dumps({**at, "seconds": 2.0, "images_per_second": 320.0}), file=timing)
    hits = logits.argmax(axis=1) == labels
    per_class = [
        {"name": name, "n": int((labels == c).sum()), "accuracy": float(hits[labels == c].mean()) if c < n else None}
        for c, name in enumerate(classes)
    ]
    paper = None
    if predictions:
        with suppress(ValueError):
            paper = paper_calibration(Predictions(logits, labels))
    usual = {"commit": "abc123", "peak_memory_bytes": 500 * 2**20, "seconds": 13.5, "train_seconds": 12.5}
    usual["versions"] = {"esupcon": "0.1.0", "torch": "2.13.0", "platform": "Linux"}
    make_result(
        one.spec,
        test=None if accuracy is None else figures(accuracy, n, per_class),
        held_out=None if held_out_accuracy is None else figures(held_out_accuracy),
        paper=paper,
        classes=classes,
        findings=findings,
        batch_size=batch_size,
        **{**usual, **provenance},
    ).write(folder)
    return folder


def note_plan(store: Store, rows: Sequence[Row], *, title: str = "", notes: Sequence[str] = (), **extra: Any) -> None:
    about = {"title": title or f"Title of {rows[0].table}", "paper": "table 1", "notes": tuple(notes)}
    command = extra.pop("command", "esupcon reproduce full")
    about |= {"command": command, "asked": datetime.now(UTC).isoformat()}
    store.write_plan(Plan(table=rows[0].table, profile=rows[0].profile, rows=tuple(rows), **{**about, **extra}))


Filler = Callable[..., list[Row]]


def write_everything(root: Path, classes: Sequence[str] = CLASSES) -> Store:
    """A store that has something of every part of a report."""
    store = Store(root)
    store.create()
    rng = np.random.default_rng(0)
    message = f"the smallest class, {classes[0]}, has 7."
    finding = {"code": "imbalance", "severity": "warning", "message": message, "remedy": "Look at each class."}

    def write(rows: Sequence[Row], left: Mapping[str, Any] | None = None, **plan: Any) -> None:
        note_plan(store, rows, **plan)
        for one in rows:
            base = {"ce": 0.70, "supcon_ce": 0.68, "esupcon": 0.78}[one.method]
            write_run(store, one, classes=classes, accuracy=base + 0.02 * rng.random(), **(left or {}))

    papers = {"ce": 95.39, "supcon_ce": 95.5, "esupcon": 95.9}
    write(
        [
            row(m, s, dataset=d, setting=n, reduced=r, paper_accuracy=papers[m])
            for d, n, r in (("cifar10", "full", "2,625 samples"), ("cifar10", "N=2K", None), ("cifar100", "N=8K", None))
            for m in METHODS
            for s in range(3)
        ],
        title="Fully labelled",
    )
    write(
        [row(m, s, table="imbalanced", setting="IR=0.05") for m in METHODS for s in range(2)],
        {"findings": [finding], "held_out": False},
        title="Half of the classes scarce",
        notes=[f"A note on {classes[0]}."],
    )
    grid = [{"temperature": t, "lr": lr, "batch_size": b} for t in (0.1, 0.3) for lr in (0.1, 0.3) for b in (64, 256)]
    write(
        [
            row(m, 0, table="sensitivity", setting=", ".join(f"{k}={v}" for k, v in point.items()), **point)
            for point in grid
            for m in METHODS
        ],
        title="Sensitivity",
    )
    write(
        [
            row(m, 0, table="complexity", setting=f"batch_size={b}", batch_size=b, steps=20)
            for b in (64, 256)
            for m in METHODS
        ],
        title="Cost of a step",
        measure="cost",
    )
    rows = [row(m, s, table="calibration", setting="N=2K", paper_ece=0.03) for m in METHODS for s in range(3)]
    write(rows, title="Calibration", measure="ece")
    return store
