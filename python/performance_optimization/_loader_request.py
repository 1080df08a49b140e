"""The settings of a loader that somebody asked for, given to a loader by headrace.DataPipelineOptimizer."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ._performance_config import DEFAULT, LOADER_SETTINGS

if TYPE_CHECKING:
    from ._performance_config import PerformanceConfig

_KEPT = "the loop goes over the loader that was given; one with this setting is PerformanceOptimizer.dataloader"
_NOT_ASKED = "nobody asked for it: it is the configuration's default, and the loader keeps its own"


class LoaderRequest:
    """Of one loader. `loader` is what to train over: the same where nothing was asked for, and a headrace.Loader, which changes in place;
    else a headrace.OptimizedLoader over the same samples, beside which the one that was given stays as it is.

    keeps: train over the one that was given in any case; what it has not already is not applied then.

    headrace.errors.InvalidArgumentError: it is none of what DataPipelineOptimizer takes.
    """

    def __init__(self, config: PerformanceConfig, loader: Any, *, keeps: bool = False) -> None:
        self.loader = loader
        self._native: tuple[Any, Any, Any] | None = None  # A headrace.Loader, and the workers and prefetched batches that it had.
        asked = {name: getattr(config, name) for name in LOADER_SETTINGS if config.set_by(name) != DEFAULT}
        self._outcomes = {name: (False, _NOT_ASKED) for name in LOADER_SETTINGS if name not in asked}
        if asked:
            self._apply(asked, keeps)

    def report(self, name: str, requested: Any) -> dict[str, Any]:
        """{"requested", "status", "reason"} of a setting; of one that is applied, reason is what one has to know of it."""
        applied, reason = self._outcomes[name]
        status = "" if requested is False else "applied" if applied else "not applied"
        return {"requested": requested, "status": status, "reason": reason if status else ""}

    def undo(self) -> None:
        """Gives a headrace.Loader the workers and batches ahead that it had."""
        if self._native is not None:
            loader, workers, ahead = self._native
            self._native = None
            loader.set_num_workers(workers)
            loader.set_prefetch_batches(ahead)

    def _apply(self, asked: dict[str, Any], keeps: bool) -> None:
        import headrace
        import torch
        from headrace import _core

        given = self.loader
        if isinstance(given, headrace.Loader):
            statistics = given.statistics()
            workers, ahead = statistics["num_workers"], statistics["prefetch_batches"]
            self._native = given, given.options["num_workers"], given.options["prefetch_batches"]
            own = {"num_workers": workers, "prefetch_factor": max(1, ahead // max(1, workers))}
        elif isinstance(given, torch.utils.data.DataLoader):
            own = {"num_workers": given.num_workers, "pin_memory": given.pin_memory, "persistent_workers": given.persistent_workers,
                   "prefetch_factor": given.prefetch_factor or 2, "enable_async_data_loading": False}
        else:
            own = {"enable_async_data_loading": False}
        made, changes = headrace.DataPipelineOptimizer({**own, **asked}).optimize_loader(given)
        if keeps and made is not given:
            told = {change.option: (True, "") if change.old == change.new else (False, _KEPT) for change in changes}
        else:
            self.loader = made
            told = {change.option: (change.applied, change.reason) for change in changes}
        for name in asked:
            self._outcomes[name] = told.get(name, (False, f"a {type(given).__name__} has no such setting"))
        applied, reason = self._outcomes.get("num_workers", (False, ""))
        if applied and (crowded := _core.oversubscription(asked["num_workers"], torch.get_num_threads())):
            self._outcomes["num_workers"] = True, "; ".join(filter(None, (reason, crowded)))
