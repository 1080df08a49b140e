"""What our optimizers, schedules, clipping and checkpoint format compute is what PyTorch computes."""

import os
import subprocess
from pathlib import Path

import numpy
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


def parameters_and_gradients():
    """Parameters by name, and 100 steps' gradients."""
    torch.manual_seed(5)
    shapes = {"weight": (16, 3, 3, 3), "bias": (16,), "matrix": (64, 33), "one": (1,)}
    parameters = {name: torch.randn(shape) for name, shape in shapes.items()}
    gradients = [{name: torch.randn(shape) * 10 ** (step % 5 - 3) for name, shape in shapes.items()}
                 for step in range(100)]
    return parameters, gradients


def our_updates(folder, parameters, gradients, options, state=None):
    """Our parameters and state by name after these gradients; they begin with `state`, where there is some."""
    tensors = {f"parameter/{name}": tensor.detach() for name, tensor in parameters.items()}
    tensors |= {f"state/{name}": tensor for name, tensor in (state or {}).items()}
    for step, of_step in enumerate(gradients):
        tensors.update({f"gradient/{step}/{name}": tensor for name, tensor in of_step.items()})
    save_file(tensors, folder / "in")
    probe("optimizer", folder / "in", folder / "out", *options)
    return load_file(folder / "out")


def torch_updates(optimizer, parameters, gradients):
    for of_step in gradients:
        for name, tensor in parameters.items():
            tensor.grad = of_step[name].clone()  # PyTorch's foreach Nesterov writes over it.
        optimizer.step()


def same_100_updates(folder, make_torch_optimizer, *options):
    """Our tensors by name, PyTorch's parameters by name, and its optimizer, after 100 steps on the same gradients."""
    parameters, gradients = parameters_and_gradients()
    found = our_updates(folder, parameters, gradients, options)
    for tensor in parameters.values():
        tensor.requires_grad_()
    optimizer = make_torch_optimizer(parameters.values())
    torch_updates(optimizer, parameters, gradients)
    return found, parameters, optimizer


KERNELS = {"plain": ("fused=false",), "foreach": ("foreach=true",), "fused": ("fused=true",)}


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
        if ours == theirs != "fused":  # Of which the kernel is our own.
            assert torch.equal(found[name], tensor), f"{name}: the same operators, so the same bits"


def as_keys(settings):
    """KEY=VALUE as a recipe writes them."""
    def text(value):
        return str(value).lower() if isinstance(value, bool) else ",".join(map(str, value)) if isinstance(value, tuple) else str(value)
    return [f"{key}={text(value)}" for key, value in settings.items()]


OTHERS = [
    ("adamw", dict(amsgrad=True, weight_decay=1e-2)),
    ("adamw", dict(maximize=True, weight_decay=0.1, betas=(0.3, 0.9))),
    ("adam", dict(weight_decay=1e-2)),
    ("adam", dict(weight_decay=0.0, betas=(0.8, 0.99), eps=1e-6)),
    ("adam", dict(weight_decay=1e-2, amsgrad=True, maximize=True)),
    ("sgd", dict(momentum=0.9, dampening=0.5, weight_decay=1e-2)),
    ("sgd", dict(momentum=0.9, dampening=0.0, weight_decay=1e-2, maximize=True)),
    ("rmsprop", dict(momentum=0.0, weight_decay=0.0)),
    ("rmsprop", dict(momentum=0.9, weight_decay=1e-2, alpha=0.9)),
    ("rmsprop", dict(momentum=0.0, weight_decay=1e-2, centered=True, eps=1e-4)),
    ("rmsprop", dict(momentum=0.5, weight_decay=0.0, centered=True, eps=1e-4, maximize=True)),
]
CLASSES = {"adamw": torch.optim.AdamW, "adam": torch.optim.Adam, "sgd": torch.optim.SGD, "rmsprop": torch.optim.RMSprop}


def torch_class(kind, kernel, **settings):
    """A function that makes it; RMSprop has no fused one."""
    flags = {"foreach": kernel == "foreach" or (kernel, kind) == ("fused", "rmsprop")}
    if kind != "rmsprop":
        flags["fused"] = kernel == "fused"
    return lambda tensors: CLASSES[kind](tensors, lr=1e-3, **settings, **flags)


