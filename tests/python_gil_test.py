"""A Python thread goes on while the native half works: the interpreter lock is not held meanwhile."""

import io
import pathlib
import re
import sys
import threading
import time

import headrace as hr
import pytest
import torch
from PIL import Image

SIDE = 640


@pytest.fixture
def counter():
    """A thread that counts whenever it gets the interpreter lock, which nobody takes from a thread that does not let go."""
    interval = sys.getswitchinterval()
    sys.setswitchinterval(1000)
    count, ended = [0], threading.Event()

    def run():
        while not ended.is_set():
            count[0] += 1
            time.sleep(0)  # Lets go of the lock.

    thread = threading.Thread(target=run)
    thread.start()
    yield lambda: count[0]
    ended.set()
    thread.join()
    sys.setswitchinterval(interval)


@pytest.mark.parametrize("threads", [0, 2])
def test_a_python_thread_counts_while_images_of_640_are_decoded_and_transformed(tmp_path, counter, threads):
    for place in range(8):
        folder = tmp_path / "train" / str(place % 2)
        folder.mkdir(parents=True, exist_ok=True)
        Image.linear_gradient("L").rotate(10 * place).resize((800, SIDE)).convert("RGB").save(folder / f"{place}.jpg")
    loader = hr.Loader(f"folder:{tmp_path}", batch_size=4, num_workers=threads, seed=1, transform={
        "size": SIDE, "crop": "random_resized", "flip_probability": 0.5, "mean": [0.5], "std": [0.2]})
    counted = batches = 0
    deadline = time.monotonic() + 60
    while batches < 20 or (counted <= batches and time.monotonic() < deadline):  # Ten epochs do, if the thread has a core.
        running = iter(loader)
        for _ in range(len(loader)):
            before = counter()
            images, _ = next(running)
            counted += counter() - before
            batches += 1
            assert images.shape == (4, 3, SIDE, SIDE)
    assert counted > batches  # Python's own code lets nobody else run between two looks at the counter.


def test_a_python_thread_counts_while_a_transform_decodes(counter):
    file = io.BytesIO()
    Image.linear_gradient("L").resize((800, SIDE)).convert("RGB").save(file, "JPEG")
    image, out = file.getvalue(), torch.empty(3, SIDE, SIDE)
    transform = hr.Transform([hr.transforms.Resize(SIDE), hr.transforms.CenterCrop(SIDE), hr.transforms.ToDtype("float32", scale=True)])
    counted = 0
    deadline = time.monotonic() + 60
    while counted == 0 and time.monotonic() < deadline:  # Unless the machine leaves the thread no core, the first one does.
        before = counter()
        transform.apply(image, out=out)
        counted += counter() - before
    assert counted > 0  # Python's own code lets nobody else run between two looks at the counter.


def test_no_static_of_the_bindings_is_made_by_an_import():
    """It would be made under a lock of its own, and an import may let go of the interpreter's to a thread that waits for that."""
    folder = pathlib.Path(__file__).resolve().parent.parent / "src" / "python"
    statics = [(file.name, static) for file in sorted(folder.rglob("*.*"))
               for static in re.findall(r"^\s*static [^;(]*[={][^;]*;", file.read_text(), re.MULTILINE)]
    assert any("the_gate" in static for _, static in statics)
    assert [each for each in statics if re.search(r"import|attr\(|py::|nb::", each[1])] == []
