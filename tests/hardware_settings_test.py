"""hr.hardware_settings: what the operating system and torch say of each setting, in processes of their own where one cannot be taken back;
a GPU's with torch's own flags and made-up calls where only a device has them."""

import contextlib
import copy
import ctypes
import dataclasses
import html.parser
import json
import os
import pickle
import re
import subprocess
import sys
from pathlib import Path

import headrace as hr
import pytest
import torch
from headrace import _core, _gpu_power, _gpu_settings, _hardware_settings
from headrace._hardware_change import refused
from made_up_gpu import MadeUpGpu, put_no_gpu
from performance_optimization_system import optimize_cpu_settings

VARIABLES = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS", "OMP_WAIT_POLICY", "CUBLAS_WORKSPACE_CONFIG")

SEEN = """
import contextlib, json, os, subprocess, sys, torch, headrace as hr

def tasks():
    return os.listdir("/proc/self/task")

def texts(name, of=None):
    found = []
    for task in tasks() if of is None else of:
        with contextlib.suppress(FileNotFoundError, ProcessLookupError), open(f"/proc/self/task/{task}/{name}") as file:
            found.append(file.read())   # Else it has ended meanwhile.
    return found

def each(place, of=None):               # Of the fields behind the name, as proc(5) has them from "state" on.
    return sorted({int(text.rpartition(")")[2].split()[place]) for text in texts("stat", of)})

def compute():
    (torch.ones(512, 512) @ torch.ones(512, 512)).exp()
    torch.ones(4_000_000).exp()
"""


def run(code: str, **environment: str) -> dict:
    """What a process of its own prints last, as JSON."""
    kept = {name: value for name, value in os.environ.items() if name not in VARIABLES and name != "GOMP_SPINCOUNT"}
    done = subprocess.run([sys.executable, "-c", SEEN + code], capture_output=True, text=True, timeout=120, cwd="/",
                          env={**kept, **environment, "PYTHONPATH": os.pathsep.join([str(Path(hr.__file__).parent.parent), *sys.path])})
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1])


def precisions() -> dict[str, str]:
    of = {"cuda": ("matmul", "conv", "rnn"), "mkldnn": ("matmul", "conv", "rnn")}
    return {f"{backend}.{name}": torch._C._get_fp32_precision_getter(backend, name) for backend, names in of.items() for name in names}


def state() -> dict:
    """All that a setting here may touch."""
    try:
        matmul = torch.get_float32_matmul_precision()
    except RuntimeError:  # Set by the newer interface alone.
        matmul = "mixed"
    return {"threads": torch.get_num_threads(), "variables": {name: os.environ.get(name) for name in VARIABLES}, "matmul": matmul,
            "algorithms": (torch.are_deterministic_algorithms_enabled(), torch.is_deterministic_algorithms_warn_only_enabled()),
            "cudnn": (torch.backends.cudnn.benchmark, torch.backends.cudnn.deterministic), "precisions": precisions(),
            "affinity": sorted(os.sched_getaffinity(0)), "niceness": os.getpriority(os.PRIO_PROCESS, 0)}


@pytest.fixture(autouse=True)
def as_found(monkeypatch):
    """Puts torch's flags and the environment back, whatever a test leaves."""
    for name in (*VARIABLES, "GOMP_SPINCOUNT"):
        monkeypatch.setenv(name, "")  # So that what is there is put back.
        monkeypatch.delenv(name)
    before, cudnn = state(), torch.backends.cudnn.flags
    with cudnn(enabled=torch.backends.cudnn.enabled, benchmark=False, deterministic=False, allow_tf32=True):
        yield
    torch.set_num_threads(before["threads"])
    torch.use_deterministic_algorithms(before["algorithms"][0], warn_only=before["algorithms"][1])
    torch.set_float32_matmul_precision(before["matmul"])
    for name, value in before["precisions"].items():
        torch._C._set_fp32_precision_setter(*name.split("."), value)


# ---- What the operating system says ----


