"""OptimizedTrainer, a model with fit() and Profile, by the names that published examples use, against loops written by hand."""

import copy
import json
import struct
import time

import headrace as hr
import pytest
import torch
from performance_optimization_system import (OptimizedTrainer, PerformanceConfig, PerformanceOptimizer, Profile, TrainableModel,
                                             create_optimized_optimizer, parameter_groups)
from protobuf_fields import field, records
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

pytestmark = pytest.mark.engine


def as_captured(graph, inputs):
    return graph.forward


@pytest.fixture(autouse=True)
def no_compiler(nothing_compiled, monkeypatch):
    monkeypatch.setattr("headrace._compiled.MODES", (as_captured,))


def network() -> nn.Sequential:
    torch.manual_seed(3)
    return nn.Sequential(nn.Linear(8, 16), nn.BatchNorm1d(16), nn.ReLU(), nn.Linear(16, 4))


def samples(count: int = 64) -> TensorDataset:
    inputs = torch.randn(count, 8, generator=torch.Generator().manual_seed(5))
    return TensorDataset(inputs, inputs[:, :4].argmax(1))


def loader(count: int = 64) -> DataLoader:
    return DataLoader(samples(count), batch_size=16)


def bare(**settings) -> PerformanceConfig:
    off = {"gradient_accumulation": False, "enable_profiling": False, "enable_memory_optimization": False}
    return PerformanceConfig("custom", **{**off, **settings})


def by_hand(model, optimizer, data, epochs: int = 1, criterion=nn.functional.cross_entropy) -> None:
    model.train()
    for _ in range(epochs):
        for inputs, targets in data:
            optimizer.zero_grad()
            criterion(model(inputs), targets).backward()
            optimizer.step()


def assert_same(ours: nn.Module, theirs: nn.Module) -> None:
    torch.testing.assert_close(ours.state_dict(), theirs.state_dict(), rtol=0, atol=0)


# ---- OptimizedTrainer ----


def test_the_example_of_a_trainer_trains_validates_and_tells_of_each_epoch():
    model, dataloader, val_dataloader, num_epochs = network(), loader(), loader(24), 3

    config = PerformanceConfig(
        enable_caching=True,
        enable_parallelization=True,
        enable_memory_optimization=True,
        enable_profiling=True,
        enable_batch_optimization=True,
        mixed_precision=True,
    )
    performance_optimizer = PerformanceOptimizer(config)
    trainer = OptimizedTrainer(model, config, performance_optimizer=performance_optimizer)

    summaries, losses = [], []
    for epoch in range(num_epochs):
        train_metrics = trainer.train_epoch(dataloader, epoch + 1, num_epochs)
        val_metrics = trainer.validate(val_dataloader, epoch + 1)
        summaries.append(json.loads(json.dumps(trainer.get_performance_summary(), allow_nan=False)))
        losses.append(train_metrics["loss"])
        assert (train_metrics["epoch"], train_metrics["num_epochs"], val_metrics["epoch"]) == (epoch + 1, num_epochs, epoch + 1)
        assert (train_metrics["samples"], val_metrics["samples"]) == (64, 24)

    assert losses[-1] < losses[0]
    assert summaries[0] != summaries[1] != summaries[2] != summaries[0]
    of_optimizer = json.loads(json.dumps(performance_optimizer.get_performance_summary(), allow_nan=False))
    assert {name: summaries[-1][name] for name in of_optimizer} == of_optimizer
    assert summaries[-1].keys() - of_optimizer.keys() == {"training_metrics"}
    metrics = summaries[-1]["training_metrics"]
    assert [epoch["epoch"] for epoch in metrics["epochs"]] == [each["epoch"] for each in metrics["validations"]] == [1, 2, 3]
    assert metrics["progress"]["optimizer_steps"] == metrics["epochs"][-1]["optimizer_steps"] == 3  # Windows of 4 batches.
    features = summaries[-1]["features"]
    for name in ("enable_profiling", "gradient_accumulation", "enable_memory_optimization"):
        assert features[name] == {"requested": True, "status": "applied", "reason": ""}
    for name in ("enable_caching", "enable_parallelization", "batch_size_optimization", "enable_amp"):
        assert features[name]["status"] == "not applied" and features[name]["reason"], name


