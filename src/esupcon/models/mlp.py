"""Encoders for tables and for embeddings that were computed before."""

from __future__ import annotations

from torch import Tensor, nn

__all__ = ["MAX_HIDDEN", "MAX_LAYERS", "MLP", "PrecomputedEmbedding"]

#: Far above what tables need: a typing error is named instead of filling the memory.
MAX_HIDDEN = 65_536
MAX_LAYERS = 64


class MLP(nn.Module):
    """`layers` times relu(norm(W x + b)), each `hidden` wide: (n, in_features) -> (n, hidden).

    The norm is that of a layer, over the features of one row: tables are small, and batch statistics of a few
    rows are noise, of a single row undefined. Inputs of more dimensions are flattened.
    """

    def __init__(self, in_features: int, *, hidden: int = 256, layers: int = 2) -> None:
        super().__init__()
        for name, value, most in (("hidden", hidden, MAX_HIDDEN), ("layers", layers, MAX_LAYERS)):
            if not 1 <= value <= most:
                raise ValueError(f"{name} must be 1 to {most}; got {value}. Two layers of 256 suit most tables.")
        self.in_features = in_features
        self.dim = hidden
        self.layers = nn.Sequential()
        for index in range(layers):
            # Linear's own start, with random biases: with zero biases the norms would leave of a row its
            # direction alone, and a class at the centre of the data could not be told apart.
            self.layers.append(nn.Linear(hidden if index else in_features, hidden))
            self.layers.append(nn.LayerNorm(hidden))
            self.layers.append(nn.ReLU(inplace=True))

    def forward(self, x: Tensor) -> Tensor:
        embedding: Tensor = self.layers(x.flatten(1))
        return embedding


class PrecomputedEmbedding(nn.Module):
    """The rows as they are, (n, dim) -> (n, dim): only what stands on the embedding is trained."""

    def __init__(self, dim: int) -> None:
        super().__init__()
        self.dim = dim

    def forward(self, x: Tensor) -> Tensor:
        return x

    def extra_repr(self) -> str:
        return f"dim={self.dim}"
