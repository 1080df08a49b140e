"""hr.autotune on a CUDA device: what it finds in five loops, against turns of their own, and what it adds to a step.

usage: make bench NAME=live-tuning ARGS='on-cuda --minutes 8'
       tools/carried.sh run python3 bench/live_tuning/run.py on-cuda ...      where the package was carried to

Each loop is tuned live for --live-s seconds at most. Then a model of its own makes steps with each change alone and with all that
was kept, in turns, by the wall clock around blocks that begin and end with a wait for the device. Wanted: no kept change whose
turns lie wholly below nothing, and each change that they put beyond 15 % either way decided.
"""

import argparse
import statistics
import time
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import harness
import headrace as hr
import rows
from headrace._live_knobs import LiveKnobs
from live_tuning.hooks import ALONE, SEARCHING, STOPPED, search
from live_tuning.hooks import Loop as SmallLoop
from live_tuning.scripts.vit import ViT

LARGE, ROUNDS = 0.15, 9
HOOKS, ALL_KEPT = "hooks", "all kept"
DEVICE = "cuda"


class Loop:
    """Batches of random numbers that lie on the device, a loss that is read every 20 steps, as those do who log it."""

    loader: Any = None

    def __init__(self, model: nn.Module, optimizer: type[torch.optim.Optimizer], shape: Sequence[int], classes: int,
                 **options: Any) -> None:
        self.model = model.to(DEVICE)
        self.optimizer = optimizer(self.model.parameters(), **options)
        self.inputs = [torch.randn(*shape, device=DEVICE) for _ in range(4)]
        self.labels = [torch.randint(classes, (shape[0],), device=DEVICE) for _ in range(4)]
        self.made = 0

    def batch(self) -> tuple[torch.Tensor, torch.Tensor]:
        place = self.made % len(self.inputs)
        return self.inputs[place], self.labels[place]

    def steps(self, count: int) -> None:
        for _ in range(count):
            inputs, labels = self.batch()
            self.optimizer.zero_grad()
            loss = nn.functional.cross_entropy(self.model(inputs), labels)
            loss.backward()
            self.optimizer.step()
            self.made += 1
            if self.made % 20 == 0:
                loss.item()


class Loaded(Loop):
    """Batches of bytes from a DataLoader, by way of page-locked memory."""

    def __init__(self, model: nn.Module, optimizer: type[torch.optim.Optimizer], shape: Sequence[int], classes: int,
                 **options: Any) -> None:
        super().__init__(model, optimizer, shape, classes, **options)
        count = 16 * shape[0]
        dataset = TensorDataset(torch.randint(256, (count, *shape[1:]), dtype=torch.uint8), torch.randint(classes, (count,)))
        self.loader = DataLoader(dataset, shape[0], shuffle=True, num_workers=4, pin_memory=True, drop_last=True)
        self._batches = self._endless()

    def _endless(self) -> Iterator[Any]:
        while True:
            yield from self.loader

    def batch(self) -> tuple[torch.Tensor, torch.Tensor]:
        images, labels = next(self._batches)
        return images.to(DEVICE, non_blocking=True).float().div_(255), labels.to(DEVICE, non_blocking=True)


def resnet50() -> nn.Module:
    from torchvision.models import resnet50 as make

    return make(num_classes=100)


def make_loop(name: str) -> Loop:
    torch.manual_seed(1)
    if name == "resnet50":
        return Loop(resnet50(), torch.optim.SGD, (64, 3, 176, 176), 100, lr=0.01, momentum=0.9)
    if name == "resnet50_loader":
        return Loaded(resnet50(), torch.optim.SGD, (64, 3, 176, 176), 100, lr=0.01, momentum=0.9)
    if name in ("vit", COMPILED):
        return Loop(ViT(dim=384, depth=12, heads=6), torch.optim.AdamW, (256, 1, 28, 28), 10, lr=1e-3)
    model = nn.Sequential(nn.Linear(64, 256), nn.ReLU(), nn.Linear(256, 256), nn.ReLU(), nn.Linear(256, 10))
    return Loop(model, torch.optim.Adam, (256, 64), 10, lr=1e-3)


LOOPS = ("resnet50", "vit", "mlp", "resnet50_loader")
COMPILED = "vit_compiled"  # The only one where compiling is tried, which takes a minute.


def seconds_of(loop: Loop, steps: int) -> float:
    """A step, from a device that has nothing to do until it has nothing to do again."""
    torch.cuda.synchronize()
    begin = time.perf_counter()
    loop.steps(steps)
    torch.cuda.synchronize()
    return (time.perf_counter() - begin) / steps


