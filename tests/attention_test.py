"""Attention by torch's kernels against the formula written out, and the kernel that is named against the profiler's operators."""

import copy
import math

import headrace as hr
import pytest
import torch
from headrace.errors import InvalidArgumentError, UnsupportedError
from torch import nn

# What torch.profiler calls the operators on the CPU.
OPERATORS = {"flash": "aten::_scaled_dot_product_flash_attention_for_cpu", "math": "aten::_scaled_dot_product_attention_math"}
N, HEADS, L, S, E = 3, 4, 37, 53, 16


def drawn(length=L, keys=S, dtype=torch.float32, seed=1):
    generator = torch.Generator().manual_seed(seed)
    return [torch.randn(N, HEADS, rows, E, generator=generator).to(dtype) for rows in (length, keys, keys)]


def naive(query, key, value, allowed=None, added=None):
    """The formula, in float64."""
    query, key, value = query.double(), key.double(), value.double()
    scores = query @ key.transpose(-2, -1) / math.sqrt(query.shape[-1])
    if added is not None:
        scores = scores + added
    if allowed is not None:
        scores = scores.masked_fill(~allowed, -math.inf)
    return scores.softmax(-1) @ value


def padding():
    """Of each sample the last keys but for at least one; True is padding."""
    return torch.arange(S) >= torch.tensor([[S], [20], [1]])


def causal(length=L, keys=S):
    return torch.ones(length, keys, dtype=torch.bool).tril()


def close(found, wanted):
    torch.testing.assert_close(found.double(), wanted, rtol=1e-5, atol=1e-5)


def operators_of(call):
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as profile:
        call()
    return {event.key for event in profile.key_averages()}


@pytest.mark.parametrize("kernel", ["auto", "math", "flash"])
def test_causal_padding_masked_and_cross_attention_are_the_formula(kernel):
    attention = hr.ScaledDotProductAttention(kernel)
    inputs, square, seen = drawn(), drawn(L, L), ~padding()[:, None, None]
    close(attention(*inputs), naive(*inputs))
    close(attention(*square, is_causal=True), naive(*square, causal(L, L)))
    close(attention(*inputs, is_causal=True), naive(*inputs, causal()))
    close(attention(*inputs, key_padding_mask=padding()), naive(*inputs, seen))
    close(attention(*inputs, is_causal=True, key_padding_mask=padding()), naive(*inputs, causal() & seen))
    some = torch.rand(L, S, generator=torch.Generator().manual_seed(2)) < 0.5
    some[:, 0] = True
    close(attention(*inputs, some, key_padding_mask=padding()), naive(*inputs, some & seen))
    added = torch.randn(HEADS, L, S, generator=torch.Generator().manual_seed(3)).expand(N, HEADS, L, S)
    close(attention(*inputs, added), naive(*inputs, added=added))
    close(attention(*inputs, added, key_padding_mask=padding()), naive(*inputs, seen, added))
    as_numbers = torch.zeros(N, S).masked_fill(padding(), -math.inf)
    close(attention(*inputs, is_causal=True, key_padding_mask=as_numbers), naive(*inputs, causal() & seen))
    assert attention.ran == ("math" if kernel == "math" else "flash")


def test_gradients_are_those_of_the_formula():
    inputs = [tensor.requires_grad_() for tensor in drawn()]
    weights = torch.randn(N, HEADS, L, E)
    (hr.ScaledDotProductAttention()(*inputs, key_padding_mask=padding()) * weights).sum().backward()
    found = [tensor.grad.double() for tensor in inputs]
    doubles = [tensor.detach().double().requires_grad_() for tensor in inputs]
    (naive(*doubles, ~padding()[:, None, None]) * weights).sum().backward()
    for gradient, tensor in zip(found, doubles):
        torch.testing.assert_close(gradient, tensor.grad, rtol=1e-4, atol=1e-5)


def test_the_kernel_that_is_named_is_the_one_that_the_profiler_sees():
    inputs = drawn()
    masked_by_a_parameter = nn.Parameter(torch.zeros(L, S))
    cases = [(hr.ScaledDotProductAttention(), {}, "flash"), (hr.ScaledDotProductAttention("math"), {}, "math"),
             (hr.ScaledDotProductAttention("efficient"), {}, "flash"),  # Which the CPU has not.
             (hr.ScaledDotProductAttention("flash"), {"attn_mask": masked_by_a_parameter}, "math"),
             (hr.ScaledDotProductAttention(dropout=0.5), {}, "math"), (hr.ScaledDotProductAttention(dropout=0.5).eval(), {}, "flash"),
             (hr.ScaledDotProductAttention(), {"key_padding_mask": padding()}, "flash")]
    for attention, more, wanted in cases:
        assert attention.ran is None
        seen = operators_of(lambda attention=attention, more=more: attention(*inputs, **more))
        assert attention.ran == wanted, attention
        assert OPERATORS[wanted] in seen and seen.isdisjoint(set(OPERATORS.values()) - {OPERATORS[wanted]}), attention


