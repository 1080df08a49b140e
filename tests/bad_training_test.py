"""What cannot be trained, or not as it says, and has no other test: one clear error each, with model and optimizer as they were, or a
warning."""

import warnings

import pytest
from torch import nn
from torch.utils.data import DataLoader, IterableDataset

import headrace as hr
from python_trainer_test import Frozen, adamw, assert_same_state, batches, forward, plain_network

pytestmark = pytest.mark.engine

EARLY = ".*the loader ended after"


class Short:
    """Ends before its length says."""

    def __init__(self, given: int, length: int):
        self.given, self.length = given, length

    def __len__(self):
        return self.length

    def __iter__(self):
        return iter(batches(self.given))


@pytest.mark.parametrize("steps", [1, 2])
def test_a_loader_that_ends_early_is_told_with_both_numbers_and_every_batch_is_in_an_update(steps):
    model = plain_network()
    trainer = hr.Trainer(model, adamw(model), forward, gradient_accumulation_steps=steps)
    with pytest.warns(RuntimeWarning, match=r"the loader ended after 3 batches, and its len\(\) says 5; the epoch ends there"):
        results = trainer.fit(Short(3, 5), 2)
    assert [(result["epoch"], result["samples"]) for result in results] == [(1, 48), (2, 48)]
    assert (trainer.progress["optimizer_steps"], trainer.progress["window"]) == (6 if steps == 1 else 4, 0)


def test_the_warning_of_a_loader_that_ends_early_may_be_made_an_error():
    model = plain_network()
    trainer = hr.Trainer(model, adamw(model), forward)
    with warnings.catch_warnings():
        warnings.filterwarnings("error", message=EARLY)
        with pytest.raises(RuntimeWarning, match="the loader ended after 3 batches"):
            trainer.fit(Short(3, 5), 2)
        (result,) = trainer.fit(Short(4, 4), 1)  # The epoch that failed begins anew.
    assert (result["epoch"], result["samples"]) == (1, 64)


class Stream(IterableDataset):
    """Its length is an estimate."""

    def __len__(self):
        return 5

    def __iter__(self):
        return iter(batches(3))


@pytest.mark.parametrize("loader", [Stream(), DataLoader(Stream(), batch_size=None)], ids=["itself", "DataLoader"])
def test_a_length_that_is_an_estimate_is_no_promise(loader):
    model = plain_network()
    with warnings.catch_warnings():
        warnings.filterwarnings("error", message=EARLY)
        (result,) = hr.Trainer(model, adamw(model), forward).fit(loader, 1)
    assert result["samples"] == 48


@pytest.mark.parametrize("given, told", [("StepsLR", "StepsLR"), ({"name": "CosineAnnealing"}, "CosineAnnealing")])
def test_an_unknown_schedule_is_refused_with_the_list_of_those_there_are(given, told):
    model = plain_network()
    optimizer = adamw(model)
    frozen = Frozen(model, optimizer)
    with pytest.raises(hr.errors.InvalidArgumentError, match=r"lr_scheduler\.name must be ") as caught:
        hr.Trainer(model, optimizer, forward, lr_scheduler=given)
    assert all(words in str(caught.value) for words in (" StepLR | ", " CosineAnnealingLR | ", f'found "{told}"'))
    frozen.check()


def test_batch_norm_over_a_batch_of_one_is_torchs_error_and_changes_nothing():
    def state():  # Without num_batches_tracked, to which torch adds before it looks at the batch.
        return {name: tensor.clone() for name, tensor in model.state_dict().items() if tensor.is_floating_point()}

    model = nn.Sequential(nn.Linear(32, 16), nn.BatchNorm1d(16), nn.Linear(16, 10))
    optimizer = adamw(model)
    trainer = hr.Trainer(model, optimizer, forward)
    before, (images, labels) = state(), batches(1)[0]
    with pytest.raises(ValueError, match="Expected more than 1 value per channel when training"):
        trainer.step((images[:1], labels[:1]))
    assert_same_state(state(), before)
    assert not optimizer.state
    trainer.step((images, labels))
    assert trainer.progress["optimizer_steps"] == 1


def test_averages_of_a_frozen_model_are_refused_and_of_a_partly_frozen_one_are_not():
    model = plain_network()
    optimizer = adamw(model)
    model.requires_grad_(False)
    with pytest.raises(hr.errors.InvalidArgumentError, match="ema_decay: wanted a parameter that requires gradients, found none among 4"):
        hr.Trainer(model, optimizer, forward, ema_decay=0.9)
    model[2].requires_grad_(True)
    hr.Trainer(model, optimizer, forward, ema_decay=0.9).step(batches(1)[0])


@pytest.mark.parametrize("change, words", [
    (lambda model: nn.Sequential(*model, nn.Linear(10, 10)), r"c\.safetensors: has no (model|optimizer)/3\."),
    (lambda model: model[:1], r"c\.safetensors: holds (model|optimizer)/2\..*, which the model does not have"),
], ids=["more layers", "fewer layers"])
def test_a_checkpoint_of_another_architecture_is_refused_by_the_tensor_and_changes_nothing(change, words, tmp_path):
    saved = plain_network()
    trainer = hr.Trainer(saved, adamw(saved), forward)
    trainer.step(batches(1)[0])
    trainer.save(tmp_path / "c.safetensors")
    model = change(plain_network())
    optimizer = adamw(model)
    other = hr.Trainer(model, optimizer, forward)
    frozen = Frozen(model, optimizer)
    with pytest.raises(hr.errors.InvalidArgumentError, match=words):
        other.load(tmp_path / "c.safetensors")
    frozen.check()
    assert other.progress["optimizer_steps"] == 0
