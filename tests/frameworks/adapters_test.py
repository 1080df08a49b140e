"""hr.autotune as a callback of Lightning's and of Hugging Face's Trainer, and with what Accelerate prepares: the run is the same,
what it saves is the same, what pays is kept, and what cannot be tuned is left alone. In an environment of its own: make check
PARTS=frameworks."""

import contextlib
import functools
import math
import os
import random
import subprocess
import sys
import types

import accelerate
import headrace as hr
import headrace.lightning
import headrace.transformers
import lightning.pytorch as pl
import pytest
import torch
import transformers
from headrace._autotune import AutoTune
from headrace._live_knobs import LiveKnobs
from headrace._outermost_calls import OutermostCalls
from torch import nn
from torch.utils.data import DataLoader, Dataset, TensorDataset

STEP_S = 0.05
FUSED = "fused optimizer"
STEPS = 300  # Of runs that are compared with an untouched one.


pytestmark = pytest.mark.usefixtures("one_thread")


@pytest.fixture(autouse=True)
def fresh_accelerate():
    """It keeps what was asked for in the process."""
    yield
    accelerate.state.AcceleratorState._reset_state(reset_partial_state=True)
    accelerate.state.GradientState._reset_state()


class Clock:
    now = 0.0

    def __call__(self):
        return self.now


class FusedPays:
    """Lets the tuner's clock pass: 50 ms a micro-batch, give or take 2 %, and 1.6 times less where the optimizer is fused."""

    def __init__(self, monkeypatch):
        self.clock, self._noise = Clock(), random.Random(7)
        for place in ("headrace.lightning.Handle", "headrace.transformers.Handle", "headrace._autotune.AutoTune"):
            monkeypatch.setattr(place, functools.partial(AutoTune, clock=self.clock))

    def micro_batch(self, optimizer):
        self.clock.now += STEP_S / (1.6 if is_fused(optimizer) else 1) * math.exp(self._noise.gauss(0, 0.02))


@pytest.fixture
def fused_pays(monkeypatch):
    return FusedPays(monkeypatch)


def is_fused(optimizer):
    return bool(optimizer.param_groups[0]["fused"])


def hooks_on(model, optimizer):
    """Everything that a tuning may hang itself on, but for the loader."""
    owners = [*model.modules(), getattr(optimizer, "optimizer", optimizer)]
    return ([{name: len(hooks) for name, hooks in vars(owner).items() if "_hooks" in name and isinstance(hooks, dict)}
             for owner in owners], [vars(owner).keys() & {"forward", "state_dict", "__getstate__"} for owner in owners])


def same_weights(one, other):
    return all(torch.equal(a, b) for a, b in zip(one.state_dict().values(), other.state_dict().values(), strict=True))


def has_ours(path):
    """Whether a file names a class or a function of the package."""
    return b"headrace." in path.read_bytes() or b"headrace\n" in path.read_bytes()


def problems(told):
    return [text for kind, text in told if kind == "problem"]


# Lightning.


class Parts(pl.LightningModule):
    """It has no forward: training_step calls its parts."""

    def __init__(self):
        super().__init__()
        self.encoder = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Dropout(0.1))
        self.head = nn.Linear(8, 2)
        self.losses, self.pays = [], None

    def scores(self, features):
        return self.head(self.encoder(features))

    def training_step(self, batch, index):
        loss = nn.functional.cross_entropy(self.scores(batch[0]), batch[1])
        self.losses.append(loss.item())
        if self.pays is not None:
            self.pays.micro_batch(self.trainer.optimizers[0])
        return loss

    def configure_optimizers(self):
        return torch.optim.AdamW(self.parameters(), lr=1e-3)


class Whole(Parts):
    """training_step calls the module itself."""

    def forward(self, features):
        return super().scores(features)

    def scores(self, features):
        return self(features)


class Manual(Whole):
    def __init__(self):
        super().__init__()
        self.automatic_optimization = False

    def training_step(self, batch, index):
        self.optimizers().zero_grad()
        self.manual_backward(super().training_step(batch, index))
        self.optimizers().step()


class Probe(pl.Callback):
    """Calls `look` behind each batch with the trainer and the module."""

    def __init__(self, look):
        self.on_train_batch_end = lambda trainer, module, *batch: look(trainer, module)


