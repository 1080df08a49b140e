"""Fifteen training steps as users write them: what an operator profile has to stand beside. Each makes a function of one step."""

from collections.abc import Callable

import torch
from torch import nn
from torch.nn import functional

Step = Callable[[], None]


def _step(optimizer: torch.optim.Optimizer, loss: Callable[[], torch.Tensor]) -> Step:
    def step() -> None:
        optimizer.zero_grad()
        loss().backward()
        optimizer.step()

    return step


def _classified(model: nn.Module, inputs: torch.Tensor, classes: int, optimizer: type[torch.optim.Optimizer] = torch.optim.SGD) -> Step:
    labels = torch.randint(classes, inputs.shape[:1])
    return _step(optimizer(model.parameters(), lr=1e-3), lambda: functional.cross_entropy(model(inputs), labels))


def _convolutions(channels: int) -> nn.Sequential:
    return nn.Sequential(nn.Conv2d(3, channels, 3, padding=1), nn.BatchNorm2d(channels), nn.ReLU(), nn.Conv2d(channels, channels, 3, 2),
                         nn.BatchNorm2d(channels), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(channels, 10))


def perceptron() -> Step:
    return _classified(nn.Sequential(nn.Linear(256, 512), nn.ReLU(), nn.Linear(512, 10)), torch.randn(128, 256), 10)


def deep_perceptron() -> Step:
    layers = [layer for _ in range(12) for layer in (nn.Linear(64, 64), nn.Tanh())]
    return _classified(nn.Sequential(*layers, nn.Linear(64, 5)), torch.randn(32, 64), 5, torch.optim.Adam)


def convolutions() -> Step:
    return _classified(_convolutions(16), torch.randn(16, 3, 32, 32), 10)


def convolutions_by_adam() -> Step:
    return _classified(_convolutions(16), torch.randn(8, 3, 32, 32), 10, torch.optim.AdamW)


def convolutions_channels_last() -> Step:
    model = _convolutions(16).to(memory_format=torch.channels_last)
    return _classified(model, torch.randn(16, 3, 32, 32).to(memory_format=torch.channels_last), 10)


def convolutions_with_autocast() -> Step:
    model, images, labels = _convolutions(16), torch.randn(16, 3, 32, 32), torch.randint(10, (16,))

    def loss() -> torch.Tensor:
        with torch.autocast("cpu", torch.bfloat16):
            return functional.cross_entropy(model(images), labels)

    return _step(torch.optim.SGD(model.parameters(), lr=1e-3), loss)


def residual() -> Step:
    class Block(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.second = nn.Conv2d(16, 16, 3, padding=1), nn.Conv2d(16, 16, 3, padding=1)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return functional.relu(x + self.second(functional.relu(self.first(x))))

    model = nn.Sequential(nn.Conv2d(3, 16, 3), Block(), Block(), Block(), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(16, 10))
    return _classified(model, torch.randn(8, 3, 24, 24), 10)


def lstm() -> Step:
    model, head = nn.LSTM(32, 64, batch_first=True), nn.Linear(64, 4)
    inputs, labels = torch.randn(16, 24, 32), torch.randint(4, (16,))
    both = nn.ModuleList([model, head])
    return _step(torch.optim.Adam(both.parameters()), lambda: functional.cross_entropy(head(model(inputs)[0][:, -1]), labels))


def unrolled_cell() -> Step:
    cell, head = nn.GRUCell(32, 64), nn.Linear(64, 4)
    inputs, labels = torch.randn(20, 16, 32), torch.randint(4, (16,))
    both = nn.ModuleList([cell, head])

    def loss() -> torch.Tensor:
        state = torch.zeros(16, 64)
        for moment in inputs:
            state = cell(moment, state)
        return functional.cross_entropy(head(state), labels)

    return _step(torch.optim.SGD(both.parameters(), lr=1e-3), loss)


def transformer() -> Step:
    layer = nn.TransformerEncoderLayer(64, 4, 128, batch_first=True, dropout=0.1)
    model = nn.Sequential(nn.TransformerEncoder(layer, 2), nn.Flatten(), nn.Linear(64 * 16, 10))
    return _classified(model, torch.randn(8, 16, 64), 10, torch.optim.AdamW)


def attention_by_hand() -> Step:
    projection, head = nn.Linear(64, 192), nn.Linear(64, 10)
    inputs, labels = torch.randn(8, 32, 64), torch.randint(10, (8,))
    both = nn.ModuleList([projection, head])

    def loss() -> torch.Tensor:
        query, key, value = projection(inputs).view(8, 32, 3, 4, 16).permute(2, 0, 3, 1, 4)
        weights = torch.softmax(query @ key.transpose(-1, -2) / 4, -1)
        return functional.cross_entropy(head((weights @ value).transpose(1, 2).reshape(8, 32, 64).mean(1)), labels)

    return _step(torch.optim.Adam(both.parameters()), loss)


def embeddings() -> Step:
    model = nn.Sequential(nn.EmbeddingBag(2000, 32), nn.ReLU(), nn.Linear(32, 5))
    return _classified(model, torch.randint(2000, (64, 12)), 5)


def autoencoder() -> Step:
    model = nn.Sequential(nn.Conv2d(1, 8, 3, 2, 1), nn.ReLU(), nn.ConvTranspose2d(8, 1, 4, 2, 1), nn.Sigmoid())
    images = torch.rand(8, 1, 28, 28)
    return _step(torch.optim.Adam(model.parameters()), lambda: functional.binary_cross_entropy(model(images), images))


def regression_by_hand() -> Step:
    weights = nn.ParameterList([nn.Parameter(torch.randn(64, 64) / 8) for _ in range(4)])
    inputs, wanted = torch.randn(64, 64), torch.randn(64, 64)

    def loss() -> torch.Tensor:
        x = inputs
        for weight in weights:
            x = torch.sin(x @ weight) + 0.1 * x
        return ((x - wanted) ** 2).mean() + 1e-4 * sum((weight**2).sum() for weight in weights)

    return _step(torch.optim.SGD(weights.parameters(), lr=1e-3), loss)


def accumulated() -> Step:
    model = _convolutions(8)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3, momentum=0.9)
    batches = [(torch.randn(4, 3, 24, 24), torch.randint(10, (4,))) for _ in range(4)]

    def step() -> None:
        optimizer.zero_grad()
        for images, labels in batches:
            (functional.cross_entropy(model(images), labels) / len(batches)).backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()

    return step


SCRIPTS: dict[str, Callable[[], Step]] = {make.__name__: make for make in (
    perceptron, deep_perceptron, convolutions, convolutions_by_adam, convolutions_channels_last, convolutions_with_autocast, residual,
    lstm, unrolled_cell, transformer, attention_by_hand, embeddings, autoencoder, regression_by_hand, accumulated)}
