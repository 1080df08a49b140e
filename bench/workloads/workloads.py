"""The workloads of bench/workloads: what they read, the steps that they take, and a fingerprint of both."""

import hashlib
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import headrace as hr
import numpy
import torch
from small_net import small_net
from torch import nn

# Of REG-06, what headrace has no part for yet.
NOT_BUILT = ("video clips", "serving")

RECORDS, RECORD_SIZE = 16_384, 64
BOXES, BOXED_SIDE, BOXES_MAX = 512, 96, 8
STEPS, BATCH = 60, 32
PHOTO_TRANSFORM = {"size": 128, "crop": "random_resized", "flip_probability": 0.5, "mean": [0.485, 0.456, 0.406],
                   "std": [0.229, 0.224, 0.225]}

Batch = tuple[torch.Tensor, torch.Tensor]


@dataclass(frozen=True)
class Workload:
    name: str
    samples: int  # Of one run.
    fingerprint: str  # Of its samples, and of the weights that it starts from.
    run: Callable[[], int]  # Once from its beginning; the samples that it has seen.


def fingerprint_of(parts: Iterable[bytes]) -> str:
    digest = hashlib.blake2b(digest_size=8)
    for part in parts:
        digest.update(len(part).to_bytes(8, "little"))
        digest.update(part)
    return digest.hexdigest()


def bytes_of(values: Mapping[str, Any]) -> Iterable[bytes]:
    for name, value in values.items():
        yield name.encode()
        yield numpy.ascontiguousarray(value).tobytes()


class Records:
    """Vectors of float32 with a class, by index: each from a generator of its own."""

    def __init__(self, size: int, seed: int) -> None:
        self.size, self.seed = size, seed

    def __len__(self) -> int:
        return self.size

    def __getitem__(self, index: int) -> dict[str, Any]:
        if not 0 <= index < self.size:
            raise IndexError(index)
        drawn = numpy.random.default_rng([self.seed, index])
        return {"features": drawn.random(RECORD_SIZE, dtype=numpy.float32), "target": int(drawn.integers(10))}


class Boxed(Records):
    """Images with 0 to BOXES_MAX boxes, in turns, as rows of class, centre, width and height."""

    def __getitem__(self, index: int) -> dict[str, Any]:
        if not 0 <= index < self.size:
            raise IndexError(index)
        drawn = numpy.random.default_rng([self.seed, index])
        return {"image": drawn.integers(0, 256, (BOXED_SIDE, BOXED_SIDE, 3), dtype=numpy.uint8),
                "boxes": drawn.random((index % (BOXES_MAX + 1), 5), dtype=numpy.float32)}


def loading(name: str, size: int, parts: Iterable[bytes], loader: Any, field: str) -> Workload:
    """A run reads an epoch."""
    return Workload(name, size, fingerprint_of(parts), lambda: sum(len(batch[field]) for batch in loader))


def samples_in(data: Records) -> Iterable[bytes]:
    for index in range(len(data)):
        yield from bytes_of(data[index])


def records(folder: Path, size: int, seed: int) -> Workload:
    data, path = Records(size, seed), folder / "records.pack"
    hr.pack(data, path)
    loader = hr.Loader(f"pack:{path}", batch_size=256, num_workers=2, seed=seed, last_batch="keep")
    return loading("tensor records", size, samples_in(data), loader, "features")


def photographs(photos: Path, seed: int) -> Workload:
    files = sorted(path for path in (photos / "train").rglob("*") if path.is_file())
    loader = hr.Loader(f"folder:{photos}", batch_size=BATCH, num_workers=2, seed=seed, index="none", last_batch="keep",
                       transform=PHOTO_TRANSFORM)
    return loading("photographs", len(files), (path.read_bytes() for path in files), loader, "image")


def boxes(size: int, seed: int) -> Workload:
    data = Boxed(size, seed)
    loader = hr.Loader(data, batch_size=BATCH, num_workers=2, seed=seed, last_batch="keep", transform={"size": 64})
    return loading("boxes", size, samples_in(data), loader, "boxes")


class Sequences(nn.Module):
    """A Transformer encoder of two layers over tokens; 10 classes by the mean of what comes out."""

    def __init__(self) -> None:
        super().__init__()
        self.tokens = nn.Embedding(256, 64)
        self.layers = nn.ModuleList([nn.TransformerEncoderLayer(64, 4, 128, dropout=0.0, batch_first=True) for _ in range(2)])
        self.head = nn.Linear(64, 10)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        found = self.tokens(tokens)
        for layer in self.layers:
            found = layer(found)
        return self.head(found.mean(1))


def perceptron() -> nn.Module:
    return nn.Sequential(nn.Linear(RECORD_SIZE, 256), nn.ReLU(), nn.Linear(256, 256), nn.ReLU(), nn.Linear(256, 10))


def loss_of(model: nn.Module, batch: Batch) -> torch.Tensor:
    return nn.functional.cross_entropy(model(batch[0]), batch[1])


def training(name: str, make: Callable[[], nn.Module], inputs: torch.Tensor, seed: int) -> Workload:
    """A run takes the same steps from the same weights by hr.Trainer."""
    labels = torch.randint(10, inputs.shape[:1], generator=torch.Generator().manual_seed(seed))
    batches = list(zip(inputs.split(BATCH), labels.split(BATCH), strict=True))

    def fresh() -> nn.Module:
        torch.manual_seed(seed)
        return make()

    def run() -> int:
        model = fresh()
        trainer = hr.Trainer(model, torch.optim.AdamW(model.parameters(), fused=True), loss_of)
        for batch in batches:
            trainer.step(batch)
        return sum(len(batch[1]) for batch in batches)

    weights = {key: value.numpy() for key, value in fresh().state_dict().items()}
    parts = bytes_of({"inputs": inputs, "labels": labels, **weights})
    return Workload(name, len(labels), fingerprint_of(parts), run)


def trainings(steps: int, seed: int) -> list[Workload]:
    drawn = torch.Generator().manual_seed(seed)
    size = steps * BATCH
    return [training("MLP", perceptron, torch.randn(size, RECORD_SIZE, generator=drawn), seed),
            training("convolutions", small_net, torch.randn(size, 3, 64, 64, generator=drawn), seed),
            training("attention", Sequences, torch.randint(256, (size, 32), generator=drawn), seed)]


def make(folder: Path, photos: Path, times: float = 1, seed: int = 1) -> list[Workload]:
    """Each that there is. `folder`: for what they write. times: the samples of a run as a multiple of the small mode's, but for
    the photographs, which are those that there are."""
    def so_many(small: int) -> int:
        return max(1, round(times * small))

    return [records(folder, so_many(RECORDS), seed), photographs(photos, seed), boxes(so_many(BOXES), seed),
            *trainings(so_many(STEPS), seed)]