class LoadedHere(Dataset):
    """Counts the samples that this process has loaded, and no worker."""

    here = 0

    def __init__(self, plain):
        self.plain = plain

    def __len__(self):
        return len(self.plain)

    def __getitem__(self, index):
        self.here += 1
        return self.plain[index]


def samples(count=800):
    generator = torch.Generator().manual_seed(1)
    return TensorDataset(torch.randn(count, 4, generator=generator), torch.randint(0, 2, (count,), generator=generator))


def fit(module, *callbacks, steps=STEPS, loader=None, **options):
    torch.manual_seed(5)
    trainer = pl.Trainer(**{
        "max_steps": steps, "accelerator": "cpu", "devices": 1, "logger": False, "enable_checkpointing": False,
        "enable_progress_bar": False, "enable_model_summary": False, "callbacks": list(callbacks), **options})
    trainer.fit(module, DataLoader(samples(), 8, shuffle=True) if loader is None else loader)
    return trainer


def made(kind, pays=None):
    torch.manual_seed(1)
    module = kind()
    module.pays = pays
    return module


def lightning_callback(**options):
    told = []
    return headrace.lightning.AutoTune(on_progress=lambda *one: told.append(one), **options), told


@pytest.mark.forks
@pytest.mark.parametrize("accumulated", [1, 2])
@pytest.mark.parametrize("kind", [Whole, Parts])
def test_a_lightning_run_under_bit_equal_has_the_bits_of_an_untouched_one(kind, accumulated, fused_pays):
    plain, tuned = made(kind), made(kind, fused_pays)
    fit(plain, accumulate_grad_batches=accumulated)
    after = torch.get_rng_state()
    callback, told = lightning_callback(allow="bit_equal")
    fit(tuned, callback, accumulate_grad_batches=accumulated)
    assert callback.handle.problem is None and [kind for kind, _ in told].count("began") == 1
    assert len(tuned.losses) == STEPS * accumulated and tuned.losses == plain.losses
    assert same_weights(tuned, plain) and torch.equal(torch.get_rng_state(), after)


@pytest.mark.parametrize("kind, accumulated", [(Whole, 1), (Parts, 1), (Parts, 2)])
def test_a_lightning_run_keeps_the_fused_optimizer_where_it_pays_and_undo_takes_it_off(kind, accumulated, fused_pays):
    module = made(kind, fused_pays)
    callback, told = lightning_callback(only=[FUSED])

    def look(trainer, module):
        trainer.should_stop = bool(callback.handle.kept)

    trainer = fit(module, callback, Probe(look), steps=3000, accumulate_grad_batches=accumulated)
    (optimizer,) = trainer.optimizers
    assert trainer.global_step < 3000 and callback.handle.kept == [FUSED]
    assert not callback.handle.watching and is_fused(optimizer)  # stop() keeps it.
    (began,) = [text for kind, text in told if kind == "began"]
    assert "may be lost" in began and "of the time so far" not in began  # The Trainer has told the run's length.
    callback.handle.undo()
    assert not is_fused(optimizer) and hooks_on(module, optimizer) == hooks_on(made(kind), torch.optim.AdamW(module.parameters()))


@pytest.mark.forks
@pytest.mark.parametrize("kind, wanted", [(Whole, [""]), (Parts, ["", "encoder", "head"])])
def test_what_is_switched_are_the_modules_that_training_step_calls(kind, wanted, monkeypatch):
    given = []

    class Noted(LiveKnobs):
        def __init__(self, models, *others, **options):
            given.append(models)
            super().__init__(models, *others, **options)

    monkeypatch.setattr(headrace.lightning, "LiveKnobs", Noted)
    module = made(kind)
    fit(module, lightning_callback()[0], steps=3)
    names = {part: name for name, part in module.named_modules()}
    assert [[names[part] for part in models] for models in given] == [wanted]


