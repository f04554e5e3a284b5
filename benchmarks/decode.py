"""Decoding image files beside plain Pillow on one core, as ratios measured in one run.

    python benchmarks/decode.py [--tree FOLDER] [--images N] [--size SIDE] [--rounds R]

Without --tree, N JPEGs of 64x64 are made first. `plain Pillow` opens each file, converts it to RGB and makes it
an array, in one process. `decoding` is ours on all cores, starting its helpers included, to a mapped array;
`loading` is `esupcon.data.load` from an empty cache, `second start` the same with the cache there. Contestants
take turns, and each one's best time counts. Exits with status 1 where decoding stays below 0.8 x cores.
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

from esupcon.data import load
from esupcon.data.decode import SUFFIXES, DecodeSpec
from esupcon.data.decode_pool import DecodePool, helpers_for, usable_cores

TARGET = 0.8
MADE_SIDE = 64


def make_jpegs(folder: Path, n: int) -> list[str]:
    """Smooth shapes under some noise, in two classes: about two kilobytes each, as photographs of 64x64 are."""
    rng = np.random.default_rng(0)
    paths = []
    for i in range(n):
        coarse = Image.fromarray(rng.integers(0, 256, (7, 7, 3), np.uint8))
        smooth = np.asarray(coarse.resize((MADE_SIDE, MADE_SIDE), Image.Resampling.BICUBIC), np.float32)
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


def decoding(paths: list[str], n_bytes: int, size: int) -> None:
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "images.u8"
        rows = np.memmap(file, np.uint8, mode="w+", shape=(len(paths), 3, size, size))
        with DecodePool(helpers_for(len(paths), n_bytes, None)) as pool:
            findings = pool.decode(paths, file, rows, DecodeSpec(size, size), lambda n: None)
        if findings.unreadable:
            raise SystemExit(f"{len(findings.unreadable)} files are unreadable; a benchmark needs sound ones")


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
    parser.add_argument("--size", type=int, default=64)
    parser.add_argument("--rounds", type=int, default=5)
    asked = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="esupcon-bench-") as scratch:
        folder = Path(scratch)
        contestants: dict[str, Callable[[], object]] = {}
        if asked.tree is None:
            (folder / "made").mkdir()
            paths = make_jpegs(folder / "made", asked.images)
            cold = iter(range(10**6))

            def load_with(cache: str) -> object:
                return load(folder / "made", image_size=asked.size, cache_dir=folder / cache, log=lambda line: None)

            load_with("warm")
            contestants["loading"] = lambda: load_with(f"cold{next(cold)}")
            contestants["second start"] = lambda: load_with("warm")
        else:
            paths = files_in(asked.tree, asked.images)
        n_bytes = sum(Path(path).stat().st_size for path in paths)  # known from the listing, as in `load`
        contestants = {
            "plain Pillow": lambda: plain_pillow(paths, asked.size),
            "decoding": lambda: decoding(paths, n_bytes, asked.size),
            **contestants,
        }
        best = best_of(contestants, asked.rounds)
    cores = usable_cores()
    print(f"{len(paths):,} images to {asked.size}x{asked.size}, {cores} cores, {platform.machine()}")
    print(f"Python {platform.python_version()}, Pillow {pillow_version}, NumPy {np.__version__}")
    for name, seconds in best.items():
        ratio = best["plain Pillow"] / seconds
        print(f"{name:>13}  {seconds:7.3f} s  {len(paths) / seconds:9,.0f} images/s  {ratio:6.2f} x plain Pillow")
    reached = best["plain Pillow"] / best["decoding"] / cores
    print(f"decoding reaches {reached:.2f} x cores x plain Pillow (target {TARGET})")
    return 0 if reached >= TARGET else 1


if __name__ == "__main__":
    sys.exit(main())
