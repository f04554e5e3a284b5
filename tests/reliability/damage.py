"""Ways in which a file comes to harm: bits that flip, ends that are missing, contents that are gone."""

from __future__ import annotations

import random
from collections.abc import Iterator


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