@pytest.mark.forks
def test_loading_is_switched_within_lightnings_first_epoch_and_the_batches_stay(fused_pays):
    plain, module = made(Whole), made(Whole, fused_pays)
    fit(plain, steps=900, loader=DataLoader(samples(8000), 8, shuffle=True, num_workers=1))
    data, epochs = LoadedHere(samples(8000)), set()
    loader = DataLoader(data, 8, shuffle=True, num_workers=1)
    callback, _ = lightning_callback(only=["num_workers 0"])

    def look(trainer, module):
        epochs.add(trainer.current_epoch)
        trainer.should_stop = data.here > 0

    fit(module, callback, Probe(look), steps=900, loader=loader)
    assert callback.handle.problem is None and data.here > 0 and epochs == {0}
    assert module.losses == plain.losses[:len(module.losses)]
    assert type(loader) is DataLoader  # Nothing is kept.


@pytest.mark.forks
def test_waiting_for_data_is_seen_in_lightnings_first_epoch(monkeypatch):
    waits, plain = [], AutoTune._on_unit
    monkeypatch.setattr(AutoTune, "_follower", lambda self: None)  # Python is told of each unit.
    monkeypatch.setattr(AutoTune, "_on_unit", lambda self, unit: (waits.append(unit.wait_s), plain(self, unit)))
    fit(made(Whole), lightning_callback()[0], steps=30)
    assert len(waits) >= 28 and min(waits) > 0


@pytest.mark.forks
@pytest.mark.parametrize("count", [1, 2])
def test_a_loader_in_a_list_of_one_is_followed_and_none_of_several_that_are_read_side_by_side(count):
    class Listed(Parts):
        def training_step(self, batch, index):
            return super().training_step(batch[0], index)

    loaders, followed = [DataLoader(samples(), 8) for _ in range(count)], []
    callback, _ = lightning_callback()
    fit(made(Listed), callback, Probe(lambda *given: followed.append([type(loader) is not DataLoader for loader in loaders])),
        steps=30, loader=loaders)
    assert callback.handle.problem.startswith("the run was over after ")
    assert len(followed) == 30 and all(found == [count == 1] * count for found in followed)


@pytest.mark.parametrize("steps", [0, STEPS])
def test_a_lightning_run_without_a_handle_leaves_nothing_on_its_loader(steps):
    class Failing(Parts):
        def training_step(self, batch, index):
            assert type(loader) is not DataLoader  # It was followed.
            raise LookupError("mine")

    module, loader, strategy = made(Failing), DataLoader(samples(), 8), single_device(None)
    callback, _ = lightning_callback()
    with pytest.raises(LookupError) if steps else contextlib.nullcontext():
        fit(module, callback, steps=steps, loader=loader, strategy=strategy)
    assert callback.handle is None and type(loader) is DataLoader and len(list(loader)) == 100
    assert "process_dataloader" not in vars(strategy)


def test_outermost_calls_are_those_with_gradients_and_parameters_of_their_own():
    module = made(Parts)
    before = hooks_on(module, torch.optim.SGD(module.parameters(), 0.1))
    calls = OutermostCalls(module)
    with torch.no_grad():
        module.encoder(torch.ones(1, 4))
    module.encoder[1](torch.ones(1, 4))  # ReLU.
    with pytest.raises(RuntimeError):
        module.encoder(torch.ones(1, 5))  # Of another width.
    module.head(torch.ones(1, 8))
    module.head(torch.ones(1, 8))
    found = calls.end()
    assert len(found) == 2 and found[0] is module.encoder and found[1] is module.head
    assert hooks_on(module, torch.optim.SGD(module.parameters(), 0.1)) == before


def test_a_lightning_checkpoint_that_is_saved_while_a_change_is_in_force_is_as_without_it(tmp_path, fused_pays):
    module, path = made(Whole, fused_pays), tmp_path / "in_force.ckpt"
    callback, _ = lightning_callback(only=[FUSED])

    def look(trainer, module):
        if is_fused(trainer.optimizers[0]) and not path.exists():
            trainer.save_checkpoint(path)
            assert is_fused(trainer.optimizers[0])
        trainer.should_stop = path.exists()

    fit(module, callback, Probe(look), steps=3000)
    saved = torch.load(path, weights_only=False)
    assert not saved["optimizer_states"][0]["param_groups"][0]["fused"] and saved["callbacks"] == {} and not has_ours(path)
    resumed = made(Whole)
    torch.manual_seed(5)
    trainer = pl.Trainer(max_steps=saved["global_step"] + 5, accelerator="cpu", logger=False, enable_checkpointing=False,
                         enable_progress_bar=False, enable_model_summary=False)
    trainer.fit(resumed, DataLoader(samples(), 8, shuffle=True), ckpt_path=path)
    assert trainer.global_step == saved["global_step"] + 5 and not is_fused(trainer.optimizers[0])


