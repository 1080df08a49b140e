"""Figures of a model's device, where there is none: each can be asked for, says why it is unavailable and is None, never 0. With a
device: tests/gpu/device_figures_check.py."""

import headrace as hr
import pytest
import torch
from torch import nn

pytestmark = pytest.mark.engine

PHASES = ("transfer", "forward", "backward", "optimizer", "replay")
POOLS = ("all", "small", "large")


def batches(count: int) -> list[tuple[torch.Tensor, torch.Tensor]]:
    generator = torch.Generator().manual_seed(5)
    return [(torch.randn(16, 8, generator=generator), torch.randint(4, (16,), generator=generator)) for _ in range(count)]


def forward(model, batch):
    return nn.functional.cross_entropy(model(batch[0]), batch[1])


def trainer_of(**options) -> hr.Trainer:
    torch.manual_seed(3)
    model = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 4))
    return hr.Trainer(model, torch.optim.SGD(model.parameters(), lr=0.1), forward, **options)


@pytest.mark.parametrize("cuda_graph", [False, True])
def test_memory_of_a_device_is_unavailable_on_the_cpu_with_the_reason(cuda_graph, tmp_path):
    trainer = trainer_of(cuda_graph=cuda_graph)
    trainer.step(batches(1)[0])
    assert trainer.device_memory() == {"device": "cpu", "reason": "the model is on the CPU", **dict.fromkeys(POOLS),
                                       "retries": None, "out_of_memory": None}
    trainer.reset_peak_device_memory()
    assert trainer.release_device_cache() is None
    with pytest.raises(hr.errors.UnsupportedError, match="save_device_memory: wanted a model on a CUDA device: the model is on the CPU"):
        trainer.save_device_memory(tmp_path / "memory.pickle")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("cuda_graph", [False, True])
def test_times_of_a_device_are_unavailable_on_the_cpu_and_the_switch_says_so(cuda_graph):
    trainer = trainer_of(cuda_graph=cuda_graph)
    assert trainer.time_device() == {"requested": "true", "applied": "false", "reason": "the model is on the CPU"}
    for batch in batches(3):
        trainer.step(batch)
    times = trainer.device_times()
    assert {phase: times[phase] for phase in PHASES} == dict.fromkeys(PHASES, {"seconds": None, "count": 0})
    assert (times["seconds"], times["busy_share"], times["waiting"], times["dropped"], times["advice"]) == (None, None, 0, 0, "")
    assert trainer.time_device(False) == {"requested": "false", "applied": "false", "reason": ""}


def test_a_trace_of_steps_on_the_cpu_has_no_spans_of_a_device():
    trainer = trainer_of(cuda_graph=True)
    with hr.Trace() as trace:
        for batch in batches(3):
            trainer.step(batch)
    names = {entry["name"] for entry in trace.summary()["operations"]}
    assert "forward" in names and not any(name.startswith("device_") for name in names)


def test_the_interval_of_reading_losses_is_told_with_why_it_is_not_applied():
    trainer = trainer_of(loss_interval=7)
    assert trainer.options["loss_interval"] == 7
    told = trainer.explain()["losses"]
    assert told["by"] == "the engine: read at each step" and "loss_interval is for a CUDA device" in told["reason"]
    with pytest.raises(hr.errors.InvalidArgumentError, match="loss_interval"):
        trainer_of(loss_interval=1)


def test_an_interval_changes_no_bit_of_a_run():
    ends = []
    for interval in (2, 50):
        trainer = trainer_of(loss_interval=interval)
        losses = [trainer.step(batch) for batch in batches(20)]
        ends.append(torch.stack(losses))
    assert torch.equal(*ends)
