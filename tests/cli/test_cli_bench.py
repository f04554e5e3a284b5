"""`esupcon bench`: that it measures the right things; how fast they are is no matter for a test."""

from __future__ import annotations

import pytest
import torch

from esupcon.bench.losses import TEMPERATURE, dense_supcon, time_losses
from esupcon.bench.turns import best_seconds
from esupcon.functional import supcon_loss

SMALL = ("--sizes", "40,60", "--classes", "5", "--encoder", "mlp-16x1", "--image-size", "8", "--batch-size", "20")


def test_contestants_take_turns_after_a_warm_up() -> None:
    called: list[str] = []
    best = best_seconds({name: lambda name=name: called.append(name) for name in "ab"}, rounds=2)
    assert called == list("ababab")
    assert all(0 <= seconds < 1 for seconds in best.values())
    with pytest.raises(ValueError, match="rounds must be at least 1; got 0"):
        best_seconds({}, 0)


def test_the_textbook_form_is_the_same_loss() -> None:
    torch.manual_seed(0)
    z, labels = torch.randn(40, 8, dtype=torch.float64), torch.arange(40) % 4
    torch.testing.assert_close(dense_supcon(z, labels), supcon_loss(z, labels, temperature=TEMPERATURE))


def test_nothing_quadratic_is_run_where_n_is_large(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("esupcon.bench.losses.DENSE_UP_TO", 30)
    large, small = time_losses(40, dim=4), time_losses(30, dim=4)
    assert large.dense is None
    assert large.metric_learning is None
    assert small.dense is not None
    assert small.dense > 0


def test_the_command(esupcon) -> None:
    found = esupcon("bench", *SMALL, "--json").json
    assert [one["n"] for one in found["losses"]] == [40, 60]
    assert all(one["supcon"] > 0 and one["esupcon"] > 0 and one["dense"] > 0 for one in found["losses"])
    for step in found["step"]:
        whole = step["views"] + step["network"] + step["loss"]
        assert step["images_per_second"] == pytest.approx(20 / whole)
    shown = esupcon("bench", *SMALL).out
    assert "textbook SupCon" in shown
    assert "images/s" in shown


@pytest.mark.parametrize(
    ("words", "line"),
    [
        (("--sizes", "9"), "--sizes must be at least 20, two embeddings of each class; got 9."),
        (("--sizes", "1,x"), "--sizes must be numbers with commas between them"),
        (("--batch-size", "5"), "batch_size must be at least 10, an image of each class; got 5."),
        (("--encoder", "resnet11"), "unknown encoder 'resnet11'"),
    ],
)
def test_mistakes_are_one_line(esupcon, words: tuple[str, ...], line: str) -> None:
    said = esupcon("bench", *words)
    assert said.code == 2
    assert line in said.err
    assert "Traceback" not in said.err
