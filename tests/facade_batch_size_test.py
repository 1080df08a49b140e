"""Batch sizes by the names of published examples: tables of GPUs, with made-up devices, and a search by the engine."""

import json
from types import SimpleNamespace

import headrace as hr
import pytest
import torch
from performance_optimization_system import BatchOptimizer, get_gpu_optimization_config, optimize_batch_size_for_memory
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

GB = 10**9


def put_gpu(monkeypatch, memory: float = 24 * GB, name: str = "made up", capability: tuple[int, int] = (6, 1)) -> None:
    device = SimpleNamespace(total_memory=int(memory), major=capability[0], minor=capability[1])
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda index=0: name)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda index=0: device)


def put_no_gpu(monkeypatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)


def config(batch_size: int = 64, **settings) -> SimpleNamespace:
    return SimpleNamespace(batch_size=batch_size, **settings)


# ---- By the memory of a GPU ----


@pytest.mark.parametrize("memory, size", [(80, 64), (24, 64), (23.999, 32), (16, 32), (15.8, 24), (12, 24), (11.9, 16), (8, 16), (7.9, 12),
                                          (6, 12), (5.9, 8), (2, 8)])
def test_the_size_is_that_of_the_memory_and_no_more_than_was_asked_for(monkeypatch, memory, size):
    put_gpu(monkeypatch, memory * GB)
    assert optimize_batch_size_for_memory(config(1000)) == size
    assert optimize_batch_size_for_memory({"batch_size": 10}) == min(size, 10)


def test_without_cuda_the_size_is_at_most_16(monkeypatch):
    put_no_gpu(monkeypatch)
    assert optimize_batch_size_for_memory(config(64, image_size=1280, weights="yolov8x.pt")) == 16
    assert optimize_batch_size_for_memory(config(9)) == 9


@pytest.mark.parametrize("weights, is_large", [
    ("yolov8x.pt", True), ("yolo11l-seg.pt", True), ("yolov5_l.pt", True), ("yolov5x6.pt", True), ("runs/rtdetr-l.pt", True),
    ("YOLOv8X.pt", True),
    ("yolov8n.pt", False), ("yolov8s-world.pt", False), ("yolov5m6.pt", False), ("xl/yolov8n.pt", False), ("resnet18.pt", False),
    ("", False), (None, False)])
def test_large_images_and_large_variants_halve_it_to_no_less_than_4(monkeypatch, weights, is_large):
    put_gpu(monkeypatch, 24 * GB)
    assert optimize_batch_size_for_memory(config(weights=weights)) == (32 if is_large else 64)
    assert optimize_batch_size_for_memory(config(weights=weights, image_size=641)) == (16 if is_large else 32)
    assert optimize_batch_size_for_memory(config(weights=weights, image_size=640)) == (32 if is_large else 64)
    put_gpu(monkeypatch, 4 * GB)
    assert optimize_batch_size_for_memory(config(weights=weights, image_size=1280)) == 4


def test_by_the_letter_every_yolo_is_a_large_variant(monkeypatch):
    put_gpu(monkeypatch, 24 * GB)
    assert optimize_batch_size_for_memory(config(weights="yolov8n.pt"), literal=True) == 32
    assert optimize_batch_size_for_memory(config(weights="resnet18.pt"), literal=True) == 64


@pytest.mark.parametrize("bad, told", [({}, "config.batch_size"), ({"batch_size": 0}, "config.batch_size"),
                                       ({"batch_size": 8, "image_size": 0}, "config.image_size")])
def test_a_setting_of_the_size_that_is_missing_or_none_is_named(monkeypatch, bad, told):
    put_no_gpu(monkeypatch)
    with pytest.raises(ValueError, match=told):
        optimize_batch_size_for_memory(bad)


# ---- By the name of a GPU ----


@pytest.mark.parametrize("name, multiplier, amp, workers", [
    ("NVIDIA GeForce RTX 4090", 1.5, True, 16), ("NVIDIA GeForce RTX 4080 SUPER", 1.5, True, 16),
    ("NVIDIA GeForce RTX 3090 Ti", 1.2, True, 12),
    ("NVIDIA GeForce RTX 3080", 1.2, True, 12), ("NVIDIA GeForce RTX 3070", 1.0, True, 8), ("NVIDIA GeForce RTX 3060", 1.0, True, 8),
    ("NVIDIA GeForce GTX 1080 Ti", 0.8, False, 4)])
