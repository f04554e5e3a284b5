"""Training with labels that may be wrong: a memory of what the network believes about every training sample.

Early in training a network agrees with most right labels and with few wrong ones; later it fits both. So the memory
keeps a running mean of the posterior of each training sample, over its views, and its embedding, whose neighbours
vote on its label. From `START` of the training on, the target of a sample moves from its given label to this belief,
and the most probable class of the mixture decides which samples are positives.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import normalize, one_hot

#: Shares of the training at which targets begin to move to the belief and arrive there, and how far they move.
START, FULL, MOST = 0.3, 0.7, 0.9
#: What is kept of the running mean when a sample is seen again.
KEPT = 0.6
#: Neighbours that vote on a label, and the most similarities that are held at a time.
NEIGHBOURS, BLOCK = 20, 2**24
#: Estimated share of wrong labels from which `label_noise="auto"` changes the targets.
AUTO_RATE = 0.12
#: Epochs before an estimate: what was recorded in the first ones comes from a network that knew little.
MIN_EPOCHS = 3
#: Fewest classes for an estimate, and most values that the memory may hold for one: 0.5 GB.
MIN_CLASSES, MAX_VALUES = 5, 2**27


class LabelMemory:
    """What a network believes about the labels (n,) of its training samples; part of the checkpoints of a run.

    `rate` is the share of wrong labels; None: it is estimated at `START`, and below `AUTO_RATE` labels stay as given.
    """

    def __init__(self, labels: Tensor, n_classes: int, rate: float | None) -> None:
        self.given, self.n_classes, self.rate = labels, n_classes, rate
        self.estimates = rate is None
        self.posterior: Tensor | None = None  # (n, K), if the stage trains a head
        self.embedding: Tensor | None = None  # (n, d)
        self.votes: Tensor | None = None  # (n, K)
        self.seen = torch.zeros(len(labels), dtype=torch.bool, device=labels.device)

    @property
    def is_used(self) -> bool:
        """Whether targets differ from the given labels, or will."""
        return self.rate is not None and (self.rate > 0 if not self.estimates else self.rate >= AUTO_RATE)

    @property
    def is_needed(self) -> bool:
        """Whether the outputs of the network have to be recorded."""
        return self.rate is None or self.is_used

    def belief(self, samples: Tensor | slice = slice(None)) -> Tensor | None:
        """Return the believed probabilities (n, K) of samples: the mean of the posterior and of the votes; None before
        anything was recorded."""
        found = [part[samples] for part in (self.posterior, self.votes) if part is not None]
        return sum(found[1:], start=found[0]) / len(found) if found else None

    def targets(self, samples: Tensor, progress: float) -> tuple[Tensor, Tensor | None]:
        """Return labels (n,) of samples for pairs, and soft targets (n, K) for a head; None: as the labels."""
        given, belief = self.given[samples], self.belief(samples)
        strength = MOST * min(1.0, max(0.0, (progress - START) / (FULL - START)))
        if not self.is_used or belief is None or strength == 0:
            return given, None
        own = one_hot(given, self.n_classes).to(belief.dtype)
        mixture = torch.where(self.seen[samples, None], torch.lerp(own, belief, strength), own)
        return mixture.argmax(1), mixture

    @torch.no_grad()
    def record(self, samples: Tensor, embedding: Tensor, logits: Tensor | None) -> None:
        """Take the outputs for views of some samples into the running means."""
        rows, place = samples.unique(return_inverse=True)
        outputs = {"embedding": (normalize(embedding.float()), 0.0)}
        if logits is not None:
            outputs["posterior"] = logits.float().softmax(1), KEPT
        for name, (value, kept) in outputs.items():
            if getattr(self, name) is None:
                setattr(self, name, value.new_zeros(len(self.given), value.shape[1]))
            memory: Tensor = getattr(self, name)
            mean = value.new_zeros(len(rows), value.shape[1]).index_add_(0, place, value)
            mean /= torch.bincount(place)[:, None]
            memory[rows] = torch.lerp(mean, memory[rows], kept * self.seen[rows, None].to(mean.dtype))
        self.seen[rows] = True

    @torch.no_grad()
    def end_epoch(self, epoch: int, progress: float) -> float | None:
        """Let neighbours vote, and estimate the share of wrong labels when it is time. Return it if it was just found
        to be high. `epoch` counts from 1."""
        too_early = progress < START or (self.rate is None and epoch < MIN_EPOCHS)
        if self.embedding is None or too_early or not self.is_needed:
            return None
        self.votes = self._neighbours_votes()
        if self.rate is not None:
            return None
        belief = self.belief()
        assert belief is not None
        self.rate = estimate_rate(belief, self.given)
        if not self.is_used:
            self.posterior = self.embedding = self.votes = None
            return None
        return self.rate

    def _neighbours_votes(self) -> Tensor:
        """Return the share of each class among the given labels of the nearest samples, the sample itself left out."""
        assert self.embedding is not None
        n = len(self.given)
        z, own = normalize(self.embedding), one_hot(self.given, self.n_classes).to(self.embedding.dtype)
        votes, step = [], max(1, BLOCK // n)
        for start in range(0, n, step):
            similarity = z[start : start + step] @ z.T
            similarity.diagonal(start).fill_(-torch.inf)
            nearest = similarity.topk(min(NEIGHBOURS, n - 1)).indices
            votes.append(own[nearest].mean(1))
        return torch.cat(votes)

    def state_dict(self) -> dict[str, Any]:
        """Return the state for a checkpoint."""
        return {name: getattr(self, name) for name in ("rate", "posterior", "embedding", "votes", "seen")}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore what `state_dict` returned."""
        for name in self.state_dict():
            setattr(self, name, state[name])


def can_estimate(n_classes: int, n: int) -> bool:
    """Return whether the share of wrong labels can be estimated. With few classes, hard samples look wrong."""
    return n_classes >= MIN_CLASSES and n * n_classes <= MAX_VALUES


def estimate_rate(belief: Tensor, labels: Tensor) -> float:
    """Return the share of labels that were drawn at random from the other classes.

    A right label is hardly ever among the least likely quarter of the classes, even early in training; a wrong one is
    there as often as chance has it.
    """
    n_classes = belief.shape[1]
    n_unlikely = max(1, n_classes // 4)
    n_likelier = (belief > belief.gather(1, labels[:, None])).sum(1)
    unlikely = float((n_likelier >= n_classes - n_unlikely).float().mean())
    return min(1.0, unlikely * (n_classes - 1) / n_unlikely)
