"""hr.Trainer on a real GPU: its steps against the loop that people write, steps replayed from a CUDA graph against eager ones, and what
keeps a step from being captured. Needs a CUDA device, so that no other run of pytest collects it: make check ON=gpu names the folder and
the form of the name."""

import contextlib
import dataclasses
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import headrace as hr
import pytest
import torch
from tiny_run import write_idx
from torch import nn
from torch.optim import lr_scheduler

STEPS = 20
EAGER_STEPS = 3  # Of each form of batch, before it is captured.
CAPTURED = [pytest.param(False, id="eager"), pytest.param(True, id="captured")]

Batch = tuple[torch.Tensor, ...]


@pytest.fixture(autouse=True)
def same_kernels() -> Iterator[None]:
    """Kernels give the same bits each time, and no TF32, whose rounding makes large differences of small ones."""
    with torch.backends.cudnn.flags(enabled=True, benchmark=False, deterministic=True, allow_tf32=False):
        yield


# ---- Networks, batches, runs ----


def mlp(seed: int = 1, dropout: float = 0.0) -> nn.Module:
    torch.manual_seed(seed)
    return nn.Sequential(nn.Flatten(), nn.Linear(192, 64), nn.GELU(), nn.Dropout(dropout), nn.Linear(64, 64), nn.GELU(),
                         nn.Linear(64, 10)).cuda()


def dropout_net(seed: int = 1) -> nn.Module:
    return mlp(seed, 0.3)


def conv_net(seed: int = 1) -> nn.Module:
    """Without biases before BatchNorm: their gradients are 0 but for rounding, of which Adam makes whole steps."""
    torch.manual_seed(seed)
    return nn.Sequential(nn.Conv2d(3, 16, 3, padding=1, bias=False), nn.BatchNorm2d(16), nn.GELU(),
                         nn.Conv2d(16, 32, 3, stride=2, padding=1, bias=False), nn.BatchNorm2d(32), nn.GELU(),
                         nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(32, 10)).cuda()


def batches(count: int, size: int = 16, seed: int = 2) -> list[Batch]:
    """On the CPU."""
    generator = torch.Generator().manual_seed(seed)
    return [(torch.randn(size, 3, 8, 8, generator=generator), torch.randint(10, (size,), generator=generator)) for _ in range(count)]


def on_device(data: Sequence[Batch]) -> list[Batch]:
    return [tuple(tensor.cuda() for tensor in batch) for batch in data]


def pinned(data: Sequence[Batch]) -> list[Batch]:
    return [tuple(tensor.pin_memory() for tensor in batch) for batch in data]


def forward(model: nn.Module, batch: Any) -> torch.Tensor:
    return nn.functional.cross_entropy(model(batch[0]), batch[1])


