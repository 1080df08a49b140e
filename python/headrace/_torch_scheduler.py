"""A learning-rate schedule that is an object of torch.optim.lr_scheduler, as a Trainer's lr_scheduler."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import torch
from torch.optim.lr_scheduler import CyclicLR, OneCycleLR, ReduceLROnPlateau

from ._plain_state import Tensors, decode, encode
from .errors import InvalidArgumentError

_INTERVALS = ("step", "epoch")


class TorchScheduler:
    """Steps it by update or by epoch, and keeps its state."""

    def __init__(self, given: Any, optimizer: torch.optim.Optimizer) -> None:
        """`given`: the scheduler, or {"scheduler": ..., "interval": "step" | "epoch"}. Where the interval is not told, CyclicLR and
        OneCycleLR go by update, the others by epoch, as they are used with torch."""
        told = dict(given) if isinstance(given, dict) else {"scheduler": given}
        self.scheduler = told.pop("scheduler")
        self.needs_figure = isinstance(self.scheduler, ReduceLROnPlateau)
        self.interval = told.pop("interval", "step" if isinstance(self.scheduler, (CyclicLR, OneCycleLR)) else "epoch")
        self._optimizer = optimizer
        if told:
            raise InvalidArgumentError(f"lr_scheduler: wanted scheduler and interval, found {', '.join(map(repr, told))}")
        if not all(callable(getattr(self.scheduler, name, None)) for name in ("step", "state_dict", "load_state_dict")):
            raise TypeError(f"lr_scheduler: wanted an object of torch.optim.lr_scheduler, found {type(self.scheduler).__name__}")
        if self.interval not in _INTERVALS or (self.needs_figure and self.interval != "epoch"):
            wanted = "epoch, at whose end there is a figure" if self.needs_figure else " | ".join(_INTERVALS)
            raise InvalidArgumentError(f"lr_scheduler.interval: wanted {wanted}, found {self.interval!r}")
        of = getattr(self.scheduler, "optimizer", None)
        if of is not optimizer:
            raise InvalidArgumentError(f"lr_scheduler: {self.name}: wanted a scheduler of the Trainer's optimizer, found one of "
                                       f"{'no' if of is None else 'another'} {type(of or optimizer).__name__}")

    @property
    def name(self) -> str:
        return type(self.scheduler).__name__

    def given(self) -> dict[str, Any]:
        return {"scheduler": self.scheduler, "interval": self.interval}

    def refuse_without_epochs(self) -> None:
        if self.interval == "epoch":
            raise InvalidArgumentError(f"lr_scheduler: {self.name} is stepped by epoch, whose end fit() alone knows: wanted fit(), or "
                                       'lr_scheduler={"scheduler": ..., "interval": "step"}')

    def after_update(self) -> None:
        if self.interval == "step":
            self.scheduler.step()

    def after_epoch(self) -> None:
        """Without one that needs a figure."""
        if self.interval == "epoch" and not self.needs_figure:
            self.scheduler.step()

    def after_figure(self, figure: float) -> None:
        if self.needs_figure:
            self.scheduler.step(figure)

    def keep(self) -> Callable[[], None]:
        """What it returns puts scheduler and rates back to where they are now."""
        state, groups = copy.deepcopy(self.scheduler.state_dict()), copy.deepcopy(self._hyperparameters())

        def put_back() -> None:
            self.scheduler.load_state_dict(copy.deepcopy(state))
            self._set_hyperparameters(groups)

        return put_back

    def to_json(self, tensors: Tensors) -> dict[str, Any]:
        """Most schedulers go on from the rates in the optimizer's groups, so that these belong to their state."""
        return {"name": _classes(self.scheduler), "state": encode(self.scheduler.state_dict(), "lr_scheduler", tensors),
                "groups": encode(self._hyperparameters(), "param_groups", tensors)}

    def check(self, kept: dict[str, Any], tensors: Tensors) -> Callable[[], None]:
        """What it returns loads the state; InvalidArgumentError where it is of another scheduler or of other groups."""
        if kept["name"] != (wanted := _classes(self.scheduler)):
            raise InvalidArgumentError(f"python: load: a checkpoint of lr_scheduler {kept['name']}, wanted {wanted}")
        state, groups = decode(kept["state"], tensors), decode(kept["groups"], tensors)
        if len(groups) != len(self._optimizer.param_groups):
            raise InvalidArgumentError(f"python: load: a checkpoint of an optimizer of {len(groups)} groups, wanted "
                                       f"{len(self._optimizer.param_groups)}")

        def load() -> None:
            self._set_hyperparameters(groups)
            self.scheduler.load_state_dict(state)

        return load

    def _hyperparameters(self) -> list[dict[str, Any]]:
        names = ("params", "param_names")
        return [{key: value for key, value in group.items() if key not in names} for group in self._optimizer.param_groups]

    def _set_hyperparameters(self, groups: list[dict[str, Any]]) -> None:
        for group, values in zip(self._optimizer.param_groups, groups, strict=True):
            for key, value in values.items():
                if isinstance(group.get(key), torch.Tensor) and isinstance(value, torch.Tensor):
                    group[key].copy_(value)  # Whoever holds the tensor goes on seeing it.
                else:
                    group[key] = copy.copy(value)


def _classes(scheduler: Any) -> str:
    """Its class and those of its parts: "SequentialLR(LinearLR, MultiStepLR)"."""
    parts = getattr(scheduler, "_schedulers", ())
    of_parts = f"({', '.join(map(_classes, parts))})" if parts else ""
    return type(scheduler).__name__ + of_parts