def torch_state(optimizer, parameters):
    """By our names, without what is not there yet."""
    return {f"{name}/{kind}": value.clone() for name, tensor in parameters.items()
            for kind, value in optimizer.state[tensor].items() if value is not None}


@pytest.mark.parametrize("ours", KERNELS)
@pytest.mark.parametrize("theirs", KERNELS)
@pytest.mark.parametrize("kind, settings", OTHERS)
def test_every_option_of_torchs_optimizers_agrees_on_the_same_100_gradients(kind, settings, ours, theirs, tmp_path):
    found, parameters, optimizer = same_100_updates(tmp_path, torch_class(kind, theirs, **settings), f"name={kind}",
                                                    *KERNELS[ours], *as_keys(settings))
    wanted = torch_state(optimizer, parameters)
    assert set(found) == set(parameters) | set(wanted), "the state has torch's names"
    for name, tensor in parameters.items():
        assert largest_difference(found[name], tensor) <= 1e-6, name
        if ours == theirs != "fused":
            assert torch.equal(found[name], tensor), f"{name}: the same operators, so the same bits"
    for name, value in wanted.items():
        assert largest_difference(found[name], value) <= 1e-6 * max(1.0, value.abs().max().item()), name


@pytest.mark.parametrize("kernel", KERNELS)
@pytest.mark.parametrize("kind, settings", OTHERS)
def test_a_run_that_changes_sides_half_way_is_the_same_run(kind, settings, kernel, tmp_path):
    options = [f"name={kind}", *KERNELS[kernel], *as_keys(settings)]
    parameters, gradients = parameters_and_gradients()
    make = torch_class(kind, kernel, **settings)
    whole = {name: tensor.clone().requires_grad_() for name, tensor in parameters.items()}
    optimizer = make(whole.values())
    torch_updates(optimizer, whole, gradients[:50])
    middle = {name: tensor.detach().clone() for name, tensor in whole.items()}
    from_torch = our_updates(tmp_path, middle, gradients[50:], options, torch_state(optimizer, whole))
    torch_updates(optimizer, whole, gradients[50:])

    ours = our_updates(tmp_path, parameters, gradients[:50], options)
    from_ours = {name: ours[name].clone().requires_grad_() for name in parameters}
    other = make(from_ours.values())
    state = {place: {key.split("/")[1]: value for key, value in ours.items() if key.startswith(f"{name}/")}
             for place, name in enumerate(from_ours)}
    other.load_state_dict({"state": state, "param_groups": other.state_dict()["param_groups"]})
    torch_updates(other, from_ours, gradients[50:])
    for name, tensor in whole.items():
        assert largest_difference(from_torch[name], tensor) <= 1e-6, name
        assert largest_difference(from_ours[name], tensor) <= 1e-6, name


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


LR = 1e-3  # The probe's.
STEPS = 500
lr_scheduler = torch.optim.lr_scheduler


def sequence(optimizer, milestones, *makers):
    return lr_scheduler.SequentialLR(optimizer, [maker(optimizer) for maker in makers], milestones)


def chain(optimizer, *makers):
    return lr_scheduler.ChainedScheduler([maker(optimizer) for maker in makers], optimizer)


