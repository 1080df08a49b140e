"""What our optimizers, clipping and checkpoint format compute is what PyTorch computes."""

import os
import subprocess
from pathlib import Path

import pytest
import torch
from safetensors import safe_open
from safetensors.torch import load_file, save_file

ROOT = Path(__file__).resolve().parent.parent
BIN = Path(os.environ.get("HEADRACE_BIN_DIR", ROOT / "build" / "release" / "bin"))


pytestmark = pytest.mark.usefixtures("one_thread")


def probe(*words):
    done = subprocess.run([BIN / "parity_probe", *map(str, words)], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    return done


def largest_difference(a, b):
    return (a.double() - b.double()).abs().max().item()


def same_100_updates(folder, make_torch_optimizer, *options):
    """Our tensors by name, PyTorch's parameters by name, and its optimizer, after 100 steps on the same gradients."""
    torch.manual_seed(5)
    shapes = {"weight": (16, 3, 3, 3), "bias": (16,), "matrix": (64, 33), "one": (1,)}
    parameters = {name: torch.randn(shape) for name, shape in shapes.items()}
    gradients = [{name: torch.randn(shape) * 10 ** (step % 5 - 3) for name, shape in shapes.items()}
                 for step in range(100)]
    tensors = {f"parameter/{name}": tensor for name, tensor in parameters.items()}
    for step, of_step in enumerate(gradients):
        tensors.update({f"gradient/{step}/{name}": tensor for name, tensor in of_step.items()})
    save_file(tensors, folder / "in")
    probe("optimizer", folder / "in", folder / "out", *options)

    for tensor in parameters.values():
        tensor.requires_grad_()
    optimizer = make_torch_optimizer(parameters.values())
    for of_step in gradients:
        for name, tensor in parameters.items():
            tensor.grad = of_step[name].clone()  # PyTorch's foreach Nesterov writes over it.
        optimizer.step()
    return load_file(folder / "out"), parameters, optimizer


KERNELS = {"plain": (), "foreach": ("foreach=true",), "fused": ("fused=true",)}


@pytest.mark.parametrize("ours", KERNELS)
@pytest.mark.parametrize("theirs", KERNELS)
def test_adamw_agrees_on_the_same_100_gradients(ours, theirs, tmp_path):
    found, parameters, optimizer = same_100_updates(
        tmp_path,
        lambda tensors: torch.optim.AdamW(tensors, lr=1e-3, weight_decay=1e-2, foreach=theirs == "foreach",
                                          fused=theirs == "fused"),
        *KERNELS[ours])
    for name, tensor in parameters.items():
        state = optimizer.state[tensor]
        assert largest_difference(found[name], tensor) <= 1e-6, name
        assert found[f"{name}/step"].item() == state["step"].item() == 100
        assert largest_difference(found[f"{name}/exp_avg"], state["exp_avg"]) <= 1e-6, name
        assert largest_difference(found[f"{name}/exp_avg_sq"], state["exp_avg_sq"]) <= 1e-6 * 100, name
        if ours == theirs:
            assert torch.equal(found[name], tensor), f"{name}: the same operators, so the same bits"


@pytest.mark.parametrize("ours", KERNELS)
@pytest.mark.parametrize("theirs", KERNELS)
@pytest.mark.parametrize("momentum, nesterov, decay",
                         [(0.9, False, 1e-2), (0.9, True, 1e-2), (0.9, True, 0.0), (0.0, False, 1e-2), (0.0, False, 0.0)])
def test_sgd_agrees_on_the_same_100_gradients(ours, theirs, momentum, nesterov, decay, tmp_path):
    found, parameters, optimizer = same_100_updates(
        tmp_path,
        lambda tensors: torch.optim.SGD(tensors, lr=1e-3, momentum=momentum, nesterov=nesterov, weight_decay=decay,
                                        foreach=theirs == "foreach", fused=theirs == "fused"),
        "name=sgd", *KERNELS[ours], f"momentum={momentum}", f"nesterov={str(nesterov).lower()}",
        f"weight_decay={decay}")
    assert len(found) == len(parameters) * (2 if momentum else 1)
    for name, tensor in parameters.items():
        assert largest_difference(found[name], tensor) <= 1e-6, name
        if momentum:
            buffer = optimizer.state[tensor]["momentum_buffer"]
            assert largest_difference(found[f"{name}/momentum_buffer"], buffer) <= 1e-6 * 100, name
        if ours == theirs:
            assert torch.equal(found[name], tensor), f"{name}: the same operators, so the same bits"


@pytest.mark.parametrize("options, scheduler", [
    (["name=step", "step_size=3", "gamma=0.3"],
     lambda optimizer: torch.optim.lr_scheduler.StepLR(optimizer, step_size=3, gamma=0.3)),
    (["name=multi_step", "milestones=2,5,6", "gamma=0.1"],
     lambda optimizer: torch.optim.lr_scheduler.MultiStepLR(optimizer, milestones=[2, 5, 6], gamma=0.1)),
])
@pytest.mark.parametrize("warmup", [0, 3])
def test_step_schedules_agree_with_pytorchs_stepped_once_an_epoch(options, scheduler, warmup, tmp_path):
    epochs, steps = 10, 7
    probe("lr", epochs, steps, tmp_path / "out", f"warmup_steps={warmup}", *options)
    optimizer = torch.optim.SGD([torch.zeros(1, requires_grad=True)], lr=1e-3)
    by_epoch = scheduler(optimizer)
    wanted = []
    for _ in range(epochs):
        wanted += [optimizer.param_groups[0]["lr"]] * steps
        optimizer.step()
        by_epoch.step()
    wanted[:warmup] = [1e-3 * (step + 1) / warmup for step in range(warmup)]
    assert load_file(tmp_path / "out")["lr"].tolist() == pytest.approx(wanted, rel=1e-12)


@pytest.mark.parametrize("scale", [1e-3, 1.0, 1e6])
def test_clipped_gradients_agree(scale, tmp_path):
    torch.manual_seed(6)
    gradients = {"a": torch.randn(128, 3136) * scale, "b": torch.randn(64, 32, 3, 3) * scale, "c": torch.randn(7) * scale}
    save_file(gradients, tmp_path / "in")
    probe("clip", 1.0, tmp_path / "in", tmp_path / "out")
    ours = load_file(tmp_path / "out")
    parameters = {name: torch.zeros_like(tensor, requires_grad=True) for name, tensor in gradients.items()}
    for name, parameter in parameters.items():
        parameter.grad = gradients[name].clone()
    norm = torch.nn.utils.clip_grad_norm_(parameters.values(), 1.0)
    assert ours["norm"].item() == pytest.approx(norm.item(), rel=1e-5)
    for name, parameter in parameters.items():
        assert largest_difference(ours[name], parameter.grad) <= 1e-6, name
    exact = sum(ours[name].double().square().sum() for name in gradients).sqrt().item()
    assert exact <= 1.0 + 1e-6


def test_safetensors_files_pass_both_ways(tmp_path):
    types = [torch.float64, torch.float32, torch.float16, torch.bfloat16, torch.int64, torch.int32, torch.int16,
             torch.int8, torch.uint8, torch.bool]
    tensors = {str(dtype): torch.randint(0, 2, (3, 5)).to(dtype) for dtype in types}
    tensors |= {"scalar": torch.tensor(4), "empty": torch.zeros(0, 3), "odd": torch.arange(3, dtype=torch.uint8)}
    save_file(tensors, tmp_path / "theirs", {"who": "Python \u00fc \"quoted\""})
    probe("copy", tmp_path / "theirs", tmp_path / "ours")
    found = load_file(tmp_path / "ours")
    assert set(found) == set(tensors)
    for name, tensor in tensors.items():
        assert found[name].dtype == tensor.dtype and torch.equal(found[name], tensor), name
    with safe_open(tmp_path / "ours", "pt") as file:
        metadata = file.metadata()
    assert metadata["who"] == "Python \u00fc \"quoted\"" and len(metadata["xxh3"]) == 16
