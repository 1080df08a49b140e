"""Memory that an image is written into, as the native half sees it."""

from __future__ import annotations

import sys
from typing import Any

_Place = tuple[str, tuple[int, ...], tuple[int, ...], str, int]


def place_of(out: Any) -> _Place | None:
    """Of a tensor or a NumPy array its type as torch calls it, its shape, its strides in bytes, why it cannot be written or
    nothing, and of a tensor its address. None: it is neither."""
    torch, numpy = sys.modules.get("torch"), sys.modules.get("numpy")
    if torch is not None and isinstance(out, torch.Tensor):
        return _of_tensor(torch, out)
    if numpy is not None and isinstance(out, numpy.ndarray):
        return _of_array(out)
    return None


def note_change(tensor: Any) -> None:
    """Autograd is told that it is written, as by an operation of torch's; RuntimeError where that is not allowed."""
    tensor[:0].zero_()


def _of_tensor(torch: Any, tensor: Any) -> _Place:
    dtype = str(tensor.dtype).removeprefix("torch.")
    if tensor.is_nested:
        return dtype, (), (), "nested", 0  # It has no one shape,
    shape = tuple(tensor.shape)
    if tensor.layout is not torch.strided:
        return dtype, shape, (), "not dense", 0  # and this no strides.
    strides = tuple(stride * tensor.element_size() for stride in tensor.stride())
    if tensor.device.type != "cpu":
        return dtype, shape, strides, f"on {tensor.device}", 0
    if tensor.requires_grad and torch.is_grad_enabled():
        return dtype, shape, strides, "requires grad", 0
    return dtype, shape, strides, "", tensor.data_ptr()


def _of_array(array: Any) -> _Place:
    dtype = str(array.dtype)
    refusal = ""
    if not array.flags.writeable:
        refusal = "read-only"
    elif not array.flags.aligned:
        refusal = "not aligned"
    elif dtype == "bfloat16":
        refusal = "an array"
    return dtype, array.shape, array.strides, refusal, 0