def test_lightning_with_auto_tune_false_hooks_nothing_and_finds_nothing():
    plain, frozen = made(Parts), made(Parts)
    fit(plain)
    callback, told = lightning_callback(auto_tune=False)
    seen = []
    fit(frozen, callback, Probe(lambda trainer, module: seen.append(hooks_on(module, trainer.optimizers[0]))))
    untouched = made(Parts)
    assert seen[0] == seen[-1] == hooks_on(untouched, torch.optim.AdamW(untouched.parameters()))
    assert frozen.losses == plain.losses and told == [] and callback.handle.problem is None and callback.handle.trials == []


@pytest.mark.forks
@pytest.mark.parametrize("last", [0, 40])
def test_an_exception_in_a_lightning_run_passes_and_leaves_no_hook(last):
    class Failing(Parts):
        def training_step(self, batch, index):
            if len(self.losses) == last:
                raise LookupError("mine")
            return super().training_step(batch, index)

    module = made(Failing)
    callback, _ = lightning_callback()
    with pytest.raises(LookupError, match="mine"):
        fit(module, callback)
    assert (callback.handle is None) == (last == 0) and (callback.handle is None or not callback.handle.watching)
    untouched = made(Failing)
    assert hooks_on(module, torch.optim.SGD([torch.ones(1)], 0.1)) == hooks_on(untouched, torch.optim.SGD([torch.ones(1)], 0.1))


def test_a_second_fit_begins_anew_as_written(fused_pays):
    module = made(Whole, fused_pays)
    callback, _ = lightning_callback(only=[FUSED])

    def look(trainer, module):
        trainer.should_stop = bool(callback.handle.kept)

    optimizers = [fit(module, callback, Probe(look), steps=3000).optimizers[0]]
    first = callback.handle
    fit(module, callback, Probe(lambda trainer, module: optimizers.append(trainer.optimizers[0])), steps=1)
    assert callback.handle is not first and first.kept == [FUSED] and callback.handle.kept == []
    assert [is_fused(optimizer) for optimizer in optimizers] == [False, False]


@pytest.mark.parametrize("kind, options, said", [
    (Manual, {}, "the module steps its optimizers itself (automatic_optimization is False); wanted Lightning to"),
    (Whole, {"precision": "bf16-true"}, "the precision is bf16-true; wanted 32-true or bf16-mixed")])
def test_a_lightning_run_of_another_kind_goes_on_as_it_was_and_one_line_says_why(kind, options, said):
    plain, module = made(kind), made(kind)
    fit(plain, steps=30, **options)
    callback, told = lightning_callback()
    fit(module, callback, steps=30, **options)
    assert callback.handle.problem.startswith(said) and module.losses == plain.losses
    (line,) = problems(told)
    assert line == f"{callback.handle.problem}; the loop goes on as written"


@pytest.mark.parametrize("strategy, said", [
    (lambda module: pl.strategies.DDPStrategy(), "the strategy is DDPStrategy; wanted SingleDeviceStrategy"),
    (lambda module: single_device(torch.compile(module)), "the strategy trains a OptimizedModule around the module; wanted")])
def test_a_lightning_strategy_that_wraps_or_shares_the_module_is_refused(strategy, said):
    module = made(Whole)
    callback, told = lightning_callback()
    trainer = types.SimpleNamespace(strategy=strategy(module), precision="32-true", optimizers=[module.configure_optimizers()])
    callback.on_train_start(trainer, module)
    callback.on_train_batch_end(trainer, module, None, None, 0)
    assert callback.handle.problem.startswith(said) and len(problems(told)) == 1
    assert hooks_on(module, trainer.optimizers[0]) == hooks_on(made(Whole), torch.optim.AdamW(module.parameters()))


def single_device(model):
    strategy = pl.strategies.SingleDeviceStrategy(device=torch.device("cpu"))
    strategy.model = model
    return strategy


