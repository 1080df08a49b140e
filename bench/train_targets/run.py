#!/usr/bin/env python3
"""Training against its numeric targets on this machine's CPU: found beside wanted, rival and ours in turn, medians with 95 % intervals.

speed          T-05, T-20, FUT-07: samples/s of the naive loop (Pillow, no workers, float32, loss.item() each step) and of one lever more
               at a time, up to hr.Loader with a cache and hr.Trainer: data-bound, the same losses; ResNet-18 at 32 x 32 beside it, which
               is compute-bound. 3 and 5 times wanted.
memory         T-01: peak resident memory of whole runs, a process each, less what is resident before; 40 % less wanted, by accumulation and
               checkpointing; with bf16, which does not count.
checkpointing  T-15: a step's bytes by torch's allocator and its time, of stacks of equal blocks and of ResNet-18; up to 80 % less wanted.
half           T-16, T-24, PREC-17: bytes of weights and of activations apart, in float32, all in bfloat16, and under autocast; 50 % less.
amp            T-18, T-23: a step's time in float32 and under bf16 autocast, where the CPU has AVX512_BF16 or AMX; 2, and 1.5 to 2 times.
accuracy       T-25, PREC-07: Fashion-MNIST's first images, some seeds in each precision; means within a standard deviation wanted.
batch          T-14: seconds of hr.plan_batch_size against a run's; at most 20 % wanted. BATCH-03: the samples/s that it tells beside a
               stopwatch's; 5 % apart at most. T-30: with 100 and 200 samples/s asked for, whether a size that reaches them is found.

Halves that need a GPU are told as unavailable. memory and batch, whose rounds take long, have --few of them, accuracy --seeds. Wanted: all
of it within 8 minutes on two cores. Exit status 3: a target is missed.

usage: make bench NAME=train-targets                                       all parts
       make bench NAME=train-targets ARGS='speed half --rounds 5'          or some of them
"""

import argparse
import gc
import os
import shutil
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import harness  # noqa: E402

sys.path.insert(0, str(harness.PACKAGE))

import torch  # noqa: E402
from torch import nn  # noqa: E402
from torch.utils.data import DataLoader  # noqa: E402
from torchvision import datasets, transforms  # noqa: E402
from torchvision.models import resnet18  # noqa: E402

import headrace as hr  # noqa: E402
import smaller_fashion  # noqa: E402
from activation_checkpointing.run import BLOCKS, PLAIN, Loop, Net, Size, milliseconds, peak_of  # noqa: E402
from cifar_resnet import cifar_resnet18  # noqa: E402
from headrace import _engine_door  # noqa: E402
from small_net import small_net  # noqa: E402
from train_fashion.small_cnn import SmallCnn  # noqa: E402
from train_targets import findings, memory_run  # noqa: E402
from train_targets.findings import Finding  # noqa: E402

MEAN, DEVIATION = [0.485, 0.456, 0.406], [0.229, 0.224, 0.225]
SIDE, RESIZE, BATCH = 128, 146, 32
EVERY = 6  # Of the photographs one in so many is read: 500 of 3,000.
NAIVE = "naive loop"
BF16_SETS = ("avx512_bf16", "amx_bf16")
COMPUTE_BATCH, COMPUTE_STEPS = 16, 2
FASHION_TRAIN, FASHION_TEST, FASHION_EPOCHS = 6_000, 2_000, 4
DETECTOR_SIDE = 640
DETECTOR = f"detector, {DETECTOR_SIDE} x {DETECTOR_SIDE}"
SEARCH_STEPS = 5  # Timed at the size that a search chose.

Batch = tuple[torch.Tensor, torch.Tensor]
Part = Callable[[harness.Bench, argparse.Namespace], list[Finding]]


def forward(model: nn.Module, batch: Batch) -> torch.Tensor:
    return nn.functional.cross_entropy(model(batch[0]), batch[1])


def noise(size: int, channels: int, side: int, classes: int = 10) -> Batch:
    torch.manual_seed(2)
    return torch.randn(size, channels, side, side), torch.randint(classes, (size,))


# speed


