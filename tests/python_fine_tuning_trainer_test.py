"""What headrace.Trainer has for fine-tuning: moving averages, and a fit() that writes checkpoints, chooses the best epoch and ends
early."""

import os
import random
import signal
import time

import numpy
import pytest
import torch
from torch import nn

import headrace as hr
from python_trainer_test import (Noisy, adamw, assert_same_optimizer, assert_same_state, batches, forward, network, place_of,
                                 plain_loop, plain_network, seed_everything)

pytestmark = pytest.mark.engine


def with_accuracy(model, batch):
    logits = model(batch[0])
    return nn.functional.cross_entropy(logits, batch[1]), hr.accuracy(logits, batch[1])


def copies(tensors):
    return {name: tensor.clone() for name, tensor in tensors.items()}


def averaging(**options):
    """A model after ten steps, whose averages lie behind its weights."""
    model = network()
    trainer = hr.Trainer(model, adamw(model), with_accuracy, ema_decay=0.9, **options)
    for batch in batches(10):
        trainer.step(batch)
    return model, trainer


# ---- Averages ----

def moved(decay, warmup):
    def move(averages, weights, updates):
        share = min(decay, (1 + int(updates)) / (10 + int(updates))) if warmup else decay
        for average, weight in zip(averages, weights):
            average.lerp_(weight, 1 - share) if average.is_floating_point() else average.copy_(weight)

    return move


@pytest.mark.parametrize("warmup", [True, False])
def test_averages_are_those_of_torchs_averaged_model(warmup):
    data = batches(20)
    theirs, ours = network(), network()
    optimizer = adamw(theirs)
    averaged = torch.optim.swa_utils.AveragedModel(theirs, multi_avg_fn=moved(0.5, warmup), use_buffers=True)
    averaged.n_averaged.fill_(1)  # Or its first update would copy the weights and average nothing.
    torch.manual_seed(7)
    for batch in data:
        plain_loop(theirs, optimizer, [batch])
        averaged.update_parameters(theirs)
    trainer = hr.Trainer(ours, adamw(ours), forward, ema_decay=0.5, ema_warmup=warmup)
    torch.manual_seed(7)
    for batch in data:
        trainer.step(batch)
    assert_same_state(trainer.averages, averaged.module.state_dict(), tolerance=1e-6)
    assert_same_state(ours.state_dict(), theirs.state_dict())
    assert (trainer.averages["0.weight"] - ours[0].weight).abs().max() > 1e-3


def test_an_evaluation_goes_by_the_averages_unless_the_weights_are_asked_for():
    model, trainer = averaging()
    weights, averages, unseen = copies(model.state_dict()), copies(trainer.averages), batches(3, seed=8)
    other = network()
    alone = hr.Trainer(other, adamw(other), with_accuracy)
    for values, found in ((averages, trainer.evaluate(unseen)), (weights, trainer.evaluate(unseen, averages=False))):
        other.load_state_dict(values)
        assert found == alone.evaluate(unseen)
    assert trainer.evaluate(unseen) != trainer.evaluate(unseen, averages=False)
    assert_same_state(model.state_dict(), weights)
    assert_same_state(trainer.averages, averages)
    result = trainer.fit(batches(2), 1, evaluate=unseen)[0]
    assert result["evaluation"] == trainer.evaluate(unseen) != trainer.evaluate(unseen, averages=False)


def test_a_block_holds_the_averages_and_gives_the_weights_back_also_after_an_exception():
    model, trainer = averaging()
    weights, averages, parameters = copies(model.state_dict()), copies(trainer.averages), list(model.parameters())
    with pytest.raises(KeyError, match="inside"):
        with trainer.with_averages():
            assert_same_state(model.state_dict(), averages)
            assert all(one is other for one, other in zip(model.parameters(), parameters))
            with torch.no_grad():
                model[0].weight.zero_()  # What is done to the model there is undone, too.
            raise KeyError("inside")
    assert_same_state(model.state_dict(), weights)
    assert_same_state(trainer.averages, averages)
    trainer.step(batches(1)[0])
    assert trainer.progress["optimizer_steps"] == 11


