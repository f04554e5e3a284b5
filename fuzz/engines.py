"""Who invents the cases: a seeded generator, Hypothesis, or atheris."""

from __future__ import annotations

import os
import random
import sys
import tempfile
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path

from attempts import Attempts, bound_memory
from draws import Draws, harmed
from hypothesis import HealthCheck, Phase, given, seed, settings
from shrinking import inputs

#: What atheris follows: our own code, and the parsers of the standard library beneath it.
FOLLOWED = ("esupcon", "zipfile", "tarfile", "csv", "pickle", "tomllib")

Engine = Callable[[Attempts, int, int], None]


def drawn(attempts: Attempts, cases: int, first: int) -> None:
    draws = Draws(attempts.take_seeds(), first)
    bound_memory()
    for number in range(cases):
        attempts.attempt(draws.draw(number))
    attempts.write_outcome()


def with_hypothesis(attempts: Attempts, cases: int, first: int) -> None:
    seeds = attempts.take_seeds()
    bound_memory()

    @seed(first)
    @settings(
        max_examples=cases,
        deadline=None,
        database=None,
        phases=[Phase.generate, Phase.shrink],
        suppress_health_check=list(HealthCheck),
    )
    @given(inputs(seeds))
    def attempt(content: bytes) -> None:
        crash = attempts.attempt(content)
        if crash is not None:
            raise crash

    try:
        attempt()
    finally:
        attempts.write_outcome()


def with_atheris(attempts: Attempts, cases: int, first: int) -> None:
    """Ends the process: libFuzzer, which atheris drives, does not come back."""
    import atheris  # noqa: PLC0415 - where it is installed

    seeds = attempts.take_seeds()
    draws = Draws(seeds, first)
    folder = Path(tempfile.gettempdir())
    corpus = folder / "corpus"
    corpus.mkdir()
    for number, content in enumerate(seeds):
        (corpus / str(number)).write_bytes(content)
    bound_memory()

    def attempt(content: bytes) -> None:
        attempts.attempt(content)
        if attempts.n_cases >= cases:
            attempts.write_outcome()
            os._exit(0)

    def mutate(content: bytes, most: int, number: int) -> bytes:
        """A third of its own, which knows what the code compares with, a third of our harm, a third of new draws."""
        rng = random.Random(number)
        kind = rng.randrange(3)
        if kind == 0:
            return bytes(atheris.Mutate(content, most))
        return (harmed(content, rng) if kind == 1 else draws.from_rng(rng))[:most]

    options = ["-runs=-1", f"-seed={first + 1}", "-max_len=131072", "-len_control=0", "-verbosity=0"]
    options += [f"-artifact_prefix={folder}/", str(corpus)]
    atheris.Setup([sys.argv[0], *options], attempt, custom_mutator=mutate)
    atheris.Fuzz()


def followed(engine: str) -> AbstractContextManager[object]:
    """The context in which readers are imported for an engine."""
    if engine != "atheris":
        return nullcontext()
    import atheris  # noqa: PLC0415

    return atheris.instrument_imports(include=list(FOLLOWED))


ENGINES: dict[str, Engine] = {"drawn": drawn, "hypothesis": with_hypothesis, "atheris": with_atheris}
