"""A training unit's forward calls, kept and made again under other settings: how far its gradients move, without the loop's loss
function and without a snapshot.

Kept of an outermost call are its inputs, what it starts from, and the gradient that arrived at each of its outputs. Forward
again and torch.autograd.grad with that gradient give the loop's own gradients: a vector-Jacobian product needs no loss.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import Any

import torch
from torch import nn

from ._call_state import CallState
from ._draws import Draw, NotedDraws, RepeatedDraws
from ._forward import CHANNELS_LAST
from ._free_memory import free_bytes
from ._gradient_distance import Squares, output_squares, same_bits, squares
from ._inert_hook import InertHook
from ._recorded_call import Autocast, Gradients, RecordedCall, Replay, autocast_now, full_float32, shapes_of
from ._seen_calls import is_compiled_in_place
from ._settings import FOREACH, FUSED, MEMORY_FORMAT
from ._strategy import CUSTOM
from ._update_check import takes_fused, update_bytes, update_difference, updated
from .errors import Error, InvalidArgumentError, NumericsError, OutOfMemoryError, UnsupportedError

# Changes on which an optimizer's update depends; the layout, because fused ones walk through memory.
_UPDATE_KEYS = (FUSED, FOREACH, MEMORY_FORMAT)
_CALLS_A_MODEL = 4  # Of several models: a discriminator is called with real and generated samples, for both losses.
_CALLS_MAX = 64  # In all; the oldest goes first. A forward without a backward (evaluation without no_grad) is kept, too.
_SMALL_TENSOR = 1e-3  # A tensor with less of the gradients' norm holds rounding noise.
_ROOM = 1.5  # A candidate may take so much more than the reference.
# What torch says without OutOfMemoryError: the CPU's allocator; CUDA as it loads a kernel; cuBLAS and cuDNN as they begin.
_WITHOUT_MEMORY = ("DefaultCPUAllocator: can't allocate memory", "CUDA error: out of memory", "STATUS_ALLOC_FAILED")
_AS_IT_IS = "the kept call cannot be made again as the loop made it: "


class KeptCalls:
    """Records the outermost training forwards of each model in a unit, and replays them.

    A unit is what happens between two updates. Of one model the calls of the last micro-batch are kept: those of the graph that
    backward went through last. Of several the last four of each that backward reached, in order. A call whose inputs another
    call has computed is replayed on its own, from inputs cut off there, with the gradient that really arrived at its outputs.

    arm() is called between two updates, replay() before one, once ready(). A call may be replayed in later units too, and gives
    there what it gave in the first, because the parameters' values at its first replay are kept with it. Replaying leaves
    parameters, gradients, buffers, attributes of modules, generators and settings as they were, bit for bit. Hooks of the user's
    own on modules are part of the model, and run again.

    Cost: an armed unit copies the calls' inputs once (memory that a loader or the loop uses again would else change) and the
    buffers, looks through the modules (0.1 to 1 ms) and holds the gradients at the outputs until the last replay. A replay is
    one forward-backward a candidate and one for the reference of each kept call. Memory from the first replay on: gradients,
    parameters and outputs once; from the second kept call on the gradients of the call before. In units that are not armed:
    nothing. One thread: that which calls arm().

    Inputs: tensors anywhere in mappings, lists, tuples, dataclasses and headrace's batches are copied; objects of other classes
    are kept as they are, and an iterator is refused.
    """

    def __init__(self, models: Sequence[nn.Module], optimizers: Sequence[torch.optim.Optimizer],
                 forward_of: Callable[[nn.Module], Sequence[nn.Module]] | None = None) -> None:
        """`forward_of` names the modules that a loop calls in a model's place, for a model whose own forward is never called.
        Where it is not given and an armed unit went by without a call of the models, all of their parts are looked at."""
        self._models, self._optimizers = list(models), list(optimizers)
        self._looks_everywhere = forward_of is None
        targets = [part for model in models for part in (forward_of(model) if forward_of is not None else [model])]
        self._targets = [_unwrapped(target) for target in targets]
        self._thread = 0
        self._hooks: list[Any] = []
        self._recording = self._is_fresh = False
        self._depth = 0
        self._clock = 0  # Counts beginnings of calls and first arrivals of a gradient.
        self._begun: int | None = None  # Training calls seen since arm(); None: not armed yet.
        self._autocast: Autocast | None = None  # When armed.
        self._pending: RecordedCall | None = None
        self._calls: list[RecordedCall] = []
        self._reason = ""
        self._reference: Replay | None = None
        self._reference_form: tuple[dict[str, str], bool] = ({}, True)  # Its settings; whether in full precision.
        self._values: list[tuple[nn.Parameter, torch.Tensor]] = []  # Of the parameters at the reference's replay.
        self._draws: list[Draw] = []  # Of the reference's replay, where its tensors can have another layout.
        self._earlier: Gradients | None = None  # The reference's of the call kept before.

    # Recording.

    def arm(self) -> None:
        """Keeps the calls of the unit that begins. What is kept already stays until the unit's first call, as an LBFGS makes its
        calls within the update; and it stays for good once two calls have been replayed, which is what the distance between
        calls takes. disarm() drops it."""
        if self.ready() and self._reference is not None and self._earlier is not None:
            return
        if self._begun == 0 and self._looks_everywhere:
            self._unhook()
            self._targets = [part for model in self._models for part in _parts(_unwrapped(model))]
        self._begun, self._reason, self._depth, self._pending = 0, "", 0, None
        self._recording = self._is_fresh = True
        self._thread = threading.get_ident()
        self._autocast = autocast_now(self._device)
        if not self._hooks:
            self._hook()

    def disarm(self) -> None:
        """Drops what is kept, but for the gradients that distance_between_calls() needs."""
        self._recording = False
        self._unhook()
        self._drop_all()

    def end(self) -> None:
        """Frees everything; the hooks are gone. It may be armed again."""
        self.disarm()
        self._earlier = None

    def ready(self) -> bool:
        """Whether a training call is kept, and a gradient has arrived at its outputs."""
        return not self._reason and bool(self._reached())

    @property
    def called(self) -> list[nn.Module]:
        """The modules whose calls are kept, where it is ready: the models, or the parts that the loop calls in their place."""
        return list(dict.fromkeys(call.module for call in self._reached()))

    @property
    def why_not(self) -> str:
        """Where it is not ready."""
        if self._reason or self.ready():
            return self._reason
        names = " and ".join(dict.fromkeys(type(model).__name__ for model in self._models))
        if self._begun is None:
            return "no unit was looked at"
        if self._begun == 0:
            return f"{names} was not called with gradients enabled"
        return f"no gradient arrived at what {names} returned"

    def _hook(self) -> None:
        try:
            for target in self._targets:
                if is_compiled_in_place(target):
                    raise UnsupportedError(
                        f"{type(target).__name__} was compiled in place by compile(), and hooks would be compiled with it")
                self._hooks.append(target.register_forward_pre_hook(InertHook(self._before), prepend=True, with_kwargs=True))
                self._hooks.append(target.register_forward_hook(InertHook(self._after), with_kwargs=True, always_call=True))
        except Exception as error:  # noqa: BLE001 - a module of a kind that takes no hooks; why_not tells of it.
            self._unhook()
            self._refuse(_sentence(error))

    def _unhook(self) -> None:
        for hook in self._hooks:
            hook.remove()
        self._hooks = []

    def _refuse(self, reason: str) -> None:
        self._reason = self._reason or reason

    def _listens(self) -> bool:
        return self._recording and threading.get_ident() == self._thread

    def _before(self, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        if not self._listens():
            return
        if torch.cuda.is_initialized() and torch.cuda.is_current_stream_capturing():
            self._refuse("a CUDA graph is being captured")
            return
        self._depth += 1
        if self._depth > 1 or not torch.is_grad_enabled() or not any(p.requires_grad for p in module.parameters()):
            return
        if self._is_fresh:
            self._is_fresh = False
            self._drop_all()
        self._begun = (self._begun or 0) + 1
        self._clock += 1
        earlier = next((call.state for call in reversed(self._calls) if call.module is module), None)
        try:
            self._pending = RecordedCall(module, args, kwargs, self._clock, earlier, self._autocast)
        except Exception as error:  # noqa: BLE001 - the user's forward goes on; why_not tells of it.
            self._refuse(_sentence(error))

    def _after(self, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], result: Any) -> None:
        del args, kwargs
        if not self._listens():
            return
        self._depth = max(0, self._depth - 1)
        if self._depth > 0:
            return
        call, self._pending = self._pending, None
        if call is None or call.module is not module or result is None:  # None: the call has raised.
            return
        try:
            call.end(result, self._arrived)
            self._calls.append(call)
            if len(self._calls) > _CALLS_MAX:
                self._calls.pop(0).drop()
        except Exception as error:  # noqa: BLE001 - as before.
            call.drop()
            self._refuse(_sentence(error))

    def _arrived(self, call: RecordedCall, index: int, gradient: torch.Tensor | None) -> None:
        """In the loop's backward, with the sum of what an output's uses give."""
        if gradient is None or not self._recording:
            return
        # The tensor itself: of another one over its memory, a parameter's gradient could become an alias that is changed later.
        known = call.arrived.get(index)
        call.arrived[index] = gradient if known is None else known + gradient
        if call.reached is None:
            self._clock += 1
            call.reached = self._clock
            self._drop_older_than(call)

    def _drop_older_than(self, call: RecordedCall) -> None:
        reached = self._reached()
        if len(self._models) == 1:  # Backward had been there before the call began: an earlier micro-batch.
            older = [other for other in reached if other.reached is not None and other.reached < call.began]
        else:
            older = [other for other in reached if other.module is call.module][:-_CALLS_A_MODEL]
        for other in older:
            other.drop()
        self._calls = [other for other in self._calls if other not in older]

    def _reached(self) -> list[RecordedCall]:
        return [call for call in self._calls if call.reached is not None]

    def _drop_all(self) -> None:
        for call in self._calls:
            call.drop()
        self._calls = []
        if self._reference is not None:
            self._earlier = self._reference.gradients
        self._reference, self._values, self._draws = None, [], []

    # Replaying.

    def replay(self, apply: Callable[[Mapping[str, str]], Any], reference: Mapping[str, str], candidate: Mapping[str, str],
               in_force: Mapping[str, str], full_precision: bool = True) -> dict[str, Any]:
        """The fields of ReplayDistance (include/headrace/live_loop.h), or {"failure": (code, sentence)}.

        Called before an update, with the gradients of the parameters complete. The reference is replayed where it has not been
        for this call; from then on until another arm() nothing is recorded. Where gradients or outputs are not finite, distances
        are infinite and the cosine is NaN. Code "unsupported" says that the kept call is at fault and not the candidate: ready()
        is False then until another call is kept. A candidate that cannot be applied is "invalid_argument". Seconds are those of
        forward and backward alone, the first time they are made under the candidate. update_difference is there where the changes
        touch fused, foreach or the memory format, or set a strategy. Memory is checked first: what this process's used bytes grew
        by in the reference's forward, and its gradients' bytes, times 1.5; memory that the allocator had kept from the loop's own
        step is no growth, and is there for the candidate too. What apply(in_force) throws at the end, and what is no Exception
        (KeyboardInterrupt), passes. full_precision: for distances, as full_float32() has it, and under another memory format with the
        reference's draws; else as the loop computes, for seconds. other_draws: the candidate would have drawn in another order."""
        if not self.ready():
            return {"failure": (UnsupportedError.code, self.why_not)}
        self._recording = False
        is_reference = True
        try:
            known = self._replay_reference(apply, reference, full_precision)
            is_reference = False
            before = None
            if _may_change_update(reference, candidate):
                before = self._update_under(apply, reference)
            self._check_room(known.needed)
            apply(candidate)
            difference = update_difference(before, updated(self._optimizers)) if before else None
            del before
            moves_draws = bool(self._draws) and candidate.get(MEMORY_FORMAT) != reference.get(MEMORY_FORMAT)
            draws = RepeatedDraws(self._draws) if moves_draws else None
            with self._kept_values(), draws or contextlib.nullcontext():
                replayed = self._replay(full_precision)
            return {**self._distance(known, replayed), "update_difference": difference,
                    "other_draws": draws is not None and draws.found}
        except Exception as error:  # noqa: BLE001 - the user's code under a change; the caller hears of it.
            return {"failure": self._failure(error, is_reference)}
        finally:
            apply(in_force)

    def distance_between_calls(self, apply: Callable[[Mapping[str, str]], Any] | None = None,
                               reference: Mapping[str, str] = MappingProxyType({}),
                               in_force: Mapping[str, str] = MappingProxyType({})) -> float | None:
        """L2 distance of the reference's gradients of the call kept before from those of the one at hand, relative to the larger
        of the two: relative to the smaller it would be above 2 where one is more than thrice the other, and what is allowed of a
        change, which is half of it, would let gradients that are twice as large pass. With `apply`, called before an update, the reference is replayed first where it has not been, as in replay().
        None: fewer than two calls have been replayed, or this one cannot be (why_not)."""
        if apply is not None and self.ready() and self._reference is None:
            self._recording = False
            try:
                self._replay_reference(apply, reference, full_precision=True)
            except Exception as error:  # noqa: BLE001 - as in replay(); why_not tells of it.
                _, self._reason = self._failure(error, is_reference=True)
            finally:
                apply(in_force)
        if self._reference is None or self._earlier is None:
            return None
        return _total(_by_parameter(self._reference.gradients, self._earlier)).distance

    def _replay_reference(self, apply: Callable[[Mapping[str, str]], Any], settings: Mapping[str, str],
                          full_precision: bool) -> Replay:
        """Where it has not been made for this call."""
        form = (dict(settings), full_precision or self._device.type == "cpu")
        if self._reference is not None and self._reference_form == form:
            return self._reference
        self._reference, self._values = None, []
        for call in self._reached():
            call.state.forget_unmoved()
        values = list(dict.fromkeys(parameter for call in self._reached() for parameter in call.module.parameters()))
        self._check_room(2 * sum(parameter.numel() * parameter.element_size() for parameter in values))
        apply(settings)
        can_move = full_precision and any(parameter.dim() in CHANNELS_LAST for parameter in values)
        with NotedDraws() if can_move else contextlib.nullcontext() as noted:
            replayed = self._replay(full_precision)
        self._draws = noted.draws if noted is not None else []
        if not _total(_by_parameter({}, replayed.gradients)).is_finite:
            raise NumericsError("its gradients are not finite")
        self._values = [(parameter, parameter.detach().clone()) for parameter in values]
        self._reference, self._reference_form = replayed, form
        return replayed

    def _update_under(self, apply: Callable[[Mapping[str, str]], Any], settings: Mapping[str, str]) -> list[torch.Tensor]:
        """What an update gives under these settings; empty: no optimizer has several implementations of it."""
        if not any(map(takes_fused, self._optimizers)):
            return []
        self._check_room(2 * update_bytes(self._optimizers))
        apply(settings)
        return updated(self._optimizers)

    def _replay(self, full_precision: bool) -> Replay:
        """All kept calls, in the order in which the loop made them, under the settings in force."""
        result = Replay()
        with full_float32(self._device) if full_precision else contextlib.nullcontext():
            for call in self._reached():
                now = CallState(call.module)
                try:
                    call.state.restore()
                    call.replay(result)
                finally:
                    now.restore()
        result.needed += sum(gradient.numel() * gradient.element_size() for gradient in result.gradients.values())
        return result

    @contextlib.contextmanager
    def _kept_values(self) -> Iterator[None]:
        """The parameters as they were when the reference was replayed, where an update has come since."""
        moved = [(parameter, values, parameter.detach().clone()) for parameter, values in self._values
                 if not torch.equal(parameter, values)]
        try:
            for parameter, values, _ in moved:
                parameter.detach().copy_(values)
            yield
        finally:
            for parameter, _, now in moved:
                parameter.detach().copy_(now)

    def _distance(self, known: Replay, replayed: Replay) -> dict[str, Any]:
        if [output.shape for output in known.outputs] != [output.shape for output in replayed.outputs]:
            raise UnsupportedError(f"under the change the call returns {shapes_of(replayed.outputs)}; wanted "
                                   f"{shapes_of(known.outputs)}")
        distances = _by_parameter(known.gradients, replayed.gradients)
        whole = _total(distances)
        outputs = sum((output_squares(a, b) for a, b in zip(known.outputs, replayed.outputs)
                       if a.is_floating_point() or a.is_complex()), Squares())
        large = {parameter: distance.relative_l2 for parameter, distance in distances.items()
                 if distance.reference >= _SMALL_TENSOR**2 * whole.reference}
        worst = max(large, key=large.__getitem__, default=None)
        is_bit_equal = len(distances) == len(known.gradients) and all(
            same_bits(gradient, replayed.gradients.get(parameter)) for parameter, gradient in known.gradients.items()) and all(
            same_bits(a, b) for a, b in zip(known.outputs, replayed.outputs))
        return {
            "relative_l2": whole.relative_l2, "cosine": whole.cosine,
            "worst_tensor": 0.0 if worst is None else large[worst], "worst_name": "" if worst is None else self._name_of(worst),
            "output_difference": outputs.relative_l2, "finite": whole.is_finite and outputs.is_finite,
            "bit_equal": is_bit_equal, "seconds": replayed.seconds,
        }

    def _name_of(self, parameter: nn.Parameter) -> str:
        """As its model names it; of several models with the model's place and class."""
        for place, model in enumerate(self._models):
            for name, other in model.named_parameters():
                if other is parameter:
                    return name if len(self._models) == 1 else f"{place} {type(model).__name__}: {name}"
        return "a parameter of no model"

    def _check_room(self, needed: int) -> None:
        free = free_bytes(self._device)
        if free is not None and needed * _ROOM > free:
            raise OutOfMemoryError(f"a replay needs {_mib(int(needed * _ROOM))}, {_mib(free)} are free")

    def _failure(self, error: Exception, is_reference: bool) -> tuple[str, str]:
        code = code_of(error)
        if not is_reference or code == OutOfMemoryError.code:
            return InvalidArgumentError.code if code == UnsupportedError.code else code, _sentence(error)
        held = next((name for call in self._calls if (name := call.state.held_of_a_graph()) is not None), None)
        hidden = "" if held is None else f"{held} holds a tensor of an earlier call's graph: "
        self._reason = f"{_AS_IT_IS}{hidden}{_sentence(error)}"
        return UnsupportedError.code, self._reason

    @property
    def _device(self) -> torch.device:
        return next((p.device for model in self._models for p in model.parameters()), torch.device("cpu"))


