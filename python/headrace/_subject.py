"""A training loop's objects as the tuner handles them: which settings there are, and how each is applied.

The native half (src/python/core/python_job.h) runs and times the loop; it calls the methods of Subject.
"""

from __future__ import annotations

import contextlib
import copy
import json
import os
import time
from typing import Any, Callable, Iterator, Mapping, Sequence

import torch
from torch import nn
from torch.utils.data import DataLoader

from . import _core, _engine_door
from ._batched import BatchedImages, as_it_is, batched
from ._block_times import block_times_of
from ._dataloader import change, epoch_of
from ._device import module_not_on_cpu
from ._draws import Draw, NotedDraws, RepeatedDraws
from ._forward import CHANNELS_LAST, ForwardSwitch
from ._loader import Loader
from ._settings import (
    COMPILE, ENGINE, FUSED, MEMORY_FORMAT, MICRO_BATCHES, PRECISION, THREADS, ProcessSettings, UpdateSwitch, no_channels_last,
    no_compile, no_implementation, not_float32, text)
from ._state import State, in_layout_of, map_tensors, same_values, tensors_in
from ._step import WholeStep
from ._strategy import Strategies, StrategyContext
from ._tensors import dense_parts, flat, flat_bytes
from ._trial_objects import check_objects, device_of_all, refuse_elsewhere
from ._native_loader import draws, native_loader_for
from ._recorded_call import full_float32
from .errors import Error, InvalidArgumentError, UnsupportedError

NUM_WORKERS = "data.num_workers"  # Of a DataLoader processes; of a headrace.Loader threads, or processes by worker_type.
LOADER = "data.loader"  # "headrace": a headrace.Loader in the place of a DataLoader.
PREFETCH = "data.prefetch_batches"
CACHE = "data.cache"
BATCHED = "data.batched"


