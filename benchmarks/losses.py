"""Speed and memory of the contrastive losses beside two peers, as ratios measured in one run.

    OMP_NUM_THREADS=1 python benchmarks/losses.py [--quick] [--write]

Forward + backward, float32. `dense` is the textbook form (an n-by-n mask and n-by-n logits); `metric-learning` is
pytorch-metric-learning's SupConLoss. Contestants take turns, three calls each of which the first is not counted, and
each one's best time counts. With one thread this is the processor's time, on which other programs have little effect.
`vs limit` is the time of SupCon over that of 4 n^2 d operations (the pairs once forward and once more in the gradient,
and the gradient's products) and n^2 exponentials, at the speed of a large square product and of `exp` on one block,
measured in the same turns. Up to about 5,000 rows pairs are computed only once, so the limit can be undercut.
`--write` replaces the tables of docs/performance.md.
"""

from __future__ import annotations

import argparse
import platform
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import torch
from pytorch_metric_learning.losses import SupConLoss
from torch import Tensor

from esupcon import functional as F

SIZES = ((256, 10), (256, 100), (1024, 10), (4096, 10), (8192, 10), (8192, 100))
LARGE = 4096  # above, n-by-n tensors of the peers fill the memory of an ordinary machine
TEMPERATURE = 0.1
DIM = 128
SIDE = 1024
PAGE = Path(__file__).parents[1] / "docs" / "performance.md"
BEGIN, END = "<!-- losses: begin -->", "<!-- losses: end -->"


def dense_supcon(z: Tensor, labels: Tensor) -> Tensor:
    """Return SupCon in its textbook form: an n-by-n mask and n-by-n logits."""
    z = torch.nn.functional.normalize(z)
    others = ~torch.eye(len(z), dtype=torch.bool, device=z.device)
    positives = ((labels[:, None] == labels[None, :]) & others).float()
    logits = z @ z.T / TEMPERATURE
    logits = logits - logits.max(1, keepdim=True).values.detach()
    log_probability = logits - (logits.exp() * others).sum(1, keepdim=True).log()
    return -((positives * log_probability).sum(1) / positives.sum(1)).mean()


def best_seconds(candidates: dict[str, Callable[[], object]], rounds: int) -> dict[str, float]:
    clock = time.process_time if torch.get_num_threads() == 1 else time.perf_counter
    best = dict.fromkeys(candidates, float("inf"))
    for _ in range(rounds):
        for name, run in candidates.items():
            for call in range(3):
                started = clock()
                run()
                if call:
                    best[name] = min(best[name], clock() - started)
    return best


def row(n: int, n_classes: int) -> str:
    """Return a line of the table. The peers are left out if n is large."""
    z = torch.randn(n, DIM, requires_grad=True)
    prototypes = torch.randn(n_classes, DIM, requires_grad=True)
    labels = torch.arange(n) % n_classes
    peer = SupConLoss(temperature=TEMPERATURE)
    losses: dict[str, Callable[[], Tensor]] = {
        "supcon": lambda: F.supcon_loss(z, labels, temperature=TEMPERATURE),
        "esupcon": lambda: F.esupcon_loss(z, labels, prototypes, temperature=TEMPERATURE),
    }
    if n <= LARGE:
        losses |= {"dense": lambda: dense_supcon(z, labels), "peer": lambda: peer(z, labels)}

    def both_ways(loss: Callable[[], Tensor]) -> Callable[[], None]:
        def run() -> None:
            z.grad = prototypes.grad = None
            loss().backward()

        return run

    square, block = torch.randn(SIDE, SIDE), torch.empty(SIDE, SIDE)
    speeds = {"product": lambda: square @ square, "exponentials": lambda: torch.exp(square, out=block)}
    best = best_seconds({name: both_ways(loss) for name, loss in losses.items()} | speeds, 25 if n <= 1024 else 3)
    limit = n * n * (2 * DIM / SIDE**3 * best["product"] + best["exponentials"] / SIDE**2)
    supcon = best["supcon"]
    peers = [f"{best[name] / supcon:.1f}x" if name in best else "-" for name in ("peer", "dense")]
    return (
        f"| {n:,} | {n_classes} | {1e3 * supcon:,.2f} | {supcon / limit:.2f} | {peers[0]} | {peers[1]} "
        f"| {best['esupcon'] / supcon:.2f} |"
    )


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


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="n up to 4,096 only, without the memory")
    parser.add_argument("--write", action="store_true", help="write the tables to docs/performance.md")
    arguments = parser.parse_args()
    lines: list[str] = []

    def show(*some: str) -> None:
        lines.extend(some)
        print(*some, sep="\n", flush=True)

    machine = f"torch {torch.__version__}, {torch.get_num_threads()} threads, {platform.machine()}"
    show(f"Forward + backward, float32, d = {DIM}, {machine}.", "")
    show("| n | K | SupCon, ms | vs limit | vs metric-learning | vs dense | ESupCon / SupCon |")
    show("|--:|--:|--:|--:|--:|--:|--:|")
    for n, n_classes in SIZES[: 4 if arguments.quick else None]:
        show(row(n, n_classes))
    if not arguments.quick:
        show("", "Peak memory above the inputs, d = 128:", "")
        show("| n | SupCon, MiB | ESupCon (K = 100), MiB |", "|--:|--:|--:|")
        show(f"| 32,768 | {peak_mebibytes(32768, 'supcon'):.0f} | {peak_mebibytes(32768, 'esupcon'):.0f} |")
    if arguments.write:
        before, _, rest = PAGE.read_text().partition(BEGIN)
        after = rest.partition(END)[2]
        PAGE.write_text(before + "\n".join([BEGIN, *lines, END]) + after)


if __name__ == "__main__":
    main()
