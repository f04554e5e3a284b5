"""The losses of `esupcon.functional` as modules: settings in `__init__`, tensors in `forward`, no parameters.

Prototypes are parameters of a model (`esupcon.heads.PrototypeHead`), so they are saved and optimised with it;
the losses that need them take them in `forward`. The functions describe every argument.

>>> import torch
>>> from esupcon.heads import PrototypeHead
>>> from esupcon.losses import ESupConLoss
>>> encoder, head = torch.nn.Linear(20, 8), PrototypeHead(8, n_classes=5)
>>> views, labels = torch.randn(64, 20), torch.randint(5, (32,)).repeat(2)
>>> ESupConLoss(temperature=0.1)(encoder(views), labels, head.weight).backward()
"""

from __future__ import annotations

from torch import Tensor, nn

from esupcon import functional as F
from esupcon.functional import Average, ContrastWeight, PrototypeAverage


class _Loss(nn.Module):
    def extra_repr(self) -> str:
        settings = {name: value for name, value in vars(self).items() if name != "training" and name[0] != "_"}
        return ", ".join(f"{name}={value!r}" for name, value in settings.items() if value is not None)


class SimCLRLoss(_Loss):
    """Contrast the two views of each image, `z = cat(view1, view2)`, with all other rows: `functional.simclr_loss`."""

    def __init__(self, temperature: float = 0.5) -> None:
        super().__init__()
        self.temperature = temperature

    def forward(self, z: Tensor) -> Tensor:
        """Return the loss of embeddings (n, d)."""
        return F.simclr_loss(z, temperature=self.temperature)


class SupConLoss(_Loss):
    """Pull samples of one class together and push the others away: `functional.supcon_loss`."""

    def __init__(self, temperature: float = 0.1) -> None:
        super().__init__()
        self.temperature = temperature

    def forward(self, z: Tensor, labels: Tensor) -> Tensor:
        """Return the loss of embeddings (n, d) with labels (n,)."""
        return F.supcon_loss(z, labels, temperature=self.temperature)


class SPCELoss(_Loss):
    """Cross entropy of mean similarities to the classes of the batch: `functional.spce_loss`."""

    def __init__(self, temperature: float = 0.1, average: Average = "class") -> None:
        super().__init__()
        self.temperature = temperature
        self.average: Average = average

    def forward(self, z: Tensor, labels: Tensor) -> Tensor:
        """Return the loss of embeddings (n, d) with labels (n,)."""
        return F.spce_loss(z, labels, temperature=self.temperature, average=self.average)


class TightnessLoss(_Loss):
    """Turn prototypes towards their samples; pass `z.detach()` to train only them: `functional.tightness_loss`."""

    def forward(self, z: Tensor, labels: Tensor, prototypes: Tensor) -> Tensor:
        """Return the loss of embeddings (n, d) with labels (n,) and prototypes (K, d)."""
        return F.tightness_loss(z, labels, prototypes)


class ESupConLoss(_Loss):
    """Train embedding and prototypes in one contrast: `functional.esupcon_loss`.

    Use the same temperature, or the `prototype_temperature`, in the `PrototypeHead` that holds the prototypes.
    """

    def __init__(
        self,
        temperature: float = 0.1,
        prototype_weight: float = 1.0,
        *,
        prototype_temperature: float | None = None,
        prototype_share: float | None = None,
        prototype_average: PrototypeAverage = "class",
        contrast_weight: ContrastWeight = 1.0,
    ) -> None:
        super().__init__()
        self.temperature = temperature
        self.prototype_weight = prototype_weight
        self.prototype_temperature = prototype_temperature
        self.prototype_share = prototype_share
        self.prototype_average: PrototypeAverage = prototype_average
        self.contrast_weight: ContrastWeight = contrast_weight

    def forward(
        self,
        z: Tensor,
        labels: Tensor,
        prototypes: Tensor,
        *,
        log_priors: Tensor | None = None,
        targets: Tensor | None = None,
    ) -> Tensor:
        """Return the loss of embeddings (n, d) with labels (n,) and prototypes (K, d)."""
        return F.esupcon_loss(
            z,
            labels,
            prototypes,
            temperature=self.temperature,
            prototype_weight=self.prototype_weight,
            prototype_temperature=self.prototype_temperature,
            prototype_share=self.prototype_share,
            prototype_average=self.prototype_average,
            contrast_weight=self.contrast_weight,
            log_priors=log_priors,
            targets=targets,
        )
