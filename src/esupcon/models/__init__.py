"""Networks: an encoder, a classifier on its embedding, and a projector beside it."""

from esupcon.models.build import build_encoder, build_network, resolve_spec
from esupcon.models.mlp import MLP
from esupcon.models.network import Network, ProjectionHead
from esupcon.models.resnet import ResNet

__all__ = ["MLP", "Network", "ProjectionHead", "ResNet", "build_encoder", "build_network", "resolve_spec"]