class Epochs:
    """Training by one way; each epoch() is its samples/s. The losses of the first epoch are kept, to be compared."""

    def __init__(self, batches: Iterable[Batch], step: Callable[[Batch], Any]) -> None:
        self._batches, self._step = batches, step
        self.losses: list[float] = []

    def epoch(self) -> float:
        begin, samples, losses = time.perf_counter(), 0, []
        for batch in self._batches:
            losses.append(self._step(batch))
            samples += len(batch[1])
        rate = samples / (time.perf_counter() - begin)
        self.losses = self.losses or [float(loss) for loss in losses]
        return rate


def plain_step(model: nn.Module) -> Callable[[Batch], float]:
    """With PyTorch's default AdamW, and the loss read at each step."""
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)

    def step(batch: Batch) -> float:
        optimizer.zero_grad()
        loss = forward(model, batch)
        loss.backward()
        optimizer.step()
        return loss.item()

    return step


def trainer_step(model: nn.Module, **options: Any) -> Callable[[Batch], torch.Tensor]:
    return hr.Trainer(model, torch.optim.AdamW(model.parameters(), lr=1e-3, fused=True), forward, **options).step


def some_photographs(photos: Path, folder: Path) -> Path:
    paths = sorted((photos / "train").glob("*/*.jpg"))[::EVERY]
    if not paths:
        raise SystemExit(f"no photographs in {photos}/train: make setup JOB=photos")
    for path in paths:
        target = folder / "train" / path.parent.name / path.name
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(path, target)
    return folder


def data_bound(folder: Path, threads: int) -> dict[str, Epochs]:
    """The same images in the same order, each way with one lever more."""
    chain = transforms.Compose([transforms.Resize(RESIZE), transforms.CenterCrop(SIDE), transforms.ToTensor(),
                                transforms.Normalize(MEAN, DEVIATION)])
    images = datasets.ImageFolder(str(folder / "train"), chain)
    ours = partial(hr.Loader, f"folder:{folder}", batch_size=BATCH, num_workers=threads, shuffle=False, index="none",
                   transform={"size": SIDE, "resize": RESIZE, "crop": "center", "mean": MEAN, "std": DEVIATION})
    return {NAIVE: Epochs(DataLoader(images, BATCH), plain_step(small_net())),
            f"{threads} workers": Epochs(DataLoader(images, BATCH, num_workers=threads, persistent_workers=True), plain_step(small_net())),
            "hr.Loader": Epochs(ours(), plain_step(small_net())),
            "hr.Loader, hr.Trainer": Epochs(ours(), trainer_step(small_net())),
            "hr.Loader with a cache, hr.Trainer": Epochs(ours(cache="decoded"), trainer_step(small_net()))}


def compute_bound(has_bf16: bool) -> dict[str, Epochs]:
    def network(channels_last: bool) -> nn.Module:
        torch.manual_seed(1)
        return cifar_resnet18().to(memory_format=torch.channels_last if channels_last else torch.contiguous_format)

    images, labels = noise(COMPUTE_BATCH, 3, 32)
    rows = [(images, labels)] * COMPUTE_STEPS
    columns = [(images.to(memory_format=torch.channels_last), labels)] * COMPUTE_STEPS
    made = {NAIVE: Epochs(rows, plain_step(network(False))), "hr.Trainer": Epochs(rows, trainer_step(network(False))),
            "hr.Trainer, channels-last": Epochs(columns, trainer_step(network(True)))}
    if has_bf16:
        made["hr.Trainer, channels-last, bf16"] = Epochs(columns, trainer_step(network(True), precision="bf16"))
    return made


def measured_epochs(bench: harness.Bench, arguments: argparse.Namespace, title: str, ways: dict[str, Epochs]) -> dict[str, list[float]]:
    arms = [harness.Arm(name, lambda _, way=way: way.epoch()) for name, way in ways.items()]
    rates = bench.measure(arms, arguments.rounds, warm_up=1, title=title)
    print(f"\n{title}\n{harness.arms_table(rates, 'samples/s', 1, NAIVE)}")
    for name, times in findings.levers(rates):
        print(f"  {name}: {times} beside the line above")
    return rates


