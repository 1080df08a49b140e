#!/usr/bin/env python3
"""Training steps on a CUDA device: hr.Trainer, eager and replayed from a CUDA graph, beside torch's own ways.

step              CPU time of a step of ResNet-50 that is replayed, batch 64: of the calling thread, of all threads, and the wall of the
                  call. Wanted: at most 50 us of the calling thread. Beside it the eager step, the plain loop, and the plain loop's step
                  captured by hand.
mlp               the part step for a network of two small layers: what a step costs beside its launch.
resnet50          images/s of ResNet-50, batch 256 of 224 px, SGD with momentum.
airbench          ms a step of a network and an optimizer like those of airbench94 (Jordan, arXiv 2404.00498), batch 1024 of 32 px. The
                  step alone: images are noise, so that there is no accuracy, and no augmentation and no averaging of weights besides.
                  Parameters are float32 under autocast, where airbench94's own are float16, and the rate is lower.
reduce-overhead   the part step for torch.compile(mode="reduce-overhead"), where there is time left.

In all of them bf16 autocast, channels-last, torch's fused SGD, cudnn.benchmark, and batches of noise that lie on the device. Arms of
airbench and resnet50 take turns; compiling is timed apart. What would not end within --limit-s is left out, and told. Figures are printed
as they are found. Exit status 3: the bar of the part step is missed.

usage: make bench NAME=gpu-training ARGS='[PART...] [OPTION...]'
       tools/carried.sh run python3 bench/gpu_training/run.py ...      where the package was carried to
"""

import argparse
import gc
import itertools
import statistics
import sys
import time
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import harness  # noqa: E402
import rows  # noqa: E402

sys.path.insert(0, str(harness.PACKAGE))

import torch  # noqa: E402
from torch import nn  # noqa: E402

import headrace as hr  # noqa: E402

CPU_US_MAX = 50.0  # Of the calling thread, a replayed step.
CALLS, WARM_UP_CALLS = 200, 10
IN_A_ROW = 4  # Calls between two waits for the device: the queue of launches never fills, which would make a call wait.
WARM_UP_STEPS = 8  # Beyond those before a capture, and those that torch's own graphs are recorded in.

STEP, MLP, RESNET50, AIRBENCH, REDUCE_OVERHEAD = "step", "mlp", "resnet50", "airbench", "reduce-overhead"
PARTS = (STEP, MLP, RESNET50, AIRBENCH, REDUCE_OVERHEAD)
PLAIN, BY_HAND = "plain loop", "plain loop, captured by hand"
EAGER, CAPTURED, COMPILED = "hr.Trainer, eager", "hr.Trainer, captured", "torch.compile"
LAUNCH = "its launch alone"  # Of the step that was captured by hand.
BOTH = f"hr.Trainer, captured, over {COMPILED}"
OVERHEAD = f"{COMPILED}, reduce-overhead"
NEEDS_S = {STEP: 35.0, MLP: 5.0, RESNET50: 40.0, AIRBENCH: 10.0, REDUCE_OVERHEAD: 60.0}  # Guesses, without compiling.
COMPILING_S = {RESNET50: 55.0, AIRBENCH: 20.0}  # Guesses as well.

Batch = tuple[torch.Tensor, torch.Tensor]
Step = Callable[[], Any]


# What is trained.


@dataclass(frozen=True)
class Workload:
    """A network, its optimizer and its batches, the same for every arm."""

    network: Callable[[], nn.Module]
    optimizer: Callable[[nn.Module], torch.optim.Optimizer]
    batch: int
    side: int
    classes: int
    label_smoothing: float = 0.0

    def made(self) -> tuple[nn.Module, torch.optim.Optimizer]:
        torch.manual_seed(1)
        model = self.network().cuda().to(memory_format=torch.channels_last)
        return model, self.optimizer(model)

    def loss(self, model: nn.Module, batch: Batch) -> torch.Tensor:
        return nn.functional.cross_entropy(model(batch[0]), batch[1], label_smoothing=self.label_smoothing)

    def batches(self, count: int = 2) -> list[Batch]:
        torch.manual_seed(2)
        return [(torch.randn(self.batch, 3, self.side, self.side, device="cuda").to(memory_format=torch.channels_last),
                 torch.randint(self.classes, (self.batch,), device="cuda")) for _ in range(count)]


def resnet50() -> nn.Module:
    from torchvision.models import resnet50 as make

    return make(num_classes=1000)


def momentum_sgd(model: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9, weight_decay=5e-5, fused=True)


def norm(channels: int) -> nn.BatchNorm2d:
    """Shifts and does not scale."""
    made = nn.BatchNorm2d(channels, eps=1e-12, momentum=0.4)
    made.weight.requires_grad_(False)
    return made


