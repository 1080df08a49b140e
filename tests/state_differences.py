"""Where two states of a loop's objects differ: mappings of tensors, numbers, lists and dicts of them."""

import torch


def same(a, b):
    """Bit for bit, on the same device; of a tensor without memory only that it is one."""
    if isinstance(a, torch.Tensor):
        return isinstance(b, torch.Tensor) and a.device == b.device and (a.is_meta or torch.equal(a, b))
    if isinstance(a, (tuple, list)):
        return isinstance(b, (tuple, list)) and len(a) == len(b) and all(same(x, y) for x, y in zip(a, b))
    if isinstance(a, dict):
        return isinstance(b, dict) and a.keys() == b.keys() and all(same(a[key], b[key]) for key in a)
    return a is b or a == b


def differences(a, b):
    return [key for key in a.keys() | b.keys() if key not in a or key not in b or not same(a[key], b[key])]
