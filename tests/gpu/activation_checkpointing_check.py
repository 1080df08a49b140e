"""Activation checkpointing on a real GPU. Needs a CUDA device, so that no other run of pytest collects it: make check ON=gpu names
the folder and the form of the name."""

import headrace as hr
import pytest
import torch
from torch import nn


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.convolution, self.norm, self.dropout = nn.Conv2d(8, 8, 3, padding=1), nn.BatchNorm2d(8), nn.Dropout(0.3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.dropout(torch.relu(self.norm(self.convolution(x))))


@pytest.mark.parametrize("offload", [False, "host"])
def test_on_a_cuda_device_dropout_is_replayed_also_where_tensors_come_by_keyword(offload):
    class ByKeyword(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.block = Block()

        def forward(self, *, images):
            return self.block(images)

    def run(enables: bool):
        torch.manual_seed(1)
        model = ByKeyword().cuda()
        if enables:
            assert hr.gradient_checkpointing_enable(model, [""], offload=offload).report.offload == (offload or "none")
        batch = torch.ones(2, 8, 8, 8, device="cuda", requires_grad=True)
        torch.manual_seed(2)
        model(images=batch).square().sum().backward()
        return batch.grad

    was = torch.backends.cudnn.deterministic
    torch.backends.cudnn.deterministic = True
    try:
        assert torch.equal(run(True), run(False))
    finally:
        torch.backends.cudnn.deterministic = was
