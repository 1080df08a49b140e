"""Our networks are PyTorch's: initial bits, names, outputs, gradients, files of weights and TorchScript modules."""

import contextlib
import copy
import functools
import os
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path
from unittest import mock

import pytest
import torch
from safetensors import safe_open
from safetensors.torch import load_file, save_file
from torch import nn
from torchvision import models
from torchvision.models import resnet18
from torchvision.models.vision_transformer import VisionTransformer

ROOT = Path(__file__).resolve().parent.parent
BIN = Path(os.environ.get("HEADRACE_BIN_DIR", ROOT / "build" / "release" / "bin"))
sys.path.insert(0, str(ROOT / "bench" / "train_fashion"))

from small_cnn import SmallCnn  # noqa: E402

SEED = 21  # Of dropout: kSeed in model_probe.cpp.
RATE = 0.05


class Mlp(nn.Module):
    def __init__(self, channels, size, classes):
        super().__init__()
        self.fc1 = nn.Linear(channels * size * size, 128)
        self.fc2 = nn.Linear(128, classes)

    def forward(self, images):
        return self.fc2(torch.relu(self.fc1(images.flatten(1))))


class StridedCnn(nn.Module):
    def __init__(self, channels, classes):
        super().__init__()
        for i, outputs in enumerate((16, 32, 64, 96), 1):
            self.add_module(f"conv{i}", nn.Conv2d(channels, outputs, 3, stride=2, padding=1, bias=False))
            self.add_module(f"bn{i}", nn.BatchNorm2d(outputs))
            channels = outputs
        self.fc = nn.Linear(channels, classes)

    def forward(self, images):
        x = images
        for i in range(1, 5):
            x = torch.relu(getattr(self, f"bn{i}")(getattr(self, f"conv{i}")(x)))
        return self.fc(x.mean((2, 3)))


class SmallStemConv(nn.Conv2d):
    """The convolution that resnet18 asks for, but 3x3 of stride 1 where it asks for the 7x7 of its stem."""

    def __init__(self, inputs, outputs, kernel_size, stride=1, padding=0, **others):
        if kernel_size == 7:
            kernel_size, stride, padding = 3, 1, 1
        super().__init__(inputs, outputs, kernel_size, stride, padding, **others)


def resnet18_small_stem(classes):
    with mock.patch.object(nn, "Conv2d", SmallStemConv):
        network = resnet18(num_classes=classes)
    network.maxpool = nn.Identity()
    return network


VIT = dict(patch_size=4, num_layers=2, num_heads=4, hidden_dim=48, mlp_dim=96)
DROPPING_VIT = VIT | dict(dropout=0.1, attention_dropout=0.2)


def vit(size, classes, **sizes):
    return VisionTransformer(image_size=size, num_classes=classes, **sizes)


def vit_options(**sizes):
    return " ".join(["name=vit", *(f"vit.{key}={value}" for key, value in sizes.items())])


class Job:
    """A network of ours, its reference, and the images it is tried on."""

    def __init__(self, reference, options, channels, size, classes, batch):
        self.reference, self.options, self.channels, self.size, self.batch = reference, options, channels, size, batch
        self.classes = classes

    def arguments(self):
        return [*self.options.split(), f"num_classes={self.classes}"]

    def data(self):
        torch.manual_seed(11)
        return torch.randn(self.batch, self.channels, self.size, self.size), torch.randint(self.classes, (self.batch,))


JOBS = {
    "small_cnn": Job(lambda: SmallCnn(1, 28, 28, 10), "name=small_cnn", 1, 28, 10, 32),
    "mlp": Job(lambda: Mlp(1, 28, 10), "name=mlp", 1, 28, 10, 32),
    "strided_cnn": Job(lambda: StridedCnn(3, 100), "name=strided_cnn", 3, 64, 100, 16),
    "resnet18": Job(lambda: resnet18(num_classes=37), "name=resnet18", 3, 40, 37, 4),
    "resnet34": Job(lambda: models.resnet34(num_classes=10), "name=resnet34", 3, 40, 10, 4),
    "resnet50": Job(lambda: models.resnet50(num_classes=10), "name=resnet50", 3, 40, 10, 4),
    "mobilenet_v3_large": Job(lambda: models.mobilenet_v3_large(num_classes=10), "name=mobilenet_v3_large", 3, 48, 10, 4),
    "mobilenet_v3_small": Job(lambda: models.mobilenet_v3_small(num_classes=10, dropout=0.5),
                              "name=mobilenet_v3_small dropout=0.5", 3, 48, 10, 4),
    "vit": Job(lambda: vit(16, 10, **VIT), vit_options(**VIT), 3, 16, 10, 4),
    "vit_dropping": Job(lambda: vit(16, 10, **DROPPING_VIT), vit_options(**DROPPING_VIT), 3, 16, 10, 4),
    "resnet18_small": Job(lambda: resnet18_small_stem(10), "name=resnet18 stem=small", 3, 16, 10, 4),
}
VIT_TI = dict(patch_size=16, num_layers=12, num_heads=3, hidden_dim=192, mlp_dim=768)


