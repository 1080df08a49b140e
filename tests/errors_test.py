"""Errors are reviewed: each has a code, names where it is, says what was wanted and what was found, and stands on one line (ERR-10)."""

import headrace as hr
import pytest
import torch
from headrace import errors
from torch import nn

CODES = {kind.code for kind in vars(errors).values() if isinstance(kind, type) and issubclass(kind, hr.Error)} - {"internal"}


def module():
    return nn.Linear(2, 2)


def tuned(**options):
    layer = module()
    return hr.autotune(layer, torch.optim.SGD(layer.parameters(), 0.1), **options)


def recorded(**options):
    with hr.Trace(**options):
        pass


LABELS = torch.zeros(3, dtype=torch.long)

# By call: where it is, and what was found.
REVIEWED = {
    "accuracy of a vector": (lambda: hr.accuracy(torch.ones(3), LABELS), "accuracy: logits", "(3,)"),
    "accuracy of too few labels": (lambda: hr.accuracy(torch.ones(2, 4), LABELS), "accuracy: labels", "(3,)"),
    "accuracy of labels that are no indices": (lambda: hr.accuracy(torch.ones(3, 4), torch.ones(3)), "accuracy: labels", "torch.float32"),
    "accuracy of the 0 largest": (lambda: hr.accuracy(torch.ones(3, 4), LABELS, (0,)), "accuracy: topk", "(0,)"),
    "recomputation of no module": (lambda: hr.gradient_checkpointing_enable(3), "gradient_checkpointing: part", "int"),
    "recomputation to nowhere": (lambda: hr.gradient_checkpointing_enable(module(), offload="disk"), "gradient_checkpointing: offload", "'disk'"),
    "recomputation of every 0th": (lambda: hr.gradient_checkpointing_enable(module(), every=0), "gradient_checkpointing: every", "0"),
    "recomputation within less than nothing": (
        lambda: hr.gradient_checkpointing_enable(module(), budget_mib=-1), "gradient_checkpointing: budget_mib", "-1"),
    "attention of an unknown kernel": (lambda: hr.ScaledDotProductAttention("fast"), "attention: kernel", "'fast'"),
    "attention that drops all": (lambda: hr.ScaledDotProductAttention(dropout=1), "attention: dropout", "1"),
    "attention without a scale": (lambda: hr.ScaledDotProductAttention(scale=float("nan")), "attention: scale", "nan"),
    "buckets along the samples": (lambda: hr.bucket_shapes([], [8], axes=0), "bucket_shapes: axes", "0"),
    "buckets of nothing": (lambda: hr.bucket_shapes([], [0]), "bucket_shapes: sizes", "[0]"),
    "compiling no module": (lambda: hr.compiled(3), "compiled: model", "int"),
    "compiling by one text": (lambda: hr.compiled(module(), "eager"), "compiled: modes", "'eager'"),
    "compiling below no bound": (lambda: hr.compiled(module(), recompilations_max=-1), "compiled: recompilations_max", "-1"),
    "a memory format of no module": (lambda: hr.set_memory_format(3, "channels_last"), "set_memory_format: model", "int"),
    "a memory format that is none": (lambda: hr.set_memory_format(module(), "diagonal"), "set_memory_format: memory_format", "'diagonal'"),
    "tuning no module": (lambda: hr.autotune(3, torch.optim.SGD(module().parameters(), 0.1)), "autotune: model", "int"),
    "tuning no optimizer": (lambda: hr.autotune(module(), "adam"), "autotune: optimizer", "str"),
    "tuning over a number": (lambda: tuned(loader=3), "autotune: loader", "int"),
    "tuning no steps": (lambda: tuned(steps=0), "autotune: steps", "0"),
    "tuning no epochs": (lambda: tuned(epochs=0), "autotune: epochs", "0"),
    "a gain that is a word": (lambda: tuned(gain_min="a lot"), "autotune: gain_min", "'a lot'"),
    "only a text": (lambda: tuned(only="bf16"), "autotune: only", "'bf16'"),
    "a seed below 0": (lambda: tuned(seed=-1), "autotune: seed", "-1"),
    "more memory than there is": (lambda: hr.hardware_settings(memory_fraction=2), "memory_fraction", "2"),
    "a policy of waiting": (lambda: hr.hardware_settings(wait_policy="patient"), "wait_policy", "'patient'"),
    "watching no module": (lambda: hr.watch(model=3), "watch: model", "int"),
    "watching no optimizer": (lambda: hr.watch(optimizer="adam"), "watch: optimizer", "str"),
    "flights to a number": (lambda: hr.watch(flights=3), "watch: flights", "int"),
    "spans without a name": (lambda: hr.profile_operation(3), "profile_operation: name", "int"),
    "a trace of no events": (lambda: recorded(events_per_thread=0), "trace: events_per_thread", "0"),
    "a trace of an empty name": (lambda: recorded(names=[""]), "trace: names", "an empty text"),
    "a trace of every 0th step": (lambda: recorded(every_steps=0), "trace: every_steps", "0"),
    "a trace of a time below 0": (lambda: recorded(length_s=-1.0), "trace: length_s", "-1"),
}


@pytest.mark.parametrize("case", REVIEWED)
def test_an_error_has_a_code_and_says_where_what_was_wanted_and_what_was_found(case):
    call, place, found = REVIEWED[case]
    with pytest.raises(hr.Error) as raised:
        call()
    text = str(raised.value)
    assert raised.value.code in CODES and isinstance(raised.value, ValueError)
    assert place in text and "wanted" in text and found in text and "\n" not in text