def code_of(error: BaseException) -> str:
    """The ErrorCode of an exception of any kind: out_of_memory, headrace's own, or internal."""
    if isinstance(error, (MemoryError, torch.OutOfMemoryError)) or any(words in str(error) for words in _WITHOUT_MEMORY):
        return OutOfMemoryError.code
    return error.code if isinstance(error, Error) else "internal"


def last_line(error: BaseException) -> str:
    """That a traceback would end with: the class and the first line of the message."""
    lines = str(error).strip().splitlines()
    return f"{type(error).__name__}: {lines[0]}" if lines else type(error).__name__


def _sentence(error: Exception) -> str:
    lines = str(error).strip().splitlines()
    return lines[0] if isinstance(error, Error) and lines else last_line(error)


def _unwrapped(module: nn.Module) -> nn.Module:
    """What DistributedDataParallel calls: its own forward waits for a backward that reduces gradients."""
    while isinstance(module, nn.parallel.DistributedDataParallel):
        module = module.module
    return module


def _parts(module: nn.Module) -> list[nn.Module]:
    """Without what torch.compile has taken in: hooks there would be compiled."""
    return [part for name, part in module.named_modules() if "_orig_mod" not in name.split(".")]


def _by_parameter(reference: Gradients, candidate: Gradients) -> dict[nn.Parameter, Squares]:
    return {parameter: squares(reference.get(parameter), candidate.get(parameter)) for parameter in {**reference, **candidate}}


def _total(distances: dict[nn.Parameter, Squares]) -> Squares:
    return sum(distances.values(), Squares())


def _mib(size: int) -> str:
    return f"{size / 2**20:,.1f} MiB"


def _may_change_update(reference: Mapping[str, str], candidate: Mapping[str, str]) -> bool:
    """A strategy may do anything."""
    return any(reference.get(key) != candidate.get(key) for key in {**reference, **candidate}
               if key in _UPDATE_KEYS or key.startswith(CUSTOM))