def test_within_the_block_the_trainer_evaluates_and_does_nothing_else(tmp_path):
    model, trainer = averaging()
    trainer.save(tmp_path / "c.safetensors")
    weights, evaluation = copies(model.state_dict()), trainer.evaluate(batches(2))
    calls = [lambda: trainer.step(batches(1)[0]), trainer.finish_window, lambda: trainer.fit(batches(1), 1),
             lambda: trainer.save(tmp_path / "d.safetensors"), lambda: trainer.load(tmp_path / "c.safetensors"),
             lambda: trainer.evaluate(batches(2), averages=False), lambda: trainer.with_averages().__enter__()]
    with trainer.with_averages():
        for call in calls:
            with pytest.raises(hr.errors.InvalidArgumentError, match=r"wanted it outside the block of with_averages\(\)"):
                call()
        assert trainer.evaluate(batches(2)) == evaluation
    assert_same_state(model.state_dict(), weights)
    assert not (tmp_path / "d.safetensors").exists()


def test_without_averages_there_are_none_and_a_block_leaves_the_model_as_it_is_and_refuses_nothing(tmp_path):
    model = plain_network()
    trainer = hr.Trainer(model, adamw(model), forward)
    trainer.step(batches(1)[0])
    weights = copies(model.state_dict())
    assert trainer.averages == {}
    with trainer.with_averages():
        assert_same_state(model.state_dict(), weights)
        assert trainer.evaluate(batches(2)) == trainer.evaluate(batches(2), averages=False)
        trainer.save(tmp_path / "c.safetensors")
        trainer.step(batches(1)[0])
    assert trainer.progress["optimizer_steps"] == 2
    assert trainer.load(tmp_path / "c.safetensors")["optimizer_steps"] == 1
    assert_same_state(model.state_dict(), weights)


def test_keywords_of_averages_are_the_trainers_and_those_of_checkpoints_are_of_fit():
    model = plain_network()
    options = hr.Trainer(model, adamw(model), forward, ema_decay=0.99, ema_warmup=False).options
    assert options["ema_decay"] == 0.99 and options["ema_warmup"] is False
    for key in ("checkpoint_every_s", "keep_checkpoints", "async_checkpoints", "early_stopping_patience"):
        assert key not in options
        with pytest.raises(hr.errors.InvalidArgumentError, match=f"unknown key {key}"):
            hr.Trainer(model, adamw(model), forward, **{key: 1})
    with pytest.raises(hr.errors.InvalidArgumentError, match="ema_decay"):
        hr.Trainer(model, adamw(model), forward, ema_decay=1.0)


def test_accuracies_of_forward_become_means_over_the_samples():
    model = network()
    data = [*batches(3), *batches(1, seed=9, size=4)]
    found = hr.Trainer(model, adamw(model), with_accuracy).evaluate(data)
    with torch.no_grad():
        expected = hr.accuracy(model.eval()(torch.cat([images for images, _ in data])), torch.cat([labels for _, labels in data]))
    assert found.keys() == {"samples", "loss", "top1", "top5"}
    for name, share in expected.items():
        assert found[name] == pytest.approx(share.item(), rel=1e-6)


# ---- Checkpoints ----

class Stopped(Exception):
    pass


