"""The encoder `fast` trained by Muon: whitening, filter banks, exact resume, two processes."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from sklearn.datasets import load_digits
from small_data import blobs, quick_spec
from torch import Tensor, nn
from torch.testing import assert_close

from esupcon import ContrastiveClassifier
from esupcon.methods import METHODS
from esupcon.models import FastEncoder, build_network
from esupcon.spec import TrainSpec
from esupcon.training import TrainData, TrainingInterrupted, fit
from esupcon.training.optim import MUON_LINEAR, MUON_PROTOTYPES, MUON_VECTORS, build_optimizer, set_lr
from esupcon.training.run import Run


def fast_spec(**changes: Any) -> TrainSpec:
    settings = {"encoder": "fast", "optimizer": "muon", "schedule": "linear", "warmup": 0.0, "neck": "norm"}
    return quick_spec(**settings | {"epochs": 2, "temperature": 0.2, "augmentation": "translate"} | changes)


def colour(n: int = 32) -> TrainData:
    return blobs(n=n, channels=3)


def whitening_in_numpy(data: TrainData) -> np.ndarray:
    """Eigenvectors of the second moments of all 2x2 patches, divided by sqrt(eigenvalue + 5e-4), both signs."""
    mean, std = (np.array(part)[:, None, None] for part in (data.preprocessing.mean, data.preprocessing.std))
    x = (data.x / 255 - mean) / std
    windows = np.lib.stride_tricks.sliding_window_view(x, (2, 2), axis=(2, 3))  # (n, C, H-1, W-1, 2, 2)
    patches = windows.transpose(0, 2, 3, 1, 4, 5).reshape(-1, 12)
    values, vectors = np.linalg.eigh(patches.T @ patches / len(patches))
    rows = (vectors / np.sqrt(values + 5e-4)).T[::-1]
    return np.concatenate([rows, -rows]).reshape(24, 3, 2, 2)


def test_whitening_comes_from_the_training_images_and_is_never_trained() -> None:
    data = colour()
    filters = fit(fast_spec(), data).network.encoder.whitening.filters.numpy()
    expected = whitening_in_numpy(data)
    signs = np.sign((filters[:12] * expected[:12]).sum((1, 2, 3)))  # an eigenvector may have either
    assert_close(filters[:12] * signs[:, None, None, None], expected[:12], atol=2e-3, rtol=2e-3, check_dtype=False)
    assert (filters[12:] == -filters[:12]).all()


def test_bias_of_the_whitening_moves_in_the_first_part_of_the_steps_only(monkeypatch: pytest.MonkeyPatch) -> None:
    """Eight steps: three are 37.5 %."""
    seen: list[Tensor] = []

    def observed(run: Run, losses: Any, lr: float, *, inside_epoch: bool) -> None:
        seen.append(run.network.encoder.whitening.bias.detach().clone())
        end_step(run, losses, lr, inside_epoch=inside_epoch)

    end_step = Run.end_step
    monkeypatch.setattr(Run, "end_step", observed)
    fit(fast_spec(epochs=4), colour())
    assert len(seen) == 8
    moved = [not torch.equal(a, b) for a, b in pairwise(seen)]
    assert moved == [True, True, False, False, False, False, False]
    assert seen[0].abs().max() > 0


def test_filter_banks_keep_the_norm_sqrt_of_their_filters() -> None:
    """A bank is rescaled before each step, and the last steps are short."""
    encoder = fit(fast_spec(epochs=4), colour()).network.encoder
    for convolution in (module for module in encoder.modules() if isinstance(module, nn.Conv2d)):
        assert convolution.weight.norm().item() == pytest.approx(len(convolution.weight) ** 0.5, rel=0.05)


@pytest.mark.parametrize("precision", ["32", "bf16"])
@pytest.mark.parametrize("steps", [1, 5])
def test_interrupted_run_continues_bit_identical(tmp_path: Path, steps: int, precision: str) -> None:
    spec, data, count = fast_spec(epochs=4, precision=precision), colour(), iter(range(1, 100))
    try:
        whole = fit(spec, data)
    except ValueError:
        pytest.skip("this processor does not compute in bfloat16")
    with pytest.raises(TrainingInterrupted):
        fit(spec, data, out=tmp_path, should_stop=lambda: next(count) == steps)
    stored = torch.load(next(tmp_path.glob("checkpoint-*.pt")), weights_only=True)
    assert all(state["momentum"].abs().sum() > 0 for state in stored["optimizer"]["state"].values())
    assert torch.equal(stored["network"]["encoder.whitening.filters"], whole.network.encoder.whitening.filters)
    again = fit(spec, data, out=tmp_path)
    for (name, a), b in zip(whole.network.state_dict().items(), again.network.state_dict().values(), strict=True):
        assert torch.equal(a, b), name
    assert whole.history == again.history


@pytest.mark.parametrize("kind", ["digits", "colour", "table"])
def test_same_settings_under_load_give_the_same_tensors(kind: str) -> None:
    """The defaults of the estimator, alone and beside threads that keep all cores busy."""
    data = load_digits(return_X_y=True)[0][:150]
    x = {"digits": data.reshape(-1, 8, 8), "colour": noise(150, 3, 16, 16), "table": data}[kind]
    y, stop, square = np.arange(150) % 3, threading.Event(), torch.eye(300)

    def work() -> None:
        while not stop.is_set():
            square @ square

    threads = [threading.Thread(target=work) for _ in range(2)]
    alone, busy = (ContrastiveClassifier(random_state=0, epochs=2) for _ in range(2))
    alone.fit(x, y)
    for thread in threads:
        thread.start()
    try:
        busy.fit(x, y)
    finally:
        stop.set()
    for name, value in alone.classifier_.network.state_dict().items():
        assert torch.equal(value, busy.classifier_.network.state_dict()[name]), name
    assert alone.calibration_temperature_ == busy.calibration_temperature_
    assert (alone.predict_proba(x) == busy.predict_proba(x)).all()


def test_neck_keeps_running_statistics_of_the_embeddings() -> None:
    """With a rate of nearly 0 the embeddings stay, and the statistics become theirs."""
    data = colour()
    network = fit(fast_spec(epochs=10, batch_size=32, lr=1e-6, augmentation="none"), data).network
    network.train()
    with torch.no_grad():
        z = network.encoder(data.preprocessing.tensor(data.x))
    assert_close(network.neck[0].running_mean, z.mean(0), atol=0.02, rtol=0.02)
    assert_close(network.neck[0].running_var, z.var(0), atol=0.05, rtol=0.1)


def noise(*shape: int) -> np.ndarray:
    return np.random.default_rng(0).integers(0, 256, shape).astype(np.uint8)


@pytest.mark.parametrize(
    "x",
    [
        np.full((8, 3, 8, 8), 7, np.uint8),
        np.repeat(noise(8, 1, 1, 1), 64, axis=3).reshape(8, 1, 8, 8),
        noise(2, 3, 8, 8),
        *(noise(8, *shape) for shape in [(1, 9, 31), (3, 33, 8)]),
    ],
    ids=["all equal", "each constant", "fewer than values of a patch", "9x31", "33x8"],
)
def test_unusual_images_train_to_finite_values(x: np.ndarray) -> None:
    data = TrainData(x, np.arange(len(x)) % 2, 2)
    fitted = fit(fast_spec(epochs=2, batch_size=4, augmentation="digits"), data)
    assert all(value.isfinite().all() for value in fitted.network.state_dict().values())
    p = fitted.classifier.predict_proba(x)
    assert np.isfinite(p).all()
    assert_close(p.sum(1), np.ones(len(x)))


# --- Parameter groups ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("optimizer", ["sgd", "adamw", "muon"])
@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("neck", ["none", "linear"])
@pytest.mark.parametrize("encoder", ["fast", "resnet10-w4"])
def test_every_trained_parameter_is_in_one_group(optimizer: Any, method: str, neck: Any, encoder: str) -> None:
    spec, found = quick_spec(optimizer=optimizer, method=method, neck=neck), METHODS[method]
    projection = 8 if found.projector else None
    options = {"head": found.head, "projection_dim": projection, "neck": neck}
    network = build_network(encoder=encoder, input_shape=(3, 8, 8), n_classes=3, **options)
    for stage in found.stages:
        for name in ("encoder", "neck", "projector", "head"):
            module, part = getattr(network, name), "encoder" if name == "neck" else name
            if module is not None:
                module.requires_grad_(part in stage.trains)
        groups = build_optimizer(network, stage, spec, 16).param_groups
        inside = [parameter for group in groups for parameter in group["params"]]
        trained = [parameter for parameter in network.parameters() if parameter.requires_grad]
        assert sorted(map(id, inside)) == sorted(map(id, trained))
        if optimizer == "muon":
            matrices = {id(p) for group in groups if group["orthogonal"] for p in group["params"]}
            head = {id(p) for p in network.head.parameters()}
            assert matrices == {id(p) for p in trained if p.ndim > 1} - head


@pytest.mark.parametrize(("method", "factor"), [("esupcon", MUON_PROTOTYPES), ("ce", MUON_LINEAR / 256**2)])
def test_rates_of_muon_follow_the_rows_of_a_batch(method: str, factor: float) -> None:
    stage = METHODS[method].stages[0]
    network = build_network(encoder="fast", input_shape=(3, 8, 8), n_classes=3, head=METHODS[method].head)
    spec = fast_spec(method=method, lr=0.5)
    for batch_size in (16, 64):
        optimizer = build_optimizer(network, stage, spec, batch_size)
        rates = {id(p): group["peak_lr"] for group in optimizer.param_groups for p in group["params"]}
        encoder = network.encoder
        assert rates[id(encoder.groups[0][0].weight)] == 0.5
        assert rates[id(encoder.groups[0][2].bias)] == pytest.approx(0.5 * MUON_VECTORS * 2 * batch_size)
        assert rates[id(network.head.weight)] == pytest.approx(0.5 * factor * 2 * batch_size)
        decays = {id(p): group["weight_decay"] for group in optimizer.param_groups for p in group["params"]}
        assert decays[id(network.head.weight)] == decays[id(encoder.groups[0][0].weight)] == 0
        set_lr(optimizer, 3, 8, spec)
        now = {id(p): group["lr"] for group in optimizer.param_groups for p in group["params"]}
        assert now[id(encoder.whitening.bias)] == 0
        assert now[id(encoder.groups[0][0].weight)] == pytest.approx(0.5 * 5 / 8)


def test_tied_weights_take_one_step_and_nothing_to_train_is_an_error() -> None:
    class Tied(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.second = nn.Linear(6, 6), nn.Linear(6, 6)
            self.second.weight = self.first.weight

        def forward(self, x: Tensor) -> Tensor:
            return self.second(self.first(x))

    network = build_network(encoder=Tied(), input_shape=(6,), n_classes=2)
    groups = build_optimizer(network, METHODS["esupcon"].stages[0], quick_spec(), 8).param_groups
    assert sum(p is network.encoder.module.first.weight for group in groups for p in group["params"]) == 1
    rows = np.random.default_rng(0).normal(size=(8, 4)).astype(np.float32)
    with pytest.raises(ValueError, match=r"spce_m leaves nothing to train.*neck"):
        fit(quick_spec(encoder="identity", method="spce_m", augmentation="table"), TrainData(rows, np.arange(8) % 2, 2))


# --- Two processes ---------------------------------------------------------------------------------------------------

WORKER = """
import sys; sys.path.insert(0, sys.argv[2])
import torch
from pathlib import Path
from test_fast_with_muon import colour, convolutions, fast_spec
from esupcon.training import fit
torch.set_num_threads(1)
out = Path(sys.argv[1])
fast = fit(fast_spec(), colour(), accelerator="cpu")
rows = fit(fast_spec(neck="none", precision="64"), colour(), encoder=convolutions(), accelerator="cpu")
rank = torch.distributed.get_rank()
torch.save([fitted.network.state_dict() for fitted in (fast, rows)], out / f"{rank}.pt")
torch.distributed.barrier()
torch.distributed.destroy_process_group()
"""


def convolutions() -> nn.Module:
    """An encoder with filter banks whose rows do not depend on each other."""
    torch.manual_seed(3)
    first, second = nn.Conv2d(3, 6, 3), nn.Conv2d(6, 8, 3)
    return nn.Sequential(first, nn.GELU(), second, nn.AdaptiveMaxPool2d(1), nn.Flatten())


def test_two_processes_take_the_same_steps(tmp_path: Path) -> None:
    script = tmp_path / "worker.py"
    script.write_text(WORKER)
    launcher = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    words = [*launcher, str(script), str(tmp_path), str(Path(__file__).parent)]
    environment = os.environ | {"OMP_NUM_THREADS": "1"}
    ended = subprocess.run(words, env=environment, capture_output=True, text=True, timeout=300, check=False)
    assert ended.returncode == 0, ended.stderr[-3000:]
    (fast, rows), (other_fast, other_rows) = (
        torch.load(tmp_path / f"{rank}.pt", weights_only=True) for rank in range(2)
    )
    alone = fit(fast_spec(), colour()).network.encoder
    assert isinstance(alone, FastEncoder)
    assert torch.equal(fast["encoder.whitening.filters"], alone.whitening.filters)
    for name, value in fast.items():
        if "running" not in name:  # statistics are those of a process's own images; the first one's are saved
            assert torch.equal(value, other_fast[name]), name
    one = fit(fast_spec(neck="none", precision="64"), colour(), encoder=convolutions()).network.state_dict()
    for name, value in one.items():
        assert torch.equal(rows[name], other_rows[name]), name
        assert_close(rows[name], value, rtol=1e-6, atol=1e-6)
