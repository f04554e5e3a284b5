"""What is trained and shipped: an encoder, a classifier on its embedding, and perhaps a projector beside it."""

from __future__ import annotations

from collections.abc import Iterable

from torch import Tensor, nn

__all__ = ["OUTPUTS", "Network", "ProjectionHead"]

OUTPUTS = ("embedding", "projection", "logits")


class ProjectionHead(nn.Sequential):
    """W2 relu(W1 z + b1) + b2: dim -> dim -> out_dim, the space contrastive losses may be taken in."""

    def __init__(self, dim: int, out_dim: int = 128) -> None:
        super().__init__(nn.Linear(dim, dim), nn.ReLU(inplace=True), nn.Linear(dim, out_dim))
        self.dim = dim
        self.out_dim = out_dim


class Network(nn.Module):
    """embedding = encoder(x), logits = head(embedding), projection = projector(embedding).

    Head and projector stand side by side on the embedding; the projector serves training alone.
    """

    def __init__(self, encoder: nn.Module, head: nn.Module, projector: nn.Module | None = None) -> None:
        super().__init__()
        self.encoder = encoder
        self.head = head
        self.projector = projector

    def forward(self, x: Tensor) -> Tensor:
        """The logits."""
        logits: Tensor = self.head(self.encoder(x))
        return logits

    def embed(self, x: Tensor) -> Tensor:
        """The embedding, as the encoder gives it: not normalised."""
        embedding: Tensor = self.encoder(x)
        return embedding

    def outputs(self, x: Tensor, names: Iterable[str]) -> dict[str, Tensor]:
        """What is named, among embedding, projection and logits; the encoder runs once, the rest when asked for."""
        wanted = tuple(names)
        for name in wanted:
            if name not in OUTPUTS:
                raise ValueError(f"a network's outputs are {', '.join(OUTPUTS)}; got {name!r}.")
        if "projection" in wanted and self.projector is None:
            raise ValueError(
                "this network has no projector, so it has no projection. Build it with projection_dim=128, "
                "or take the loss on the embedding."
            )
        found = {"embedding": self.embed(x)} if wanted else {}
        if "projection" in wanted:
            assert self.projector is not None
            found["projection"] = self.projector(found["embedding"])
        if "logits" in wanted:
            found["logits"] = self.head(found["embedding"])
        return {name: found[name] for name in wanted}
