"""Steps with clipping and a guard against numbers that are not finite."""

from __future__ import annotations

import contextlib
import copy
import os
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from . import _config
from ._debug import ActivationStatistics, DebugConfig, SuspiciousSteps
from ._integration import PerformanceOptimizationConfig
from ._model_optimizer import ModelOptimizer

if TYPE_CHECKING:
    import torch

_MODES = ("norm", "value", "layer", "adaptive")
_POLICIES = ("raise", "skip", "replace", "lower_lr", "rollback")


def _check_choice(name: str, value: str, choices: tuple[str, ...]) -> None:
    if value not in choices:
        raise ValueError(f"{name}: wanted {' | '.join(choices)}, found {value!r}")


@dataclass
class ClippingConfig:
    """mode: "norm" clips the norm of all gradients together, "layer" that of each parameter's, both to max_grad_norm; "value" each
    element to clip_grad_value; "adaptive" each parameter's norm to clip_factor times that of its weights, taken as at least 0.001.
    ValueError: a limit is not above 0."""

    mode: str = "norm"
    max_grad_norm: float = 1.0
    clip_grad_value: float = 1.0
    clip_factor: float = 0.01

    def __post_init__(self) -> None:
        _check_choice("ClippingConfig.mode", self.mode, _MODES)
        for name in ("max_grad_norm", "clip_grad_value", "clip_factor"):
            _config.check_range(f"ClippingConfig.{name}", getattr(self, name), float)


@dataclass
class NanConfig:
    """policy, where a loss, a gradient or, after the update, a weight is not finite: "raise" a FloatingPointError; "skip" the update;
    "replace" what is not finite by 0, and skip the update where the loss is not; "lower_lr" as skip, with every learning rate times
    lr_factor; "rollback" to the weights, buffers and optimizer state of the last good state, which is kept every keep_every good
    steps, while learning rates stay as they are now. A weight that an update made bad is a FloatingPointError under skip and lower_lr,
    too, as no later step would be finite. Buffers that a bad forward changed, such as running statistics, stay so under every policy
    but rollback.
    max_in_a_row: one more without a good step between them is a FloatingPointError under every policy."""

    policy: str = "raise"
    max_in_a_row: int = 10
    lr_factor: float = 0.5
    keep_every: int = 1

    def __post_init__(self) -> None:
        _check_choice("NanConfig.policy", self.policy, _POLICIES)
        for name in ("max_in_a_row", "keep_every"):
            _config.check_range(f"NanConfig.{name}", getattr(self, name), int)
        _config.check_range("NanConfig.lr_factor", self.lr_factor, float, high=1.0)


