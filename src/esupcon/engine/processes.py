"""Several processes, one batch: each encodes its share, all see everything, each answers for its own anchors.

With the embeddings gathered (gradient included) and the losses restricted to the local rows as anchors, the sum over
processes of values and gradients is that of one process with the whole batch. Batch normalisation is synchronised on
GPUs; on CPUs, where PyTorch has no such layer, each process normalises by its own share.
"""

from __future__ import annotations

from typing import Any

import torch
from lightning_fabric import Fabric
from torch import Tensor, distributed, nn
from torch.autograd.function import once_differentiable

from esupcon.engine.objective import BatchOutputs
from esupcon.heads import PrototypeHead
from esupcon.models import Network


def rows_of_this_process(fabric: Fabric, n_views: int) -> Tensor | slice:
    """Both views of this process's share of the images."""
    if fabric.world_size == 1:
        return slice(None)
    images = torch.arange(n_views // 2).chunk(fabric.world_size)[fabric.global_rank]
    return torch.cat([images, images + n_views // 2]).to(fabric.device)


def whole_batch(fabric: Fabric, network: Network, outputs: dict[str, Tensor], labels: Tensor) -> BatchOutputs:
    """Outputs of all processes, gathered with gradient; this process's rows are the anchors."""
    prototypes = network.head.weight if isinstance(network.head, PrototypeHead) else None
    if fabric.world_size == 1:
        return BatchOutputs(outputs, labels, prototypes)
    everything = {name: _gathered(fabric, z) for name, z in outputs.items()}
    first = fabric.global_rank * len(labels)
    anchors = slice(first, first + len(labels))
    return BatchOutputs(everything, _gathered(fabric, labels), prototypes, anchors)


def mean_over_processes(fabric: Fabric, value: Tensor) -> Tensor:
    mean = fabric.all_reduce(value, reduce_op="mean")
    assert isinstance(mean, Tensor)
    return mean


def average_gradients(fabric: Fabric, module: nn.Module) -> None:
    """What DistributedDataParallel does during backward, done once after a backward pass in pieces."""
    if fabric.world_size == 1:
        return
    for parameter in module.parameters():
        if parameter.grad is not None:
            parameter.grad = mean_over_processes(fabric, parameter.grad)


def _gathered(fabric: Fabric, tensor: Tensor) -> Tensor:
    rows: Tensor = _Gather.apply(tensor, fabric.world_size, fabric.global_rank)  # type: ignore[no-untyped-call]
    return rows


class _Gather(torch.autograd.Function):
    """The rows of all processes, in the order of their ranks; gradients are summed over the processes."""

    @staticmethod
    def forward(ctx: Any, tensor: Tensor, world_size: int, rank: int) -> Tensor:
        ctx.rows = slice(rank * len(tensor), (rank + 1) * len(tensor))
        parts = [torch.empty_like(tensor) for _ in range(world_size)]
        distributed.all_gather(parts, tensor.contiguous())
        return torch.cat(parts)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None, None]:
        total = grad.contiguous().clone()
        distributed.all_reduce(total)
        return total[ctx.rows], None, None
