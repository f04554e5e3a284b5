"""A first stage that two methods share is trained once, and nothing but the clock tells."""

from __future__ import annotations

import hashlib
import pickle
from pathlib import Path

import pytest
import torch
from small_data import blobs, quick_spec
from test_resume import same, stop_after

from esupcon._io import read_json_lines, write_sealed_json
from esupcon.spec import RunSpec
from esupcon.training import TrainingInterrupted, fit

TAKEN = "Reusing the first stage of another run"


PAIRS = [
    ("supcon_ce", "supcon_ce_n"),
    ("supcon_ce_n", "supcon_ce"),
    ("supcon_tt", "supcon_ce"),
    ("supcon_tt", "supcon_ce_n"),
    ("spce", "spce_m"),
]


@pytest.mark.parametrize(
    ("one", "other", "settings"),
    [*((*pair, {}) for pair in PAIRS), *((*pair, {"temperature": 5.0, "micro_batch": 8}) for pair in PAIRS[2::2])],
)
def test_a_taken_stage_gives_what_training_it_gives(
    tmp_path: Path, one: str, other: str, settings: dict[str, float]
) -> None:
    data, kept = blobs(), tmp_path / "stage.pt"
    leaves, takes = quick_spec(method=one, **settings), quick_spec(method=other, **settings)
    alone = fit(takes, data, out=tmp_path / "alone")
    assert bool(alone.findings) == bool(settings)
    said: list[str] = []
    before = fit(leaves, data, out=tmp_path / "before")
    first = fit(leaves, data, out=tmp_path / "first", shared_stage=kept, log=said.append)
    same(before, first, tmp_path / "before", tmp_path / "first")
    assert before.findings == first.findings
    assert not any(line.startswith(TAKEN) for line in said)
    second = fit(takes, data, out=tmp_path / "second", shared_stage=kept, log=said.append)
    assert any(line.startswith(TAKEN) for line in said)
    same(alone, second, tmp_path / "alone", tmp_path / "second")
    assert alone.findings == second.findings
    timing = read_json_lines(tmp_path / "second" / "timing.jsonl")
    assert [record["stage"] == 0 for record in timing] == [bool(record.get("reused")) for record in timing]
    assert len(timing) == len(second.history)


@pytest.mark.parametrize(("one", "other"), [("supcon_tt", "supcon_ce"), ("spce", "spce_m")])
def test_a_stage_left_by_an_interrupted_run(tmp_path: Path, one: str, other: str) -> None:
    data, kept = blobs(), tmp_path / "stage.pt"
    settings = {"temperature": 5.0, "epochs": 3}
    alone = fit(quick_spec(method=other, **settings), data, out=tmp_path / "alone")
    for steps in (1, 4):
        with pytest.raises(TrainingInterrupted):
            fit(
                quick_spec(method=one, **settings),
                data,
                out=tmp_path / "parts",
                shared_stage=kept,
                should_stop=stop_after(steps),
            )
        assert not kept.exists()
    fit(quick_spec(method=one, **settings), data, out=tmp_path / "parts", shared_stage=kept)
    second = fit(quick_spec(method=other, **settings), data, out=tmp_path / "second", shared_stage=kept)
    same(alone, second, tmp_path / "alone", tmp_path / "second")
    assert alone.findings == second.findings


@pytest.mark.parametrize("why", ["began alone", "may stop early"])
def test_what_only_the_head_knows_is_not_left(tmp_path: Path, why: str) -> None:
    """A run that began alone has not written down what its encoder's run would have been; one that stops when its
    head is best has another end."""
    spec, data = quick_spec(method="spce", patience=1 if why == "may stop early" else None), blobs()
    if why == "began alone":
        with pytest.raises(TrainingInterrupted):
            fit(spec, data, out=tmp_path / "run", should_stop=stop_after(2))
    fit(spec, data, out=tmp_path / "run", shared_stage=tmp_path / "stage.pt")
    assert not (tmp_path / "stage.pt").exists()


