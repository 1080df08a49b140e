"""The network of the benches whose loader feeds training: small, so that loading is not hidden by it."""

from collections.abc import Callable
from typing import Any

import headrace as hr
import torch
from torch import nn


def small_net() -> nn.Sequential:
    """Two convolutions with stride 4, for images (N, 3, H, W) of 12 classes. The same weights each time."""
    torch.manual_seed(1)
    return nn.Sequential(nn.Conv2d(3, 16, 3, stride=4), nn.ReLU(), nn.Conv2d(16, 32, 3, stride=4), nn.ReLU(),
                         nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(32, 12))


def small_net_step() -> Callable[[Any], Any]:
    """A training step of small_net() on a batch of (images, labels)."""
    model = small_net()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, fused=True)
    return hr.Trainer(model, optimizer, lambda model, batch: nn.functional.cross_entropy(model(batch[0]), batch[1])).step
