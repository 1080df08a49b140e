"""`headrace profile script.py`: a script runs as Python runs it, and each of its delays is told where it was planted. Only lower bounds of
times are asked for, which a sleep holds to on any machine; shares by a clock of the test's own are in wall_split_test.cpp."""

import json
import os
import subprocess
import sys
from pathlib import Path

import headrace as hr
import pytest
from headrace._profile_script import is_script, wall_text

PACKAGE = str(Path(hr.__file__).parent.parent)
BESIDE = ("data_wait", "transfer", "forward", "backward", "optimizer", "evaluation", "checkpoint", "epoch_end")

LOOP = """
import importlib.util
import sys
assert importlib.util.find_spec("torch") is not None  # As libraries ask that can do without.
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

torch.manual_seed(1)
model = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 2))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
loader = DataLoader(TensorDataset(torch.randn(8, 4), torch.randint(0, 2, (8,))), 4, num_workers=int(sys.argv[1]))
for epoch in range(2):
    for inputs, labels in loader:
        inputs, labels = inputs.to("cpu"), labels.to("cpu")
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(model(inputs), labels)
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
    with torch.no_grad():
        for inputs, _ in loader:
            model(inputs)
    torch.save(model.state_dict(), sys.argv[2])
"""

DELAYS = {"data_wait": 0.003, "transfer": 0.011, "forward": 0.013, "backward": 0.017, "optimizer": 0.019, "validation": 0.023,
          "checkpoint": 0.029, "python": 0.031}
DELAYED = f"""
import time
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset

DELAYS = {DELAYS!r}


class Slow(Dataset):
    def __len__(self):
        return 8

    def __getitem__(self, index):
        time.sleep(DELAYS["data_wait"])
        return torch.randn(4)


class SlowlyMoved(torch.Tensor):
    @classmethod
    def __torch_function__(cls, function, types, args=(), kwargs=None):
        if function.__name__ == "to":
            time.sleep(DELAYS["transfer"])
        return super().__torch_function__(function, types, args, kwargs or {{}})


class SlowBackward(torch.autograd.Function):
    @staticmethod
    def forward(ctx, inputs):
        return inputs.clone()

    @staticmethod
    def backward(ctx, gradient):
        time.sleep(DELAYS["backward"])
        return gradient


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(4, 2)

    def forward(self, inputs):
        time.sleep(DELAYS["forward" if self.training else "validation"])
        return SlowBackward.apply(self.layer(inputs))


class SlowStep(torch.optim.SGD):
    def step(self, closure=None):
        time.sleep(DELAYS["optimizer"])
        return super().step(closure)


class SlowlySaved:
    def __getstate__(self):
        time.sleep(DELAYS["checkpoint"])
        return {{"nothing": 0}}


model = Model()
optimizer = SlowStep(model.parameters(), lr=0.1)
loader, batches = DataLoader(Slow(), 4), [torch.randn(4, 4), torch.randn(4, 4)]
for epoch in range(2):
    model.train()
    for inputs in loader:
        inputs = inputs.as_subclass(SlowlyMoved).to(torch.float32, copy=True)
        with torch._C.DisableTorchFunctionSubclass():
            inputs = inputs.as_subclass(torch.Tensor)
        model(inputs).sum().backward()
        optimizer.step()
        optimizer.zero_grad()
        time.sleep(DELAYS["python"])
    model.eval()
    with torch.no_grad():
        for inputs in batches:
            model(inputs)
    torch.save(SlowlySaved(), "saved.pt")
"""


def python(folder, *words, timeout=60):
    """Runs `python WORDS` in `folder`."""
    return subprocess.run([sys.executable, *map(str, words)], cwd=folder, capture_output=True, text=True, timeout=timeout,
                          env={**os.environ, "PYTHONPATH": PACKAGE})


def profile(folder, source, *words, options=()):
    """Profiles it in `folder`, of which "out" becomes the run folder."""
    (folder / "script.py").write_text(source)
    return python(folder, "-m", "headrace", "profile", "--out", "out", *options, "script.py", *words, timeout=100)


def spans_of(folder):
    """By their beginnings, an outer one first."""
    spans = [event for event in json.loads((folder / "out" / "trace.json").read_text())["traceEvents"] if event["ph"] == "X"]
    return sorted(spans, key=lambda span: (span["ts"], -span["dur"]))


