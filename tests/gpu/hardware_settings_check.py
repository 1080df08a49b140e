"""Hardware settings on a real GPU: what torch's allocator, its products and the driver do under each. Needs a CUDA device, so that no other
run of pytest collects it: make check ON=gpu names the folder and the form of the name."""

import contextlib
import json
import os
import shutil
import subprocess
import sys
import time
from pathlib import Path

import headrace as hr
import pytest
import torch
from headrace import _gpu_power
from performance_optimization import get_gpu_optimization_config, optimize_cuda_settings, optimize_gpu

GIB = 2**30


def run(code: str) -> dict:
    """What a process of its own prints last, as JSON: CUDA is not initialised there yet, and no cap was ever set."""
    done = subprocess.run([sys.executable, "-c", "import json, torch, headrace as hr\n" + code], capture_output=True, text=True, timeout=240,
                          env={**os.environ, "PYTHONPATH": os.pathsep.join([str(Path(hr.__file__).parent.parent), *sys.path])})
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1])


def relative_error(found: torch.Tensor, exact: torch.Tensor) -> float:
    return float((found.double() - exact).norm() / exact.norm())


# ---- The allocator ----


@pytest.mark.parametrize("fraction", [0.8, 0.9])
def test_memory_above_a_cap_is_refused_with_the_limit_and_memory_grows_as_it_is_needed(fraction):
    seen = run(f"""
applied = hr.hardware_settings(memory_fraction={fraction})
total = torch.cuda.get_device_properties(0).total_memory
reserved = torch.cuda.memory_reserved()
small = torch.empty(int(0.01 * total), dtype=torch.uint8, device="cuda")
grown = torch.cuda.memory_reserved()
del small
torch.cuda.empty_cache()
try:
    torch.empty(int({fraction + 0.05} * total), dtype=torch.uint8, device="cuda")
    words = ""
except torch.OutOfMemoryError as error:
    words = str(error)
print(json.dumps({{"told": applied.as_dict()["memory_fraction"], "reserved": reserved, "grown": grown, "total": total, "words": words,
                  "undone": [one.now for one in applied.undo()], "fraction": torch.cuda.get_per_process_memory_fraction()}}))
""")
    assert (seen["told"]["now"], seen["told"]["how"], seen["told"]["before"]) == (str(fraction), "by call", "1")
    assert seen["reserved"] == 0 and 0.01 * seen["total"] <= seen["grown"] < 0.02 * seen["total"]
    assert "memory" in seen["words"] and f"{fraction * seen['total'] / GIB:.2f} GiB allowed" in seen["words"], seen["words"]
    assert seen["undone"] == ["1"] and seen["fraction"] == 1


@pytest.mark.parametrize("is_late", [False, True])
def test_a_split_size_is_in_the_allocators_own_settings_before_and_after_its_first_use(is_late):
    seen = run(f"""
if {is_late}:
    torch.ones(1, device="cuda")
applied = hr.hardware_settings(max_split_size_mb=128)
started = torch.cuda.is_initialized()
held = torch.ones(1, device="cuda")
within = torch.cuda.memory._snapshot()["allocator_settings"]
applied.undo()
after = torch.cuda.memory._snapshot()["allocator_settings"]
print(json.dumps({{"told": applied.as_dict()["max_split_size_mb"], "started": started, "within": within, "after": after}}, default=str))
""")
    assert (seen["told"]["how"], seen["told"]["now"], seen["told"]["before"]) == ("by call", "128", "unlimited")
    assert seen["within"]["max_split_size"] == 128 * 2**20 and seen["after"]["max_split_size"] == -1
    assert seen["started"] == is_late and bool(seen["told"]["reason"]) == is_late


def test_a_block_above_the_split_size_is_not_split():
    """Of 200 MiB that were given back, a tensor of 100 MiB takes a part, unless no such block may be split."""
    reserved = {}
    for limit in (None, 128):
        reserved[limit] = run(f"""
hr.hardware_settings(max_split_size_mb={limit})
large = torch.empty(200 * 2**20, dtype=torch.uint8, device="cuda")
del large
small = torch.empty(100 * 2**20, dtype=torch.uint8, device="cuda")
print(json.dumps({{"reserved": torch.cuda.memory_reserved()}}))
""")["reserved"]
    assert reserved[None] == 200 * 2**20 and reserved[128] == 300 * 2**20


# ---- TF32 and cuDNN ----


def test_products_in_tf32_are_as_wrong_as_tf32_is_and_exact_without():
    torch.manual_seed(1)
    left, right = torch.randn(2, 4096, 4096, device="cuda")
    exact = left.double() @ right.double()

    def measured(on: bool) -> tuple[float, float]:
        with hr.hardware_settings(tf32=on) as applied:
            assert {setting.how for setting in applied.settings} == {"by call"}
            error = relative_error(left @ right, exact)
            torch.cuda.synchronize()
            begin = time.perf_counter()
            for _ in range(20):
                left @ right
            torch.cuda.synchronize()
            return error, 20 * 2 * 4096**3 / (time.perf_counter() - begin) / 1e12

    if torch.cuda.get_device_capability() < (8, 0):
        assert all("has no TF32" in setting.reason for setting in hr.hardware_settings(tf32=True).settings)
        return
    (error_with, rate_with), (error_without, rate_without) = measured(True), measured(False)
    print(f"TF32: relative error {error_with:.1e}, {rate_with:.0f} TFLOP/s; without: {error_without:.1e}, {rate_without:.0f} TFLOP/s")
    assert 1e-5 < error_with < 3e-3 and error_without < 3e-6


