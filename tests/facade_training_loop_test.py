"""Training steps and loops by the names that published examples use, against loops written by hand."""

import inspect
import io
import json
import re
import weakref

import performance_optimization._config
import pytest
import torch
from performance_optimization_system import (BatchOptimizer, PerformanceConfig, PerformanceOptimizer, TrainingOptimizer,
                                             create_performance_optimizer, optimize_batch_size_for_memory, optimize_training_loop,
                                             optimize_training_pipeline, optimized_training_loop, training_step_standard)
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

pytestmark = pytest.mark.engine


@pytest.fixture(autouse=True)
def same_order_of_sums(one_thread):
    yield


def network() -> nn.Sequential:
    torch.manual_seed(3)
    return nn.Sequential(nn.Linear(8, 16), nn.BatchNorm1d(16), nn.ReLU(), nn.Linear(16, 4))


def batches(count: int, size: int = 16, last: int | None = None) -> list[tuple[torch.Tensor, torch.Tensor]]:
    generator = torch.Generator().manual_seed(5)
    sizes = [size] * (count - 1) + [last or size]
    return [(torch.randn(n, 8, generator=generator), torch.randint(4, (n,), generator=generator)) for n in sizes]


def sgd(model: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.SGD(model.parameters(), lr=0.05)


def adamw(model: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.AdamW(model.parameters(), lr=0.01)


criterion = nn.CrossEntropyLoss()


def by_hand(model, optimizer, data, epochs: int = 1) -> list[list[float]]:
    """The losses of each epoch."""
    model.train()
    losses = []
    for _ in range(epochs):
        losses.append([])
        for inputs, targets in data:
            optimizer.zero_grad()
            loss = criterion(model(inputs), targets)
            loss.backward()
            optimizer.step()
            losses[-1].append(loss.item())
    return losses


def mean_over_samples(losses, data) -> float:
    samples = [len(targets) for _, targets in data]
    return sum(loss * n for loss, n in zip(losses, samples, strict=True)) / sum(samples)


def assert_same(ours: nn.Module, theirs: nn.Module) -> None:
    torch.testing.assert_close(ours.state_dict(), theirs.state_dict(), rtol=0, atol=0)


def put_on_cuda(monkeypatch) -> None:
    """The facade takes the model for one on CUDA; it stays where it is, and the engine computes there."""
    monkeypatch.setattr(performance_optimization._config, "device_type", lambda model: "cuda")


def switched(**settings) -> PerformanceConfig:
    """Nothing but these."""
    off = {"gradient_accumulation": False, "enable_profiling": False, "enable_memory_optimization": False}
    return PerformanceConfig("custom", **{**off, **settings})


# ---- One step ----


@pytest.mark.parametrize("make", [sgd, adamw])
def test_a_standard_step_is_the_step_written_by_hand_bit_for_bit(make):
    data, theirs, ours = batches(6), network(), network()
    (wanted,) = by_hand(theirs, make(theirs), data)
    optimizer = make(ours)
    found = [training_step_standard(ours, (*batch, ["a.jpg"]), optimizer, criterion) for batch in data]
    assert found == wanted
    assert_same(ours, theirs)


# ---- One epoch ----


@pytest.mark.parametrize("make", [sgd, adamw])
def test_the_example_of_an_optimized_loop_has_the_weights_of_the_loop_written_by_hand(make):
    data, theirs, model = batches(7, last=5), network(), network()
    (losses,) = by_hand(theirs, make(theirs), data)
    train_loader = [(*batch, ["a.jpg"] * len(batch[1]), [(4, 4)] * len(batch[1])) for batch in data]  # images, labels, paths, shapes
    optimizer, device, config = make(model), torch.device("cpu"), {"mixed_precision": True}
    model.eval()
    result = optimized_training_loop(model, train_loader, optimizer, criterion, device, config)
    assert list(result) == ["train_loss"] and type(result["train_loss"]) is float
    assert result["train_loss"] == pytest.approx(mean_over_samples(losses, data), rel=1e-6)
    assert_same(model, theirs)
    assert all(module.training for module in model.modules())


def test_what_is_on_the_device_is_not_copied():
    data, seen = batches(3), []
    model = network()
    model.register_forward_pre_hook(lambda module, inputs: seen.append(inputs[0].data_ptr()))
    optimized_training_loop(model, data, sgd(model), criterion, "cpu", None)
    assert seen == [inputs.data_ptr() for inputs, _ in data]


@pytest.mark.parametrize("loader", [[], DataLoader(TensorDataset(torch.zeros(3, 8)), batch_size=4, drop_last=True)], ids=["list", "loader"])
def test_a_loader_without_a_batch_is_one_clear_error(loader):
    model, before = network(), network()
    with pytest.raises(ValueError, match="loader: gave no batch"):
        optimized_training_loop(model, loader, sgd(model), criterion, "cpu", None)
    with pytest.raises(ValueError, match="loader: gave no batch"):
        optimize_training_loop(model, loader, sgd(model), criterion)
    assert_same(model, before)


def test_what_does_not_fit_a_loop_is_named():
    model, data = network(), batches(2)
    with pytest.raises(ValueError, match=r"device: wanted the model's, which is cpu, found meta; model.to\('meta'\)"):
        optimized_training_loop(model, data, sgd(model), criterion, "meta", None)
    with pytest.raises(ValueError, match="names of the same setting"):
        optimized_training_loop(model, data, sgd(model), criterion, "cpu", {"mixed_precision": True, "enable_amp": False})
    with pytest.raises(ValueError, match="model: wanted one with parameters, found none in ReLU"):
        optimized_training_loop(nn.ReLU(), data, sgd(model), criterion, "cpu", None)
    with pytest.raises(TypeError, match="criterion: wanted a function of outputs and targets, found str"):
        optimized_training_loop(model, data, sgd(model), "mse", "cpu", None)
    with pytest.raises(ValueError, match="num_epochs: wanted a whole number above 0, found 0"):
        optimize_training_loop(model, data, sgd(model), criterion, 0)
    assert_same(model, network())


@pytest.mark.parametrize("config, dtype", [(None, torch.float16), ({"enable_amp": True}, torch.float16), ({"mixed_precision": False}, torch.float32)])
def test_on_cuda_a_loop_is_in_mixed_precision_and_cudnn_looks_for_its_fastest_algorithms(monkeypatch, config, dtype):
    put_on_cuda(monkeypatch)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    cudnn = torch.backends.cudnn
    before, seen = (cudnn.benchmark, cudnn.deterministic), []

    def noting(outputs, targets):
        seen.append((outputs.dtype, cudnn.benchmark, cudnn.deterministic))
        return criterion(outputs.float(), targets)

    model = nn.Linear(8, 4)
    optimized_training_loop(model, batches(2), sgd(model), noting, "cpu", config)
    assert seen == [(dtype, True, False)] * 2
    assert (cudnn.benchmark, cudnn.deterministic) == before
    with pytest.raises(KeyError, match="made up"):
        optimized_training_loop(model, batches(2), sgd(model), lambda *given: {}["made up"], "cpu", config)
    assert (cudnn.benchmark, cudnn.deterministic) == before


@pytest.mark.parametrize("is_deterministic, warns_only", [(True, True), (False, False)])
def test_a_loop_leaves_whether_algorithms_are_deterministic_as_it_was(is_deterministic, warns_only):
    torch.use_deterministic_algorithms(is_deterministic, warn_only=warns_only)
    try:
        model = network()
        optimized_training_loop(model, batches(2), sgd(model), criterion, "cpu", None)
        assert torch.are_deterministic_algorithms_enabled() == is_deterministic
        assert torch.is_deterministic_algorithms_warn_only_enabled() == warns_only
    finally:
        torch.use_deterministic_algorithms(False)


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_a_terminal_shows_the_loss_and_its_mean_until_the_end(monkeypatch):
    data, theirs, model = batches(3), network(), network()
    ((first, *_),) = by_hand(theirs, sgd(theirs), data)
    shown = Terminal()
    monkeypatch.setattr("sys.stderr", shown)
    optimized_training_loop(model, data, sgd(model), criterion, "cpu", None)
    lines = shown.getvalue().split("\r")
    assert lines[1] == f"Training  batch 1  Loss: {first:.4f}  Avg Loss: {first:.4f}\x1b[K"
    assert lines[-1] == "\x1b[K"
    assert all(re.fullmatch(r"Training  batch \d  Loss: \d\.\d{4}  Avg Loss: \d\.\d{4}\x1b\[K", line) for line in lines[1:-1])
    assert_same(model, theirs)  # What is shown changes nothing.


def test_what_is_no_terminal_shows_nothing(capsys):
    model = network()
    optimized_training_loop(model, batches(3), sgd(model), criterion, "cpu", None)
    found = capsys.readouterr()
    assert found.out == found.err == ""


# ---- Many epochs ----


def test_a_loop_without_a_configuration_is_the_loop_written_by_hand_and_tells_of_its_epochs():
    names = list(inspect.signature(optimize_training_loop).parameters)
    assert names[:5] == ["model", "dataloader", "optimizer", "criterion", "num_epochs"]
    assert inspect.signature(optimize_training_loop).parameters["num_epochs"].default == 10
    data, theirs, ours = batches(5, last=3), network(), network()
    losses = by_hand(theirs, sgd(theirs), data, 3)
    results = json.loads(json.dumps(optimize_training_loop(ours, data, sgd(ours), criterion, num_epochs=3), allow_nan=False))
    assert_same(ours, theirs)
    assert [epoch["loss"] for epoch in results["epochs"]] == pytest.approx([mean_over_samples(each, data) for each in losses], rel=1e-6)
    assert [(epoch["epoch"], epoch["samples"], epoch["optimizer_steps"]) for epoch in results["epochs"]] == [
        (1, 67, 5), (2, 67, 10), (3, 67, 15)]
    for epoch in results["epochs"]:
        assert epoch["samples_per_second"] == pytest.approx(epoch["samples"] / epoch["seconds"])
        assert epoch["skipped_updates"] == 0 and epoch["resident_memory"] > 10**6 and "profile" not in epoch
    assert results["seconds"] == pytest.approx(sum(epoch["seconds"] for epoch in results["epochs"]))
    assert results["samples_per_second"] == pytest.approx(201 / results["seconds"])
    assert (results["skipped_updates"], results["memory_cleanups"]) == (0, 0)


def test_the_example_of_a_performance_optimizer_trains_and_its_summary_goes_through_json():
    dataloader, theirs, model = batches(4), network(), network()
    losses = by_hand(theirs, sgd(theirs), dataloader, 10)
    optimizer = sgd(model)

    performance_optimizer = PerformanceOptimizer(switched())
    results = performance_optimizer.optimize_training_loop(model, dataloader, optimizer, criterion, num_epochs=10)
    summary = json.loads(json.dumps(performance_optimizer.get_performance_summary(), indent=2, allow_nan=False))

    assert_same(model, theirs)
    assert [epoch["loss"] for epoch in results["epochs"]] == pytest.approx([mean_over_samples(each, dataloader) for each in losses], rel=1e-6)
    assert summary["training_loops"] == [{name: value for name, value in results.items() if name != "features"}]
    assert summary["features"] == results["features"]


def test_by_default_there_are_ten_epochs():
    model = network()
    assert len(optimize_training_loop(model, batches(1), sgd(model), criterion)["epochs"]) == 10


def test_updates_that_a_loss_scale_leaves_out_are_counted(monkeypatch):
    put_on_cuda(monkeypatch)
    model, before = nn.Linear(8, 4), nn.Linear(8, 4)
    before.load_state_dict(model.state_dict())
    results = optimize_training_loop(model, batches(3), sgd(model), lambda outputs, targets: criterion(outputs.float(), targets) * 1e30, 1,
                                     switched(mixed_precision=True))
    assert results["skipped_updates"] == results["epochs"][0]["skipped_updates"] == 3
    entry = results["features"]["enable_amp"]
    assert (entry["requested"], entry["status"], entry["reason"]) == (True, "applied", "")
    assert_same(model, before)


# ---- Accumulation ----


@pytest.mark.parametrize("config, updates", [
    (switched(gradient_accumulation=True, gradient_accumulation_steps=2), 4),
    (PerformanceConfig("ultra", gradient_accumulation_steps=2, enable_compile=False, num_workers=0), 4),
    (PerformanceConfig("ultra", enable_compile=False, num_workers=0), 1),
    (switched(gradient_accumulation=True), 2),
    (switched(gradient_accumulation=True, gradient_accumulation_steps="auto"), 2),
    (switched(gradient_accumulation_steps=2), 8)], ids=["explicit", "before the level", "level", "default", "auto", "off"])
def test_an_update_has_the_batches_that_are_said_before_those_of_the_level_before_the_default(config, updates):
    data = DataLoader(TensorDataset(*(torch.cat(each) for each in zip(*batches(8)))), batch_size=16)
    model = network()
    results = optimize_training_loop(model, data, sgd(model), criterion, 1, config)
    assert results["epochs"][0]["optimizer_steps"] == updates


def test_an_accumulated_loop_is_the_one_written_by_hand():
    data = batches(8)
    theirs, ours = network(), network()
    optimizer = sgd(theirs)
    for step, (inputs, targets) in enumerate(data, 1):
        (criterion(theirs(inputs), targets) / 4).backward()
        if step % 4 == 0:
            optimizer.step()
            optimizer.zero_grad()
    optimize_training_loop(ours, data, sgd(ours), criterion, 1, switched(gradient_accumulation=True))
    torch.testing.assert_close(ours.state_dict(), theirs.state_dict(), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("steps, told", [(0, 'wanted a whole number of 1 to 1048576 or "auto", found 0'), ("all", "found 'all'"),
                                         ("auto", '"auto" wanted a dataloader with a batch_size, found none in list')])
def test_a_number_of_batches_that_cannot_be_is_named(steps, told):
    model = network()
    with pytest.raises(ValueError, match=f"gradient_accumulation_steps: .*{told}"):
        optimize_training_loop(model, batches(2), sgd(model), criterion, 1, switched(gradient_accumulation=True,
                                                                                    gradient_accumulation_steps=steps))
    assert_same(model, network())


@pytest.mark.parametrize("threshold, found", [("most", "'most'"), (-0.5, "-0.5")])
def test_a_threshold_that_cannot_be_is_named_before_anything_is_trained(threshold, found):
    model = network()
    with pytest.raises(ValueError, match=f"memory_threshold: wanted a number of 0 to 1, found {found}"):
        optimize_training_loop(model, batches(2), sgd(model), criterion, 1, switched(memory_threshold=threshold))
    assert_same(model, network())


# ---- The switches ----

# What a switch changes in the results of a loop, and what it is switched to.
SEEN = {
    "enable_profiling": (False, lambda results: "profile" in results["epochs"][0]),
    "enable_memory_optimization": (False, lambda results: results["memory_cleanups"]),
    "gradient_accumulation": (False, lambda results: results["epochs"][0]["optimizer_steps"]),
    "gradient_accumulation_steps": (2, lambda results: results["epochs"][0]["optimizer_steps"]),
}
TOLD = ("enable_caching", "cache_size", "enable_parallelization", "max_workers", "enable_compression", "batch_size_optimization",
        "enable_amp", "memory_threshold")


def results_of(**settings):
    model = nn.Linear(8, 4)
    return optimize_training_loop(model, batches(4), sgd(model), criterion, 1,
                                  PerformanceConfig("basic", **{"gradient_accumulation_steps": 4, **settings}))


@pytest.mark.parametrize("name", SEEN)
def test_a_switch_changes_the_loop(name):
    other, seen = SEEN[name]
    on, off = results_of(), results_of(**{name: other})
    assert seen(on) != seen(off)
    assert on["features"][name]["status"] == "applied" and on["features"][name]["reason"] == ""
    assert off["features"][name]["status"] == ("applied" if other else "")


@pytest.mark.parametrize("name", TOLD)
def test_a_switch_without_a_capability_here_is_not_applied_and_says_why(name):
    assert getattr(PerformanceConfig(), name)  # As CFG-01 has it.
    entry = results_of(**{name: getattr(PerformanceConfig(), name)})["features"][name]
    assert entry["status"] == "not applied" and len(entry["reason"]) > 10
    off = type(getattr(PerformanceConfig(), name))(0)
    assert results_of(**{name: off})["features"][name] == {"requested": off, "status": "", "reason": ""}


def test_the_switches_that_are_looked_at_are_all_of_the_configuration():
    twelve = {"enable_caching", "enable_parallelization", "enable_memory_optimization", "enable_profiling", "enable_compression",
              "cache_size", "max_workers", "memory_threshold", "batch_size_optimization", "enable_amp", "gradient_accumulation",
              "gradient_accumulation_steps"}
    assert SEEN.keys() | set(TOLD) == twelve


def test_mixed_precision_changes_the_loop_where_it_is_available(monkeypatch):
    put_on_cuda(monkeypatch)
    monkeypatch.setattr(torch.cuda, "memory_allocated", lambda device=None: 0)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda device=None: type("Made", (), {"total_memory": 10**9}))
    assert results_of(mixed_precision=True)["features"]["enable_amp"]["status"] == "applied"
    assert results_of(mixed_precision=False)["features"]["enable_amp"]["status"] == ""


@pytest.mark.parametrize("held, given_back", [(0.9, 1), (0.7, 0)])
def test_above_the_threshold_unused_memory_of_the_device_is_given_back_between_epochs(monkeypatch, held, given_back):
    put_on_cuda(monkeypatch)
    calls = []
    monkeypatch.setattr(torch.cuda, "memory_allocated", lambda device=None: held * 10**9)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda device=None: type("Made", (), {"total_memory": 10**9}))
    monkeypatch.setattr(torch.cuda, "empty_cache", lambda: calls.append("empty_cache"))
    results = results_of()
    assert results["features"]["memory_threshold"]["status"] == "applied" and len(calls) == given_back


# ---- Memory ----


class Watched:
    """Batches made one by one; notes what is left of those before when another one is asked for."""

    def __init__(self, model: nn.Module):
        self.model, self.made, self.left, self.gradients = model, [], [], []

    def __iter__(self):
        for place in range(6):
            self.left.append(sum(reference() is not None for reference in self.made))
            self.gradients.append([parameter.grad for parameter in self.model.parameters()])
            yield self.batch(place)

    def batch(self, place: int):
        inputs = torch.full((4, 8), 0.1 * place)
        self.made.append(weakref.ref(inputs))
        return inputs, torch.tensor([0, 1, 2, 3])


def test_gradients_are_none_and_a_batch_is_gone_before_the_next_one_is_asked_for():
    model = network()
    loader = Watched(model)
    optimize_training_loop(model, loader, sgd(model), criterion, 1)
    assert loader.left == [0] * 6
    assert loader.gradients == [[None] * 6] * 6


# ---- The pipeline ----


def test_the_example_of_a_pipeline_sets_up_tells_each_component_and_trains_nothing():
    model, before = network(), network()
    forwards = []
    model.register_forward_hook(lambda *given: forwards.append(1))
    dataloader, optimizer = batches(2), sgd(model)

    config = PerformanceConfig(optimization_level="basic")
    performance_optimizer = create_performance_optimizer(config)
    summary = performance_optimizer.optimize_training_pipeline(model, dataloader, optimizer, criterion)

    assert forwards == []
    assert_same(model, before)
    assert json.loads(json.dumps(summary, allow_nan=False)) == summary
    assert list(summary) == ["data", "batch", "model", "training", "memory", "profiling"]
    told = {name: entry for component in summary.values() for name, entry in component.items()}
    assert told == performance_optimizer.get_optimization_status()["features"]
    for name, entry in told.items():
        assert entry["requested"] == getattr(config, name) and entry["status"] in ("applied", "not applied", "")
        assert bool(entry["reason"]) == (entry["status"] == "not applied"), name
    by_hand(before, sgd(before), [dataloader[0]])
    training_step_standard(model, dataloader[0], optimizer, criterion)
    assert_same(model, before)


def test_a_pipeline_applies_what_is_asked_for_of_the_model():
    torch.manual_seed(3)
    model = nn.Sequential(nn.Conv2d(3, 4, 3), nn.ReLU(), nn.Flatten(), nn.Linear(4 * 36, 4))
    config = PerformanceConfig("custom", enable_memory_format_optimization=True)
    summary = optimize_training_pipeline(model, [], sgd(model), criterion, config)
    assert summary["model"]["enable_memory_format_optimization"] == {
        "requested": True, "status": "applied", "reason": "",
        "verdict": {"verdict": "not measured", "gain": None, "pairs": 0, "reason": "enable_profiling is False"}}
    assert model[0].weight.is_contiguous(memory_format=torch.channels_last)
    assert summary["model"]["enable_compile"] == {"requested": False, "status": "", "reason": ""}


def test_a_performance_optimizer_in_the_place_of_the_optimizer_is_refused_with_a_hint():
    model, data = network(), batches(2)
    optimizer = create_performance_optimizer(PerformanceConfig("basic"))  # The name of the published example.
    for call in (lambda: optimizer.optimize_training_pipeline(model, data, optimizer, criterion),
                 lambda: optimizer.optimize_training_loop(model, data, optimizer, criterion),
                 lambda: optimized_training_loop(model, data, optimizer, criterion, "cpu", None),
                 lambda: TrainingOptimizer().train(model, data, optimizer, criterion),
                 lambda: training_step_standard(model, data[0], optimizer, criterion)):
        with pytest.raises(TypeError, match="found PerformanceOptimizer; a performance optimizer sets a model up and takes no steps"):
            call()
    assert_same(model, network())


@pytest.mark.parametrize("dataloader, loss, told", [(3, criterion, "dataloader: wanted what gives batches, found int"),
                                                    ([], "mse", "criterion: wanted a function of outputs and targets, found str")])
def test_what_is_no_part_of_a_pipeline_is_named(dataloader, loss, told):
    model = network()
    with pytest.raises(TypeError, match=told):
        PerformanceOptimizer(PerformanceConfig("basic")).optimize_training_pipeline(model, dataloader, sgd(model), loss)


# ---- Batch sizes ----


def test_the_table_is_where_a_search_starts_and_a_fixed_size_wins(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    start = optimize_batch_size_for_memory({"batch_size": 24})
    assert start == 16
    model, data = network(), TensorDataset(*(torch.cat(each) for each in zip(*batches(4))))
    search = BatchOptimizer(initial_batch_size=start, max_batch_size=64)
    size = search.optimize_batch_size(model, DataLoader(data, batch_size=8))
    probes = search.get_performance_summary()["batch_optimization"]["probes"]
    assert probes[0]["batch_size"] == 16 and size <= 64
    assert BatchOptimizer(start, batch_size_optimization=False).optimize_batch_size(model, DataLoader(data, batch_size=8)) == 8

    seen = []
    model.register_forward_pre_hook(lambda module, inputs: seen.append(len(inputs[0])))
    entry = optimize_training_loop(model, DataLoader(data, batch_size=8), sgd(model), criterion, 1,
                                   switched(enable_batch_optimization=True))["features"]["batch_size_optimization"]
    assert set(seen) == {8} and entry["status"] == "not applied" and "a fixed one wins" in entry["reason"]