def convolution(channels_in: int, channels_out: int) -> nn.Conv2d:
    """Begins as the identity, as far as there are inputs."""
    made = nn.Conv2d(channels_in, channels_out, 3, padding=1, bias=False)
    with torch.no_grad():
        nn.init.dirac_(made.weight[:channels_in])
    return made


def convolutions(channels_in: int, channels_out: int) -> nn.Sequential:
    return nn.Sequential(convolution(channels_in, channels_out), nn.MaxPool2d(2), norm(channels_out), nn.GELU(),
                         convolution(channels_out, channels_out), norm(channels_out), nn.GELU())


class Scaled(nn.Module):
    def forward(self, logits: torch.Tensor) -> torch.Tensor:
        return logits / 9


def mlp() -> nn.Module:
    return nn.Sequential(nn.Flatten(), nn.Linear(192, 64), nn.ReLU(), nn.Linear(64, 10))


def airbench_net() -> nn.Module:
    """A frozen 2x2 convolution, which whitens there and is drawn here, three groups of two convolutions, and a scaled linear layer."""
    whitening = nn.Conv2d(3, 24, 2)
    whitening.weight.requires_grad_(False)
    return nn.Sequential(whitening, nn.GELU(), convolutions(24, 64), convolutions(64, 256), convolutions(256, 256), nn.MaxPool2d(3),
                         nn.Flatten(), nn.Linear(256, 10, bias=False), Scaled())


def airbench_sgd(model: nn.Module) -> torch.optim.Optimizer:
    """Biases have 64 times the rate. That of weights is low enough for noise."""
    trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
    return torch.optim.SGD([{"params": [parameter for parameter in trained if parameter.dim() == 1], "lr": 0.64, "weight_decay": 1e-4},
                            {"params": [parameter for parameter in trained if parameter.dim() > 1]}],
                           lr=0.01, momentum=0.85, nesterov=True, weight_decay=6e-3, fused=True)


SMALL = Workload(resnet50, momentum_sgd, batch=64, side=224, classes=1000)
TINY = Workload(mlp, momentum_sgd, batch=64, side=8, classes=10)
LARGE = Workload(resnet50, momentum_sgd, batch=256, side=224, classes=1000)
AIRBENCH94 = Workload(airbench_net, airbench_sgd, batch=1024, side=32, classes=10, label_smoothing=0.2)


# How it is trained.


def plain(workload: Workload, compiling: Mapping[str, Any] | None = None) -> Step:
    """`compiling`: the words of torch.compile for the model; None: it is not compiled."""
    model, optimizer = workload.made()
    called = model if compiling is None else torch.compile(model, **compiling)
    turn = itertools.cycle(workload.batches())

    def step() -> None:
        update(workload, called, optimizer, next(turn))

    return step


def update(workload: Workload, model: Any, optimizer: torch.optim.Optimizer, batch: Batch) -> torch.Tensor:
    optimizer.zero_grad()
    with torch.autocast("cuda", torch.bfloat16):
        loss = workload.loss(model, batch)
    loss.backward()
    optimizer.step()
    return loss.detach()


def by_trainer(workload: Workload, cuda_graph: bool, compiles: bool = False) -> Step:
    model, optimizer = workload.made()
    called = torch.compile(model) if compiles else model
    trainer = hr.Trainer(model, optimizer, lambda _, batch: workload.loss(called, batch), precision="bf16", cuda_graph=cuda_graph)
    turn = itertools.cycle(workload.batches())

    def step() -> torch.Tensor:
        return trainer.step(next(turn))

    if cuda_graph:
        run(step, WARM_UP_STEPS)
        found = trainer.explain()["cuda_graph"]
        if not found["native"]:
            raise RuntimeError(f"the step is not captured: {found['reason']}")
    return step


def by_hand(workload: Workload, copies: bool = True) -> Step:
    """The whole step of the plain loop in one torch.cuda.graph, as torch's documentation has it."""
    model, optimizer = workload.made()
    batches = workload.batches()
    inputs = tuple(tensor.clone() for tensor in batches[0])
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        for _ in range(3):
            update(workload, model, optimizer, inputs)
    torch.cuda.current_stream().wait_stream(stream)
    optimizer.zero_grad()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        loss = update(workload, model, optimizer, inputs)
    turn = itertools.cycle(batches)

    def step() -> torch.Tensor:
        if copies:
            for place, tensor in zip(inputs, next(turn), strict=True):
                place.copy_(tensor)
        graph.replay()
        return loss

    step.kept = model, optimizer, inputs  # What the graph works on.
    return step