def speed_part(bench: harness.Bench, arguments: argparse.Namespace) -> list[Finding]:
    torch.set_num_threads(1)  # Training and loading share the cores.
    with tempfile.TemporaryDirectory(prefix="headrace-train-targets-") as scratch:
        ways = data_bound(some_photographs(arguments.photos, Path(scratch)), arguments.threads)
        rates = measured_epochs(bench, arguments, f"data-bound: photographs at {SIDE} x {SIDE}, a small net, batch {BATCH}", ways)
    theirs = ways[NAIVE].losses
    apart = {name: max(abs(one - other) for one, other in zip(way.losses, theirs, strict=True)) for name, way in ways.items() if name != NAIVE}
    del ways  # Ends the workers.
    torch.set_num_threads(arguments.threads)
    computing = measured_epochs(bench, arguments, f"compute-bound: ResNet-18 at 32 x 32, batch {COMPUTE_BATCH}", compute_bound(bool(bf16_sets())))
    return [*findings.speed(rates, apart, arguments.threads), *findings.compute_speed(computing)]


# memory


def memory_part(bench: harness.Bench, arguments: argparse.Namespace) -> list[Finding]:
    script = Path(memory_run.__file__).resolve()
    arms = [harness.Arm(run, lambda _, run=run: harness.run_json([sys.executable, script, run], environment=harness.python_path()))
            for run in memory_run.RUNS]
    found = bench.measure(arms, arguments.few, title="memory")
    print(f"\nmemory: {memory_run.BLOCKS} blocks of {memory_run.CHANNELS} channels, batch {memory_run.BATCH} of "
          f"{memory_run.SIDE} x {memory_run.SIDE}, {memory_run.PARTS} micro-batches\n{findings.memory_table(found, memory_run.PLAIN)}")
    return findings.memory(found, memory_run.PLAIN, memory_run.OPTIMISED, memory_run.WITH_BF16)


# checkpointing


def resnet_at_64() -> nn.Module:
    return resnet18(num_classes=10)


def deep_blocks() -> nn.Module:
    """16 blocks of six convolutions each: the deeper a block, the more of what it saves is computed again."""
    def block(channels: int) -> nn.Module:
        return nn.Sequential(*(layer for before in (channels, *[16] * 5) for layer in (
            nn.Conv2d(before, 16, 3, padding=1, bias=False), nn.BatchNorm2d(16), nn.ReLU())))

    return nn.Sequential(block(3), *(block(16) for _ in range(15)), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(16, 10))


class NetworkLoop:
    def __init__(self, make: Callable[[], nn.Module], side: int, recomputed: bool) -> None:
        torch.manual_seed(1)
        model = make()
        if recomputed:
            hr.gradient_checkpointing_enable(model)
        self._step, self._batch = plain_step(model), noise(8, 3, side)
        for _ in range(3):  # Optimizer state is there.
            self.step()

    def step(self) -> None:
        self._step(self._batch)


def stack_of(blocks: int, recomputed: bool) -> Loop:
    return Loop(Size(blocks=blocks, channels=16, side=32, batch=8), BLOCKS if recomputed else PLAIN)


STACKS: dict[str, Callable[[bool], Any]] = {
    **{f"{blocks} equal blocks": partial(stack_of, blocks) for blocks in (8, 32, 64)},
    "16 deep blocks": partial(NetworkLoop, deep_blocks, 32), "ResNet-18 at 64 x 64": partial(NetworkLoop, resnet_at_64, 64)}


def checkpointing_part(bench: harness.Bench, arguments: argparse.Namespace) -> list[Finding]:
    engine = _engine_door.engine("bench/train_targets")
    if reason := engine.watch_tensor_memory()[2]:
        return [Finding("T-15", "stacks of equal blocks", f"up to {findings.CHECKPOINTING_SAVED:.0%} saved",
                        f"{harness.UNAVAILABLE}: tensors are not counted: {reason}")]
    torch.set_num_threads(arguments.threads)
    stacks: dict[str, dict[str, Any]] = {name: {} for name in STACKS}
    arms = []
    for name, make in STACKS.items():
        for form, recomputed in (("plain", False), ("recomputed", True)):
            gc.collect()
            held = engine.tensor_memory()[0]
            loop = make(recomputed)
            stacks[name][form] = {"step": peak_of(engine, loop.step), "whole": engine.tensor_memory()[1] - held}
            arms.append(harness.Arm((name, form), lambda _, loop=loop: milliseconds(loop.step, 1)))
    times = bench.measure(arms, arguments.rounds, warm_up=1, title="checkpointing")
    for (name, form), values in times.items():
        stacks[name][form]["ms"] = values
    print(f"\ncheckpointing\n{harness.arms_table(times, 'ms a step', 1)}")
    return findings.checkpointing(stacks)


