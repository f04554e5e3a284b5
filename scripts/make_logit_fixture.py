"""Make tests/probability/fixtures/cifar10_logits.npz: real logits of a small network on CIFAR-10 test images.

The network is trained past the point where its confidence is honest, because calibration is what the tests
exercise. Some five minutes on one core:

    python scripts/make_logit_fixture.py --data DATA --output tests/probability/fixtures/cifar10_logits.npz
"""

import argparse
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from esupcon.data import load
from esupcon.probability import Predictions


def as_tensor(images: NDArray[np.uint8]) -> torch.Tensor:
    """(n, 3, 32, 32) bytes as floats in [-2, 2]."""
    return torch.from_numpy(images.copy()).float().sub_(127.5).div_(64)


def small_network(n_classes: int) -> nn.Module:
    def block(width_in: int, width_out: int) -> list[nn.Module]:
        convolution = nn.Conv2d(width_in, width_out, 3, padding=1, bias=False)
        return [convolution, nn.BatchNorm2d(width_out), nn.ReLU(), nn.MaxPool2d(2)]

    layers = [*block(3, 32), *block(32, 64), *block(64, 128), nn.Flatten(), nn.Linear(128 * 16, n_classes)]
    return nn.Sequential(*layers)


def train(network: nn.Module, images: torch.Tensor, labels: torch.Tensor, *, epochs: int, batch: int) -> None:
    steps = len(images) // batch
    optimiser = torch.optim.SGD(network.parameters(), lr=0.05, momentum=0.9, nesterov=True, weight_decay=5e-4)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimiser, max_lr=0.1, total_steps=epochs * steps)
    network.train()
    for epoch in range(epochs):
        order = torch.randperm(len(images))
        total = 0.0
        for rows in order[: steps * batch].split(batch):
            flipped = images[rows].flip(3) if torch.rand(()) < 0.5 else images[rows]
            loss = nn.functional.cross_entropy(network(flipped), labels[rows])
            optimiser.zero_grad()
            loss.backward()
            optimiser.step()
            schedule.step()
            total += float(loss.detach())
        print(f"epoch {epoch + 1}/{epochs}: loss {total / steps:.3f}", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, required=True, help="the folder that holds cifar-10-batches-py")
    parser.add_argument("--output", type=Path, required=True, help="the .npz file to write")
    parser.add_argument("--epochs", type=int, default=14)
    parser.add_argument("--train-images", type=int, default=20_000, help="the first so many are trained on")
    parser.add_argument("--samples", type=int, default=3000, help="test images whose logits are stored")
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()

    torch.manual_seed(options.seed)
    data = load("cifar10", data_dir=options.data, download=False)
    images, labels = data.x_train[: options.train_images], data.y_train[: options.train_images]
    network = small_network(n_classes=10)
    train(network, as_tensor(images), torch.from_numpy(labels), epochs=options.epochs, batch=128)

    network.eval()
    with torch.inference_mode():
        logits = network(as_tensor(data.x_test[: options.samples])).numpy()
    # Half precision halves the file and moves a logit by a two-thousandth of itself at most.
    predictions = Predictions(logits.astype(np.float16), data.y_test[: options.samples])
    predictions.save(options.output)
    accuracy = np.mean(logits.argmax(axis=1) == predictions.labels)
    print(f"{options.output}: {options.samples} samples, accuracy {accuracy:.3f}")


if __name__ == "__main__":
    main()
