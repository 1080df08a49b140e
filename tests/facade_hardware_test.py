"""Hardware settings by the names of published examples: the values that they set, in a made-up GPU, and what a CPU has of them."""

import json
import os
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import performance_optimization
import pytest
import torch
from headrace import _core, _gpu_settings
from headrace._gpu_power import highest_power_limit
from made_up_gpu import GIB, MadeUpGpu, put_no_gpu
from performance_optimization_system import (
    get_gpu_optimization_config, optimize_batch_size_for_memory, optimize_cpu_settings, optimize_cuda_settings, optimize_gpu)

VARIABLES = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS")


@pytest.fixture(autouse=True)
def as_found(monkeypatch):
    """Puts back what the functions set, which have no undo."""
    for name in (*VARIABLES, "PYTORCH_CUDA_ALLOC_CONF", "CUDA_POWER_MODE"):
        monkeypatch.setenv(name, "")  # So that what is there is put back.
        monkeypatch.delenv(name)
    threads, matmul, cudnn = torch.get_num_threads(), torch.get_float32_matmul_precision(), torch.backends.cudnn
    of_operators = [(backend, torch._C._get_fp32_precision_getter(backend, "matmul")) for backend in ("cuda", "mkldnn")]
    with cudnn.flags(enabled=cudnn.enabled, benchmark=False, deterministic=True, allow_tf32=False):
        yield
    torch.set_num_threads(threads)
    torch.set_float32_matmul_precision(matmul)
    for backend, precision in of_operators:
        torch._C._set_fp32_precision_setter(backend, "matmul", precision)


def cudnn_flags() -> tuple[bool, bool, bool]:
    cudnn = torch.backends.cudnn
    return cudnn.benchmark, cudnn.deterministic, cudnn.allow_tf32


# ---- A GPU's ----


def test_the_example_of_cuda_settings_sets_its_values_in_its_order_and_goes_on_to_the_configuration(monkeypatch):
    gpu = MadeUpGpu(monkeypatch)
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda index=0: "NVIDIA GeForce RTX 4090")
    products = torch.backends.cuda.matmul.fp32_precision

    told = optimize_cuda_settings()
    config = get_gpu_optimization_config()

    assert gpu.calls == [("fraction", 0.9), ("settings", "max_split_size_mb:128"), ("empty_cache",)]
    assert gpu.allowed == int(0.9 * gpu.total) and cudnn_flags() == (True, False, True)
    assert torch.backends.cuda.matmul.fp32_precision == products  # Products are not named in it.
    assert {name: row["applied"] for name, row in told.items()} == {
        "memory_fraction": "0.9", "cudnn_benchmark": "true", "cudnn_deterministic": "false", "tf32_cudnn": "true",
        "max_split_size_mb": "128", "empty_cache": "true"}
    assert all(row["requested"] == row["applied"] and "not applied" not in row["reason"] for row in told.values())
    assert "PYTORCH_CUDA_ALLOC_CONF" not in os.environ  # It would be too late for it.
    assert config == {"batch_size_multiplier": 1.5, "enable_amp": True, "num_workers": 16, "pin_memory": True}
    assert json.loads(json.dumps(told)) == told


def test_a_fraction_that_a_caller_named_stays_and_the_function_may_be_called_again(monkeypatch):
    import headrace as hr

    gpu = MadeUpGpu(monkeypatch)
    optimize_cuda_settings()
    assert optimize_cuda_settings()["memory_fraction"]["applied"] == "0.9"
    with hr.hardware_settings(memory_fraction=0.6):
        row = optimize_cuda_settings()["memory_fraction"]
        assert (row["requested"], row["applied"]) == ("0.9", "0.6") and gpu.allowed == int(0.6 * gpu.total)
        assert row["reason"] == "not applied: 0.6 is in force, set by hardware_settings, and an explicit value wins"


class NoRights:
    """NVML of a board below its highest limit, for somebody who may not set it."""

    nvmlErrorString = staticmethod(lambda code: b"Insufficient Permissions")

    def __getattr__(self, name: str):
        def call(*given) -> int:
            numbers = [pointer._obj for pointer in given if hasattr(pointer, "_obj") and hasattr(pointer._obj, "value")]
            for place, number in enumerate(numbers):
                number.value = 300_000 + 400_000 * place
            return 4 if name.startswith("nvmlDeviceSet") else 0

        return call