def test_without_an_optimizer_and_a_criterion_they_are_made_and_train_as_the_loop_written_by_hand():
    theirs, ours, data = network(), network(), list(loader())
    by_hand(theirs, torch.optim.AdamW(theirs.parameters(), lr=0.001, weight_decay=0.0005), data, 2)
    trainer = OptimizedTrainer(ours, bare())
    for epoch in (1, 2):
        trainer.train_epoch(data, epoch, 2)
    assert_same(ours, theirs)


def test_given_ones_are_taken():
    theirs, ours, data = network(), network(), list(loader())

    def criterion(outputs, targets):
        return nn.functional.cross_entropy(outputs, targets, label_smoothing=0.1)

    by_hand(theirs, torch.optim.SGD(theirs.parameters(), lr=0.05), data, 2, criterion)
    trainer = OptimizedTrainer(ours, bare(), optimizer=torch.optim.SGD(ours.parameters(), lr=0.05), criterion=criterion)
    for epoch in (1, 2):
        trainer.train_epoch(data, epoch, 2)
    assert_same(ours, theirs)


def test_a_configuration_of_any_form_has_the_optimizer_the_criterion_and_the_settings():
    criterion = nn.CrossEntropyLoss(label_smoothing=0.1)
    config = {"model_config": {"learning_rate": 0.02, "optimizer": "sgd"}, "criterion": criterion, "gradient_accumulation": False,
              "enable_profiling": False}
    trainer = OptimizedTrainer(network(), config)
    assert type(trainer.optimizer) is torch.optim.SGD and trainer.optimizer.param_groups[0]["lr"] == 0.02
    assert trainer.criterion is criterion
    assert trainer.config == PerformanceConfig("custom", gradient_accumulation=False, enable_profiling=False)
    assert trainer.train_epoch(loader(), 1, 1)["optimizer_steps"] == 4
    assert OptimizedTrainer(network()).config == PerformanceConfig()


def test_what_does_not_fit_a_trainer_is_named():
    model = network()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with pytest.raises(TypeError, match="performance_optimizer: wanted a PerformanceOptimizer, found SGD; what steps the model's parameters"):
        OptimizedTrainer(model, bare(), performance_optimizer=optimizer)
    with pytest.raises(TypeError, match="a performance optimizer sets a model up and takes no steps"):
        OptimizedTrainer(model, bare(), optimizer=PerformanceOptimizer(bare()))
    with pytest.raises(ValueError, match="config: wanted that of performance_optimizer"):
        OptimizedTrainer(model, bare(), performance_optimizer=PerformanceOptimizer(PerformanceConfig("basic")))
    trainer = OptimizedTrainer(model, bare())
    for epoch, num_epochs, told in ((0, 3, "epoch: wanted a whole number above 0, found 0"), (4, 3, "epoch: wanted one from 1 to 3, found 4"),
                                    (1, 0, "num_epochs: wanted a whole number above 0, found 0")):
        with pytest.raises(ValueError, match=told):
            trainer.train_epoch(loader(), epoch, num_epochs)
    with pytest.raises(ValueError, match="epoch: wanted a whole number above 0, found 0"):
        trainer.validate(loader(), 0)
    for call in (lambda: trainer.train_epoch([], 1, 3), lambda: trainer.validate([], 1)):
        with pytest.raises(ValueError, match="gave no batch"):
            call()
    assert_same(model, network())


@pytest.mark.parametrize("is_trained", [False, True])
def test_a_validation_changes_nothing_and_has_the_loss_of_evaluation_mode(is_trained):
    model, data = network(), list(loader(40))  # The last batch has 8.
    trainer = OptimizedTrainer(model, bare())
    if is_trained:
        trainer.train_epoch(loader(), 1, 1)
    model.train()
    model[1].eval()
    before, of_optimizer = copy.deepcopy(model.state_dict()), copy.deepcopy(trainer.optimizer.state_dict()["state"])
    grads_enabled = []

    def criterion(outputs, targets):
        grads_enabled.append(torch.is_grad_enabled())
        return nn.functional.cross_entropy(outputs, targets)

    noting = OptimizedTrainer(model, bare(), optimizer=trainer.optimizer, criterion=criterion)
    result = trainer.validate(data, 1)
    assert noting.validate(data, 1) == result
    assert grads_enabled == [False] * 3
    torch.testing.assert_close(model.state_dict(), before, rtol=0, atol=0)
    torch.testing.assert_close(trainer.optimizer.state_dict()["state"], of_optimizer, rtol=0, atol=0)
    assert all(parameter.grad is None for parameter in model.parameters())
    assert [module.training for module in model] == [True, False, True, True]
    model.eval()
    with torch.no_grad():
        wanted = sum(nn.functional.cross_entropy(model(inputs), targets, reduction="sum").item() for inputs, targets in data) / 40
    assert result == {"epoch": 1, "val_loss": pytest.approx(wanted, rel=1e-5), "samples": 40}