# Each as keys of [lr_scheduler], and as torch makes it.
SCHEDULES = {
    "ConstantLR": ("", lr_scheduler.ConstantLR),
    "ConstantLR, long": ("factor = 0.7\ntotal_iters = 123", lambda o: lr_scheduler.ConstantLR(o, 0.7, 123)),
    "LinearLR": ("", lr_scheduler.LinearLR),
    "LinearLR, down": ("start_factor = 0.9\nend_factor = 0.01\ntotal_iters = 400", lambda o: lr_scheduler.LinearLR(o, 0.9, 0.01, 400)),
    "StepLR": ("step_size = 37", lambda o: lr_scheduler.StepLR(o, 37)),
    "StepLR, gamma": ("step_size = 3\ngamma = 0.9", lambda o: lr_scheduler.StepLR(o, 3, 0.9)),
    "MultiStepLR": ("milestones = [2, 99, 100, 480]", lambda o: lr_scheduler.MultiStepLR(o, [2, 99, 100, 480])),
    "MultiStepLR, gamma": ("milestones = [1]\ngamma = 1.5", lambda o: lr_scheduler.MultiStepLR(o, [1], 1.5)),
    "ExponentialLR": ("gamma = 0.99", lambda o: lr_scheduler.ExponentialLR(o, 0.99)),
    "PolynomialLR": ("", lr_scheduler.PolynomialLR),
    "PolynomialLR, power": ("total_iters = 450\npower = 0.9", lambda o: lr_scheduler.PolynomialLR(o, 450, 0.9)),
    "CosineAnnealingLR": ("T_max = 499", lambda o: lr_scheduler.CosineAnnealingLR(o, 499)),
    "CosineAnnealingLR, rising again": ("T_max = 60\neta_min = 1e-5", lambda o: lr_scheduler.CosineAnnealingLR(o, 60, 1e-5)),
    "CosineAnnealingWarmRestarts": ("T_0 = 50", lambda o: lr_scheduler.CosineAnnealingWarmRestarts(o, 50)),
    "CosineAnnealingWarmRestarts, longer": ("T_0 = 3\nT_mult = 2\neta_min = 1e-6",
                                            lambda o: lr_scheduler.CosineAnnealingWarmRestarts(o, 3, 2, 1e-6)),
    "CyclicLR": ("base_lr = 1e-4\nmax_lr = 0.1\nstep_size_up = 30", lambda o: lr_scheduler.CyclicLR(o, 1e-4, 0.1, 30)),
    "CyclicLR, triangular2": ("base_lr = 1e-4\nmax_lr = 0.1\nstep_size_up = 20\nstep_size_down = 33\nmode = 'triangular2'\n"
                              "base_momentum = 0.5\nmax_momentum = 0.99",
                              lambda o: lr_scheduler.CyclicLR(o, 1e-4, 0.1, 20, 33, "triangular2", base_momentum=0.5, max_momentum=0.99)),
    "CyclicLR, exp_range": ("base_lr = 1e-4\nmax_lr = 0.1\nstep_size_up = 20\nmode = 'exp_range'\ngamma = 0.995\ncycle_momentum = false",
                            lambda o: lr_scheduler.CyclicLR(o, 1e-4, 0.1, 20, mode="exp_range", gamma=0.995, cycle_momentum=False)),
    "OneCycleLR": ("max_lr = 0.1\ntotal_steps = 500", lambda o: lr_scheduler.OneCycleLR(o, 0.1, 500)),
    "OneCycleLR, the whole run": ("", lambda o: lr_scheduler.OneCycleLR(o, LR, STEPS)),
    "OneCycleLR, three phases": ("max_lr = 0.1\nthree_phase = true\npct_start = 0.2\nanneal_strategy = 'linear'\ndiv_factor = 10\n"
                                 "final_div_factor = 100\nbase_momentum = 0.8\nmax_momentum = 0.9",
                                 lambda o: lr_scheduler.OneCycleLR(o, 0.1, STEPS, pct_start=0.2, anneal_strategy="linear", base_momentum=0.8,
                                                                   max_momentum=0.9, div_factor=10, final_div_factor=100, three_phase=True)),
    "OneCycleLR, three phases by the cosine": ("max_lr = 0.1\nthree_phase = true\npct_start = 0.4",
                                               lambda o: lr_scheduler.OneCycleLR(o, 0.1, STEPS, pct_start=0.4, three_phase=True)),
    "OneCycleLR, from the peak": ("max_lr = 0.1\npct_start = 0", lambda o: lr_scheduler.OneCycleLR(o, 0.1, STEPS, pct_start=0.0)),
    "OneCycleLR, mostly rising": ("max_lr = 0.1\npct_start = 0.6\nanneal_strategy = 'linear'",
                                  lambda o: lr_scheduler.OneCycleLR(o, 0.1, STEPS, pct_start=0.6, anneal_strategy="linear")),
    "OneCycleLR, three phases, mostly rising": ("max_lr = 0.1\nthree_phase = true\npct_start = 0.6",
                                                lambda o: lr_scheduler.OneCycleLR(o, 0.1, STEPS, pct_start=0.6, three_phase=True)),
    "SequentialLR": ("milestones = [10, 90]\n[[schedulers]]\nname = 'LinearLR'\ntotal_iters = 10\n[[schedulers]]\nname = 'StepLR'\n"
                     "step_size = 30\n[[schedulers]]\nname = 'ExponentialLR'\ngamma = 0.995",
                     lambda o: sequence(o, [10, 90], lambda o: lr_scheduler.LinearLR(o, total_iters=10),
                                        lambda o: lr_scheduler.StepLR(o, 30), lambda o: lr_scheduler.ExponentialLR(o, 0.995))),
    "SequentialLR, restarts": ("milestones = [7]\n[[schedulers]]\nname = 'ConstantLR'\n[[schedulers]]\n"
                               "name = 'CosineAnnealingWarmRestarts'\nT_0 = 40",
                               lambda o: sequence(o, [7], lr_scheduler.ConstantLR, lambda o: lr_scheduler.CosineAnnealingWarmRestarts(o, 40))),
    "SequentialLR, a cosine over the rest": (
        "milestones = [7, 440]\n[[schedulers]]\nname = 'ConstantLR'\n[[schedulers]]\nname = 'CosineAnnealingLR'\neta_min = 1e-5\n"
        "[[schedulers]]\nname = 'CosineAnnealingLR'\neta_min = 1e-4",
        lambda o: sequence(o, [7, 440], lr_scheduler.ConstantLR, lambda o: lr_scheduler.CosineAnnealingLR(o, 432, 1e-5),
                           lambda o: lr_scheduler.CosineAnnealingLR(o, 59, 1e-4))),
    "SequentialLR, a cycle between": (
        "milestones = [10, 90]\n[[schedulers]]\nname = 'LinearLR'\n[[schedulers]]\nname = 'CyclicLR'\nbase_lr = 1e-4\nmax_lr = 0.1\n"
        "step_size_up = 30\n[[schedulers]]\nname = 'ExponentialLR'\ngamma = 0.995",
        lambda o: sequence(o, [10, 90], lr_scheduler.LinearLR, lambda o: lr_scheduler.CyclicLR(o, 1e-4, 0.1, 30),
                           lambda o: lr_scheduler.ExponentialLR(o, 0.995))),
    "ChainedScheduler": ("[[schedulers]]\nname = 'ConstantLR'\nfactor = 0.1\ntotal_iters = 20\n[[schedulers]]\n"
                         "name = 'ExponentialLR'\ngamma = 0.99",
                         lambda o: chain(o, lambda o: lr_scheduler.ConstantLR(o, 0.1, 20),
                                         lambda o: lr_scheduler.ExponentialLR(o, 0.99))),
    "ChainedScheduler, of all that multiply": (
        "[[schedulers]]\nname = 'LinearLR'\ntotal_iters = 30\n[[schedulers]]\nname = 'MultiStepLR'\nmilestones = [9, 300]\n"
        "[[schedulers]]\nname = 'CosineAnnealingLR'\n[[schedulers]]\nname = 'StepLR'\nstep_size = 90\n[[schedulers]]\n"
        "name = 'PolynomialLR'\ntotal_iters = 600\npower = 0.9",
        lambda o: chain(o, lambda o: lr_scheduler.LinearLR(o, total_iters=30), lambda o: lr_scheduler.MultiStepLR(o, [9, 300]),
                        lambda o: lr_scheduler.CosineAnnealingLR(o, STEPS - 1), lambda o: lr_scheduler.StepLR(o, 90),
                        lambda o: lr_scheduler.PolynomialLR(o, 600, 0.9))),
    # torch's OneCycleLR makes where it begins the rate of all, here the optimizer's, and both cycles share their momenta.
    "SequentialLR, two cycles": (
        "milestones = [100, 150]\n[[schedulers]]\nname = 'OneCycleLR'\nmax_lr = 0.025\ntotal_steps = 500\nbase_momentum = 0.8\n"
        "max_momentum = 0.9\n[[schedulers]]\nname = 'ConstantLR'\n[[schedulers]]\nname = 'CyclicLR'\nbase_lr = 1e-4\nmax_lr = 0.1\n"
        "step_size_up = 30",
        lambda o: sequence(o, [100, 150], lambda o: lr_scheduler.OneCycleLR(o, 25 * LR, 500, base_momentum=0.8, max_momentum=0.9),
                           lr_scheduler.ConstantLR, lambda o: lr_scheduler.CyclicLR(o, 1e-4, 0.1, 30))),
}