pytestmark = pytest.mark.usefixtures("one_thread")


def run_probe(*words):
    return subprocess.run([BIN / "model_probe", *map(str, words)], capture_output=True, text=True, timeout=120)


def probe(*words):
    done = run_probe(*words)
    assert done.returncode == 0, done.stderr


def refusal(*words):
    done = run_probe(*words)
    assert done.returncode == 1, f"{done.returncode}: {done.stderr}"
    assert done.stderr.count("\n") == 1, done.stderr
    return done.stderr


def largest_difference(a, b):
    return (a.double() - b.double()).abs().max().item()


def assert_near(found, wanted, tolerance, what=""):
    scale = max(wanted.abs().max().item(), 1.0)
    assert largest_difference(found, wanted) <= tolerance * scale, what


def assert_equal_bits(found, wanted):
    assert set(found) == set(wanted)
    for name, tensor in wanted.items():
        assert found[name].dtype == tensor.dtype and torch.equal(found[name], tensor), name


def noise(count, channels, size):
    return torch.randn(count, channels, size, size) * 1.5 + 0.2


def smooth(count, channels, size):
    """Images that differ on the whole: of noise, MobileNetV3 sees the border more than the image."""
    return nn.functional.interpolate(torch.randn(count, channels, 7, 7), (size, size), mode="bilinear")


def used_network(job, seed=3, images=noise):
    """A reference whose normalisations, and tensors that begin as 0, are not those of a new network."""
    torch.manual_seed(seed)
    network = job.reference()
    with torch.no_grad():
        for name, tensor in network.named_parameters():
            if tensor.dim() == 1 or not tensor.any():
                tensor.add_(torch.randn_like(tensor), alpha=0.1)
        # The statistics of one batch, as MobileNetV3 would take over a hundredth of each: what is hardly normalised shows nothing of its images.
        norms = [(module, module.momentum) for module in network.modules() if isinstance(module, nn.BatchNorm2d)]
        for module, _ in norms:
            module.momentum = 1.0
        network(images(8, job.channels, job.size))
        for module, momentum in norms:
            module.momentum = momentum
    return network


@functools.lru_cache(maxsize=1)
def _used_network_of(name):
    return used_network(JOBS[name])


def used_network_of(name):
    """A copy of one that is made once for tests of the same job behind each other."""
    return copy.deepcopy(_used_network_of(name))


@contextlib.contextmanager
def attention_as_in_training():
    """In evaluation torch.nn.MultiheadAttention has a fused operator of its own, which adds in another order."""
    before = torch.backends.mha.get_fastpath_enabled()
    torch.backends.mha.set_fastpath_enabled(False)
    try:
        yield
    finally:
        torch.backends.mha.set_fastpath_enabled(before)


def native_train(network, images, labels, layout="contiguous", precision="fp32", steps=1, rate=RATE):
    """What model_probe writes, by PyTorch. `network` is trained."""
    if layout == "channels_last":
        network, images = network.to(memory_format=torch.channels_last), images.to(memory_format=torch.channels_last)
    results = {}
    optimizer = torch.optim.SGD(network.parameters(), rate)
    losses = []

    def autocast():
        return torch.autocast("cpu", torch.bfloat16, enabled=precision == "bf16")

    network.eval()
    with torch.no_grad(), autocast(), attention_as_in_training():
        results["evaluated"] = network(images).float()
    network.train()
    torch.manual_seed(SEED)
    for step in range(steps):
        optimizer.zero_grad()
        with autocast():
            logits = network(images)
            loss = nn.functional.cross_entropy(logits, labels)
        loss.backward()
        losses.append(loss.detach().float())
        if step == 0:
            results["logits"] = logits.detach().float()
            results |= {f"gradient/{n}": p.grad.clone() for n, p in network.named_parameters() if p.requires_grad}
        optimizer.step()
    results["losses"] = torch.stack(losses)
    state = network.state_dict()
    return results | {f"after/{name}": tensor.clone() for name, tensor in state.items()}


