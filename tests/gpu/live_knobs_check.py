"""Settings of a run on a real GPU: each goes on and comes off between two updates, and what cannot go on is named. Needs a CUDA
device, so that no other run of pytest collects it: make check ON=gpu names the folder and the form of the name."""

import copy

import headrace as hr
import pytest
import torch
from headrace._live_knobs import LiveKnobs
from headrace.errors import UnsupportedError
from torch import nn
from torchvision.models import resnet18

SETTINGS = [{"train.precision": '"bf16"'}, {"model.memory_format": '"channels_last"'}, {"optimizer.fused": "true"},
            {"model.compile": "true"}]


class Loop:
    def __init__(self, width=16):
        torch.manual_seed(1)
        self.model = nn.Sequential(nn.Conv2d(3, width, 3, padding=1), nn.BatchNorm2d(width), nn.ReLU(), nn.AdaptiveAvgPool2d(1),
                                   nn.Flatten(), nn.Linear(width, 10)).cuda()
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=1e-3)
        self.batches = [(torch.randn(8, 3, 16, 16, device="cuda"), torch.randint(0, 10, (8,), device="cuda")) for _ in range(7)]
        self.made = 0

    @property
    def images(self):
        return self.batches[self.made % 7][0]

    def loss(self):
        images, labels = self.batches[self.made % 7]
        return nn.functional.cross_entropy(self.model(images), labels)

    def steps(self, count):
        for _ in range(count):
            self.optimizer.zero_grad()
            loss = self.loss()
            loss.backward()
            self.optimizer.step()
            self.made += 1
            if self.made % 8 == 0:
                loss.item()


class Told:
    """What a search tells of."""

    def __init__(self):
        self.lines = []

    def __call__(self, kind, text):
        self.lines.append((kind, text))

    def has(self, *kinds):
        return any(kind in kinds for kind, _ in self.lines)


def until(told, kinds, steps, at_most=20_000):
    """Steps until one of these kinds was told."""
    for _ in range(at_most):
        if told.has(*kinds):
            return
        steps(1)
    raise AssertionError(f"wanted one of {kinds} within {at_most} steps, found {told.lines}")


@pytest.mark.parametrize("settings", SETTINGS, ids=lambda settings: next(iter(settings)))
def test_a_setting_goes_on_and_comes_off_between_two_updates(settings):
    loop, plain = Loop(), Loop()
    loop.steps(3)
    plain.steps(3)
    knobs = LiveKnobs([loop.model], [loop.optimizer], None)
    assert {candidate.key for candidate in knobs.offer("reduced_precision", (), (), 100_000).candidates} >= set(settings)
    knobs.apply(settings)
    loop.steps(3)
    saved = copy.deepcopy(loop.optimizer.state_dict())
    knobs.undo()
    assert all(group["fused"] is None for group in saved["param_groups"])
    assert {state["step"].device.type for state in saved["state"].values()} == {"cpu"}
    loop.steps(3)  # As written: it raises where a counter was left on the device.
    assert {state["step"].device.type for state in loop.optimizer.state.values()} == {"cpu"}
    assert "forward" not in vars(loop.model) and all(parameter.is_contiguous() for parameter in loop.model.parameters())
    plain.steps(6)
    ours, other = (torch.cat([parameter.detach().flatten() for parameter in one.model.parameters()]) for one in (loop, plain))
    assert (ours - other).norm() <= (0.05 if "train.precision" in settings else 0.01) * other.norm()


