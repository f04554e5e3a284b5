"""What runs cost: how many images they see, and how long this machine takes for one."""

from __future__ import annotations

import statistics
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from esupcon.experiments.spec import RunSpec
from esupcon.experiments.store import StoredRun
from esupcon.methods import METHODS


@dataclass(frozen=True)
class Known:
    """What can be said of a named set without reading it."""

    n_train: int
    n_classes: int
    image_shape: tuple[int, int, int]


KNOWN = {
    "digits": Known(1437, 10, (1, 8, 8)),
    "cifar10": Known(50_000, 10, (3, 32, 32)),
    "cifar100": Known(50_000, 100, (3, 32, 32)),
    "tiny_imagenet": Known(100_000, 200, (3, 32, 32)),
    "caltech256": Known(256 * 60, 256, (3, 64, 64)),
}
# A frozen encoder is only run forward, about a third of a training step.
_FORWARD_SHARE = 1 / 3
_PROBE_IMAGES, _PROBE_ROUNDS = 16, 3


def images_seen(spec: RunSpec, *, first_stage_is_kept: bool = False) -> float | None:
    """Images a run trains on, all passes together, in units of full training steps; None for own data of unknown size.

    Each image is seen in two views. `first_stage_is_kept`: a run before it trains the first stage for both.
    """
    n = _n_fit(spec)
    train = spec.train
    if train.steps is not None:
        main = float(train.steps * min(train.batch_size, n or train.batch_size))
    elif n is not None:
        main = float(n * train.epochs)
    else:
        return None
    if train.method not in METHODS:
        return main  # an own method that this process does not know: one stage is the usual
    stages = METHODS[train.method].stages[first_stage_is_kept:]
    return sum(main * stage.epochs * (1.0 if "encoder" in stage.trains else _FORWARD_SHARE) for stage in stages)


def first_stages_kept(specs: Sequence[RunSpec]) -> list[bool]:
    """Of runs that one grid gives out, which find their first stage trained by another of them."""
    trained = {spec.first_stage for spec in specs if not spec.takes_first_stage}
    kept = []
    for spec in specs:
        kept.append(spec.takes_first_stage and spec.first_stage in trained)
        trained.add(spec.first_stage)
    return kept


def _n_fit(spec: RunSpec) -> float | None:
    known = KNOWN.get(spec.dataset)
    n: float | None = spec.n_train
    if n is None and known is not None:
        n = known.n_train * (1.0 if spec.imbalance_rate is None else (1 + spec.imbalance_rate) / 2)
    return None if n is None else n * (1 - spec.validation_fraction)


class Probe:
    """Measures a training step of each encoder once, with `threads` threads; nothing of a data set is read."""

    def __init__(self, threads: int) -> None:
        self._threads = threads
        self._seconds: dict[tuple[str, tuple[int, int, int]], float] = {}

    def seconds(self, spec: RunSpec, *, first_stage_is_kept: bool = False) -> float | None:
        """Of a whole run; None where its data are of unknown size and shape."""
        known = KNOWN.get(spec.dataset)
        images = images_seen(spec, first_stage_is_kept=first_stage_is_kept)
        if known is None or images is None:
            return None
        shape = known.image_shape
        side = spec.data.get("image_size")
        if isinstance(side, int):
            shape = (shape[0], side, side)
        place = (spec.train.encoder, shape)
        if place not in self._seconds:
            self._seconds[place] = _measure(*place, self._threads)
        return images * self._seconds[place]


def _measure(encoder: str, shape: tuple[int, int, int], threads: int) -> float:
    """Seconds a training image takes in its two views: forward and backward of the encoder, which rules the rest."""
    import torch  # noqa: PLC0415 - slow to import, and not needed to list runs

    from esupcon.models import build_encoder  # noqa: PLC0415

    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
        network = build_encoder(encoder, input_shape=shape).to(device).train()
        views = torch.rand(2 * _PROBE_IMAGES, *shape, device=device).contiguous(memory_format=torch.channels_last)
        times = []
        for _ in range(_PROBE_ROUNDS + 1):
            started = time.perf_counter()
            network(views).square().mean().backward()
            if device.type == "cuda":
                torch.cuda.synchronize()
            times.append(time.perf_counter() - started)
    finally:
        torch.set_num_threads(before)
    return statistics.median(times[1:]) / _PROBE_IMAGES


def seconds_left(remaining: Iterable[RunSpec], finished: Iterable[StoredRun], workers: int) -> float | None:
    """From what finished runs with the same encoder took; None where nothing can be said."""
    rates: dict[str, list[float]] = {}
    for run in finished:
        images = images_seen(run.spec)
        if images:
            rates.setdefault(run.spec.train.encoder, []).append(run.seconds / images)
    means: Mapping[str, float] = {encoder: statistics.fmean(values) for encoder, values in rates.items()}
    total, specs = 0.0, list(remaining)
    for spec, is_kept in zip(specs, first_stages_kept(specs), strict=True):
        images = images_seen(spec, first_stage_is_kept=is_kept)
        if images is None or spec.train.encoder not in means:
            return None
        total += images * means[spec.train.encoder]
    return total / max(1, workers)
