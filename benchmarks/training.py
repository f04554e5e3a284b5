"""What a training step costs beside the network, against a bare loop and against the speed of the processor.

    python benchmarks/training.py [--encoder fast] [--method esupcon] [--batch-size 125] [--precision auto]

Processor time of one thread, the least of several turns, so that other programs on the machine hardly count.
In turns, on images of 32 x 32 pixels:

- `network`: forward and backward of the encoder on two views of each image, nothing else;
- `bare`: the loop a user would write: the same network and batch, cross entropy, backward, SGD, no augmentation;
- `training`: a step of `esupcon.fit`: augmentation, network, loss, Muon, monitoring;
- `products`: matrix products of the size of a middle layer, the most that the processor can do.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable

import numpy as np
import torch
from torch.utils.flop_counter import FlopCounterMode

from esupcon.methods import METHODS
from esupcon.models import FastEncoder, Network, build_network
from esupcon.spec import TrainSpec
from esupcon.training import TrainData, fit
from esupcon.training.batches import two_views_of
from esupcon.training.devices import choose_precision

WANTED_OUTSIDE = 0.05


def seconds_of(function: Callable[[], object]) -> float:
    """Return the processor time of a call."""
    start = time.process_time()
    function()
    return time.process_time() - start


def network_of(spec: TrainSpec, data: TrainData, head: str) -> Network:
    network = build_network(encoder=spec.encoder, input_shape=(3, 32, 32), n_classes=10, head=head)  # type: ignore[arg-type]
    if isinstance(network.encoder, FastEncoder):
        network.encoder.fit_whitening(data.preprocessing.tensor(data.x))
    return network.to(memory_format=torch.channels_last).train()  # type: ignore[call-overload]


def bare_steps(spec: TrainSpec, data: TrainData) -> tuple[Callable[[], None], Callable[[], None]]:
    """Return a pass through the encoder and back, and a step of plain cross entropy."""
    network, bf16 = network_of(spec, data, "linear"), spec.precision == "bf16"
    views = two_views_of(data, data.x[: spec.batch_size], "translate", 0, torch.device("cpu"))
    labels = torch.from_numpy(data.y[: spec.batch_size]).repeat(2)
    optimizer = torch.optim.SGD(network.parameters(), lr=0.01, momentum=0.9, nesterov=True, weight_decay=5e-4)

    def encode() -> None:
        optimizer.zero_grad()
        with torch.autocast("cpu", dtype=torch.bfloat16, enabled=bf16):
            z = network.encoder(views)
        z.backward(torch.ones_like(z))

    def cross_entropy() -> None:
        optimizer.zero_grad()
        with torch.autocast("cpu", dtype=torch.bfloat16, enabled=bf16):
            logits = network(views)
        torch.nn.functional.cross_entropy(logits.float(), labels).backward()
        optimizer.step()

    return encode, cross_entropy


def take_turns(spec: TrainSpec, data: TrainData, others: dict[str, Callable[[], object]]) -> dict[str, float]:
    """Return the least time of a step of `fit` and of the other functions, which run between its steps.

    The first turn, which prepares kernels, and the last step, which ends an epoch, are not counted.
    """
    turns: list[dict[str, float]] = []
    start = 0.0

    def turn() -> bool:
        nonlocal start
        turns.append({"training": time.process_time() - start, **{name: seconds_of(f) for name, f in others.items()}})
        start = time.process_time()
        return False

    fit(spec, data, should_stop=turn, progress=False, log=lambda line: None)
    return {name: min(seconds[name] for seconds in turns[1:]) for name in turns[0]}


def matrix_product(precision: str) -> tuple[Callable[[], object], float]:
    """Return a product of matrices and its floating-point operations."""
    dtype = torch.bfloat16 if precision == "bf16" else torch.float32
    a, b = (torch.randn(n, m).to(dtype) for n, m in ((16384, 2304), (2304, 256)))
    return lambda: a @ b, 2 * 16384 * 2304 * 256


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--encoder", default="fast")
    parser.add_argument("--method", default="esupcon", choices=METHODS)
    parser.add_argument("--batch-size", type=int, default=125)
    parser.add_argument("--steps", type=int, default=10, help="of each kind")
    parser.add_argument("--precision", choices=("auto", "32", "bf16"), default="auto")
    asked = parser.parse_args()
    torch.set_num_threads(1)
    precision, reason = choose_precision(asked.precision, "cpu")
    rng, n = np.random.default_rng(0), asked.batch_size * (asked.steps + 1)
    x, y = rng.integers(0, 256, (n, 3, 32, 32), dtype=np.uint8), np.arange(n, dtype=np.int64) % 10
    data = TrainData(x, y, 10)
    settings = {"encoder": asked.encoder, "method": asked.method, "batch_size": asked.batch_size, "epochs": 1}
    recipe = {"optimizer": "muon", "schedule": "linear", "warmup": 0.0, "neck": "norm", "augmentation": "translate"}
    spec = TrainSpec(**settings, **(recipe if asked.encoder.startswith("fast") else {}), precision=precision, threads=1)  # type: ignore[arg-type]
    encode, cross_entropy = bare_steps(spec, data)
    with FlopCounterMode(display=False) as counter:
        encode()
    product, product_flops = matrix_product(precision)
    least = take_turns(spec, data, {"network": encode, "bare": cross_entropy, "products": product})
    training, bare, network = least["training"], least["bare"], least["network"]
    rate, products = counter.get_total_flops() / training, product_flops / least["products"]
    outside = 1 - network / training
    print(f"{asked.method}, {asked.encoder}, {asked.batch_size} images in two views, precision {precision} ({reason})")
    print(f"one thread, the fastest of {asked.steps} steps of each kind, processor time")
    print(f"step: training {1e3 * training:.0f} ms, bare loop {1e3 * bare:.0f} ms, network {1e3 * network:.0f} ms")
    print(f"outside the network's forward and backward: {outside:.1%} of a step (wanted: {WANTED_OUTSIDE:.0%})")
    print(f"images/s: training {asked.batch_size / training:,.0f}, bare loop {asked.batch_size / bare:,.0f}", end="")
    print(f" (ratio {bare / training:.2f})")
    print(f"GFLOP/s: training {rate / 1e9:.0f}, matrix products {products / 1e9:.0f} (share {rate / products:.0%})")


if __name__ == "__main__":
    main()