def assert_trained_alike(found, wanted, tolerance):
    assert set(found) - {"frozen"} == set(wanted)
    for name, tensor in wanted.items():
        assert_near(found[name], tensor, tolerance, name)


@pytest.mark.parametrize("name", JOBS)
@pytest.mark.parametrize("seed", [0, 7])
def test_networks_start_from_the_same_bits(name, seed, tmp_path):
    job = JOBS[name]
    probe("initial", seed, job.channels, job.size, tmp_path / "ours", *job.arguments())
    torch.manual_seed(seed)
    assert_equal_bits(load_file(tmp_path / "ours"), job.reference().state_dict())


@pytest.mark.parametrize("layout", ["contiguous", "channels_last"])
@pytest.mark.parametrize("precision", ["fp32", "bf16"])
@pytest.mark.parametrize("name", JOBS)
def test_a_step_from_weights_that_pytorch_wrote_agrees(name, layout, precision, tmp_path):
    job = JOBS[name]
    network = used_network_of(name)
    images, labels = job.data()
    save_file(network.state_dict(), tmp_path / "weights")
    save_file({"image": images, "labels": labels}, tmp_path / "in")
    probe("train", tmp_path / "in", tmp_path / "out", precision, 1, RATE, *job.arguments(), f"memory_format={layout}",
          f"weights={tmp_path / 'weights'}")
    found = load_file(tmp_path / "out")
    wanted = native_train(network, images, labels, layout, precision)
    assert_trained_alike(found, wanted, 1e-6)
    if precision == "fp32":  # Folding rounds otherwise. How far that goes, PyTorch's own distance from float64 says: 3e-5 for ResNet-50.
        with torch.no_grad(), attention_as_in_training():
            exact = used_network_of(name).double().eval()(images.double())
        rounding = largest_difference(wanted["evaluated"].double(), exact) / exact.abs().max().item()
        assert_near(found["frozen"], wanted["evaluated"], max(1e-5, 2 * rounding))


@pytest.mark.parametrize("name", JOBS)
def test_100_steps_are_the_steps_of_pytorch_bit_for_bit(name, tmp_path):
    job = JOBS[name]
    network = used_network_of(name)
    images, labels = job.data()
    save_file(network.state_dict(), tmp_path / "weights")
    save_file({"image": images, "labels": labels}, tmp_path / "in")
    probe("train", tmp_path / "in", tmp_path / "out", "fp32", 100, 0.002, *job.arguments(),
          f"weights={tmp_path / 'weights'}")
    found = load_file(tmp_path / "out")
    before = {name: tensor.clone() for name, tensor in network.named_parameters()}
    wanted = native_train(network, images, labels, steps=100, rate=0.002)
    assert wanted["losses"].isfinite().all() and wanted["losses"][-1] != wanted["losses"][0]
    assert not any(torch.equal(tensor, wanted[f"after/{name}"]) for name, tensor in before.items() if tensor.dim() > 1)
    found.pop("frozen")
    assert_equal_bits(found, wanted)


@pytest.mark.parametrize("reference, options", [
    (models.resnet18, "name=resnet18"), (models.resnet34, "name=resnet34"), (models.resnet50, "name=resnet50"),
    (models.mobilenet_v3_large, "name=mobilenet_v3_large"), (models.mobilenet_v3_small, "name=mobilenet_v3_small"),
    (models.vit_b_16, "name=vit_b_16"), (lambda: vit(224, 1000, **VIT_TI), vit_options(**VIT_TI)),
], ids=["resnet18", "resnet34", "resnet50", "mobilenet_v3_large", "mobilenet_v3_small", "vit_b_16", "vit_ti"])
def test_logits_from_torchvisions_tensors_are_torchvisions(reference, options, tmp_path):
    """At the full size of photographs and classes, and with what evaluation calls in torch.nn.MultiheadAttention."""
    job = Job(reference, options, 3, 224, 1000, 2)
    network = used_network(job, images=smooth).eval()
    images = smooth(2, job.channels, job.size)
    save_file(network.state_dict(), tmp_path / "weights")
    save_file({"image": images}, tmp_path / "in")
    probe("logits", tmp_path / "in", tmp_path / "out", *job.arguments(), f"weights={tmp_path / 'weights'}")
    with torch.no_grad():
        wanted = network(images)
    assert (wanted[0] - wanted[1]).abs().max() > 1e-2, "logits that do not depend on the image show nothing"
    assert_near(load_file(tmp_path / "out")["logits"], wanted, 1e-4)