def test_all_threads_and_processes_keep_to_the_cores_and_are_given_them_back():
    seen = run("""
torch.set_num_threads(2)
compute()

def masks():
    return sorted({line.split()[1] for text in texts("status") for line in text.splitlines() if line.startswith("Cpus_allowed_list")})

before, core = masks(), max(os.sched_getaffinity(0))
with hr.hardware_settings(affinity=[core]) as applied:
    compute()
    inside, ran_on = masks(), each(36)
    child = subprocess.run(["grep", "Cpus_allowed_list", "/proc/self/status"], capture_output=True, text=True).stdout.split()[1]
    torch.set_num_threads(4)
    compute()                # Threads that begin within the block.
print(json.dumps({"core": core, "before": before, "inside": inside, "ran_on": ran_on, "child": child, "after": masks(),
                  "told": applied.as_dict()["affinity"]}))
""")
    core = seen["core"]
    assert seen["inside"] == [str(core)] and seen["child"] == str(core) and core in seen["ran_on"]
    assert seen["after"] == seen["before"]
    told = seen["told"]
    assert (told["requested"], told["before"], told["now"], told["how"], told["reason"]) == (
        str(core), seen["before"][0], str(core), "by call", "")


def test_compute_threads_on_one_core_run_there_alone():
    """A thread that waits keeps the core that it last ran on, so they are made within the block."""
    seen = run("""
hr.hardware_settings(affinity=[min(os.sched_getaffinity(0))], compute_threads=3)
before = set(tasks())
compute()
made = set(tasks()) - before
print(json.dumps({"made": len(made), "ran_on": each(36, made), "core": min(os.sched_getaffinity(0))}))
""")
    assert seen["made"] >= 2 and seen["ran_on"] == [seen["core"]]


def test_as_many_threads_compute_as_were_asked_for():
    seen = run("""
told, made = [], []
for threads in (1, 3):
    before = len(tasks())
    told.append(hr.hardware_settings(compute_threads=threads).as_dict()["compute_threads"])
    compute()
    made.append(len(tasks()) - before)
print(json.dumps({"told": told, "made": made}))
""")
    assert seen["made"][0] == 0 and seen["made"][1] >= 2
    assert [(told["now"], told["how"]) for told in seen["told"]] == [("1", "by call"), ("3", "by call")]


def test_a_raised_niceness_is_that_of_every_thread_and_is_undone_where_that_is_permitted():
    seen = run("""
torch.set_num_threads(3)
compute()

before = each(16)
wanted = min(19, before[0] + 3)
applied = hr.hardware_settings(niceness=wanted)
raised = each(16)
undone = applied.undo()[0]
print(json.dumps({"before": before, "wanted": wanted, "raised": raised, "after": each(16), "told": applied.as_dict()["niceness"],
                  "undone": [undone.how, undone.reason, undone.now]}))
""")
    assert seen["raised"] == [seen["wanted"]] and (seen["told"]["now"], seen["told"]["how"]) == (str(seen["wanted"]), "by call")
    how, reason, now = seen["undone"]
    if seen["told"]["reason"]:
        assert seen["told"]["reason"].startswith("cannot be undone")
        assert (seen["after"], how, now) == ([seen["wanted"]], "not applied", str(seen["wanted"])) and reason.startswith("not permitted")
    else:
        assert (seen["after"], how, reason) == (seen["before"], "by call", "")


def test_a_niceness_that_may_not_be_lowered_is_told_and_stays():
    seen = run("""
import ctypes, resource
resource.setrlimit(resource.RLIMIT_NICE, (0, 0))
libc = ctypes.CDLL(None)
header, sets = (ctypes.c_uint32 * 2)(0x20080522, 0), (ctypes.c_uint32 * 6)()   # linux/capability.h, version 3, of this thread.
assert libc.capget(header, sets) == 0
for i in range(3):           # Effective, permitted, inheritable.
    sets[i] &= ~(1 << 23)    # CAP_SYS_NICE.
assert libc.capset(header, sets) == 0
before = os.getpriority(os.PRIO_PROCESS, 0)
applied = hr.hardware_settings(niceness=before - 1)
print(json.dumps({"before": before, "after": os.getpriority(os.PRIO_PROCESS, 0), "told": applied.as_dict()["niceness"],
                  "undone": len(applied.undo())}))
""")
    told = seen["told"]
    assert seen["after"] == seen["before"] and told["now"] == told["before"] == str(seen["before"])
    assert told["how"] == "not applied" and told["reason"].startswith("not permitted") and seen["undone"] == 0