def live(name: str, limit_s: float) -> dict[str, Any]:
    """What hr.autotune makes of the loop."""
    loop = make_loop(name)
    loop.steps(20)
    plain_s = seconds_of(loop, 20)
    count = max(1, round(0.1 / plain_s))
    told: list[tuple[float, str, str]] = []
    begin = time.perf_counter()
    handle = hr.autotune(loop.model, loop.optimizer, loop.loader, steps=1_000_000, allow="reduced_precision",
                         fixed=[] if name == COMPILED else ["model.compile"],
                         on_progress=lambda kind, text: told.append((round(time.perf_counter() - begin, 2), kind, text)))
    made = 0
    while handle.watching and time.perf_counter() - begin < limit_s and not any(kind == "ended" for _, kind, _ in told):
        loop.steps(count)
        made += count
    took = time.perf_counter() - begin
    handle.stop()
    found = {"plain_s": plain_s, "steps": made, "seconds": took, "problem": handle.problem, "told": told, "report": handle.report(),
             "settings": handle.settings, "kept": handle.kept,
             "trials": [{"name": trial.name, "settings": trial.settings, "verdict": trial.verdict, "gain": trial.gain,
                         "pairs": trial.pairs, "sentence": trial.sentence, "numerics": entry["numerics"]}
                        for trial, entry in zip(handle.trials, handle.ledger["ledger"]["trials"], strict=True)],
             "not_tried": {one.name: one.reason for one in handle.not_applicable}}
    handle.undo()
    return found