def test_a_method_that_trains_more_does_not_take_less(tmp_path: Path) -> None:
    data, kept = blobs(), tmp_path / "stage.pt"
    alone = fit(quick_spec(method="spce"), data, out=tmp_path / "alone")
    fit(quick_spec(method="spce_m"), data, out=tmp_path / "first", shared_stage=kept)
    assert kept.exists()
    same(
        alone,
        fit(quick_spec(method="spce"), data, out=tmp_path / "second", shared_stage=kept),
        tmp_path / "alone",
        tmp_path / "second",
    )


def test_interrupted_behind_a_taken_stage(tmp_path: Path) -> None:
    spec, data, kept = quick_spec(method="supcon_ce_n", epochs=4), blobs(), tmp_path / "stage.pt"
    alone = fit(spec, data, out=tmp_path / "alone", shared_stage=kept)
    with pytest.raises(TrainingInterrupted):
        fit(spec, data, out=tmp_path / "parts", shared_stage=kept, should_stop=stop_after(1))
    kept.unlink()
    again = fit(spec, data, out=tmp_path / "parts", shared_stage=kept)
    same(alone, again, tmp_path / "alone", tmp_path / "parts")


@pytest.mark.parametrize("other", [{"temperature": 0.3}, {"seed": 5}, {"epochs": 5}])
def test_a_stage_of_other_settings_is_not_taken(tmp_path: Path, other: dict[str, float]) -> None:
    data, kept = blobs(), tmp_path / "stage.pt"
    fit(quick_spec(method="supcon_ce"), data, out=tmp_path / "first", shared_stage=kept)
    said: list[str] = []
    fit(quick_spec(method="supcon_ce_n", **other), data, out=tmp_path / "second", shared_stage=kept, log=said.append)
    assert not any(line.startswith(TAKEN) for line in said)


@pytest.mark.parametrize("content", [b"", b"no state", pickle.dumps(print), pickle.dumps({"identity": "?"})])
def test_a_foreign_file_is_not_taken(tmp_path: Path, content: bytes) -> None:
    kept = tmp_path / "stage.pt"
    kept.write_bytes(content)
    spec = RunSpec(
        source="arrays",
        content=blobs().fingerprint,
        train=quick_spec(method="supcon_ce", threads=torch.get_num_threads()),
    )
    record = {
        "key": spec.stage_key,
        "sha256": hashlib.sha256(content).hexdigest(),
        "lines": [],
        "findings": [],
        "timing": [],
    }
    write_sealed_json(kept.with_suffix(".json"), record)
    said: list[str] = []
    fitted = fit(quick_spec(method="supcon_ce"), blobs(), out=tmp_path / "run", shared_stage=kept, log=said.append)
    assert any("cannot be read" in line and "trained again" in line for line in said)
    assert {record["stage"] for record in fitted.history} == {0, 1}
    assert not any(line.startswith(TAKEN) for line in said)


def test_damaged_stage_is_trained_again(tmp_path: Path) -> None:
    spec, data, kept = quick_spec(method="supcon_ce"), blobs(), tmp_path / "stage.pt"
    alone = fit(spec, data, out=tmp_path / "alone", shared_stage=kept)
    content = bytearray(kept.read_bytes())
    content[len(content) // 2] ^= 1
    kept.write_bytes(content)
    said: list[str] = []
    again = fit(spec, data, out=tmp_path / "again", shared_stage=kept, log=said.append)
    assert any("is damaged" in line and "trained again" in line for line in said)
    same(alone, again, tmp_path / "alone", tmp_path / "again")
    said.clear()
    fit(spec, data, out=tmp_path / "third", shared_stage=kept, log=said.append)
    assert any(line.startswith(TAKEN) for line in said), "the damaged file was replaced"


def test_a_method_with_nothing_to_share_leaves_and_takes_nothing(tmp_path: Path) -> None:
    kept = tmp_path / "stage.pt"
    fit(quick_spec(method="esupcon"), blobs(), out=tmp_path / "run", shared_stage=kept)
    assert not kept.exists()