class Job:
    """A run of three epochs of four batches. The `stop_at`-th call of `stop_in` ("step", "evaluation", of which there are two
    batches an epoch, or "epoch") raises Stopped."""

    def __init__(self, kind="plain", seed=1, stop_in="", stop_at=0):
        self.model, self.loader = network(seed), place_of(kind)
        self.optimizer = adamw(self.model)
        self.trainer = hr.Trainer(self.model, self.optimizer, self.forward, ema_decay=0.9, max_grad_norm=1.0,
                                  lr_scheduler={"name": "CosineAnnealingLR", "warmup_steps": 3})
        self.calls_left = {stop_in: stop_at}

    def count(self, place):
        self.calls_left[place] = self.calls_left.get(place, 0) - 1
        if self.calls_left[place] == 0:
            raise Stopped(place)

    def forward(self, model, batch):
        if not model.training:
            self.count("evaluation")
        return with_accuracy(model, batch)

    def fit(self, **options):
        images, labels = batches(1, seed=8, size=32)[0]
        unseen = torch.utils.data.DataLoader(torch.utils.data.TensorDataset(images, labels), batch_size=16)  # Iterating over it draws a seed.
        return self.trainer.fit(self.loader, 3, evaluate=unseen, on_step=lambda loss: self.count("step"),
                                on_epoch=lambda result: self.count("epoch"), monitor="top1", **options)


def checkpoints_in(folder):
    return sorted(name for name in os.listdir(folder) if name.startswith("checkpoint-"))


def epochs_of(results):
    return [result["epoch"] for result in results]


def figures(results):
    return [(result["epoch"], result["loss"], result["evaluation"]) for result in results]


def drawn():
    return torch.rand(1), random.random(), numpy.random.rand()


@pytest.mark.parametrize("beside", [True, False], ids=["beside training", "in its time"])
@pytest.mark.parametrize("kind", ["plain", "generator of its own"])
@pytest.mark.parametrize("stop_in, stop_at, every_s, stands_after, epochs", [
    ("step", 6, 1e-6, 5, [2, 3]), ("step", 6, 0.0, 4, [1, 2, 3]), ("evaluation", 3, 0.0, 8, [2, 3]), ("epoch", 2, 0.0, 8, [2, 3]),
    ("epoch", 3, 0.0, 12, [3]),
], ids=["within an epoch", "before an epoch's end", "in an evaluation", "in on_epoch", "in the last on_epoch"])
def test_a_run_that_was_stopped_goes_on_to_the_same_bits(tmp_path, stop_in, stop_at, every_s, stands_after, epochs, kind, beside):
    whole = Job(kind)
    seed_everything(7)
    results = whole.fit()
    expected = drawn()

    stopped = Job(kind, stop_in=stop_in, stop_at=stop_at)
    seed_everything(7)
    with pytest.raises(Stopped):
        stopped.fit(checkpoints=tmp_path, checkpoint_every_s=every_s, async_checkpoints=beside)

    again = Job(kind, seed=99)
    seed_everything(1234)
    assert again.trainer.load(tmp_path)["optimizer_steps"] == stands_after
    rest = again.fit(checkpoints=tmp_path, checkpoint_every_s=every_s, async_checkpoints=beside)
    assert drawn() == expected
    assert figures(rest) == figures(results)[-len(rest):] and [result["epoch"] for result in rest] == epochs
    assert_same_state(again.model.state_dict(), whole.model.state_dict())
    assert_same_state(again.trainer.averages, whole.trainer.averages)
    assert_same_optimizer(again.optimizer, whole.optimizer)


def told_of(result):
    evaluation = ", ".join(f"{name} {value:.4f}" for name, value in result["evaluation"].items() if name != "samples")
    return (f"headrace: epoch {result['epoch']} of 3: loss {result['loss']:.4f}, {result['samples_per_second']:.1f} samples/s; "
            f"evaluation: {evaluation}")


def test_progress_is_told_by_epoch_where_it_is_asked_for_and_changes_no_bit(capsys):
    silent, telling = Job(), Job(seed=1)
    seed_everything(7)
    silent.fit()
    assert capsys.readouterr().err == ""
    seed_everything(7)
    results = telling.fit(progress=True)
    found = capsys.readouterr()
    assert found.err.splitlines() == [told_of(result) for result in results] and found.out == ""
    assert_same_state(telling.model.state_dict(), silent.model.state_dict())


