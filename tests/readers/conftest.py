"""Files as our exporters write them, for the programs that read them here."""

import json
import os

import pytest
from export_probe import HISTOGRAM, probe, write_metrics

os.environ |= {"WANDB_MODE": "disabled", "WANDB_ERROR_REPORTING": "false"}  # It stays here, whatever it finds of an account.

LABEL = 'a "b" \\ \n'
LOSSES = [0.1, "nan", "-inf"]
STEPS = [[{"name": "train.loss", "value": loss, "help": 'Mean of the "batch"\nand a \\.'},
          {"name": "gpu.power", "value": None, "labels": {"gpu": "0", "name": LABEL}, "unit": "watts"},
          {"name": "gpu.power", "value": 61.5 + step, "labels": {"gpu": "1", "name": LABEL}, "unit": "watts"},
          {"name": "data.read", "value": 1024 * step, "kind": "counter", "unit": "bytes"},
          {"name": "step.duration", "histogram": HISTOGRAM, "unit": "seconds"}]
         for step, loss in enumerate(LOSSES)]
SPANS = 50


@pytest.fixture(scope="session")
def metrics(tmp_path_factory):
    """A folder with STEPS in every form."""
    folder = tmp_path_factory.mktemp("metrics")
    write_metrics(folder, STEPS)
    return folder


@pytest.fixture(scope="session")
def trace(tmp_path_factory):
    """A folder with a trace as "perfetto", "csv" and "jsonl": SPANS spans "step" of 9 us, one each 10 us, with a gauge "fill" in each; the value
    of the i-th is i - 2 and -i. A counter "bytes" came to 5, and 4 events were dropped."""
    folder = tmp_path_factory.mktemp("trace")
    events = [{"ph": "M", "pid": 1, "tid": 0, "name": "thread_name", "args": {"name": "main"}}]
    for i in range(SPANS):
        events.append({"ph": "X", "pid": 1, "tid": 0, "ts": 10 * i, "dur": 9, "name": "step", "cat": "step", "args": {"value": i - 2}})
        events.append({"ph": "C", "pid": 1, "tid": 0, "ts": 10 * i + 1, "name": "fill", "cat": "mark", "args": {"value": -i}})
    facts = {"format": "headrace-trace", "version": 1, "dropped": 4, "duration_ns": 10**6, "counters": {"bytes": 5}}
    (folder / "in.json").write_text(json.dumps({"displayTimeUnit": "ns", "otherData": facts, "traceEvents": events}))
    probe("trace", folder / "in.json", "perfetto", folder / "perfetto", "step", "step")
    for form in ("csv", "jsonl"):
        probe("trace", folder / "in.json", form, folder / form)
    return folder