class NumericalStabilityManager:
    """Each configuration may be left out, and what it is about is not done then."""

    def __init__(self, clipping_config: ClippingConfig | None = None, nan_config: NanConfig | None = None,
                 debug_config: DebugConfig | None = None, performance_config: PerformanceOptimizationConfig | None = None) -> None:
        self.clipping_config = clipping_config
        self.nan_config = nan_config
        self.debug_config = debug_config
        self.performance_config = performance_config
        self.steps = self.clip_count = self.nan_count = self.skipped_steps = self.overflows = 0
        self._in_a_row = self._good_steps = 0
        self._good: tuple[dict[str, Any], Callable[[], None]] | None = None  # The model's state, and what puts back the optimizer's.
        self.model_optimizer: ModelOptimizer | None = None  # What optimize_model set a model up with.
        debug = DebugConfig() if debug_config is None else debug_config
        self._activations = ActivationStatistics() if debug.activation_statistics else None
        self._suspicious = SuspiciousSteps(debug.suspicious_factor) if debug.log_suspicious_steps else None

    def step(self, model: torch.nn.Module, loss: torch.Tensor, optimizer: torch.optim.Optimizer, scaler: Any = None) -> dict[str, Any]:
        """Backward, clipping and the update, after which gradients are zeroed. What is examined, clipped and updated are the
        parameters that the optimizer steps. Backward is left out where some gradient of these is other than zero already: whoever ran
        it has not zeroed since. A caller's backward whose gradients are all zero, as those behind a dead ReLU, looks as if there had
        been none, and is run again. With a scaler, gradients are unscaled before they are examined and clipped, and an overflow that
        it forgives is no NaN.

        Returns loss, skipped, nan_detected (None, or what is not finite), nan_count, gradient_norm before clipping,
        gradient_norm_clipped, clipped, clip_count; gradient_norms and, behind debugged_forward(), activation_statistics where the debug
        configuration has them; and with a performance configuration that integrates with stability performance_metrics:
        memory_usage_percent, gpu_memory_mb and unavailable, which names those that nobody could measure and that are 0 for it. The
        norms are missing where there was no update.

        TypeError: the optimizer is no torch.optim.Optimizer. FloatingPointError: as NanConfig says.
        """
        _config.check_optimizer(optimizer)
        stepped = _stepped(model, optimizer)
        if self._good is None:
            self._keep_good(model, optimizer)
        self.steps += 1
        result: dict[str, Any] = {"loss": loss.item(), "skipped": True, "nan_detected": None, "clipped": False}
        if self._activations is not None and (found := self._activations.take()):
            result["activation_statistics"] = found
        fault = self._fault_in({"loss": loss})
        is_weight_bad = False
        if fault is None:
            self._backward(stepped, loss, scaler)
            if self._overflows(optimizer, scaler):
                self.overflows += 1
            else:
                fault = self._examine_and_clip(stepped, result)
                if fault is not None and self._replaced(stepped):
                    self._examine_and_clip(stepped, result)
                if fault is None or self._policy == "replace":
                    optimizer.step() if scaler is None else scaler.step(optimizer)
                    after = self._fault_in(stepped)
                    is_weight_bad = after is not None and not self._replaced(stepped)
                    fault = fault or after
                    result["skipped"] = is_weight_bad
            if scaler is not None:
                scaler.update()
        _zero_grad(model, optimizer)
        self.skipped_steps += result["skipped"]
        result["nan_detected"] = fault
        if self._suspicious is not None:
            self._suspicious.look(self.steps, result)
        if fault is not None:
            self._react(model, optimizer, fault, is_weight_bad)
        elif not result["skipped"]:
            self._in_a_row = 0
            self._good_steps += 1
            if self.nan_config is not None and self._good_steps % self.nan_config.keep_every == 0:
                self._keep_good(model, optimizer)
        result.update(nan_count=self.nan_count, clip_count=self.clip_count)
        if self._is_measured():
            result["performance_metrics"] = _performance_metrics()
        return result

    def optimize_model(self, model: torch.nn.Module) -> torch.nn.Module:
        """The same model, set up in place by a ModelOptimizer, `model_optimizer`, as the performance configuration says: channels-last
        order where it has enable_memory_optimization, compiled at its first call where it has enable_model_compilation, activations
        recomputed and attention by the flash kernel as its level or its own settings say. It computes what it did, within rounding.
        get_performance_summary() tells of each setting whether it is applied, or why not."""
        config = self.performance_config
        if config is None or not config.enable_performance_optimization:
            return model
        if self.model_optimizer is None:
            self.model_optimizer = ModelOptimizer(config.performance_config())
        return self.model_optimizer.optimize_model(model)

    def get_performance_summary(self) -> dict[str, Any]:
        """Counts of steps, skipped steps, NaN and clipping; performance_metrics as step() gives them; and optimizations, by setting of
        the performance configuration whether it is applied, or why not."""
        summary: dict[str, Any] = {"steps": self.steps, "skipped_steps": self.skipped_steps, "nan_count": self.nan_count,
                                   "clip_count": self.clip_count, "scaler_overflows": self.overflows}
        if self.performance_config is not None:
            summary["optimizations"] = self.performance_config.report(self.model_optimizer)
        if self._is_measured():
            summary["performance_metrics"] = _performance_metrics()
        return summary

    @contextlib.contextmanager
    def debugged_forward(self, model: torch.nn.Module) -> Iterator[None]:
        """Around a forward, so that backward can name its operation, and the step that follows has statistics of its activations, where
        the debug configuration says so."""
        with self._anomaly_mode(), contextlib.nullcontext() if self._activations is None else self._activations.of(model):
            yield

    def _anomaly_mode(self) -> contextlib.AbstractContextManager[Any]:
        import torch

        is_on = self.debug_config is not None and self.debug_config.detect_anomaly
        return torch.autograd.set_detect_anomaly(True) if is_on else contextlib.nullcontext()

    @property
    def _policy(self) -> str | None:
        return None if self.nan_config is None else self.nan_config.policy

    def _is_measured(self) -> bool:
        config = self.performance_config
        return config is not None and config.enable_performance_optimization and config.integrate_with_stability

    def _backward(self, stepped: dict[str, torch.Tensor], loss: torch.Tensor, scaler: Any) -> None:
        gradients = [parameter.grad for parameter in stepped.values() if parameter.grad is not None]
        if any(gradient.count_nonzero() > 0 for gradient in gradients):  # NaN counts.
            return
        with self._anomaly_mode():
            (loss if scaler is None else scaler.scale(loss)).backward()

    @staticmethod
    def _overflows(optimizer: torch.optim.Optimizer, scaler: Any) -> bool:
        """Takes the loss scale off, and returns whether the gradients overflowed with it."""
        if scaler is None:
            return False
        scaler.unscale_(optimizer)
        gradients = (parameter.grad for group in optimizer.param_groups for parameter in group["params"])
        return scaler.is_enabled() and not all(gradient.isfinite().all() for gradient in gradients if gradient is not None)

    def _examine_and_clip(self, stepped: dict[str, torch.Tensor], result: dict[str, Any]) -> str | None:
        named = {name: parameter for name, parameter in stepped.items() if parameter.grad is not None}
        fault = self._fault_in({f"gradient of {name}": parameter.grad for name, parameter in named.items()})
        if fault is not None:
            return fault
        norms = {name: parameter.grad.norm().item() for name, parameter in named.items()}
        result["gradient_norm"] = sum(norm**2 for norm in norms.values())**0.5
        if self.debug_config is not None and self.debug_config.gradient_statistics:
            result["gradient_norms"] = norms
        if self.clipping_config is not None:
            result["clipped"] = _clip(list(named.values()), self.clipping_config)
            self.clip_count += result["clipped"]
        result["gradient_norm_clipped"] = sum(parameter.grad.norm().item()**2 for parameter in named.values())**0.5
        return None

    def _fault_in(self, tensors: dict[str, torch.Tensor]) -> str | None:
        if self.nan_config is None:
            return None
        return next((f"{name} is not finite" for name, tensor in tensors.items() if not tensor.isfinite().all()), None)

    def _replaced(self, stepped: dict[str, torch.Tensor]) -> bool:
        """Under policy replace; of weights and gradients."""
        import torch

        if self._policy != "replace":
            return False
        with torch.no_grad():
            for parameter in stepped.values():
                for tensor in (parameter, parameter.grad):
                    if tensor is not None:
                        tensor.nan_to_num_(0.0, 0.0, 0.0)
        return True

    def _react(self, model: torch.nn.Module, optimizer: torch.optim.Optimizer, fault: str, is_weight_bad: bool) -> None:
        assert self.nan_config is not None
        self.nan_count += 1
        self._in_a_row += 1
        stays_bad = is_weight_bad and self._policy in ("skip", "lower_lr")
        if self._policy == "raise" or stays_bad or self._in_a_row > self.nan_config.max_in_a_row:
            raise FloatingPointError(f"NumericalStabilityManager.step: {fault} in step {self.steps}, {self._in_a_row} in a row")
        if self._policy == "lower_lr":
            for group in optimizer.param_groups:
                group["lr"] = group["lr"] * self.nan_config.lr_factor
        if self._policy == "rollback":
            assert self._good is not None
            state, put_back_optimizer = self._good
            model.load_state_dict(state, strict=False)
            put_back_optimizer()

    def _keep_good(self, model: torch.nn.Module, optimizer: torch.optim.Optimizer) -> None:
        """Without what is not finite: the forward before the first step may have spoilt a buffer already."""
        if self._policy != "rollback":
            return
        from headrace import _run_state

        state = copy.deepcopy(model.state_dict())
        for name in [name for name, value in state.items() if hasattr(value, "isfinite") and not value.isfinite().all()]:
            del state[name]
        self._good = state, _run_state.keep(optimizer)