def torch_optimizer():
    return torch.optim.SGD([torch.zeros(1, requires_grad=True)], lr=LR, momentum=0.5)


def torchs_values(make, optimizer=None):
    """Learning rate and momentum, or the first of betas, of each step; the rate by the closed form where the class has one."""
    optimizer = optimizer or torch_optimizer()
    group = optimizer.param_groups[0]
    scheduler = make(optimizer)
    rates, momenta = [], []
    for step in range(STEPS):
        if hasattr(scheduler, "_get_closed_form_lr"):
            scheduler.last_epoch = step
            rates += scheduler._get_closed_form_lr()
        else:
            rates.append(group["lr"])
        momenta.append(group["betas"][0] if "betas" in group else group["momentum"])
        optimizer.step()
        if not hasattr(scheduler, "_get_closed_form_lr"):
            scheduler.step()
    return rates, momenta


@pytest.mark.parametrize("case", SCHEDULES)
def test_schedules_agree_for_500_steps(case, tmp_path):
    keys, make = SCHEDULES[case]
    probe("lr", 1, STEPS, tmp_path / "out", f"name = '{case.split(',')[0]}'\ninterval = 'step'\n{keys}")
    found = load_file(tmp_path / "out")
    rates, momenta = torchs_values(make)
    assert len(set(rates)) > 1
    numpy.testing.assert_allclose(found["lr"].numpy(), rates, rtol=1e-12, atol=0)
    assert ("momentum" in found) == (len(set(momenta)) > 1)
    if "momentum" in found:
        numpy.testing.assert_allclose(found["momentum"].numpy(), momenta, rtol=1e-12, atol=0)