@pytest.mark.forks
def test_lightnings_own_autocast_stays_and_the_rest_is_tuned(fused_pays):
    callback, told = lightning_callback(allow="reduced_precision")
    fit(made(Whole, fused_pays), callback, precision="bf16-mixed")
    assert callback.handle.problem is None and [kind for kind, _ in told].count("began") == 1
    (bf16,) = [trial for trial in callback.handle.trials if "train.precision" in trial.settings]
    assert bf16.verdict == "refused" and "train.precision is to stay" in bf16.sentence


def run_python(code):
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True,
                          env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)})


@pytest.mark.parametrize("package", ["lightning.pytorch", "pytorch_lightning"])
def test_the_callback_is_of_the_package_that_the_process_uses(package):
    done = run_python(f"import {package} as framework, headrace.lightning, sys\n"
                      "assert issubclass(headrace.lightning.AutoTune, framework.Callback)\n"
                      f"print(sorted({{'lightning.pytorch', 'pytorch_lightning'}} & sys.modules.keys()))")
    assert (done.returncode, done.stdout) == (0, f"['{package}']\n"), done.stderr


def test_a_module_of_the_other_package_is_tuned_too():
    done = run_python(OTHER_PACKAGE)
    assert done.returncode == 0, done.stderr
    assert done.stdout == "True None\n" and "a step; at most" in done.stderr


OTHER_PACKAGE = f"""
import time

import pytorch_lightning
import torch
from headrace.lightning import AutoTune
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

class Module(pytorch_lightning.LightningModule):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(4, 2)

    def training_step(self, batch, index):
        time.sleep(0.005)  # So that the tuner knows the loop before it ends, however fast the machine is.
        return self.layer(batch[0]).square().mean()

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), 0.01)

tuning = AutoTune()
trainer = pytorch_lightning.Trainer(max_steps={STEPS}, accelerator="cpu", logger=False, enable_checkpointing=False,
                                    enable_progress_bar=False, enable_model_summary=False, callbacks=[tuning])
trainer.fit(Module(), DataLoader(TensorDataset(torch.randn(800, 4)), 8))
print(trainer.global_step == {STEPS}, tuning.handle.problem)
"""


def test_without_lightning_one_line_names_both_packages():
    done = run_python("import sys\nsys.modules['lightning'] = sys.modules['pytorch_lightning'] = None\nimport headrace.lightning")
    assert done.returncode != 0 and done.stderr.strip().splitlines()[-1] == (
        "ImportError: headrace.lightning: wanted the package lightning or pytorch_lightning, found neither")


def test_importing_headrace_imports_no_framework():
    frameworks = {"lightning", "pytorch_lightning", "transformers", "accelerate"}
    done = run_python(f"import headrace, sys\nprint({frameworks} & sys.modules.keys())")
    assert (done.returncode, done.stdout) == (0, "set()\n"), done.stderr


# Hugging Face.


class Recording(transformers.Trainer):
    losses = ()

    def training_step(self, *given, **named):
        loss = super().training_step(*given, **named)
        self.losses = (*self.losses, loss.item())
        return loss


class HuggingFaceProbe(transformers.TrainerCallback):
    """Lets time pass before each update, and calls `look` behind it."""

    def __init__(self, pays, look):
        self.pays, self.look = pays, look

    def on_step_begin(self, args, state, control, optimizer=None, **others):
        self.pays.micro_batch(optimizer)

    def on_step_end(self, args, state, control, optimizer=None, **others):
        self.look(control, optimizer)


def bert():
    torch.manual_seed(1)
    return transformers.BertForSequenceClassification(transformers.BertConfig(
        vocab_size=64, hidden_size=16, num_hidden_layers=1, num_attention_heads=2, intermediate_size=32,
        max_position_embeddings=16, num_labels=2))


def texts(count=400):
    generator = torch.Generator().manual_seed(1)
    return [{"input_ids": torch.randint(1, 64, (8,), generator=generator), "labels": torch.randint(0, 2, (), generator=generator)}
            for _ in range(count)]


def arguments(folder, **options):
    return transformers.TrainingArguments(**{
        "output_dir": str(folder), "max_steps": STEPS, "per_device_train_batch_size": 4, "learning_rate": 1e-3, "seed": 3,
        "optim": "adamw_torch", "use_cpu": True, "save_strategy": "no", "report_to": "none", "logging_strategy": "no",
        "disable_tqdm": True, **options})


