"""hr.compiled: torch.compile of a module in the first of several modes that works; if none does, the module runs uncompiled."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import inspect
import itertools
import statistics
import time
import warnings
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import torch
from torch import nn

from ._charts import aligned, paragraph, table
from ._progress import tell_line
from ._seen_calls import is_compiled_in_place
from ._settings import no_compile
from ._state import Generators, tensors_in
from .errors import InvalidArgumentError

MODES = ("max-autotune-no-cudagraphs", "default")
EAGER = "eager"  # Uncompiled.
# Calls of one mode that compile again. torch's own limit is 8 graphs of a function (torch._dynamo.config.recompile_limit), beyond which
# it runs the function uncompiled, with a warning in its log.
RECOMPILATIONS_MAX = 6
_OF_INDUCTOR = ("default", "reduce-overhead", "max-autotune", "max-autotune-no-cudagraphs")
_TIMED_STEPS = 5
# Relative L2 distance from the outputs of the uncompiled model, beyond which a mode computes something else. The second one if outputs or
# parameters have 16 bits, or under autocast.
_DISTANCE_MAX, _DISTANCE_MAX_OF_16_BITS = 1e-3, 5e-2
_HEAD = ("mode", "state", "compile time, s", "eager step, ms", "compiled step, ms", "graphs compiled", "recompilations", "graph breaks",
         "reason")
_UNDONE = "undone"
_NOT_CALLED = "the model was not called yet: torch compiles at its first call"
_paused: list[list[CompiledForward]] = []  # Of each paused() block that is open, the models that were called in it.
_numbers = itertools.count()


@dataclasses.dataclass
class CompileAttempt:
    """One mode of the list.

    compile_s: seconds of the steps or calls in which torch compiled. eager_ms, compiled_ms: milliseconds of a step, forward and backward,
    uncompiled and compiled: medians of several steps, measured in turns. None: not measured. compilations: graphs that the back end was
    given. recompilations: calls after the first in which torch compiled again. graph_breaks: as torch counts them."""

    mode: str
    tried: bool = False
    applied: bool = False
    reason: str = ""  # Why it is not applied.
    compile_s: float | None = None
    eager_ms: float | None = None
    compiled_ms: float | None = None
    compilations: int = 0
    recompilations: int = 0
    graph_breaks: int = 0

    @property
    def state(self) -> str:
        """One of "applied" (calls run in this mode), "dropped" (tried, and not used for the reason given), "undone" (ended by
        Compiled.undo()), "not tried"."""
        if self.applied:
            return "applied"
        if not self.tried:
            return "not tried"
        return "undone" if self.reason == _UNDONE else "dropped"


class _GraphFailed(Exception):
    """A compiled graph raised while it ran."""


class _CannotCompile(Exception):
    """torch.compile itself refused."""


class Compiled:
    """A model compiled by hr.compiled(). `model` is the module that was given: the same object, with the same names of parameters, so
    checkpoints have no `_orig_mod.` in them. A copy or a pickle of it is not compiled."""

    def __init__(self, model: nn.Module, forward: CompiledForward) -> None:
        self.model = model
        self._forward = forward

    @property
    def compile_enabled(self) -> bool:
        """Whether the model's last call ran compiled code. False before the first call."""
        return self._forward.ran_compiled

    @property
    def mode(self) -> str:
        """The mode in use; "eager" if no other mode is left."""
        return self._forward.mode

    @property
    def reason(self) -> str:
        """Why compile_enabled is False, or from which shape on nothing more is compiled; else empty."""
        return self._forward.reason

    @property
    def attempts(self) -> tuple[CompileAttempt, ...]:
        """The modes in the order in which they are tried, "eager" last."""
        return self._forward.told()

    @property
    def report(self) -> dict[str, Any]:
        """For JSON: requested (the modes), applied (the mode in use), reason, compile_enabled, attempts, and forms: how many different
        calls there were, by shapes and dtypes of the tensors, training or evaluation, with or without gradients."""
        return {"requested": [attempt.mode for attempt in self._forward.attempts], "applied": self.mode, "reason": self.reason,
                "compile_enabled": self.compile_enabled, "forms": self._forward.forms,
                "attempts": [dataclasses.asdict(attempt) for attempt in self.attempts]}

    def undo(self) -> None:
        """The model runs uncompiled again, and the compiled code is freed."""
        self._forward.undo()

    def __repr__(self) -> str:
        return "\n".join([f"<headrace.Compiled: {self._sentence()}", *aligned([_HEAD, *self._rows()])]) + ">"

    def _repr_html_(self) -> str:
        return paragraph(self._sentence()) + table(_HEAD, self._rows())

    def _sentence(self) -> str:
        runs = f"runs compiled, mode {self.mode}" if self.compile_enabled else f"runs uncompiled (mode {self.mode})"
        return f"{runs}; {self.reason}" if self.reason else runs

    def _rows(self) -> list[tuple[str, ...]]:
        def figure(value: float | None, digits: int) -> str:
            return "unavailable" if value is None else f"{value:.{digits}f}"

        def figures(one: CompileAttempt) -> tuple[str, ...]:
            if one.mode == EAGER or not one.tried:
                return ("-",) * (len(_HEAD) - 3)  # Nothing of it is compiled.
            return (figure(one.compile_s, 1), figure(one.eager_ms, 3), figure(one.compiled_ms, 3), str(one.compilations),
                    str(one.recompilations), str(one.graph_breaks))

        return [(one.mode, one.state, *figures(one), one.reason) for one in self.attempts]


