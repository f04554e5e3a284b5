"""Reading a store: damage costs its own entry and is named, and every file is read once."""

from __future__ import annotations

import shutil
from pathlib import Path

import numpy as np
import pytest
from report_stores import Filler, note_plan, row, write_run

from esupcon.experiments.store import Store, export_study
from esupcon.probability import Predictions
from esupcon.report.content import MOST_COLUMNS, read
from esupcon.report.figures import sections
from esupcon.report.write import FORMATS, render


def test_damaged_runs_and_plans_are_left_out_and_named(store: Store, fill: Filler) -> None:
    rows = fill({"ce": [70.0, 71.0, 72.0], "esupcon": [75.0, 76.0, 77.0]})
    broken, changed, missing = rows[0], rows[1], rows[4]
    (store.run_folder(broken.key) / "result.json").write_text("{")
    path = store.run_folder(changed.key) / "result.json"
    path.write_text(path.read_text().replace('"accuracy": 0.71', '"accuracy": 0.99'))
    (store.run_folder(missing.key) / "result.json").unlink()
    (store.root / "plans" / "bad.json").write_text('{"table": "x", "profile": "y", "rows": [{"key": 3}]}')
    (store.root / "plans" / "worse.json").write_text("no")
    unplanned = row("spce", 9)
    write_run(store, unplanned)
    content = read(store.root)
    assert len(content.problems) == 6 and all(line.isprintable() for line in content.problems)
    for name in (broken.key, changed.key, missing.key, "bad.json", "worse.json", unplanned.key):
        assert any(name in line for line in content.problems), name
    (table,) = content.tables
    assert (table.n_done, len(table.rows)) == (3, 6)
    assert content.completeness == "3 of 6 planned runs finished."
    reasons = dict(content.unfinished)
    assert reasons["CE on CIFAR-10, full, seed 0"].startswith("damaged: ")


def test_tables_are_selected_by_name_or_name_and_profile(whole_store: Path) -> None:
    for name in ("imbalanced", "imbalanced-cpu"):
        content = read(whole_store, [name])
        assert [table.plan.table for table in content.tables] == ["imbalanced"] and content.n_planned == len(
            content.runs
        ) == 6
    with pytest.raises(ValueError, match=r"has no table noisy\. It has full"):
        read(whole_store, ["noisy"])


def test_findings_are_grouped_most_severe_first(store: Store) -> None:
    def finding(code: str, severity: str) -> dict[str, str]:
        return {"code": code, "severity": severity, "message": f"{code} {severity}", "remedy": "Do this."}

    rows = [row("ce", seed) for seed in range(3)]
    note_plan(store, rows)
    found = [finding("overfitting", "note"), finding("overfitting", "warning"), finding("imbalance", "note")]
    for one, findings in zip(rows, (found, found[2:], [finding("collapse", "error")]), strict=True):
        write_run(store, one, findings=findings)
    groups = read(store.root).findings
    assert [(one.code, one.severity, len(runs)) for one, runs in groups] == [
        ("collapse", "error", 1),
        ("overfitting", "warning", 1),
        ("imbalance", "note", 2),
    ]


def test_study_is_reported_like_its_store(whole_store: Path, tmp_path: Path) -> None:
    study = tmp_path / "study.jsonl"
    export_study(Store(whole_store), study)
    store, found = read(whole_store), read(study)
    assert found.problems == [] and found.tables == store.tables and found.findings == store.findings
    assert render(found, "csv") == render(store, "csv")
    drawn = {section.key for section in sections(found.drawn, found.methods)}
    assert drawn == {"reliability", "curves"}, "a study has no arrays"


# --- Files of single runs --------------------------------------------------------------------------------------------


def predictions_with(n_classes: int) -> Predictions:
    return Predictions(np.zeros((8, n_classes), np.float32), np.arange(8) % min(n_classes, 8))


