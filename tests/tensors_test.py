"""What the native half reads of tensors, compared with Python's own numbers of them; and hr.tune's figures, with torch's."""

import copy
import math
import struct

import headrace as hr
import pytest
import torch
from headrace._subject import Subject
from headrace._tensors import dense_parts, flat, flat_bytes, state_difference
from torch import nn

pytestmark = pytest.mark.usefixtures("one_thread")

FORMATS = {torch.float32: "f", torch.float64: "d", torch.float16: "e", torch.int64: "q", torch.uint8: "B", torch.bool: "?"}


def numbers(value):
    """Of nested lists, in row-major order."""
    return [number for item in value for number in numbers(item)] if isinstance(value, list) else [value]


def packed(tensor):
    """Its bytes, in row-major order."""
    values = numbers(tensor.tolist())
    if tensor.dtype is torch.bfloat16:  # The upper half of a float32.
        return b"".join(struct.pack("<f", value)[2:] for value in values)
    return struct.pack(f"<{len(values)}{FORMATS[tensor.dtype]}", *values)


torch.manual_seed(7)
IMAGES = torch.randn(2, 3, 4, 5)
TENSORS = {
    "in C order": IMAGES,
    "channels-last": IMAGES.to(memory_format=torch.channels_last),
    "transposed": IMAGES[0, 0].t(),
    "every other": torch.arange(9.0)[::2],
    "a part": IMAGES[1, :, 1:3],
    "one number of many": torch.arange(5.0)[::5],
    "repeated": torch.tensor([1.5, 2.5]).expand(3, 2),
    "no dimension": torch.tensor(-2.5),
    "empty": torch.empty(0, 3),
    "negated view": torch.tensor([1 + 2j, 3 - 4j]).conj().imag,
    "float64": torch.tensor([1 / 3, -0.0], dtype=torch.float64),
    "float16": IMAGES.half(),
    "bfloat16": IMAGES.bfloat16().to(memory_format=torch.channels_last),
    "int64": torch.tensor([[-1, 2**40]]),
    "uint8": torch.tensor([0, 255], dtype=torch.uint8),
    "bool": torch.tensor([[True, False], [False, False]]).t(),
}


@pytest.mark.parametrize("tensor", TENSORS.values(), ids=TENSORS)
def test_a_flat_tensor_has_the_numbers_and_bytes_in_row_major_order(tensor):
    values, content = flat(tensor, torch.float32), flat_bytes(tensor)
    assert values.dtype is torch.float32 and content.dtype is torch.uint8
    assert values.is_contiguous() and content.is_contiguous() and values.dim() == content.dim() == 1
    assert values.tolist() == numbers(tensor.to(torch.float32).tolist())
    assert flat(tensor, torch.float64).tolist() == numbers(tensor.to(torch.float64).tolist())
    assert bytes(content.tolist()) == packed(tensor)


def test_what_lies_flat_already_is_not_copied_and_knows_no_graph():
    parameter = nn.Parameter(torch.randn(3, 4))
    for found in (flat(parameter, torch.float32), flat_bytes(parameter), flat(parameter * 2, torch.float32)):
        assert not found.requires_grad
    assert flat(parameter, torch.float32).data_ptr() == flat_bytes(parameter).data_ptr() == parameter.data_ptr()


def test_a_sparse_tensor_is_read_by_what_it_is_made_of():
    dense = torch.tensor([[0.0, 2.0, 0.0], [3.0, 0.0, 0.0]])
    indices, values = dense_parts(dense.to_sparse())
    assert indices.tolist() == [[0, 1], [1, 0]] and values.tolist() == [2.0, 3.0]
    assert [part.tolist() for part in dense_parts(dense.to_sparse_csr())] == [[0, 1, 2], [1, 0], [2.0, 3.0]]
    assert [part.tolist() for part in dense_parts(dense.to_sparse_csc())] == [[0, 1, 2, 2], [1, 0], [3.0, 2.0]]
    assert dense_parts(dense) == (dense,)


# Two states, compared.

def state(**tensors):
    return [(name.replace("__", "/"), tensor) for name, tensor in tensors.items()]


def test_the_tensors_of_a_kind_are_one_vector_and_the_kind_that_differs_most_counts():
    a = state(weight=torch.tensor([3.0, 4.0]), bias=torch.tensor(1.0), weight__m=torch.tensor([1.0]), bias__m=torch.tensor([2.0]))
    b = state(weight=torch.tensor([3.0, 5.0]), bias=torch.tensor(1.0), weight__m=torch.tensor([1.0]), bias__m=torch.tensor([4.0]))
    assert state_difference(a, b) == pytest.approx(math.sqrt(4 / 17), rel=1e-12)
    assert state_difference(a[:2], b[:2]) == pytest.approx(math.sqrt(1 / 35), rel=1e-12)
    assert state_difference(a, a) == state_difference([], []) == 0.0


