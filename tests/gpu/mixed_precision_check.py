"""Mixed precision on a real GPU: fp16 under torch's scaler. Needs a CUDA device, so that no other run of pytest collects it:
make check ON=gpu names the folder and the form of the name."""

import torch
from performance_optimization import setup_mixed_precision_training, training_step_with_amp
from torch import nn


def test_a_loss_falls_in_fp16():
    torch.manual_seed(3)
    model = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 1)).cuda()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    is_on, scaler = setup_mixed_precision_training({})
    assert is_on and scaler.is_enabled()
    inputs = torch.randn(20, 16, 4, device="cuda")
    batches = [(part, part.sum(1, keepdim=True)) for part in inputs]
    losses = [training_step_with_amp(model, batch, optimizer, scaler, nn.functional.mse_loss) for batch in batches]
    assert losses[-1] < losses[0]