class Shown:
    """What fit() asks of a display."""

    def __init__(self, epochs):
        self.calls, Shown.made = [("epochs", epochs)], self

    def begin_epoch(self, *given):
        self.calls.append(("begin", *given))

    def is_due(self):
        return True

    def show(self, batches, loss, mean):
        self.calls.append(("step", batches, float(loss), mean))

    def end_epoch(self, result):
        self.calls.append(("end", result["loss"]))

    def close(self):
        self.calls.append(("close",))


def test_progress_has_each_steps_loss_and_the_epochs_mean_and_ends_with_an_exception(monkeypatch):
    monkeypatch.setattr("headrace._progress.TrainingProgress", Shown)
    losses = []

    def stop(loss):
        losses.append(float(loss))
        if len(losses) == 5:
            raise Stopped

    model = plain_network()
    with pytest.raises(Stopped):
        hr.Trainer(model, adamw(model), forward).fit(batches(3), 4, on_step=stop, progress=True)
    means = [sum(losses[begin:end]) / (end - begin) for begin, end in ((0, 1), (0, 2), (0, 3), (3, 4), (3, 5))]
    steps = [("step", batch, loss, pytest.approx(mean)) for batch, loss, mean in zip((1, 2, 3, 1, 2), losses, means)]
    assert Shown.made.calls == [("epochs", 4), ("begin", 1, 3, 0), *steps[:3], ("end", pytest.approx(means[2])), ("begin", 2, 3, 0),
                                *steps[3:], ("close",)]


def test_a_run_that_is_over_stays_so_when_it_is_loaded(tmp_path):
    job = Job()
    job.fit(checkpoints=tmp_path)
    again = Job(seed=99)
    assert again.trainer.load(tmp_path) == job.trainer.progress
    assert again.fit(checkpoints=tmp_path) == []
    assert_same_state(again.model.state_dict(), job.model.state_dict())


@pytest.mark.parametrize("train", [lambda trainer: trainer.step(batches(1)[0]), lambda trainer: trainer.finish_window()],
                         ids=["step", "finish_window"])
def test_an_epoch_that_was_trained_on_by_hand_is_not_evaluated_any_more(tmp_path, train):
    def stop(result):
        raise Stopped

    with pytest.raises(Stopped):
        planted([0.1, 0.5]).fit(batches(2), 2, evaluate=batches(1), on_epoch=stop, checkpoints=tmp_path)
    again = planted([0.1, 0.5])
    assert again.load(tmp_path)["epoch"] == 1
    train(again)
    assert epochs_of(again.fit(batches(2), 2, evaluate=batches(1), checkpoints=tmp_path)) == [2]


def test_an_epoch_saved_in_on_epoch_is_not_evaluated_again(tmp_path):
    model = plain_network()
    trainer = hr.Trainer(model, adamw(model), forward)
    trainer.fit(batches(2), 2, evaluate=batches(1), checkpoints=tmp_path / "run",
                on_epoch=lambda result: trainer.save(tmp_path / f"{result['epoch']}.safetensors"))
    assert trainer.load(tmp_path / "1.safetensors")["epoch"] == 1
    assert [result["epoch"] for result in trainer.fit(batches(2), 2, evaluate=batches(1))] == [2]


def test_ctrl_c_leaves_every_checkpoint_on_the_disk(ctrl_c, tmp_path):
    model = plain_network()
    trainer = hr.Trainer(model, adamw(model), forward)
    steps = []

    def interrupt(loss):
        steps.append(loss)
        if len(steps) == 3:
            os.kill(os.getpid(), signal.SIGINT)

    with pytest.raises(KeyboardInterrupt):
        trainer.fit(batches(100), 1, on_step=interrupt, checkpoints=tmp_path, checkpoint_every_s=1e-6)
    assert checkpoints_in(tmp_path) == ["checkpoint-000000001.safetensors", "checkpoint-000000002.safetensors"]


