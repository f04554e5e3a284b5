"""Whether two networks hold the same numbers."""

from __future__ import annotations

import torch

from esupcon.models import Network


def same_state(a: Network, b: Network) -> bool:
    one, two = a.state_dict(), b.state_dict()
    return one.keys() == two.keys() and all(torch.equal(value, two[name]) for name, value in one.items())