def test_a_validation_between_epochs_leaves_training_as_it_is():
    apart, beside, data = network(), network(), list(loader())
    trainers = [OptimizedTrainer(model, bare()) for model in (apart, beside)]
    trainers[1].validate(data, 1)
    for epoch in (1, 2):
        for trainer in trainers:
            trainer.train_epoch(data, epoch, 2)
        trainers[1].validate(data, epoch)
    assert_same(beside, apart)


# ---- Groups of the optimizer ----


class Named(nn.Module):
    def __init__(self):
        super().__init__()
        self.system = nn.Linear(2, 2)  # Contains "stem".
        self.stem = nn.Linear(2, 2)
        self.head = nn.Linear(2, 2)


@pytest.mark.parametrize("pattern, slow", [({}, ["system.weight", "system.bias", "stem.weight", "stem.bias"]),
                                           ({"backbone_pattern": r"^stem\."}, ["stem.weight", "stem.bias"])])
def test_who_is_of_the_backbone_is_listed_and_can_be_said(pattern, slow):
    model = Named()
    optimizer = create_optimized_optimizer(model, {"model_config": {"learning_rate": 0.5, **pattern}})
    first, second = parameter_groups(model, optimizer)
    assert first == {"learning_rate": 0.05, "weight_decay": 0.0005, "parameters": slow}
    assert second["learning_rate"] == 0.5 and "head.weight" in second["parameters"]
    assert {*first["parameters"], *second["parameters"]} == {name for name, _ in model.named_parameters()}
    trainer = OptimizedTrainer(model, bare(), optimizer=optimizer)
    assert trainer.get_performance_summary()["training_metrics"]["parameter_groups"] == [first, second]


def test_a_pattern_that_is_none_is_named():
    for pattern, found in (("(", r"'\(': "), (b"stem", "b'stem': "), (3, "3: ")):
        with pytest.raises(ValueError, match=f"config.model_config.backbone_pattern: wanted a regular expression, found {found}"):
            create_optimized_optimizer(Named(), {"model_config": {"learning_rate": 0.5, "backbone_pattern": pattern}})


# ---- A model with fit() and its profile ----


def scalars_of(event_file):
    """By tag (step, seconds since 1970, value), by the field numbers of TensorFlow's event.proto."""
    found = {}
    for event in records(event_file.read_bytes()):
        summary = field(event, 5)
        if summary is None:  # The first tells the file's version.
            continue
        value = field(summary, 1)
        (wall,), (number,) = struct.unpack("<d", field(event, 1)), struct.unpack("<f", field(value, 2))
        found.setdefault(field(value, 1).decode(), []).append((field(event, 2, 0), wall, number))
    return found


def test_a_profile_has_each_step_and_its_parts_as_events_beside_its_trace(tmp_path):
    model, began = TrainableModel(network()), time.time()
    for _ in range(2):
        with Profile(tmp_path):
            model.fit(list(loader()), epochs=2)
        statistics = json.loads((tmp_path / "pipeline_statistics.json").read_text())
        scalars, split = scalars_of(tmp_path / statistics["events"]), statistics["time_split"]
        assert sorted(scalars) == sorted(f"time_split/{name}_s" for name in ("step", "data_wait", "transfer", "forward", "backward", "optimizer"))
        assert all([step for step, _, _ in points] == list(range(split["steps"])) for points in scalars.values())
        assert [value for _, _, value in scalars["time_split/step_s"]] == pytest.approx(split["step_s"], rel=1e-6)  # Of float32.
        for name in ("data_wait", "transfer", "forward", "backward", "optimizer"):
            assert sum(value for _, _, value in scalars[f"time_split/{name}_s"]) == pytest.approx(split[f"{name}_s"], rel=1e-6)
        walls = [wall for _, wall, _ in scalars["time_split/step_s"]]
        assert walls == sorted(walls) and began - 1 < walls[0] and walls[-1] < time.time() + 1
    assert len(list(tmp_path.glob("events.out.tfevents.*"))) == 2  # One a profile; those that were there stay.