# half


class Detector(nn.Module):
    """What a network of one-stage detection computes: convolutions with stride 2, BatchNorm and SiLU, and a prediction a cell. Its loss
    stands for a detector's and costs as little."""

    def __init__(self) -> None:
        super().__init__()
        widths = (3, 16, 32, 64, 128, 256)
        self.layers = nn.Sequential(*(layer for before, after in zip(widths, widths[1:]) for layer in (
            nn.Conv2d(before, after, 3, stride=2, padding=1, bias=False), nn.BatchNorm2d(after), nn.SiLU())))
        self.head = nn.Conv2d(widths[-1], 5 + 80, 1)

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        return self.head(self.layers(images))


def detection_loss(model: nn.Module, images: torch.Tensor) -> torch.Tensor:
    return model(images).float().square().mean()


def bytes_of(tensors: Iterable[torch.Tensor]) -> int:
    return sum(tensor.nbytes for tensor in tensors)


def accounted(dtype: torch.dtype, autocast: bool, side: int = DETECTOR_SIDE) -> dict[str, int]:
    """Bytes of a Detector's weights, and of what autograd keeps for its backward, each storage once: of copies of weights in bfloat16,
    told by their shapes, which no activation here has, and of all else."""
    torch.manual_seed(1)
    model, images = Detector().to(dtype), torch.randn(2, 3, side, side).to(dtype)
    weights = list(model.parameters())
    own = {tensor.untyped_storage().data_ptr() for tensor in (*weights, *model.buffers())}
    shapes = {tuple(sorted(weight.shape)) for weight in weights if weight.dim() > 1}
    kept: dict[int, tuple[torch.UntypedStorage, bool]] = {}  # Held, so that no address comes twice.

    def pack(tensor: torch.Tensor) -> torch.Tensor:
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in own:
            kept.setdefault(storage.data_ptr(), (storage, tensor.dtype == torch.bfloat16 and tuple(sorted(tensor.shape)) in shapes))
        return tensor.detach()  # Itself would hold its own graph.

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor), torch.autocast("cpu", torch.bfloat16, enabled=autocast):
        loss = detection_loss(model, images)
    loss.backward()
    sums = {is_copy: sum(storage.nbytes() for storage, found in kept.values() if found == is_copy) for is_copy in (False, True)}
    return {"weights": bytes_of(weights), "activations": sums[False], "copies": sums[True]}


def peak_of_step(autocast: bool) -> int | None:
    """Of a Detector's training step, beyond what was held before; None where tensors are not counted."""
    engine = _engine_door.engine("bench/train_targets")
    if engine.watch_tensor_memory()[2]:
        return None
    torch.manual_seed(1)
    model, images = Detector(), torch.randn(2, 3, DETECTOR_SIDE, DETECTOR_SIDE)
    optimizer = torch.optim.AdamW(model.parameters())

    def step() -> None:
        optimizer.zero_grad()
        with torch.autocast("cpu", torch.bfloat16, enabled=autocast):
            loss = detection_loss(model, images)
        loss.backward()
        optimizer.step()

    step()  # Optimizer state is there.
    return peak_of(engine, step)


def half_part(bench: harness.Bench, arguments: argparse.Namespace) -> list[Finding]:
    torch.set_num_threads(arguments.threads)
    found: dict[str, dict[str, int | None]] = {}
    for form, dtype, autocast in (("float32", torch.float32, False), ("bfloat16", torch.bfloat16, False), ("autocast", torch.float32, True)):
        found[form] = {**accounted(dtype, autocast), "step": None if form == "bfloat16" else peak_of_step(autocast)}
    bench.keep({form: [bytes_] for form, bytes_ in found.items()}, "half")
    return findings.half(found)


# amp


def bf16_sets() -> list[str]:
    return [name for name in harness.processor()[1] if name in BF16_SETS]


@dataclass(frozen=True)
class Workload:
    make: Callable[[], nn.Module]
    loss: Callable[[nn.Module, Any], torch.Tensor]
    batch: Callable[[], Any]

    def step(self, precision: str) -> Callable[[], object]:
        torch.manual_seed(1)
        model = self.make()
        trainer = hr.Trainer(model, torch.optim.AdamW(model.parameters(), fused=True), self.loss, precision=precision)
        batch = self.batch()
        return lambda: trainer.step(batch)