def test_no_checkpoint_is_written_within_a_window(tmp_path):
    model = plain_network()
    trainer = hr.Trainer(model, adamw(model), forward, gradient_accumulation_steps=2)
    stands = []

    def look(loss):
        stands.append(checkpoints_in(tmp_path))

    trainer.fit(batches(5), 1, on_step=look, checkpoints=tmp_path, checkpoint_every_s=1e-6, keep_checkpoints=9,
                async_checkpoints=False)
    assert [len(names) for names in stands] == [0, 0, 1, 1, 2]
    assert checkpoints_in(tmp_path) == [f"checkpoint-00000000{steps}.safetensors" for steps in (1, 2, 3)]


def planted(values):
    """A trainer whose evaluations find these values as "figure", epoch by epoch."""
    model = plain_network()

    def looking(model, batch):
        return forward(model, batch), {"figure": torch.tensor(values[trainer.progress["epoch"] - 1])}

    return (trainer := hr.Trainer(model, adamw(model), looking, ema_decay=0.9))


@pytest.mark.parametrize("monitor, best", [("figure", 2), ("-figure", 1), ("loss", 5)])
def test_a_folder_holds_the_newest_checkpoints_and_the_best_with_its_averages(tmp_path, monitor, best):
    trainer = planted([0.1, 0.5, 0.3, 0.5, 0.4])
    seen = []
    results = trainer.fit(batches(2), 5, evaluate=batches(1), on_epoch=lambda result: seen.append(copies(trainer.averages)),
                          checkpoints=tmp_path / "made" / "here", keep_checkpoints=3, monitor=monitor)
    assert min(results, key=lambda result: result["evaluation"]["loss"])["epoch"] == 5
    folder = tmp_path / "made" / "here"
    assert checkpoints_in(folder) == ["checkpoint-000000006.safetensors", "checkpoint-000000008.safetensors",
                                      "checkpoint-000000010.safetensors", "checkpoint-best.safetensors"]
    again = planted([0.0])
    assert again.load(folder / "checkpoint-best.safetensors")["epoch"] == best
    assert_same_state(again.averages, seen[best - 1])


def test_a_figure_that_is_not_finite_is_never_the_best(tmp_path):
    planted([float("nan"), float("inf")]).fit(batches(2), 2, evaluate=batches(1), checkpoints=tmp_path, monitor="figure")
    assert "checkpoint-best.safetensors" not in os.listdir(tmp_path)


def test_as_many_right_answers_are_not_better_for_falling_into_another_batch(tmp_path):
    """Of 600 samples in batches of 32 and a last one of 24: eight right ones are 8 / 32 of a batch, or 8 / 24, which is rounded up."""
    model, right_in = plain_network(), [0, 18, 0]
    labels = torch.zeros(600, dtype=torch.long)

    def planting(model, batch):
        inputs, labels, places = batch
        if model.training:
            return forward(model, (inputs, labels))
        begin = 32 * right_in[trainer.progress["epoch"] - 1]
        logits = torch.zeros(len(labels), 10)
        logits[torch.arange(len(labels)), torch.where((places >= begin) & (places < begin + 8), labels, labels + 1)] = 1.0
        return forward(model, (inputs, labels)), hr.accuracy(logits, labels)

    inputs, places = torch.zeros(600, 32), torch.arange(600)
    unseen = list(zip(inputs.split(32), labels.split(32), places.split(32)))
    trainer = hr.Trainer(model, adamw(model), planting)
    results = trainer.fit(unseen[:2], 3, evaluate=unseen, monitor="top1", checkpoints=tmp_path, early_stopping_patience=1)
    assert [result["epoch"] for result in results] == [1, 2] and results[1]["stopped_early"]
    first, second = (result["evaluation"]["top1"] for result in results)
    assert first < second == pytest.approx(first, rel=1e-6)
    assert trainer.load(tmp_path / "checkpoint-best.safetensors")["epoch"] == 1


VALUES = [0.1, 0.5, 0.4, 0.5, 0.3, 0.9, 0.2, 0.1]