class TrainingWrapper:
    """Whole steps: forward, backward, guard, update."""

    def __init__(self, manager: NumericalStabilityManager) -> None:
        self.manager = manager

    def step(self, model: torch.nn.Module, batch: Iterable[Any], optimizer: torch.optim.Optimizer, criterion: Callable[..., torch.Tensor],
             scaler: Any = None) -> dict[str, Any]:
        """NumericalStabilityManager.step after gradients were zeroed and the loss was computed, as `criterion(model(inputs), targets)`
        of a batch of inputs, targets and whatever else follows. Where the performance configuration has mixed precision, the forward of
        a model on CUDA runs in float16 with a scaler, and in bfloat16, which needs no loss scale, without one."""
        import torch

        _config.check_optimizer(optimizer)
        inputs, targets, *_ = batch
        config = self.manager.performance_config
        _zero_grad(model, optimizer)
        autocasts = config is not None and config.autocasts() and _config.device_type(model) == "cuda"
        dtype = torch.float16 if _config.is_on(scaler) else torch.bfloat16
        with self.manager.debugged_forward(model), torch.autocast("cuda", dtype) if autocasts else contextlib.nullcontext():
            loss = criterion(model(inputs), targets)
        return self.manager.step(model, loss, optimizer, scaler)


def create_training_wrapper(clipping_config: ClippingConfig | None = None, nan_config: NanConfig | None = None,
                            debug_config: DebugConfig | None = None,
                            performance_config: PerformanceOptimizationConfig | None = None) -> TrainingWrapper:
    """A TrainingWrapper with a NumericalStabilityManager of these, `manager`."""
    return TrainingWrapper(NumericalStabilityManager(clipping_config, nan_config, debug_config, performance_config))


