"""hr.pad_last_batch, hr.bucket_shapes and hr.set_memory_format: few shapes, and their order of memory."""

import copy
import pickle
import re

import headrace as hr
import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


def numbers(samples: int, *shape: int) -> torch.Tensor:
    return torch.arange(samples * max(1, torch.Size(shape).numel()), dtype=torch.float32).reshape(samples, *shape)


# ---- The last batch ----


def test_a_smaller_batch_is_filled_with_its_own_samples_and_a_full_one_is_passed_on():
    loader = DataLoader(TensorDataset(numbers(10, 3), torch.arange(10)), batch_size=4)
    padded = hr.pad_last_batch(loader)
    assert len(padded) == 3 and padded.batch_size == 4 and padded.sampler is loader.sampler
    for _ in range(2):
        found = list(padded)
        assert [valid.tolist() for *_, valid in found] == [[True] * 4, [True] * 4, [True, True, False, False]]
        assert [labels.tolist() for _, labels, _ in found] == [[0, 1, 2, 3], [4, 5, 6, 7], [8, 9, 8, 9]]
        assert torch.equal(found[2][0], numbers(10, 3)[[8, 9, 8, 9]])
    assert padded.shapes == {(4,): 6}


@pytest.mark.parametrize("make, parts", [
    (lambda tensor: tensor, lambda given: (given[0], given[1])),
    (lambda tensor: (tensor, "a.jpg"), lambda given: (given[0], given[2])),
    (lambda tensor: [tensor], lambda given: (given[0], given[1])),
    (lambda tensor: {"image": tensor, "scale": 2.0}, lambda given: (given["image"], given["valid"]))],
    ids=["tensor", "tuple", "list", "dict"])
def test_batches_of_each_form_are_padded(make, parts):
    given = [make(numbers(3, 2)), make(numbers(2, 2))]
    whole, last = (parts(one) for one in hr.pad_last_batch(given))
    assert torch.equal(whole[0], numbers(3, 2)) and whole[1].all()
    assert torch.equal(last[0], numbers(2, 2)[[0, 1, 0]]) and last[1].tolist() == [True, True, False]


def test_a_data_set_below_the_batch_size_is_padded_to_it_and_a_larger_batch_stays():
    ((inputs, valid),) = hr.pad_last_batch(DataLoader(TensorDataset(numbers(3, 2)), batch_size=8))
    assert len(inputs) == 8 and valid.sum() == 3
    assert [len(one) for one, _ in hr.pad_last_batch([numbers(2, 1), numbers(5, 1)])] == [2, 5]
    assert list(hr.pad_last_batch([])) == []


@pytest.mark.parametrize("given, words", [
    ([["a", "b"]], "pad_last_batch: wanted a batch that is a tensor, or a tuple, list or dict of tensors, found list"),
    ([(numbers(3, 2), numbers(2, 2))], "one first dimension in common, found 2 and 3"),
    ([numbers(2, 1), numbers(0, 1)], "wanted a batch with samples, found one of 0"),
    ([numbers(0, 1), numbers(2, 1)], "wanted a batch with samples, found one of 0"),
    ([{"valid": numbers(2, 1)}], "wanted no 'valid' of its own")])
def test_a_batch_that_cannot_be_padded_is_named(given, words):
    with pytest.raises(hr.errors.InvalidArgumentError, match=re.escape(words)):
        list(hr.pad_last_batch(given))


@pytest.mark.engine
def test_a_trainer_over_padded_batches_has_the_weights_of_the_batches_as_they_are():
    def forward(model, batch):
        inputs, targets, *rest = batch
        losses = nn.functional.cross_entropy(model(inputs), targets, reduction="none")
        valid = rest[0].float() if rest else torch.ones(len(inputs))
        return (losses * valid).sum() / valid.sum(), {}, valid.sum()

    def trained(wrap):
        torch.manual_seed(1)
        model = nn.Linear(4, 3)
        data = TensorDataset(torch.randn(10, 4, generator=torch.Generator().manual_seed(2)), torch.arange(10) % 3)
        loader = DataLoader(data, batch_size=4, shuffle=True, generator=torch.Generator().manual_seed(3))
        trainer = hr.Trainer(model, torch.optim.SGD(model.parameters(), lr=0.1), forward, gradient_accumulation_steps=3)
        trainer.fit(wrap(loader), epochs=3)
        return model.state_dict()

    torch.testing.assert_close(trained(hr.pad_last_batch), trained(lambda loader: loader), rtol=1e-5, atol=1e-6)


# ---- Buckets ----


def test_lengths_are_rounded_up_and_the_mask_says_what_was_there():
    given = [(numbers(2, length), numbers(2, length), torch.arange(2)) for length in (3, 4, 5, 9, 17)]
    loader = hr.bucket_shapes(given, [8, 4], fill={1: -100})
    found = list(loader)
    assert [tokens.shape[1] for tokens, *_ in found] == [4, 4, 8, 16, 24] and loader.shapes == {(4,): 2, (8,): 1, (16,): 1, (24,): 1}
    assert {type(one) for one in found} == {tuple} and {type(one) for one in hr.bucket_shapes([[numbers(2, 3)]], [4])} == {list}
    for (tokens, targets, labels, mask), length in zip(found, (3, 4, 5, 9, 17)):
        assert mask.dtype == torch.bool and mask.shape == tokens.shape and labels.tolist() == [0, 1]
        assert torch.equal(tokens[mask].view(2, -1), numbers(2, length)) and (tokens[~mask] == 0).all()
        assert torch.equal(targets[mask].view(2, -1), numbers(2, length)) and (targets[~mask] == -100).all()


