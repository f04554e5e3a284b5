"""What a training step costs beside the network, against a bare loop and against the speed of the processor.

    python benchmarks/training.py [--encoder fast] [--method esupcon] [--batch-size 125] [--precision auto]
    python benchmarks/training.py --accuracy 500 [--data-dir FOLDER]

Processor time of one thread, the least of several turns, so that other programs on the machine hardly count.
In turns, on images of 32 x 32 pixels:

- `training`: a step of `esupcon.fit`: augmentation, network, loss, Muon, monitoring; in it, the time outside the
  forward and backward passes of the network;
- `bare`: the loop a user would write: the same network and batch, cross entropy, backward, SGD, no augmentation;
- `products`: matrix products of the size of a middle layer, the most that the processor can do, in the precision of
  training and in float32.

With `--accuracy N`: the recommended settings on N images of CIFAR-10 for eight epochs, then the bare loop on the same
images for the same processor time, with `fast` and with `resnet18`; the accuracy on 2,000 test images.
"""

from __future__ import annotations

import argparse
import contextlib
import math
import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np
import torch
from lightning_fabric import Fabric
from torch import Tensor
from torch.utils.flop_counter import FlopCounterMode

from esupcon.classifier import Classifier
from esupcon.data import DataOptions, load
from esupcon.methods import METHODS
from esupcon.models import FastEncoder, Network, build_network
from esupcon.recipes import recommend
from esupcon.spec import TrainSpec
from esupcon.training import TrainData, TrainingInterrupted, fit
from esupcon.training.batches import two_views_of
from esupcon.training.devices import choose_precision
from esupcon.training.loop import StageModule


def seconds_of(function: Callable[[], object]) -> float:
    """Return the processor time of a call."""
    start = time.process_time()
    function()
    return time.process_time() - start


def network_of(encoder: str, data: TrainData) -> Network:
    network = build_network(encoder=encoder, input_shape=(3, 32, 32), n_classes=10, head="linear")
    if isinstance(network.encoder, FastEncoder):
        network.encoder.whitening.fit(data.preprocessing.tensor(data.x))
    return network.to(memory_format=torch.channels_last).train()  # type: ignore[call-overload]


class BareLoop:
    """What a user would write: cross entropy, SGD with momentum, a cosine schedule."""

    def __init__(self, encoder: str, data: TrainData, precision: str, lr: float = 0.05) -> None:
        self.network, self.data, self.bf16, self.lr = network_of(encoder, data), data, precision == "bf16", lr
        self.optimizer = torch.optim.SGD(
            self.network.parameters(), lr=lr, momentum=0.9, nesterov=True, weight_decay=5e-4
        )

    def step(self, views: Tensor, labels: Tensor) -> None:
        self.optimizer.zero_grad()
        with torch.autocast("cpu", dtype=torch.bfloat16, enabled=self.bf16):
            logits = self.network(views)
        torch.nn.functional.cross_entropy(logits.float(), labels).backward()
        self.optimizer.step()

    def train(self, seconds: float, batch_size: int) -> None:
        """Train for a processor time, on one view of each image at a time."""
        rng, start, step = np.random.default_rng(0), time.process_time(), 0
        while (share := (time.process_time() - start) / seconds) < 1:
            for group in self.optimizer.param_groups:
                group["lr"] = self.lr * (1 + math.cos(math.pi * share)) / 2
            rows = rng.permutation(len(self.data.x))[:batch_size]
            views = two_views_of(self.data, self.data.x[rows], "translate", step, torch.device("cpu"))
            self.step(views[: len(rows)], torch.from_numpy(self.data.y[rows]))
            step += 1


def take_turns(spec: TrainSpec, data: TrainData, others: dict[str, Callable[[], object]]) -> dict[str, float]:
    """Return the least time of a step of `fit` and of the other functions, which run between its steps, and under
    "outside" the median share of a step that is not spent in forward and backward passes.

    The first turn, which prepares kernels, is not counted. The run ends before the end of its epoch.
    """
    turns: list[dict[str, float]] = []
    start = inside = 0.0
    n_turns = len(data.x) // spec.batch_size

    def turn() -> bool:
        nonlocal start, inside
        seconds = time.process_time() - start
        times = {"training": seconds, "outside": 1 - inside / seconds}
        turns.append(times | {name: seconds_of(function) for name, function in others.items()})
        start, inside = time.process_time(), 0.0
        return len(turns) == n_turns

    def timed(function: Callable[..., Any]) -> Callable[..., Any]:
        def call(*arguments: Any, **options: Any) -> Any:
            nonlocal inside
            began = time.process_time()
            found = function(*arguments, **options)
            inside += time.process_time() - began
            return found

        return call

    passes = ((Fabric, "backward"), (StageModule, "forward"))
    with contextlib.ExitStack() as stack:
        for owner, name in passes:
            stack.enter_context(patch.object(owner, name, timed(getattr(owner, name))))
        stack.enter_context(contextlib.suppress(TrainingInterrupted))
        fit(spec, data, should_stop=turn, progress=False, log=lambda line: None)
    least = {name: min(seconds[name] for seconds in turns[1:]) for name in turns[0]}
    return least | {"outside": statistics.median(seconds["outside"] for seconds in turns[1:])}