def test_the_example_of_a_gpu_sets_its_values_and_says_that_the_power_limit_is_not_permitted(monkeypatch):
    MadeUpGpu(monkeypatch)
    monkeypatch.setattr(_gpu_settings, "highest_power_limit", lambda uuid: highest_power_limit(uuid, NoRights()))

    told = optimize_gpu()

    assert cudnn_flags() == (True, False, True) and torch.backends.cuda.matmul.allow_tf32
    power = told.pop("power_mode")
    assert power["requested"] == "high" and power["applied"] == "300 W"
    assert power["reason"].startswith("not applied: not permitted: Insufficient Permissions; graphics clock ")
    assert "CUDA_POWER_MODE" not in os.environ  # No driver reads it.
    assert told == {name: {"requested": value, "applied": value, "reason": ""} for name, value in {
        "tf32_matmul": "true", "tf32_cudnn": "true", "cudnn_benchmark": "true", "cudnn_deterministic": "false"}.items()}


@pytest.mark.parametrize("function, names", [
    (optimize_cuda_settings, ["memory_fraction", "cudnn_deterministic", "cudnn_benchmark", "tf32_cudnn", "max_split_size_mb", "empty_cache"]),
    (optimize_gpu, ["power_mode", "tf32_matmul", "tf32_cudnn", "cudnn_deterministic", "cudnn_benchmark"])])
def test_without_cuda_nothing_is_set_and_each_row_says_so(monkeypatch, function, names):
    put_no_gpu(monkeypatch)

    def must_not_start(*given):
        raise AssertionError("CUDA was to be initialised")

    monkeypatch.setattr(torch.cuda, "_lazy_init", must_not_start)
    before = cudnn_flags(), torch.get_float32_matmul_precision(), dict(os.environ)
    told = function()
    assert (cudnn_flags(), torch.get_float32_matmul_precision(), dict(os.environ)) == before
    assert list(told) == names
    assert {(row["applied"], row["reason"]) for row in told.values()} == {("unavailable", "not applied: no CUDA device here")}
    assert get_gpu_optimization_config() == {}


def test_the_memory_of_a_gpu_decides_and_not_the_name_beside_its_tier(monkeypatch):
    device = SimpleNamespace(total_memory=8 * GIB, major=8, minor=6)
    for name, value in {"is_available": True, "get_device_name": "NVIDIA GeForce RTX 3070", "get_device_properties": device}.items():
        monkeypatch.setattr(torch.cuda, name, lambda index=0, value=value: value)
    assert optimize_batch_size_for_memory({"batch_size": 64}) == 16
    assert optimize_batch_size_for_memory({"batch_size": 64}, get_gpu_optimization_config()) == 16


# ---- The CPU's ----


def test_the_example_of_cpu_settings_takes_the_cores_of_this_process_and_hands_them_to_children():
    """The settings' part of the example; tests/facade_dataloader_test.py has the whole of it."""
    torch.set_num_threads(_core.usable_cores() + 1)
    told = optimize_cpu_settings()
    usable = str(_core.usable_cores())
    assert str(torch.get_num_threads()) == usable
    assert {name: row["applied"] for name, row in told.items()} == dict.fromkeys(("compute_threads", *VARIABLES), usable)
    assert {row["requested"] for row in told.values()} == {str(os.cpu_count())}
    assert all("for child processes: " in told[name]["reason"] for name in VARIABLES)
    child = subprocess.run([sys.executable, "-c", f"import os; print([os.environ[name] for name in {VARIABLES!r}])"],
                           capture_output=True, text=True)
    assert child.stdout.strip() == str([usable] * 3)


def test_cores_of_the_machine_that_this_process_may_not_use_are_told(monkeypatch):
    monkeypatch.setattr(os, "cpu_count", lambda: 64)
    monkeypatch.setattr(_core, "usable_cores", lambda: 1)
    told = optimize_cpu_settings()
    assert told["compute_threads"] == {"requested": "64", "applied": "1", "reason": "this process may use 1 of the machine's 64 cores"}
    assert told["OMP_NUM_THREADS"]["reason"].startswith("this process may use 1 of the machine's 64 cores; for child processes: ")


def test_without_torch_they_are_an_import_error_that_names_it():
    code = ("import sys; sys.modules['torch'] = None\n"
            "from performance_optimization import optimize_cpu_settings, optimize_gpu\n"
            "for function in (optimize_cpu_settings, optimize_gpu):\n"
            "    try:\n"
            "        function()\n"
            "    except ImportError as error:\n"
            "        print(error.name)\n")
    environment = {**os.environ, "PYTHONPATH": str(Path(performance_optimization.__file__).parent.parent)}
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=environment, cwd="/", timeout=120)
    assert done.stdout == "torch\ntorch\n", done.stderr
