"""The classifier as one graph: preprocessing, encoder, head and calibration in plain tensor operations."""

from __future__ import annotations

import copy

import torch
from torch import Tensor, nn

from esupcon._contrast import unit_rows
from esupcon.artifact import ArtifactConfig, Classifier, TablePreprocessing
from esupcon.export.quiet import quiet
from esupcon.heads import PrototypeHead
from esupcon.models import Network

__all__ = ["OUTPUTS", "Deployed", "capture", "float32_copy", "input_name"]

OUTPUTS = ("probabilities", "embedding")


class _Pixels(nn.Module):
    """uint8 (n, C, H, W) -> (x / 255 - mean) / std."""

    scale: Tensor
    shift: Tensor

    def __init__(self, mean: Tensor, std: Tensor) -> None:
        super().__init__()
        self.register_buffer("scale", (1 / (255 * std)).float().view(-1, 1, 1))
        self.register_buffer("shift", (mean / std).float().view(-1, 1, 1))

    def forward(self, images: Tensor) -> Tensor:
        return images.float() * self.scale - self.shift


class _Rows(nn.Module):
    """float32 (n, d) -> (x - mean) / scale, in float64: a feature far from 0 would lose its digits in float32."""

    mean: Tensor
    scale: Tensor

    def __init__(self, mean: Tensor, scale: Tensor) -> None:
        super().__init__()
        self.register_buffer("mean", mean)
        self.register_buffer("scale", scale)

    def forward(self, rows: Tensor) -> Tensor:
        return ((rows.double() - self.mean) / self.scale).float()


class _Cosine(nn.Module):
    """cos(z, theta_k) / temperature: `PrototypeHead` without branches on values, which no exported graph has."""

    prototypes: Tensor

    def __init__(self, head: PrototypeHead) -> None:
        super().__init__()
        self.temperature = head.temperature
        self.register_buffer("prototypes", unit_rows(head.weight.detach().double()).float())

    def forward(self, z: Tensor) -> Tensor:
        # By the largest entry first, as squares of huge entries overflow; a zero row stays zero.
        tiny = torch.finfo(z.dtype).tiny
        z = z / z.abs().amax(1, keepdim=True).clamp_min(tiny)
        unit = z / (z * z).sum(1, keepdim=True).sqrt().clamp_min(tiny)
        return unit @ self.prototypes.T / self.temperature


class Deployed(nn.Module):
    """{probabilities: softmax(logits / calibration_temperature), embedding: as the encoder gives it}."""

    def __init__(self, network: Network, config: ArtifactConfig) -> None:
        super().__init__()
        given = config.preprocessing
        spread = given.scale if isinstance(given, TablePreprocessing) else given.std
        statistics = (torch.tensor(given.mean, dtype=torch.float64), torch.tensor(spread, dtype=torch.float64))
        self.preprocessing = _Rows(*statistics) if isinstance(given, TablePreprocessing) else _Pixels(*statistics)
        self.encoder = network.encoder
        self.head = _Cosine(network.head) if isinstance(network.head, PrototypeHead) else network.head
        self.calibration_temperature = config.calibration_temperature or 1.0

    def forward(self, x: Tensor) -> dict[str, Tensor]:
        embedding = self.encoder(self.preprocessing(x))
        logits = self.head(embedding)
        # The shift comes before the division: large logits over a small temperature overflow.
        shifted = (logits - logits.amax(1, keepdim=True)) / self.calibration_temperature
        return {"probabilities": shifted.softmax(1), "embedding": embedding}


def input_name(config: ArtifactConfig) -> str:
    return "rows" if isinstance(config.preprocessing, TablePreprocessing) else "images"


def float32_copy(classifier: Classifier) -> Classifier:
    """The same classifier on the CPU in float32, as files hold it; the original stays as it is."""
    network = copy.deepcopy(classifier.network).float().requires_grad_(False)
    return Classifier(network, classifier.config)


def capture(classifier: Classifier) -> torch.export.ExportedProgram:
    """The graph of a `float32_copy`, for batches of any size."""
    config = classifier.config
    table = isinstance(config.preprocessing, TablePreprocessing)
    example = torch.zeros(2, *config.input_shape, dtype=torch.float32 if table else torch.uint8)
    model = Deployed(classifier.network, config).eval()
    try:
        with quiet(), torch.no_grad():
            program = torch.export.export(model, (example,), dynamic_shapes=({0: torch.export.Dim("batch")},))
    except Exception as error:  # whatever the user's own encoder and the tracer raise
        reason = str(error).strip().partition("\n")[0]
        raise ValueError(
            f"encoder {config.encoder!r} cannot be traced to a graph ({type(error).__name__}: {reason}). "
            "Its forward must not branch on values nor fix the size of the batch."
        ) from error
    for node in program.graph.nodes:
        node.meta.pop("stack_trace", None)  # paths of this machine, which are nobody's business
    return program