def compiled(model: nn.Module, modes: Sequence[str | Callable[..., Any]] | None = None, *, example: Any = None,
             forward: Callable[[nn.Module, Any], Any] | None = None, dynamic: bool | None = None, only_if_faster: bool = False,
             recompilations_max: int = RECOMPILATIONS_MAX) -> Compiled:
    """Compiles a model by torch.compile, in the first mode of a list that works. If a mode fails, at its first call or a later one, that
    call runs uncompiled and the next mode is tried; the end of every list is the model uncompiled. The model stays the same object, for
    hr.Trainer and for your own loop. It takes effect at once; undo() ends it.

    modes: torch.compile's ("default", "reduce-overhead", "max-autotune", "max-autotune-no-cudagraphs"), the name of a back end
        ("aot_eager", see torch.compiler.list_backends()), or a back end of your own: a function (graph, example inputs) -> function.
        "eager" may end the list. None: "max-autotune-no-cudagraphs", then "default".
    example: a batch. Each mode is tried with it right away, and its step, forward and backward, is timed in turns with the uncompiled
        model's. Parameters, buffers, gradients and random number generators are restored afterwards; the model's hooks are called.
        Without an example torch compiles at the first call, nothing is timed, and a failing compiled backward is not caught.
    forward: as hr.Trainer's, (model, batch) -> loss, or a tuple with the loss first. None: the model is called with the example; the
        items of a tuple or list are its arguments, those of a dict its keywords.
    dynamic: as torch.compile's. None: static shapes first, and a dynamic shape for each axis that changes.
    only_if_faster: drop a mode whose step was not faster than the uncompiled one. Needs an example.
    recompilations_max: after so many recompilations nothing more is compiled: calls that fit an existing graph use it, others run
        uncompiled. At least 0.

    With an example a mode is also dropped if its outputs differ from the uncompiled model's by more than 1e-3 (relative L2; 5e-2 with
    16 bits). Models that draw random numbers are not compared.

    Settle first what a compilation depends on: device, memory format, number of compute threads, batch size (plan_batch_size()), and
    autocast: call this within the autocast of your steps. One thread at a time may call the model.

    InvalidArgumentError: the model is no nn.Module or is compiled already, or modes is something else. What the model itself raises with
    the example is raised here.
    """
    modes = MODES if modes is None else modes
    _check(model, modes, recompilations_max)
    if only_if_faster and example is None:
        raise InvalidArgumentError("compiled: only_if_faster: wanted an example to time, found none")
    stands = CompiledForward(model, [mode for mode in modes if mode != EAGER], dynamic, recompilations_max)
    if isinstance(model, torch.jit.ScriptModule):
        stands.refuse("a module of TorchScript runs code of its own, which torch.compile does not see")
        return Compiled(model, stands)
    model.forward = stands
    if example is not None:
        try:
            _try_modes(stands, functools.partial(_step, model, example, forward), only_if_faster)
        except BaseException:
            stands.undo()
            raise
    return Compiled(model, stands)