def rerun(name: str, arms: Mapping[str, Mapping[str, str]], block_s: float) -> dict[str, Any]:
    """Seconds a step of each arm, in turns."""
    loop = make_loop(name)
    knobs = LiveKnobs([loop.model], [loop.optimizer], loop.loader)
    knobs.follow()
    loop.steps(20)
    count = max(3, round(block_s / seconds_of(loop, 20)))
    refused: dict[str, str] = {}

    def block(settings: Mapping[str, str]) -> float:
        knobs.apply(settings)
        loop.steps(max(3, count // 10) if loop.loader is None else 20)  # What was loaded before the switch is used up.
        return seconds_of(loop, count)

    for arm, settings in arms.items():
        try:
            block(settings)
        except hr.Error as error:
            refused[arm] = str(error)
    found = harness.interleave([harness.Arm(arm, lambda _, settings=settings: block(settings)) for arm, settings in arms.items()
                                if arm not in refused], ROUNDS)
    knobs.undo()
    return {"step_s": found, "refused": refused}


def measured(name: str, arguments: argparse.Namespace) -> dict[str, Any]:
    found = live(name, arguments.live_s)
    arms: dict[str, Mapping[str, str]] = {ALONE: {}}
    for trial in found["trials"]:
        if "model.compile" not in trial["settings"]:  # Takes a minute to compile, once for each arm.
            arms[trial["name"]] = trial["settings"]
    if len(found["kept"]) > 1 and "model.compile" not in found["settings"]:
        arms[ALL_KEPT] = found["settings"]
    return {"device": torch.cuda.get_device_name(), "live": found, "rerun": rerun(name, arms, arguments.block_s)}


class SmallLoopOnDevice(SmallLoop):
    """That of the part hooks, its model on the device: the host is what it waits for."""

    def __init__(self) -> None:
        super().__init__()
        self.model.to(DEVICE)  # The parameters stay the same objects, which the optimizer holds.
        self._kept = [(inputs.to(DEVICE), labels.to(DEVICE)) for inputs, labels in self.loader]

    def steps(self, count: int) -> None:
        for number, (_, _) in zip(range(count), self.batches):
            inputs, labels = self._kept[number % len(self._kept)]
            self.optimizer.zero_grad()
            nn.functional.cross_entropy(self.model(inputs), labels).backward()
            self.optimizer.step()


def hooks(rounds: int) -> dict[str, Any]:
    """Microseconds a step by the wall clock, the device waited for at both ends of a block."""
    loop = SmallLoopOnDevice()
    loop.steps(500)

    def block(arm: str) -> float:
        handle = None if arm == ALONE else search(loop)
        if arm == STOPPED:
            handle.stop()
        loop.steps(50)
        found = 1e6 * seconds_of(loop, 500)
        if handle is not None:
            handle.undo()
        return found

    arms = [harness.Arm(arm, lambda _, arm=arm: block(arm)) for arm in (ALONE, SEARCHING, STOPPED)]
    found = harness.interleave(arms, rounds, warm_up=1)
    return {"device": torch.cuda.get_device_name(), "us": found}


def items(arguments: argparse.Namespace) -> Iterator[rows.Item]:
    yield rows.Item({"loop": HOOKS}, 60, lambda: hooks(3 if arguments.quick else 10))
    for name in arguments.loops:
        yield rows.Item({"loop": name, "live_s": arguments.live_s, "block_s": arguments.block_s},
                        arguments.live_s + 80 * arguments.block_s + 60 * (name == COMPILED),
                        lambda name=name: measured(name, arguments))


def gains_of(found: Mapping[str, Any]) -> dict[str, list[float]]:
    """By arm, how much more steps a second than alone, round by round."""
    alone = found["rerun"]["step_s"][ALONE]
    return {arm: [a / b - 1 for a, b in zip(alone, seconds, strict=True)]
            for arm, seconds in found["rerun"]["step_s"].items() if arm != ALONE}


def percent(median: float, low: float, high: float) -> str:
    return f"{median:+.1%} [{low:+.1%}, {high:+.1%}]"


def tell(name: str, found: Mapping[str, Any]) -> tuple[int, int, int]:
    """Prints a table; returns kept changes that lose, large ones, and large ones that are undecided."""
    tuned = found["live"]
    print(f"\n{name} on {found['device']}: {1e3 * tuned['plain_s']:.2f} ms a step; live {tuned['steps']:,} steps in "
          f"{tuned['seconds']:.0f} s; kept: {', '.join(tuned['kept']) or 'nothing'}"
          + (f"; problem: {tuned['problem']}" if tuned["problem"] else ""))
    summaries = {arm: (statistics.median(own), *harness.interval(own)) for arm, own in gains_of(found).items()}
    lines, losing, large, undecided = [], 0, 0, 0
    for trial in tuned["trials"]:
        own = summaries.get(trial["name"])
        is_large = own is not None and (own[1] > LARGE or own[2] < -LARGE)
        losing += own is not None and own[2] < 0 and trial["verdict"] == "kept"
        large += is_large
        undecided += is_large and trial["verdict"] == "inconclusive"
        lines.append([trial["name"], trial["verdict"], *("" if gain is None else percent(*gain) for gain in (trial["gain"], own)),
                      str(trial["pairs"])])
    print(harness.table(["change", "verdict", "live", "re-run", "pairs"], lines, left=(0, 1)))
    if (own := summaries.get(ALL_KEPT)) is not None:
        print(f"{ALL_KEPT}, re-run: {percent(*own)}")
    return losing, large, undecided


def main(words: list[str]) -> int:
    parser = harness.parser(__doc__)
    parser.add_argument("--loops", nargs="*", choices=(*LOOPS, COMPILED), default=[*LOOPS, COMPILED], metavar="LOOP",
                        help=f"of {', '.join((*LOOPS, COMPILED))}")
    parser.add_argument("--live-s", type=rows.positive, default=25.0, help="seconds that hr.autotune has at most")
    parser.add_argument("--block-s", type=rows.positive, default=0.3, help="seconds of a block of the re-run")
    rows.add_options(parser, "live_tuning")
    arguments = parser.parse_args(words)
    if not torch.cuda.is_available():
        raise SystemExit("on-cuda: torch sees no CUDA device here")
    if arguments.quick:
        arguments.live_s, arguments.block_s = min(arguments.live_s, 10.0), min(arguments.block_s, 0.1)
    bench = harness.Bench(__file__, arguments, f"on-cuda: {torch.cuda.get_device_name()}; {harness.interval_remark(ROUNDS)}")
    session = rows.Session(rows.open_rows(arguments, "on_cuda"), arguments.minutes)
    complete = session.run(items(arguments)) and not session.lacks
    found = {key["loop"]: figures for key, figures in session.rows.found() if key["loop"] != HOOKS}
    counts = [tell(name, figures) for name, figures in found.items()]
    losing, large, undecided = (sum(column) for column in zip(*counts)) if counts else (0, 0, 0)
    bars = [rows.Bar("kept changes whose re-run lies wholly below nothing", "0", str(losing),
                     rows.once_complete(losing == 0, complete)),
            rows.Bar(f"changes beyond {LARGE:.0%} that are decided", "all", f"{large - undecided} of {large}",
                     rows.once_complete(undecided == 0, complete))]
    if (own := session.rows.figures(loop=HOOKS)) is not None:
        print("\nhooks on the device, where the host is what a step waits for:\n"
              + harness.arms_table(own["us"], "us a step", 1, reference=ALONE))
        for arm in (SEARCHING, STOPPED):
            added = [a - b for a, b in zip(own["us"][arm], own["us"][ALONE], strict=True)]
            print(f"{arm}: {harness.with_interval(added, 'us', 1)} more a step")
    return bench.end({"found": found}, rows.tell(session, complete, bars))
