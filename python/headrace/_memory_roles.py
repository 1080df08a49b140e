"""hr.memory_by_role: what the memory of tensors is for."""

from __future__ import annotations

import gc
import sys
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from . import _engine_door
from ._loader import Loader
from ._pipeline import OptimizedLoader
from ._state import tensors_in
from ._tensors import storages

_Place = tuple[str, int]  # Device and address of a storage.
ROLES = ("parameters", "buffers", "gradients", "optimizer", "batches", "activations", "cache")

_WHY_NOT = {
    "parameters": "neither model nor optimizer was given",
    "buffers": "no model was given",
    "gradients": "neither model nor optimizer was given",
    "optimizer": "no optimizer was given",
    "batches": "no batch was given",
    "activations": "no loss was given with its graph, or activations of this process wait to be computed again",
    "cache": "no headrace.Loader was given, or one whose statistics are not known; a cache of anybody else's is not counted",
}


@dataclass(frozen=True)
class TensorMemory:
    """One block of memory that tensors lie in, under the first name that has it: "layer1.0.conv1.weight", "layer1.0.conv1.weight/exp_avg"
    of an optimizer's state, a node of the backward for an activation. bytes: of the whole block, whatever the views."""

    name: str
    role: str
    device: str
    bytes: int


class MemoryByRole:
    """Blocks of memory, each once and in the first of parameters, buffers, gradients, optimizer, batches, activations that has it; and what
    the caches of loaders hold, which is host memory outside of tensors: no block has it, nor total, nor other.

    bytes: by role; None: unavailable, for which why_not has the reason.
    allocated: bytes that tensors of the device hold in this process; None: unavailable. other: what of these is in no role.
    """

    def __init__(self, blocks: Iterable[TensorMemory], known: Iterable[str], allocated: int | None, cache: int | None) -> None:
        self.blocks = sorted(blocks, key=lambda block: -block.bytes)
        self.bytes: dict[str, int | None] = {role: None for role in ROLES}
        self.bytes.update(dict.fromkeys(known, 0))
        self.bytes["cache"] = cache
        for block in self.blocks:
            self.bytes[block.role] = (self.bytes[block.role] or 0) + block.bytes
        self.allocated = allocated

    @property
    def why_not(self) -> dict[str, str]:
        """By role that is unavailable the reason."""
        return {role: _WHY_NOT[role] for role, size in self.bytes.items() if size is None}

    @property
    def total(self) -> int:
        """Of all roles of tensors that are known."""
        return sum(block.bytes for block in self.blocks)

    @property
    def other(self) -> int | None:
        return None if self.allocated is None else max(self.allocated - self.total, 0)

    def by_module(self, depth: int = 1) -> dict[str, int]:
        """Bytes by the first `depth` parts of the names, the largest first: parameters, buffers, gradients and optimizer state alone."""
        sums: dict[str, int] = {}
        for block in self.blocks:
            if block.role not in ("batches", "activations"):
                parts = block.name.split("/")[0].split(".")
                name = ".".join(parts[:min(depth, len(parts) - 1)]) or "(the module itself)"
                sums[name] = sums.get(name, 0) + block.bytes
        return dict(sorted(sums.items(), key=lambda entry: -entry[1]))

    def __repr__(self) -> str:
        told = ", ".join(f"{role} {'unavailable' if size is None else size}" for role, size in self.bytes.items())
        return f"<headrace.MemoryByRole in bytes: {told}>"


