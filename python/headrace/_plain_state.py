"""A state_dict as JSON and named tensors, for checkpoints: plain containers, numbers, texts and tensors, and nothing that would run
code when it is read."""

from __future__ import annotations

import collections
import sys
from typing import Any

import torch

from .errors import CorruptDataError, UnsupportedError

Tensors = dict[str, torch.Tensor]

_PLAIN = (bool, int, float, str)


def encode(value: Any, name: str, tensors: Tensors) -> Any:
    """Of the value's tensors JSON has the names, which begin with `name`; `tensors` gets them, sharing their memory. UnsupportedError
    names what is of another kind."""
    if value is None or isinstance(value, _PLAIN):
        return value
    if isinstance(value, torch.Tensor):
        return _encode_tensor(value, name, tensors)
    if isinstance(value, list):
        return [encode(item, f"{name}/{i}", tensors) for i, item in enumerate(value)]
    if type(value) in (tuple, torch.Size):
        return {"tuple": [encode(item, f"{name}/{i}", tensors) for i, item in enumerate(value)]}
    if isinstance(value, dict):
        kind = "counter" if isinstance(value, collections.Counter) else "dict"
        return {kind: [[encode(key, f"{name}/key", tensors), encode(item, f"{name}/{key}", tensors)] for key, item in value.items()]}
    if isinstance(value, torch.dtype):
        return {"dtype": str(value).removeprefix("torch.")}
    if isinstance(value, torch.device):
        return {"device": str(value)}
    raise UnsupportedError(f"python: checkpoint: {name}: wanted tensors, numbers, texts and lists, tuples and dicts of them, found "
                           f"{type(value).__name__}")


def decode(value: Any, tensors: Tensors) -> Any:
    """What encode() was given, on the tensors. CorruptDataError: it is no such text, or a tensor is missing."""
    if isinstance(value, list):
        return [decode(item, tensors) for item in value]
    if not isinstance(value, dict):
        return value
    kind, content = next(iter(value.items()), ("nothing", None))
    if kind == "tensor" and content in tensors:
        return tensors[content]
    if kind == "tuple":
        return tuple(decode(item, tensors) for item in content)
    if kind in ("dict", "counter"):
        pairs = {decode(key, tensors): decode(item, tensors) for key, item in content}
        return collections.Counter(pairs) if kind == "counter" else pairs
    if kind == "dtype" and isinstance(dtype := getattr(torch, str(content), None), torch.dtype):
        return dtype
    if kind == "device":
        return torch.device(content)
    if kind == "class":
        return _decode_subclass(value, tensors)
    raise CorruptDataError(f"python: checkpoint: wanted a value of a state_dict, found {kind} {str(content)[:100]}")


def _encode_tensor(tensor: torch.Tensor, name: str, tensors: Tensors) -> Any:
    kind = type(tensor)
    if kind in (torch.Tensor, torch.nn.Parameter):
        while name in tensors:  # Of the keys 0 and "0", or "a/b" and a dict "a" with "b".
            name += "'"
        tensors[name] = tensor.detach()
        return {"tensor": name}
    flatten = getattr(tensor, "__tensor_flatten__", None)  # As torch.compile takes tensor subclasses apart.
    if flatten is None:
        raise UnsupportedError(f"python: checkpoint: {name}: wanted a plain tensor, or one with __tensor_flatten__, found {kind.__name__}")
    attributes, context = flatten()
    return {"class": f"{kind.__module__}:{kind.__qualname__}",
            "parts": {part: encode(getattr(tensor, part), f"{name}/{part}", tensors) for part in attributes},
            "context": encode(context, f"{name}/context", tensors), "size": list(tensor.shape), "stride": list(tensor.stride())}


def _decode_subclass(value: dict[str, Any], tensors: Tensors) -> torch.Tensor:
    module, _, name = value["class"].partition(":")
    kind = getattr(sys.modules.get(module), name, None)  # Nothing is imported because a file says so.
    if not (isinstance(kind, type) and issubclass(kind, torch.Tensor) and hasattr(kind, "__tensor_unflatten__")):
        raise UnsupportedError(f"python: checkpoint: wanted the module {module} of the optimizer's {name} imported, found none such")
    parts = {part: decode(item, tensors) for part, item in value["parts"].items()}
    return kind.__tensor_unflatten__(parts, decode(value["context"], tensors), torch.Size(value["size"]), tuple(value["stride"]))
