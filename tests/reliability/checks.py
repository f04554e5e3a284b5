"""Damage to files, and what commands must say and leave."""

from __future__ import annotations

import hashlib
import random
from collections.abc import Iterator
from pathlib import Path

from warm import Ended

from esupcon.experiments.grid import resolve
from esupcon.experiments.plan import make_plan
from esupcon.experiments.store import Store
from stored_results import outcome

TRAIN = ("--encoder", "mlp-16x1", "--precision", "32", "--batch-size", "30", "--epochs", "3")
MEGABYTE = 1 << 20
TABLE = 'title = "Corners"\nmethods = ["ce", "esupcon"]\n[[columns]]\ndataset = "{data}"\n'
PROFILE = 'title = "Quick"\nseeds = {seeds}\nvalidation_fraction = 0.1\n[train]\n'
PROFILE += 'encoder = "mlp-16x1"\nepochs = {epochs}\nbatch_size = 30\nprecision = "32"\n'


def damaged(content: bytes, n_flips: int, seed: int = 0) -> Iterator[tuple[str, bytes]]:
    """(what was done, the content after it): flips in `n_flips` places, truncations, an empty file, zeroes."""
    rng = random.Random(seed)
    for _ in range(n_flips):
        place, bit = rng.randrange(len(content)), rng.randrange(8)
        changed = bytearray(content)
        changed[place] ^= 1 << bit
        yield f"bit {bit} of byte {place} flipped", bytes(changed)
    for keep in (0, 1, len(content) // 3, len(content) // 2, len(content) - 1):
        yield f"cut after {keep} bytes", content[:keep]
    middle = len(content) // 2
    yield "a block of zeroes", content[:middle] + bytes(len(content[middle : middle + 64])) + content[middle + 64 :]


def small_grid(folder: Path, data: Path, *, seeds: int, epochs: int) -> tuple[list[str], list[str]]:
    """Return the command that trains two methods for all seeds, without its store, and the keys of the runs."""
    (folder / "table.toml").write_text(TABLE.format(data=data))
    (folder / "profile.toml").write_text(PROFILE.format(seeds=seeds, epochs=epochs))
    names = str(folder / "table.toml"), str(folder / "profile.toml")
    (plan,) = resolve([make_plan(*names)])
    return ["reproduce", names[0], "--profile", names[1], "--store"], sorted(row.key for row in plan.rows)


def assert_same_runs(found: Store, undisturbed: Store, keys: list[str]) -> None:
    """All runs are there, equal to those of another store, and nothing else."""
    assert found.keys() == keys
    for key in keys:
        assert outcome(found.run_folder(key)) == outcome(undisturbed.run_folder(key))
    assert not list((found.root / "work").iterdir())


def assert_one_clear_line(ended: Ended, *words: object, code: int = 2) -> None:
    assert ended.code == code, ended.err
    assert "Traceback" not in ended.err
    assert ended.last_line.startswith("esupcon: "), ended.err
    for word in words:
        assert str(word) in ended.last_line, ended.last_line


def contents(folder: Path) -> dict[str, str]:
    return {
        str(path.relative_to(folder)): hashlib.sha256(path.read_bytes()).hexdigest()
        for path in sorted(folder.rglob("*"))
        if path.is_file()
    }
