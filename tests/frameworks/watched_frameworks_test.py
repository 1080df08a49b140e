"""A script of Lightning's and one of Hugging Face's Trainer under hr.watch and under `headrace profile`: every update is a step, its parts lie
beside each other, and the run computes the same. In an environment of its own: make check PARTS=frameworks."""

import json
import os
import subprocess
import sys
from collections import Counter
from pathlib import Path

import headrace as hr
import pytest

STEPS = 8
PARTS = ("data_wait", "transfer", "forward", "backward", "optimizer", "evaluation", "checkpoint", "epoch_end")

# Lightning hands forward and backward to the optimizer's step as its closure.
LIGHTNING = """
import lightning.pytorch as pl
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

torch.set_num_threads(1)


class Module(pl.LightningModule):
    def __init__(self):
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 2))
        self.losses = []

    def forward(self, inputs):
        return self.layers(inputs)

    def training_step(self, batch, index):
        loss = nn.functional.cross_entropy(self(batch[0]), batch[1])
        self.losses.append(loss.item())
        return loss

    def configure_optimizers(self):
        return torch.optim.AdamW(self.parameters(), lr=1e-2)


def fit():
    torch.manual_seed(1)
    module = Module()
    loader = DataLoader(TensorDataset(torch.randn(32, 4), torch.randint(0, 2, (32,))), 8)
    trainer = pl.Trainer(max_epochs=2, accelerator="cpu", devices=1, logger=False, enable_checkpointing=False, enable_progress_bar=False,
                         enable_model_summary=False)
    trainer.fit(module, loader)
    return module.losses
"""

HUGGING_FACE = """
import torch
import transformers

torch.set_num_threads(1)


class Recording(transformers.Trainer):
    def training_step(self, *given, **named):
        loss = super().training_step(*given, **named)
        self.losses.append(loss.item())
        return loss


def fit():
    torch.manual_seed(1)
    model = transformers.BertForSequenceClassification(transformers.BertConfig(
        vocab_size=64, hidden_size=16, num_hidden_layers=1, num_attention_heads=2, intermediate_size=32, max_position_embeddings=16, num_labels=2))
    samples = [{"input_ids": torch.randint(1, 64, (8,)), "labels": torch.tensor(number % 2)} for number in range(16)]
    arguments = transformers.TrainingArguments(
        output_dir="saved", num_train_epochs=2, per_device_train_batch_size=4, optim="adamw_torch", use_cpu=True, save_strategy="epoch",
        report_to="none", logging_strategy="no", disable_tqdm=True)
    trainer = Recording(model=model, args=arguments, train_dataset=samples)
    trainer.losses = []
    trainer.train()
    return trainer.losses
"""

PLAIN = "\nprint('losses', fit())\n"
WATCHED = """
import json
import headrace as hr
with hr.watch() as seen:
    losses = fit()
seen.write_trace("trace.json")
print("losses", losses)
print(json.dumps({"steps": seen.steps, "split": seen.split}))
"""
SCRIPTS = {"lightning": LIGHTNING, "hugging_face": HUGGING_FACE}


def python(folder, *words):
    """Runs `python WORDS` in `folder`; what it printed."""
    environment = {**os.environ, "PYTHONPATH": str(Path(hr.__file__).parent.parent), "HF_HUB_OFFLINE": "1"}
    done = subprocess.run([sys.executable, *words], cwd=folder, capture_output=True, text=True, timeout=240, env=environment)
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()


def losses_in(lines):
    (line,) = [line for line in lines if line.startswith("losses ")]
    return json.loads(line.removeprefix("losses "))


@pytest.fixture(scope="module", params=SCRIPTS)
def script(request, tmp_path_factory):
    """Its text, and the losses of an untouched run."""
    folder = tmp_path_factory.mktemp("plain")
    (folder / "script.py").write_text(SCRIPTS[request.param] + PLAIN)
    return SCRIPTS[request.param], losses_in(python(folder, "script.py"))


def parts_of(trace):
    """Names of the parts, by their beginnings; each lies behind the one before."""
    spans = [event for event in json.loads(trace.read_text())["traceEvents"] if event["ph"] == "X" and event["name"] in PARTS]
    times = sorted((round(span["ts"] * 1000), round((span["ts"] + span["dur"]) * 1000), span["name"]) for span in spans)
    for (_, end, before), (begin, _, after) in zip(times, times[1:]):
        assert begin >= end, f"{after} begins within {before}"
    return [name for _, _, name in times]


def test_every_update_is_a_step_of_the_watch_and_the_losses_are_those_of_an_untouched_run(script, tmp_path):
    source, losses = script
    (tmp_path / "script.py").write_text(source + WATCHED)
    lines = python(tmp_path, "script.py")
    assert len(losses) == STEPS and losses_in(lines) == losses
    found = json.loads(lines[-1])
    split = found["split"]
    assert found["steps"] == STEPS and all(split[part] > 0 for part in ("data_wait", "forward", "backward", "optimizer"))
    assert split["other"] >= 0
    counts = Counter(parts_of(tmp_path / "trace.json"))
    assert counts["forward"] == counts["backward"] == counts["data_wait"] == STEPS and counts["optimizer"] >= STEPS


def test_a_script_is_profiled_as_it_is(script, tmp_path):
    source, losses = script
    (tmp_path / "script.py").write_text(source + PLAIN)
    lines = python(tmp_path, "-m", "headrace", "profile", "--out", "out", "script.py")
    assert losses_in(lines) == losses
    document = json.loads((tmp_path / "out" / "profile.json").read_text())
    assert document["steps"] == STEPS and document["exit_code"] == 0
    split = document["wall_split"]
    assert all(split[f"{part}_s"] > 0 for part in ("data_wait", "forward", "backward", "optimizer"))
    assert (split["checkpoint_s"] > 0) == (source is HUGGING_FACE)
    counts = Counter(parts_of(tmp_path / "out" / "trace.json"))
    assert counts["forward"] == counts["backward"] == STEPS and counts["optimizer"] >= STEPS