ARMS: dict[str, Callable[[Workload], Step]] = {
    PLAIN: plain,
    EAGER: lambda workload: by_trainer(workload, False),
    CAPTURED: lambda workload: by_trainer(workload, True),
    BY_HAND: by_hand,
    LAUNCH: lambda workload: by_hand(workload, copies=False),
    BOTH: lambda workload: by_trainer(workload, True, compiles=True),
    COMPILED: lambda workload: plain(workload, {}),
    OVERHEAD: lambda workload: plain(workload, {"mode": "reduce-overhead"}),
}
ARMS_OF = {STEP: (CAPTURED, EAGER, PLAIN, BY_HAND, LAUNCH), MLP: (CAPTURED, EAGER, PLAIN, BY_HAND, LAUNCH),
           RESNET50: (PLAIN, EAGER, CAPTURED, COMPILED, BOTH), AIRBENCH: (PLAIN, CAPTURED, COMPILED, BOTH),
           REDUCE_OVERHEAD: (OVERHEAD,)}


def run(step: Step, count: int) -> float:
    """Seconds a step, from a device that has nothing to do until it has nothing to do again."""
    torch.cuda.synchronize()
    begin = time.perf_counter()
    for _ in range(count):
        step()
    torch.cuda.synchronize()
    return (time.perf_counter() - begin) / count


# What is measured.


def told(line: str) -> None:
    print(line, flush=True)


def spread(values: Sequence[float], digits: int = 0) -> str:
    """The median with the quartiles."""
    low, high = harness.quartiles(values)
    return f"{statistics.median(values):,.{digits}f} [{low:,.{digits}f}, {high:,.{digits}f}]"


def forget() -> None:
    """What the arms before have held."""
    gc.collect()
    if "torch._dynamo" in sys.modules:
        torch._dynamo.reset()
    torch.cuda.empty_cache()


