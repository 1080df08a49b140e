"""Attention, layouts and the loss scale on a real GPU: which kernel of torch's ran, by the profiler, what it computes and what it holds.
Needs a CUDA device, so that no other run of pytest collects it: make check ON=gpu names the folder and the form of the name."""

import statistics
import time

import headrace as hr
import pytest
import torch
from performance_optimization import setup_mixed_precision_training
from torch import nn
from torch.autograd import DeviceType
from torch.profiler import ProfilerActivity, profile

# Parts of the names of CUDA kernels.
KERNELS = {"flash": "flash_fwd", "efficient": "fmha"}


def inputs(length: int, requires_grad: bool = False) -> list[torch.Tensor]:
    generator = torch.Generator("cuda").manual_seed(3)
    return [torch.randn(2, 4, length, 64, device="cuda", dtype=torch.float16, generator=generator).requires_grad_(requires_grad)
            for _ in range(3)]


def kernels_of(call) -> str:
    """Names of what ran on the device."""
    call()  # What is loaded at the first call.
    with profile(activities=[ProfilerActivity.CPU, ProfilerActivity.CUDA]) as recorded:
        call()
        torch.cuda.synchronize()
    return " ".join(event.name for event in recorded.events() if event.device_type == DeviceType.CUDA)


def distance(found: torch.Tensor, wanted: torch.Tensor) -> float:
    return float((found.double() - wanted.double()).norm() / wanted.double().norm())


@pytest.mark.parametrize("kernel", list(KERNELS))
def test_a_kernel_that_is_named_is_the_one_that_runs_and_computes_the_formula(kernel):
    attention, formula = hr.ScaledDotProductAttention(kernel), hr.ScaledDotProductAttention("math")
    ours, theirs = inputs(512, requires_grad=True), inputs(512, requires_grad=True)
    assert KERNELS[kernel] in kernels_of(lambda: attention(*ours, is_causal=True)) and attention.ran == kernel
    assert not any(name in kernels_of(lambda: formula(*theirs, is_causal=True)) for name in KERNELS.values())
    found, wanted = attention(*ours, is_causal=True), formula(*theirs, is_causal=True)
    assert distance(found, wanted) < 1e-2
    found.float().square().sum().backward()
    wanted.float().square().sum().backward()
    assert all(distance(one.grad, other.grad) < 2e-2 for one, other in zip(ours, theirs))


@pytest.mark.parametrize("kernel, low, high", [("flash", 1.5, 2.5), ("efficient", 1.5, 2.5), ("math", 3.0, 5.0)])
def test_memory_grows_with_the_length_or_with_its_square(kernel, low, high):
    def peak(length: int) -> int:
        attention, given = hr.ScaledDotProductAttention(kernel), inputs(length, requires_grad=True)
        attention(*given)  # Workspaces of libraries stay.
        torch.cuda.synchronize()
        before = torch.cuda.memory_allocated()
        torch.cuda.reset_peak_memory_stats()
        out = attention(*given)
        torch.cuda.synchronize()
        del out
        return torch.cuda.max_memory_allocated() - before

    ratio = peak(4096) / peak(2048)
    print(f"{kernel}: twice the length, {ratio:.2f} times the memory")
    assert low < ratio < high


def test_both_layouts_of_a_convolutional_net_have_the_same_result_and_their_times_are_told():
    def network() -> nn.Module:
        torch.manual_seed(1)
        return nn.Sequential(*(layer for before in (3, 64, 64, 64) for layer in (
            nn.Conv2d(before, 64, 3, padding=1), nn.BatchNorm2d(64), nn.ReLU()))).cuda().half()

    images, results, times = torch.randn(32, 3, 64, 64, device="cuda", dtype=torch.float16), {}, {}
    models = {layout: network() for layout in ("contiguous", "channels_last")}
    assert hr.set_memory_format(models["channels_last"], "channels_last")["applied"] == "channels_last"
    for _ in range(12):  # In turns.
        for layout, model in models.items():
            torch.cuda.synchronize()
            begin = time.perf_counter()
            results[layout] = model(images)
            results[layout].float().mean().backward()
            torch.cuda.synchronize()
            times.setdefault(layout, []).append(time.perf_counter() - begin)
    print(", ".join(f"{layout}: {1e3 * statistics.median(values[2:]):.2f} ms a step" for layout, values in times.items()))
    assert distance(results["channels_last"], results["contiguous"]) < 1e-2


def test_with_cuda_mixed_precision_is_on_with_torchs_initial_scale():
    enabled, scaler = setup_mixed_precision_training({})
    assert enabled and scaler.get_scale() == 65536.0
