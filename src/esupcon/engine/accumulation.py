"""A large contrastive batch in a small memory: embeddings are cached, then encoded again with gradient.

The loss needs the outputs of the whole batch, but their gradients are enough to finish the work piece by piece:
encode every piece without a graph, take the loss and its gradient with respect to the outputs, then encode each
piece once more and feed it its share of that gradient. The gradient equals that of the batch in one shot, for
networks whose rows do not depend on each other; batch normalisation sees one piece at a time and so differs, as it
does in every kind of accumulation.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from esupcon.engine.seeding import derive_seed, seed_layers


def cached_backward(
    encode: Callable[[Tensor], dict[str, Tensor]],
    network: nn.Module,
    views: Tensor,
    piece: int,
    loss_of: Callable[[dict[str, Tensor]], Tensor],
    seed: int,
) -> Tensor:
    """Accumulates the gradients of loss_of(encode(views)), at most `piece` rows at a time, and returns the loss."""
    pieces = views.split(piece)
    with torch.no_grad(), _frozen_statistics(network):
        encoded = [_encode(encode, part, seed, index) for index, part in enumerate(pieces)]
    leaves = {name: torch.cat([part[name] for part in encoded]).requires_grad_() for name in encoded[0]}
    loss = loss_of(leaves)
    loss.backward()
    gradients = {name: leaf.grad for name, leaf in leaves.items() if leaf.grad is not None}
    start = 0
    for index, part in enumerate(pieces):
        outputs = _encode(encode, part, seed, index)
        rows = slice(start, start + len(part))
        # An output whose gradient stops before the network (a detached term) has nothing to pass on.
        wanted = [name for name in gradients if outputs[name].requires_grad]
        if wanted:
            torch.autograd.backward(
                [outputs[name] for name in wanted], [gradients[name][rows].to(outputs[name].dtype) for name in wanted]
            )
        start += len(part)
    return loss.detach()


def _encode(encode: Callable[[Tensor], dict[str, Tensor]], part: Tensor, seed: int, index: int) -> dict[str, Tensor]:
    seed_layers(derive_seed(seed, "piece", index), part.device)  # dropout must drop the same units both times
    return encode(part)


@contextmanager
def _frozen_statistics(network: nn.Module) -> Iterator[None]:
    """Batch-norm layers normalise by the batch but leave their running statistics to the pass that counts."""
    layers = [module for module in network.modules() if isinstance(module, _BatchNorm) and module.training]
    before = [
        (layer.momentum, None if layer.num_batches_tracked is None else layer.num_batches_tracked.clone())
        for layer in layers
    ]
    for layer in layers:
        layer.momentum = 0.0
    try:
        yield
    finally:
        for layer, (momentum, count) in zip(layers, before, strict=True):
            layer.momentum = momentum
            if count is not None and layer.num_batches_tracked is not None:
                layer.num_batches_tracked.copy_(count)
