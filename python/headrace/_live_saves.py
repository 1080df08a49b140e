"""What is saved of the objects of a run while it is tuned."""

from __future__ import annotations

import collections
import functools
from typing import Any, Iterable, Mapping

import torch
from torch import nn

from ._forward import TunedForward
from ._inert_hook import InertHook
from ._live_layout import Layout
from ._settings import UpdateSwitch

_GETSTATE = "__getstate__"  # What copies and pickles ask an object for, on the object first.
_COPYING = ("__copy__", "__deepcopy__", "__reduce__", "__reduce_ex__")
_PACKAGE = __name__.split(".", 1)[0] + "."


def copies_itself(module: nn.Module) -> str | None:
    """The method by which its class copies it in a way of its own, as torch.fx.GraphModule and parametrized modules have: what
    hangs on such a module goes into its copies. None: as Python does it."""
    for name in _COPYING:
        if getattr(type(module), name, None) is not getattr(object, name, None):
            return name
    return None


class PlainSaves:
    """Covers modules and optimizers: what state_dict() gives, and a copy or pickle of a module, is as it would be without
    headrace. Strides, `fused` and `foreach` are as written, the forward is the module's own, and none of this package's hooks is in
    it. What load_state_dict() puts into a covered optimizer gets the settings that are in force.

    Covering hooks an object's state_dict() and puts a __getstate__ on a module; uncovering leaves their attributes as they
    were. Modules of which copies_itself() names a method are left alone. A copy or pickle of an optimizer is of how it stands.
    """

    def __init__(self, layout: Layout) -> None:
        self._layout = layout
        self._modules: dict[int, tuple[nn.Module, list[Any]]] = {}  # By id: each with the handles of its hooks.
        self._optimizers: dict[int, tuple[torch.optim.Optimizer, list[Any]]] = {}

    def cover(self, modules: Iterable[nn.Module], switches: Mapping[torch.optim.Optimizer, UpdateSwitch]) -> None:
        """These and no others."""
        wanted = {id(module): module for module in modules if copies_itself(module) is None}
        for key in self._modules.keys() - wanted.keys():
            _uncover(*self._modules.pop(key))
        for key in wanted.keys() - self._modules.keys():
            self._modules[key] = wanted[key], self._cover_module(wanted[key])
        updating = {id(optimizer): optimizer for optimizer in switches}
        for key in self._optimizers.keys() - updating.keys():
            _uncover(*self._optimizers.pop(key))
        for key in updating.keys() - self._optimizers.keys():
            self._optimizers[key] = updating[key], self._cover_optimizer(updating[key], switches[updating[key]])

    def _cover_module(self, module: nn.Module) -> list[Any]:
        vars(module)[_GETSTATE] = functools.partial(self._module_state, module)
        return [module.register_state_dict_pre_hook(InertHook(self._before_save))]

    def _cover_optimizer(self, optimizer: torch.optim.Optimizer, switch: UpdateSwitch) -> list[Any]:
        return [optimizer.register_state_dict_pre_hook(InertHook(self._before_save)),
                optimizer.register_state_dict_post_hook(InertHook(lambda _, state_dict: switch.put_into(state_dict))),
                optimizer.register_load_state_dict_post_hook(InertHook(lambda _: self._after_load(switch)))]

    def _before_save(self, *ignored: Any) -> None:
        del ignored
        self._layout.write_back()

    def _after_load(self, switch: UpdateSwitch) -> None:
        switch.set(switch.on)  # In the groups that are new.
        self._layout.match()

    def _module_state(self, module: nn.Module) -> Any:
        self._layout.write_back()
        state = type(module).__getstate__(module)
        return _without_ours(state) if isinstance(state, dict) else state


def _uncover(covered: nn.Module | torch.optim.Optimizer, handles: list[Any]) -> None:
    vars(covered).pop(_GETSTATE, None)
    for handle in handles:
        handle.remove()


def _without_ours(state: dict[str, Any]) -> dict[str, Any]:
    """The attributes of a module but for what this package put there."""
    hooks = {key: value for key, value in state.items() if type(value) is collections.OrderedDict and "_hooks" in key}
    # What torch notes of a hook beside it, as _forward_hooks_with_kwargs, has its number, too. No two hooks have the same.
    ours = {number for one in hooks.values() for number, hook in one.items() if _is_ours(hook)}
    plain = {}
    for key, value in state.items():
        if key in hooks:
            value = collections.OrderedDict((number, entry) for number, entry in value.items() if number not in ours)
        elif key == "forward" and isinstance(value, TunedForward):
            value = value.plain
        if key != _GETSTATE and (key != "forward" or value is not None):
            plain[key] = value
    return plain


def _is_ours(hook: Any) -> bool:
    hook = getattr(hook, "func", hook)  # Of a functools.partial.
    return str(getattr(hook, "__module__", None)).startswith(_PACKAGE)
