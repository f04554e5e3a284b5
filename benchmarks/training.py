"""What training costs beside the network itself: augmentation, loss, logging and checkpoints, as a ratio in one run.

    python benchmarks/training.py [--encoder resnet10-w32] [--batch-size 256] [--method esupcon]

`bare` is forward, cross entropy, backward and optimiser step of the same network on one batch of views that is never
made anew; `training` is `esupcon.training.fit` with checkpoints after every epoch. Both take turns.
"""

from __future__ import annotations

import argparse
import json
import tempfile
import time
from pathlib import Path

import numpy as np
import torch

from esupcon.models import Network, build_network
from esupcon.spec import TrainSpec
from esupcon.training import TrainData, fit

TARGET = 0.9


def bare_rate(network: Network, batch_size: int, n_steps: int, *, bf16: bool) -> float:
    """Images (two views each) per second."""
    views = torch.randn(2 * batch_size, 3, 32, 32)
    labels = torch.arange(2 * batch_size) % 10
    network, views = network.to(memory_format=torch.channels_last), views.contiguous(memory_format=torch.channels_last)
    optimizer = torch.optim.SGD(network.parameters(), lr=0.01, momentum=0.9, nesterov=True, weight_decay=5e-4)
    network.train()
    start = 0.0
    for step in range(n_steps + 1):
        if step == 1:  # the first step warms up
            start = time.perf_counter()
        optimizer.zero_grad()
        with torch.autocast("cpu", dtype=torch.bfloat16, enabled=bf16):
            logits = network(views)
        torch.nn.functional.cross_entropy(logits.float(), labels).backward()
        optimizer.step()
    return n_steps * batch_size / (time.perf_counter() - start)


def training_rate(data: TrainData, spec: TrainSpec) -> float:
    """The rate of whole epochs after the first, measurement of held-out accuracy and checkpoints included."""
    with tempfile.TemporaryDirectory() as folder:
        marks: list[float] = []

        def mark() -> bool:
            marks.append(time.perf_counter())
            return False

        fit(spec, data, out=Path(folder), checkpoint_seconds=0, should_stop=mark, progress=False, log=lambda line: None)
        records = [json.loads(line) for line in (Path(folder) / "timing.jsonl").read_text().splitlines()]
    steps_per_epoch = len(marks) // len(records)
    steady = marks[steps_per_epoch - 1 :]
    return (len(steady) - 1) * spec.batch_size / (steady[-1] - steady[0])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--encoder", default="resnet10-w32")
    parser.add_argument("--method", default="esupcon")
    parser.add_argument("--batch-size", type=int, default=256)
    parser.add_argument("--epochs", type=int, default=3)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--precision", choices=("32", "bf16"), default="32")
    arguments = parser.parse_args()
    rng = np.random.default_rng(0)
    n = 8 * arguments.batch_size
    x = rng.integers(0, 256, (n, 3, 32, 32), dtype=np.uint8)
    y = np.arange(n, dtype=np.int64) % 10
    data = TrainData(x, y, 10, x[:200], y[:200])
    spec = TrainSpec(
        method=arguments.method,
        encoder=arguments.encoder,
        epochs=arguments.epochs,
        batch_size=arguments.batch_size,
        precision=arguments.precision,
        augmentation="simclr",
    )
    bare, training = [], []
    for _ in range(arguments.rounds):
        network = build_network(
            encoder=arguments.encoder,
            input_shape=(3, 32, 32),
            n_classes=10,
            head="linear",
            projection_dim=None,
            temperature=0.1,
        )
        bare.append(bare_rate(network, arguments.batch_size, 8, bf16=arguments.precision == "bf16"))
        training.append(training_rate(data, spec))
        print(
            f"bare {bare[-1]:,.0f} images/s, training {training[-1]:,.0f} images/s: {training[-1] / bare[-1]:.2f}",
            flush=True,
        )
    ratio = float(np.median(training) / np.median(bare))
    print(
        f"\n{arguments.method}, {arguments.encoder}, batch {arguments.batch_size}, two views each, "
        f"{arguments.precision}, "
        f"{torch.get_num_threads()} threads: training runs at {ratio:.2f} of the bare network (to reach: {TARGET})"
    )


if __name__ == "__main__":
    main()
