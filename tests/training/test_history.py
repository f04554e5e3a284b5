from __future__ import annotations

import io
import json
from pathlib import Path

import numpy as np
import pytest
import torch
from rich.console import Console
from small_data import blobs, quick_spec, rowwise_encoder
from torch import Tensor, nn

from esupcon.spec import TrainSpec
from esupcon.training import TrainData, TrainingFailed, fit, monitor


def test_history_is_one_json_line_an_epoch_and_time_is_kept_apart(tmp_path: Path) -> None:
    fitted = fit(quick_spec(method="supcon_ce", epochs=5), blobs(), out=tmp_path)
    lines = [json.loads(line) for line in (tmp_path / "history.jsonl").read_text().splitlines()]
    assert lines == fitted.history
    assert [(line["stage"], line["epoch"]) for line in lines] == [(0, e) for e in range(5)] + [(1, 0)]
    assert not {"seconds", "images_per_second"} & set(lines[0])
    timing = [json.loads(line) for line in (tmp_path / "timing.jsonl").read_text().splitlines()]
    assert all(line["seconds"] > 0 and line["images_per_second"] > 0 for line in timing)


class GoesBad(nn.Module):
    """An encoder that gives NaN from its eleventh training batch on."""

    def __init__(self) -> None:
        super().__init__()
        self.inner, self.batches = rowwise_encoder(), 0

    def forward(self, x: Tensor) -> Tensor:
        self.batches += self.training
        return self.inner(x) * (float("nan") if self.batches > 10 else 1.0)


def test_loss_that_is_not_finite_stops_the_run_and_keeps_the_last_good_checkpoint(tmp_path: Path) -> None:
    said: list[str] = []
    with pytest.raises(TrainingFailed, match=r"the loss became nan in epoch 4, step 2.*Lower the learning rate"):
        fit(quick_spec(epochs=9), blobs(), encoder=GoesBad(), out=tmp_path, log=said.append, checkpoint_seconds=0)
    assert any("[loss-not-finite]" in line for line in said)
    newest = torch.load(max(tmp_path.glob("checkpoint-*.pt")), weights_only=True)
    assert (newest["position"]["epoch"], newest["position"]["step"]) == (3, 1)
    assert all(value.isfinite().all() for value in newest["network"].values())


def test_table_with_nan_is_refused_in_words() -> None:
    x = np.full((40, 4), np.nan, np.float32)
    with pytest.raises(ValueError, match=r"finite .*NaN or inf"):
        fit(TrainSpec(encoder="mlp", epochs=2), TrainData(x, np.arange(40) % 2, 2), log=lambda line: None)


def test_every_finding_is_in_the_history(tmp_path: Path) -> None:
    said: list[str] = []
    fitted = fit(quick_spec(temperature=40.0, epochs=4), blobs(), log=said.append)
    recorded = [f"[{f['code']}]" for record in fitted.history for f in record.get("findings", [])]
    assert recorded
    assert {finding.code for finding in fitted.findings} == {code.strip("[]") for code in recorded}


@pytest.mark.parametrize(
    ("text", "facts"),
    [
        ("epoch 3/20", "loss 1.23  held-out 93.4 %"),
        ("stage 1/2 epoch 1000/1000", "loss 1.23e-05  training 100.0 %"),
        ("images through frozen blocks", ""),
    ],
)
def test_progress_fits_80_columns_and_has_accuracy_loss_and_time(
    text: str, facts: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = io.StringIO()
    monkeypatch.setattr("rich.console.Console", lambda stderr: Console(file=file, width=80, force_terminal=True))
    with monitor.Progress(shown=True) as progress:
        for done in (1, 50):
            progress.show("training", done, 100, log=pytest.fail, text=text, facts=facts)
        (line,) = Console(width=80, file=io.StringIO()).render_lines(progress._bar.get_renderable())
    shown = "".join(segment.text for segment in line)
    assert len(shown) == 80
    assert "…" not in shown
    assert text in shown and facts in shown and "━━━━━" in shown
    assert ":" in shown[-8:]  # the time left


def test_without_a_terminal_a_line_is_printed_at_most_every_30_seconds(monkeypatch: pytest.MonkeyPatch) -> None:
    now, said = [0.0], list[str]()
    monkeypatch.setattr(monitor.time, "monotonic", lambda: now[0])
    with monitor.Progress(shown=False) as progress:
        for second in range(100):
            now[0] = float(second)
            progress.show("training", second, 200, text="epoch 1/2", facts="loss 1.5  held-out 50.0 %", log=said.append)
    assert said[0] == "epoch 1/2: 15 %, loss 1.5, held-out 50.0 %, about 3 min left"
    assert len(said) == 3