def test_deterministic_convolutions_give_the_same_bits_ten_times():
    torch.manual_seed(1)
    images = torch.randn(16, 32, 64, 64, device="cuda")
    weights = torch.randn(64, 32, 3, 3, device="cuda", requires_grad=True)

    def gradient() -> torch.Tensor:
        (found,) = torch.autograd.grad(torch.nn.functional.conv2d(images, weights, padding=1).square().sum(), weights)
        return found

    with hr.hardware_settings(reproducible=True) as applied:
        told = applied.as_dict()
        assert torch.backends.cudnn.deterministic and not torch.backends.cudnn.benchmark
        assert told["CUBLAS_WORKSPACE_CONFIG"]["how"] == "for child processes"
        first = gradient()
        assert all(torch.equal(gradient(), first) for _ in range(9))
    assert not torch.backends.cudnn.deterministic


def test_a_benchmark_takes_its_time_at_the_first_call_of_a_shape():
    images, weights = torch.randn(8, 48, 60, 60, device="cuda"), torch.randn(96, 48, 3, 3, device="cuda")

    def seconds() -> float:
        torch.cuda.synchronize()
        begin = time.perf_counter()
        torch.nn.functional.conv2d(images, weights)
        torch.cuda.synchronize()
        return time.perf_counter() - begin

    torch.nn.functional.conv2d(images[:, :, :30, :30], weights)  # cuDNN is loaded.
    with hr.hardware_settings(cudnn_benchmark=True):
        first, later = seconds(), sorted(seconds() for _ in range(20))[10]
    print(f"cuDNN's benchmark: first call {1e3 * first:.2f} ms, later ones {1e3 * later:.3f} ms")
    assert first > later


# ---- By the names of published examples ----


@contextlib.contextmanager
def flags():
    cudnn = torch.backends.cudnn
    matmul, precision = torch.get_float32_matmul_precision(), torch.backends.cuda.matmul.fp32_precision
    try:
        with cudnn.flags(enabled=True, benchmark=False, deterministic=True, allow_tf32=False):
            yield
    finally:
        torch.set_float32_matmul_precision(matmul)
        torch.backends.cuda.matmul.fp32_precision = precision


def test_the_example_of_cuda_settings_is_read_back_and_memory_above_nine_tenths_fails():
    seen = run("""
from performance_optimization import optimize_cuda_settings
told = optimize_cuda_settings()
total = torch.cuda.get_device_properties(0).total_memory
try:
    torch.empty(int(0.95 * total), dtype=torch.uint8, device="cuda")
    is_refused = False
except torch.OutOfMemoryError:
    is_refused = True
cudnn = torch.backends.cudnn
print(json.dumps({"told": told, "is_refused": is_refused, "flags": [cudnn.benchmark, cudnn.deterministic, cudnn.allow_tf32],
                  "fraction": torch.cuda.get_per_process_memory_fraction(),
                  "split": torch.cuda.memory._snapshot()["allocator_settings"]["max_split_size"]}))
""")
    assert seen["is_refused"] and seen["flags"] == [True, False, True] and abs(seen["fraction"] - 0.9) < 1e-6
    assert seen["split"] == 128 * 2**20
    assert all(row["requested"] == row["applied"] for row in seen["told"].values()), seen["told"]
    assert set(get_gpu_optimization_config()) == {"batch_size_multiplier", "enable_amp", "num_workers", "pin_memory"}


class WithoutRights:
    """The driver's library, in which nobody may set a limit: a check leaves the device as it is."""

    def __init__(self, library) -> None:
        self._library = library

    def __getattr__(self, name: str):
        return (lambda *given: 4) if name.startswith("nvmlDeviceSet") else getattr(self._library, name)


def test_the_example_of_a_gpu_is_read_back_and_never_claims_a_power_limit(monkeypatch):
    real = _gpu_power.ctypes.CDLL
    monkeypatch.setattr(_gpu_power.ctypes, "CDLL", lambda name: WithoutRights(real(name)))
    with flags():
        told = optimize_gpu()
        cudnn = torch.backends.cudnn
        assert (cudnn.benchmark, cudnn.deterministic, cudnn.allow_tf32) == (True, False, True)
        has_tf32 = torch.cuda.get_device_capability() >= (8, 0)
        assert torch.backends.cuda.matmul.allow_tf32 == has_tf32
    power = told["power_mode"]
    print(f"power_mode: {power}")
    assert power["requested"] == "high" and power["reason"].startswith("not applied: ")
    if shutil.which("nvidia-smi") and power["applied"] != "unavailable":
        limit = subprocess.run(["nvidia-smi", "-i", "0", "--query-gpu=power.limit", "--format=csv,noheader,nounits"], capture_output=True,
                               text=True, check=True).stdout
        assert abs(float(limit) - float(power["applied"].removesuffix(" W"))) < 1
        assert "not permitted" in power["reason"] or "the board's highest already" in power["reason"]


def test_cuda_settings_of_the_example_give_way_to_a_callers_fraction():
    with flags(), hr.hardware_settings(memory_fraction=0.7, max_split_size_mb=128):
        row = optimize_cuda_settings()["memory_fraction"]
        assert row["applied"] == "0.7" and "an explicit value wins" in row["reason"]
        assert abs(torch.cuda.get_per_process_memory_fraction() - 0.7) < 1e-6
    assert torch.cuda.get_per_process_memory_fraction() == 1