def adamw(model: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.AdamW(model.parameters(), lr=1e-3, fused=True)


def sgd(model: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.SGD(model.parameters(), lr=1e-2, momentum=0.9, nesterov=True, weight_decay=1e-3, fused=True)


def adam_as_written(model: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.Adam(model.parameters(), lr=1e-3)


OPTIMIZERS = [adamw, sgd, adam_as_written]
ONE_CYCLE = {"name": "OneCycleLR", "max_lr": 1e-2, "total_steps": STEPS}
COSINE = {"name": "CosineAnnealingLR", "T_max": STEPS, "interval": "step"}
KINDS: dict[str, dict[str, Any]] = {
    "plain": {},
    "norm": {"max_grad_norm": 0.5},
    "value": {"clip_grad_value": 0.01},
    "averages": {"ema_decay": 0.9, "ema_warmup": False},
    "averages, warm-up": {"ema_decay": 0.999},
    "cosine": {"lr_scheduler": COSINE},
    "one cycle": {"lr_scheduler": {**ONE_CYCLE, "cycle_momentum": False}},
    "all": {"max_grad_norm": 0.5, "ema_decay": 0.99, "lr_scheduler": COSINE},
}
SCHEDULES: dict[str, Callable[[torch.optim.Optimizer], lr_scheduler.LRScheduler]] = {
    "CosineAnnealingLR": lambda optimizer: lr_scheduler.CosineAnnealingLR(optimizer, STEPS),
    "OneCycleLR": lambda optimizer: lr_scheduler.OneCycleLR(optimizer, 1e-2, total_steps=STEPS, cycle_momentum=False),
}


@dataclasses.dataclass
class Run:
    """What came of one."""

    losses: torch.Tensor
    weights: Mapping[str, torch.Tensor]  # With buffers.
    averages: Mapping[str, torch.Tensor]
    trainer: Any = None


def trainer_of(model: nn.Module, optimizer: torch.optim.Optimizer, call: Callable[..., Any] = forward, **options: Any) -> Any:
    return hr.Trainer(model, optimizer, call, steps=STEPS, **options)


def steps_of(trainer: Any, data: Sequence[Any]) -> torch.Tensor:
    return torch.stack([trainer.step(batch) for batch in data])


def run_of(model: nn.Module, make: Callable[[nn.Module], torch.optim.Optimizer], data: Sequence[Any], call: Callable[..., Any] = forward,
           **options: Any) -> Run:
    """By a Trainer, from the seed that the plain loop has."""
    trainer = trainer_of(model, make(model), call, **options)
    torch.manual_seed(7)
    return Run(steps_of(trainer, data), model.state_dict(), trainer.averages, trainer)


def move_averages(averages: dict[str, torch.Tensor], model: nn.Module, decay: float) -> None:
    """As timm's ModelEmaV3 of that decay; what is no floating-point number is copied."""
    for name, tensor in model.state_dict().items():
        if tensor.is_floating_point():
            averages[name].mul_(decay).add_(tensor, alpha=1 - decay)
        else:
            averages[name].copy_(tensor)


def plain_run(model: nn.Module, make: Callable[[nn.Module], torch.optim.Optimizer], data: Sequence[Batch], *,
              scheduler: Callable[[torch.optim.Optimizer], lr_scheduler.LRScheduler] | None = None, max_grad_norm: float = 0.0,
              clip_grad_value: float = 0.0, ema_decay: float = 0.0, ema_warmup: bool = True) -> Run:
    optimizer = make(model)
    schedule = scheduler(optimizer) if scheduler else None
    averages = {name: tensor.clone() for name, tensor in model.state_dict().items()} if ema_decay else {}
    torch.manual_seed(7)
    losses = []
    for number, batch in enumerate(data, 1):
        optimizer.zero_grad()
        loss = forward(model, batch)
        loss.backward()
        if max_grad_norm:
            nn.utils.clip_grad_norm_(model.parameters(), max_grad_norm)
        if clip_grad_value:
            nn.utils.clip_grad_value_(model.parameters(), clip_grad_value)
        optimizer.step()
        if schedule:
            schedule.step()
        if averages:
            move_averages(averages, model, min(ema_decay, (1 + number) / (10 + number)) if ema_warmup else ema_decay)
        losses.append(loss.detach())
    return Run(torch.stack(losses), model.state_dict(), averages)


def of_plain(kind: Mapping[str, Any]) -> dict[str, Any]:
    """The plain loop's words for these options of a Trainer."""
    options = dict(kind)
    schedule = options.pop("lr_scheduler", None)
    return options | ({"scheduler": SCHEDULES[schedule["name"]]} if schedule else {})


def assert_near(ours: Run, theirs: Run, share: float = 1e-5) -> None:
    """Each tensor by its norm: an element near 0 may be off by all of itself."""
    torch.testing.assert_close(ours.losses, theirs.losses, rtol=share, atol=0.0)
    for own, other in ((ours.weights, theirs.weights), (ours.averages, theirs.averages)):
        assert own.keys() == other.keys()
        for name in other:
            wanted = other[name].double()
            assert (own[name].double() - wanted).norm() <= share * wanted.norm(), name


def assert_same_bits(ours: Run, theirs: Run) -> None:
    assert torch.equal(ours.losses, theirs.losses), (ours.losses - theirs.losses).tolist()
    for own, other in ((ours.weights, theirs.weights), (ours.averages, theirs.averages)):
        assert own.keys() == other.keys()
        assert [name for name in other if not torch.equal(own[name], other[name])] == []


def captured(trainer: Any) -> dict[str, Any]:
    return trainer.explain()["cuda_graph"]


def assert_captured(trainer: Any) -> None:
    assert captured(trainer)["native"], captured(trainer)
    assert trainer.progress["graph_replays"] > 0


@contextlib.contextmanager
def waits_raise() -> Iterator[None]:
    """Within, whatever waits for the device raises."""
    torch.cuda.set_sync_debug_mode("error")
    try:
        yield
    finally:
        torch.cuda.set_sync_debug_mode("default")


# ---- Eager steps against the plain loop ----


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("make", OPTIMIZERS)
@pytest.mark.parametrize("net", [mlp, conv_net])
def test_twenty_eager_steps_are_those_of_the_plain_loop(net, make, kind):
    data = on_device(batches(STEPS))
    assert_near(run_of(net(), make, data, **KINDS[kind]), plain_run(net(), make, data, **of_plain(KINDS[kind])))


@dataclasses.dataclass
class Record:
    images: torch.Tensor
    labels: torch.Tensor


FORMS: dict[str, tuple[Callable[[Batch], Any], Callable[[Any], Any]]] = {
    "tuple": (tuple, tuple),
    "list": (list, tuple),
    "dict": (lambda batch: {"images": batch[0], "labels": batch[1], "name": "a"}, lambda given: (given["images"], given["labels"])),
    "dataclass": (lambda batch: Record(*batch), lambda given: (given.images, given.labels)),
}


@pytest.mark.parametrize("cuda_graph", CAPTURED)
@pytest.mark.parametrize("form", FORMS)
def test_batches_of_the_cpu_are_moved_to_the_models_device_in_every_form(form, cuda_graph):
    made, parts = FORMS[form]
    seen = set()

    def looking(model: nn.Module, given: Any) -> torch.Tensor:
        seen.update(tensor.device.type for tensor in parts(given))
        return forward(model, parts(given))

    data = batches(STEPS)
    ours = run_of(mlp(), adamw, [made(batch) for batch in data], looking, cuda_graph=cuda_graph)
    assert seen == {"cuda"}
    if cuda_graph:
        assert_captured(ours.trainer)
    assert_near(ours, plain_run(mlp(), adamw, on_device(data)))


# ---- Captured steps against eager ones ----


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
@pytest.mark.parametrize("kind", ["plain", "value", "all"])
@pytest.mark.parametrize("make", OPTIMIZERS)
@pytest.mark.parametrize("net", [mlp, conv_net])
def test_captured_steps_have_the_bits_of_eager_ones(net, make, kind, precision):
    data = on_device(batches(STEPS))
    eager, replayed = (run_of(net(), make, data, precision=precision, cuda_graph=cuda_graph, **KINDS[kind]) for cuda_graph in (False, True))
    assert_captured(replayed.trainer)
    assert not captured(eager.trainer)["native"]
    assert_same_bits(replayed, eager)


def test_each_loss_has_memory_of_its_own_on_the_device():
    model = mlp()
    trainer = trainer_of(model, adamw(model), cuda_graph=True)
    losses = [trainer.step(batch) for batch in on_device(batches(STEPS))]
    assert_captured(trainer)
    assert {(loss.dim(), loss.device.type) for loss in losses} == {(0, "cuda")}
    assert len({loss.data_ptr() for loss in losses}) == STEPS


def test_replays_draw_what_eager_steps_draw():
    data = on_device(batches(1)) * STEPS
    eager, replayed = (run_of(dropout_net(), lambda model: torch.optim.SGD(model.parameters(), lr=0.0), data, cuda_graph=cuda_graph)
                       for cuda_graph in (False, True))
    assert_captured(replayed.trainer)
    assert len(set(replayed.losses.tolist())) == STEPS  # Nothing but the masks differs from step to step.
    assert_same_bits(replayed, eager)


@pytest.mark.parametrize("kind", ["cosine", "one cycle"])
@pytest.mark.parametrize("make", [adamw, sgd])
def test_a_schedule_moves_the_rate_of_captured_steps(make, kind):
    data = on_device(batches(STEPS))
    ours = run_of(conv_net(), make, data, cuda_graph=True, **KINDS[kind])
    assert_captured(ours.trainer)
    assert_near(ours, plain_run(conv_net(), make, data, **of_plain(KINDS[kind])))


@pytest.mark.parametrize("make", [adamw, sgd])
def test_a_schedule_that_moves_momentum_is_followed_whoever_makes_the_step(make):
    data = on_device(batches(STEPS))
    ours = run_of(mlp(), make, data, cuda_graph=True, lr_scheduler=ONE_CYCLE)
    assert captured(ours.trainer)["native"] or captured(ours.trainer)["reason"]
    assert_near(ours, plain_run(mlp(), make, data,
                                scheduler=lambda optimizer: lr_scheduler.OneCycleLR(optimizer, 1e-2, total_steps=STEPS)))


def test_a_scheduler_of_torch_is_followed_whoever_makes_the_step():
    data, model = on_device(batches(STEPS)), mlp()
    optimizer = adamw(model)
    schedule = lr_scheduler.StepLR(optimizer, 6, 0.5)
    trainer = hr.Trainer(model, optimizer, forward, cuda_graph=True, lr_scheduler={"scheduler": schedule, "interval": "step"})
    ours = Run(steps_of(trainer, data), model.state_dict(), {})
    assert captured(trainer)["native"] or captured(trainer)["reason"]
    assert_near(ours, plain_run(mlp(), adamw, data, scheduler=lambda other: lr_scheduler.StepLR(other, 6, 0.5)))


def test_batches_of_another_size_run_eagerly_and_the_rest_is_replayed():
    data = batches(STEPS)
    smaller = (8, 15)
    for place in smaller:
        data[place] = tuple(tensor[:5].clone() for tensor in data[place])
    data = on_device(data)
    model = conv_net()
    trainer = trainer_of(model, adamw(model), cuda_graph=True, max_grad_norm=0.5)
    losses, replays = [], [0]
    for batch in data:
        losses.append(trainer.step(batch))
        replays.append(trainer.progress["graph_replays"])
    assert_captured(trainer)
    made = [after - before for before, after in zip(replays, replays[1:])]
    assert made[:EAGER_STEPS] == [0] * EAGER_STEPS and [made[place] for place in smaller] == [0, 0]
    assert all(made[place] == 1 for place in range(EAGER_STEPS + 1, STEPS) if place not in smaller), made
    assert_same_bits(Run(torch.stack(losses), model.state_dict(), {}), run_of(conv_net(), adamw, data, max_grad_norm=0.5))


# ---- Without waiting ----


@pytest.mark.parametrize("cuda_graph", CAPTURED)
@pytest.mark.parametrize("placed", [on_device, pinned])
@pytest.mark.parametrize("make", [adamw, sgd])
def test_steps_do_not_wait_for_the_device(make, placed, cuda_graph):
    data, model = placed(batches(40)), conv_net()
    trainer = hr.Trainer(model, make(model), forward, cuda_graph=cuda_graph, precision="bf16", max_grad_norm=0.5, ema_decay=0.99,
                         lr_scheduler=COSINE, steps=40)
    losses = [trainer.step(batch) for batch in data[:10]]
    with waits_raise():
        losses += [trainer.step(batch) for batch in data[10:]]
    if cuda_graph:
        assert_captured(trainer)
    assert torch.stack(losses).isfinite().all()


# ---- What is not captured ----


def reading(model: nn.Module, batch: Batch) -> torch.Tensor:
    loss = forward(model, batch)
    return loss if loss.item() < 1e9 else 0 * loss


def refusing(model: nn.Module, batch: Batch) -> torch.Tensor:
    if torch.cuda.is_current_stream_capturing():
        raise RuntimeError("this one is not captured")
    return forward(model, batch)


@pytest.mark.parametrize("call, words", [(reading, "captur"), (refusing, "this one is not captured")])
def test_a_forward_that_cannot_be_captured_goes_on_eagerly_and_harms_nothing(call, words):
    data = on_device(batches(STEPS))
    eager, ours = (run_of(dropout_net(), adamw, data, call, cuda_graph=cuda_graph) for cuda_graph in (False, True))
    told = captured(ours.trainer)
    assert not told["native"] and words in told["reason"], told
    assert ours.trainer.progress["graph_replays"] == 0
    assert_same_bits(ours, eager)
    torch.cuda.synchronize()
    kept = nn.functional.dropout(torch.ones(100_000, device="cuda"), 0.3)
    assert kept.mean().item() == pytest.approx(1, abs=0.02) and not torch.equal(kept, nn.functional.dropout(torch.ones_like(kept), 0.3))
    after = run_of(dropout_net(), adamw, data, cuda_graph=True)
    assert_captured(after.trainer)
    assert_same_bits(after, run_of(dropout_net(), adamw, data))


def nadam(model: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.NAdam(model.parameters(), lr=1e-3)


def damped_sgd(model: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.SGD(model.parameters(), lr=1e-2, momentum=0.9, dampening=0.1)


@pytest.mark.parametrize("make, options, words", [
    (adamw, {"loss_scale": 1024.0}, "loss.scale"), (adamw, {"gradient_accumulation_steps": 2}, "accumulat"),
    (adamw, {"step_guard": {"policy": "skip"}}, "guard|policy"), (adamw, {"clip_grad_ratio": 0.01}, "clip_grad_ratio"),
    (adamw, {"on_out_of_memory": "halve"}, "on_out_of_memory|halve|parts"), (nadam, {}, r"NAdam|step\(\)"),
    (damped_sgd, {}, r"SGD|step\(\)"),
], ids=["loss scale", "accumulation", "guard", "ratio", "out of memory", "own step", "dampening"])
def test_what_is_never_captured_says_why_and_trains_eagerly(make, options, words):
    ours = run_of(mlp(), make, on_device(batches(8)), cuda_graph=True, **options)
    told = captured(ours.trainer)
    assert not told["native"] and re.search(words, told["reason"], re.IGNORECASE), told
    assert ours.trainer.progress["graph_replays"] == 0 and ours.losses.isfinite().all()


# ---- Numbers that are not finite ----


def with_root(model: nn.Module, batch: Batch) -> torch.Tensor:
    """A root of 0, whose gradient is not finite, where the batch's last tensor is 0."""
    return forward(model, batch) + 0.01 * (model[1].weight.square().mean() * batch[2]).sqrt()


def fit(trainer: Any, data: Sequence[Batch]) -> None:
    trainer.fit(data[:60], 1)


def step_on(trainer: Any, data: Sequence[Batch]) -> None:
    """What was found reaches the host by the second reading, after 100 steps at most."""
    for batch in data:
        trainer.step(batch)


FAULTS = [("loss", "loss is nan in epoch 0, batch 17"), ("gradient", "gradient.* in epoch 0, batch 17")]


@pytest.mark.parametrize("cuda_graph", CAPTURED)
@pytest.mark.parametrize("go", [fit, step_on])
@pytest.mark.parametrize("fault, words", FAULTS, ids=["loss", "gradient"])
def test_a_fault_is_told_later_with_its_batch_and_spoils_no_weight(fault, words, go, cuda_graph):
    data = [(*batch, torch.ones((), device="cuda")) for batch in on_device(batches(120))]
    if fault == "loss":
        data[17][0].fill_(float("nan"))
    else:
        data[17][2].zero_()
    model = mlp()
    optimizer = adamw(model)
    trainer = hr.Trainer(model, optimizer, with_root, cuda_graph=cuda_graph)
    with pytest.raises(hr.errors.NumericsError, match=rf"{words}\b"):
        go(trainer, data)
    if cuda_graph:
        assert_captured(trainer)
    assert all(tensor.isfinite().all() for tensor in model.state_dict().values())
    assert all(value.isfinite().all() for state in optimizer.state.values() for value in state.values())


# ---- A Loader, checkpoints ----


def test_a_loaders_batches_lie_in_page_locked_memory_and_train_as_tensors_do(tmp_path):
    for split, count in (("train", 128), ("t10k", 32)):
        write_idx(tmp_path, split, count, side=64)

    def small_net() -> nn.Module:
        torch.manual_seed(1)
        return nn.Sequential(nn.Flatten(), nn.Linear(4096, 32), nn.GELU(), nn.Linear(32, 10)).cuda()

    def loader_of() -> Any:
        return hr.Loader(f"idx:{tmp_path}", batch_size=16, num_workers=1, seed=3)

    model = small_net()
    trainer = hr.Trainer(model, adamw(model), forward, cuda_graph=True)  # First: pools that are made after it are locked.
    loader, losses = loader_of(), []
    for _ in range(5):  # Far more batches than the pool has blocks: none may be filled anew before it was copied.
        for batch in loader:
            images, _labels = batch
            assert images.is_pinned()
            losses.append(trainer.step(batch))
    assert_captured(trainer)
    other, data = loader_of(), []
    for _ in range(5):
        data += [(images.clone(), labels.clone()) for images, labels in other]
    again = small_net()
    reference = hr.Trainer(again, adamw(again), forward)
    assert_same_bits(Run(torch.stack(losses), model.state_dict(), {}), Run(steps_of(reference, on_device(data)), again.state_dict(), {}))


@pytest.mark.parametrize("net", [conv_net, dropout_net])
@pytest.mark.parametrize("make", [adamw, sgd])
def test_a_captured_run_goes_on_from_a_checkpoint_with_the_same_bits(net, make, tmp_path):
    path, stop_at = tmp_path / "checkpoint.safetensors", 10
    data = on_device(batches(STEPS))
    model = net()
    trainer = trainer_of(model, make(model), cuda_graph=True, **KINDS["all"])
    torch.manual_seed(7)
    steps_of(trainer, data[:stop_at])
    trainer.save(path)
    whole = Run(steps_of(trainer, data[stop_at:]), model.state_dict(), trainer.averages)
    assert_captured(trainer)

    resumed = net(seed=99)
    again = trainer_of(resumed, make(resumed), cuda_graph=True, **KINDS["all"])
    torch.manual_seed(1234)
    assert again.load(path)["optimizer_steps"] == stop_at
    assert_same_bits(Run(steps_of(again, data[stop_at:]), resumed.state_dict(), again.averages), whole)
    assert_captured(again)


# ---- Memory ----


def test_memory_of_the_device_that_runs_out_halves_the_micro_batch():
    class Deep(nn.Module):
        """Whose activations are nearly all that it holds: 1 GiB of 1,024 samples."""

        def __init__(self) -> None:
            super().__init__()
            torch.manual_seed(1)
            self.first, self.last = nn.Linear(192, 4096), nn.Linear(4096, 10)

        def forward(self, inputs: torch.Tensor) -> torch.Tensor:
            hidden = self.first(inputs.flatten(1))
            for _ in range(64):
                hidden = torch.sin(hidden)
            return self.last(hidden)

    data = batches(3, size=1024)
    whole = run_of(Deep().cuda(), sgd, data)
    model = Deep().cuda()
    trainer = trainer_of(model, sgd(model), on_out_of_memory="halve")
    torch.cuda.empty_cache()
    total = torch.cuda.get_device_properties(0).total_memory
    torch.cuda.set_per_process_memory_fraction((torch.cuda.memory_reserved() + (500 << 20)) / total)
    try:
        losses = steps_of(trainer, data)
    finally:
        torch.cuda.set_per_process_memory_fraction(1.0)
    assert trainer.progress["out_of_memory"] >= 1 and 64 <= trainer.progress["micro_batch"] <= 256
    assert torch.allclose(losses, whole.losses, rtol=1e-5)
    for name, tensor in model.state_dict().items():
        assert torch.allclose(tensor, whole.weights[name], rtol=1e-4, atol=1e-6), name
