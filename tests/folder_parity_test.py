"""A folder of pictures gives the classes, samples, labels and order that torchvision's ImageFolder gives."""

import json
import os
import subprocess
from pathlib import Path

from torchvision.datasets import ImageFolder

ROOT = Path(__file__).resolve().parent.parent
BIN = Path(os.environ.get("HEADRACE_BIN_DIR", ROOT / "build" / "release" / "bin"))


def listed(folder):
    done = subprocess.run([BIN / "folder_probe", folder, "train"], capture_output=True, timeout=60)
    assert done.returncode == 0, done.stderr.decode()
    return json.loads(done.stdout)


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

    ours = listed(tmp_path)
    theirs = ImageFolder(tmp_path / "train", is_valid_file=lambda path: path.lower().endswith((".jpg", ".jpeg", ".png")))
    assert ours["classes"] == [shown(name) for name in theirs.classes]
    assert ours["samples"] == [[shown(path), label] for path, label in theirs.samples]
    assert len(theirs.samples) == 8 * len(folders) + 17