def test_the_example_of_a_fit_within_a_profile_has_a_history_a_trace_and_statistics(tmp_path):
    logdir, dataset = tmp_path / "runs" / "logdir", samples()
    theirs, plain = network(), network()
    torch.manual_seed(7)
    by_hand(theirs, torch.optim.AdamW(theirs.parameters(), lr=0.001, weight_decay=0.0005), DataLoader(dataset, batch_size=32, shuffle=True), 10)
    model = TrainableModel(plain)
    torch.manual_seed(7)

    with Profile(str(logdir)):
        history = model.fit(dataset, epochs=10)

    assert_same(plain, theirs)
    assert {name: len(values) for name, values in history.items()} == dict.fromkeys(
        ("loss", "seconds", "samples_per_second", "skipped_updates"), 10)
    assert history["loss"][-1] < history["loss"][0]
    statistics = json.loads((logdir / "pipeline_statistics.json").read_text())
    assert sorted(file.name for file in logdir.iterdir()) == sorted(["pipeline_statistics.json", "trace.json", statistics["events"]])
    names = {event.get("name") for event in json.loads((logdir / "trace.json").read_text())["traceEvents"]}
    assert {"step", "data_wait", "forward", "backward", "optimizer"} <= names
    split = statistics["time_split"]
    assert split["steps"] == 20 and 0 < split["data_wait_s"] < split["total_s"] and statistics["reason"] == ""
    assert statistics["dropped_events"] == 0


def test_a_fit_takes_loaders_and_tells_of_validation():
    inputs = torch.ones(1, 8)
    model = TrainableModel(network(), config=bare())
    history = model.fit(list(loader()), epochs=3, validation_data=samples(24))
    assert len(history["val_loss"]) == len(history["loss"]) == 3
    model.model.eval()
    assert torch.equal(model(inputs), model.model(inputs))
    assert len(model.fit(lambda: iter(loader()))["loss"]) == 10  # A function that gives batches; ten epochs by default.
    for given, told in (({"epochs": 0}, "epochs: wanted a whole number above 0, found 0"),
                        ({"batch_size": 0}, "batch_size: wanted a whole number above 0, found 0")):
        with pytest.raises(ValueError, match=told):
            model.fit(samples(), **given)


def test_a_block_that_raises_leaves_its_profile_behind(tmp_path):
    calls = []

    def criterion(outputs, targets):
        calls.append(1)
        if len(calls) == 6:
            raise KeyError("made up")
        return nn.functional.cross_entropy(outputs, targets)

    model = TrainableModel(network(), criterion=criterion)
    with pytest.raises(KeyError, match="made up"), Profile(tmp_path):
        model.fit(list(loader()), epochs=10)
    statistics = json.loads((tmp_path / "pipeline_statistics.json").read_text())
    assert 5 <= statistics["time_split"]["steps"] <= 6
    assert json.loads((tmp_path / "trace.json").read_text())["traceEvents"]
    with hr.Trace():  # The recording of the block is over.
        pass


def test_a_block_without_steps_says_so_and_a_second_recording_is_refused(tmp_path):
    with Profile(tmp_path):
        with pytest.raises(ValueError, match="a recording is running already"), Profile(tmp_path / "other"):
            pass
        trainer = OptimizedTrainer(network(), bare(enable_profiling=True))
    statistics = json.loads((tmp_path / "pipeline_statistics.json").read_text())
    assert statistics["time_split"] is None and statistics["reason"] and statistics["events"] is None
    assert not list(tmp_path.glob("events.out.tfevents.*"))
    with Profile(tmp_path):
        result = trainer.train_epoch(list(loader()), 1, 1)
    entry = trainer.get_performance_summary()["features"]["enable_profiling"]
    assert "profile" not in result and entry["status"] == "not applied" and "a recording is running already" in entry["reason"]
    assert json.loads((tmp_path / "pipeline_statistics.json").read_text())["time_split"]["steps"] == 4
    with pytest.raises(OSError, match="trace.json"):
        with Profile(tmp_path / "trace.json" / "below"):
            pass