@pytest.mark.parametrize("case", ["CyclicLR", "OneCycleLR", "SequentialLR, a cycle between"])
def test_cycles_move_the_first_of_betas_as_pytorchs_do(case, tmp_path):
    keys, make = SCHEDULES[case]
    probe("lr", 1, STEPS, tmp_path / "out", f"name = '{case.split(',')[0]}'\ninterval = 'step'\n{keys}")
    adamw = torch.optim.AdamW([torch.zeros(1, requires_grad=True)], lr=LR)
    _, firsts = torchs_values(make, adamw)
    assert len(set(firsts)) > 1
    numpy.testing.assert_allclose(load_file(tmp_path / "out")["momentum"].numpy(), firsts, rtol=1e-12, atol=0)


@pytest.mark.parametrize("case", [
    ("name = 'ConstantLR'\ntotal_iters = 4", lambda o: lr_scheduler.ConstantLR(o, total_iters=4)),
    ("name = 'ExponentialLR'\ngamma = 0.8", lambda o: lr_scheduler.ExponentialLR(o, 0.8)),
    ("name = 'PolynomialLR'\ntotal_iters = 8\npower = 2", lambda o: lr_scheduler.PolynomialLR(o, 8, 2)),
    ("name = 'CosineAnnealingWarmRestarts'\nT_0 = 2\nT_mult = 2", lambda o: lr_scheduler.CosineAnnealingWarmRestarts(o, 2, 2)),
    ("name = 'CyclicLR'\ninterval = 'epoch'\nbase_lr = 1e-4\nmax_lr = 0.1\nstep_size_up = 3",
     lambda o: lr_scheduler.CyclicLR(o, 1e-4, 0.1, 3)),
    ("name = 'OneCycleLR'\ninterval = 'epoch'\nmax_lr = 0.1", lambda o: lr_scheduler.OneCycleLR(o, 0.1, 10)),
    ("name = 'SequentialLR'\nmilestones = [2, 6]\n[[schedulers]]\nname = 'LinearLR'\n[[schedulers]]\nname = 'StepLR'\nstep_size = 2\n"
     "[[schedulers]]\nname = 'ExponentialLR'\ngamma = 0.8",
     lambda o: sequence(o, [2, 6], lr_scheduler.LinearLR, lambda o: lr_scheduler.StepLR(o, 2),
                        lambda o: lr_scheduler.ExponentialLR(o, 0.8))),
    ("name = 'ChainedScheduler'\n[[schedulers]]\nname = 'LinearLR'\n[[schedulers]]\nname = 'StepLR'\nstep_size = 3",
     lambda o: chain(o, lr_scheduler.LinearLR, lambda o: lr_scheduler.StepLR(o, 3))),
    ("name = 'StepLR'\nstep_size = 3\ngamma = 0.3", lambda o: lr_scheduler.StepLR(o, 3, 0.3)),
    ("name = 'MultiStepLR'\nmilestones = [2, 5, 6]", lambda o: lr_scheduler.MultiStepLR(o, [2, 5, 6])),
    ("name = 'LinearLR'", lr_scheduler.LinearLR),
    ("name = 'CosineAnnealingLR'\nT_max = 20", lambda o: lr_scheduler.CosineAnnealingLR(o, 20)),
], ids=lambda case: case[0].split("'")[1])
@pytest.mark.parametrize("warmup", [0, 3, 17])  # Within an epoch, and longer than two.
def test_schedules_agree_with_pytorchs_stepped_once_an_epoch(case, warmup, tmp_path):
    epochs, steps = 10, 7
    keys, make = case
    name, rest = keys.split("\n", 1) if "\n" in keys else (keys, "")
    probe("lr", epochs, steps, tmp_path / "out", f"{name}\nwarmup_steps = {warmup}\n{rest}")
    optimizer = torch_optimizer()
    by_epoch = make(optimizer)
    wanted = []
    for _ in range(epochs):
        wanted += [optimizer.param_groups[0]["lr"]] * steps
        optimizer.step()
        by_epoch.step()
    wanted[:warmup] = [LR * (step + 1) / warmup for step in range(warmup)]
    numpy.testing.assert_allclose(load_file(tmp_path / "out")["lr"].numpy(), wanted, rtol=1e-12, atol=0)