def test_a_named_kernel_leaves_torch_s_switches_as_they_were():
    def switches():
        return [*(getattr(torch._C, f"_get_{name}_sdp_enabled")() for name in ("cudnn", "flash", "mem_efficient", "math")),
                torch._C._get_sdp_priority_order()]

    before = switches()
    for kernel in ("flash", "efficient", "cudnn", "math"):
        hr.ScaledDotProductAttention(kernel)(*drawn())
        with pytest.raises((RuntimeError, IndexError)):
            hr.ScaledDotProductAttention(kernel)(*drawn()[:2], torch.ones(1, dtype=torch.int64))
        assert switches() == before


def test_under_autocast_the_result_is_torch_s_own():
    inputs = drawn()
    attention = hr.ScaledDotProductAttention()
    with torch.autocast("cpu", torch.bfloat16):
        found = attention(*inputs, key_padding_mask=padding())
        wanted = nn.functional.scaled_dot_product_attention(*inputs, ~padding()[:, None, None])
    assert found.dtype == wanted.dtype == torch.bfloat16 and torch.equal(found, wanted)


def test_contradicting_and_misshapen_arguments_are_named():
    with pytest.raises(InvalidArgumentError, match="kernel: wanted auto, flash, efficient, cudnn, math, found 'fast'"):
        hr.ScaledDotProductAttention("fast")
    with pytest.raises(InvalidArgumentError, match="dropout"):
        hr.ScaledDotProductAttention(dropout=1.0)
    with pytest.raises(InvalidArgumentError, match="scale"):
        hr.ScaledDotProductAttention(scale=math.nan)
    attention = hr.ScaledDotProductAttention()
    with pytest.raises(InvalidArgumentError, match="is_causal or attn_mask"):
        attention(*drawn(), causal(), is_causal=True)
    with pytest.raises(InvalidArgumentError, match=r"wanted the shape \(3, 53\), found \(3, 37\)"):
        attention(*drawn(), key_padding_mask=torch.zeros(N, L, dtype=torch.bool))


@pytest.mark.parametrize("batch_first", [True, False])
@pytest.mark.parametrize("sizes", [{}, {"kdim": 24, "vdim": 40}], ids=["one_size", "own_sizes"])
def test_multihead_attention_takes_the_place_of_torch_s(batch_first, sizes):
    torch.manual_seed(1)
    theirs = nn.MultiheadAttention(64, HEADS, batch_first=batch_first, **sizes)
    ours = hr.MultiheadAttention(64, HEADS, batch_first=batch_first, **sizes)
    nn.init.normal_(theirs.in_proj_bias)
    ours.load_state_dict(theirs.state_dict(), strict=True)
    assert theirs.state_dict().keys() == ours.state_dict().keys()
    query, key, value = torch.randn(N, L, 64), torch.randn(N, S, sizes.get("kdim", 64)), torch.randn(N, S, sizes.get("vdim", 64))
    if not batch_first:
        query, key, value = query.transpose(0, 1), key.transpose(0, 1), value.transpose(0, 1)
    hidden = ~causal()
    of_heads = hidden.expand(N * HEADS, L, S)
    for more in ({}, {"attn_mask": hidden}, {"attn_mask": of_heads}, {"key_padding_mask": padding()},
                 {"attn_mask": torch.randn(L, S)}, {"attn_mask": hidden, "key_padding_mask": padding()}):
        found, nothing = ours(query, key, value, **more)
        close(found, theirs(query, key, value, need_weights=False, **more)[0].double())
        assert nothing is None and ours.ran == "flash"
    found, weights = ours(query, key, value, need_weights=True)
    wanted = theirs(query, key, value)
    assert torch.equal(found, wanted[0]) and torch.equal(weights, wanted[1]) and ours.ran is None


def test_multihead_attention_needs_no_mask_to_be_causal_and_no_batch():
    torch.manual_seed(1)
    ours = hr.MultiheadAttention(64, HEADS)
    theirs = copy.deepcopy(ours)
    sequence = torch.randn(L, 64)
    hidden = ~causal(L, L)
    wanted = nn.MultiheadAttention.forward(theirs, sequence, sequence, sequence, need_weights=False, attn_mask=hidden)[0]
    close(ours(sequence, sequence, sequence, is_causal=True)[0], wanted.double())
    close(ours(sequence, sequence, sequence, attn_mask=hidden)[0], wanted.double())
    with pytest.raises(UnsupportedError, match="add_bias_kv"):
        hr.MultiheadAttention(64, HEADS, add_bias_kv=True)


def test_a_transformer_s_layer_trains_with_it_as_with_torch_s():
    torch.manual_seed(1)
    theirs = nn.TransformerEncoderLayer(64, HEADS, 128, dropout=0.0, batch_first=True)
    ours = copy.deepcopy(theirs)
    ours.self_attn = hr.MultiheadAttention(64, HEADS, batch_first=True)
    ours.self_attn.load_state_dict(theirs.self_attn.state_dict())
    batch, hidden = torch.randn(N, S, 64), padding()
    for layer in (theirs, ours):
        layer(batch, src_key_padding_mask=hidden)[~hidden].square().mean().backward()
    assert ours.self_attn.ran == "flash"
    for (name, wanted), (_, found) in zip(theirs.named_parameters(), ours.named_parameters()):
        torch.testing.assert_close(found.grad, wanted.grad, rtol=1e-4, atol=1e-5, msg=name)