def test_vit_b_16_starts_from_the_same_bits(tmp_path):
    probe("initial", 3, 3, 32, tmp_path / "ours", "name=vit_b_16", "num_classes=10")
    torch.manual_seed(3)
    assert_equal_bits(load_file(tmp_path / "ours"), models.vit_b_16(image_size=32, num_classes=10).state_dict())


def test_images_of_a_vit_need_not_be_square(tmp_path):
    """torchvision's must be: what its network computes of 16x16 ours computes of the same patches in 8x32."""
    torch.manual_seed(4)
    network = vit(16, 10, **VIT)  # 16 patches.
    weights = network.state_dict() | {"heads.head.weight": torch.randn(10, VIT["hidden_dim"])}
    network.load_state_dict(weights)
    images = torch.randn(2, 3, 16, 16)
    patches = images.unfold(2, 4, 4).unfold(3, 4, 4).reshape(2, 3, 2, 8, 4, 4)  # 2 rows of 8 patches.
    save_file(weights, tmp_path / "weights")
    save_file({"image": patches.permute(0, 1, 2, 4, 3, 5).reshape(2, 3, 8, 32).contiguous()}, tmp_path / "in")
    probe("logits", tmp_path / "in", tmp_path / "out", *vit_options(**VIT).split(), "num_classes=10",
          f"weights={tmp_path / 'weights'}")
    with torch.no_grad():
        assert_near(load_file(tmp_path / "out")["logits"], network.eval()(images), 1e-5)


def test_a_vit_that_torchvision_saved_before_0_14_is_loaded(tmp_path):
    job = JOBS["vit"]
    network = used_network(job)
    old = {name.replace(".mlp.0.", ".mlp.linear_1.").replace(".mlp.3.", ".mlp.linear_2."): tensor
           for name, tensor in network.state_dict().items()}
    reference = job.reference()
    reference.load_state_dict(old)  # torchvision itself takes these names.
    assert_equal_bits(reference.state_dict(), network.state_dict())
    save_file(old, tmp_path / "old")
    probe("initial", 5, 3, job.size, tmp_path / "ours", *job.arguments(), f"weights={tmp_path / 'old'}")
    assert_equal_bits(load_file(tmp_path / "ours"), network.state_dict())


@pytest.mark.parametrize("name", JOBS)
def test_weights_pass_both_ways(name, tmp_path):
    job = JOBS[name]
    wanted = used_network_of(name).state_dict()
    save_file(wanted, tmp_path / "theirs")
    probe("initial", 5, job.channels, job.size, tmp_path / "ours", *job.arguments(), f"weights={tmp_path / 'theirs'}")
    found = load_file(tmp_path / "ours")
    assert_equal_bits(found, wanted)
    reference = job.reference()
    reference.load_state_dict(found, strict=True)
    assert_equal_bits(reference.state_dict(), wanted)
    with safe_open(tmp_path / "ours", "pt") as file:
        assert file.metadata()["format"] == "pt" and file.metadata()["made by"] == "model_probe"


def test_weights_of_another_head_are_named_and_can_be_left_out(tmp_path):
    torch.manual_seed(1)
    pretrained = resnet18(num_classes=1000).state_dict()
    save_file(pretrained, tmp_path / "theirs")
    arguments = ["initial", 5, 3, 64, tmp_path / "ours", "name=resnet18", "num_classes=37", f"weights={tmp_path / 'theirs'}"]
    message = refusal(*arguments)
    assert '2 of another shape or type ("fc.bias": Float (1000), wanted Float (37), "fc.weight": Float (1000,' in message
    assert not (tmp_path / "ours").exists()
    probe(*arguments, "weights_except=fc")
    found = load_file(tmp_path / "ours")
    torch.manual_seed(5)
    wanted = pretrained | {k: v for k, v in resnet18(num_classes=37).state_dict().items() if k.startswith("fc.")}
    assert_equal_bits(found, wanted)


class Tiny(nn.Module):
    """What a trace cannot say: a branch on the mode, a loop over modules; a frozen layer and dropout of nothing."""

    def __init__(self, classes):
        super().__init__()
        self.blocks = nn.ModuleList(nn.Sequential(nn.Conv2d(i, o, 3, 2, 1), nn.BatchNorm2d(o), nn.ReLU(inplace=True))
                                    for i, o in [(3, 8), (8, 16)])
        self.fixed = nn.Conv2d(16, 16, 1, bias=False).requires_grad_(False)
        self.fc = nn.Linear(16, classes)

    def forward(self, images):
        x = images
        for block in self.blocks:
            x = block(x)
        x = self.fixed(x)
        if self.training:
            x = x * 1.5
        return self.fc(x.mean((2, 3)))