def train(folder, *callbacks, **options):
    trainer = Recording(model=bert(), args=arguments(folder, **options), train_dataset=texts(), callbacks=list(callbacks))
    trainer.train()
    return trainer


def hugging_face_callback(**options):
    told = []
    return headrace.transformers.AutoTune(on_progress=lambda *one: told.append(one), **options), told


@pytest.mark.forks
@pytest.mark.parametrize("accumulated", [1, 2])
def test_a_hugging_face_run_under_bit_equal_has_the_bits_of_an_untouched_one(tmp_path, accumulated, fused_pays):
    plain = train(tmp_path, gradient_accumulation_steps=accumulated)
    callback, told = hugging_face_callback(allow="bit_equal")
    passes = HuggingFaceProbe(fused_pays, lambda control, optimizer: None)
    tuned = train(tmp_path, callback, passes, gradient_accumulation_steps=accumulated)
    assert callback.handle.problem is None and [kind for kind, _ in told].count("began") == 1
    assert len(tuned.losses) == STEPS * accumulated and tuned.losses == plain.losses and same_weights(tuned.model, plain.model)


def test_a_hugging_face_run_keeps_the_fused_optimizer_where_it_pays_and_undo_takes_it_off(tmp_path, fused_pays):
    callback, told = hugging_face_callback(only=[FUSED])

    def look(control, optimizer):
        control.should_training_stop = bool(callback.handle.kept)

    trainer = train(tmp_path, callback, HuggingFaceProbe(fused_pays, look), max_steps=3000)
    assert trainer.state.global_step < 3000 and callback.handle.kept == [FUSED]
    assert not callback.handle.watching and is_fused(trainer.optimizer)
    (began,) = [text for kind, text in told if kind == "began"]
    assert "may be lost" in began and "of the time so far" not in began
    callback.handle.undo()
    assert not is_fused(trainer.optimizer)
    assert hooks_on(trainer.model, trainer.optimizer) == hooks_on(bert(), torch.optim.AdamW(trainer.model.parameters()))


def test_a_hugging_face_checkpoint_that_is_saved_while_a_change_is_in_force_is_as_without_it(tmp_path, fused_pays):
    callback, _ = hugging_face_callback(only=[FUSED])
    saved_at = []

    def look(control, optimizer):
        if is_fused(optimizer) and not saved_at:
            saved_at.append(True)
            control.should_save = control.should_training_stop = True

    train(tmp_path, callback, HuggingFaceProbe(fused_pays, look), max_steps=3000)
    (checkpoint,) = tmp_path.glob("checkpoint-*")
    files = sorted(path for path in checkpoint.iterdir() if path.is_file())
    assert {"optimizer.pt", "model.safetensors", "trainer_state.json", "training_args.bin"} <= {path.name for path in files}
    assert [path.name for path in files if has_ours(path)] == []
    assert not torch.load(checkpoint / "optimizer.pt", weights_only=True)["param_groups"][0]["fused"]
    resumed = Recording(model=bert(), args=arguments(tmp_path, max_steps=int(checkpoint.name.split("-")[1]) + 5),
                        train_dataset=texts())
    resumed.train(resume_from_checkpoint=str(checkpoint))
    assert len(resumed.losses) == 5 and not is_fused(resumed.optimizer)


def test_hugging_face_with_auto_tune_false_finds_nothing(tmp_path):
    plain = train(tmp_path, max_steps=50)
    callback, told = hugging_face_callback(auto_tune=False)
    frozen = train(tmp_path, callback, max_steps=50)
    assert frozen.losses == plain.losses and told == [] and callback.handle.problem is None and callback.handle.trials == []


def test_a_hugging_face_run_whose_training_raised_is_begun_anew(tmp_path):
    class Failing(Recording):
        def training_step(self, *given, **named):
            if len(self.losses) == 30:
                raise LookupError("mine")
            return super().training_step(*given, **named)

    callback, told = hugging_face_callback()
    trainer = Failing(model=bert(), args=arguments(tmp_path), train_dataset=texts(), callbacks=[callback])
    with pytest.raises(LookupError, match="mine"):
        trainer.train()
    first = callback.handle
    trainer.losses = ()
    with pytest.raises(LookupError, match="mine"):
        trainer.train()
    assert callback.handle is not first and callback.handle.problem is None and not first.watching and problems(told)[1:] == []
    callback.handle.undo()
    assert hooks_on(trainer.model, trainer.optimizer) == hooks_on(bert(), torch.optim.AdamW(trainer.model.parameters()))


