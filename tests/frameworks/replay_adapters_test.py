"""The callbacks of Lightning's and Hugging Face's Trainer take a ledger as hr.autotune does. In an environment of its own: make
check PARTS=frameworks."""

import json

import headrace as hr
import headrace.lightning
import headrace.transformers
import lightning.pytorch as pl
import pytest
import torch
import transformers
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

pytestmark = pytest.mark.usefixtures("one_thread")

STEPS = 30
ON = range(10, 20)  # Updates, counted from where the callback begins, in which the ledger has the optimizer fused.


@pytest.fixture
def ledger(tmp_path):
    model = nn.Linear(2, 1)
    document = hr.autotune(model, torch.optim.SGD(model.parameters(), 0.1), auto_tune=False).ledger
    document["turns"] = [{"update": ON.start, "settings": {"optimizer.fused": "true"}, "why": "a turn"},
                         {"update": ON.stop, "settings": {}, "why": "another"}]
    (tmp_path / "ledger.json").write_text(json.dumps(document))
    return tmp_path / "ledger.json"


def is_fused(optimizer):
    return bool(optimizer.param_groups[0]["fused"])


class Module(pl.LightningModule):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(4, 2)
        self.fused = []

    def training_step(self, batch, index):
        self.fused.append(is_fused(self.trainer.optimizers[0]))
        return self.layer(batch[0]).square().mean()

    def configure_optimizers(self):
        return torch.optim.AdamW(self.parameters(), lr=1e-3)


def test_lightnings_callback_repeats_a_ledger(ledger):
    torch.manual_seed(1)
    module, told = Module(), []
    callback = headrace.lightning.AutoTune(replay=ledger, on_progress=lambda *one: told.append(one))
    trainer = pl.Trainer(max_steps=STEPS, accelerator="cpu", devices=1, logger=False, enable_checkpointing=False,
                         enable_progress_bar=False, enable_model_summary=False, callbacks=[callback])
    trainer.fit(module, DataLoader(TensorDataset(torch.randn(800, 4)), 8))
    # The callback begins behind the first batch.
    assert module.fused == [number in ON for number in range(STEPS)]
    assert callback.handle.problem is None and [kind for kind, _ in told] == ["began", "ended"]


class Noting(transformers.TrainerCallback):
    def __init__(self):
        self.fused = []

    def on_step_begin(self, args, state, control, optimizer=None, **others):
        self.fused.append(is_fused(optimizer))


def test_hugging_faces_callback_repeats_a_ledger(ledger, tmp_path):
    torch.manual_seed(1)
    model = transformers.BertForSequenceClassification(transformers.BertConfig(
        vocab_size=64, hidden_size=16, num_hidden_layers=1, num_attention_heads=2, intermediate_size=32,
        max_position_embeddings=16, num_labels=2))
    samples = [{"input_ids": torch.randint(1, 64, (8,)), "labels": torch.tensor(number % 2)} for number in range(160)]
    arguments = transformers.TrainingArguments(
        output_dir=str(tmp_path / "out"), max_steps=STEPS, per_device_train_batch_size=4, optim="adamw_torch", use_cpu=True,
        save_strategy="no", report_to="none", logging_strategy="no", disable_tqdm=True)
    callback, noting = headrace.transformers.AutoTune(replay=str(ledger), on_progress=lambda *told: None), Noting()
    transformers.Trainer(model=model, args=arguments, train_dataset=samples, callbacks=[callback, noting]).train()
    assert noting.fused == [number in ON for number in range(1, STEPS + 1)]
    assert callback.handle.problem is None


def test_a_path_that_is_none_is_refused_when_the_callback_is_made():
    for adapter in (headrace.lightning.AutoTune, headrace.transformers.AutoTune):
        with pytest.raises(hr.errors.InvalidArgumentError, match="replay: wanted the path of a ledger.json, found int"):
            adapter(replay=7)