def matrices() -> nn.Module:
    width = 1024
    return nn.Sequential(*(layer for _ in range(4) for layer in (nn.Linear(width, width), nn.ReLU())), nn.Linear(width, 10))


WORKLOADS = {
    "matrices of 1024, batch 256": Workload(matrices, forward, lambda: (torch.randn(256, 1024), torch.randint(10, (256,)))),
    "small net, 28 x 28, batch 64": Workload(SmallCnn, forward, lambda: noise(64, 1, 28)),
    DETECTOR: Workload(Detector, detection_loss, lambda: torch.randn(2, 3, DETECTOR_SIDE, DETECTOR_SIDE))}


def amp_part(bench: harness.Bench, arguments: argparse.Namespace) -> list[Finding]:
    torch.set_num_threads(arguments.threads)
    times: dict[tuple[str, str], list[float]] = {}
    if bf16_sets():
        arms = [harness.Arm((name, precision), partial(lambda step, _: milliseconds(step, 3), workload.step(precision)))
                for name, workload in WORKLOADS.items() for precision in ("fp32", "bf16")]
        times = bench.measure(arms, arguments.rounds, warm_up=1, title="amp")
        print(f"\namp: hr.Trainer\n{harness.arms_table(times, 'ms a step', 1)}")
    return findings.mixed_precision(times, DETECTOR, bf16_sets())


# accuracy


def trained_accuracy(folder: Path, precision: str, seed: int, threads: int) -> float:
    """Of the test images, after FASHION_EPOCHS epochs, evaluated in the precision that it was trained in."""
    loader = partial(hr.Loader, f"idx:{folder}", batch_size=64, num_workers=threads, transform={"mean": [0.2860], "std": [0.3530]})
    torch.manual_seed(seed)
    model = SmallCnn()
    hr.Trainer(model, torch.optim.AdamW(model.parameters(), lr=1e-3, fused=True), forward, precision=precision).fit(
        loader(seed=seed), FASHION_EPOCHS)
    model.eval()
    correct = total = 0
    with torch.no_grad(), torch.autocast("cpu", torch.bfloat16, enabled=precision == "bf16"):
        for images, labels in loader(split="test"):
            correct += int((model(images).argmax(1) == labels).sum())
            total += len(labels)
    return correct / total


def accuracy_part(bench: harness.Bench, arguments: argparse.Namespace) -> list[Finding]:
    torch.set_num_threads(arguments.threads)
    with tempfile.TemporaryDirectory(prefix="headrace-train-targets-") as scratch:
        smaller_fashion.write(Path(scratch), FASHION_TRAIN, FASHION_TEST)
        arms = [harness.Arm(precision, partial(trained_accuracy, Path(scratch), precision, threads=arguments.threads))
                for precision in ("fp32", "bf16")]
        found = bench.measure(arms, arguments.seeds, title="accuracy")  # The number of a round is its seed.
    print(f"\naccuracy: {FASHION_TRAIN:,} images of Fashion-MNIST, {FASHION_EPOCHS} epochs, {arguments.seeds} seeds\n"
          f"{harness.arms_table(found, 'accuracy', 4)}")
    return findings.accuracy(found["fp32"], found["bf16"])


# batch


def searched(make: Callable[[], nn.Module], channels: int, side: int, target: float | None = None) -> dict[str, Any]:
    """Seconds of a search, by the clock around it, samples/s of steps at the size that it chose, by that clock and as the search tells
    them, and whether a target is said to be reached."""
    torch.manual_seed(1)
    model = make()
    trainer = hr.Trainer(model, torch.optim.AdamW(model.parameters(), fused=True), forward)
    begin = time.perf_counter()
    plan = hr.plan_batch_size(trainer, noise(32, channels, side), initial_batch_size=32, max_batch_size=256, target_throughput=target)
    search_s = time.perf_counter() - begin
    batch = noise(plan.batch_size, channels, side)
    trainer.step(batch)
    step_s = milliseconds(lambda: trainer.step(batch), SEARCH_STEPS) / 1e3
    return {"search_s": search_s, "batch_size": plan.batch_size, "samples_per_second": plan.batch_size / step_s,
            "told_samples_per_second": plan.samples_per_second, "says_reached": not plan.reason.startswith("no size has")}


