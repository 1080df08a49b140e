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
    "SequentialLR": ("milestones = [10, 90]\n[[schedulers]]\nname = 'LinearLR'\ntotal_iters = 10\n[[schedulers]]\nname = 'StepLR'\n"
                     "step_size = 30\n[[schedulers]]\nname = 'ExponentialLR'\ngamma = 0.995",
                     lambda o: sequence(o, [10, 90], lambda o: lr_scheduler.LinearLR(o, total_iters=10),
                                        lambda o: lr_scheduler.StepLR(o, 30), lambda o: lr_scheduler.ExponentialLR(o, 0.995))),
    "SequentialLR, restarts": ("milestones = [7]\n[[schedulers]]\nname = 'ConstantLR'\n[[schedulers]]\n"
                               "name = 'CosineAnnealingWarmRestarts'\nT_0 = 40",
                               lambda o: sequence(o, [7], lr_scheduler.ConstantLR, lambda o: lr_scheduler.CosineAnnealingWarmRestarts(o, 40))),
}


def torch_optimizer():
    return torch.optim.SGD([torch.zeros(1, requires_grad=True)], lr=LR, momentum=0.5)


def torchs_values(make):
    """Learning rate and momentum of each step; the rate by the closed form where the class has one."""
    optimizer = torch_optimizer()
    scheduler = make(optimizer)
    rates, momenta = [], []
    for step in range(STEPS):
        if hasattr(scheduler, "_get_closed_form_lr"):
            scheduler.last_epoch = step
            rates += scheduler._get_closed_form_lr()
        else:
            rates.append(optimizer.param_groups[0]["lr"])
        momenta.append(optimizer.param_groups[0]["momentum"])
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


@pytest.mark.parametrize("case", [
    ("name = 'StepLR'\nstep_size = 3\ngamma = 0.3", lambda o: lr_scheduler.StepLR(o, 3, 0.3)),
    ("name = 'MultiStepLR'\nmilestones = [2, 5, 6]", lambda o: lr_scheduler.MultiStepLR(o, [2, 5, 6])),
    ("name = 'LinearLR'", lr_scheduler.LinearLR),
    ("name = 'CosineAnnealingLR'\nT_max = 20", lambda o: lr_scheduler.CosineAnnealingLR(o, 20)),
], ids=lambda case: case[0].split("'")[1])
@pytest.mark.parametrize("warmup", [0, 3])
def test_schedules_agree_with_pytorchs_stepped_once_an_epoch(case, warmup, tmp_path):
    epochs, steps = 10, 7
    keys, make = case
    probe("lr", epochs, steps, tmp_path / "out", f"warmup_steps = {warmup}\n{keys}")
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


def assert_gradients_agree(ours, parameters):
    for name, parameter in parameters.items():
        assert largest_difference(ours[name], parameter.grad) <= 1e-6, name


@pytest.mark.parametrize("scale", [1e-3, 1.0, 1e6])
@pytest.mark.parametrize("norm_type, option", [(2.0, "l2"), (float("inf"), "inf")])
def test_clipped_gradients_agree(norm_type, option, scale, tmp_path):
    ours, parameters = clipped(tmp_path, scale, "max_grad_norm=1.0", f"grad_norm_type={option}")
    norm = torch.nn.utils.clip_grad_norm_(parameters.values(), 1.0, norm_type=norm_type)
    assert ours["norm_before"].item() == pytest.approx(norm.item(), rel=1e-5)
    assert_gradients_agree(ours, parameters)
    exact = torch.linalg.vector_norm(torch.cat([ours[name].double().flatten() for name in SHAPES]), norm_type).item()
    assert exact <= 1.0 + 1e-6
    assert ours["norm_after"].item() == pytest.approx(exact, rel=1e-6)


@pytest.mark.parametrize("scale", [1e-3, 1.0, 1e3])
def test_gradients_clipped_by_layer_agree_with_one_call_a_module(scale, tmp_path):
    ours, parameters = clipped(tmp_path, scale, "max_grad_norm=0.5", "grad_norm_per=layer")
    for layer in (("a.weight", "a.bias"), ("b.weight",), ("c",)):
        torch.nn.utils.clip_grad_norm_([parameters[name] for name in layer], 0.5)
    assert_gradients_agree(ours, parameters)


@pytest.mark.parametrize("scale", [1e-3, 1.0, 1e6])
def test_gradients_clipped_by_value_agree(scale, tmp_path):
    ours, parameters = clipped(tmp_path, scale, "clip_grad_value=0.3")
    torch.nn.utils.clip_grad_value_(parameters.values(), 0.3)
    for name, parameter in parameters.items():
        assert torch.equal(ours[name], parameter.grad), name


@pytest.mark.parametrize("scale", [1e-4, 1e-2, 1e3])
def test_gradients_clipped_by_their_ratio_agree_with_the_formula_of_the_paper(scale, tmp_path):
    ours, parameters = clipped(tmp_path, scale, "clip_grad_ratio=0.01")

    def unit_norms(tensor):
        return tensor.norm() if tensor.dim() < 2 else tensor.norm(dim=tuple(range(1, tensor.dim())), keepdim=True)

    for parameter in parameters.values():
        most, norms = unit_norms(parameter.detach()).clamp(min=1e-3) * 0.01, unit_norms(parameter.grad)
        parameter.grad = torch.where(norms > most, parameter.grad * (most / norms.clamp(min=1e-6)), parameter.grad)
    assert_gradients_agree(ours, parameters)


def test_a_grad_scaler_agrees_on_200_gradients_some_of_which_are_not_finite(tmp_path):
    torch.manual_seed(7)
    steps, interval = 200, 10
    parameter, gradients = torch.randn(300), [torch.randn(300) for _ in range(steps)]
    for step in (0, 1, 30, 77, 78, 79, 150):
        gradients[step][step % 300] = float("inf") if step % 2 else float("nan")
    gradients[120] *= 1e34  # Finite, and beyond float32 with the scale.
    save_file({"parameter": parameter} | {f"gradient/{step}": tensor for step, tensor in enumerate(gradients)}, tmp_path / "in")
    probe("scaler", tmp_path / "in", tmp_path / "out", interval)
    ours = load_file(tmp_path / "out")

    parameter.requires_grad_()
    optimizer = torch.optim.AdamW([parameter], lr=1e-3, foreach=False)
    scaler = torch.amp.GradScaler("cpu", growth_interval=interval)
    scales, stepped = [], []
    for gradient in gradients:
        parameter.grad = scaler.scale(gradient)
        before = parameter.detach().clone()
        scaler.step(optimizer)
        scaler.update()
        scales.append(scaler.get_scale())
        stepped.append(not torch.equal(before, parameter))
    assert ours["stepped"].tolist() == stepped and stepped.count(False) == 8
    assert ours["scale"].tolist() == scales
    assert largest_difference(ours["parameter"], parameter) <= 1e-6


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
