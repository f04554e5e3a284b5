"""The network that is trained and saved: an encoder, a head on its embedding, and an optional projector beside it."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Literal

from torch import Tensor, nn

from esupcon.functional import check_choice
from esupcon.heads import LinearHead, PrototypeHead
from esupcon.models.encoders import build_encoder, embedding_dim


class ProjectionHead(nn.Sequential):
    """W2 relu(W1 z + b1) + b2: dim -> dim -> out_dim. Contrastive losses can be computed on its output."""

    def __init__(self, dim: int, out_dim: int = 128) -> None:
        super().__init__(nn.Linear(dim, dim), nn.ReLU(inplace=True), nn.Linear(dim, out_dim))
        self.dim = dim
        self.out_dim = out_dim


class Network(nn.Module):
    """embedding = encoder(x), logits = head(embedding), projection = projector(embedding).

    The projector is used in training only.
    """

    def __init__(self, encoder: nn.Module, head: nn.Module, projector: nn.Module | None = None) -> None:
        super().__init__()
        self.encoder = encoder
        self.head = head
        self.projector = projector

    def forward(self, x: Tensor) -> Tensor:
        """Return the logits."""
        logits: Tensor = self.head(self.encoder(x))
        return logits

    def embed(self, x: Tensor) -> Tensor:
        """Return the embedding as the encoder computes it: not normalised."""
        embedding: Tensor = self.encoder(x)
        return embedding

    def outputs(self, x: Tensor, names: Iterable[str]) -> dict[str, Tensor]:
        """Return the named outputs among embedding, projection and logits. The encoder runs once."""
        parts = {"embedding": nn.Identity(), "projection": self.projector, "logits": self.head}
        wanted = dict.fromkeys(names)
        for name in wanted:
            check_choice("an output of a network", name, tuple(parts))
            if parts[name] is None:
                raise ValueError(
                    "this network has no projector, so it has no projection. Build it with projection_dim=128, "
                    "or take the loss on the embedding."
                )
        embedding = self.embed(x) if wanted else x
        return {name: part(embedding) for name, part in parts.items() if part is not None and name in wanted}


def build_network(
    *,
    encoder: str | nn.Module,
    input_shape: tuple[int, ...],
    n_classes: int,
    head: Literal["linear", "prototype"] = "prototype",
    projection_dim: int | None = None,
    temperature: float = 0.1,
) -> Network:
    """Return an encoder with a head and, with a ``projection_dim``, a projector.

    ``encoder`` and ``input_shape`` are as in `build_encoder`; ``temperature`` is that of a prototype head.
    """
    built = build_encoder(encoder, input_shape=input_shape)
    dim = embedding_dim(built)
    # The projector is drawn before the head, so that the parts SupCon trains start equal under every head.
    projector = build_projector(dim=dim, projection_dim=projection_dim)
    return Network(built, build_head(head, dim=dim, n_classes=n_classes, temperature=temperature), projector)


def build_head(
    kind: Literal["linear", "prototype"], *, dim: int, n_classes: int, temperature: float = 0.1
) -> LinearHead | PrototypeHead:
    check_choice("head", kind, ("linear", "prototype"))
    if n_classes < 2:
        raise ValueError(f"n_classes must be at least 2; got {n_classes!r}. A classifier needs two classes.")
    return LinearHead(dim, n_classes) if kind == "linear" else PrototypeHead(dim, n_classes, temperature)


def build_projector(*, dim: int, projection_dim: int | None) -> ProjectionHead | None:
    if projection_dim is None:
        return None
    if projection_dim < 1:
        raise ValueError(f"projection_dim must be at least 1, or None for no projector; got {projection_dim!r}.")
    return ProjectionHead(dim, projection_dim)
