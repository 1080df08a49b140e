"""Settings of a run on a real GPU: each goes on and comes off between two updates, and what cannot go on is named. Needs a CUDA
device, so that no other run of pytest collects it: make check ON=gpu names the folder and the form of the name."""

import copy

import headrace as hr
import pytest
import torch
from headrace._live_knobs import LiveKnobs
from torch import nn

SETTINGS = [{"train.precision": '"bf16"'}, {"model.memory_format": '"channels_last"'}, {"optimizer.fused": "true"},
            {"model.compile": "true"}]


class Loop:
    def __init__(self, width=16):
        torch.manual_seed(1)
        self.model = nn.Sequential(nn.Conv2d(3, width, 3, padding=1), nn.BatchNorm2d(width), nn.ReLU(), nn.AdaptiveAvgPool2d(1),
                                   nn.Flatten(), nn.Linear(width, 10)).cuda()
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=1e-3)
        self.images, self.labels = torch.randn(8, 3, 16, 16, device="cuda"), torch.randint(0, 10, (8,), device="cuda")

    def loss(self):
        return nn.functional.cross_entropy(self.model(self.images), self.labels)

    def steps(self, count):
        for _ in range(count):
            self.optimizer.zero_grad()
            self.loss().backward()
            self.optimizer.step()


def until_ended(handle, steps, at_most=2000):
    """Steps until the search is over; the lines that it told are the caller's."""
    for _ in range(at_most):
        if not handle.watching:
            return
        steps(1)


@pytest.mark.parametrize("settings", SETTINGS, ids=lambda settings: next(iter(settings)))
def test_a_setting_goes_on_and_comes_off_between_two_updates(settings):
    loop, plain = Loop(), Loop()
    loop.steps(3)
    plain.steps(3)
    knobs = LiveKnobs([loop.model], [loop.optimizer], None)
    assert {candidate.key for candidate in knobs.offer("reduced_precision", (), (), None).candidates} >= set(settings)
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
    near = 0.1 if "train.precision" in settings else 1e-2
    for ours, other in zip(loop.model.parameters(), plain.model.parameters(), strict=True):
        assert (ours - other).norm() <= near * other.norm() + 1e-3


def test_settings_of_the_cpu_are_not_tried():
    loop = Loop()
    offered = LiveKnobs([loop.model], [loop.optimizer], None).offer("reduced_precision", (), (), None)
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
    handle = hr.autotune(loop.model, loop.optimizer, steps=100_000, only=["fused optimizer"], allow="reduced_precision",
                         on_progress=lambda *told: None)
    for _ in range(100):
        steps(10)
    assert handle.problem is None
    handle.undo()
    before = [parameter.clone() for parameter in loop.model.parameters()]
    steps(5)
    assert any(not torch.equal(was, now) for was, now in zip(before, loop.model.parameters(), strict=True))


def test_a_graphed_model_is_named_and_its_loop_goes_on():
    loop = Loop()
    loop.model = torch.cuda.make_graphed_callables(loop.model, (loop.images,))
    handle = hr.autotune(loop.model, loop.optimizer, steps=1000, on_progress=lambda *told: None)
    reasons = {one.key: one.reason for one in handle.not_applicable}
    for key in ("train.precision", "model.memory_format", "model.compile"):
        assert "replays a CUDA graph" in reasons[key]
    loop.steps(100)
    handle.undo()
    loop.steps(3)


def test_nothing_is_switched_while_a_graph_is_captured():
    loop = Loop()
    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream):
        loop.steps(3)  # Whatever allocates or tunes itself does so before.
    torch.cuda.current_stream().wait_stream(stream)
    knobs = LiveKnobs([loop.model], [loop.optimizer], None)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        loop.loss()
        with pytest.raises(hr.UnsupportedError, match="a CUDA graph is being captured"):
            knobs.apply({"train.precision": '"bf16"'})
    graph.replay()
    torch.cuda.synchronize()


def test_a_search_without_free_memory_harms_nobody():
    loop = Loop(width=64)
    loop.steps(3)
    free = torch.cuda.mem_get_info()[0]
    held = [torch.empty(max(0, free - 48 * 2**20), dtype=torch.uint8, device="cuda")]
    handle = hr.autotune(loop.model, loop.optimizer, steps=100_000, allow="reduced_precision", fixed=["model.compile"],
                         on_progress=lambda *told: None)
    loop.steps(300)
    assert handle.problem is None
    handle.undo()
    del held
    torch.cuda.empty_cache()
    loop.steps(3)