def test_the_warm_up_is_a_linear_schedule_before_the_rest(tmp_path):
    probe("lr", 1, STEPS, tmp_path / "out", "name = 'ExponentialLR'\ngamma = 0.99\ninterval = 'step'\nwarmup_steps = 20")
    rates, _ = torchs_values(lambda o: sequence(o, [20], lambda o: lr_scheduler.LinearLR(o, 1 / 20, total_iters=19),
                                                lambda o: lr_scheduler.ExponentialLR(o, 0.99)))
    numpy.testing.assert_allclose(load_file(tmp_path / "out")["lr"].numpy(), rates, rtol=1e-12, atol=0)


@pytest.mark.parametrize("keys, options", [
    ("", {}),
    ("factor = 0.5\npatience = 2\ncooldown = 3", {"factor": 0.5, "patience": 2, "cooldown": 3}),
    ("mode = 'max'\npatience = 1", {"mode": "max", "patience": 1}),
    ("threshold = 0.05\nthreshold_mode = 'abs'\npatience = 3\nmin_lr = 2e-6",
     {"threshold": 0.05, "threshold_mode": "abs", "patience": 3, "min_lr": 2e-6}),
    ("threshold = 0.02\nthreshold_mode = 'abs'\ncooldown = 4\npatience = 1",
     {"threshold": 0.02, "threshold_mode": "abs", "cooldown": 4, "patience": 1}),
    ("mode = 'max'\nthreshold = 0.05\nthreshold_mode = 'abs'\npatience = 0\nfactor = 0.9\neps = 1e-5",
     {"mode": "max", "threshold": 0.05, "threshold_mode": "abs", "patience": 0, "factor": 0.9, "eps": 1e-5}),
])
def test_plateaus_are_found_where_pytorch_finds_them(keys, options, tmp_path):
    torch.manual_seed(7)
    metric = torch.exp(-torch.arange(STEPS, dtype=torch.double) / 40) + 0.02 * torch.rand(STEPS, dtype=torch.double)
    metric[100], metric[200] = torch.nan, torch.inf
    save_file({"metric": metric}, tmp_path / "in")
    probe("plateau", tmp_path / "in", tmp_path / "out", f"name = 'ReduceLROnPlateau'\n{keys}")
    optimizer = torch_optimizer()
    scheduler = lr_scheduler.ReduceLROnPlateau(optimizer, **options)
    wanted = []
    for value in metric.tolist():
        optimizer.step()
        scheduler.step(value)
        wanted.append(optimizer.param_groups[0]["lr"])
    assert len(set(wanted)) > 2
    numpy.testing.assert_allclose(load_file(tmp_path / "out")["lr"].numpy(), wanted, rtol=1e-12, atol=0)


SHAPES = {"a.weight": (128, 3136), "a.bias": (128,), "b.weight": (64, 32, 3, 3), "c": (7,)}


