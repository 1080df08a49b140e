"""A trainer that makes its optimizer and its criterion from a configuration, and a model with fit()."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from . import _config
from ._engine_trainer import engine_trainer, mixed_precision
from ._optimizer import create_optimized_optimizer, parameter_groups
from ._performance import PerformanceOptimizer
from ._performance_config import PerformanceConfig

if TYPE_CHECKING:
    import torch

    from ._training_optimizer import TrainingLoop

_LEARNING_RATE = 0.001  # Where no configuration has one: AdamW's of torch.
_BATCH_SIZE = 32


class OptimizedTrainer:
    """Trains and validates a model by headrace.Trainer, set up as a PerformanceOptimizer's configuration says.

    config: a PerformanceConfig, or any mapping or object, of which the settings of one are taken by name, and for what is not given
        model_config, as create_optimized_optimizer() takes it, and criterion, a function. None: a PerformanceConfig's defaults.
    performance_optimizer: a PerformanceOptimizer, whose configuration is in force; None: one of config.
    optimizer: None: by create_optimized_optimizer(), with AdamW at a learning rate of 0.001 where config has no model_config.
    criterion: the loss is criterion(model(inputs), targets); None: config's, else cross entropy.

    TypeError: one of them is of another kind. ValueError: config is a PerformanceConfig and differs from performance_optimizer's, or a
    setting is out of range.
    """

    def __init__(self, model: torch.nn.Module, config: Any = None, performance_optimizer: PerformanceOptimizer | None = None,
                 optimizer: torch.optim.Optimizer | None = None, criterion: Callable[..., torch.Tensor] | None = None) -> None:
        import torch

        if performance_optimizer is None:
            performance_optimizer = PerformanceOptimizer(config)
        elif not isinstance(performance_optimizer, PerformanceOptimizer):
            raise TypeError(f"performance_optimizer: wanted a PerformanceOptimizer, found {type(performance_optimizer).__name__}; what "
                            "steps the model's parameters is optimizer")
        elif isinstance(config, PerformanceConfig) and config != performance_optimizer.config:
            raise ValueError("config: wanted that of performance_optimizer, which is in force, found another one")
        if optimizer is None:
            has_settings = _config.setting(config, "model_config") is not None
            optimizer = create_optimized_optimizer(
                model, config if has_settings else {"model_config": {"learning_rate": _LEARNING_RATE}})
        _config.check_optimizer(optimizer)
        self.model = model
        self.performance_optimizer = performance_optimizer
        self.config = performance_optimizer.config
        self.optimizer = optimizer
        given = _config.setting(config, "criterion") if criterion is None else criterion
        self.criterion = torch.nn.functional.cross_entropy if given is None else given
        self._loop: TrainingLoop | None = None
        self._validations: list[dict[str, Any]] = []

    def train_epoch(self, dataloader: Any, epoch: int, num_epochs: int) -> dict[str, Any]:
        """One epoch in training mode. Returns what TrainingOptimizer.train() has of an epoch, and num_epochs. The first call sets the
        model up by performance_optimizer.optimize_model(), where that was not done, and fixes how many batches an update has.

        epoch: from 1 to num_epochs; which one it is called in the results. ValueError: it is not, or the loader gave no batch.
        """
        _config.check_range("num_epochs", num_epochs, int)
        _check_epoch(epoch, num_epochs)
        if self._loop is None:
            self._loop = self.performance_optimizer.begin_loop(self.model, self.optimizer, self.criterion, dataloader)
        result = self._loop.train_epoch(dataloader)
        result.update(epoch=epoch, num_epochs=num_epochs)
        return dict(result)

    def validate(self, val_dataloader: Any, epoch: int) -> dict[str, Any]:
        """Forward in evaluation mode without gradients; weights, buffers and gradients stay, and each module's mode afterwards. Returns
        epoch, val_loss, the mean over the samples, and samples. ValueError: the epoch is below 1, or the loader gave no batch."""
        _check_epoch(epoch)
        found = self._evaluating_trainer().evaluate(val_dataloader)
        result = {"epoch": epoch, "val_loss": found["loss"], "samples": found["samples"]}
        self._validations.append(result)
        return dict(result)

    def live(self) -> dict[str, Any]:
        """headrace.Trainer.live(), for a second thread, too; {} before the first train_epoch()."""
        return {} if self._loop is None else self._loop.trainer.live()

    def get_performance_summary(self) -> dict[str, Any]:
        """For JSON: the performance optimizer's, and training_metrics: the results of all epochs and validations, progress, as
        headrace.Trainer has it, and parameter_groups, the optimizer's with the names of their parameters. For the thread that trains;
        live() is for others."""
        loop = self._loop
        metrics = {"epochs": [dict(epoch) for epoch in loop.epochs] if loop else [],
                   "validations": [dict(each) for each in self._validations],
                   "progress": loop.trainer.progress if loop else None,
                   "parameter_groups": parameter_groups(self.model, self.optimizer)}
        return {**self.performance_optimizer.get_performance_summary(), "training_metrics": metrics}

    def _evaluating_trainer(self) -> Any:
        """The loop's; before the first epoch one of its own, as the loop's goes by the loader of training."""
        if self._loop is not None:
            return self._loop.trainer
        precision, _ = mixed_precision(self.model, self.config.enable_amp)
        return engine_trainer(self.model, self.optimizer, self.criterion, **precision)


class TrainableModel:
    """A model with fit(). Called, it is the model.

    optimizer, criterion, config: as OptimizedTrainer takes them; config None: nothing is switched on but the loop, an update a batch.
    """

    def __init__(self, model: torch.nn.Module, optimizer: torch.optim.Optimizer | None = None,
                 criterion: Callable[..., torch.Tensor] | None = None, config: Any = None) -> None:
        self.model = model
        self.trainer = OptimizedTrainer(model, PerformanceConfig("custom") if config is None else config, optimizer=optimizer, criterion=criterion)

    def __call__(self, *inputs: Any, **named: Any) -> Any:
        return self.model(*inputs, **named)

    def fit(self, dataset: Any, epochs: int = 10, *, batch_size: int = _BATCH_SIZE, validation_data: Any = None) -> dict[str, list[Any]]:
        """Trains `epochs` more epochs. Returns the history: by name one value an epoch of loss, seconds, samples_per_second and
        skipped_updates, and of val_loss with validation_data.

        dataset: what gives batches of inputs and targets, as a headrace.Loader, a DataLoader or a list of batches; or a
            torch.utils.data.Dataset of samples, of which batches of batch_size are made, in a new order each epoch where it has one.
        validation_data: the same, in its own order.

        ValueError: epochs or batch_size is no whole number above 0, or there is no batch.
        """
        _config.check_range("epochs", epochs, int)
        _config.check_range("batch_size", batch_size, int)
        loader = _loader_of(dataset, batch_size, shuffles=True)
        validation = None if validation_data is None else _loader_of(validation_data, batch_size, shuffles=False)
        names = ("loss", "seconds", "samples_per_second", "skipped_updates")
        history: dict[str, list[Any]] = {name: [] for name in names}
        for epoch in range(1, epochs + 1):
            result = self.trainer.train_epoch(loader, epoch, epochs)
            for name in names:
                history[name].append(result[name])
            if validation is not None:
                history.setdefault("val_loss", []).append(self.trainer.validate(validation, epoch)["val_loss"])
        return history


def _check_epoch(epoch: int, num_epochs: int | None = None) -> None:
    _config.check_range("epoch", epoch, int)
    if num_epochs is not None and epoch > num_epochs:
        raise ValueError(f"epoch: wanted one from 1 to {num_epochs}, found {epoch}")


def _loader_of(dataset: Any, batch_size: int, shuffles: bool) -> Any:
    from torch.utils.data import DataLoader, Dataset, IterableDataset

    if not isinstance(dataset, Dataset):
        return dataset
    return DataLoader(dataset, batch_size=batch_size, shuffle=shuffles and not isinstance(dataset, IterableDataset))