@contextlib.contextmanager
def paused() -> Iterator[list[CompiledForward]]:
    """Within it every model of hr.compiled() runs uncompiled: for probes of other batch sizes, each of which would compile. Gives those
    that were called."""
    called: list[CompiledForward] = []
    _paused.append(called)
    try:
        yield called
    finally:
        _paused.pop()


def warn_of_another_size(called: Iterable[CompiledForward], samples: int) -> None:
    """Of those that were compiled for batches, none of which had so many samples: the next batch may compile them again."""
    for stands in called:
        if stands.was_compiled_for_others_than(samples):
            warnings.warn(f"headrace: {type(stands.module).__name__} was compiled before its batch size was planned: batches of {samples} "
                          "samples may compile it again; wanted hr.plan_batch_size() before hr.compiled()", RuntimeWarning, stacklevel=3)


def tell_of_halving(model: nn.Module, samples: int) -> None:
    """The same where memory ran out in mid-training, as a line: a warning that is an error would end the run."""
    for part in model.modules():
        stands = part.__dict__.get("forward")
        if isinstance(stands, CompiledForward) and stands.was_compiled_for_others_than(samples):
            tell_line(f"{type(part).__name__} was compiled for larger batches: parts of {samples} samples may compile it again; "
                      "hr.plan_batch_size() before hr.compiled() finds a size that fits")


