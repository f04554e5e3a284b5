"""Inputs for a reader as a seeded generator draws them: a hundred times as fast as Hypothesis, and never shrunk."""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Any

from mutations import CHANGES, LONGEST, ODD_VALUES, WORDS, Change, as_json, changed, edited


class Draws:
    """`draw(number)` is the same for the same number, whatever was drawn before."""

    def __init__(self, seeds: Sequence[bytes], seed: int) -> None:
        self._seeds, self._seed = list(seeds), seed
        self._documents = [value for value in map(as_json, seeds) if value is not None]

    def draw(self, number: int) -> bytes:
        return self.from_rng(random.Random(self._seed << 32 | number))

    def from_rng(self, rng: random.Random) -> bytes:
        if self._documents and rng.random() < 2 / 3:
            content = edited(rng.choice(self._documents), _places(rng), _value(rng))
            while rng.random() < 1 / 3:  # two or more things are wrong at once
                content = edited(as_json(content), _places(rng), _value(rng))
            return content
        if not self._documents and rng.random() < 1 / 10:
            return rng.randbytes(rng.randrange(200))
        return harmed(rng.choice(self._seeds), rng)


def harmed(content: bytes, rng: random.Random) -> bytes:
    return changed(content, [_change(rng) for _ in range(rng.choice((1, 1, 1, 2, 3, 5)))])


def _places(rng: random.Random) -> list[int]:
    return [rng.randrange(2**20) for _ in range(rng.randint(1, 6))]


def _value(rng: random.Random) -> Any:
    kind = rng.random()
    if kind < 0.7:
        return rng.choice(ODD_VALUES)
    if kind < 0.8:
        return rng.randint(-(2**40), 2**40)
    if kind < 0.9:
        return rng.gauss(0, 1) * 10.0 ** rng.randint(-12, 12)
    return {"key": rng.choice(ODD_VALUES)} if kind < 0.95 else [rng.choice(ODD_VALUES) for _ in range(3)]


def _change(rng: random.Random) -> Change:
    kind, place = rng.choice(CHANGES), rng.randrange(2**20)
    if kind == "flip":
        return kind, place, rng.randrange(8)
    if kind in ("remove", "repeat"):
        return kind, place, rng.randint(1, LONGEST)
    if kind == "insert" and rng.random() < 1 / 3:
        return kind, place, rng.randbytes(rng.randrange(9))
    return kind, place, rng.choice(WORDS)
