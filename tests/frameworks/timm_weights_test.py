"""Weights of timm in our networks: its tensors, by its names, give its logits. In an environment of its own: make check
PARTS=frameworks."""

import os
import subprocess
from pathlib import Path

import pytest
import timm
import torch
from document_blocks import GUIDES, snippet
from safetensors.torch import load_file, save_file

ROOT = Path(__file__).resolve().parent.parent.parent
BIN = Path(os.environ.get("HEADRACE_BIN_DIR", ROOT / "build" / "release" / "bin"))
CLASSES = 1000
VIT = ["name=vit"]  # Whose sizes are by default those of vit_tiny_patch16_224.
NETWORKS = {
    "resnet18": ["name=resnet18"],
    "resnet34": ["name=resnet34"],
    "resnet50": ["name=resnet50"],
    "mobilenetv3_large_100": ["name=mobilenet_v3_large"],
    "mobilenetv3_small_100": ["name=mobilenet_v3_small"],
    "vit_tiny_patch16_224": VIT,
    "vit_base_patch16_224": ["name=vit_b_16"],
}

pytestmark = pytest.mark.usefixtures("one_thread")


def probe(*words):
    done = subprocess.run([BIN / "model_probe", *map(str, words)], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr


def used(name):
    """timm's network with tensors unlike those of a new one, normalised for images like those that it is tried on."""
    torch.manual_seed(6)
    network = timm.create_model(name, pretrained=False, num_classes=CLASSES)
    with torch.no_grad():
        for tensor in network.parameters():
            if tensor.dim() == 1 or not tensor.any():
                tensor.add_(torch.randn_like(tensor), alpha=0.1)
        for module in network.modules():
            if isinstance(module, torch.nn.BatchNorm2d):
                module.momentum = 0.9
        for _ in range(2):
            network(torch.randn(4, 3, 224, 224) * 1.5 + 0.2)
    return network.eval()


@pytest.mark.parametrize("name", NETWORKS)
def test_logits_from_timms_tensors_are_timms(name, tmp_path):
    network = used(name)
    images = torch.randn(2, 3, 224, 224)
    save_file(network.state_dict(), tmp_path / "weights")
    save_file({"image": images}, tmp_path / "in")
    probe("logits", tmp_path / "in", tmp_path / "out", *NETWORKS[name], f"num_classes={CLASSES}",
          f"weights={tmp_path / 'weights'}")
    with torch.no_grad():
        wanted = network(images)
    assert (wanted[0] - wanted[1]).abs().max() > 1e-2, "logits that do not depend on the image show nothing"
    found = load_file(tmp_path / "out")["logits"]
    assert (found - wanted).abs().max() <= 1e-4 * max(1.0, wanted.abs().max().item())


def test_what_is_loaded_from_timm_is_saved_under_torchvisions_names(tmp_path):
    from torchvision.models import mobilenet_v3_large

    network = used("mobilenetv3_large_100")
    save_file(network.state_dict(), tmp_path / "weights")
    probe("initial", 1, 3, 224, tmp_path / "ours", "name=mobilenet_v3_large", f"num_classes={CLASSES}",
          f"weights={tmp_path / 'weights'}")
    torchvisions = mobilenet_v3_large(num_classes=CLASSES).eval()
    torchvisions.load_state_dict(load_file(tmp_path / "ours"), strict=True)
    images = torch.randn(2, 3, 224, 224)
    with torch.no_grad():
        found, wanted = torchvisions(images), network(images)
    assert (found - wanted).abs().max() <= 1e-4 * max(1.0, wanted.abs().max().item())


def test_another_head_is_left_out_by_our_name(tmp_path):
    network = used("vit_tiny_patch16_224")
    save_file(network.state_dict(), tmp_path / "weights")
    probe("initial", 1, 3, 224, tmp_path / "ours", *VIT, "num_classes=7", "weights_except=heads",
          f"weights={tmp_path / 'weights'}")
    ours = load_file(tmp_path / "ours")
    assert ours["heads.head.weight"].shape == (7, 192)
    assert torch.equal(ours["encoder.layers.encoder_layer_11.self_attention.in_proj_weight"],
                       network.state_dict()["blocks.11.attn.qkv.weight"])


def test_the_guides_weights_are_written_as_timm_has_them(tmp_path, monkeypatch):
    """But for the weights themselves, which would come from a hub."""
    make, made = timm.create_model, []

    def create_model(name, pretrained):
        made.append(make(name, pretrained=False))
        return made[-1]

    monkeypatch.setattr(timm, "create_model", create_model)
    monkeypatch.chdir(tmp_path)
    exec(snippet(GUIDES / "recipes.md", "python", "timm.create_model"), {})
    (network,) = made
    written, wanted = load_file("mobilenet.safetensors"), network.state_dict()
    assert written.keys() == wanted.keys() and all(torch.equal(written[name], wanted[name]) for name in wanted)