@pytest.mark.parametrize("workers", [0, pytest.param(1, marks=pytest.mark.forks)])
def test_every_part_of_a_script_is_seen_in_its_order_without_an_edit(tmp_path, workers):
    done = profile(tmp_path, LOOP, workers, tmp_path / "weights.pt", options=["--trace-form", "jsonl"])
    assert done.returncode == 0, done.stderr
    names = [span["name"] for span in spans_of(tmp_path) if span["name"] in BESIDE]
    rows = [json.loads(line) for line in (tmp_path / "out" / "trace.jsonl").read_text().splitlines()]
    assert sum(row["kind"] == "span" for row in rows) == len(spans_of(tmp_path))
    step = ["data_wait", "transfer", "transfer", "optimizer", "forward", "backward", "optimizer", "optimizer"]
    epoch = [*step, *step, "epoch_end", "data_wait", "evaluation", "data_wait", "evaluation", "epoch_end", "checkpoint"]
    assert names == epoch * 2
    document = json.loads((tmp_path / "out" / "profile.json").read_text())
    assert document["steps"] == 4 and document["format"] == "headrace-profile" and document["exit_code"] == 0
    page = (tmp_path / "out" / "report.html").read_text()
    assert (tmp_path / "weights.pt").exists() and "script.py" in page and "<span>headrace</span> <span>profile</span>" in page
    assert "validation" in done.stdout and "data wait" in done.stdout and f"report: {tmp_path}/out/report.html" in done.stderr


def test_a_choice_leaves_out_of_the_trace_what_is_no_part_of_a_step(tmp_path):
    source = SAYS.replace("import beside\n", "import headrace as hr\n").replace("beside.VALUE, ", "").replace(
        "    optimizer.step()\n", "    optimizer.step()\n    with hr.span('own one'): pass\n    with hr.span('own two'): pass\n")
    done = profile(tmp_path, source, options=["--names", "own t*", "--every-steps", "1"])
    assert done.returncode == 7, done.stderr
    names = [span["name"] for span in spans_of(tmp_path)]
    assert names.count("own two") == 2 and "own one" not in names and names.count("optimizer") == 2
    assert json.loads((tmp_path / "out" / "profile.json").read_text())["choice"]["names"] == ["own t*"]
    bad = profile(tmp_path, source, options=["--every-steps", "0"])
    assert bad.returncode == 2 and "error: profile: every_steps: wanted a whole number of at least 1, found 0" in bad.stderr


def test_planted_delays_land_where_they_belong_and_nothing_is_left_over(tmp_path):
    done = profile(tmp_path, DELAYED)
    assert done.returncode == 0, done.stderr
    split = json.loads((tmp_path / "out" / "profile.json").read_text())["wall_split"]
    times = {**dict.fromkeys(DELAYS, 4), "data_wait": 16}  # Four steps of four samples; four calls that validate.
    times["checkpoint"] = 2
    for part, delay in DELAYS.items():
        assert split[f"{part}_s"] >= delay * times[part] * 0.999, part
    assert split["share"]["other"] <= 0.01
    parts = [f"{part}_s" for part in (*DELAYS, "other")]
    assert sum(split[part] for part in parts) == pytest.approx(split["loop_s"])
    assert split["loop_s"] < split["total_s"] and split["setup_s"] > 0 and split["after_s"] >= 0


SAYS = """
import os
os.environ["OMP_NUM_THREADS"] = "1"
import sys
import beside
import torch
print(__name__, sys.argv, sys.path[0], torch.get_num_threads(), beside.VALUE, __file__)
layer = torch.nn.Linear(2, 1)
optimizer = torch.optim.SGD(layer.parameters(), 0.1)
for _ in range(2):
    layer(torch.ones(1, 2)).sum().backward()
    optimizer.step()
if sys.argv[1:] == ["raise"]:
    raise RuntimeError("in the script")
sys.exit(7)
"""


def test_a_script_runs_as_python_runs_it_and_its_exit_code_is_the_commands(tmp_path):
    (tmp_path / "beside.py").write_text("VALUE = 41\n")
    done = profile(tmp_path, SAYS, "--out", "-x", "a b")
    assert done.returncode == 7, done.stderr
    assert done.stdout.splitlines()[0] == f"__main__ ['script.py', '--out', '-x', 'a b'] {tmp_path} 1 41 {tmp_path}/script.py"
    assert json.loads((tmp_path / "out" / "profile.json").read_text())["exit_code"] == 7


def test_what_a_script_raises_is_told_from_its_own_frame_on_and_leaves_report_and_flight(tmp_path):
    (tmp_path / "beside.py").write_text("VALUE = 41\n")
    done = profile(tmp_path, SAYS, "raise", options=["--flights", "flights", "--json", "-"])
    assert done.returncode == 1
    trace = done.stderr[done.stderr.index("Traceback"):].splitlines()
    assert trace[1].startswith(f'  File "{tmp_path}/script.py", line ') and "RuntimeError: in the script" in trace
    document = json.loads(done.stdout[done.stdout.index("{"):])
    assert document == json.loads((tmp_path / "out" / "profile.json").read_text())
    (dump,) = document["flights"]["dumps"]
    assert dump["reason"] == "exception RuntimeError" and dump["path"] == str(tmp_path / "flights" / "flight-00-exception-RuntimeError.json")
    events = json.loads(Path(dump["path"]).read_text())["traceEvents"]
    assert sum(event["name"] == "backward" for event in events) == 2


