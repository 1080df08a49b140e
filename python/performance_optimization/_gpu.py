"""What the name of a GPU says of batch sizes and precision."""

from __future__ import annotations

from typing import Any

# By what its name contains: batch_size_multiplier, enable_amp, num_workers.
_BY_NAME = (
    (("RTX 4090", "RTX 4080"), (1.5, True, 16)),
    (("RTX 3090", "RTX 3080"), (1.2, True, 12)),
    (("RTX 3070", "RTX 3060"), (1.0, True, 8)),
)
# Of those without a name above: the least compute capability, and the least memory in bytes. From 7.0 on there are tensor cores.
_BY_CAPABILITY = (((8, 0), 40e9, (1.5, True, 16)), ((7, 0), 14e9, (1.0, True, 8)))
_OTHER = (0.8, False, 4)


def get_gpu_optimization_config(*, literal: bool = False) -> dict[str, Any]:
    """Settings for the first CUDA device: batch_size_multiplier, enable_amp, num_workers and pin_memory; {} without CUDA.

    | its name contains | batch_size_multiplier | enable_amp | num_workers |
    |---|---|---|---|
    | RTX 4090, RTX 4080 | 1.5 | True | 16 |
    | RTX 3090, RTX 3080 | 1.2 | True | 12 |
    | RTX 3070, RTX 3060 | 1.0 | True | 8 |
    | none of these: compute capability 8.0 and 40 x 10^9 bytes, as A100, H100, H200 | 1.5 | True | 16 |
    | none of these: compute capability 7.0 and 14 x 10^9 bytes, as V100, T4 | 1.0 | True | 8 |
    | another | 0.8 | False | 4 |

    pin_memory is True. literal: without the two rows by compute capability and memory.
    """
    import torch

    if not torch.cuda.is_available():
        return {}
    name = torch.cuda.get_device_name(0)
    row = next((row for names, row in _BY_NAME if any(part in name for part in names)), None)
    if row is None:
        row = _OTHER if literal else _row_by_capability(torch.cuda.get_device_properties(0))
    multiplier, enable_amp, num_workers = row
    return {"batch_size_multiplier": multiplier, "enable_amp": enable_amp, "num_workers": num_workers, "pin_memory": True}


def _row_by_capability(device: Any) -> tuple[float, bool, int]:
    found = (device.major, device.minor)
    return next((row for least, memory, row in _BY_CAPABILITY if found >= least and device.total_memory >= memory), _OTHER)