@pytest.mark.parametrize("name, value", [("deepspeed", {"zero_optimization": {"stage": 2}}), ("fsdp", ["full_shard"]),
                                         ("torch_compile", True), ("fp16", True)])
def test_hugging_face_arguments_under_which_nothing_is_tuned_are_named(tmp_path, name, value):
    plain = vars(arguments(tmp_path))
    assert name in plain and not plain[name]
    callback, told = hugging_face_callback()
    model = bert()
    optimizer = torch.optim.AdamW(model.parameters())
    before = hooks_on(model, optimizer)
    callback.on_train_begin(types.SimpleNamespace(**{**plain, name: value}), transformers.TrainerState(max_steps=100), None,
                            model=model, optimizer=optimizer, train_dataloader=None)
    assert callback.handle.problem.startswith(f"TrainingArguments sets {name}: ") and len(problems(told)) == 1
    assert hooks_on(model, optimizer) == before and not callback.handle.watching


def test_options_that_make_no_sense_are_refused_when_the_callback_is_made():
    for adapter in (headrace.lightning.AutoTune, headrace.transformers.AutoTune):
        with pytest.raises(hr.errors.InvalidArgumentError, match="autotune: steps: wanted a whole number of at least 1, found 0"):
            adapter(steps=0)
        with pytest.raises(TypeError, match="alow"):
            adapter(alow="rounding")


# Accelerate.


def accelerated(epochs, *, pays=None, tune=None, until=lambda: False):
    """Updates of two micro-batches each. `tune` is given what Accelerate has prepared. The losses, and the bare objects."""
    torch.manual_seed(1)
    model = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Dropout(0.1), nn.Linear(8, 2))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    schedule = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.999)
    accelerator = accelerate.Accelerator(cpu=True, gradient_accumulation_steps=2)
    prepared = accelerator.prepare(model, optimizer, DataLoader(samples(), 8, shuffle=True), schedule)
    trained, stepping, loader, scheduling = prepared
    if tune is not None:
        tune(trained, stepping, loader)
    losses = []
    torch.manual_seed(5)
    for _ in range(epochs):
        for features, labels in loader:
            with accelerator.accumulate(trained):
                loss = nn.functional.cross_entropy(trained(features), labels)
                accelerator.backward(loss)
                if pays is not None:
                    pays.micro_batch(optimizer)
                stepping.step()
                scheduling.step()
                stepping.zero_grad()
            losses.append(loss.item())
            if until():
                return losses, model, optimizer
    return losses, model, optimizer


@pytest.mark.forks
def test_what_accelerate_prepared_is_tuned_under_bit_equal_with_the_bits_of_an_untouched_run(fused_pays):
    plain_losses, plain, _ = accelerated(6)
    told, handles = [], []

    def tune(model, optimizer, loader):
        shown = loader.__class__
        handles.append(hr.autotune(model, optimizer, loader, allow="bit_equal", epochs=6,
                                   on_progress=lambda *one: told.append(one)))
        assert loader.__class__ is shown and isinstance(loader, DataLoader) and len(loader) == 100

    losses, tuned, optimizer = accelerated(6, pays=fused_pays, tune=tune)
    (handle,) = handles
    assert handle.problem is None and [kind for kind, _ in told].count("began") == 1
    assert losses == plain_losses and same_weights(tuned, plain)
    handle.undo()
    assert hooks_on(tuned, optimizer) == hooks_on(plain, torch.optim.AdamW(plain.parameters()))


def test_of_what_accelerate_prepared_the_bare_optimizer_is_switched_and_kept_where_it_pays(fused_pays):
    handles = []

    def tune(*objects):
        handles.append(hr.autotune(*objects, only=[FUSED], epochs=60, on_progress=lambda *told: None))

    _, _, optimizer = accelerated(60, pays=fused_pays, tune=tune, until=lambda: bool(handles[0].kept))
    assert handles[0].kept == [FUSED]
    handles[0].stop()
    assert is_fused(optimizer)
    handles[0].undo()
    assert not is_fused(optimizer)
