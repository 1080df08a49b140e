"""torch's calls that need a CUDA device, made up: what they were asked for, in order, and what they leave."""

import re
from types import SimpleNamespace

import torch
from headrace import _gpu_settings

GIB = 2**30


def put_no_gpu(monkeypatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)


class MadeUpGpu:
    """An H100 by default. The flags of TF32 and of cuDNN are not made up."""

    def __init__(self, monkeypatch, capability=(9, 0), settings: str = "", backend: str = "native", is_initialized: bool = True) -> None:
        self.calls: list[tuple] = []
        self.total, self.allowed = 80 * GIB + 12345, None
        self.put_settings(settings)
        properties = SimpleNamespace(total_memory=self.total, major=capability[0], minor=capability[1], uuid="made-up")
        for name, function in {
                "is_available": lambda: True, "is_initialized": lambda: is_initialized, "current_device": lambda: 0,
                "get_device_capability": lambda: capability, "get_device_properties": lambda device: properties,
                "get_per_process_memory_fraction": lambda device: 1.0 if self.allowed is None else self.allowed / self.total,
                "set_per_process_memory_fraction": self.set_fraction, "get_allocator_backend": lambda: backend,
                "empty_cache": lambda: self.calls.append(("empty_cache",)), "memory_reserved": lambda: 0}.items():
            monkeypatch.setattr(torch.cuda, name, function)
        monkeypatch.setattr(torch._C, "_cuda_memorySnapshot", lambda pool: {"allocator_settings": self.settings}, raising=False)
        monkeypatch.setattr(torch._C, "_accelerator_setAllocatorSettings", self.set_settings, raising=False)
        monkeypatch.setattr(_gpu_settings, "_caps", {})

    def set_fraction(self, fraction: float, device: int) -> None:
        assert isinstance(fraction, float)
        self.calls.append(("fraction", fraction))
        self.allowed = int(fraction * self.total)  # In whole bytes, as torch keeps it.

    def set_settings(self, text: str) -> None:
        self.calls.append(("settings", text))
        self.put_settings(text)

    def put_settings(self, text: str) -> None:
        found = re.search(r"max_split_size_mb:(\d+)", text)
        self.settings = {"PYTORCH_CUDA_ALLOC_CONF": text, "max_split_size": int(found[1]) * 2**20 if found else -1}