class Subject:
    """The user's objects. Made once; its state then is what every trial begins with and what is put back at the end."""

    def __init__(self, model: nn.Module, loader: Any, optimizer: torch.optim.Optimizer,
                 forward: Callable[[nn.Module, Any], Any], *, run_steps: int | None, budget_s: float,
                 whole_step: bool = False, only: Sequence[str] = (), fixed: Sequence[str] = (),
                 on_cuda: bool = False) -> None:
        """on_cuda: they may be on a CUDA device, too."""
        check_objects(model, loader, optimizer, forward)
        self._device = device_of_all(model, optimizer, on_cuda)
        self.block_times = block_times_of(model)  # None: on the CPU.
        self.model, self.loader, self.optimizer, self.user_forward = model, loader, optimizer, forward
        self._run_steps, self._budget_s, self._whole_step = run_steps, budget_s, whole_step
        self._only = only  # Candidates by name; empty: all.
        self._fixed = fixed  # Settings, or tables of them, that stay.
        self._compile_s: float | None = None  # What compiling took; None: not compiled yet.
        self.not_applicable: list[_core.NotApplicable] = []  # Of the last offer().
        self._state = State(model, optimizer, loader)
        self._forward = ForwardSwitch(model)
        self.step = WholeStep(model, optimizer, self.loss)
        self.counts_batches = not isinstance(loader, Loader)  # Their memory; a headrace.Loader counts its own.
        self._draws: dict[tuple[torch.Size, ...], list[Draw]] = {}  # By the shapes of a batch's tensors.
        self._channels_last: dict[str, torch.Tensor] = {}  # Parameters in channels-last layout.
        self._update = UpdateSwitch(optimizer)
        self._workers: tuple[int, int | None, dict[str, Any]] | None = None
        self._batched: BatchedImages | str = "the loader is not a DataLoader"  # Or why there is none.
        if isinstance(loader, DataLoader):
            rest = {key: loader.__dict__[key] for key in ("persistent_workers", "timeout")}
            self._written_data = {"dataset": loader.dataset, "collate_fn": loader.collate_fn}
            self._batched = batched(loader)
            self._workers = (loader.num_workers, loader.prefetch_factor, rest)
        self._loader_options = dict(loader.options) if isinstance(loader, Loader) else None
        self._native_loader: Loader | None = None  # The headrace.Loader that can stand for a DataLoader.
        self._process = ProcessSettings("tune")
        self._strategies = Strategies(StrategyContext((model,), (optimizer,), loader, live=False))
        self._settings: dict[str, str] = {}
        self._loaders: dict[tuple[int, int | None, bool], DataLoader] = {}
        self._epoch_loader: Any = self._loader_for({})

    # What the native half calls.

    def restore(self) -> None:
        """The state that this was made with, under the settings in force. Gradients are dropped."""
        self._end_workers()
        self._state.restore()
        self.step.renew()
        if self._native_loader is not None:
            self._native_loader.start_at(0)

    def flat_gradients(self) -> list[tuple[str, torch.Tensor]]:
        """Those that the parameters have now, by name, flat in float32. UnsupportedError for one that is sparse or complex."""
        return [(name, flat(_dense_real(name, parameter.grad), torch.float32))
                for name, parameter in self.model.named_parameters() if parameter.grad is not None]

    def kept_gradients(self) -> list[tuple[nn.Parameter, torch.Tensor]]:
        """Copies of them, for put_gradients()."""
        return [(parameter, parameter.grad.detach().clone()) for parameter in self.model.parameters()
                if parameter.grad is not None]

    def put_gradients(self, kept: Sequence[tuple[nn.Parameter, torch.Tensor]]) -> None:
        """Gives the parameters these gradients, in the layout that each parameter has now."""
        for parameter, gradient in kept:
            parameter.grad = torch.empty_like(parameter.detach()).copy_(gradient)

    def state_bytes(self) -> Iterator[torch.Tensor]:
        """Of parameters and then buffers, in row-major order, each flat."""
        for tensor in (*self.model.parameters(), *self.model.buffers()):
            yield from map(flat_bytes, dense_parts(tensor))

    def whole_state(self) -> list[tuple[str, torch.Tensor]]:
        """Copies of parameters, buffers and what the optimizer keeps of each parameter, as state_difference() takes them."""
        state = [(f"{name}/{key}", value) for name, parameter in self.model.named_parameters()
                 for key, value in sorted(self.optimizer.state.get(parameter, {}).items()) if isinstance(value, torch.Tensor)]
        return [(name, tensor.detach().clone())
                for name, tensor in (*self.model.named_parameters(), *self.model.named_buffers(), *state)]

    def loss(self, batch: Any) -> torch.Tensor:
        loss = loss_of(self.user_forward(self.model, batch))
        if not isinstance(loss, torch.Tensor):
            raise InvalidArgumentError(f"tune: the loss that forward returns: wanted a torch.Tensor, found {type(loss).__name__}")
        if loss.numel() != 1:
            raise InvalidArgumentError(
                f"tune: wanted a loss of one number, found a tensor of shape ({', '.join(map(str, loss.shape))})")
        if torch.is_grad_enabled() and not loss.requires_grad:
            raise InvalidArgumentError("tune: the loss does not depend on any parameter: it has no gradient")
        return loss

    def check_batch(self, batch: Any) -> None:
        """UnsupportedError for a batch on another device than the model's and the CPU."""
        refuse_elsewhere((("a tensor of the batch", tensor) for tensor in tensors_in(batch)), self._device)

    def gradients(self, batch: Any) -> torch.Tensor:
        """As those of `step`, but in full precision on a CUDA device; under another memory format with the draws that a batch of
        these shapes had before without."""
        with full_float32(self._device):
            return self._compared_gradients(batch)

    def _compared_gradients(self, batch: Any) -> torch.Tensor:
        shapes = tuple(tensor.shape for tensor in tensors_in(batch))
        if MEMORY_FORMAT in self._settings:
            noted = self._draws.get(shapes)
            with RepeatedDraws(noted) if noted else contextlib.nullcontext():
                return self.step.gradients(batch)
        if not any(parameter.dim() in CHANNELS_LAST for parameter in self.model.parameters()):
            return self.step.gradients(batch)
        with NotedDraws() as mode:
            loss = self.step.gradients(batch)
        self._draws[shapes] = mode.draws
        return loss

    def exact_gradients(self, batch: Any) -> tuple[float, list[tuple[str, torch.Tensor]] | str]:
        """Loss and flat gradients of the loop as written, computed in float64 by a copy of the model, or why there are none."""
        if (reason := not_float32(self._memory())) is not None:
            return 0.0, reason
        try:
            model = copy.deepcopy(self.model).double()
            exact = map_tensors(lambda tensor: tensor.double() if tensor.is_floating_point() else tensor, batch)
            loss = loss_of(self.user_forward(model, exact))
            loss.backward()
        except Exception as error:  # noqa: BLE001 - the user's own code, on types that it was not written for.
            return 0.0, f"{type(error).__name__}: {str(error).splitlines()[0] if str(error) else 'no message'}"
        if loss.dtype is not torch.float64:
            return 0.0, f"its loss is {loss.dtype} where model and batch are float64"
        return loss.item(), [(name, flat(parameter.grad, torch.float64)) for name, parameter in model.named_parameters()
                             if parameter.grad is not None]

    def _memory(self) -> list[torch.Tensor]:
        """Of the parameters, as it was."""
        return [held.memory for held in self._state.parameters.values()]

    def new_epoch(self) -> Iterator[Any]:
        return epoch_of(self._epoch_loader)

    def first_epoch(self) -> Iterator[Any]:
        """Over the data as the user's own loader gives them, whatever the settings."""
        return epoch_of(self._loader_for({}))

    def epochs_per_step(self) -> float:
        """How often an epoch begins, a step. 0 where beginning one costs nothing again: workers that persist."""
        if getattr(self._epoch_loader, "persistent_workers", False):
            return 0.0
        try:
            return 1.0 / max(1, len(self._epoch_loader))
        except TypeError:
            return 0.0

    def once_s_per_step(self) -> float:
        """What the settings in force cost once in a run, spread over its steps."""
        if COMPILE not in self._settings or self._compile_s is None or self._run_steps is None:
            return 0.0
        return self._compile_s / self._run_steps

    def configure(self, settings: Mapping[str, str]) -> None:
        """Makes exactly these settings hold; whatever is not named is as it was. On an error, all is as before."""
        before = self._settings
        try:
            self._apply(settings)
        except BaseException:
            self._apply(self._strategies.still_possible(before))
            raise
        self._settings = dict(settings)
        if COMPILE in settings and self._compile_s is None:
            self._compile_s = self._time_compiling()

    def offer(self, bound: str) -> _core.Offer:
        """What to try, what relieves `bound` first, and why not the rest."""
        offered = _core.offer(self._context(), bound)
        self._strategies.add_to(offered, bound)
        self.not_applicable = offered.not_tried
        return offered

    def baseline(self) -> dict[str, str]:
        """What the objects had of every key that a candidate touches."""
        written = {
            MEMORY_FORMAT: "contiguous",
            PRECISION: "fp32",
            FUSED: self._update.uses(FUSED)[0],
            THREADS: self._process.threads,
            COMPILE: False,
        }
        if self._whole_step:
            written.update({ENGINE: "python", MICRO_BATCHES: 1})
        if self._workers is not None:
            written[NUM_WORKERS] = self._workers[0]
            written[BATCHED] = False
            if self._workers[1] is not None:
                written[PREFETCH] = self._workers[1]
        if self._native_loader is not None:
            written[LOADER] = "dataloader"
        if self._loader_options is not None:
            written[NUM_WORKERS] = self._loader_options["num_workers"]
            written[PREFETCH] = self._loader_options["prefetch_batches"]
            written[CACHE] = self._loader_options["cache"]
        return {**self._process.written, **self._strategies.written(),
                **{key: json.dumps(value) for key, value in written.items()}}

    def applied(self) -> list[tuple[str, str, str, str]]:
        """Key, requested, applied, reason of what is in force."""
        timed = [] if self.block_times is None else [("tune.step_times", "events", "events", _TIMED_BY_EVENTS)]
        return [*timed, *((key, value, value, "") for key, value in sorted(self._settings.items()))]

    # What headrace.tune calls.

    def give_back(self) -> None:
        """Leaves the objects as they came, gradients included."""
        self.configure({})
        self._free_cache()
        self._end_workers()
        self._state.restore(gradients=True)

    def switch(self, settings: Mapping[str, str]) -> Any:
        """Lets the objects run under `settings` from where they stand now; returns the loader to use."""
        self.configure(settings)
        self._free_cache()
        self._end_workers()
        for parameter, state in self.optimizer.state.items():
            for key, value in state.items():
                if isinstance(value, torch.Tensor) and value.shape == parameter.shape:
                    state[key] = in_layout_of(parameter, value)
        self.step.renew()
        if self._epoch_loader is self._native_loader:
            self._native_loader.start_at(0)
            return self._native_loader
        if isinstance(self.loader, DataLoader):
            is_batched = isinstance(self.loader.dataset, BatchedImages)
            if self._workers_in(settings) != (self.loader.num_workers, self.loader.prefetch_factor, is_batched):
                self._set_workers(self.loader, *self._workers_in(settings))
        return self.loader

    # Settings.

    def _apply(self, settings: Mapping[str, str]) -> None:
        self._strategies.set(settings)
        self._set_layout(text(settings, MEMORY_FORMAT) == "channels_last")
        self._forward.set(channels_last=text(settings, MEMORY_FORMAT) == "channels_last",
                          bf16=text(settings, PRECISION) == "bf16", compile=COMPILE in settings)
        self._update.set(FUSED if FUSED in settings else None)
        self._process.apply(settings)
        if self._loader_options is not None:
            self._set_cache(text(settings, CACHE) or self._loader_options["cache"])
            self.loader.set_num_workers(_number(settings, NUM_WORKERS, self._loader_options["num_workers"]))
            self.loader.set_prefetch_batches(_number(settings, PREFETCH, self._loader_options["prefetch_batches"]))
        if self._native_loader is not None and text(settings, LOADER) == "headrace":
            assert self._workers is not None
            self._native_loader.set_num_workers(int(settings.get(NUM_WORKERS, self._workers[0])))
        self._epoch_loader = self._loader_for(settings)
        self.step.set(micro_batches=int(settings.get(MICRO_BATCHES, 1)), native=text(settings, ENGINE) == "native")

    def _set_layout(self, channels_last: bool) -> None:
        for name, held in self._state.parameters.items():
            if held.memory.dim() != 4:
                continue
            if channels_last and name not in self._channels_last:
                self._channels_last[name] = held.memory.clone(memory_format=torch.channels_last)
            memory = self._channels_last[name] if channels_last else held.memory
            if held.object.data_ptr() != memory.data_ptr():
                memory.copy_(held.object.detach())
                held.object.data = memory

    def _set_cache(self, cache: str) -> None:
        if cache == self.loader.options["cache"]:
            return
        self.loader.set_cache(cache, keep=True)  # What is in force now may be tried again.
        ((_, requested, applied, reason),) = [row for row in self.loader.applied if row[0] == CACHE]
        if applied != requested:
            raise UnsupportedError(f"tune: {CACHE} stays {applied}: {reason}")

    def _free_cache(self) -> None:
        """What a cache that is off now was kept for."""
        if self._loader_options is not None and self.loader.options["cache"] == "none":
            self.loader.set_cache("none")

    def _loader_for(self, settings: Mapping[str, str]) -> Any:
        if not isinstance(self.loader, DataLoader):
            return self.loader
        if text(settings, LOADER) == "headrace":
            return self._native_loader
        key = self._workers_in(settings)
        if key not in self._loaders:
            # A copy: the user's own may be in the middle of an epoch. It shares the data set and the sampler.
            self._loaders[key] = copy.copy(self.loader)
            self._set_workers(self._loaders[key], *key)
        return self._loaders[key]

    def _workers_in(self, settings: Mapping[str, str]) -> tuple[int, int | None, bool]:
        assert self._workers is not None
        written, depth, _ = self._workers
        workers = int(settings.get(NUM_WORKERS, written))
        if workers == 0:
            return 0, None, BATCHED in settings
        return workers, int(settings.get(PREFETCH, depth or 2)), BATCHED in settings

    def _set_workers(self, loader: DataLoader, workers: int, prefetch: int | None, is_batched: bool) -> None:
        assert self._workers is not None
        rest = self._workers[2] if workers > 0 else {"persistent_workers": False, "timeout": 0}
        data = {"dataset": self._batched, "collate_fn": as_it_is} if is_batched else self._written_data
        change(loader, **rest, **data, num_workers=workers, prefetch_factor=prefetch)

    def _end_workers(self) -> None:
        for loader in self._loaders.values():
            change(loader)  # The next epoch draws what a first one draws.

    def _time_compiling(self) -> float:
        """A first forward and backward compile; what they take beyond a second one is the price."""
        batch = next(self.first_epoch())
        seconds = []
        for _ in range(2):
            self.restore()
            begin = time.perf_counter()
            self.loss(batch).backward()
            seconds.append(time.perf_counter() - begin)
        self.restore()
        return max(0.0, seconds[0] - seconds[1])

    # What may be tried: the knobs are in src/app/knobs, which asks of these objects what follows.

    def _context(self) -> dict[str, Any]:
        refused = {
            MEMORY_FORMAT: no_channels_last(self._memory(), {4: CHANNELS_LAST[4]}),
            PRECISION: not_float32(self._memory()),
            FUSED: no_implementation(FUSED, self.optimizer),
            COMPILE: no_compile(self.loader),
            ENGINE: self._no_native_step(),
            MICRO_BATCHES: self._no_micro_batches(),
        }
        is_dataloader = self._workers is not None
        if is_dataloader:
            refused[BATCHED] = self._no_batched()
            refused[LOADER] = self._no_replacement()
        refused.update(_engine_door.refusals())
        if (elsewhere := module_not_on_cpu(self.model)) is not None:
            refused[ENGINE] = f"{elsewhere}, and headrace's step of a module of your own is one of the CPU"
            refused.update(dict.fromkeys((THREADS, *self._process.written), f"{elsewhere}, and the setting is one of the CPU"))
        replacement = self._native_loader
        return {
            "live": False, "cores": len(os.sched_getaffinity(0)),
            "refused": {key: reason for key, reason in refused.items() if reason is not None}, "refused_values": {},
            "process": self._process.written,
            "run_steps": self._run_steps, "budget_s": self._budget_s, "fixed": list(self._fixed),
            "intra_op_threads": self._process.threads, "fused": all(self._update.uses(FUSED)),
            "drops_out": any(isinstance(module, nn.modules.dropout._DropoutNd) and module.training and module.p > 0
                             for module in self.model.modules()),
            "loader": self.loader if self._loader_options is not None else None,
            "dataloader": (self._workers[0], self._workers[1] or 2) if is_dataloader else None,
            "loader_type": type(self.loader).__name__,
            "has_replacement": replacement is not None,
            "replacement_draws": replacement is not None and draws(replacement),
            "workers_change_batches": is_dataloader and self._workers_change_batches(),
        }

    def _workers_change_batches(self) -> bool:
        """Starts worker processes to find out, where a candidate asks for it."""
        assert self._workers is not None
        if self._only and not any(name.startswith("num_workers ") for name in self._only):
            return False
        cores = len(os.sched_getaffinity(0))
        return not self._same_batches({NUM_WORKERS: str(cores if cores != self._workers[0] else 0), LOADER: '"dataloader"'})

    def _same_batches(self, changes: Mapping[str, str]) -> bool:
        """Whether the first two batches come bit for bit. An error counts as yes: the trial itself will tell of it."""
        def first_two(settings: Mapping[str, str]) -> list[Any]:
            self.restore()
            source = epoch_of(self._loader_for(settings))
            return [batch for batch, _ in zip(source, range(2))]

        try:
            return same_values(first_two({}), first_two(changes))
        except Exception:  # noqa: BLE001
            return True
        finally:
            self.restore()

    def _no_batched(self) -> str | None:
        if isinstance(self._batched, str):
            return self._batched
        return None if self._same_batches({BATCHED: "true"}) else "its batches have other bits"

    def _no_replacement(self) -> str | None:
        """Makes the headrace.Loader that can stand for the DataLoader."""
        found = native_loader_for(self.loader)
        if isinstance(found, str):
            return found
        self._native_loader = found
        return None

    def _no_native_step(self) -> str | None:
        if not self._whole_step:
            return _OWN_STEP
        try:
            self.step.new_trainer()
        except (Error, TypeError) as error:
            return str(error)
        return None

    def _no_micro_batches(self) -> str | None:
        if not self._whole_step:
            return _OWN_STEP
        options = self._loader_options or {}
        if options.get("last_batch") == "pad" or options.get("on_corrupt") == "zero":
            key = "last_batch is pad" if options["last_batch"] == "pad" else "on_corrupt is zero"
            return (f"{key}: some samples do not count (the batch's field valid), and so a part's share of the loss is not its "
                    "share of the samples")
        for name, module in self.model.named_modules():
            if isinstance(module, nn.modules.batchnorm._BatchNorm) and module.training:
                return f"{name or 'the model'}, a {type(module).__name__}, normalises by the statistics of the whole batch"
        return None


_TIMED_BY_EVENTS = ("steps are timed on the device; of a step's parts the host's time is told, which is what launching takes, "
                    "and what the device works beyond it is other")
_OWN_STEP = "the loop does its steps itself: give whole_step=True and call Tuned.step(batch) in place of them"


def loss_of(result: Any) -> Any:
    """The loss in what a forward returns: itself, the first of a tuple or list, or `loss` of a dict or an object."""
    if isinstance(result, torch.Tensor):
        return result
    if isinstance(result, (tuple, list)) and result:
        return result[0]
    if isinstance(result, Mapping) and "loss" in result:
        return result["loss"]
    loss = getattr(result, "loss", None)
    return result if loss is None else loss


def _dense_real(name: str, gradient: torch.Tensor) -> torch.Tensor:
    """The gradient itself, if it is that."""
    if gradient.layout is torch.strided and not gradient.is_complex():
        return gradient
    kind = "complex" if gradient.is_complex() else "sparse"
    raise UnsupportedError(f"tune: the gradient of {name} is {kind}; wanted dense real numbers")


def _number(settings: Mapping[str, str], key: str, otherwise: int | str) -> int | str:
    return json.loads(settings[key]) if key in settings else otherwise
