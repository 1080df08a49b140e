"""hr.gradient_checkpointing_enable: blocks of a module whose activations are computed again in the backward ("activation" or "gradient
checkpointing"), all of them, those named, every k-th, or as many as a budget of memory asks for."""

from __future__ import annotations

import dataclasses
import difflib
import functools
import inspect
from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch import nn

from ._compiled import CompiledForward
from ._measured_call import MeasuredCall
from ._recompute_choice import choose, peak_bytes
from ._recomputed_call import call_recomputed
from ._seen_calls import is_compiled_in_place
from .errors import InvalidArgumentError, UnsupportedError

MIB = 2**20


@dataclasses.dataclass(frozen=True)
class CheckpointingReport:
    """What was asked for and what is in force. The figures are of one training call of the part, and None until there was one.

    blocks: names of those that may be recomputed; recomputed: of those that are.
    offload: "host" where the kept arguments lie in the host's memory, "none" else.
    saved_bytes_before: what autograd would keep for the backward without recomputing, in storages that are no parameters and no
        buffers; saved_bytes_after: what it kept at the end of the forward, on the part's device. Measured, each storage once.
    peak_bytes: the most that is saved at once, with the block that has just been computed again; by those figures, predicted.
    forward_s, recompute_s: seconds of the part's forward in that call, and of its blocks that are recomputed, which is what a step
        takes longer.
    """

    requested: str
    applied: str
    reason: str
    blocks: tuple[str, ...]
    recomputed: tuple[str, ...]
    offload: str
    saved_bytes_before: int | None = None
    saved_bytes_after: int | None = None
    peak_bytes: int | None = None
    forward_s: float | None = None
    recompute_s: float | None = None

    def as_dict(self) -> dict[str, Any]:
        """For JSON."""
        return dataclasses.asdict(self)


