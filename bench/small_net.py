"""The network of the benches whose loader feeds training: small, so that loading is not hidden by it."""

from collections.abc import Callable
from typing import Any

import headrace as hr
import torch
from torch import nn


def small_net_step() -> Callable[[Any], Any]:
    """A training step of two convolutions with stride 4, on a batch of (images, labels of 12 classes)."""
    torch.manual_seed(1)
    model = nn.Sequential(nn.Conv2d(3, 16, 3, stride=4), nn.ReLU(), nn.Conv2d(16, 32, 3, stride=4), nn.ReLU(),
                          nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(32, 12))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, fused=True)
    return hr.Trainer(model, optimizer, lambda model, batch: nn.functional.cross_entropy(model(batch[0]), batch[1])).step
