"""Networks: an encoder, a head on its embedding, and a projector beside it."""

from esupcon.models.encoders import MLP, ResNet, build_encoder, resolve_encoder, split_encoder
from esupcon.models.fast import FastEncoder
from esupcon.models.network import Neck, Network, ProjectionHead, build_network

__all__ = [
    "MLP",
    "FastEncoder",
    "Neck",
    "Network",
    "ProjectionHead",
    "ResNet",
    "build_encoder",
    "build_network",
    "resolve_encoder",
    "split_encoder",
]
