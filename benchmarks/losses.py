"""Speed and memory of the contrastive losses beside two peers, as ratios measured in one run.

    python benchmarks/losses.py [--quick] [--markdown FILE]

Forward + backward, float32. `dense` is the textbook form (an n-by-n mask and n-by-n logits); `metric-learning` is
pytorch-metric-learning's SupConLoss. Contestants take turns, and each one's best time counts. `vs limit` is the time of
SupCon over that of its matrix products and exponentials alone, at the speed of a large square product and of `exp_` on
one block, measured in the same turns.
"""

from __future__ import annotations

import argparse
import importlib.util
import platform
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from esupcon import functional as F
from esupcon._contrast import KEEP_BYTES
from esupcon.cli.bench import best_seconds

SIZES = (256, 1024, 4096, 8192, 16384, 32768, 65536)
LARGE = 8192  # above, n-by-n tensors fill the memory of an ordinary machine
TEMPERATURE = 0.1
SIDE = 1024


@dataclass(frozen=True)
class LossTimes:
    """Seconds of a forward and a backward pass over n embeddings; None if it was not run."""

    n: int
    supcon: float
    esupcon: float
    dense: float | None
    metric_learning: float | None
    limit: float  # of the products and exponentials that SupCon computes


def dense_supcon(z: Tensor, labels: Tensor) -> Tensor:
    """Return SupCon in its textbook form: an n-by-n mask and n-by-n logits."""
    z = torch.nn.functional.normalize(z)
    others = ~torch.eye(len(z), dtype=torch.bool, device=z.device)
    positives = ((labels[:, None] == labels[None, :]) & others).float()
    logits = z @ z.T / TEMPERATURE
    logits = logits - logits.max(1, keepdim=True).values.detach()
    log_probability = logits - (logits.exp() * others).sum(1, keepdim=True).log()
    return -((positives * log_probability).sum(1) / positives.sum(1)).mean()


def time_losses(n: int, *, dim: int, n_classes: int) -> LossTimes:
    """Return the best times of some turns. Quadratic candidates are left out if n is large."""
    z = torch.randn(n, dim, requires_grad=True)
    prototypes = torch.randn(n_classes, dim, requires_grad=True)
    labels = torch.arange(n) % n_classes
    losses: dict[str, Callable[[], Tensor]] = {
        "supcon": lambda: F.supcon_loss(z, labels, temperature=TEMPERATURE),
        "esupcon": lambda: F.esupcon_loss(z, labels, prototypes, temperature=TEMPERATURE),
    }
    if n <= LARGE:
        losses["dense"] = lambda: dense_supcon(z, labels)
        if importlib.util.find_spec("pytorch_metric_learning"):
            from pytorch_metric_learning.losses import SupConLoss  # noqa: PLC0415 - a peer, not a dependency

            peer = SupConLoss(temperature=TEMPERATURE)
            losses["metric_learning"] = lambda: peer(z, labels)

    square, block = torch.randn(SIDE, SIDE), torch.zeros(SIDE, SIDE)
    speeds = {"product": lambda: square @ square, "exponentials": lambda: block.exp_().zero_()}

    def both_ways(loss: Callable[[], Tensor]) -> Callable[[], None]:
        def run() -> None:
            z.grad = prototypes.grad = None
            loss().backward()

        return run

    steps = {name: both_ways(loss) for name, loss in losses.items()}
    best = best_seconds(steps | speeds, 60 if n <= 2048 else 4)
    # Half of the pairs forward, and again backward if they were not kept; then the gradient of all pairs.
    visits = 0.5 if n * n * 2 <= KEEP_BYTES else 1.0
    limit = n * n * (visits + 1) * dim / SIDE**3 * best["product"] + n * n * visits / SIDE**2 * best["exponentials"]
    return LossTimes(n, best["supcon"], best["esupcon"], best.get("dense"), best.get("metric_learning"), limit)


PROBE = """
import sys, torch
from pathlib import Path
from esupcon import functional as F
def status(name):
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith(name + ":"))
n, name = int(sys.argv[1]), sys.argv[2]
labels = torch.arange(n) % 100
prototypes = torch.randn(100, 128, requires_grad=True)
def step(z, y):
    loss = F.supcon_loss(z, y) if name == "supcon" else F.esupcon_loss(z, y, prototypes)
    loss.backward()
step(torch.randn(512, 128, requires_grad=True), labels[:512])  # libraries and threads are loaded before the count
z = torch.randn(n, 128, requires_grad=True)
z.grad = torch.zeros_like(z)
Path("/proc/self/clear_refs").write_text("5")  # the peak is counted from here
before = status("VmRSS")
step(z, labels)
print((status("VmHWM") - before) / 1024)
"""


def peak_mebibytes(n: int, loss: str) -> float:
    """Peak resident memory above the inputs (z and its gradient), in a process of its own; Linux only."""
    out = subprocess.run([sys.executable, "-P", "-c", PROBE, str(n), loss], capture_output=True, text=True, check=True)
    return float(out.stdout)


def table(sizes: tuple[int, ...]) -> list[str]:
    lines = [
        "| n | d | K | SupCon, ms | vs limit | vs metric-learning | vs dense | ESupCon / SupCon |",
        "|--:|--:|--:|--:|--:|--:|--:|--:|",
    ]
    for d in (128, 512):
        for k in (10, 100):
            for n in sizes:
                if n > LARGE and (d, k) != (128, 100):
                    continue  # minutes each, and of the same shape
                lines.append(row(time_losses(n, dim=d, n_classes=k), d, k))
                print(lines[-1], flush=True)
    return lines


def row(times: LossTimes, d: int, k: int) -> str:
    def ratio(seconds: float | None) -> str:
        return "-" if seconds is None else f"{seconds / times.supcon:.1f}x"

    return (
        f"| {times.n:,} | {d} | {k} | {1e3 * times.supcon:,.2f} | {times.supcon / times.limit:.2f} "
        f"| {ratio(times.metric_learning)} | {ratio(times.dense)} | {times.esupcon / times.supcon:.2f} |"
    )


def memory(sizes: tuple[int, ...]) -> list[str]:
    lines = ["| n | SupCon, MiB | ESupCon (K = 100), MiB |", "|--:|--:|--:|"]
    for n in sizes:
        lines.append(f"| {n:,} | {peak_mebibytes(n, 'supcon'):.0f} | {peak_mebibytes(n, 'esupcon'):.0f} |")
        print(lines[-1], flush=True)
    return lines


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="n up to 4,096 only")
    parser.add_argument("--markdown", type=Path, help="also write the tables to this file")
    arguments = parser.parse_args()
    sizes = SIZES[:3] if arguments.quick else SIZES
    machine = f"torch {torch.__version__}, {torch.get_num_threads()} threads, {platform.machine()}"
    print(f"Forward + backward, float32, {machine}\n")
    lines = [
        f"Forward + backward, float32, {machine}.",
        "",
        *table(sizes),
        "",
        "Peak memory above the inputs, d = 128:",
        "",
    ]
    print("\nPeak memory above the inputs, d = 128:\n")
    lines += memory(sizes[-2:])
    if arguments.markdown:
        arguments.markdown.write_text("\n".join(lines) + "\n")


if __name__ == "__main__":
    main()
