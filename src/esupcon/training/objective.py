"""The loss of a stage on one batch, and its gradient: at once, or in little memory."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from esupcon import functional as F
from esupcon.functional import Anchors
from esupcon.methods import Stage, Term
from esupcon.spec import TrainSpec
from esupcon.training.batches import derive_seed, seed_layers


@dataclass(frozen=True)
class BatchOutputs:
    """What a loss reads: outputs by name with one row for each view of each image, labels, and prototypes.

    `log_priors` (K,) are added to logits in training; `targets` (n, K) are soft labels for a head, None: the labels.
    With several processes these are the rows of all of them, and `anchors` are the rows of this one.
    """

    outputs: dict[str, Tensor]
    labels: Tensor
    prototypes: Tensor | None = None  # of a prototype head
    n_classes: int | None = None
    log_priors: Tensor | None = None
    targets: Tensor | None = None
    anchors: Anchors = None

    @property
    def rows(self) -> slice | Tensor:
        """The rows whose loss is computed here."""
        return slice(None) if self.anchors is None else self.anchors


# --- Terms -----------------------------------------------------------------------------------------------------------
# A loss is a mean over the rows of z, restricted to `batch.anchors`, so that the parts of several processes add up.


def _ce(logits: Tensor, batch: BatchOutputs, spec: TrainSpec) -> Tensor:
    own = logits[batch.rows] if logits.dtype == torch.float64 else logits[batch.rows].float()
    own = own if batch.log_priors is None else own + batch.log_priors.to(own.dtype)
    targets = batch.labels[batch.rows] if batch.targets is None else batch.targets[batch.rows].to(own.dtype)
    if spec.ce_power:  # generalised cross entropy, (1 - p^q) / q
        chosen = targets if batch.targets is not None else nn.functional.one_hot(targets, own.shape[1])
        probability = (own.softmax(1) * chosen).sum(1)
        return ((1 - probability**spec.ce_power) / spec.ce_power).sum() / len(logits)
    options = {"reduction": "sum", "label_smoothing": spec.label_smoothing}
    return nn.functional.cross_entropy(own, targets, **options) / len(logits)  # type: ignore[arg-type]


def _supcon(z: Tensor, batch: BatchOutputs, spec: TrainSpec) -> Tensor:
    return F.supcon_loss(z, batch.labels, temperature=spec.temperature, anchors=batch.anchors)


def _spce(z: Tensor, batch: BatchOutputs, spec: TrainSpec) -> Tensor:
    options = {"average": spec.spce_average, "n_classes": batch.n_classes, "anchors": batch.anchors}
    return F.spce_loss(z, batch.labels, temperature=spec.temperature, **options)  # type: ignore[arg-type]


def _tightness(z: Tensor, batch: BatchOutputs, spec: TrainSpec) -> Tensor:
    own = z[batch.rows]
    return F.tightness_loss(own, batch.labels[batch.rows], _prototypes(batch)) * (len(own) / len(z))


def _esupcon(z: Tensor, batch: BatchOutputs, spec: TrainSpec) -> Tensor:
    return F.esupcon_loss(
        z,
        batch.labels,
        _prototypes(batch),
        temperature=spec.temperature,
        prototype_weight=spec.prototype_weight,
        prototype_temperature=spec.prototype_temperature,
        prototype_share=spec.prototype_share,
        prototype_average=spec.prototype_average,
        contrast_weight=spec.contrast_weight,
        log_priors=batch.log_priors,
        targets=batch.targets,
        anchors=batch.anchors,
    )


def _prototypes(batch: BatchOutputs) -> Tensor:
    assert batch.prototypes is not None, "this loss needs a head with prototypes"
    return batch.prototypes


LossFunction = Callable[[Tensor, BatchOutputs, TrainSpec], Tensor]
#: The losses that a term can name.
LOSSES: dict[str, LossFunction] = {
    "ce": _ce,
    "supcon": _supcon,
    "spce": _spce,
    "tightness": _tightness,
    "esupcon": _esupcon,
}


def register_loss(name: str, function: LossFunction) -> None:
    """Register a custom loss for the terms of methods: `function(z, batch, spec)`, with z the output of the term.

    It must be a mean over the rows of z, restricted to `batch.anchors` if these are given. Registering a different
    function under a known name raises a ValueError.
    """
    known = LOSSES.setdefault(name, function)
    if known is not function and getattr(known, "__qualname__", 0) != getattr(function, "__qualname__", 1):
        raise ValueError(f"a loss named {name!r} is registered already. Choose another name.")
    LOSSES[name] = function


def check_losses(stages: tuple[Stage, ...]) -> None:
    """Raise a ValueError for a term whose loss is unknown."""
    unknown = [term.loss for stage in stages for term in stage.terms if term.loss not in LOSSES]
    if unknown:
        raise ValueError(f"a loss must be one of {', '.join(LOSSES)}, or registered; got {', '.join(unknown)}.")


def term_weight(term: Term, spec: TrainSpec) -> float:
    """Return the factor of a term; terms that divide the loss by `prototype_share` have equal shares by default."""
    share = 0.5 if spec.prototype_share is None else spec.prototype_share
    return term.weight * {None: 1.0, "prototypes": share, "samples": 1 - share}[term.share]


def term_losses(stage: Stage, batch: BatchOutputs, spec: TrainSpec) -> dict[Term, Tensor]:
    """Return weight * loss of each term of a stage."""
    losses: dict[Term, Tensor] = {}
    for term in stage.terms:
        z = batch.outputs[term.on]
        loss = term_weight(term, spec) * LOSSES[term.loss](z.detach() if term.detach else z, batch, spec)
        losses[term] = losses[term] + loss if term in losses else loss
    return losses


# --- Gradient in micro-batches ---------------------------------------------------------------------------------------


def cached_backward(
    module: nn.Module,
    views: Tensor,
    n_rows: int,
    loss_of: Callable[[dict[str, Tensor]], Tensor],
    *,
    seed: int,
    check_stop: Callable[[], None],
) -> None:
    """Accumulate the gradient of loss_of(module(views)) with at most `n_rows` rows in memory at a time.

    The loss needs the outputs of the whole batch, but only their gradients to go on: encode every piece without a
    graph, compute the loss and its gradient for the outputs, then encode each piece again and continue from there.
    The result is the gradient of the whole batch, except that batch normalisation sees one piece at a time, as in
    every kind of accumulation. `check_stop` is called between the pieces and may raise; nothing has changed then.
    """

    def encode(piece: int) -> dict[str, Tensor]:
        if piece:
            check_stop()
        seed_layers(derive_seed(seed, "piece", piece), views.device)  # dropout must drop the same units both times
        outputs: dict[str, Tensor] = module(pieces[piece])
        return outputs

    def restore_statistics() -> None:
        for buffer, before in statistics:
            buffer.copy_(before)

    pieces = views.split(n_rows)
    statistics = [(buffer, buffer.clone()) for buffer in module.buffers()]
    try:
        with torch.no_grad():
            encoded = [encode(piece) for piece in range(len(pieces))]
    finally:
        restore_statistics()  # the second pass updates them
    leaves = {name: torch.cat([part[name] for part in encoded]).requires_grad_() for name in encoded[0]}
    loss_of(leaves).backward()
    # A term that detaches its output leaves no gradient.
    gradients = {name: leaf.grad.split(n_rows) for name, leaf in leaves.items() if leaf.grad is not None}
    try:
        for piece in range(len(pieces)):
            outputs = encode(piece)
            names = [name for name in gradients if outputs[name].requires_grad]
            if names:
                own = [gradients[name][piece].to(outputs[name].dtype) for name in names]
                torch.autograd.backward([outputs[name] for name in names], own)
    except BaseException:
        restore_statistics()
        raise