@pytest.mark.parametrize("source, words", [
    ("print('no torch')", "profile: script.py: there is nothing to tell: it never imported torch"),
    ("import torch", "no training step was seen"), ("this is no Python", "SyntaxError")], ids=["no torch", "no step", "no Python"])
def test_a_script_without_steps_is_one_clear_line_and_exit_1(tmp_path, source, words):
    done = profile(tmp_path, source)
    assert done.returncode == 1 and words in done.stderr
    assert not (tmp_path / "out" / "profile.json").exists()


def test_a_script_or_folder_that_is_not_there_is_said_before_anything_runs(tmp_path):
    command = ["-m", "headrace", "profile"]
    missing = python(tmp_path, *command, "nowhere.py")
    assert (missing.returncode, missing.stdout) == (2, "") and "nowhere.py: wanted a Python script, found no such file" in missing.stderr
    (tmp_path / "out").write_text("a file")
    (tmp_path / "script.py").write_text("print('ran')")
    no_folder = python(tmp_path, *command, "--out", "out", "script.py")
    assert no_folder.returncode == 1 and "--out: cannot make out: File exists" in no_folder.stderr and no_folder.stdout == ""
    unknown = python(tmp_path, *command, "--steps=3", "script.py")
    assert unknown.returncode == 2 and "--steps=3" in unknown.stderr


@pytest.mark.parametrize("words, wanted", [
    (["profile", "a.py"], True), (["profile", "--out", "x.py", "a.py", "b.toml"], True), (["profile", "--out=x", "a.py"], True),
    (["profile", "--quiet", "a.py"], True), (["profile", "a.toml"], False), (["profile", "a.toml", "--x", "b.py"], False),
    (["profile", "--out", "a.py"], False), (["profile", "--help"], False), (["profile"], False), (["train", "a.py"], False), ([], False)])
def test_a_recipe_goes_to_the_program_and_a_script_does_not(words, wanted):
    assert is_script(words) is wanted


def test_what_is_unavailable_is_not_told_as_zero():
    parts = ("data_wait", "transfer", "forward", "backward", "optimizer", "validation", "checkpoint", "python", "other")
    split = {"total_s": 1.0, "setup_s": 1.0, "after_s": 0.0, "loop_s": 0.0, "cpu_taken_s": None, "share": dict.fromkeys(parts),
             **{f"{part}_s": 0.0 for part in parts}}
    assert wall_text(split).count("unavailable") == len(parts) + 1


SIGNALLED = """
import os
import signal
import torch
import headrace as hr
layer = torch.nn.Linear(2, 1)
optimizer = torch.optim.SGD(layer.parameters(), 0.1)
heard = []
signal.signal(signal.SIGUSR2, lambda *_: heard.append(1))
with hr.watch(flights="flights") as seen:
    layer(torch.ones(1, 2)).sum().backward()
    optimizer.step()
    os.kill(os.getpid(), signal.SIGUSR2)
    asked = seen.dump("by hand")
os.kill(os.getpid(), signal.SIGUSR2)
print(sorted(one["reason"] for one in seen.flights["dumps"]), len(heard), asked == seen.flights["dumps"][0]["path"] or
      asked == seen.flights["dumps"][1]["path"], seen.flights["problem"])
"""


def test_a_watch_writes_the_last_minute_on_a_signal_and_on_request_and_what_python_does_on_it_is_done_too(tmp_path):
    done = python(tmp_path, "-c", SIGNALLED)
    assert done.returncode == 0, done.stderr
    assert done.stdout == "['by hand', 'signal'] 2 True None\n"
    assert len(list((tmp_path / "flights").iterdir())) == 2


def test_a_script_watch_leaves_nothing_behind():
    import torch
    from headrace._script_watch import ScriptWatch

    before = ("to" in vars(torch.Tensor), vars(torch.optim.Optimizer)["zero_grad"], torch.nn.utils.clip_grad_norm_, torch.save)
    with ScriptWatch():
        assert torch.save is not before[3]
    assert ("to" in vars(torch.Tensor), vars(torch.optim.Optimizer)["zero_grad"], torch.nn.utils.clip_grad_norm_, torch.save) == before