def test_a_state_that_has_what_the_other_lacks_is_infinitely_far():
    a = state(weight=torch.ones(2), weight__m=torch.ones(2))
    for other in (a[:1], [*a, *state(bias=torch.ones(2))], state(weight=torch.ones(2), weight__v=torch.ones(2)),
                  state(weight=torch.ones(1, 2), weight__m=torch.ones(2)), state(weight=torch.zeros(2), weight__m=torch.ones(2)),
                  state(weight=torch.tensor([1.0, math.nan]), weight__m=torch.ones(2))):
        assert state_difference(a, other) == math.inf


def test_states_of_any_type_and_layout_are_compared_by_their_numbers():
    sparse = torch.tensor([[0.0, 4.0], [3.0, 0.0]]).to_sparse()
    for one in (torch.tensor([3, 4]), sparse, sparse.to_sparse_csr(), torch.tensor([3 + 4j]).conj(),
                torch.tensor([3.0, 4.0], dtype=torch.bfloat16)):
        assert state_difference(state(weight=one), state(weight=one * 2)) == pytest.approx(0.5, rel=1e-12)
    images = torch.randn(2, 3, 4, 4)
    assert state_difference(state(weight=images), state(weight=images.to(memory_format=torch.channels_last))) == 0.0


def test_a_difference_that_float32_has_as_a_denormal_number_alone_is_told_where_those_are_flushed():
    a, b = torch.tensor([1.2e-38]), torch.tensor([1.3e-38])
    wanted = (b.item() - a.item()) / b.item()
    if not torch.set_flush_denormal(True):
        pytest.skip("this processor flushes no denormal numbers")
    try:
        assert (b - a).item() == 0.0
        assert state_difference(state(weight=a), state(weight=b)) == pytest.approx(wanted, rel=1e-12)
    finally:
        torch.set_flush_denormal(False)


# Of a loop's objects.