def clipped(folder, scale, *options):
    """What our clipping makes of gradients of that size, and parameters that hold the same ones not clipped."""
    torch.manual_seed(6)
    weights = {name: torch.randn(shape) * 0.1 for name, shape in SHAPES.items()}
    gradients = {name: torch.randn(shape) * scale for name, shape in SHAPES.items()}
    save_file({f"weight/{name}": tensor for name, tensor in weights.items()} |
              {f"gradient/{name}": tensor for name, tensor in gradients.items()}, folder / "in")
    probe("clip", folder / "in", folder / "out", *options)
    for name, weight in weights.items():
        weight.requires_grad_()
        weight.grad = gradients[name].clone()
    return load_file(folder / "out"), weights


FLOAT32_NORM = 5e-6  # What PyTorch's sum of 400,000 squares in float32 may be off; ours is in double.


def assert_gradients_agree(ours, wanted, most=1e-6):
    """`most` of the largest element of each."""
    for name, tensor in wanted.items():
        assert largest_difference(ours[name], tensor) <= most * tensor.abs().max().item(), name


def gradients_of(parameters):
    return {name: parameter.grad for name, parameter in parameters.items()}


def joint_norm(tensors, norm_type=2.0):
    """In double."""
    return torch.linalg.vector_norm(torch.cat([tensor.double().flatten() for tensor in tensors]), norm_type).item()


@pytest.mark.parametrize("scale", [1e-3, 1.0, 1e6])
@pytest.mark.parametrize("norm_type, option", [(2.0, "l2"), (float("inf"), "inf")])
def test_clipped_gradients_agree(norm_type, option, scale, tmp_path):
    ours, parameters = clipped(tmp_path, scale, "max_grad_norm=1.0", f"grad_norm_type={option}")
    exact = joint_norm(gradients_of(parameters).values(), norm_type)
    by_formula = {name: gradient.double() * min(1.0, 1.0 / (exact + 1e-6))
                  for name, gradient in gradients_of(parameters).items()}
    norm = torch.nn.utils.clip_grad_norm_(parameters.values(), 1.0, norm_type=norm_type)
    assert ours["norm_before"].item() == pytest.approx(exact, rel=1e-9)
    assert ours["norm_before"].item() == pytest.approx(norm.item(), rel=FLOAT32_NORM)
    assert_gradients_agree(ours, by_formula)
    assert_gradients_agree(ours, gradients_of(parameters), FLOAT32_NORM)
    after = joint_norm([ours[name] for name in SHAPES], norm_type)
    assert after <= 1.0 + 1e-6
    assert ours["norm_after"].item() == pytest.approx(after, rel=1e-6)


@pytest.mark.parametrize("scale", [1e-3, 1.0, 1e3])
def test_gradients_clipped_by_layer_agree_with_one_call_a_module(scale, tmp_path):
    ours, parameters = clipped(tmp_path, scale, "max_grad_norm=0.5", "grad_norm_per=layer")
    for layer in (("a.weight", "a.bias"), ("b.weight",), ("c",)):
        torch.nn.utils.clip_grad_norm_([parameters[name] for name in layer], 0.5)
    assert_gradients_agree(ours, gradients_of(parameters), FLOAT32_NORM)


@pytest.mark.parametrize("scale", [1e-3, 1.0, 1e6])
def test_gradients_clipped_by_value_agree(scale, tmp_path):
    ours, parameters = clipped(tmp_path, scale, "clip_grad_value=0.3")
    torch.nn.utils.clip_grad_value_(parameters.values(), 0.3)
    for name, parameter in parameters.items():
        assert torch.equal(ours[name], parameter.grad), name


@pytest.mark.parametrize("scale, clips", [(1e-4, (False,)), (1e-3, (False, True)), (1e-2, (True,)), (1e3, (True,))])
def test_gradients_clipped_by_their_ratio_agree_with_the_formula_of_the_paper(scale, clips, tmp_path):
    ours, parameters = clipped(tmp_path, scale, "clip_grad_ratio=0.01")

    def unit_norms(tensor):
        if tensor.dim() < 2:
            return tensor.norm()
        return torch.linalg.vector_norm(tensor, dim=tuple(range(1, tensor.dim())), keepdim=True)

    wanted, found = {}, set()
    for name, parameter in parameters.items():
        gradient = parameter.grad.double()
        most, norms = unit_norms(parameter.detach().double()).clamp(min=1e-3) * 0.01, unit_norms(gradient)
        wanted[name] = torch.where(norms > most, gradient * (most / norms.clamp(min=1e-6)), gradient)
        found |= set((norms > most).flatten().tolist())
        unchanged = (norms <= most).expand_as(gradient)
        assert torch.equal(ours[name][unchanged], parameter.grad[unchanged]), f"{name}: the bits of what is below"
    assert found == set(clips)
    assert_gradients_agree(ours, wanted)