class CompiledForward:
    """Stands as `model.forward` on the instance."""

    def __init__(self, module: nn.Module, modes: Sequence[str | Callable[..., Any]], dynamic: bool | None,
                 recompilations_max: int) -> None:
        self.module = module
        self.plain = module.__dict__.get("forward")  # One that the instance had of its own.
        self.attempts = [CompileAttempt(_name_of(mode)) for mode in modes]
        self.ran_compiled = False
        self._modes = list(modes)
        self.index = 0  # Of the mode in use.
        self._dynamic = dynamic
        self._recompilations_max = recompilations_max
        self._open: _Compilation | None = None
        self._forms: set[Any] = set()
        if not isinstance(module, torch.jit.ScriptModule):
            functools.update_wrapper(self, self.plain or type(module).forward.__get__(module), updated=())
            del self.__wrapped__  # It would tie a copy to the module that it was copied from.

    def __getstate__(self) -> dict[str, Any]:
        return {"module": self.module, "plain": self.plain}

    def __setstate__(self, state: dict[str, Any]) -> None:
        """As written, with nothing to try."""
        self.__init__(state["module"], (), None, 0)  # type: ignore[misc]
        self.plain = state["plain"]

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        if torch.compiler.is_compiling():
            return self._plain(*args, **kwargs)
        if _paused or not self.is_on:
            for called in _paused:
                if self not in called:
                    called.append(self)
            self.ran_compiled = False
            return self._plain(*args, **kwargs)
        form = _form_of(self.module, args, kwargs)
        kept = None if form in self._forms else _Kept(self.module)  # torch may compile now, and fail after a part of it ran.
        try:
            result = self._in_force().call(args, kwargs)
        except _failures() as error:
            if kept is not None:
                kept.put_back()
            result = self._plain(*args, **kwargs)  # What is wrong with the call itself raises here, and the mode stays.
            self.drop(_sentence_of(error))
            return result
        self._forms.add(form)
        assert self._open is not None
        if self._open.attempt.compilations == 0:
            self.drop("torch.compile found no graph in the forward")
        else:
            self.ran_compiled = self._open.ran
        return result

    @property
    def __signature__(self) -> inspect.Signature:
        """The module's, for those who ask which arguments a model takes."""
        return inspect.signature(type(self.module).forward.__get__(self.module) if self.plain is None else self.plain)

    @property
    def is_on(self) -> bool:
        """Whether a mode other than eager is left."""
        return self.index < len(self._modes)

    @property
    def mode(self) -> str:
        return self.attempts[self.index].mode if self.is_on else EAGER

    @property
    def forms(self) -> int:
        return len(self._forms)

    def was_compiled_for_others_than(self, samples: int) -> bool:
        """Whether calls ran compiled, and in none of them a tensor had so many samples."""
        sizes = {shape[0] for form in self._forms for shape, _ in form[2:] if shape}
        return bool(self._forms) and samples not in sizes

    @property
    def reason(self) -> str:
        if self.is_on:
            if self._open is None or not self._open.attempt.applied:
                return _NOT_CALLED
            return self._open.limit or ("" if self.ran_compiled else "the last call ran uncompiled")
        return "; ".join(f"{attempt.mode}: {attempt.reason}" for attempt in self.attempts) or "no mode was asked for"

    def told(self) -> tuple[CompileAttempt, ...]:
        is_eager = not self.is_on
        last = CompileAttempt(EAGER, tried=is_eager, applied=is_eager, reason="" if is_eager else "a mode before it is in use")
        return (*(dataclasses.replace(attempt) for attempt in self.attempts), last)

    def drop(self, reason: str) -> None:
        """Drops the mode in use, for this reason."""
        attempt = self.attempts[self.index]
        attempt.tried, attempt.applied, attempt.reason = True, False, reason
        self._forget()
        self.index += 1

    def refuse(self, reason: str) -> None:
        """Drops all modes that are left, untried."""
        for attempt in self.attempts[self.index:]:
            attempt.applied, attempt.reason = False, reason
        self._forget()
        self.index = len(self._modes)

    def undo(self) -> None:
        """If another forward was set over this one, this one stays within it, uncompiled."""
        self.refuse(_UNDONE)
        if self.module.__dict__.get("forward") is not self:
            return
        if self.plain is None:
            del self.module.forward
        else:
            self.module.forward = self.plain

    def _forget(self) -> None:
        self._open = None
        self._forms.clear()
        self.ran_compiled = False

    def _in_force(self) -> _Compilation:
        if self._open is None:
            self._open = self._opened(self._modes[self.index], self.attempts[self.index])
        return self._open

    def _opened(self, mode: str | Callable[..., Any], attempt: CompileAttempt) -> _Compilation:
        attempt.tried = True
        if mode in _OF_INDUCTOR and not _is_on_gpu(self.module) and (reason := no_compile(None)) is not None:
            raise _CannotCompile(reason)
        try:
            return _Compilation(attempt, mode, _with_code_of_its_own(self.module, self.plain), self._dynamic, self._recompilations_max)
        except Exception as error:
            raise _CannotCompile(_sentence_of(error)) from error

    def _plain(self, *args: Any, **kwargs: Any) -> Any:
        if self.plain is not None:
            return self.plain(*args, **kwargs)
        return type(self.module).forward(self.module, *args, **kwargs)


