"""The network that is trained and saved: an encoder, a head on its embedding, and an optional projector beside it."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Literal

import torch
from torch import Tensor, nn

from esupcon.heads import LinearHead, PrototypeHead
from esupcon.models.encoders import build_encoder, embedding_dim

NeckKind = Literal["none", "norm", "linear"]


class ProjectionHead(nn.Sequential):
    """W2 relu(W1 z + b1) + b2: dim -> dim -> out_dim. Contrastive losses can be computed on its output."""

    def __init__(self, dim: int, out_dim: int = 128) -> None:
        super().__init__(nn.Linear(dim, dim), nn.ReLU(inplace=True), nn.Linear(dim, out_dim))
        self.out_dim = out_dim


class Neck(nn.Sequential):
    """Centre and scale each coordinate of an embedding; with ``linear``, then a linear map that starts as the identity.

    Encoders that end in a rectifier and pooling give embeddings in one corner of the space, where all cosines are high.
    """

    def __init__(self, dim: int, *, linear: bool = False) -> None:
        super().__init__(nn.BatchNorm1d(dim, affine=False, momentum=0.4))
        if linear:
            identity = nn.Linear(dim, dim)
            nn.init.eye_(identity.weight)
            nn.init.zeros_(identity.bias)
            self.append(identity)


class Network(nn.Module):
    """embedding = neck(encoder(x)), logits = head(embedding), projection = projector(embedding).

    The projector is used in training only. With ``mirror``, outputs in evaluation mode are the means over an image and
    its mirror image.
    """

    def __init__(
        self,
        encoder: nn.Module,
        head: nn.Module,
        projector: nn.Module | None = None,
        *,
        neck: Neck | None = None,
        mirror: bool = False,
    ) -> None:
        super().__init__()
        self.encoder = encoder
        self.neck = neck
        self.head = head
        self.projector = projector
        self.mirror = mirror

    def parts(self, names: Iterable[str]) -> list[nn.Module]:
        """Return the modules of the parts encoder, projector and head; the neck belongs to the encoder."""
        wanted = set(names)
        modules = {self.encoder: "encoder", self.neck: "encoder", self.projector: "projector", self.head: "head"}
        return [module for module, name in modules.items() if name in wanted and module is not None]

    def forward(self, x: Tensor) -> Tensor:
        """Return the logits."""
        return self.outputs(x, ("logits",))["logits"]

    def outputs(self, x: Tensor, names: Iterable[str]) -> dict[str, Tensor]:
        """Return the named outputs among embedding, projection and logits. The encoder runs once."""
        if self.mirror and not self.training:
            both = self.encoder(torch.cat([x, x.flip(-1)])).unflatten(0, (2, -1))
            return self.mean_outputs_of(both[0], both[1], names)
        return self.outputs_of(self.encoder(x), names)

    def mean_outputs_of(self, encoded: Tensor, mirrored: Tensor, names: Iterable[str]) -> dict[str, Tensor]:
        """Return the means of the named outputs for what the encoder returned for images and their mirror images."""
        outputs, others = self.outputs_of(encoded, names), self.outputs_of(mirrored, names)
        return {name: (value + others[name]) / 2 for name, value in outputs.items()}

    def outputs_of(self, encoded: Tensor, names: Iterable[str]) -> dict[str, Tensor]:
        """Return the named outputs for what the encoder returned."""
        embedding = encoded if self.neck is None else self.neck(encoded)
        parts = {"embedding": nn.Identity(), "projection": self.projector, "logits": self.head}
        wanted = tuple(names)
        return {name: part(embedding) for name, part in parts.items() if part is not None and name in wanted}


def build_network(
    *,
    encoder: str | nn.Module,
    input_shape: tuple[int, ...],
    n_classes: int,
    head: Literal["linear", "prototype"] = "prototype",
    projection_dim: int | None = None,
    temperature: float = 0.1,
    neck: NeckKind = "none",
    mirror: bool = False,
    pretrained: bool = True,
) -> Network:
    """Return an encoder with a head and, if asked for, a neck and a projector.

    ``encoder``, ``input_shape`` and ``pretrained`` are as in `build_encoder`; ``temperature`` is that of a prototype
    head; ``neck`` is "none", "norm" or "linear" (see `Neck`).
    """
    built = build_encoder(encoder, input_shape=input_shape, pretrained=pretrained)
    dim = embedding_dim(built)
    # The projector is drawn before the head, so that the parts SupCon trains start equal under every head.
    projector = build_projector(dim=dim, projection_dim=projection_dim)
    made_head = build_head(head, dim=dim, n_classes=n_classes, temperature=temperature)
    return Network(built, made_head, projector, neck=build_neck(neck, dim), mirror=mirror)


def build_neck(kind: NeckKind, dim: int) -> Neck | None:
    return None if kind == "none" else Neck(dim, linear=kind == "linear")


def build_head(
    kind: Literal["linear", "prototype"], *, dim: int, n_classes: int, temperature: float = 0.1
) -> LinearHead | PrototypeHead:
    return LinearHead(dim, n_classes) if kind == "linear" else PrototypeHead(dim, n_classes, temperature)


def build_projector(*, dim: int, projection_dim: int | None) -> ProjectionHead | None:
    return None if projection_dim is None else ProjectionHead(dim, projection_dim)