def test_a_run_ends_after_epochs_without_a_better_figure_and_stays_ended(tmp_path):
    options = {"evaluate": batches(1), "monitor": "figure", "checkpoints": tmp_path}
    trainer = planted(VALUES)
    results = trainer.fit(batches(2), 8, early_stopping_patience=3, **options)
    assert [result["epoch"] for result in results if "stopped_early" in result] == [5] == [len(results)]
    assert trainer.fit(batches(2), 8, early_stopping_patience=3, **options) == []
    again = planted(VALUES)
    assert again.load(tmp_path)["epoch"] == 5
    assert again.fit(batches(2), 8, early_stopping_patience=3, **options) == []
    assert_same_state(again.averages, trainer.averages)
    rest = again.fit(batches(2), 8, early_stopping_patience=4, **options)
    assert [result["epoch"] for result in rest] == [6, 7, 8]


def test_a_patience_that_runs_out_in_the_last_epoch_ends_nothing_early():
    results = planted(VALUES).fit(batches(2), 5, evaluate=batches(1), monitor="figure", early_stopping_patience=3)
    assert [(result["epoch"], "stopped_early" in result) for result in results] == [(epoch, False) for epoch in range(1, 6)]


def test_a_run_that_goes_on_knows_the_best_and_how_long_it_waited(tmp_path):
    def stop(result):
        if result["epoch"] == 4:
            raise Stopped

    options = {"evaluate": batches(1), "monitor": "figure", "checkpoints": tmp_path, "early_stopping_patience": 3}
    with pytest.raises(Stopped):
        planted(VALUES).fit(batches(2), 8, on_epoch=stop, **options)
    again = planted(VALUES)
    again.load(tmp_path)
    rest = again.fit(batches(2), 8, **options)
    assert [(result["epoch"], "stopped_early" in result) for result in rest] == [(4, False), (5, True)]


def test_an_unknown_monitor_is_refused_with_the_figures_there_are_and_the_epoch_is_not_lost(tmp_path):
    job = Job()
    for monitor, found in (("top_1", "top_1"), ("-samples", "samples")):
        with pytest.raises(hr.errors.InvalidArgumentError, match=rf"monitor: wanted loss \| top1 \| top5, found {found}$"):
            job.trainer.fit(job.loader, 2, evaluate=batches(2), monitor=monitor, checkpoints=tmp_path)
    again = Job(seed=99)
    assert again.trainer.load(tmp_path)["epoch"] == 1
    results = again.trainer.fit(again.loader, 2, evaluate=batches(2), monitor="top1", checkpoints=tmp_path)
    assert [result["epoch"] for result in results] == [1, 2]


@pytest.mark.parametrize("stop_in, stop_at, every_s", [("step", 3, 1e-6), ("evaluation", 1, 0.0)])
def test_another_monitor_needs_another_folder_also_before_the_first_evaluation(tmp_path, stop_in, stop_at, every_s):
    with pytest.raises(Stopped):
        Job(stop_in=stop_in, stop_at=stop_at).fit(checkpoints=tmp_path / "run", checkpoint_every_s=every_s)
    assert "checkpoint-best.safetensors" not in os.listdir(tmp_path / "run")
    again = Job(seed=99)
    again.trainer.load(tmp_path / "run")
    with pytest.raises(hr.errors.InvalidArgumentError, match="monitor: wanted top1, by which the run in .*run goes, found loss: another"):
        again.trainer.fit(again.loader, 3, evaluate=batches(1), checkpoints=tmp_path / "run")
    assert epochs_of(again.trainer.fit(again.loader, 3, evaluate=batches(1), checkpoints=tmp_path / "other")) == [1, 2, 3]