Z, LABELS = np.ones((9, 4), np.float16), np.zeros(9, np.int64)
DAMAGED_ARRAYS = {
    "other shapes": {"z": Z, "labels": LABELS[:3]},
    "not finite": {"z": np.full_like(Z, np.nan), "labels": LABELS},
    "negative labels": {"z": Z, "labels": LABELS - 1},
    "labels out of range": {"z": Z, "labels": LABELS + 2**40},
    "other prototypes": {"z": Z, "labels": LABELS, "prototypes": np.ones((3, 9))},
}


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        *(("predictions.npz", kind) for kind in ("flipped bit", "text", "30,000 classes")),
        *(("embedding.npz", kind) for kind in ("flipped bit", "text", *DAMAGED_ARRAYS)),
    ],
)
def test_damaged_file_costs_its_own_entry_and_is_named(store: Store, fill: Filler, name: str, kind: str) -> None:
    rows = fill({"ce": [70.0], "esupcon": [75.0]})
    path = store.run_folder(rows[0].key) / name
    if kind == "flipped bit":
        damaged = bytearray(path.read_bytes())
        damaged[len(damaged) // 2] ^= 1
        path.write_bytes(damaged)
    elif kind == "text":
        path.write_bytes(b"PK\x03\x04 broken")
    elif kind == "30,000 classes":
        predictions_with(30_000).save(path)
    else:
        np.savez(path, **DAMAGED_ARRAYS[kind])
    content = read(store.root)
    (line,) = content.problems
    assert str(store.run_folder(rows[0].key) / name) in line and "cannot be read and is left out" in line
    (column,) = content.drawn
    drawn = [m for m, run in column.runs.items() if (run.confusion if name == "predictions.npz" else run.embedding)]
    assert drawn == ["esupcon"] and len(content.runs) == 2
    for form in FORMATS:
        assert form == "csv" or name.encode() in render(content, form).replace(b"\\", b"")  # CSV holds numbers only


def test_report_of_30000_classes_needs_little_memory(store: Store) -> None:
    one = row("ce", 0)
    note_plan(store, [one])
    folder = write_run(store, one, classes=[f"c{k}" for k in range(30_000)], n_test=8, embedding=False)
    predictions_with(30_000).save(folder / "predictions.npz")
    content = read(store.root)
    assert content.problems == []
    (section,) = [section for section in sections(content.drawn, content.methods) if section.key == "confusion"]
    (trace,) = section.options[0].cards[0].figure["data"]
    assert len(trace["z"]) == 20 and len(trace["z"][0]) == 21


# --- Which runs are drawn --------------------------------------------------------------------------------------------


def test_drawn_runs_have_the_seed_that_most_methods_have(store: Store, fill: Filler) -> None:
    fill({"ce": [None, 70.0], "esupcon": [75.0, 76.0], "spce": [None, None]})
    (column,) = read(store.root).drawn
    assert set(column.runs) == {"ce", "esupcon"}
    assert column.note == "Runs of seed 1. SPCE not finished."


def test_large_store_is_drawn_in_part(store: Store) -> None:
    rows = [row("ce", 0, table=f"t{t}", setting=f"N={n}{t}") for t in range(2) for n in range(20)]
    source = write_run(store, rows[0], n_test=12)
    for one in rows[1:]:
        write_run(store, one, n_test=12, predictions=False, embedding=False)
        shutil.copy(source / "embedding.npz", store.run_folder(one.key) / "embedding.npz")
    for t in range(2):
        note_plan(store, [one for one in rows if one.table == f"t{t}"])
    content = read(store.root)
    assert len(content.drawn) == MOST_COLUMNS
    assert {column.label[:11] for column in content.drawn} == {"Title of t0", "Title of t1"}, "every table has its turn"
    (maps,) = [section for section in sections(content.drawn, content.methods) if section.key == "embedding"]
    assert len(maps.options) == 4


def test_columns_with_the_same_runs_are_drawn_once(whole_store: Path) -> None:
    labels = [column.label for column in read(whole_store).drawn]
    assert "Fully labelled: CIFAR-10, N=2K" in labels and not any("Calibration" in label for label in labels)
