"""A model set up as a configuration says, by headrace."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from ._performance_config import PerformanceConfig

if TYPE_CHECKING:
    import torch
    from headrace import Compiled, ScaledDotProductAttention

_NOT_CALLED = "wanted optimize_model(model), which was not called"


class ModelOptimizer:
    """Memory format, gradient checkpointing and compilation, each as headrace has it: set_memory_format(),
    gradient_checkpointing_enable() and compiled(). What is compiled chooses by itself what it computes again, so checkpointing is in
    force where no mode of compilation is. Flash attention is asked for of the model's headrace.ScaledDotProductAttention and
    MultiheadAttention modules that name no kernel, and in force where the last forward of all of them ran it and was not compiled.

    config: a PerformanceConfig; None: its defaults.
    compile_modes: tried in this order, as headrace.compiled() takes them; None: that function's own list.
    """

    SETTINGS = ("enable_memory_format_optimization", "enable_gradient_checkpointing", "enable_compile")

    def __init__(self, config: PerformanceConfig | None = None, *,
                 compile_modes: list[str | Callable[..., Any]] | None = None) -> None:
        self.config = PerformanceConfig() if config is None else config
        self.compiled: Compiled | None = None
        self._attentions: list[ScaledDotProductAttention] = []
        self._compile_modes = compile_modes
        # Why a setting is not applied; empty: it is.
        self._reasons = dict.fromkeys((*self.SETTINGS, "enable_flash_attention"), _NOT_CALLED)

    def optimize_model(self, model: torch.nn.Module, example: Any = None,
                       forward: Callable[[torch.nn.Module, Any], Any] | None = None) -> torch.nn.Module:
        """The same model, set up in place. Called again, the model of the call before runs uncompiled again, and this one is compiled.

        example, forward: as headrace.compiled() takes them. With an example compile modes are tried and timed now; without one, torch
            compiles at the first call of the model.
        """
        import headrace

        config = self.config
        if self.compiled is not None:
            self.compiled.undo()
            self.compiled = None
        self._reasons = dict.fromkeys((*self.SETTINGS, "enable_flash_attention"), "")
        self._attentions = []
        if config.enable_memory_format_optimization:
            told = headrace.set_memory_format(model, config.memory_format.value)
            self._reasons["enable_memory_format_optimization"] = told["reason"]
        if config.enable_flash_attention:
            self._attentions = [module for module in model.modules() if isinstance(module, headrace.ScaledDotProductAttention)]
            for module in self._attentions:
                if module.kernel == "auto":  # What the user has named stays.
                    module.kernel = "flash"
        if config.enable_gradient_checkpointing:
            self._reasons["enable_gradient_checkpointing"] = _why_not_checkpointed(model)
        if config.enable_compile:
            modes = {} if self._compile_modes is None else {"modes": self._compile_modes}
            self.compiled = headrace.compiled(model, example=example, forward=forward, **modes)
        return model

    @property
    def compile_enabled(self) -> bool:
        """Whether the model's last call ran what torch compiled."""
        return self.compiled is not None and self.compiled.compile_enabled

    def report(self) -> dict[str, Any]:
        """For JSON: by setting {"requested", "status", "reason"}, status "applied", "not applied", or "" of what is not requested; and
        compilation: what headrace.Compiled.report has, with the attempts in their order, or None."""
        told: dict[str, Any] = {}
        for name in (*self.SETTINGS, "enable_flash_attention"):
            requested, reason = getattr(self.config, name), self._reasons[name] or self._why_not(name)
            is_applied = reason == ""
            if name == "enable_compile" and self.compiled is not None:
                is_applied, reason = self.compile_enabled, self.compiled.reason
            status = "" if not requested else "applied" if is_applied else "not applied"
            told[name] = {"requested": requested, "status": status, "reason": reason if requested else ""}
        told["compilation"] = None if self.compiled is None else self.compiled.report
        return told

    def _why_not(self, name: str) -> str:
        """Of what optimize_model() has set, and the model's last call may not have run; empty: it has."""
        if name == "enable_gradient_checkpointing" and self.compile_enabled:
            return "torch.compile chooses by itself what it computes again"
        if name == "enable_flash_attention":
            if not self._attentions:
                return ("the model has no headrace.ScaledDotProductAttention or MultiheadAttention; torch's "
                        "scaled_dot_product_attention takes flash where it can")
            if self.compile_enabled:
                return "torch.compile does not tell which kernel it runs"
            kernels = sorted({module.ran or "none that is told" for module in self._attentions})
            if kernels != ["flash"]:
                return f"wanted flash, the last forward ran {', '.join(kernels)}"
        return ""


def _why_not_checkpointed(model: torch.nn.Module) -> str:
    """Empty where it is."""
    import headrace

    try:
        headrace.gradient_checkpointing_enable(model)
    except headrace.Error as error:
        return str(error)
    return ""