def test_variables_reach_libraries_of_processes_that_start_later():
    before = {name: os.environ.get(name) for name in VARIABLES}
    with hr.hardware_settings(child_threads=3, wait_policy="passive") as applied:
        code = "import os, torch; print(os.environ['MKL_NUM_THREADS'], os.environ['OPENBLAS_NUM_THREADS'])"
        done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120,
                              env={**os.environ, "OMP_DISPLAY_ENV": "TRUE"})
    assert done.stdout == "3 3\n"
    for line in ("OMP_NUM_THREADS = '3'", "OMP_WAIT_POLICY = 'PASSIVE'"):  # As libgomp, which torch loads, has understood them.
        assert line in done.stderr, done.stderr
    assert {name: os.environ.get(name) for name in VARIABLES} == before
    told = [(setting.name, setting.before, setting.now, setting.how) for setting in applied.settings]
    assert told == [(name, "unset", value, "for child processes") for name, value in zip(VARIABLES, ("3", "3", "3", "passive"))]
    assert all("have read it already" in setting.reason for setting in applied.settings)


def test_a_wait_policy_beside_a_spin_count_is_not_applied(monkeypatch):
    monkeypatch.setenv("GOMP_SPINCOUNT", "1000")
    (told,) = hr.hardware_settings(wait_policy="active").settings
    assert (told.how, told.now) == ("not applied", "unset") and "GOMP_SPINCOUNT" in told.reason
    assert "OMP_WAIT_POLICY" not in os.environ


# ---- Undo ----


def test_the_end_of_a_block_leaves_no_difference_also_where_it_raises():
    torch.use_deterministic_algorithms(True, warn_only=True)
    os.environ["MKL_NUM_THREADS"] = "5"
    before = state()
    threads = before["threads"] + 1
    with contextlib.suppress(ZeroDivisionError), hr.hardware_settings(
            compute_threads=threads, child_threads=2, wait_policy="active", reproducible=True, affinity=before["affinity"]) as applied:
        within = state()
        1 / 0
    assert within["threads"] == threads and within["algorithms"] == (True, False) and within["variables"]["MKL_NUM_THREADS"] == "2"
    assert state() == before
    assert applied.undo() == ()