def memory_by_role(model: nn.Module | Sequence[nn.Module] | None = None,
                   optimizer: torch.optim.Optimizer | Sequence[torch.optim.Optimizer] | None = None, *, batch: Any = None,
                   loss: torch.Tensor | None = None, loader: Any = None,
                   device: torch.device | str | None = None) -> MemoryByRole:
    """What the memory of tensors is for, now: parameters, buffers, gradients, optimizer state, batches, activations, and beside it the
    cache of decoded or encoded samples. A storage counts once, however many views and names it has.

    model, optimizer: one or several. batch: tensors in mappings, lists and dataclasses. loss: with its graph still there, before
    backward(): activations are what its nodes saved; unavailable while some of this process are to be computed again (gradient
    checkpointing), as whoever looks at those computes them. loader: one or several headrace.Loader, whose caches are counted; of others
    nobody knows what they keep. What is left out is unavailable, None. device: tensors elsewhere do not
    count; by default that of the first parameter, else the CPU. No device is waited for, and nothing is copied but what was
    offloaded. With a loss all objects of Python are gone through.

    `allocated` on the CPU is known where headrace's engine counts tensors (headrace.set_tensor_memory_limit); on a CUDA device it is
    what torch's allocator says.
    """
    models, optimizers = _listed(model), _listed(optimizer)
    place = _device_of(models, device)
    known: set[_Place] = set()
    blocks: list[TensorMemory] = []

    def count(role: str, named: Iterable[tuple[str, torch.Tensor]]) -> None:
        for name, tensor in named:
            for address, storage in storages([tensor] if _lies_on(place, tensor) else []):
                key = (str(storage.device), address)
                if key not in known:
                    known.add(key)
                    blocks.append(TensorMemory(name, role, key[0], storage.nbytes()))

    parameters = [(name, tensor) for one in models for name, tensor in one.named_parameters()]
    count("parameters", parameters)
    count("buffers", ((name, tensor) for one in models for name, tensor in one.named_buffers()))
    names = {id(tensor): name for name, tensor in parameters}
    stepped = [tensor for one in optimizers for group in one.param_groups for tensor in group["params"]]
    count("parameters", ((names.get(id(tensor), "parameter"), tensor) for tensor in stepped))
    every = {id(tensor): tensor for tensor in (*(tensor for _, tensor in parameters), *stepped)}
    count("gradients", ((names.get(key, "parameter"), tensor.grad) for key, tensor in every.items()
                        if tensor.is_leaf and tensor.grad is not None))
    count("optimizer", _optimizer_state(optimizers, names))
    count("batches", (("batch", tensor) for tensor in tensors_in(batch)))
    has_activations = loss is not None and not _computes_again()
    if loss is not None and has_activations:
        count("activations", _saved_tensors(loss))
    given = {"parameters": models or optimizers, "buffers": models, "gradients": models or optimizers, "optimizer": optimizers,
             "batches": batch is not None, "activations": has_activations}
    return MemoryByRole(blocks, [role for role, is_given in given.items() if is_given], _allocated(place), _cached(_listed(loader)))


def _cached(loaders: Sequence[Any]) -> int | None:
    """Bytes that their caches hold. None: one of them is no Loader of headrace's, or has none of its own, or none was given."""
    sizes = []
    for loader in loaders:
        if isinstance(loader, OptimizedLoader):
            loader = loader.loader
        statistics = loader.statistics() if isinstance(loader, Loader) else None
        if statistics is None:
            return None
        sizes.append(int(statistics["cache_bytes"]))
    return sum(sizes) if sizes else None


def _listed(value: Any) -> list[Any]:
    return [] if value is None else list(value) if isinstance(value, (list, tuple)) else [value]


def _device_of(models: Sequence[nn.Module], device: torch.device | str | None) -> torch.device:
    if device is not None:
        return torch.device(device)
    return next((parameter.device for model in models for parameter in model.parameters()), torch.device("cpu"))


def _lies_on(device: torch.device, tensor: Any) -> bool:
    return (isinstance(tensor, torch.Tensor) and tensor.device.type == device.type
            and (device.index is None or tensor.device.index in (None, device.index)))


def _optimizer_state(optimizers: Sequence[torch.optim.Optimizer], names: dict[int, str]) -> Iterator[tuple[str, torch.Tensor]]:
    for one in optimizers:
        for parameter, state in one.state.items():
            for tensor_name, value in state.items() if isinstance(state, dict) else (("state", state),):
                for tensor in tensors_in(value):
                    yield f"{names.get(id(parameter), 'parameter')}/{tensor_name}", tensor


def _computes_again() -> bool:
    """Whether activations of a graph of this process wait to be computed again by its backward, by headrace or by torch: asked for
    what they saved, its nodes would do so at once, for each tensor of them, and change BatchNorm's statistics."""
    modules = (sys.modules.get(f"{__package__}._recomputed_call"), "_Call"), (sys.modules.get("torch.utils.checkpoint"), "_CheckpointFrame")
    kinds = [kind for module, name in modules if (kind := getattr(module, name, None)) is not None]

    def is_any_there() -> bool:
        return any(type(one) in kinds for one in gc.get_objects())

    if not is_any_there():
        return False
    gc.collect()  # Of graphs that are gone already.
    return is_any_there()


def _saved_tensors(loss: torch.Tensor) -> Iterator[tuple[str, torch.Tensor]]:
    """What the nodes of its graph saved for the backward, with the node's name."""
    seen, waiting = set(), [loss.grad_fn]
    while waiting:
        node = waiting.pop()
        if node is None or node in seen:
            continue
        seen.add(node)
        waiting += [following for following, _ in node.next_functions]
        for name in dir(node):
            if name.startswith("_saved_") or name == "saved_tensors":
                try:
                    saved = getattr(node, name)
                except RuntimeError:  # The backward has run and freed it, or its values were changed since.
                    continue
                for tensor in tensors_in(saved):
                    yield node.name(), tensor


def _allocated(device: torch.device) -> int | None:
    if device.type == "cuda":
        return torch.cuda.memory_allocated(device)
    if device.type != "cpu" or _engine_door.why_not() is not None:
        return None
    held: int | None = _engine_door.engine("headrace.memory_by_role").tensor_memory()[0]
    return held