def batch_part(bench: harness.Bench, arguments: argparse.Namespace) -> list[Finding]:
    torch.set_num_threads(arguments.threads)
    blocks = partial(Net, Size(blocks=8, channels=16, side=32, batch=0), by_torch=False)
    arms = [harness.Arm("small net, 28 x 28", lambda _: searched(SmallCnn, 1, 28)),
            harness.Arm("8 blocks, 32 x 32", lambda _: searched(blocks, 3, 32))]
    found = bench.measure(arms, arguments.few, title="batch")
    targets = [harness.Arm(target, lambda _, target=target: searched(blocks, 3, 32, target)) for target in findings.TARGET_RATES]
    reached = bench.measure(targets, arguments.few, title="target throughput")
    return [*findings.search(found), *findings.told_throughput(found), *findings.target_throughput(reached)]


# All of it.

PARTS: dict[str, tuple[Part, tuple[str, ...]]] = {  # With the targets that have a half on a GPU.
    "speed": (speed_part, ("T-05", "T-20")), "memory": (memory_part, ("T-01",)), "checkpointing": (checkpointing_part, ("T-15",)),
    "half": (half_part, ("T-16", "T-24")), "amp": (amp_part, ("T-18", "T-23")), "accuracy": (accuracy_part, ("T-25, PREC-07",)),
    "batch": (batch_part, ("T-14",))}
COUNTS_TENSORS = ("checkpointing", "half", "batch")


def part(word: str) -> str:
    if word not in PARTS:
        raise argparse.ArgumentTypeError(f"wanted one of {', '.join(PARTS)}, found {word}")
    return word


def parsed(words: list[str] | None = None) -> argparse.Namespace:
    parser = harness.parser(__doc__, rounds=10)
    parser.add_argument("parts", nargs="*", type=part, metavar="PART", help=f"{', '.join(PARTS)}; none: all")
    parser.add_argument("--few", type=int, default=3, help="rounds of memory and batch (%(default)s)")
    parser.add_argument("--seeds", type=int, default=3, help="of accuracy, at least 2 (%(default)s)")
    parser.add_argument("--photos", type=Path, default=harness.ROOT / "photos", help="ImageFolder; see make setup JOB=photos")
    parser.add_argument("--threads", type=int, default=len(os.sched_getaffinity(0)))
    arguments = parser.parse_args(words)
    if arguments.seeds < 2:
        parser.error(f"--seeds: wanted at least 2, of which there is a standard deviation, found {arguments.seeds}")
    return arguments


def told(bench: harness.Bench, arguments: argparse.Namespace, names: Iterable[str]) -> Iterator[Finding]:
    """Each part's lines are printed when it is done."""
    for name in names:
        measure, targets = PARTS[name]
        begin = time.monotonic()
        lines = [*measure(bench, arguments), *findings.on_gpu(targets, torch.cuda.is_available())]
        gc.collect()
        print(f"\n{name}, {time.monotonic() - begin:.0f} s\n" + "\n".join(map(str, lines)), flush=True)
        yield from lines


def main() -> int:
    arguments = parsed()
    names = list(dict.fromkeys(arguments.parts)) or list(PARTS)
    if set(names) & set(COUNTS_TENSORS):
        _engine_door.engine("bench/train_targets").watch_tensor_memory()  # Before the first tensor.
    bench = harness.Bench(__file__, arguments, f"{', '.join(names)}; bf16 by {', '.join(bf16_sets()) or 'no instructions of this CPU'}; "
                                               f"{arguments.threads} threads; {harness.interval_remark(arguments.rounds)}, "
                                               f"{harness.coverage(arguments.few):.0%} of {arguments.few} in memory and batch")
    found = list(told(bench, arguments, names))
    missed = [finding for finding in found if finding.met is False]
    print(f"\n{len(missed)} of {sum(finding.met is not None for finding in found)} missed", *map(str, missed), sep="\n", flush=True)
    return bench.end({"findings": [str(finding) for finding in found]}, 3 if missed else 0)


if __name__ == "__main__":
    sys.exit(main())
