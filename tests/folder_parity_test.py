"""A folder of images gives the classes, samples, order and evaluation batches that torchvision gives."""

import json
import os
import subprocess
from pathlib import Path

import numpy as np
import torch
from PIL import Image
from torchvision import transforms
from torchvision.datasets import ImageFolder

ROOT = Path(__file__).resolve().parent.parent
BIN = Path(os.environ.get("HEADRACE_BIN_DIR", ROOT / "build" / "release" / "bin"))


def probe(*words):
    done = subprocess.run([BIN / "folder_probe", *map(str, words)], capture_output=True, timeout=60)
    assert done.returncode == 0, done.stderr.decode()
    return done.stdout


def shown(name):
    """As Headrace shows a name: bytes that are not UTF-8 as \\xNN."""
    return os.fsencode(name).decode("utf-8", "backslashreplace")


def test_samples_come_as_imagefolder_gives_them(tmp_path):
    train = os.fsencode(tmp_path / "train")
    names = [b"1.jpg", b"10.jpg", b"2.JPEG", b"Z.png", b"a.PNG", b"\xff.jpg", b"\xee\x80\x80.jpg", b"\xf0\x9f\x90\xb1.jpg"]
    folders = [b"cat", b"cat/a-b", b"cat/a", b"cat/a/b", b"Cat", b"caf\xe9", "käse".encode(), "猫".encode(), b"-", b"z.jpg"]
    for folder in folders:
        os.makedirs(os.path.join(train, folder), exist_ok=True)
        for name in names + [b"notes.txt"]:
            with open(os.path.join(train, folder, name), "wb") as file:
                file.write(b"x")
    os.symlink(os.path.join(train, b"cat/a"), os.path.join(train, b"linked"))
    os.symlink(b"../cat/1.jpg", os.path.join(train, b"Cat/link.jpg"))

    ours = json.loads(probe("list", tmp_path, "train"))
    theirs = ImageFolder(tmp_path / "train", is_valid_file=lambda path: path.lower().endswith((".jpg", ".jpeg", ".png")))
    assert ours["classes"] == [shown(name) for name in theirs.classes]
    assert ours["samples"] == [[shown(path), label] for path, label in theirs.samples]
    assert len(theirs.samples) == 8 * len(folders) + 17


def test_evaluation_batches_are_torchvisions(tmp_path):
    random = np.random.default_rng(5)
    forms = [("jpg", {"quality": 90}), ("png", {}), ("jpg", {"progressive": True}), ("JPEG", {"subsampling": 0})]
    for i in range(12):
        height, width = random.integers(20, 200, 2)
        noise = random.integers(0, 256, (height // 8 + 1, width // 8 + 1, 3), dtype=np.uint8)
        image = Image.fromarray(noise).resize((int(width), int(height)), Image.Resampling.BICUBIC)
        if i % 5 == 0:
            image = image.convert("L")
        ending, form = forms[i % 4]
        folder = tmp_path / "test" / f"class{i % 3}"
        folder.mkdir(parents=True, exist_ok=True)
        image.save(folder / f"{i}.{ending}", **form)

    size, resize = 48, 56
    mean, deviation = [0.485, 0.456, 0.406], [0.229, 0.224, 0.225]
    transform = transforms.Compose([
        transforms.Resize(resize), transforms.CenterCrop(size), transforms.ToTensor(), transforms.Normalize(mean, deviation)
    ])
    theirs = torch.stack([image for image, _ in ImageFolder(tmp_path / "test", transform)]).numpy()
    ours = np.frombuffer(probe("load", tmp_path, size, resize), np.float32).reshape(theirs.shape)
    steps = np.abs(ours - theirs) * np.array(deviation, np.float32).reshape(1, 3, 1, 1) * 255
    assert steps.max() < 1.01  # Pillow rounds to uint8 between the two axes, too.
    assert steps.mean() < 0.3