def test_a_named_gpu_has_its_row_and_the_multiplier_is_applied_rounded_down(monkeypatch, name, multiplier, amp, workers):
    put_gpu(monkeypatch, 11 * GB, name)
    found = get_gpu_optimization_config()
    assert found == {"batch_size_multiplier": multiplier, "enable_amp": amp, "num_workers": workers, "pin_memory": True}
    assert get_gpu_optimization_config(literal=True) == found
    for base in (1, 5, 7, 10, 16):
        wanted = max(1, base * round(10 * multiplier) // 10)
        assert optimize_batch_size_for_memory(config(base), found) == wanted
    assert optimize_batch_size_for_memory(config(64), found) == 16 * round(10 * multiplier) // 10  # Of the rule, as of the user's size.
    assert optimize_batch_size_for_memory(config(64), {}) == 16


@pytest.mark.parametrize("name, capability, memory, multiplier, amp", [
    ("NVIDIA H200", (9, 0), 150, 1.5, True), ("NVIDIA A100-SXM4-40GB", (8, 0), 42, 1.5, True),
    ("NVIDIA GeForce RTX 5090", (12, 0), 34, 1.0, True),
    ("Tesla V100-SXM2-16GB", (7, 0), 16.9, 1.0, True), ("Tesla T4", (7, 5), 15.8, 1.0, True), ("Tesla P100", (6, 0), 17, 0.8, False)])
def test_other_gpus_go_by_compute_capability_and_memory_unless_the_table_is_taken_literally(monkeypatch, name, capability, memory,
                                                                                            multiplier, amp):
    put_gpu(monkeypatch, memory * GB, name, capability)
    found = get_gpu_optimization_config()
    assert (found["batch_size_multiplier"], found["enable_amp"]) == (multiplier, amp)
    literal = get_gpu_optimization_config(literal=True)
    assert literal == {"batch_size_multiplier": 0.8, "enable_amp": False, "num_workers": 4, "pin_memory": True}


def test_without_cuda_there_is_no_gpu_configuration(monkeypatch):
    put_no_gpu(monkeypatch)
    assert get_gpu_optimization_config() == get_gpu_optimization_config(literal=True) == {}


# ---- By measuring ----


def network(width: int = 64) -> nn.Sequential:
    torch.manual_seed(1)
    return nn.Sequential(nn.Linear(16, width), nn.ReLU(), nn.Linear(width, 4))


def dataset(samples: int = 64) -> TensorDataset:
    generator = torch.Generator().manual_seed(2)
    return TensorDataset(torch.randn(samples, 16, generator=generator), torch.randint(4, (samples,), generator=generator))


def test_a_fixed_size_stays_and_nothing_is_tried():
    optimizer = BatchOptimizer(batch_size_optimization=False)
    assert optimizer.optimize_batch_size(network(), DataLoader(dataset(), batch_size=24)) == 24
    told = optimizer.get_performance_summary()["batch_optimization"]
    assert told == {"requested": False, "status": "", "reason": "batch_size_optimization is False", "probes": []}
    with pytest.raises(ValueError, match="batch_size_optimization is False"):
        optimizer.recommend_batch_sizes()
    with pytest.raises(ValueError, match="dataloader.batch_size: wanted the size that stays, found none in list"):
        optimizer.optimize_batch_size(network(), [])


def test_before_a_search_its_summary_says_that_there_was_none():
    optimizer = BatchOptimizer()
    assert (optimizer.initial_batch_size, optimizer.max_batch_size) == (32, 512)
    told = optimizer.get_performance_summary()["batch_optimization"]
    assert told["status"] == "not applied" and "was not called" in told["reason"] and told["probes"] == []


@pytest.mark.engine
def test_the_example_of_a_batch_optimizer_gives_a_size_of_which_a_loader_can_be_made():
    model, data = network(), dataset()
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    dataloader = DataLoader(data, batch_size=32, shuffle=True)
    random_before = torch.get_rng_state()

    batch_optimizer = BatchOptimizer(initial_batch_size=32, max_batch_size=512)
    optimal_batch_size = batch_optimizer.optimize_batch_size(model, dataloader, target_throughput=100.0)
    assert torch.equal(torch.get_rng_state(), random_before)
    optimized_dataloader = DataLoader(dataset(600), batch_size=optimal_batch_size, shuffle=True)

    assert type(optimal_batch_size) is int and 1 <= optimal_batch_size <= 512
    assert len(next(iter(optimized_dataloader))[0]) == optimal_batch_size
    assert all(torch.equal(tensor, before[name]) for name, tensor in model.state_dict().items())
    assert all(parameter.grad is None for parameter in model.parameters())

    told = batch_optimizer.get_performance_summary(run_samples=10**6)["batch_optimization"]
    assert json.loads(json.dumps(told, allow_nan=False))["batch_size"] == optimal_batch_size
    sizes = [probe["batch_size"] for probe in told["probes"]]
    assert told["status"] == "applied" and sizes[0] == 32 and max(sizes) <= 512 and 1 <= len(sizes) <= 4
    assert [probe["peak_bytes"] for probe in told["probes"]] == [probe.peak_bytes for probe in batch_optimizer._plan.probes]
    assert told["search_s"] > 0 and 0 < told["search_share"] < 1


@pytest.mark.engine
@pytest.mark.parametrize("is_deterministic, warns_only", [(True, False), (True, True), (False, False)])
def test_a_search_leaves_whether_algorithms_are_deterministic_as_it_was(is_deterministic, warns_only):
    def found() -> tuple[bool, bool]:
        return torch.are_deterministic_algorithms_enabled(), torch.is_deterministic_algorithms_warn_only_enabled()

    within = []

    def criterion(outputs, targets):
        within.append(found()[0])
        return nn.functional.cross_entropy(outputs, targets)

    torch.use_deterministic_algorithms(is_deterministic, warn_only=warns_only)
    try:
        BatchOptimizer(4, 8).optimize_batch_size(network(), DataLoader(dataset(), batch_size=4), criterion=criterion)
        assert set(within) == {is_deterministic} and found() == (is_deterministic, warns_only)
        with pytest.raises(KeyError, match="made up"):
            BatchOptimizer(4, 8).optimize_batch_size(network(), DataLoader(dataset(), batch_size=4), criterion=lambda *given: {}["made up"])
        assert found() == (is_deterministic, warns_only)
    finally:
        torch.use_deterministic_algorithms(False)


@pytest.mark.engine
def test_recommendations_grow_with_memory_and_agree_with_what_was_measured_here():
    optimizer = BatchOptimizer(initial_batch_size=32, max_batch_size=512)
    optimizer.optimize_batch_size(network(2048), DataLoader(dataset(), batch_size=8))
    found = optimizer.recommend_batch_sizes([8, 24, 80, 141])
    sizes = [entry["batch_size"] for entry in found]
    assert sizes == sorted(sizes) and 512 < sizes[0] < sizes[-1]
    assert all("MB a sample" in entry["reason"] for entry in found)
    measured = max(optimizer._plan.probes, key=lambda probe: probe.batch_size)
    (here,) = optimizer.recommend_batch_sizes([measured.peak_bytes / GB])
    assert measured.batch_size / 2 <= here["batch_size"] <= measured.batch_size * 2


@pytest.mark.engine
def test_another_criterion_and_optimizer_are_taken_and_a_performance_optimizer_is_refused():
    torch.manual_seed(1)
    model = nn.Linear(16, 16)
    sgd = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    inputs = torch.randn(8, 16)
    size = BatchOptimizer(4, 16).optimize_batch_size(model, [(inputs, inputs, ["a.jpg"] * 8)], optimizer=sgd, criterion=nn.MSELoss())
    assert 1 <= size <= 16 and sgd.state_dict()["state"] == {}
    with pytest.raises(TypeError, match="wanted a torch.optim.Optimizer"):
        BatchOptimizer().optimize_batch_size(model, [(inputs, inputs)], optimizer=BatchOptimizer())


def test_without_the_engine_it_is_said_why(monkeypatch):
    from headrace import _batch_plan, _engine_door, _trainer

    monkeypatch.setattr(hr, "Trainer", _trainer.Trainer)  # First: what was there is looked for by the door.
    monkeypatch.setattr(_engine_door, "_found", lambda: _engine_door._Found(None, "built for torch 2.11, found 2.15"))
    with pytest.raises(hr.errors.UnsupportedError, match="headrace.Trainer: not applicable: built for torch 2.11, found 2.15"):
        BatchOptimizer().optimize_batch_size(network(), DataLoader(dataset()))
    with pytest.raises(hr.errors.UnsupportedError, match="headrace.plan_batch_size: not applicable: built for torch"):
        _batch_plan.plan_batch_size(None, [])
    with pytest.raises(hr.errors.UnsupportedError, match="headrace.set_tensor_memory_limit: not applicable: built for torch"):
        hr.set_tensor_memory_limit(100)
