"""Why a setting cannot take turns on the objects of a run that goes on."""

from __future__ import annotations

import gc
from typing import Any, Iterable, Iterator, Mapping, Sequence

import torch
from torch import nn
from torch.nn.parameter import UninitializedParameter

from . import _engine_door
from ._device import module_not_on_cpu
from ._forward import CHANNELS_LAST
from ._live_saves import copies_itself
from ._recorded_call import replays_graph
from ._seen_calls import is_compiled_in_place
from ._settings import (
    COMPILE, ENGINE, FOREACH, FUSED, MEMORY_FORMAT, MICRO_BATCHES, PRECISION, THREADS, UpdateSwitch, no_channels_last, no_compile,
    no_implementation, not_float32)

# They work number by number, so that gradients may lie in any layout. Others may ask for a view as a vector, which fails.
_ELEMENTWISE = {
    torch.optim.ASGD, torch.optim.Adadelta, torch.optim.Adagrad, torch.optim.Adam, torch.optim.AdamW, torch.optim.Adamax,
    torch.optim.NAdam, torch.optim.RAdam, torch.optim.RMSprop, torch.optim.Rprop, torch.optim.SGD}
# Devices that have an implementation of an optimizer's update. Adagrad's fused one is for the CPU alone.
_DEVICES = {FUSED: {"cpu", "cuda", "mps", "xpu"}, FOREACH: {"cpu", "cuda", "xpu"}}
_IN_USE = {FUSED: ("is fused", "are fused"), FOREACH: ("uses foreach", "use foreach")}
# By name, because looking at the classes would import torch.distributed and torch.compile's tracer.
_DISTRIBUTED = {"DistributedDataParallel", "FullyShardedDataParallel", "FSDPModule"}
_OWN_STEP = "the loop makes its steps itself; headrace.tune(whole_step=True) tries it"

Named = Sequence[tuple[str, nn.Parameter]]


def refusals(models: Sequence[nn.Module], switches: Mapping[torch.optim.Optimizer, UpdateSwitch], loader: Any,
             process_keys: Iterable[str]) -> dict[str, str]:
    """By key, why not, of every setting that these objects rule out. Collects garbage and looks at every object of the process,
    which takes some tenths of a second."""
    gc.collect()
    objects = gc.get_objects()
    modules = list(_modules(models, objects))
    parameters = _named(models)
    of_model = _unusual_model(models, modules) or _unusual_parameters(parameters)
    found: dict[str, str | None] = {
        PRECISION: of_model or _no_precision(parameters),
        **{key: _no_update(key, modules, parameters, switches) for key in (FUSED, FOREACH)},
        MEMORY_FORMAT: of_model or _no_layout(modules, parameters, list(switches)) or _held_elsewhere(parameters, objects),
        COMPILE: of_model or no_compile(loader),
        ENGINE: _OWN_STEP,
        MICRO_BATCHES: _OWN_STEP,
    }
    elsewhere = next(filter(None, map(module_not_on_cpu, models)), None)
    for key in (THREADS, *process_keys):
        found[key] = elsewhere and f"{elsewhere}, and the setting is one of the CPU"
    found.update(_engine_door.refusals())
    return {key: reason for key, reason in found.items() if reason is not None}


def _named(models: Sequence[nn.Module]) -> Named:
    """Each parameter once."""
    found: dict[int, tuple[str, nn.Parameter]] = {}
    for i, model in enumerate(models):
        for name, parameter in model.named_parameters():
            found.setdefault(id(parameter), (name if len(models) == 1 else f"models[{i}].{name}", parameter))
    return list(found.values())


def _modules(models: Sequence[nn.Module], objects: list[Any]) -> Iterator[tuple[str, nn.Module]]:
    """Each with what to call it, and those that have one of the models within: the model may have been compiled or distributed
    under another name."""
    for model in models:
        for name, module in model.named_modules():
            yield f"layer {name}" if name else "the model", module
    every = [one for one in objects if issubclass(type(one), nn.Module)]
    known = {id(model) for model in models}
    outer = every
    while outer:
        outer = [one for one in every if id(one) not in known and any(id(child) in known for child in _children(one))]
        known.update(map(id, outer))
        yield from (("the model", one) for one in outer)