@pytest.mark.parametrize("options, words", [
    ({"early_stopping_patience": 3}, "early_stopping_patience=3: wanted evaluate=.* found none"),
    ({"monitor": "top1"}, 'monitor="top1": wanted evaluate=.* found none'),
    ({"keep_checkpoints": 0}, "keep_checkpoints"),
    ({"checkpoint_every_s": -1.0}, "checkpoint_every_s"),
    ({"async_checkpoints": "no"}, "async_checkpoints"),
    ({"early_stopping_patience": 1.5}, "early_stopping_patience"),
], ids=["patience", "monitor", "none kept", "a time before", "no bool", "half an epoch"])
def test_settings_that_make_no_sense_are_refused_before_the_first_step(tmp_path, options, words):
    model = plain_network()
    trainer = hr.Trainer(model, adamw(model), forward)
    with pytest.raises(hr.errors.InvalidArgumentError, match=words):
        trainer.fit(batches(2), 1, checkpoints=tmp_path, **options)
    assert trainer.progress["optimizer_steps"] == 0


def test_a_folder_that_cannot_be_made_is_refused_before_the_first_step(tmp_path):
    (tmp_path / "file").write_text("")
    job = Job()
    for folder in (tmp_path / "file", tmp_path / "file" / "below"):
        with pytest.raises(hr.errors.IoError, match=f"cannot make {folder}: "):
            job.fit(checkpoints=folder)
    assert job.trainer.progress["optimizer_steps"] == 0


def test_a_folder_of_an_earlier_run_is_taken_by_whoever_loaded_it(tmp_path):
    Job().fit(checkpoints=tmp_path)
    before = checkpoints_in(tmp_path)
    job = Job()
    with pytest.raises(hr.errors.InvalidArgumentError, match=r"holds checkpoint-.*\.safetensors of an earlier run"):
        job.fit(checkpoints=tmp_path)
    assert job.trainer.progress["optimizer_steps"] == 0 and checkpoints_in(tmp_path) == before
    job.trainer.load(tmp_path / before[1])
    with pytest.raises(hr.errors.InvalidArgumentError, match="monitor: wanted top1, by which the run in .* goes, found loss"):
        job.trainer.fit(job.loader, 4, evaluate=batches(1), checkpoints=tmp_path)
    assert epochs_of(job.trainer.fit(job.loader, 4, evaluate=batches(1), monitor="top1", checkpoints=tmp_path)) == [4]


def test_a_folder_with_checkpoints_of_more_updates_than_the_trainers_is_refused(tmp_path):
    Job().fit(checkpoints=tmp_path / "run")
    before = checkpoints_in(tmp_path / "run")
    job = Job()
    job.trainer.load(tmp_path / "run" / before[0])
    with pytest.raises(hr.errors.InvalidArgumentError, match="wanted no checkpoint of more than the 8 updates of this .* found one of 12"):
        job.fit(checkpoints=tmp_path / "run")
    assert job.trainer.progress["optimizer_steps"] == 8 and checkpoints_in(tmp_path / "run") == before
    assert epochs_of(job.fit(checkpoints=tmp_path / "other")) == [2, 3]


def test_a_folder_in_which_a_run_is_under_way_is_refused(tmp_path):
    refused = []

    def start_another(result):
        other = Job()
        with pytest.raises(hr.errors.IoError, match=f"{tmp_path / 'lock'} is in use by process {os.getpid()}"):
            other.fit(checkpoints=tmp_path)
        refused.append(other.trainer.progress["optimizer_steps"])

    model = plain_network()
    trainer = hr.Trainer(model, adamw(model), forward)
    trainer.fit(batches(2), 2, on_epoch=start_another, checkpoints=tmp_path)
    assert refused == [0, 0]
    other = Job()
    with pytest.raises(hr.errors.InvalidArgumentError, match="of an earlier run"):  # The lock is free.
        other.fit(checkpoints=tmp_path)


def test_worker_processes_that_outlive_fit_do_not_hold_its_folder(tmp_path):
    model = plain_network()
    trainer = hr.Trainer(model, adamw(model), forward)
    loader = torch.utils.data.DataLoader(Noisy(), batch_size=16, num_workers=1, persistent_workers=True, multiprocessing_context="fork")
    for epoch in (1, 2):
        assert epochs_of(trainer.fit(loader, epoch, checkpoints=tmp_path)) == [epoch]


