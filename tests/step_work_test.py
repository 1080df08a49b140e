"""What a step computes and moves, counted: exact numbers of small layers."""

import time

import torch
from headrace._step_work import ModelFlops, _covered, matrix_product, seconds_between_operators, update_work
from torch import nn


def flops_of(model, inputs, calls=1):
    flops = ModelFlops()
    for _ in range(calls):
        flops.call_begins(model)
        output = model(inputs)
        flops.call_ends()
    (output[0] if isinstance(output, tuple) else output).sum().backward()
    assert all(not layer._forward_hooks for layer in model.modules())
    return flops


def test_a_linear_layer_is_two_for_each_weight_and_gradient_that_is_wanted():
    model = nn.Sequential(nn.Linear(3, 5), nn.ReLU(), nn.Linear(5, 2))
    forward = 2 * 4 * (3 * 5 + 5 * 2)
    assert flops_of(model, torch.randn(4, 3)).per_step(1) == 2 * 2 * 4 * 3 * 5 + 3 * 2 * 4 * 5 * 2  # The first needs no input gradient.
    assert flops_of(model, torch.randn(4, 3, requires_grad=True)).per_step(1) == 3 * forward
    assert flops_of(model, torch.randn(4, 3, requires_grad=True), calls=4).per_step(2) == 2 * 3 * forward


def test_convolutions_count_by_what_they_give_and_transposed_ones_by_what_they_take():
    given = torch.randn(2, 3, 8, 8, requires_grad=True)
    assert flops_of(nn.Conv2d(3, 5, 3), given).per_step(1) == 3 * 2 * (2 * 5 * 6 * 6) * (3 * 9)
    assert flops_of(nn.Conv2d(3, 6, 3, groups=3), given).per_step(1) == 3 * 2 * (2 * 6 * 6 * 6) * 9
    assert flops_of(nn.ConvTranspose2d(3, 5, 2), given).per_step(1) == 3 * 2 * (2 * 3 * 8 * 8) * (5 * 4)


def test_a_recurrent_layer_counts_its_weights_at_each_moment():
    layer = nn.LSTM(4, 6, batch_first=True)
    weights = 4 * 6 * 4 + 4 * 6 * 6
    assert flops_of(layer, torch.randn(2, 5, 4, requires_grad=True)).per_step(1) == 3 * 2 * 2 * 5 * weights


def test_where_nothing_can_be_counted_the_reason_is_told():
    flops = flops_of(nn.Sequential(nn.ReLU()), torch.randn(2, 2, requires_grad=True))
    assert flops.per_step(1) is None and flops.why_not.startswith("no layer was seen")
    flops = ModelFlops()
    flops.call_begins(torch.jit.script(nn.Linear(2, 2)))
    flops.call_ends()
    assert flops.per_step(1) is None and flops.why_not == "the model is compiled, and its layers cannot be watched"


def test_an_update_reads_gradients_and_reads_and_writes_parameters_and_state():
    model = nn.Linear(3, 5)
    optimizer = torch.optim.AdamW(model.parameters())
    size = 4 * (3 * 5 + 5)
    assert update_work([optimizer]) == (3 * size, 2)
    model(torch.randn(1, 3)).sum().backward()
    optimizer.step()
    assert update_work([optimizer]) == (3 * size + 2 * 2 * size, 2)
    model.bias.requires_grad_(False)
    assert update_work([optimizer])[1] == 1
    assert update_work([]) == (None, 0)


def test_the_interpreters_time_between_operators_is_its_own_cpu_time_and_no_sleep():
    spun = 0.1
    torch.ones(8, 8) @ torch.ones(8, 8)  # The first one starts threads.

    def work():
        end = time.thread_time() + spun
        while time.thread_time() < end:
            pass
        torch.ones(8, 8) @ torch.ones(8, 8)
        time.sleep(0.2)

    assert spun * 0.5 <= seconds_between_operators(work)  # An operator that has no core for a while is not the interpreter's.
    assert seconds_between_operators(lambda: time.sleep(0.5)) < 0.5
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]):
        assert seconds_between_operators(work) is None


def test_spans_that_overlap_or_nest_count_once():
    assert _covered([(0, 10), (2, 3), (8, 12), (20, 21)]) == 13
    assert _covered([]) == 0


def test_measuring_a_peak_draws_from_no_generator():
    before = torch.get_rng_state()
    multiply = matrix_product()
    multiply(8)
    multiply(8)
    assert torch.equal(before, torch.get_rng_state())