def _children(module: nn.Module) -> Iterable[nn.Module]:
    return vars(module).get("_modules", {}).values()  # A module that is not built yet has none.


def _unusual_model(models: Sequence[nn.Module], modules: Iterable[tuple[str, nn.Module]]) -> str | None:
    for name, module in modules:
        if (reason := _ranks(module) or _unusual_module(module)) is not None:
            return f"{name} {reason}"
    for model in models:
        if (method := copies_itself(model)) is not None:
            return f"the model copies itself by {method} of its own"
    return None


def _ranks(module: nn.Module) -> str | None:
    kinds = {kind.__name__ for kind in type(module).__mro__} & _DISTRIBUTED
    return f"is a {kinds.pop()}, whose ranks would have to switch at the same update" if kinds else None


def _unusual_module(module: nn.Module) -> str | None:
    forward = vars(module).get("forward")
    if type(module).__name__ == "OptimizedModule" or is_compiled_in_place(module) or hasattr(
            forward, "_torchdynamo_orig_callable"):
        return "is compiled already"
    if replays_graph(module):
        return "replays a CUDA graph"
    if isinstance(module, nn.DataParallel):
        return "is a DataParallel, which copies its modules at each call"
    if isinstance(module, torch.jit.ScriptModule):
        return "is a ScriptModule, which runs outside of Python"
    if type(module).__module__.startswith("torch.ao.nn.quantized"):
        return "is quantised"
    return None


def _unusual_parameters(parameters: Named) -> str | None:
    for name, parameter in parameters:
        if isinstance(parameter, UninitializedParameter):
            return f"parameter {name} has no shape before the first call"
        if type(parameter) is not nn.Parameter:
            return f"parameter {name} is a {type(parameter).__name__}, not a plain Parameter"
    if not any(parameter.requires_grad for _, parameter in parameters):
        return "no parameter requires a gradient"
    return _half(parameter for _, parameter in parameters)


def _half(tensors: Iterable[torch.Tensor]) -> str | None:
    tensors = list(tensors)
    return not_float32(tensors) if any(tensor.dtype.itemsize < 4 for tensor in tensors) else None


def _no_precision(parameters: Named) -> str | None:
    if (reason := not_float32(parameter for _, parameter in parameters)) is not None:
        return reason
    devices = sorted({parameter.device.type for _, parameter in parameters})
    if len(devices) > 1:
        return f"the parameters are on {' and '.join(devices)}"
    (device,) = devices
    if not torch.amp.is_autocast_available(device):
        return f"there is no autocast on {device}"
    if torch.is_autocast_enabled(device):
        return f"the loop runs under autocast already, to {torch.get_autocast_dtype(device)}"
    if device == "cuda" and not torch.cuda.is_bf16_supported():
        return "this GPU has no bfloat16"
    return None


def _no_update(key: str, modules: Iterable[tuple[str, nn.Module]], parameters: Named,
               switches: Mapping[torch.optim.Optimizer, UpdateSwitch]) -> str | None:
    """By the implementation that `key` names, FUSED or FOREACH."""
    for name, module in modules:
        if (reason := _ranks(module)) is not None:
            return f"{name} {reason}"
        if isinstance(module, (nn.Embedding, nn.EmbeddingBag)) and module.sparse:
            return f"{name} has sparse gradients"
    if (reason := _in_use(FUSED, switches) or _in_use(key, switches)) is not None:  # What is fused stays so.
        return reason
    known = {id(parameter) for _, parameter in parameters}
    for optimizer in switches:
        updated = [parameter for group in optimizer.param_groups for parameter in group["params"]]
        if (reason := no_implementation(key, optimizer) or _unusual_update(key, optimizer, updated, known)) is not None:
            return reason
    return None