def test_images_are_rounded_along_both_axes_and_a_tensor_alone_is_a_batch():
    ((image, mask),) = hr.bucket_shapes([numbers(2, 3, 5, 7)], [8], axes=(2, 3), fill=-1)
    assert image.shape == (2, 3, 8, 8) and mask.shape == (2, 8, 8)
    assert torch.equal(image[:, :, :5, :7], numbers(2, 3, 5, 7)) and mask[:, :5, :7].all() and mask.sum() == 2 * 5 * 7
    assert (image[:, :, 5:] == -1).all() and (image[:, :, :, 7:] == -1).all()


def test_both_together_have_two_masks():
    given = [{"tokens": numbers(3, 5)}, {"tokens": numbers(2, 6)}]
    found = list(hr.pad_last_batch(hr.bucket_shapes(given, [8])))
    assert [tuple(one["tokens"].shape) for one in found] == [(3, 8), (3, 8)] and found[1]["valid"].tolist() == [True, True, False]
    assert torch.equal(found[1]["mask"].sum(1), torch.tensor([6, 6, 6]))


@pytest.mark.parametrize("make, words", [
    (lambda: hr.bucket_shapes([], []), "sizes: wanted whole numbers above 0, found []"),
    (lambda: hr.bucket_shapes([], ["a", 4]), "sizes: wanted whole numbers above 0, found ['a', 4]"),
    (lambda: hr.bucket_shapes([], [0, 4]), "sizes: wanted whole numbers above 0, found [0, 4]"),
    (lambda: hr.bucket_shapes([], [4], axes=0), "axes: wanted places of axes above 0, each once, found 0"),
    (lambda: list(hr.bucket_shapes([torch.arange(3)], [4])), "wanted a first tensor with axis 1, found one of shape (3,)")])
def test_buckets_that_cannot_be_are_refused(make, words):
    with pytest.raises(hr.errors.InvalidArgumentError, match=re.escape(words)):
        make()


# ---- Memory format ----


@pytest.mark.parametrize("name, layer, shape, order", [
    ("channels_last", nn.Conv2d(3, 8, 3), (2, 3, 9, 9), torch.channels_last),
    ("channels_last", nn.ConvTranspose2d(3, 8, 3), (2, 3, 9, 9), torch.channels_last),
    ("channels_last_3d", nn.Conv3d(3, 8, 3), (2, 3, 5, 9, 9), torch.channels_last_3d)])
def test_convolutions_and_their_inputs_change_their_order_and_no_value(name, layer, shape, order):
    seen = []

    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            self.layer = copy.deepcopy(layer)

        def forward(self, inputs, labels):
            seen.append((inputs.is_contiguous(memory_format=order), labels.is_contiguous()))
            return self.layer(inputs)

    model, inputs, labels = Model(), torch.randn(shape), torch.zeros(2, dtype=torch.long)
    wanted, weight = model(inputs, labels=labels), model.layer.weight
    wanted.sum().backward()
    values = weight.detach().clone()
    assert hr.set_memory_format(model, name) == {"requested": name, "applied": name, "reason": ""}
    assert model.layer.weight is weight and weight.is_contiguous(memory_format=order) and weight.grad.is_contiguous(memory_format=order)
    assert not weight.is_contiguous() and torch.equal(weight, values)
    torch.testing.assert_close(model(inputs, labels=labels), wanted, rtol=1e-4, atol=1e-5)
    assert seen[-1] == (True, True) and not seen[0][0]
    hr.set_memory_format(model, name)
    assert len(model._forward_pre_hooks) == 1
    hr.set_memory_format(model, "contiguous")
    assert weight.is_contiguous() and not model._forward_pre_hooks and not model._forward_pre_hooks_with_kwargs


def test_a_model_with_a_format_can_be_pickled():
    model = nn.Sequential(nn.Conv2d(3, 4, 3))
    hr.set_memory_format(model, "channels_last")
    other = pickle.loads(pickle.dumps(model))
    assert len(other._forward_pre_hooks) == 1 and other[0].weight.is_contiguous(memory_format=torch.channels_last)


def test_what_a_model_has_not_is_not_applied():
    model = nn.Sequential(nn.Conv2d(3, 4, 3))
    told = hr.set_memory_format(model, "channels_last_3d")
    assert told == {"requested": "channels_last_3d", "applied": "preserve",
                    "reason": "the model has no 3-d convolution whose weights could be channels-last"}
    assert hr.set_memory_format(model, "preserve")["applied"] == "preserve" and model[0].weight.is_contiguous()
    assert not model._forward_pre_hooks
    with pytest.raises(hr.errors.InvalidArgumentError, match="wanted channels_last | channels_last_3d".replace("|", r"\|")):
        hr.set_memory_format(model, "nhwc")
    with pytest.raises(hr.errors.InvalidArgumentError, match="model: wanted a torch.nn.Module, found list"):
        hr.set_memory_format([], "preserve")
