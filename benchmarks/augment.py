"""Two SimCLR views of a batch, beside kornia: both from uint8 to normalised float32, turn by turn in one run.

    python benchmarks/augment.py [--batch 512] [--size 32] [--rounds 15] [--threads 1] [--at-least 4]

kornia runs its random resized crop, horizontal flip, colour jitter at p 0.8, random greyscale and normalisation
once for each view (faster than both views as one batch), with either of its two ways to crop; the ratio is taken
to the faster one. With one thread this is the processor's time, on which other programs have little effect. The exit
status is 1 where the ratio falls below ``--at-least``.
"""

from __future__ import annotations

import argparse
import platform
import statistics
import sys
import time
from collections.abc import Callable

import kornia
import torch
from kornia import augmentation as peer
from torch import Tensor, nn

from esupcon.data.augment import two_views
from esupcon.data.augmentations import AUGMENTATIONS, ImageAugmentation


def kornia_views(augmentation: ImageAugmentation, size: int, cropping: str) -> Callable[[Tensor], Tensor]:
    """kornia's sequence with the augmentation's numbers."""
    sequence = nn.Sequential(
        peer.RandomResizedCrop((size, size), augmentation.crop_area, augmentation.crop_aspect, cropping_mode=cropping),
        peer.RandomHorizontalFlip(augmentation.flip),
        peer.ColorJitter(
            augmentation.brightness,
            augmentation.contrast,
            augmentation.saturation,
            augmentation.hue,
            p=augmentation.jitter,
        ),
        peer.RandomGrayscale(p=augmentation.grey),
        peer.Normalize(mean=torch.full((3,), augmentation.mean), std=torch.full((3,), augmentation.std)),
    )

    def views(images: Tensor) -> Tensor:
        pixels = images.float().div_(255)
        return torch.cat((sequence(pixels), sequence(pixels)))

    return views


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--batch", type=int, default=512)
    parser.add_argument("--size", type=int, default=32)
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--at-least", type=float, default=4.0, help="the ratio below which the run fails")
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    clock = time.process_time if options.threads == 1 else time.perf_counter

    generator = torch.Generator().manual_seed(0)
    images = torch.randint(
        0, 256, (options.batch, 3, options.size, options.size), generator=generator, dtype=torch.uint8
    )
    augmentation = AUGMENTATIONS["simclr"]
    assert isinstance(augmentation, ImageAugmentation)
    contestants: dict[str, Callable[[Tensor], Tensor]] = {
        "esupcon": lambda batch: two_views(batch, generator, augmentation),
        "kornia, resample": kornia_views(augmentation, options.size, "resample"),
        "kornia, slice": kornia_views(augmentation, options.size, "slice"),
    }
    seconds: dict[str, list[float]] = {name: [] for name in contestants}
    for turn in range(options.rounds + 2):
        for name, make in contestants.items():
            start = clock()
            views = make(images)
            elapsed = clock() - start
            if views.shape != (2 * options.batch, 3, options.size, options.size) or views.dtype != torch.float32:
                raise RuntimeError(f"{name} made {views.dtype} of shape {tuple(views.shape)}")
            if turn >= 2:  # the first two turns warm caches and allocators
                seconds[name].append(elapsed)

    print(
        f"two views of {options.batch} x 3 x {options.size} x {options.size}, threads={options.threads}, "
        f"torch {torch.__version__}, kornia {kornia.__version__}, {platform.machine()}; "
        f"median (fastest - slowest), n={options.rounds}"
    )
    middle = {name: statistics.median(times) for name, times in seconds.items()}
    for name, times in seconds.items():
        print(
            f"{name:18} {middle[name] * 1e3:8.1f} ms ({min(times) * 1e3:.1f} - {max(times) * 1e3:.1f})"
            f" {2 * options.batch / middle[name]:10,.0f} views/s"
        )
    fastest_peer = min((name for name in middle if name != "esupcon"), key=lambda name: middle[name])
    ratio = middle[fastest_peer] / middle["esupcon"]
    met = ratio >= options.at_least
    print(f"ratio to {fastest_peer}: {ratio:.1f}x ({'met' if met else 'MISSED'}: at least {options.at_least:g}x)")
    return 0 if met else 1


if __name__ == "__main__":
    sys.exit(main())
