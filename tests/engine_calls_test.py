"""headrace._engine: 100,000 calls of what a training loop asks of a Trainer, and of the memory of tensors, leave nothing behind. Which
names that leaves out, and why: tests/uncalled_names.txt."""

import pytest
import torch
from held_memory import blocks_left, calls
from torch import nn

import headrace as hr
from headrace._engine_door import engine
from headrace.errors import UnsupportedError

pytestmark = [pytest.mark.engine, pytest.mark.usefixtures("one_thread")]

BATCH = torch.randn(2, 4)


def mean_square(model, batch):
    return model(batch).square().mean()


def a_trainer(**options):
    model = nn.Linear(4, 2)
    return hr.Trainer(model, torch.optim.AdamW(model.parameters()), mean_square, **options)


def refused(function, *given):
    try:
        function(*given)
    except UnsupportedError:
        return
    raise AssertionError(f"wanted an UnsupportedError of {function}")


@calls("Trainer.step", "Trainer.finish_window")
def a_window(folder):
    trainer = a_trainer(gradient_accumulation_steps=4)
    return lambda: (trainer.step(BATCH), trainer.finish_window())


@calls("Trainer.progress", "Trainer.learning_rate", "Trainer.learning_rates", "Trainer.loss_scale", "Trainer.options",
       "Trainer.clip_report", "Trainer.explain", "Trainer.live")
def what_a_trainer_tells(folder):
    trainer = a_trainer(max_grad_norm=1.0)
    trainer.step(BATCH)
    return lambda: (trainer.progress, trainer.learning_rate, trainer.learning_rates, trainer.loss_scale, trainer.options,
                    trainer.clip_report, trainer.explain(), trainer.live())


@calls("Trainer.averages", "Trainer.swa_averages", "Trainer.with_averages", "AveragesBlock.__enter__")
def averages_in_the_weights_place(folder):
    trainer = a_trainer(ema_decay=0.9)
    trainer.step(BATCH)

    def each():
        with trainer.with_averages():
            return trainer.averages, trainer.swa_averages

    return each


@calls("Trainer.set_memory_limit_mib", "Trainer.device_memory", "Trainer.reset_peak_device_memory", "Trainer.release_device_cache",
       "Trainer.save_device_memory", "Trainer.time_device", "Trainer.device_times")
def what_a_device_would_tell(folder):
    """Of a model on the CPU."""
    trainer = a_trainer()
    return lambda: (trainer.set_memory_limit_mib(0), trainer.device_memory(), trainer.reset_peak_device_memory(),
                    trainer.release_device_cache(), refused(trainer.save_device_memory, folder / "memory.pickle"), trainer.time_device(),
                    trainer.device_times())


@calls("allocator", "set_allocator", "tensor_memory", "reset_peak_tensor_memory")
def memory_of_tensors(folder):
    module = engine("this test")
    return lambda: (module.set_allocator(module.allocator()), module.tensor_memory(), module.reset_peak_tensor_memory())


@calls("MemoryScope", "MemoryScope.start", "MemoryScope.stop")
def a_scope(folder):
    module = engine("this test")

    def each():
        scope = module.MemoryScope()
        scope.start()
        return scope.stop()

    return each


@pytest.mark.parametrize("make", [a_window, what_a_trainer_tells, averages_in_the_weights_place, what_a_device_would_tell,
                                  memory_of_tensors, a_scope], ids=lambda make: make.__name__)
def test_100000_calls_leave_nothing_behind(make, tmp_path):
    assert blocks_left(make(tmp_path)) < 200


def states(folder):
    trainer = a_trainer()
    trainer.step(BATCH)
    return lambda: trainer.load_state_dict(trainer.state_dict())


def checkpoints(folder):
    trainer = a_trainer()
    trainer.step(BATCH)
    return lambda: (trainer.save(folder / "state.safetensors"), trainer.load(folder / "state.safetensors"))


def epochs_over_a_list(folder):
    return lambda: a_trainer().fit([BATCH], 1)


def evaluations(folder):
    trainer = a_trainer()
    return lambda: trainer.evaluate([BATCH])


@pytest.mark.parametrize("make", [states, checkpoints, epochs_over_a_list, evaluations], ids=lambda make: make.__name__)
def test_500_calls_of_what_takes_longer_leave_nothing_behind(make, tmp_path):
    assert blocks_left(make(tmp_path), 500, warm_up=50) < 200