def test_what_a_killed_write_left_in_the_folder_is_removed(tmp_path):
    (tmp_path / ".123-0.headrace-tmp").write_bytes(b"half")
    Job().fit(checkpoints=tmp_path)
    assert ".123-0.headrace-tmp" not in os.listdir(tmp_path)


def test_loading_a_folder_without_a_checkpoint_is_file_not_found(tmp_path):
    job = Job()
    with pytest.raises(FileNotFoundError, match=f"wanted a folder with a checkpoint, found none in {tmp_path}"):
        job.trainer.load(tmp_path)
    with pytest.raises(FileNotFoundError):
        job.trainer.load(tmp_path / "none")


def test_a_damaged_checkpoint_is_left_out_with_a_warning(tmp_path):
    model = plain_network()
    hr.Trainer(model, adamw(model), forward).fit(batches(2), 3, checkpoints=tmp_path)
    newest = tmp_path / "checkpoint-000000006.safetensors"
    newest.write_bytes(newest.read_bytes()[:-100])
    trainer = hr.Trainer(model, adamw(model), forward)
    with pytest.warns(RuntimeWarning, match=f"{newest.name} was left out"):
        assert trainer.load(tmp_path)["optimizer_steps"] == 4


def spoiling(folder):
    """Puts a file in the place of the folder, which holds its lock alone until the first epoch's end."""
    def spoil(loss):
        if folder.is_dir():
            (folder / "lock").unlink()
            folder.rmdir()
            folder.write_text("")

    return spoil


@pytest.mark.parametrize("beside", [True, False])
def test_a_write_that_fails_ends_fit_with_its_error(tmp_path, beside):
    model = plain_network()
    with pytest.raises(hr.errors.IoError, match="run"):
        hr.Trainer(model, adamw(model), forward).fit(batches(2), 1, on_step=spoiling(tmp_path / "run"), checkpoints=tmp_path / "run",
                                                     checkpoint_every_s=0, async_checkpoints=beside)


def test_a_write_that_fails_beside_training_is_raised_by_a_step(tmp_path):
    model, passes = plain_network(), []

    def loader():
        passes.append(None)
        if len(passes) == 1:
            yield from batches(1)
            return
        for batch in batches(1) * 3000:  # Half a minute, for a thread to fail in.
            time.sleep(0.01)
            yield batch

    trainer = hr.Trainer(model, adamw(model), forward)
    with pytest.raises(hr.errors.IoError, match="run"):
        trainer.fit(loader, 2, on_step=spoiling(tmp_path / "run"), checkpoints=tmp_path / "run", checkpoint_every_s=0)
    assert trainer.progress["epoch"] == 1


def test_an_epoch_whose_best_checkpoint_could_not_be_written_is_evaluated_again(tmp_path):
    best = tmp_path / "checkpoint-best.safetensors"

    def block(loss):
        if best.is_file():
            best.unlink()
            best.mkdir()

    trainer = planted([0.1, 0.5, 0.3])
    options = {"evaluate": batches(1), "monitor": "figure", "checkpoints": tmp_path, "async_checkpoints": False}
    with pytest.raises(hr.errors.IoError, match=best.name):
        trainer.fit(batches(2), 3, on_step=block, **options)
    best.rmdir()
    assert epochs_of(trainer.fit(batches(2), 3, **options)) == [2, 3]
    assert planted([0.0]).load(best)["epoch"] == 2


def test_a_write_that_fails_beside_an_exception_is_a_warning(tmp_path):
    def stop(result):
        raise Stopped

    model = plain_network()
    with pytest.warns(RuntimeWarning, match="the last checkpoint was not written: .*run"), pytest.raises(Stopped):
        hr.Trainer(model, adamw(model), forward).fit(batches(2), 1, on_step=spoiling(tmp_path / "run"), on_epoch=stop,
                                                     checkpoints=tmp_path / "run", checkpoint_every_s=0)