def host_times(step: Step, calls: int) -> dict[str, list[float]]:
    """Microseconds of each call, and milliseconds a step of each IN_A_ROW of them with the device waited for."""
    found: dict[str, list[float]] = {"thread_us": [], "process_us": [], "wall_us": [], "step_ms": []}
    clocks = {"thread_us": time.thread_time_ns, "process_us": time.process_time_ns, "wall_us": time.perf_counter_ns}
    for _ in range(calls // IN_A_ROW):
        torch.cuda.synchronize()
        begin = time.perf_counter()
        for _ in range(IN_A_ROW):
            before = [clock() for clock in clocks.values()]
            step()
            after = [clock() for clock in clocks.values()]
            for name, earlier, later in zip(clocks, before, after, strict=True):
                found[name].append((later - earlier) / 1e3)
        torch.cuda.synchronize()
        found["step_ms"].append(1e3 * (time.perf_counter() - begin) / IN_A_ROW)
    return found


class Session:
    """One call of the bench: its figures, and the time that is left to it."""

    def __init__(self, bench: harness.Bench, arguments: argparse.Namespace) -> None:
        self.bench, self.arguments = bench, arguments
        self.rows = rows.Rows(arguments.rows) if arguments.rows else None
        self._end = time.monotonic() + arguments.limit_s
        self.failed: list[str] = []

    def left_s(self) -> float:
        return self._end - time.monotonic()

    def keep(self, part: str, arm: str, figures: Any) -> None:
        if self.rows is not None:
            self.rows.add({"part": part, "arm": arm, "run": self.bench.date},
                          {"device": torch.cuda.get_device_name(), "found": figures})

    def make(self, part: str, arm: str, workload: Workload) -> Step | None:
        """Warmed up; None: it cannot be had, which is told."""
        begin = time.perf_counter()
        try:
            step = ARMS[arm](workload)
            run(step, 1)
            first_s = time.perf_counter() - begin
            run(step, WARM_UP_STEPS)
        except Exception as error:  # noqa: BLE001 - of one arm; the others are measured.
            traceback.print_exc()
            self.failed.append(f"{part}, {arm}: {type(error).__name__}: {error}")
            told(f"FAILED {self.failed[-1]}")
            return None
        if COMPILED in arm:
            told(f"{part}, {arm}: compiled and first step made in {first_s:.0f} s")
            self.keep(part, f"{arm}: compiling", {"seconds": first_s})
        return step

    def arms_in_time(self, part: str) -> Iterator[str]:
        for arm in ARMS_OF[part]:
            if arm in (COMPILED, BOTH) and self.left_s() < COMPILING_S[part] + NEEDS_S[part] / 2:
                told(f"{part}, {arm}: left out, as {self.left_s():.0f} s are left of {self.arguments.limit_s:g}")
            else:
                yield arm


def measure_host(session: Session, part: str, workload: Workload) -> None:
    for arm in session.arms_in_time(part):
        if (step := session.make(part, arm, workload)) is None:
            continue
        run(step, WARM_UP_CALLS)
        found = host_times(step, session.arguments.calls)
        told(f"{part}, {arm}: CPU us a step: calling thread {spread(found['thread_us'], 1)}, all threads "
             f"{spread(found['process_us'], 1)}; wall of the call {spread(found['wall_us'], 1)} us; whole step "
             f"{spread(found['step_ms'], 2)} ms")
        session.bench.keep({f"{arm}, {name}": values for name, values in found.items()}, part)
        session.keep(part, arm, found)
        del step
        forget()


def measure_in_turns(session: Session, part: str, workload: Workload, steps: int, rounds: int, unit: str, digits: int,
                     figure: Callable[[float], float]) -> None:
    """`figure`: of the seconds of a step."""
    made = {arm: step for arm in session.arms_in_time(part) if (step := session.make(part, arm, workload)) is not None}

    def block(arm: str, number: int) -> float:
        found = figure(run(made[arm], steps))
        told(f"{part}, round {number}, {arm}: {found:,.{digits}f} {unit}")
        return found

    found = session.bench.measure([harness.Arm(arm, lambda number, arm=arm: block(arm, number)) for arm in made], rounds, title=part)
    for arm, values in found.items():
        told(f"{part}, {arm}: {spread(values, digits)} {unit}, median and quartiles of {rounds} rounds of {steps} steps")
        session.keep(part, arm, {unit: values})
    if found:
        told(harness.arms_table(found, unit, digits, reference=PLAIN if PLAIN in found else None))
    made.clear()
    forget()


def measure(session: Session, part: str) -> None:
    if part in (STEP, REDUCE_OVERHEAD):
        measure_host(session, part, SMALL)
    elif part == MLP:
        measure_host(session, part, TINY)
    elif part == AIRBENCH:
        told(f"{part}: the step alone; there is no CIFAR-10 here, and no accuracy")
        measure_in_turns(session, part, AIRBENCH94, 50, session.arguments.rounds, "ms a step", 3, lambda seconds: 1e3 * seconds)
    else:
        measure_in_turns(session, part, LARGE, 10, session.arguments.rounds, "images/s", 0, lambda seconds: LARGE.batch / seconds)


def bar_of(arms: Sequence[Mapping[str, Any]]) -> rows.Bar:
    values = next((arm["values"] for arm in arms if (arm["title"], arm["name"]) == (STEP, f"{CAPTURED}, thread_us")), None)
    return rows.Bar("CPU of a replayed step, calling thread", f"at most {CPU_US_MAX:g} us",
                    f"{spread(values, 1)} us" if values else "nothing", statistics.median(values) <= CPU_US_MAX if values else None)


def main() -> int:
    parser = harness.parser(__doc__, rounds=6)
    parser.add_argument("parts", nargs="*", metavar="PART", help=f"of {', '.join(PARTS)} (all, in this order)")
    parser.add_argument("--calls", type=int, default=CALLS, help="that are timed of each arm of the part step (%(default)s)")
    parser.add_argument("--limit-s", type=rows.positive, default=145.0, help="begin nothing that would end later (%(default)s)")
    parser.add_argument("--rows", type=Path, help="also append the figures to this file, a line of JSON an arm")
    arguments = parser.parse_args()
    if unknown := set(arguments.parts) - set(PARTS):
        parser.error(f"wanted one of {', '.join(PARTS)}, found {', '.join(sorted(unknown))}")
    if not torch.cuda.is_available():
        raise SystemExit("gpu-training: torch sees no CUDA device here")
    torch.backends.cudnn.benchmark = True
    bench = harness.Bench(__file__, arguments, f"{torch.cuda.get_device_name()}; {harness.interval_remark(arguments.rounds)}")
    session = Session(bench, arguments)
    for part in arguments.parts or PARTS:
        if part not in arguments.parts and session.left_s() < NEEDS_S[part]:
            told(f"{part}: left out, as {session.left_s():.0f} s are left of {arguments.limit_s:g}")
            continue
        measure(session, part)
        told(f"{part}: done, {session.left_s():.0f} s left")
    bar = bar_of(bench.arms)
    if STEP in (arguments.parts or PARTS):
        told(str(bar))
    for failure in session.failed:
        told(f"failed: {failure}")
    return bench.end({"failed": session.failed}, 3 if bar.met is False else 1 if session.failed else 0)


if __name__ == "__main__":
    sys.exit(main())