class ActivationCheckpointing:
    """What gradient_checkpointing_enable() returns: `report` tells of it at any time. Copies and pickles of the part have one of
    their own."""

    def __init__(self, part: nn.Module, request: _Request) -> None:
        self._request = request
        self._names = list(request.blocks)
        self._forwards = [_BlockForward(module, self, name) for name, module in request.blocks.items()]
        self._part = _PartForward(part, self)  # Last: it may be a block itself.
        self._recomputed = frozenset(request.recomputed)
        self._measured: MeasuredCall | None = None  # A call that is under way.
        self._to_measure = True
        self._figures: dict[str, Any] = {}
        self._choice_reason = self._measure_reason = ""
        for forward in (*self._forwards, self._part):
            forward.put()

    @property
    def report(self) -> CheckpointingReport:
        count, total = len(self._recomputed), len(self._names)
        applied = f"{count} of {total} {'block' if total == 1 else 'blocks'} recomputed"
        if not self._part.is_on:
            applied = "disabled"
        reasons = [self._request.reason, self._choice_reason, self._measure_reason, self._offload_reason()]
        return CheckpointingReport(
            self._request.text, applied, "; ".join(filter(None, reasons)), tuple(self._names),
            tuple(name for name in self._names if name in self._recomputed),
            "host" if self._request.offload and not self._offload_reason() else "none", **self._figures)

    def disable(self) -> None:
        """As gradient_checkpointing_disable() of the part."""
        for forward in (self._part, *reversed(self._forwards)):
            forward.remove()

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_measured": None}

    def __repr__(self) -> str:
        report = self.report
        return f"<headrace.ActivationCheckpointing: {report.requested}: {report.applied}{'; ' * bool(report.reason)}{report.reason}>"

    def call_block(self, block: _BlockForward, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        if block.name not in self._recomputed:
            return block.plain_call(*args, **kwargs)
        call = functools.partial(call_recomputed, block.name or type(block.module).__name__, block.module, block.plain_call, args, kwargs,
                                 replays_draws=self._request.preserve_rng_state,
                                 to_host=self._request.offload and not self._offload_reason())
        return call() if self._measured is None else self._measured.block(block.name, call, args, kwargs)

    def call_part(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Of a training call: the first is measured, and of a budget the one with its choice in force, too. Not within somebody's hooks
        on saved tensors: ours would stand in their place, and a call that is recomputed itself must not change from one time to the
        next."""
        if not self._to_measure or self._measured is not None:
            return self._part.plain_call(*args, **kwargs)
        is_within = torch._C._autograd._top_saved_tensors_default_hooks(False) is not None
        self._measure_reason = "not measured: the part is called within hooks on saved tensors" if is_within else ""
        if is_within:
            return self._part.plain_call(*args, **kwargs)
        self._measured = measured = MeasuredCall(self._part.module)
        try:
            begin = measured.now()
            with measured.counting():
                result = self._part.plain_call(*args, **kwargs)
            self._learn(measured, measured.now() - begin)
        finally:
            self._measured = None
        return result

    def _learn(self, measured: MeasuredCall, seconds: float) -> None:
        if self._figures:
            self._figures["saved_bytes_after"] = measured.bytes_after()
            self._to_measure = False
            return
        keeps_inputs = not self._request.offload or bool(self._offload_reason())
        calls, outside = measured.calls, measured.outside()
        self._figures = {"saved_bytes_before": peak_bytes(calls, outside, ()), "saved_bytes_after": measured.bytes_after(),
                         "forward_s": seconds}
        budget = self._request.budget_bytes
        if budget is None:
            self._to_measure = False
            self._figures["peak_bytes"] = peak_bytes(calls, outside, self._recomputed, keeps_inputs)
        else:
            choice = choose(calls, outside, budget, keeps_inputs)
            self._recomputed = choice.recomputed
            self._figures["peak_bytes"] = choice.peak_bytes
            self._figures["saved_bytes_after"] = None  # Of the next call.
            self._choice_reason = "" if choice.fits else (
                f"budget_mib: wanted at most {budget / MIB:g} MiB kept at once for the backward, found {choice.peak_bytes / MIB:.1f} MiB "
                f"with {len(choice.recomputed)} of {len(self._names)} blocks recomputed, the least that a choice of blocks reaches")
        self._figures["recompute_s"] = sum(call.seconds for call in calls if call.block in self._recomputed)

    def _offload_reason(self) -> str:
        if not self._request.offload:
            return ""
        device = next((tensor.device for tensor in self._part.module.parameters()), torch.device("cpu"))
        return "" if device.type == "cuda" else f"offload=\"host\" is not applied: the part is on {device.type}, which is not a CUDA device"


def gradient_checkpointing_enable(part: nn.Module, policy: str | Sequence[str] = "blocks", *, every: int | None = None,
                                  budget_mib: float | None = None, offload: bool | str = False,
                                  preserve_rng_state: bool = True) -> ActivationCheckpointing:
    """From here on the activations of blocks of this module (a model, or a part of one, as its backbone) are not kept for the backward
    but computed again there. Gradients are bit for bit those of the plain run where its operators are deterministic, dropout
    included, and BatchNorm's statistics are updated once. Works with any loop, with headrace.Trainer, and under torch.autocast.

    policy: "blocks", all blocks: the items of the lists (torch.nn.ModuleList, torch.nn.Sequential) in the part that are made of
        several modules; where there are none, the part itself. Or a list of names, as named_modules() of the part has them, "" being
        the part.
    every: of so many blocks one after the other the first is recomputed; 1 is all of them.
    budget_mib: what autograd may keep for the part at once, in MiB; as many blocks are recomputed as that asks for, those first that
        take the least time for a byte. The first training call of the part recomputes all, and is measured; the choice is in force
        from the second on. It holds for inputs like those: enable again where they grow.
    offload: "host": what is kept, the arguments of recomputed blocks, lies in page-locked memory of the host until the backward. Of a
        part on a CUDA device; elsewhere the report says why not. True is "host".
    preserve_rng_state: False spares keeping the states of generators; for parts that draw nothing. The states are torch's, of the CPU
        and of all CUDA devices, Python's and NumPy's.

    A block is recomputed in training only: not in eval(), not without gradients, and not in what torch.compile has compiled, which
    chooses by itself what to recompute. A block's own hooks run once, those of what is in it twice. A part that is
    enabled already gets the new policy. Costs one more forward of each recomputed block; the report has its seconds. One thread may
    train the part at a time.

    InvalidArgumentError: a name that the part does not have, two policies at once, or a block that another enabled part has.
    UnsupportedError: a ScriptModule or a compiled module. In the first forward: of a block that changes its arguments in place.
    """
    request = _request(part, policy, every, budget_mib, offload, preserve_rng_state)
    gradient_checkpointing_disable(part)
    for name, module in {**request.blocks, "": part}.items():
        if (owner := _forward_of(module)) is not None:
            raise InvalidArgumentError(f"gradient_checkpointing: {name or 'the part'}: wanted a module that no other part recomputes, "
                                       f"found one of a part of {type(owner.owner._part.module).__name__}: disable that first")
    return ActivationCheckpointing(part, request)


def gradient_checkpointing_disable(part: nn.Module) -> None:
    """Takes back gradient_checkpointing_enable() of this module: its blocks keep their activations again, and their forwards are those
    from before. Graphs that are there already are not changed. Does nothing where it was not enabled."""
    forward = vars(part).get("forward")
    while forward is not None:
        if isinstance(forward, _PartForward):
            forward.owner.disable()
            return
        forward = getattr(forward, "plain", None)


# What was asked for.


@dataclasses.dataclass(frozen=True)
class _Request:
    text: str
    reason: str
    blocks: dict[str, nn.Module]
    recomputed: tuple[str, ...]  # To begin with.
    budget_bytes: float | None
    offload: bool
    preserve_rng_state: bool


def _request(part: nn.Module, policy: Any, every: int | None, budget_mib: float | None, offload: bool | str,
             preserve_rng_state: bool) -> _Request:
    if not isinstance(part, nn.Module):
        raise InvalidArgumentError(f"gradient_checkpointing: part: wanted a torch.nn.Module, found {type(part).__name__}")
    if offload not in (False, True, "host"):
        raise InvalidArgumentError(f"gradient_checkpointing: offload: wanted False, \"host\" or True, which is \"host\", found {offload!r}")
    choices = [f"{key}={value!r}" for key, value, default in (("policy", policy, "blocks"), ("every", every, None),
                                                              ("budget_mib", budget_mib, None)) if value != default]
    if len(choices) > 1:
        raise InvalidArgumentError("gradient_checkpointing: wanted one of a list of names as policy, every and budget_mib, found "
                                   f"{' and '.join(choices)}")
    if every is not None and (isinstance(every, bool) or not isinstance(every, int) or every < 1):
        raise InvalidArgumentError(f"gradient_checkpointing: every: wanted a whole number of at least 1, found {every!r}")
    if budget_mib is not None and (isinstance(budget_mib, bool) or not isinstance(budget_mib, (int, float)) or not budget_mib > 0):
        raise InvalidArgumentError(f"gradient_checkpointing: budget_mib: wanted a number of MiB above 0, found {budget_mib!r}")
    if policy == "blocks":
        blocks = dict(_blocks_of(part)) or {"": part}
        reason = "the part has no list of blocks, and is one block" if "" in blocks else ""
        text = "all blocks"
    else:
        blocks, reason = _named(part, policy), ""
        text = "blocks by name"
    recomputed = tuple(blocks)
    if every is not None:
        recomputed, text = recomputed[::every], f"one of {every} blocks"
    if budget_mib is not None:
        text = f"a budget of {budget_mib:g} MiB"
    for name, module in {**blocks, "": part}.items():
        _refuse_compiled(name, module)
    return _Request(text + ", arguments on the host" * bool(offload), reason, blocks, recomputed,
                    None if budget_mib is None else budget_mib * MIB, bool(offload), bool(preserve_rng_state))


def _named(part: nn.Module, names: Any) -> dict[str, nn.Module]:
    if isinstance(names, str) or not isinstance(names, Sequence) or not names:
        raise InvalidArgumentError(f"gradient_checkpointing: policy: wanted \"blocks\" or a list of names, found {names!r}")
    known = dict(part.named_modules(remove_duplicate=False))
    blocks: dict[str, nn.Module] = {}
    for name in names:
        if name not in known:
            near = difflib.get_close_matches(str(name), known, 1)
            hint = f", did you mean {near[0]}?" if near else ""
            raise InvalidArgumentError(f"gradient_checkpointing: policy: wanted names of modules in {type(part).__name__}, found "
                                       f"{name!r}{hint}")
        if all(known[name] is not module for module in blocks.values()):  # A shared module has several names.
            blocks[name] = known[name]
    return blocks


_LISTS = (nn.Sequential, nn.ModuleList, nn.ModuleDict)  # Types that are lists of modules and no more; subclasses have a purpose.


def _blocks_of(module: nn.Module, prefix: str = "") -> Iterator[tuple[str, nn.Module]]:
    """Items of lists that are made of several modules: of lists within lists those of the innermost. Each module once."""
    for name, child in module.named_children():
        inner = list(_blocks_of(child, f"{prefix}{name}."))
        is_item = type(module) in _LISTS[:2] and next(child.children(), None) is not None and type(child) not in _LISTS[1:]
        if is_item and not (type(child) in _LISTS and inner):
            yield prefix + name, child
        else:
            yield from inner


def _refuse_compiled(name: str, module: nn.Module) -> None:
    if isinstance(module, torch.jit.ScriptModule) or is_compiled_in_place(module) or "_orig_mod" in module._modules:
        raise UnsupportedError(f"gradient_checkpointing: {name or 'the part'}: wanted a module that runs as Python, found a "
                               f"{type(module).__name__} that is compiled: enable it before torch.compile, which chooses by itself")
    forward = vars(module).get("forward")
    while forward is not None:
        if isinstance(forward, CompiledForward) and forward.is_on:
            raise UnsupportedError(f"gradient_checkpointing: {name or 'the part'}: wanted a module that runs as Python, found one that is "
                                   "compiled by headrace.compiled(): undo() that, enable this, and compile then")
        forward = getattr(forward, "plain", None)


# Forwards that stand on the modules.


class _Forward:
    """Stands as `module.forward` on the instance. Copies and pickles go with their module."""

    def __init__(self, module: nn.Module, owner: ActivationCheckpointing) -> None:
        self.module, self.owner = module, owner
        self.plain: Any = None  # A forward that the instance had of its own already.
        self.is_on = False

    def put(self) -> None:
        self.plain = vars(self.module).get("forward")
        self.module.forward = self  # type: ignore[assignment]
        self.is_on = True

    def remove(self) -> None:
        """Where somebody has put another forward over it meanwhile, it stays within that one and does nothing."""
        if vars(self.module).get("forward") is self:
            if self.plain is None:
                del self.module.forward
            else:
                self.module.forward = self.plain
        self.is_on = False

    def plain_call(self, *args: Any, **kwargs: Any) -> Any:
        return type(self.module).forward(self.module, *args, **kwargs) if self.plain is None else self.plain(*args, **kwargs)

    @property
    def __signature__(self) -> inspect.Signature:
        """The module's, for those who ask which arguments a model takes."""
        return inspect.signature(type(self.module).forward.__get__(self.module) if self.plain is None else self.plain)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        # First: what torch.compile compiles ends here.
        if torch.compiler.is_compiling() or not self.is_on or not self.module.training or not torch.is_grad_enabled():
            return self.plain_call(*args, **kwargs)
        return self._training_call(args, kwargs)

    def _training_call(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        raise NotImplementedError


class _BlockForward(_Forward):
    def __init__(self, module: nn.Module, owner: ActivationCheckpointing, name: str) -> None:
        super().__init__(module, owner)
        self.name = name

    def _training_call(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        return self.owner.call_block(self, args, kwargs)


class _PartForward(_Forward):
    def _training_call(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        return self.owner.call_part(args, kwargs)


def _forward_of(module: nn.Module) -> _BlockForward | None:
    """Of a module that is recomputed already."""
    forward = vars(module).get("forward")
    while forward is not None:
        if isinstance(forward, _BlockForward) and forward.is_on:
            return forward
        forward = getattr(forward, "plain", None)
    return None