def matrix_product(precision: str) -> tuple[Callable[[], object], float]:
    """Return a product of matrices and its floating-point operations."""
    dtype = torch.bfloat16 if precision == "bf16" else torch.float32
    a, b = (torch.randn(n, m).to(dtype) for n, m in ((16384, 2304), (2304, 256)))
    return lambda: a @ b, 2 * 16384 * 2304 * 256


def accuracy_after_the_same_seconds(n: int, data_dir: Path | None, precision: str) -> None:
    found = load("cifar10", DataOptions(data_dir=data_dir))
    data = TrainData(np.asarray(found.x_train[:n]), found.y_train[:n], 10)
    x, y = np.asarray(found.x_test[:2000]), found.y_test[:2000]
    asked = TrainSpec(epochs=8, precision=precision, threads=1)  # type: ignore[arg-type]
    spec, start = recommend(asked, (3, 32, 32), n).train, time.process_time()
    classifier = fit(spec, data, progress=False, log=lambda line: None).classifier
    seconds = time.process_time() - start
    print(f"{n} images, {seconds:.0f} s of processor time, precision {precision}, accuracy on 2,000 test images")
    print(f"esupcon, fast: {(classifier.arrays(x, 'logits')[0].argmax(1) == y).mean():.1%}", flush=True)
    for encoder in ("fast", "resnet18"):
        loop = BareLoop(encoder, data, precision)
        loop.train(seconds, spec.batch_size)
        (logits,) = Classifier(loop.network.eval(), data.preprocessing, range(10)).arrays(x, "logits")
        print(f"bare loop, cross entropy, {encoder}: {(logits.argmax(1) == y).mean():.1%}", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--encoder", default="fast")
    parser.add_argument("--method", default="esupcon", choices=METHODS)
    parser.add_argument("--batch-size", type=int, default=125)
    parser.add_argument("--steps", type=int, default=10, help="of each kind")
    parser.add_argument("--precision", choices=("auto", "32", "bf16"), default="auto")
    parser.add_argument("--accuracy", type=int, metavar="N", help="compare accuracies on N images of CIFAR-10")
    parser.add_argument("--data-dir", type=Path, help="folder of named data sets")
    asked = parser.parse_args()
    torch.set_num_threads(1)
    torch.manual_seed(0)
    precision, reason = choose_precision(asked.precision, "cpu")
    if asked.accuracy:
        accuracy_after_the_same_seconds(asked.accuracy, asked.data_dir, precision)
        return
    rng, n = np.random.default_rng(0), asked.batch_size * (asked.steps + 1)
    x, y = rng.integers(0, 256, (n, 3, 32, 32), dtype=np.uint8), np.arange(n, dtype=np.int64) % 10
    data = TrainData(x, y, 10)
    settings = {"encoder": asked.encoder, "method": asked.method, "batch_size": asked.batch_size, "epochs": 1}
    spec = recommend(TrainSpec(**settings, precision=precision, threads=1), (3, 32, 32), n).train  # type: ignore[arg-type]
    bare = BareLoop(asked.encoder, data, precision)
    views = two_views_of(data, x[: asked.batch_size], "translate", 0, torch.device("cpu"))
    labels = torch.from_numpy(y[: asked.batch_size]).repeat(2)
    with FlopCounterMode(display=False) as counter:
        bare.step(views, labels)
    (product, flops), (product_32, _) = matrix_product(precision), matrix_product("32")
    others = {"bare": lambda: bare.step(views, labels), "products": product, "float32": product_32}
    least = take_turns(spec, data, others)
    training, rate, speed = least["training"], counter.get_total_flops() / least["training"], flops / least["products"]
    print(f"{asked.method}, {asked.encoder}, {asked.batch_size} images in two views, precision {precision} ({reason})")
    print(f"one thread, the fastest of {asked.steps} steps of each kind, processor time")
    print(f"step: training {1e3 * training:.0f} ms, bare loop {1e3 * least['bare']:.0f} ms")
    print(f"outside the network's forward and backward: {least['outside']:.1%} of a step (wanted: 5%)")
    print(f"images/s: training {asked.batch_size / training:.0f}, bare loop {asked.batch_size / least['bare']:.0f}")
    print(f"GFLOP/s: training {rate / 1e9:.0f}, matrix products {speed / 1e9:.0f} (share {rate / speed:.0%})")
    print(f"matrix products: {least['float32'] / least['products']:.2f} times the speed of float32")


if __name__ == "__main__":
    main()