class _Compilation:
    """A forward in one mode. Its back end counts the graphs that it is given and the runs of what it made of them: torch's own counters
    are of the whole process."""

    def __init__(self, attempt: CompileAttempt, mode: str | Callable[..., Any], forward: Callable[..., Any], dynamic: bool | None,
                 recompilations_max: int) -> None:
        self.attempt = attempt
        self.ran = False  # In the last call.
        self.limit = ""  # Why nothing more is compiled.
        self._recompilations_max = recompilations_max
        self._runs = 0
        self._compiled = torch.compile(forward, backend=self._counting(_back_end_of(mode, dynamic)), dynamic=dynamic)

    def call(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        attempt = self.attempt
        graphs, runs, breaks, limits = attempt.compilations, self._runs, _graph_breaks(), _limits_met()
        began = time.perf_counter()
        try:
            with torch.compiler.set_stance("eager_on_recompile") if self.limit else contextlib.nullcontext():
                result = self._compiled(*args, **kwargs)
        finally:
            attempt.graph_breaks += _graph_breaks() - breaks
        seconds = time.perf_counter() - began
        self.ran = self._runs > runs
        if attempt.compilations > graphs:
            attempt.compile_s = (attempt.compile_s or 0.0) + seconds
            attempt.recompilations += attempt.applied
            if attempt.recompilations >= self._recompilations_max:
                self._close(f"{attempt.recompilations} recompilations, the last", args, kwargs)
        if _limits_met() > limits:
            self._close("torch's own limit of graphs, met", args, kwargs)
        attempt.applied = attempt.compilations > 0
        return result

    def _close(self, what: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        shapes = ", ".join(str(tuple(tensor.shape)) for tensor in tensors_in((args, kwargs)))
        self.limit = (f"after {what} for inputs of shape {shapes or '()'}, nothing more is compiled: calls that fit an existing graph use "
                      "it, others run uncompiled")

    def _counting(self, back_end: Callable[..., Any]) -> Callable[..., Any]:
        def counting(graph: torch.fx.GraphModule, inputs: list[Any]) -> Callable[..., Any]:
            made = back_end(graph, inputs)
            self.attempt.compilations += 1

            def run(*given: Any) -> Any:
                self._runs += 1
                try:
                    return made(*given)
                except (torch.OutOfMemoryError, MemoryError):
                    raise
                except Exception as error:
                    raise _GraphFailed(_sentence_of(error)) from error

            return run

        counting.__name__ = getattr(back_end, "compiler_name", None) or getattr(back_end, "__name__", "of_ones_own")
        return counting


class _Kept:
    """Buffers and generators as they are now."""

    def __init__(self, module: nn.Module) -> None:
        self._generators = Generators(None)
        self._buffers = [(part, name, buffer, buffer.detach().clone()) for part in module.modules()
                         for name, buffer in part._buffers.items() if buffer is not None]

    def put_back(self) -> None:
        with torch.no_grad():
            for part, name, buffer, values in self._buffers:
                part._buffers[name] = buffer
                buffer.detach().copy_(values)
        self._generators.restore()


@contextlib.contextmanager
def _untouched(module: nn.Module) -> Iterator[None]:
    """Of steps within it nothing stays: gradients, buffers, generators, and modes of modules."""
    kept, modes = _Kept(module), [(part, part.training) for part in module.modules()]
    gradients = [(parameter, parameter.grad) for parameter in module.parameters()]
    try:
        for parameter, _ in gradients:
            parameter.grad = None
        yield
    finally:
        for parameter, gradient in gradients:
            parameter.grad = gradient
        for part, training in modes:
            part.training = training
        kept.put_back()


def _try_modes(stands: CompiledForward, step: Callable[[], list[torch.Tensor]], only_if_faster: bool) -> None:
    module = stands.module
    with _untouched(module), paused():
        before = _drawn(module)
        wanted = step()
        draws = any(not torch.equal(one, other) for one, other in zip(before, _drawn(module)))
    for index, attempt in enumerate(stands.attempts):
        try:
            with _untouched(module):
                seconds, found = _timed(module, step)
            if stands.index > index:  # Its forward failed, and was dropped.
                continue
            if not attempt.applied:
                stands.drop("the step does not call the model itself")
                continue
            with _untouched(module):
                _time_in_turns(attempt, module, step)
        except Exception as error:  # Of the backward: the uncompiled step passed, and a forward that fails drops its mode itself.
            if stands.index == index:
                stands.drop(_sentence_of(error))
        if stands.index > index:
            continue
        attempt.compile_s = max(0.0, seconds - attempt.compiled_ms / 1e3)
        if not draws and (distance := _distance(found, wanted)) > _distance_max(module, wanted):
            stands.drop(f"its outputs differ from the uncompiled model's by {distance:.1e} of their norm")
        elif only_if_faster and attempt.compiled_ms >= attempt.eager_ms:
            stands.drop(f"not faster: {attempt.compiled_ms:.3f} ms a step, {attempt.eager_ms:.3f} uncompiled")
        else:
            return


def _time_in_turns(attempt: CompileAttempt, module: nn.Module, step: Callable[[], list[torch.Tensor]]) -> None:
    """A pair more than are timed, as the first has memory to find."""
    eager, after = [], []
    for _ in range(1 + _TIMED_STEPS):
        with paused():
            eager.append(_timed(module, step)[0])
        after.append(_timed(module, step)[0])
    attempt.eager_ms = 1e3 * statistics.median(eager[1:])
    attempt.compiled_ms = 1e3 * statistics.median(after[1:])


def _timed(module: nn.Module, step: Callable[[], list[torch.Tensor]]) -> tuple[float, list[torch.Tensor]]:
    for parameter in module.parameters():
        parameter.grad = None
    _wait(module)
    began = time.perf_counter()
    found = step()
    _wait(module)
    return time.perf_counter() - began, found


def _step(model: nn.Module, example: Any, forward: Callable[[nn.Module, Any], Any] | None) -> list[torch.Tensor]:
    """Forward, and backward where there is something to differentiate. Returns what is compared: the loss, or the model's outputs."""
    if forward is not None:
        result = forward(model, example)
        outputs = [result[0] if isinstance(result, tuple) else result]
    else:
        if isinstance(example, dict):
            result = model(**example)
        else:
            result = model(*example) if isinstance(example, (tuple, list)) else model(example)
        outputs = [tensor for tensor in tensors_in(result) if tensor.is_floating_point()]
    differentiable = [output.float().sum() for output in outputs if output.requires_grad]
    if differentiable:
        torch.stack(differentiable).sum().backward()
    return [output.detach() for output in outputs]


def _distance(found: list[torch.Tensor], wanted: list[torch.Tensor]) -> float:
    """L2 distance as a part of the wanted norm; infinite where shapes differ or one of the two alone is not finite."""
    if [one.shape for one in found] != [one.shape for one in wanted]:
        return float("inf")
    apart = sum(float((one.double() - other.double()).square().sum()) for one, other in zip(found, wanted))
    norm = sum(float(other.double().square().sum()) for other in wanted)
    if norm != norm or norm == float("inf"):
        return 0.0  # As written it is not finite, which is no fault of the mode.
    return float("inf") if apart != apart else (apart / max(norm, 1e-30)) ** 0.5


def _distance_max(module: nn.Module, wanted: list[torch.Tensor]) -> float:
    kind = _device_of(module).type
    has_16_bits = torch.is_autocast_enabled(kind) or any(
        tensor.is_floating_point() and tensor.element_size() == 2 for tensor in [*wanted, *module.parameters()])
    return _DISTANCE_MAX_OF_16_BITS if has_16_bits else _DISTANCE_MAX


def _check(model: Any, modes: Any, recompilations_max: int) -> None:
    if not isinstance(model, nn.Module):
        raise InvalidArgumentError(f"compiled: model: wanted a torch.nn.Module, found {type(model).__name__}")
    stands = model.__dict__.get("forward")
    if type(model).__name__ == "OptimizedModule" or is_compiled_in_place(model):
        raise InvalidArgumentError("compiled: model: wanted one that torch.compile has not compiled yet, found one that it has")
    if isinstance(stands, CompiledForward) and stands._modes:
        raise InvalidArgumentError("compiled: model: it is compiled already; undo() of that one first")
    if isinstance(modes, str) or not all(isinstance(mode, str) or callable(mode) for mode in modes):
        raise InvalidArgumentError(f"compiled: modes: wanted a list of names and back ends, found {modes!r}")
    if EAGER in modes and list(modes).index(EAGER) != len(modes) - 1:
        raise InvalidArgumentError('compiled: modes: wanted "eager" at the end, where nothing is left to fail')
    if isinstance(recompilations_max, bool) or not isinstance(recompilations_max, int) or recompilations_max < 0:
        raise InvalidArgumentError(f"compiled: recompilations_max: wanted a whole number of at least 0, found {recompilations_max!r}")


def _name_of(mode: str | Callable[..., Any]) -> str:
    return mode if isinstance(mode, str) else getattr(mode, "__name__", type(mode).__name__)


def _back_end_of(mode: str | Callable[..., Any], dynamic: bool | None) -> Callable[..., Any]:
    """As torch.compile(mode=) and (backend=) choose it."""
    if callable(mode):
        return mode
    if mode not in _OF_INDUCTOR:
        from torch._dynamo import lookup_backend

        return lookup_backend(mode)
    from torch import _inductor

    options = _inductor.list_mode_options(mode, dynamic)

    def inductor(graph: torch.fx.GraphModule, inputs: list[Any]) -> Callable[..., Any]:
        return _inductor.compile(graph, inputs, options=options)

    return inductor


def _with_code_of_its_own(module: nn.Module, plain: Callable[..., Any] | None) -> Callable[..., Any]:
    """A function that does the module's forward. torch keeps what it compiled, and counts it against its limit, by code object: models
    of one class, and modes of one model, would share one."""
    if plain is not None:
        def call(*args: Any, **kwargs: Any) -> Any:
            return plain(*args, **kwargs)
    else:
        written = type(module).forward

        def call(*args: Any, **kwargs: Any) -> Any:
            return written(module, *args, **kwargs)

    call.__code__ = call.__code__.replace(co_name=f"compiled_forward_{next(_numbers)}")
    return call


def _form_of(module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[Any, ...]:
    return (module.training, torch.is_grad_enabled(), *((tensor.shape, tensor.dtype) for tensor in tensors_in((args, kwargs))))


@functools.cache
def _failures() -> tuple[type[Exception], ...]:
    """What says that compiling failed, and not the call. Importing torch's tracer takes a second."""
    from torch._dynamo.exc import FailOnRecompileLimitHit, TorchDynamoException

    return TorchDynamoException, FailOnRecompileLimitHit, _GraphFailed, _CannotCompile


def _sentence_of(error: BaseException) -> str:
    """On one line: that of the back end's own exception, where torch has wrapped it."""
    if isinstance(error, (_GraphFailed, _CannotCompile)):
        return str(error)
    inner = getattr(error, "inner_exception", None) or error
    text = str(inner).strip().split("\n", 1)[0]
    return f"{type(inner).__name__}: {text}" if text else type(inner).__name__


@functools.cache
def _counters() -> dict[str, dict[str, int]]:
    """torch's, of the whole process, by category."""
    from torch._dynamo.utils import counters

    return counters


def _graph_breaks() -> int:
    return sum(_counters()["graph_break"].values())


def _limits_met() -> int:
    """How often torch refused to compile a function once more, in this process."""
    return sum(count for category in ("unimplemented", "graph_break") for told, count in list(_counters()[category].items())
               if told.startswith("Dynamo recompile limit exceeded"))


def _device_of(module: nn.Module) -> torch.device:
    return next((tensor.device for tensor in itertools.chain(module.parameters(), module.buffers())), torch.device("cpu"))


def _is_on_gpu(module: nn.Module) -> bool:
    return _device_of(module).type != "cpu"


def _wait(module: nn.Module) -> None:
    if (device := _device_of(module)).type == "cuda":
        torch.cuda.synchronize(device)


def _drawn(module: nn.Module) -> list[torch.Tensor]:
    """The states of the generators that a forward draws from."""
    device = _device_of(module)
    return [torch.get_rng_state(), *([torch.cuda.get_rng_state(device)] if device.type == "cuda" else [])]
