"""Shim: moved to esupcon.models.encoders and esupcon.models.network; to be deleted."""

from esupcon.models.encoders import build_encoder, embedding_dim, resolve_encoder
from esupcon.models.network import build_head, build_network, build_projector

__all__ = ["build_encoder", "build_head", "build_network", "build_projector", "embedding_dim", "resolve_encoder"]