def scripted_tiny():
    return torch.jit.script(Tiny(5))


def traced_resnet18():
    # Traced in training mode: evaluation would freeze the running statistics into the graph.
    return torch.jit.trace(resnet18(num_classes=5), torch.randn(2, 3, 64, 64), check_trace=False)


@pytest.mark.parametrize("make", [scripted_tiny, traced_resnet18])
@pytest.mark.parametrize("layout, precision", [("contiguous", "fp32"), ("channels_last", "fp32"), ("contiguous", "bf16"),
                                               ("channels_last", "bf16")])
def test_torchscript_modules_train_as_they_do_in_python(make, layout, precision, tmp_path):
    torch.manual_seed(2)
    make().save(tmp_path / "module.pt")
    images, labels = torch.randn(8, 3, 64, 64), torch.randint(5, (8,))
    save_file({"image": images, "labels": labels}, tmp_path / "in")
    probe("train", tmp_path / "in", tmp_path / "out", precision, 2, RATE, f"name=torchscript:{tmp_path / 'module.pt'}",
          f"memory_format={layout}", "num_classes=5")
    found = load_file(tmp_path / "out")
    module = torch.jit.load(tmp_path / "module.pt")
    # In bfloat16 the interpreter's optimizer rounds in other places than the module that was scripted; we do not use it.
    with torch.jit.optimized_execution(precision == "fp32"):
        wanted = native_train(module, images, labels, layout, precision, steps=2)
    assert_trained_alike(found, wanted, 1e-5)
    if precision == "fp32" and make is scripted_tiny:
        assert_near(found["frozen"], wanted["evaluated"], 1e-5)


def test_torchscript_modules_begin_with_weights_and_give_them_back(tmp_path):
    torch.manual_seed(2)
    scripted_tiny().save(tmp_path / "module.pt")
    other = Tiny(5)
    save_file(other.state_dict(), tmp_path / "theirs")
    probe("initial", 1, 3, 16, tmp_path / "ours", f"name=torchscript:{tmp_path / 'module.pt'}", "num_classes=5",
          f"weights={tmp_path / 'theirs'}")
    assert_equal_bits(load_file(tmp_path / "ours"), other.state_dict())


def test_other_files_than_torchscript_are_refused_in_one_line(tmp_path):
    def said(path):
        return refusal("initial", 1, 3, 16, tmp_path / "ours", f"name=torchscript:{path}", "num_classes=5")

    torch.save(Tiny(5).state_dict(), tmp_path / "state.pt")
    assert "state.pt: cannot be loaded as TorchScript" in said(tmp_path / "state.pt")
    torch.save(Tiny(5).state_dict(), tmp_path / "old.pt", _use_new_zipfile_serialization=False)
    assert "old.pt: cannot be loaded as TorchScript" in said(tmp_path / "old.pt")
    save_file(Tiny(5).state_dict(), tmp_path / "weights.safetensors")
    assert "weights.safetensors: cannot be loaded as TorchScript" in said(tmp_path / "weights.safetensors")
    assert "no such file" in said(tmp_path / "none.pt")
    torch.export.save(torch.export.export(torch.nn.Linear(2, 2), (torch.ones(1, 2),)), tmp_path / "program.pt2")
    shutil.copy(tmp_path / "program.pt2", tmp_path / "program.pt")
    for name in ("program.pt2", "program.pt"):
        assert "a program of torch.export (.pt2), whose code runs when it is loaded, and which is not loaded here" in said(tmp_path / name)


def test_a_packed_bomb_takes_no_memory(tmp_path):
    scripted_tiny().save(tmp_path / "module.pt")
    with zipfile.ZipFile(tmp_path / "module.pt") as module, \
         zipfile.ZipFile(tmp_path / "bomb.pt", "w", zipfile.ZIP_DEFLATED) as bomb:
        for record in module.infolist():
            content = module.read(record)
            if record.filename.endswith("data.pkl"):
                content += bytes(400 << 20)
            bomb.writestr(record.filename, content)
    assert (tmp_path / "bomb.pt").stat().st_size < 1 << 20
    said = refusal("initial", 1, 3, 16, tmp_path / "ours", f"name=torchscript:{tmp_path / 'bomb.pt'}", "num_classes=5")
    assert "bomb.pt" in said and "unpack to more than" in said