def _stepped(model: torch.nn.Module, optimizer: torch.optim.Optimizer) -> dict[str, torch.Tensor]:
    """What the optimizer steps, by the model's names, or by its place in the groups where the model has it not."""
    names = {id(parameter): name for name, parameter in model.named_parameters()}
    places = [(f"parameter {j} of group {i}", parameter) for i, group in enumerate(optimizer.param_groups)
              for j, parameter in enumerate(group["params"])]
    return {names.get(id(parameter), place): parameter for place, parameter in places}


def _zero_grad(model: torch.nn.Module, optimizer: torch.optim.Optimizer) -> None:
    """Of the model's parameters that the optimizer does not step, too: theirs would add up over all steps."""
    optimizer.zero_grad()
    model.zero_grad()


def _clip(parameters: list[torch.nn.Parameter], config: ClippingConfig) -> bool:
    """Returns whether a gradient was changed; those below the limit keep their bits."""
    import torch

    if config.mode == "value":
        if all(parameter.grad.abs().max() <= config.clip_grad_value for parameter in parameters if parameter.numel() > 0):
            return False
        torch.nn.utils.clip_grad_value_(parameters, config.clip_grad_value)
        return True
    parts = [parameters] if config.mode == "norm" else [[parameter] for parameter in parameters]
    is_clipped = False
    for part in parts:
        norm = torch.nn.utils.get_total_norm([parameter.grad for parameter in part])
        limit = config.max_grad_norm
        if config.mode == "adaptive":
            limit = config.clip_factor * max(part[0].detach().norm().item(), 1e-3)
        if norm > limit:
            torch.nn.utils.clip_grads_with_norm_(part, limit, norm)
            is_clipped = True
    return is_clipped


def _performance_metrics() -> dict[str, Any]:
    import torch

    metrics: dict[str, Any] = {"memory_usage_percent": 0, "gpu_memory_mb": 0, "unavailable": []}
    try:
        with open("/proc/self/statm") as file:
            metrics["memory_usage_percent"] = 100 * int(file.read().split()[1]) / os.sysconf("SC_PHYS_PAGES")
    except OSError:
        metrics["unavailable"].append("memory_usage_percent")
    if torch.cuda.is_available():
        metrics["gpu_memory_mb"] = torch.cuda.memory_allocated() / 2**20
    else:
        metrics["unavailable"].append("gpu_memory_mb")
    return metrics