class Tied(nn.Module):
    """With parameters in channels-last memory, of another type, frozen, unused, and shared by two modules; and with buffers."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(3)
        self.images = nn.Conv2d(2, 4, 3).to(memory_format=torch.channels_last)
        self.norm = nn.BatchNorm2d(4)
        self.first, self.second = nn.Linear(4, 4, bias=False), nn.Linear(4, 4, bias=False)
        self.second.weight = self.first.weight
        self.scale = nn.Parameter(torch.tensor(1.5, dtype=torch.bfloat16))
        self.frozen = nn.Parameter(torch.ones(2), requires_grad=False)
        self.unused = nn.Parameter(torch.ones(3))

    def forward(self, images):
        found = self.norm(self.images(images)).mean((2, 3))
        return self.second(self.first(found).relu()) * self.scale


def subject_of(model, batches):
    return Subject(model, batches, torch.optim.AdamW(model.parameters()),
                   lambda model, batch: nn.functional.cross_entropy(model(batch[0]), batch[1]), run_steps=None, budget_s=60)


@pytest.fixture
def tied():
    return subject_of(Tied(), [(torch.randn(8, 2, 6, 6), torch.arange(8) % 4)])


def test_gradients_are_told_by_name_in_float32_bit_for_bit(tied):
    tied.restore()
    assert tied.flat_gradients() == []
    tied.gradients(tied.loader[0])
    gradients = {name: parameter.grad for name, parameter in tied.model.named_parameters() if parameter.grad is not None}
    assert list(gradients) == ["scale", "images.weight", "images.bias", "norm.weight", "norm.bias", "first.weight"]
    found = tied.flat_gradients()
    assert all(values.dtype is torch.float32 for _, values in found)
    assert [(name, packed(values)) for name, values in found] == [
        (name, packed(gradient.float())) for name, gradient in gradients.items()]
    assert any(not gradient.is_contiguous() for gradient in gradients.values())


def of_images():
    torch.manual_seed(4)
    return nn.Sequential(nn.Conv2d(2, 3, 3), nn.Flatten(), nn.Linear(48, 4)), (torch.randn(8, 2, 6, 6), torch.arange(8) % 4)


def test_exact_gradients_are_those_of_a_float64_copy():
    model, batch = of_images()
    copied = copy.deepcopy(model).double()
    wanted = nn.functional.cross_entropy(copied(batch[0].double()), batch[1])
    wanted.backward()
    loss, found = subject_of(model, [batch]).exact_gradients(batch)
    assert loss == wanted.item()
    assert [(name, packed(values)) for name, values in found] == [
        (name, packed(parameter.grad)) for name, parameter in copied.named_parameters()]


def test_a_state_s_bytes_are_those_of_parameters_and_then_of_buffers(tied):
    held = [*tied.model.named_parameters(), *tied.model.named_buffers()]
    assert [name for name, _ in held][-3:] == ["norm.running_mean", "norm.running_var", "norm.num_batches_tracked"]
    assert len(held) == 11  # What two modules share is there once.
    found = b"".join(bytes(part.tolist()) for part in tied.state_bytes())
    assert found == b"".join(packed(tensor) for _, tensor in held)
    tied.configure({"model.memory_format": '"channels_last"'})
    assert b"".join(bytes(part.tolist()) for part in tied.state_bytes()) == found
    tied.configure({})
    with torch.no_grad():
        tied.model.norm.running_var[2] += 1e-6
    assert b"".join(bytes(part.tolist()) for part in tied.state_bytes()) != found


def test_kept_gradients_are_put_back_in_each_parameter_s_own_layout_as_often_as_wanted():
    model, batch = of_images()
    model.register_parameter("unused", nn.Parameter(torch.ones(3)))
    subject = subject_of(model, [batch])
    subject.restore()
    subject.gradients(batch)
    wanted = [parameter.grad.clone() for parameter in model[0].parameters()]
    kept = subject.kept_gradients()
    strides = []
    for settings in ({}, {"model.memory_format": '"channels_last"'}, {}):
        subject.configure(settings)
        subject.restore()
        subject.put_gradients(kept)
        assert model.unused.grad is None
        for parameter, gradient in zip(model[0].parameters(), wanted):
            assert torch.equal(parameter.grad, gradient) and parameter.grad.stride() == parameter.stride()
            parameter.grad.zero_()  # As an optimizer may write to it.
        strides.append(model[0].weight.stride())
    assert strides[0] == strides[2] != strides[1]


def test_a_whole_state_is_a_copy_of_parameters_buffers_and_optimizer_state(tied):
    tied.restore()
    tied.gradients(tied.loader[0])
    tied.step.update()
    found = tied.whole_state()
    names = [name for name, _ in found]
    assert names[:11] == [name for name, _ in (*tied.model.named_parameters(), *tied.model.named_buffers())]
    assert names[11:14] == ["scale/exp_avg", "scale/exp_avg_sq", "scale/step"] and len(names) == 11 + 3 * 6
    before = [(name, tensor.clone()) for name, tensor in found]
    tied.restore()
    assert state_difference(before, found) == 0.0 and state_difference(found, tied.whole_state()) == math.inf
    assert not any(tensor.requires_grad for _, tensor in found)


# What hr.tune finds by them.

class Scaled(hr.Strategy):
    """Scales the gradients that an update takes, and not those that a backward leaves."""

    name = "scaled-update"
    sentence = "Updates by larger gradients."

    def __init__(self, numerics, factor):
        self.numerics, self.factor = numerics, factor

    def apply(self, context):
        self.hook = context.optimizers[0].register_step_pre_hook(self.scale)

    def undo(self, context):
        self.hook.remove()

    def scale(self, optimizer, args, kwargs):
        for group in optimizer.param_groups:
            for parameter in group["params"]:
                parameter.grad.mul_(self.factor)


@pytest.fixture
def scaled():
    """Registers one for the test."""
    def register(numerics, factor):
        hr.register_strategy(Scaled(numerics, factor))

    yield register
    hr.unregister_strategy(Scaled.name)


def network():
    torch.manual_seed(5)
    return nn.Sequential(nn.Flatten(), nn.Linear(128, 32), nn.ReLU(), nn.Linear(32, 4))


def six_batches():
    torch.manual_seed(6)
    return [(torch.randn(16, 2, 8, 8), torch.arange(16) % 4) for _ in range(6)]


def numerics_of(model, batches, optimizer, name):
    tuned = hr.tune(model, batches, optimizer, lambda model, batch: nn.functional.cross_entropy(model(batch[0]), batch[1]),
                    budget_s=10.0, only=[name], gain_min=10.0)
    (trial,) = tuned.ledger["trials"]
    return trial["numerics"]


def gradients_of(model, batch, bf16=False):
    """Of a copy of the model, as one vector in float64."""
    model = copy.deepcopy(model)
    with torch.autocast("cpu", torch.bfloat16, enabled=bf16):
        output = model(batch[0])
    nn.functional.cross_entropy(output.float(), batch[1]).backward()
    return torch.cat([parameter.grad.flatten() for parameter in model.parameters()]).double()


def test_reduced_precision_is_judged_by_the_gradients_that_torch_gives():
    model, batches = network(), six_batches()[:5]
    plain = [gradients_of(model, batch) for batch in batches]
    reduced = [gradients_of(model, batch, bf16=True) for batch in batches]
    farthest = max(((b - a).norm() / a.norm()).item() for a, b in zip(plain, reduced))
    between = math.sqrt(sum(((b - a).norm() ** 2).item() for a, b in zip(plain, plain[1:])) /
                        sum((a.norm() ** 2).item() for a in plain[:-1]))
    found = numerics_of(model, batches, torch.optim.AdamW(model.parameters()), "bf16 autocast")
    assert found["checked"] and "between two batches" in found["measure"]
    assert found["value"] == pytest.approx(farthest, rel=1e-4)
    assert found["tolerance"] == pytest.approx(between / 2, rel=1e-4)


def test_updates_of_the_same_gradients_are_compared_with_their_optimizer_state(scaled):
    model = network()
    scaled("rounding", 1.5)
    found = numerics_of(model, six_batches(), torch.optim.AdamW(model.parameters()), Scaled.name)
    # What differs most is the mean of squares, from zeros: 1 against 1.5 squared.
    assert found["measure"] == "update on the same gradients, relative L2" and not found["passed"]
    assert found["value"] == pytest.approx((1.5**2 - 1) / 1.5**2, rel=1e-5)


def test_updates_of_the_same_gradients_are_compared_by_all_parameters_and_buffers_as_one(scaled):
    model, batches = network(), six_batches()
    model.register_buffer("constant", torch.full((7,), 0.25))
    states = []
    for factor in (1.0, 1.5):
        updated = copy.deepcopy(model)
        nn.functional.cross_entropy(updated(batches[0][0]), batches[0][1]).backward()
        with torch.no_grad():
            values = [parameter - 0.1 * factor * parameter.grad for parameter in updated.parameters()]
        states.append(torch.cat([*(value.flatten() for value in values), updated.constant]).double())
    scaled("rounding", 1.5)
    found = numerics_of(model, batches, torch.optim.SGD(model.parameters(), lr=0.1), Scaled.name)
    assert found["measure"] == "update on the same gradients, relative L2"
    assert found["value"] == pytest.approx(((states[0] - states[1]).norm() / states[1].norm()).item(), rel=1e-3)


def test_numbers_of_another_type_and_rank_are_refused_by_what_they_are(scaled, monkeypatch):
    model = network()
    scaled("rounding", 1.0)
    monkeypatch.setattr(Subject, "exact_gradients", lambda subject, batch: (0.0, [("weight", torch.zeros(2, 3))]))
    found = numerics_of(model, six_batches(), torch.optim.SGD(model.parameters(), lr=0.1), Scaled.name)
    assert found["why_not_float64"] == ("python: wanted a flat tensor of float64 on the CPU, found Tensor of type torch.float32 and shape "
                                        "torch.Size([2, 3])")


def test_ctrl_c_while_numbers_are_read_ends_the_tuning(scaled, monkeypatch):
    def interrupt(tensor, **options):
        raise KeyboardInterrupt

    model = network()
    scaled("bit_equal", 1.0)
    monkeypatch.setattr(torch.Tensor, "__dlpack__", interrupt)
    with pytest.raises(KeyboardInterrupt) as caught:
        numerics_of(model, six_batches(), torch.optim.SGD(model.parameters(), lr=0.1), Scaled.name)
    assert caught.traceback[-1].name == "interrupt"


@pytest.mark.parametrize("factor, value", [(1.0, 0.0), (1.0 + 2**-10, 1.0)], ids=["the same", "another"])
def test_the_bits_of_parameters_and_buffers_decide_what_must_be_bit_equal(scaled, factor, value):
    model = network()
    scaled("bit_equal", factor)
    found = numerics_of(model, six_batches(), torch.optim.SGD(model.parameters(), lr=0.1), Scaled.name)
    assert found["checked"] and found["measure"] == "states that differ after 5 steps"
    assert (found["value"], found["passed"]) == (value, value == 0.0)