def test_undo_tells_what_it_put_back_the_last_first():
    before = torch.get_num_threads()
    applied = hr.hardware_settings(compute_threads=before + 1, child_threads=2)
    undone = applied.undo()
    assert [setting.name for setting in undone] == ["OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "OMP_NUM_THREADS", "compute_threads"]
    assert (undone[-1].requested, undone[-1].before, undone[-1].now) == (str(before), str(before + 1), str(before))
    assert {setting.set_by for setting in undone} == {"undo"}


def test_one_list_has_every_setting_in_force_whoever_made_it_with_old_and_new_value_and_undoes_all(monkeypatch):
    monkeypatch.setattr(_hardware_settings, "_in_force", [])  # What other tests have left is theirs.
    gpu = MadeUpGpu(monkeypatch)
    torch.set_float32_matmul_precision("highest")
    before = state()
    threads = before["threads"]
    own = hr.hardware_settings(affinity=before["affinity"], niceness=before["niceness"], compute_threads=threads + 1, child_threads=2,
                               wait_policy="active", reproducible=True, tf32=True, memory_fraction=0.5, max_split_size_mb=128)
    changed = state()
    optimize_cpu_settings()  # Which has no undo of its own.
    hr.hardware_settings(compute_threads=threads + 3)
    listed = hr.HardwareSettings.in_force()
    made = [setting for setting in own.settings if setting.is_applied]
    assert {"affinity", "niceness", "compute_threads", *VARIABLES[:4], "deterministic_algorithms", "cudnn_deterministic", "tf32",
            "memory_fraction", "max_split_size_mb"} <= {setting.name for setting in made}
    assert list(listed.settings[:len(made)]) == made
    assert [(setting.name, setting.set_by) for setting in listed.settings[len(made):]] == [
        *((name, "optimize_cpu_settings") for name in ("compute_threads", *VARIABLES[:3])), ("compute_threads", "hardware_settings")]
    usable = str(_core.usable_cores())
    assert [(setting.before, setting.now) for setting in listed.settings if setting.name == "compute_threads"] == [
        (str(threads), str(threads + 1)), (str(threads + 1), usable), (usable, str(threads + 3))]
    undone = listed.undo()
    assert [setting.name for setting in undone] == [setting.name for setting in reversed(listed.settings)]
    assert {name for name in before if changed[name] != before[name]} >= {"threads", "variables", "algorithms", "cudnn", "precisions"}
    assert {name: (before[name], now) for name, now in state().items() if now != before[name]} == {}
    assert gpu.allowed == gpu.total and gpu.settings["PYTORCH_CUDA_ALLOC_CONF"] == ""
    assert hr.HardwareSettings.in_force().settings == own.undo() == ()


def test_undoing_a_setting_undoes_what_was_made_of_it_since(monkeypatch):
    put_no_gpu(monkeypatch)
    for name in VARIABLES[:3]:
        monkeypatch.delenv(name, raising=False)
    before = torch.get_num_threads()
    with hr.hardware_settings(compute_threads=before + 1, child_threads=1):
        later = hr.hardware_settings(compute_threads=before + 2, child_threads=3, niceness=state()["niceness"])
    assert torch.get_num_threads() == before and VARIABLES[0] not in os.environ
    assert [setting.name for setting in hr.HardwareSettings.in_force().settings] == ["niceness"]
    assert [setting.name for setting in later.undo()] == ["niceness"]
    assert torch.get_num_threads() == before and VARIABLES[0] not in os.environ


def test_a_setting_that_was_undone_or_refused_is_in_no_list(monkeypatch):
    monkeypatch.setattr(_hardware_settings, "_in_force", [])
    put_no_gpu(monkeypatch)
    before = torch.get_num_threads()
    with hr.hardware_settings(compute_threads=before + 1, tf32=True):
        hr.hardware_settings(child_threads=2)
        assert [setting.name for setting in hr.HardwareSettings.in_force().settings] == ["compute_threads", *VARIABLES[:3]]
    assert [setting.name for setting in hr.HardwareSettings.in_force().settings] == list(VARIABLES[:3])
    hr.HardwareSettings.in_force().undo()
    assert hr.HardwareSettings.in_force().settings == () and torch.get_num_threads() == before


def test_an_exception_of_torch_undoes_what_was_done_before_it(monkeypatch):
    def fails(mode, *, warn_only=False):
        raise RuntimeError("made up")

    monkeypatch.setattr(_hardware_settings, "_in_force", [])
    before = state()
    with monkeypatch.context() as patched:
        patched.setattr(torch, "use_deterministic_algorithms", fails)
        with pytest.raises(RuntimeError, match="made up"):
            hr.hardware_settings(compute_threads=before["threads"] + 1, child_threads=2, reproducible=True)
    assert state() == before
    assert hr.HardwareSettings.in_force().settings == ()


# ---- Values, warnings, shown ----


@pytest.mark.parametrize("given, told", [
    ({"compute_threads": 0}, "compute_threads: wanted a whole number of 1 to 1024, found 0"),
    ({"compute_threads": True}, "compute_threads: wanted a whole number of 1 to 1024, found True"),
    ({"child_threads": 2.0}, "child_threads: wanted a whole number of 1 to 1024, found 2.0"),
    ({"niceness": 20}, "niceness: wanted a whole number of -20 to 19, found 20"),
    ({"affinity": []}, r"affinity: wanted cores as .* found \[\]"),
    ({"affinity": 3}, "affinity: wanted cores as .* found 3"),
    ({"affinity": [-1]}, "affinity: wanted a whole number of 0 to .* found -1"),
    ({"affinity": "0-"}, "hardware: "),
    ({"affinity": [1000000]}, "hardware: "),
    ({"tf32": 1}, "tf32: wanted True, False or None, found 1"),
    ({"memory_fraction": 0}, "memory_fraction: wanted a number above 0 and at most 1, found 0"),
    ({"memory_fraction": float("nan")}, "memory_fraction: wanted a number above 0 and at most 1, found nan"),
    ({"max_split_size_mb": 19}, "max_split_size_mb: wanted a whole number of 20 to .* found 19"),
    ({"wait_policy": "spin"}, 'wait_policy: wanted "active", "passive" or None, found \'spin\''),
    ({"workers": -1}, "workers: wanted a whole number of 0 to .* found -1"),
    ({"reproducible": True, "cudnn_benchmark": True}, "cudnn_benchmark: wanted False or None with reproducible=True"),
], ids=lambda value: str(value)[:40])
def test_a_value_that_makes_no_sense_is_named_and_nothing_is_changed(given, told):
    before = state()
    with pytest.raises(hr.errors.InvalidArgumentError, match=told):
        hr.hardware_settings(**{"compute_threads": before["threads"] + 1, **given})
    assert state() == before


def test_nothing_is_set_that_was_not_asked_for():
    before = state()
    applied = hr.hardware_settings()
    assert (applied.settings, applied.undo(), state()) == ((), (), before)
    assert repr(applied) == "<headrace.HardwareSettings: 0 applied, 0 not>"


def test_more_workers_and_threads_than_cores_are_warned_of_with_the_numbers(recwarn):
    workers = min(1024, 4 * _core.usable_cores())
    with pytest.warns(UserWarning, match=rf"headrace: .*\b{workers}\b"):
        applied = hr.hardware_settings(compute_threads=2, workers=workers)
    (remark,) = applied.remarks
    assert remark in repr(applied) and {"2", str(_core.usable_cores())} <= set(re.findall(r"\d+", remark))
    recwarn.clear()
    assert hr.hardware_settings(compute_threads=1, workers=0).remarks == () and len(recwarn) == 0


def test_usable_cores_are_no_more_than_those_of_the_mask():
    assert 1 <= _core.usable_cores() <= len(os.sched_getaffinity(0))


class Cells(html.parser.HTMLParser):
    def __init__(self, page: str) -> None:
        super().__init__()
        self.texts: list[str] = []
        self.feed(page)

    def handle_data(self, data: str) -> None:
        self.texts.append(data)


def test_it_shows_as_a_table_of_what_was_asked_for_and_what_is(monkeypatch):
    put_no_gpu(monkeypatch)
    with hr.hardware_settings(child_threads=2, memory_fraction=0.5) as applied:
        lines = repr(applied).splitlines()
        assert lines[0] == "<headrace.HardwareSettings: 3 applied, 1 not" and len(lines) == 6
        assert re.fullmatch(r"memory_fraction +0\.5 +unavailable +unavailable +not applied +no CUDA device here +hardware_settings>", lines[-1])
        texts = Cells(applied._repr_html_()).texts
        assert {"setting", "requested", "before", "now", "how", "reason", "OMP_NUM_THREADS", "no CUDA device here"} <= set(texts)
    assert json.loads(json.dumps(applied.as_dict()))["memory_fraction"] == dataclasses.asdict(applied.settings[-1])
    for way in (pickle.dumps, copy.copy, copy.deepcopy):
        with pytest.raises(TypeError, match=r"^a headrace.HardwareSettings .* as_dict\(\)"):
            way(applied)
    assert pickle.loads(pickle.dumps(applied.settings)) == applied.settings


# ---- A GPU's ----


def test_without_cuda_a_gpus_settings_change_nothing_and_say_why(monkeypatch):
    put_no_gpu(monkeypatch)
    before = state()
    applied = hr.hardware_settings(tf32=True, cudnn_benchmark=True, memory_fraction=0.8, max_split_size_mb=128)
    assert [setting.name for setting in applied.settings] == ["tf32", "cudnn_benchmark", "memory_fraction", "max_split_size_mb"]
    assert {(setting.how, setting.reason, setting.now) for setting in applied.settings} == {
        ("not applied", "no CUDA device here", "unavailable")}
    assert state() == before and applied.undo() == ()


def test_reproducible_without_cuda_is_that_of_the_cpu(monkeypatch):
    put_no_gpu(monkeypatch)
    with hr.hardware_settings(reproducible=True) as applied:
        assert torch.are_deterministic_algorithms_enabled()
        assert {name: told["how"] for name, told in applied.as_dict().items()} == {
            "CUBLAS_WORKSPACE_CONFIG": "not applied", "deterministic_algorithms": "by call", "cudnn_deterministic": "not applied",
            "cudnn_benchmark": "not applied"}
        assert "CUBLAS_WORKSPACE_CONFIG" not in os.environ and not torch.backends.cudnn.deterministic


def test_reproducible_is_one_switch_over_all_that_differ_from_run_to_run(monkeypatch):
    MadeUpGpu(monkeypatch, is_initialized=False)
    torch.backends.cudnn.benchmark = True
    before = state()
    with hr.hardware_settings(reproducible=True) as applied:
        assert (torch.backends.cudnn.benchmark, torch.backends.cudnn.deterministic) == (False, True)
        assert torch.are_deterministic_algorithms_enabled() and os.environ["CUBLAS_WORKSPACE_CONFIG"] == ":4096:8"
        assert all(setting.is_applied for setting in applied.settings)
    assert state() == before


def test_a_variable_for_cublas_says_what_it_reaches_and_leaves_one_that_will_do(monkeypatch):
    MadeUpGpu(monkeypatch, is_initialized=True)
    os.environ["CUBLAS_WORKSPACE_CONFIG"] = ":16:8"
    with hr.hardware_settings(reproducible=True) as applied:
        told = applied.as_dict()["CUBLAS_WORKSPACE_CONFIG"]
    assert (told["now"], told["how"]) == (":16:8", "for child processes") and "CUDA is initialised here" in told["reason"]
    assert os.environ["CUBLAS_WORKSPACE_CONFIG"] == ":16:8"


def test_benchmark_beside_deterministic_kernels_is_explained(monkeypatch):
    MadeUpGpu(monkeypatch)
    torch.backends.cudnn.deterministic = True
    (told,) = hr.hardware_settings(cudnn_benchmark=True).settings
    assert told.is_applied and torch.backends.cudnn.benchmark and "cudnn_deterministic is on" in told.reason


def older(precision: str):
    return lambda: torch.set_float32_matmul_precision(precision)


def newer(precision: str):
    return lambda: setattr(torch.backends.cuda.matmul, "fp32_precision", precision)


@pytest.mark.parametrize("wanted", [True, False])
@pytest.mark.parametrize("prepare", [older("highest"), older("high"), older("medium"), newer("tf32"), newer("ieee")],
                         ids=["highest", "high", "medium", "newer tf32", "newer ieee"])
def test_tf32_is_what_torch_reads_and_is_undone_whichever_interface_was_used_before(monkeypatch, prepare, wanted):
    MadeUpGpu(monkeypatch)
    prepare()
    before = state()
    with hr.hardware_settings(tf32=wanted) as applied:
        (told,) = applied.settings  # One request, one row.
        assert (told.name, told.now, told.how, told.reason) == ("tf32", str(wanted).lower(), "by call", "")
        assert (precisions()["cuda.matmul"] == "tf32") == wanted
        assert {precisions()[f"cuda.{name}"] == "tf32" for name in ("conv", "rnn")} == {wanted}
        if before["matmul"] != "mixed":  # Then both interfaces can be read, and agree.
            assert torch.backends.cuda.matmul.allow_tf32 == torch.backends.cudnn.allow_tf32 == wanted
            assert (torch.get_float32_matmul_precision() != "highest") == wanted
        if wanted:  # Else torch itself takes away what of the CPU's would be a mixture.
            assert precisions()["mkldnn.matmul"] == before["precisions"]["mkldnn.matmul"]
    assert state() == before


def test_tf32_of_products_and_of_convolutions_is_told_where_they_differ_and_is_put_back(monkeypatch):
    MadeUpGpu(monkeypatch)
    torch.set_float32_matmul_precision("highest")  # cuDNN's is on, by as_found().
    applied = hr.hardware_settings(tf32=False)
    (told,) = applied.settings
    assert (told.before, told.now) == ("matmul false, cudnn true", "false")
    (undone,) = applied.undo()
    assert (undone.name, undone.requested, undone.before, undone.now, undone.how) == (
        "tf32", "matmul false, cudnn true", "false", "matmul false, cudnn true", "by call")


def test_tf32_that_cudnn_does_not_take_leaves_the_products_alone(monkeypatch):
    MadeUpGpu(monkeypatch)
    torch.set_float32_matmul_precision("highest")
    before = state()
    monkeypatch.setattr(_gpu_settings, "_tf32_cudnn", lambda wanted: refused("tf32_cudnn", "true", "false", "made up"))
    (told,) = hr.hardware_settings(tf32=True).settings
    assert (told.name, told.now, told.how, told.reason) == ("tf32", "matmul false, cudnn true", "not applied", "made up")
    assert state() == before


def test_tf32_of_products_is_put_back_also_where_that_of_convolutions_cannot_be(monkeypatch):
    def raising():
        raise RuntimeError("made up")

    MadeUpGpu(monkeypatch)
    torch.set_float32_matmul_precision("highest")
    before = state()
    monkeypatch.setattr(_gpu_settings, "_tf32_cudnn", lambda wanted: refused("tf32_cudnn", "true", "true", "")._replace(undo=raising))
    applied = hr.hardware_settings(tf32=True)
    assert precisions()["cuda.matmul"] == "tf32"
    with pytest.raises(RuntimeError, match="made up"):
        applied.undo()
    assert state() == before


def test_a_gpu_without_tf32_is_told_and_may_still_switch_it_off(monkeypatch):
    MadeUpGpu(monkeypatch, capability=(7, 5))
    before = state()
    (told,) = hr.hardware_settings(tf32=True).settings
    assert state() == before
    assert (told.name, told.how, told.reason) == ("tf32", "not applied", "compute capability 7.5 has no TF32; 8.0 and later have")
    with hr.hardware_settings(tf32=False) as applied:
        assert [setting.is_applied for setting in applied.settings] == [True]


def test_there_is_no_cap_on_memory_unless_one_is_asked_for_and_a_callers_wins(monkeypatch):
    gpu = MadeUpGpu(monkeypatch)
    hr.hardware_settings(cudnn_benchmark=True, tf32=True)
    assert gpu.calls == []
    from headrace._hardware_settings import apply_settings

    (of_function,) = apply_settings("made_up", {"memory_fraction": 0.9}, is_explicit=False).settings
    assert (of_function.now, of_function.set_by, gpu.allowed) == ("0.9", "made_up", int(0.9 * gpu.total))
    explicit = hr.hardware_settings(memory_fraction=0.5)
    (told,) = explicit.settings
    assert (told.before, told.now, told.set_by, told.how) == ("0.9", "0.5", "hardware_settings", "by call")
    assert told.reason == "at most 40.0 of 80.0 GiB of device 0"
    (refused,) = apply_settings("made_up", {"memory_fraction": 0.9}, is_explicit=False).settings
    assert (refused.how, refused.now) == ("not applied", "0.5")
    assert refused.reason == "0.5 is in force, set by hardware_settings, and an explicit value wins"
    explicit.undo()
    assert gpu.allowed == pytest.approx(0.9 * gpu.total, abs=2)
    (again,) = apply_settings("other", {"memory_fraction": 0.8}, is_explicit=False).settings
    assert (again.how, again.now) == ("by call", "0.8")  # The one in force was a function's own.


def test_a_cap_that_was_set_by_torchs_own_call_is_a_callers_too(monkeypatch):
    from headrace._hardware_settings import apply_settings

    gpu = MadeUpGpu(monkeypatch)
    gpu.allowed = gpu.total // 4
    (told,) = apply_settings("made_up", {"memory_fraction": 0.9}, is_explicit=False).settings
    assert (told.how, told.now) == ("not applied", "0.25") and "set by torch" in told.reason


@pytest.mark.parametrize("settings", ["", "expandable_segments:True,max_split_size_mb:64,roundup_power2_divisions:[256:1,512:2]"])
def test_the_allocators_own_call_takes_a_split_size_and_keeps_its_other_settings(monkeypatch, settings):
    gpu = MadeUpGpu(monkeypatch, settings=settings)
    with hr.hardware_settings(max_split_size_mb=128) as applied:
        (told,) = applied.settings
        assert gpu.settings["max_split_size"] == 128 * 2**20
        assert ("expandable_segments:True" in gpu.settings["PYTORCH_CUDA_ALLOC_CONF"]) == bool(settings)
    assert (told.before, told.now, told.how) == ("64" if settings else "unlimited", "128", "by call")
    assert told.reason == "blocks that were split before stay so"
    assert gpu.settings["PYTORCH_CUDA_ALLOC_CONF"] == settings


@pytest.mark.parametrize("settings, wanted", [
    ("", "max_split_size_mb:128"), ("max_split_size_mb:64", "max_split_size_mb:128"),
    ("max_split_size_mb : 64 , expandable_segments:True", " expandable_segments:True,max_split_size_mb:128"),
    ("roundup_power2_divisions:[256:1,512:2,>:4],max_split_size_mb:64", "roundup_power2_divisions:[256:1,512:2,>:4],max_split_size_mb:128")])
def test_a_setting_is_put_among_those_that_an_allocator_has(settings, wanted):
    assert _gpu_settings.with_max_split_size(settings, 128) == wanted


def test_an_allocator_that_splits_nothing_is_told(monkeypatch):
    gpu = MadeUpGpu(monkeypatch, backend="cudaMallocAsync")
    (told,) = hr.hardware_settings(max_split_size_mb=128).settings
    assert told.how == "not applied" and "cudaMallocAsync" in told.reason and gpu.calls == []


# ---- The power limit of a board ----


class MadeUpNvml:
    """The functions of nvml.h that are called, in mW and MHz."""

    def __init__(self, limit: int, error: int = 0, keeps: bool = True) -> None:
        self.limit, self.error, self.keeps, self.open = limit, error, keeps, 0
        self.nvmlErrorString = lambda code: b"Insufficient Permissions" if code == 4 else b"GPU is lost"

    def nvmlInit_v2(self) -> int:
        self.open += 1
        return 0

    def nvmlShutdown(self) -> int:
        self.open -= 1
        return 0

    def nvmlDeviceGetHandleByUUID(self, uuid: bytes, device) -> int:
        return 0 if uuid == b"GPU-made-up" else 6

    def nvmlDeviceGetPowerManagementLimit(self, device, limit) -> int:
        limit._obj.value = self.limit
        return 0

    def nvmlDeviceGetPowerManagementLimitConstraints(self, device, lowest, highest) -> int:
        lowest._obj.value, highest._obj.value = 200_000, 700_000
        return 0

    def nvmlDeviceSetPowerManagementLimit(self, device, limit: ctypes.c_uint) -> int:
        if self.error == 0 and self.keeps:
            self.limit = limit.value
        return self.error

    def nvmlDeviceGetClockInfo(self, device, kind, clock) -> int:
        clock._obj.value = 345
        return 0

    def nvmlDeviceGetMaxClockInfo(self, device, kind, clock) -> int:
        clock._obj.value = 1980
        return 0


@pytest.mark.parametrize("limit, error, keeps, how, now, reason", [
    (350_000, 0, True, "by call", "700 W", "graphics clock 345 of 1980 MHz"),
    (350_000, 4, True, "not applied", "350 W", "not permitted: Insufficient Permissions; graphics clock 345 of 1980 MHz"),
    (350_000, 15, True, "not applied", "350 W", "GPU is lost; graphics clock 345 of 1980 MHz"),
    (350_000, 0, False, "not applied", "350 W", "350 W was read back"),
    (700_000, 4, True, "not applied", "700 W", "the limit is the board's highest already; graphics clock 345 of 1980 MHz")])
def test_a_power_limit_is_applied_only_where_it_is_read_back(limit, error, keeps, how, now, reason):
    nvml = MadeUpNvml(limit, error, keeps)
    change = _gpu_power.highest_power_limit("made-up", nvml)
    assert (change.setting.how, change.setting.now, change.setting.reason) == (how, now, reason)
    if how == "by call":
        assert change.undo().now == "350 W"
    assert (nvml.limit, nvml.open) == (limit, 0)


def test_a_board_that_nvml_does_not_know_and_a_machine_without_nvml_are_told(monkeypatch):
    told = _gpu_power.highest_power_limit("another", MadeUpNvml(350_000)).setting
    assert (told.how, told.now, told.reason) == ("not applied", "unavailable", "GPU is lost")
    monkeypatch.setattr(_gpu_power, "_LIBRARY", "libmade-up.so.1")
    told = _gpu_power.highest_power_limit("made-up").setting
    assert (told.how, told.reason) == ("not applied", "no NVML (libmade-up.so.1)")