def _in_use(key: str, switches: Mapping[torch.optim.Optimizer, UpdateSwitch]) -> str | None:
    born = [uses for switch in switches.values() for uses in switch.uses(key)]
    one, several = _IN_USE[key]
    if not any(born):
        return None
    return f"the optimizer {one} already" if all(born) else f"{sum(born)} of {len(born)} parameter groups {several} already"


def _unusual_update(key: str, optimizer: torch.optim.Optimizer, updated: list[torch.Tensor], known: set[int]) -> str | None:
    name, kind = type(optimizer).__name__, key.rpartition(".")[2]
    foreign = [parameter for parameter in updated if id(parameter) not in known]
    if foreign:
        return (f"{len(foreign)} of the {name}'s {len(updated)} parameters belong to no given model, the first of shape "
                f"{tuple(foreign[0].shape)}")
    if any(type(parameter) not in (nn.Parameter, torch.Tensor) for parameter in updated):
        return f"the {name} updates parameters that are no plain tensors"
    if not any(parameter.requires_grad for parameter in updated):
        return f"none of the {name}'s parameters requires a gradient"
    for parameter in updated:
        device = parameter.device.type
        if device not in _DEVICES[key] or (key == FUSED and type(optimizer) is torch.optim.Adagrad and device != "cpu"):
            return f"{name} has no {kind} implementation on {device}"
        if not parameter.is_floating_point():
            return f"{name} has no {kind} implementation for {parameter.dtype}"
    return _half(updated)


def _no_layout(modules: Iterable[tuple[str, nn.Module]], parameters: Named,
               optimizers: Sequence[torch.optim.Optimizer]) -> str | None:
    if (reason := no_channels_last((parameter for _, parameter in parameters), CHANNELS_LAST)) is not None:
        return reason
    for optimizer in optimizers:
        if type(optimizer) not in _ELEMENTWISE:
            return f"{type(optimizer).__name__} is not known to work on gradients in another layout"
    for name, module in modules:
        if copies_itself(module) is not None and any(one.dim() in CHANNELS_LAST for one in module.parameters(recurse=False)):
            return f"{name} copies itself by {copies_itself(module)} of its own"
    updated = {id(parameter) for optimizer in optimizers for group in optimizer.param_groups for parameter in group["params"]}
    for name, parameter in _weights(parameters):
        if parameter.requires_grad and id(parameter) not in updated:
            return f"parameter {name} requires a gradient, and none of the given optimizers updates it"
        if parameter.device.type == "cpu" and parameter.is_shared():
            return f"parameter {name} shares its memory with other processes"
    return None


def _held_elsewhere(parameters: Named, objects: list[Any]) -> str | None:
    """What would keep the old memory: a list of `parameter.data` that somebody averages, a recorded graph."""
    names = {address: name for name, parameter in _weights(parameters) if (address := _address(parameter))}
    own = {id(parameter) for _, parameter in parameters}
    graph = torch.cuda.CUDAGraph if torch.cuda.is_initialized() else None
    for found in objects:
        if issubclass(type(found), torch.Tensor) and id(found) not in own:
            if (name := names.get(_address(found))) is not None:
                return f"another tensor shares the memory of parameter {name}"
        elif graph is not None and issubclass(type(found), graph):
            return "there is a CUDA graph, which holds addresses"
    return None


def _weights(parameters: Named) -> Named:
    return [(name, parameter) for name, parameter in parameters if parameter.dim() in CHANNELS_LAST]


def _address(tensor: torch.Tensor) -> int | None:
    if type(tensor).__name__ == "FakeTensor":  # Of torch.compile's; it has no memory, and warns whoever asks.
        return None
    try:
        return tensor.untyped_storage().data_ptr()
    except (RuntimeError, ValueError):  # Sparse, traced, without a shape yet, or of a subclass without memory of its own.
        return None