def test_another_layout_passes_the_check_of_numerics_though_convolutions_round_to_tf32():
    assert torch.backends.cudnn.conv.fp32_precision == "tf32"  # torch's default; else there is nothing to see.
    loop, told = Loop(), Told()
    loop.model = resnet18(num_classes=10).cuda()
    loop.optimizer = torch.optim.SGD(loop.model.parameters(), lr=1e-3)
    loop.batches = [(torch.randn(32, 3, 96, 96, device="cuda"), torch.randint(0, 10, (32,), device="cuda")) for _ in range(7)]
    loop.steps(30)
    handle = hr.autotune(loop.model, loop.optimizer, steps=100_000, only=["channels-last"], on_progress=told)
    until(told, ["ended"], loop.steps)
    (trial,) = [trial for trial in handle.trials if trial.name == "channels-last"]
    assert trial.pairs > 0, trial.sentence
    assert torch.backends.cudnn.conv.fp32_precision == "tf32"
    handle.undo()


def test_settings_of_the_cpu_are_not_tried():
    loop = Loop()
    offered = LiveKnobs([loop.model], [loop.optimizer], None).offer("reduced_precision", (), (), 100_000)
    assert {candidate.key for candidate in offered.candidates} == {key for settings in SETTINGS for key in settings}
    reasons = {one.key: one.reason for one in offered.not_tried}
    assert "setting is one of the CPU" in reasons["compute.intra_op_threads"]


def test_a_loop_with_a_gradient_scaler_is_tuned_and_goes_on():
    loop, scaler = Loop(), torch.amp.GradScaler("cuda")

    def steps(count):
        for _ in range(count):
            loop.optimizer.zero_grad()
            with torch.autocast("cuda", torch.float16):
                loss = loop.loss()
            scaler.scale(loss).backward()
            scaler.step(loop.optimizer)
            scaler.update()

    steps(5)
    told = Told()
    handle = hr.autotune(loop.model, loop.optimizer, steps=100_000, only=["fused optimizer"], allow="reduced_precision",
                         on_progress=told)
    until(told, ["ended"], steps)
    assert handle.problem is None, told.lines
    (trial,) = [trial for trial in handle.trials if trial.name == "fused optimizer"]
    assert trial.verdict != "failed", trial.sentence
    handle.undo()
    before = [parameter.clone() for parameter in loop.model.parameters()]
    steps(5)
    assert any(not torch.equal(was, now) for was, now in zip(before, loop.model.parameters(), strict=True))


def test_a_graphed_model_is_named_and_its_loop_goes_on():
    loop = Loop()
    loop.model = torch.cuda.make_graphed_callables(loop.model, (loop.images,))
    told = Told()
    handle = hr.autotune(loop.model, loop.optimizer, steps=100_000, on_progress=told)
    reasons = {one.key: one.reason for one in handle.not_applicable}
    for key in ("train.precision", "model.memory_format", "model.compile"):
        assert "replays a CUDA graph" in reasons[key]
    until(told, ["problem"], loop.steps)
    assert "replays a CUDA graph, whose gradients" in handle.problem, told.lines
    handle.undo()
    loop.steps(3)


def test_nothing_is_switched_while_a_graph_is_captured():
    loop = Loop()
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        loop.steps(3)  # Whatever allocates or tunes itself does so before.
    torch.cuda.current_stream().wait_stream(stream)
    knobs = LiveKnobs([loop.model], [loop.optimizer], None)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        loop.loss()
        with pytest.raises(UnsupportedError, match="a CUDA graph is being captured"):
            knobs.apply({"train.precision": '"bf16"'})
    graph.replay()
    torch.cuda.synchronize()


def test_a_search_without_free_memory_harms_nobody():
    loop = Loop(width=64)

    def search():
        told = Told()
        handle = hr.autotune(loop.model, loop.optimizer, steps=100_000, allow="reduced_precision", fixed=["model.compile"],
                             on_progress=told)
        until(told, ["ended"], loop.steps)
        handle.undo()
        return handle, told

    search()  # Loads every kernel.
    held = []
    while (room := torch.cuda.mem_get_info()[0] - 48 * 2**20) > 2**20:
        held.append(torch.empty(min(room, 2**30), dtype=torch.uint8, device="cuda"))
    handle, told = search()
    assert handle.problem is None, told.lines
    del held
    torch.cuda.empty_cache()
    loop.steps(3)
