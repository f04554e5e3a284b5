"""Decoding image files on one thread and on all cores, beside plain Pillow; ratios measured in one run.

    python benchmarks/decode.py [--tree FOLDER] [--images N] [--made-side PIXELS] [--size SIDE] [--rounds R]

Without --tree, N JPEGs of 64x64 (or --made-side) are made first. `plain Pillow` opens each file, converts it to RGB
and makes it an array. `one thread` and `threads` are ours, to a mapped array; `loading` is `esupcon.data.load` from an
empty cache, `second start` the same with the cache there. Contestants take turns, and each one's best time counts. The
exit status is 1 if threads are not at least --at-least times as fast as one thread.
"""

import argparse
import platform
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
from PIL import Image
from PIL import __version__ as pillow_version

from esupcon._console import usable_cores
from esupcon.data import load
from esupcon.data.decode import SUFFIXES, DecodeSpec, decode_images


def make_jpegs(folder: Path, n: int, side: int) -> list[str]:
    """Smooth shapes under some noise, in two classes: about two kilobytes each, as photographs of 64x64 are."""
    rng = np.random.default_rng(0)
    paths = []
    for i in range(n):
        coarse = Image.fromarray(rng.integers(0, 256, (7, 7, 3), np.uint8))
        smooth = np.asarray(coarse.resize((side, side), Image.Resampling.BICUBIC), np.float32)
        noisy = smooth + rng.normal(0, 6, smooth.shape).astype(np.float32)
        path = folder / f"class{i % 2}" / f"{i:06}.jpg"
        path.parent.mkdir(exist_ok=True)
        Image.fromarray(np.clip(noisy, 0, 255).astype(np.uint8)).save(path, quality=85)
        paths.append(str(path))
    return paths


def files_in(tree: Path, n: int) -> list[str]:
    """Up to n image files of the tree; where it has fewer, they come again."""
    found = sorted(str(path) for path in tree.rglob("*") if path.suffix.lower() in SUFFIXES)
    if not found:
        raise SystemExit(f"no image files in {tree}")
    return (found * (n // len(found) + 1))[:n]


def plain_pillow(paths: list[str], size: int) -> None:
    for path in paths:
        with Image.open(path) as image:
            picture = image.convert("RGB")
            if picture.size != (size, size):
                picture = picture.resize((size, size), Image.Resampling.BILINEAR)
            np.asarray(picture)


def decoding(paths: list[str], size: int, workers: int | None) -> None:
    with tempfile.TemporaryDirectory() as folder:
        rows = np.memmap(Path(folder) / "images.u8", np.uint8, mode="w+", shape=(len(paths), 3, size, size))
        unreadable = decode_images(paths, rows, DecodeSpec(size, size), workers=workers)
        if unreadable:
            raise SystemExit(f"{len(unreadable)} files are unreadable; a benchmark needs intact ones")


def best_of(contestants: dict[str, Callable[[], object]], rounds: int) -> dict[str, float]:
    best = dict.fromkeys(contestants, float("inf"))
    for _ in range(rounds):
        for name, contestant in contestants.items():
            start = time.perf_counter()
            contestant()
            best[name] = min(best[name], time.perf_counter() - start)
    return best


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tree", type=Path, help="a folder of images to use instead of made ones")
    parser.add_argument("--images", type=int, default=10_000)
    parser.add_argument("--made-side", type=int, default=64)
    parser.add_argument("--size", type=int, default=64)
    parser.add_argument("--at-least", type=float, default=1.1)
    parser.add_argument("--rounds", type=int, default=5)
    asked = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="esupcon-bench-") as scratch:
        folder = Path(scratch)
        contestants: dict[str, Callable[[], object]] = {}
        if asked.tree is None:
            (folder / "made").mkdir()
            paths = make_jpegs(folder / "made", asked.images, asked.made_side)
            cold = iter(range(10**6))

            def load_with(cache: str) -> object:
                return load(folder / "made", image_size=asked.size, cache_dir=folder / cache, log=lambda line: None)

            load_with("warm")
            contestants["loading"] = lambda: load_with(f"cold{next(cold)}")
            contestants["second start"] = lambda: load_with("warm")
        else:
            paths = files_in(asked.tree, asked.images)
        contestants = {
            "plain Pillow": lambda: plain_pillow(paths, asked.size),
            "one thread": lambda: decoding(paths, asked.size, 1),
            "threads": lambda: decoding(paths, asked.size, None),
            **contestants,
        }
        best = best_of(contestants, asked.rounds)
    cores = usable_cores()
    print(f"{len(paths):,} images to {asked.size}x{asked.size}, {cores} cores, {platform.machine()}")
    print(f"Python {platform.python_version()}, Pillow {pillow_version}, NumPy {np.__version__}")
    for name, seconds in best.items():
        ratio = best["plain Pillow"] / seconds
        print(f"{name:>13}  {seconds:7.3f} s  {len(paths) / seconds:9,.0f} images/s  {ratio:6.2f} x plain Pillow")
    reached = best["one thread"] / best["threads"]
    print(f"threads are {reached:.2f} times as fast as one thread (at least {asked.at_least})")
    return 0 if reached >= asked.at_least else 1


if __name__ == "__main__":
    sys.exit(main())