GROWTH_INTERVAL = 10


def parameter_and_scaled_gradients():
    """A parameter, and 200 gradients of which 8 are not finite under a loss scale."""
    torch.manual_seed(7)
    parameter, gradients = torch.randn(300), [torch.randn(300) for _ in range(200)]
    for step in (0, 1, 30, 77, 78, 79, 150):
        gradients[step][step % 300] = float("inf") if step % 2 else float("nan")
    gradients[120] *= 1e34  # Finite, and beyond float32 with the scale.
    return parameter, gradients


def our_scaler(folder, parameter, gradients, state=None):
    """Ours after these gradients; it begins with `state`, torch's, where there is some. Its own state is the second."""
    tensors = {"parameter": parameter.detach()} | {f"gradient/{step}": tensor for step, tensor in enumerate(gradients)}
    tensors |= {f"state/{name}": torch.tensor(value, dtype=torch.double) for name, value in (state or {}).items()}
    save_file(tensors, folder / "in")
    probe("scaler", folder / "in", folder / "out", GROWTH_INTERVAL)
    found = load_file(folder / "out")
    own = {name[6:]: value.item() for name, value in found.items() if name.startswith("state/")}
    return found, own | {name: int(own[name]) for name in ("growth_interval", "_growth_tracker")}


def torchs_steps(scaler, optimizer, parameter, gradients):
    """Scales, and whether each step was made."""
    scales, stepped = [], []
    for gradient in gradients:
        parameter.grad = scaler.scale(gradient)
        before = parameter.detach().clone()
        scaler.step(optimizer)
        scaler.update()
        scales.append(scaler.get_scale())
        stepped.append(not torch.equal(before, parameter))
    return scales, stepped


def torch_scaler_and_adamw(parameter):
    return (torch.amp.GradScaler("cpu", growth_interval=GROWTH_INTERVAL),
            torch.optim.AdamW([parameter], lr=1e-3, foreach=False))


def test_a_grad_scaler_agrees_on_200_gradients_some_of_which_are_not_finite(tmp_path):
    parameter, gradients = parameter_and_scaled_gradients()
    ours, state = our_scaler(tmp_path, parameter, gradients)
    scaler, optimizer = torch_scaler_and_adamw(parameter.requires_grad_())
    scales, stepped = torchs_steps(scaler, optimizer, parameter, gradients)
    assert ours["stepped"].tolist() == stepped and stepped.count(False) == 8
    assert ours["scale"].tolist() == scales
    assert state == scaler.state_dict()
    assert largest_difference(ours["parameter"], parameter) <= 1e-6


def test_a_grad_scaler_that_changes_sides_half_way_is_the_same_one(tmp_path):
    parameter, gradients = parameter_and_scaled_gradients()
    scaler, optimizer = torch_scaler_and_adamw(parameter.clone().requires_grad_())
    moved = optimizer.param_groups[0]["params"][0]
    before, _ = torchs_steps(scaler, optimizer, moved, gradients[:75])
    middle = scaler.state_dict()  # Of a tracker that counts.
    assert 0 < middle["_growth_tracker"] < GROWTH_INTERVAL
    after, stepped = torchs_steps(scaler, optimizer, moved, gradients[75:])

    from_torch, state = our_scaler(tmp_path, parameter, gradients[75:], middle)
    assert from_torch["scale"].tolist() == after and from_torch["stepped"].tolist() == stepped
    assert state == scaler.state_dict()

    ours, state = our_scaler(tmp_path, parameter, gradients[:75])
    assert ours["scale"].tolist() == before and state == middle
    other, optimizer = torch_scaler_and_adamw(parameter.clone().requires_grad_())
    other.load_state_dict(state)
    assert torchs_steps(other, optimizer, optimizer.param_groups[0]["params"][0], gradients[75:])[0] == after
    assert other.state_dict() == scaler.state_dict()


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
