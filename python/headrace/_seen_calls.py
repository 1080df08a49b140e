"""How calls of modules are seen: without a hook where that can be, because torch leaves its short way to forward() for any hook."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import torch
from torch import nn
from torch.compiler import is_compiling, is_dynamo_compiling
from torch.utils.hooks import RemovableHandle

from . import _core
from ._inert_hook import InertHook
from ._live_saves import copies_itself
from ._state import tensors_in

try:
    from torch._C._dynamo.eval_frame import _FrameAction, _FrameExecStrategy, set_code_exec_strategy
except ImportError:  # An older torch. There a hook sees every call.
    _is_known_torch = False
else:
    _is_known_torch = "_compiled_call_impl" in vars(nn.Module)

COMPILED_CALL = "_compiled_call_impl"  # What Module.compile() leaves on a module, whose call then goes there.


def is_compiled_in_place(module: nn.Module) -> bool:
    """By Module.compile()."""
    call = getattr(module, COMPILED_CALL, None)
    return call is not None and not isinstance(call, CallObserver)


class SeenCalls:
    """Tells LoopUnits of each call of these modules: whether with gradients, in which mode, with how many numbers in its inputs.

    Where nothing stands against it (why_hooked), a CallObserver lies where Module.compile() would leave a compiled call. The module
    then has no hook of ours, its forward() and its attributes are as the user wrote them, and a copy or pickle has nothing of
    it, as torch leaves that place out of a module's state. Elsewhere a forward pre-hook sees the call. A ScriptModule takes
    neither: its calls are not seen.

    Compiled code that calls such a module goes to forward() past a CallObserver, and through a hook without effect: it stays whole,
    and nothing in it is seen. A later Module.compile() puts its own call over ours, which stays so.

    Costs one Python function a call, or with a hook five. One thread installs and removes; calls may come from any."""

    def __init__(self, units: _core.LoopUnits, modules: Iterable[nn.Module]) -> None:
        self.modules = [module for module in modules if not isinstance(module, torch.jit.ScriptModule)]
        self.hooked: dict[str, str] = {}  # By class: why a hook sees its calls.
        self._hook = CallHook(units)
        self._handles: list[RemovableHandle] = []
        self._calls: list[CallObserver] = []
        try:
            for module in self.modules:
                self._watch(module)
        except BaseException:
            self.remove()
            raise

    def _watch(self, module: nn.Module) -> None:
        if (reason := why_hooked(module)) is None:
            self._calls.append(CallObserver(module, self._hook))
            vars(module)[COMPILED_CALL] = self._calls[-1]
        else:
            self.hooked[type(module).__name__] = reason
            self._handles.append(module.register_forward_pre_hook(self._hook, with_kwargs=True))

    @property
    def are_hidden(self) -> bool:
        """Compiled code calls a module, so that no call is seen. Without its hook that code would be compiled anew."""
        return self._hook.was_traced or any(not call.is_in_place for call in self._calls)

    def remove(self) -> None:
        """May be called again, and within a call."""
        for handle in self._handles:
            handle.remove()
        for call in self._calls:
            if call.is_in_place:
                del vars(call.module)[COMPILED_CALL]
        self._handles, self._calls, self.modules = [], [], []


class CallHook(InertHook):
    """Before a call of a module. It runs in every call, so that there is no further function in between."""

    def __init__(self, units: _core.LoopUnits) -> None:
        self._units = units  # Held for its function's sake.
        self.see_call, _, _ = units.hooks
        self.was_traced = False  # Compiled code calls its module.

    def __call__(self, module: nn.Module, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> None:
        if is_dynamo_compiling():  # First: a trace of this hook writes this, and reads nothing.
            self.was_traced = True
            return
        has_gradients, numbers = torch.is_grad_enabled(), 0
        if len(args) == 1 and not kwargs and type(args[0]) is torch.Tensor:  # Most calls, with as few functions as can be.
            if has_gradients:
                numbers = args[0].numel()
        elif is_compiling():  # torch.export, whose tensors are of classes of its own.
            self.was_traced = True
            return
        elif has_gradients:
            numbers = _numbers_in([args, kwargs])
        self.see_call(has_gradients, module.training, numbers)


class CallObserver:
    """Stands as a module's compiled call, and calls the module as it is. A copy of it, which only a class makes that has its state
    kept in a way of its own, is None: such a copy is called as written."""

    def __init__(self, module: nn.Module, hook: CallHook) -> None:
        self.module = module
        self._hook, self._see_call, self._call = hook, hook.see_call, module._call_impl

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        if kwargs or len(args) != 1 or type(args[0]) is not torch.Tensor or is_dynamo_compiling():
            self._hook(self.module, args, kwargs)
        elif torch.is_grad_enabled():  # Most calls, as in the hook.
            self._see_call(True, self.module.training, args[0].numel())
        else:
            self._see_call(False, self.module.training, 0)
        return self._call(*args, **kwargs)

    def __reduce__(self) -> tuple[Any, tuple[Any, ...]]:
        return getattr, (object, COMPILED_CALL, None)

    @property
    def is_in_place(self) -> bool:
        return vars(self.module).get(COMPILED_CALL) is self


def _numbers_in(given: Any) -> int:
    return sum(tensor.numel() for tensor in tensors_in(given))


if _is_known_torch:  # Where a model's call is compiled, that begins with its forward(), as if nothing stood before it.
    for _kind in (CallHook, CallObserver):
        set_code_exec_strategy(_kind.__call__.__code__, _FrameExecStrategy(_FrameAction.SKIP, _FrameAction.DEFAULT))
    # With all that it calls: at a generator compiling with fullgraph=True raises.
    set_code_exec_strategy(_numbers_in.__code__, _FrameExecStrategy(_FrameAction.SKIP, _FrameAction.SKIP))


def why_hooked(module: nn.Module) -> str | None:
    """What stands against seeing its calls without a hook; None: nothing."""
    kind = type(module)
    if not _is_known_torch:
        return f"torch {torch.__version__} calls modules in another way"
    if kind.__call__ is not nn.Module._wrapped_call_impl:  # Somebody may have replaced nn.Module.__call__, too.
        return "it has a __call__ of its own"
    if getattr(module, COMPILED_CALL) is not None:
        return "it is compiled in place" if is_compiled_in_place(module) else "another autotune sees its calls"
    method = "__getstate__" if kind.__getstate__ is not nn.Module.__getstate__ else copies_itself(module)
    if method is not None:
        return f"it copies itself by {method} of its own"
    if torch.cuda.device_count() > 1 and any(parameter.is_cuda for parameter in module.parameters()):
        return "there are several GPUs, for each of which a DataParallel would copy what stands on it"
    return None
