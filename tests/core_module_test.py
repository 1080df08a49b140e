"""headrace._core, the extension that needs no torch: what it shares with the other one, what it is without torch, what it keeps."""

import copy
import gc
import pathlib
import pickle
import re
import struct
import subprocess
import sys
import threading
import time

import numpy
import pytest
import torch

import headrace as hr
from headrace import _core
from held_memory import blocks_left

PACKAGE = pathlib.Path(hr.__file__).parent
BUILD = PACKAGE.parent.parent

# In a process in which there is no torch.
BARE = """
import os, sys
sys.modules["torch"] = None
sys.path.insert(0, os.path.dirname(sys.argv[1]))
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    path = tmp_path_factory.mktemp("idx")
    draws = numpy.random.default_rng(1)
    for split, count in (("train", 50), ("t10k", 20)):
        for kind, array in (("images-idx3", draws.integers(0, 256, (count, 8, 8))), ("labels-idx1", numpy.arange(count) % 10)):
            head = struct.pack(f">BBBB{array.ndim}I", 0, 0, 8, array.ndim, *array.shape)
            (path / f"{split}-{kind}-ubyte").write_bytes(head + array.astype("u1").tobytes())
    return path


def without_torch(code: str, *words) -> str:
    done = subprocess.run([sys.executable, "-c", BARE + code, PACKAGE, *map(str, words)], capture_output=True, text=True, cwd="/",
                          timeout=120)
    assert done.returncode == 0, done.stderr
    return done.stdout


# ---- What both extensions share ----


def test_a_process_holds_the_library_once():
    with open("/proc/self/maps") as maps:
        libraries = {line.split()[-1] for line in maps if re.search(r"/libheadrace\.so[.\d]*$", line)}
    assert len(libraries) == 1, libraries


def trainer_of_images() -> hr.Trainer:
    model = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(64, 10))

    def forward(model, batch):
        images, labels = batch
        return torch.nn.functional.cross_entropy(model(images), labels)

    return hr.Trainer(model, torch.optim.AdamW(model.parameters()), forward)


@pytest.mark.engine
def test_a_trace_sees_the_trainer_of_the_other_extension_and_the_loader_of_its_own(folder):
    assert (hr.Trace.__module__, hr.Trainer.__module__) == ("headrace._core", "headrace._engine")
    trainer = trainer_of_images()
    with hr.Trace() as trace:
        trainer.fit(hr.Loader(f"idx:{folder}", batch_size=16, num_workers=2), 1)
    counts = {entry["name"]: entry["count"] for entry in trace.summary()["operations"]}
    assert [counts[part] for part in ("step", "forward", "backward", "optimizer")] == [4, 4, 4, 4]
    assert counts["load_chunk"] >= 4
    split = trace.time_split()
    assert split["steps"] == 4 and 0 < split["forward_s"] < split["total_s"]
    assert hr.diagnose(trace, 16)["samples_per_second"] > 0


@pytest.mark.engine
def test_memory_of_trainers_and_batches_is_counted_where_a_trace_asks(folder):
    loader = hr.Loader(f"idx:{folder}", batch_size=16, num_workers=1)
    trainer = trainer_of_images()
    with hr.Trace() as trace:
        trainer.fit(loader, 1)
        time.sleep(0.3)
    held = trace.memory()["classes"]
    assert held["batches"]["last"] >= loader.statistics()["pool_bytes"] > 0
    assert held["parameters"]["last"] >= 4 * 650 and held["optimizer"]["last"] >= 2 * 4 * 650  # AdamW.


def bytes_that_a_watch_counts() -> dict[str, int]:
    """By class, at the end of a loop of its own, whose optimizer has no state."""
    layer = torch.nn.Linear(4, 2)
    optimizer = torch.optim.SGD(layer.parameters(), lr=0.1)
    with hr.watch(layer, optimizer) as seen:
        for inputs in torch.randn(3, 8, 4):
            layer(inputs).sum().backward()
            optimizer.step()
    return {name: known["last"] if known else 0 for name, known in seen.document["memory"]["classes"].items()}


@pytest.mark.engine
def test_a_watch_of_the_one_extension_counts_what_a_trainer_of_the_other_holds(folder):
    trainer = trainer_of_images()
    trainer.fit(hr.Loader(f"idx:{folder}", batch_size=16, num_workers=1), 1)
    gc.collect()
    beside = bytes_that_a_watch_counts()
    del trainer
    gc.collect()
    alone = bytes_that_a_watch_counts()
    assert beside["parameters"] - alone["parameters"] == 4 * 650
    assert beside["optimizer"] - alone["optimizer"] >= 2 * 4 * 650  # AdamW.


@pytest.mark.engine
def test_a_part_that_the_one_extension_records_counts_in_the_steps_of_the_other(folder):
    def rest(_loss):
        with _core.StepPart("optimizer"):
            time.sleep(0.005)

    with hr.Trace() as trace:
        trainer_of_images().fit(hr.Loader(f"idx:{folder}", batch_size=16, num_workers=1), 1, on_step=rest)
    split = trace.time_split()
    assert split["steps"] == 4 and split["optimizer_s"] >= 4 * 0.005
    with pytest.raises(hr.errors.InvalidArgumentError, match='wanted forward, backward or optimizer .* found "step"'):
        _core.StepPart("step")


def shown(file: pathlib.Path) -> list[str]:
    listing = subprocess.run(["nm", "-DC", "--defined-only", file], check=True, capture_output=True, text=True).stdout
    return [line.split(maxsplit=2)[2] for line in listing.splitlines()]


def test_the_library_shows_its_own_names_alone():
    names = shown((BUILD / "lib" / "libheadrace.so").resolve())
    assert any("headrace::Loader::Loader" in name for name in names)
    assert [name for name in names if "headrace::" not in name] == []


def test_the_module_shows_python_its_beginning_and_nobody_else_anything():
    (module,) = PACKAGE.glob("_core.*.so")
    assert module.name == "_core.abi3.so"  # For every Python from the one on that cmake/python.cmake names.
    names = shown(module)
    assert "PyInit__core" in names
    assert [name for name in names if not re.search(r"^PyInit__core$|nanobind::abi\d+::|__cxa|std::|for void \(", name)] == []


def test_the_module_asks_for_nothing_of_torch_nor_of_one_python_alone():
    (module,) = PACKAGE.glob("_core.*.so")
    needed = subprocess.run(["readelf", "-d", module], check=True, capture_output=True, text=True).stdout
    assert "libheadrace.so" in needed and "torch" not in needed and "c10" not in needed and "libpython" not in needed


# ---- Without torch ----

DIGEST = """
import hashlib

def digest(loader):
    hashed = hashlib.sha256()
    for epoch in range(2):
        for batch in loader:
            for field in (*batch, batch["valid"]):
                hashed.update(field.numpy().tobytes() if hasattr(field, "numpy") else field.tobytes())
    return hashed.hexdigest()
"""
FORMS = {
    "as stored": {},
    "float32 by pixel": {"transform": {"mean": [0.5], "std": [0.25], "layout": "nhwc"}},
    "uint8, cropped": {"transform": {"dtype": "uint8", "size": 6, "crop": "random"}},
    "flipped": {"transform": {"flip_probability": 0.5}, "last_batch": "pad"},
}


@pytest.mark.parametrize("options", FORMS.values(), ids=FORMS)
def test_arrays_have_the_bytes_of_tensors(folder, options):
    told = without_torch(DIGEST + f"""
from headrace._loader import Loader
print(digest(Loader(sys.argv[2], batch_size=16, seed=3, num_workers=2, **{options!r})))
""", f"idx:{folder}").strip()
    scope = {}
    exec(DIGEST, scope)
    assert told == scope["digest"](hr.Loader(f"idx:{folder}", batch_size=16, seed=3, num_workers=2, **options))


def test_without_torch_batches_are_arrays_over_the_loaders_memory(folder):
    without_torch("""
import numpy
from headrace._loader import Loader
loader = Loader(sys.argv[2], batch_size=16, num_workers=1, shuffle=False)
kept = list(loader)
for batch in kept:
    images, labels = batch
    assert type(images) is type(labels) is type(batch["valid"]) is numpy.ndarray
    assert images.dtype == numpy.float32 and labels.dtype == numpy.int64 and batch["valid"].dtype == numpy.uint8
    assert images.shape[1:] == (1, 8, 8) and not images.flags.owndata and images.flags.writeable and images.flags.aligned
    assert images.ctypes.data % 64 == 0  # Where the loader wrote them: nothing was copied.
assert [int(label) for batch in kept for label in batch[1]] == [place % 10 for place in range(50)]
view, copy = kept[0][0][3:5], kept[0][0][3:5].copy()
del loader, kept, batch, images, labels
assert (view == copy).all()  # Memory outlives the loader as long as a view of it lives.
""", f"idx:{folder}")


SAMPLES = """
import numpy
class Boxes:
    def __len__(self):
        return 6
    def __getitem__(self, index):
        sample = {"boxes": numpy.full((index, 4), index, numpy.float32), "text": "x" * index, "label": index,
                  "grid": numpy.full((index + 1, 2 * index + 1), index, numpy.int16)}
        return sample if index % 2 else {**sample, "score": numpy.float64(index)}
"""


def test_without_torch_fields_of_every_form_are_arrays_or_texts():
    without_torch(SAMPLES + """
from headrace._fields import Field
from headrace._loader import Loader
fields = {"score": Field("float64", (), optional=True), "boxes": Field("float32", (-1, 4)), "grid": Field("int16", (-1, -1))}
(batch,) = Loader(Boxes(), batch_size=6, shuffle=False, fields=fields)
boxes = batch["boxes"]
assert type(boxes.values) is type(boxes.offsets) is numpy.ndarray and boxes.offsets.tolist() == [0, 0, 1, 3, 6, 10, 15]
assert [part.shape for part in boxes] == [(index, 4) for index in range(6)] and (boxes[3] == 3).all()
assert [part.shape for part in batch["grid"]] == [(index + 1, 2 * index + 1) for index in range(6)]
assert batch["text"] == ["x" * index for index in range(6)]
assert batch.present("score").tolist() == [1, 0] * 3 and batch["label"].tolist() == list(range(6))
assert boxes.part(2, 4).values.shape == (5, 4)

seen = []
for _ in Loader(Boxes(), batch_size=6, shuffle=False, fields=fields, collate_fn=lambda samples: seen.extend(samples) or 1):
    pass
assert [sample["label"] for sample in seen] == list(range(6)) and type(seen[0]["label"]) is int
assert seen[1]["score"] is None and seen[4]["score"] == 4.0 and seen[3]["grid"].shape == (4, 7)
""")


def test_without_torch_pairs_are_collated_and_orders_and_states_go_on(folder):
    without_torch("""
import json, numpy
from headrace._loader import Loader
def paired(samples):
    return [(image.shape, type(label)) for image, label in samples]
for made in Loader(sys.argv[2], batch_size=16, collate_fn=paired):
    assert made[0] == ((1, 8, 8), int)
order = [3, 1, 2, 0, 5, 4, 7, 6]
class Drawn:
    def __init__(self):
        self.epochs = 0
    def __iter__(self):
        self.epochs += 1
        return iter(order[self.epochs:])
    def __len__(self):
        return len(order)
loader = Loader(sys.argv[2], sampler=Drawn(), batch_size=3)
batches = iter(loader)
first = next(batches)[1].tolist()
state = loader.state_dict()
assert first == [1, 2, 0] and type(state["indices"]) is numpy.ndarray
rest = [label for batch in batches for label in batch[1].tolist()]
resumed = Loader(sys.argv[2], sampler=Drawn(), batch_size=3)
resumed.load_state_dict(state)
assert [label for batch in resumed for label in batch[1].tolist()] == rest == [5, 4, 7, 6]
advice = loader.advice()
assert advice["seconds_a_sample"] and loader.not_applied == {}
assert Loader(sys.argv[2], pin_memory=True).not_applied == {"pin_memory": "no CUDA"}
""", f"idx:{folder}")


def test_bfloat16_without_torch_is_refused_by_the_fields_name(folder):
    without_torch("""
from headrace import errors
from headrace._core import Transform
from headrace._fields import Field
from headrace._loader import Loader
from headrace.transforms import CenterCrop, ToDtype

def refusal(make):
    try:
        make()
    except errors.UnsupportedError as error:
        return str(error)
    raise AssertionError("nothing was refused")

class Halves:
    def __len__(self):
        return 2
    def __getitem__(self, index):
        return {"weight": None, "y": index}

half = [CenterCrop(8), ToDtype("bfloat16", scale=True)]
wanted = "is bfloat16, which NumPy does not have, and torch is not installed"
assert f"the field image {wanted}" in refusal(lambda: Loader(sys.argv[2], transform={"dtype": "bfloat16"}))
assert f"the field image {wanted}" in refusal(lambda: Loader(sys.argv[2], transforms=half))
fields = {"weight": Field("bfloat16", (3,), optional=True)}
assert f"the field weight {wanted}" in refusal(lambda: Loader(Halves(), batch_size=2, fields=fields))
assert wanted in refusal(lambda: Transform(half))
""", f"idx:{folder}")


def test_a_transform_without_torch_gives_and_fills_arrays():
    pixels = numpy.random.default_rng(3).integers(0, 256, (9, 11, 3), dtype=numpy.uint8)
    chain = [{"name": "CenterCrop", "size": [7, 8]}, {"name": "ToDtype", "dtype": "float32", "scale": True}]
    told = without_torch(f"""
import numpy
from headrace._core import Transform
pixels = numpy.random.default_rng(3).integers(0, 256, (9, 11, 3), dtype=numpy.uint8)
for layout in ("nchw", "nhwc"):
    transform = Transform({chain!r}, layout=layout)
    made = transform.apply(pixels)
    assert type(made) is numpy.ndarray and made.shape == (3, 7, 8) and made.ctypes.data % 64 == 0
    out = numpy.zeros((7, 8, 3) if layout == "nhwc" else (3, 7, 8), numpy.float32)
    out = out.transpose(2, 0, 1) if layout == "nhwc" else out
    assert transform.apply(pixels, out=out) is out and (out == made).all() and out.strides == made.strides
    print(made.tobytes().hex())
""")
    assert told.split() == [hr.Transform(chain, layout=layout).apply(pixels).numpy().tobytes().hex() for layout in ("nchw", "nhwc")]


def test_without_torch_spans_are_recorded_and_read(tmp_path):
    without_torch("""
import json, pathlib, time
from headrace import errors
from headrace._core import StepPart, Trace, diagnose, span, write_report, write_step_events
from headrace._profile import profile_operation

@profile_operation("cut")
def cut(size):
    with StepPart("forward"):
        time.sleep(0.002)
    return size

folder = pathlib.Path(sys.argv[2])
with Trace(events_per_thread=1000) as trace:
    with span("outer"):
        assert [cut(size) for size in range(3)] == [0, 1, 2]
    try:
        with span("fails"):
            raise KeyError("mine")
    except KeyError:
        pass
    time.sleep(0.1)
spans = {entry["name"]: entry for entry in trace.summary()["operations"]}
assert spans["cut"]["count"] == spans["forward"]["count"] == 3
assert 0.006 <= spans["forward"]["total_s"] <= spans["cut"]["total_s"] <= spans["outer"]["total_s"]
assert trace.dropped == 0 and trace.memory()["resident"][0] > 0
trace.write(folder / "trace.json")
assert "fails: exception" in [event["name"] for event in json.loads((folder / "trace.json").read_text())["traceEvents"]]
for read in (trace.time_split, lambda: diagnose(trace, 16, loader_busy_s=1),
             lambda: write_report(folder / "report.html", trace, 16), lambda: write_step_events(folder / "events", trace)):
    try:
        read()
        raise AssertionError("there are no steps")
    except errors.CorruptDataError as error:
        assert "the trace holds 0 whole steps" in str(error)
assert sorted(path.name for path in folder.iterdir()) == ["trace.json"]
""", tmp_path)


def test_without_torch_the_machine_and_the_files_of_a_run_are_looked_at(tmp_path):
    without_torch("""
import pathlib
from headrace import errors
from headrace._core import doctor, free_memory, write_file
assert all(finding.keys() == {"code", "sentence", "advice"} for finding in doctor())
folder = pathlib.Path(sys.argv[2])
assert doctor(folder) and free_memory() > 0
write_file(str(folder / "text"), "ä")
assert (folder / "text").read_text(encoding="utf-8") == "ä"
try:
    doctor(folder / "nothing")
    raise AssertionError("nothing was refused")
except errors.NotFoundError:
    pass
""", tmp_path)


# ---- What it refuses and keeps ----


def test_what_python_raises_on_its_way_through_leaves_as_what_it_was(folder, monkeypatch):
    loader = hr.Loader(f"idx:{folder}", batch_size=16, num_workers=1)
    mine = KeyError("mine")

    def raises():
        raise mine

    monkeypatch.setattr(torch, "get_num_threads", raises)
    for _ in range(2):
        with pytest.raises(KeyError) as caught:
            loader.advice()
        assert caught.value is mine and caught.traceback[-1].name == "raises"


class Pairs:
    def __len__(self):
        return 40

    def __getitem__(self, index):
        return numpy.full((6, 6, 3), index, numpy.uint8), index % 3


@pytest.mark.parametrize("way", [pickle.dumps, copy.copy, copy.deepcopy], ids=["pickle", "copy", "deep copy"])
def test_what_is_of_this_process_is_neither_pickled_nor_copied_and_says_why(folder, way):
    loader = hr.Loader(f"idx:{folder}", batch_size=16, num_workers=1)
    epoch = iter(loader)
    request = epoch.request()
    for thing, reason in [(loader, r"Loader cannot be pickled or copied: its threads .*state_dict\(\) and load_state_dict\(\)"),
                          (epoch, "epoch of a headrace.Loader cannot be"), (request, r"requested .* take its result\(\)"),
                          (hr.Transform([hr.transforms.CenterCrop(4)]), "Transform cannot be pickled or copied: it is compiled")]:
        with pytest.raises(TypeError, match=reason):
            way(thing)
    assert request.result() is not None and len(list(epoch)) == 3  # Nothing was lost by asking.


def calls_of(folder):
    loader = hr.Loader(f"idx:{folder}", batch_size=16, num_workers=1, cache="none")
    list(loader)
    state = loader.state_dict()
    pixels, out = Pairs()[3][0], torch.zeros(3, 4, 4, dtype=torch.uint8)
    chain = [{"name": "CenterCrop", "size": 4}]
    transform = hr.Transform(chain)
    native = super(hr.Loader, loader)
    crop = {"size": 4}
    with hr.Trace() as trace:
        with hr.span("recorded"):
            time.sleep(0.001)
    watch = _core.LoopWatch()
    watch.add_model(torch.nn.Linear(2, 1))
    batch = (torch.zeros(4, 2), torch.zeros(4))
    return {
        "len": lambda: len(loader),
        "state_dict": native.state_dict,
        "load_state_dict": lambda: native.load_state_dict(state),
        "set_epoch": lambda: loader.set_epoch(1),
        "start_at": lambda: loader.start_at(1, 1),
        "sample": lambda: loader.sample(7),
        "statistics": loader.statistics,
        "explain": loader.explain,
        "decisions": loader.decisions,
        "advice": loader.advice,
        "set_num_workers": lambda: loader.set_num_workers(1),
        "set_prefetch_batches": lambda: loader.set_prefetch_batches(2),
        "set_cache": lambda: loader.set_cache("none"),
        "options": lambda: native.options,
        "applied": lambda: native.applied,
        "properties": lambda: (loader.batch_size, loader.samples, loader.num_classes, loader.worker_deaths,
                               loader.worker_processes),
        "what headrace asks": lambda: (loader._takes_orders, loader._data_options, loader._data_context()),
        "operation_table": lambda: _core.operation_table("CenterCrop", crop),
        "transform": lambda: transform.apply(pixels),
        "transform into": lambda: transform.apply(pixels, out=out),
        "transform's steps": transform.explain,
        "spans": recorded,
        "transform called": lambda: transform(pixels),
        "what a trace tells": lambda: (trace.summary(), trace.memory(), trace.dropped, trace.histogram("recorded"), hr.Trace.step(1)),
        "what a watch is told": lambda: tell_step(watch, batch),
        "a refusal": lambda: refused(loader, trace),
    }


def recorded():
    with hr.span("span"), _core.StepPart("forward"):
        pass


def tell_step(watch, batch):
    watch.data_begins()
    watch.data_ends(batch)
    watch.forward_begins(True)
    watch.forward_ends(True)
    watch.backward_begins()
    watch.backward_ends()
    watch.optimizer_begins()
    watch.optimizer_ends()


def refused(loader, trace):
    try:
        loader.sample(1000)
    except IndexError:
        pass
    try:
        loader.start_at(-1)
    except hr.errors.InvalidArgumentError:
        pass
    try:
        trace.time_split()
    except hr.errors.CorruptDataError:
        pass


# What of tests/bound_calls_test.py's names each calls.
CALLS = {
    "len": ["Loader.__len__"],
    "state_dict": ["Loader.state_dict"],
    "load_state_dict": ["Loader.load_state_dict"],
    "set_epoch": ["Loader.set_epoch"],
    "start_at": ["Loader.start_at"],
    "sample": ["Loader.sample"],
    "statistics": ["Loader.statistics"],
    "explain": ["Loader.explain"],
    "decisions": ["Loader.decisions"],
    "advice": ["Loader.advice"],
    "set_num_workers": ["Loader.set_num_workers"],
    "set_prefetch_batches": ["Loader.set_prefetch_batches"],
    "set_cache": ["Loader.set_cache"],
    "options": ["Loader.options"],
    "applied": ["Loader.applied"],
    "properties": ["Loader.batch_size", "Loader.samples", "Loader.num_classes", "Loader.worker_deaths", "Loader.worker_processes"],
    "what headrace asks": [],
    "operation_table": ["operation_table"],
    "transform": ["Transform.apply"],
    "transform into": [],
    "transform's steps": ["Transform.explain"],
    "spans": ["span", "span.__enter__", "StepPart", "StepPart.__enter__"],
    "transform called": ["Transform.__call__"],
    "what a trace tells": ["Trace.summary", "Trace.memory", "Trace.dropped", "Trace.histogram", "Trace.step"],
    "what a watch is told": ["LoopWatch.data_begins", "LoopWatch.data_ends", "LoopWatch.forward_begins", "LoopWatch.forward_ends",
                             "LoopWatch.backward_begins", "LoopWatch.backward_ends", "LoopWatch.optimizer_begins", "LoopWatch.optimizer_ends"],
    "a refusal": ["Trace.time_split"],
    "batches": ["LoaderEpoch.__next__", "LoaderEpoch.request", "LoaderRequest.done", "LoaderRequest.wait", "LoaderRequest.result"],
}
BATCHES = "batches"  # By a test of its own.


@pytest.mark.parametrize("name", [name for name in CALLS if name != BATCHES])
def test_100000_calls_leave_nothing_behind(folder, name):
    calls = calls_of(folder)
    assert [*calls, BATCHES] == list(CALLS)
    assert blocks_left(calls[name]) < 200


def test_100000_batches_and_epochs_leave_nothing_behind(folder):
    loader = hr.Loader(f"idx:{folder}", batch_size=1, num_workers=1)

    def epoch():
        for batch in loader:
            batch["image"], batch.present("image")
        batches, taken = iter(loader), object()
        while taken is not None:
            request = batches.request()
            request.wait()
            assert request.done()
            taken = request.result()

    assert blocks_left(epoch, 2000, warm_up=40) < 200


def test_samples_of_a_users_own_leave_nothing_behind():
    loader = hr.Loader(Pairs(), batch_size=40, num_workers=2)
    assert blocks_left(lambda: list(loader), 2500, warm_up=50) < 500


def test_memory_that_dies_within_a_backward_goes_home(folder):
    """What dies within a backward does so while that has let go of the lock."""
    loader = hr.Loader(f"idx:{folder}", batch_size=16, num_workers=1)
    weight = torch.ones(1, requires_grad=True)

    def run(epochs):
        for _ in range(epochs):
            for images, _ in loader:
                loss = (images * weight).sum()
                del images  # The graph alone holds it now.
                loss.backward()
        return loader.statistics()["pool_bytes"]

    assert run(50) == run(50)  # Batches that do not come home make the pool grow.


class Slow:
    """Samples that come when they are let."""

    def __init__(self):
        self.open = threading.Event()

    def __len__(self):
        return 8

    def __getitem__(self, index):
        if index > 1:
            self.open.wait(30)
        return {"y": index}


ASKED = {"next": next, "result": lambda epoch: epoch.request().result(), "wait": lambda epoch: epoch.request().wait()}


@pytest.mark.parametrize("ask", ASKED.values(), ids=ASKED)
def test_a_thread_counts_while_another_waits_for_a_batch(ask):
    source = Slow()
    loader = hr.Loader(source, batch_size=8, num_workers=1)
    counted, waiting = [0], threading.Event()

    def count():
        waiting.wait()
        for _ in range(1000):
            counted[0] += 1
            time.sleep(0)
        source.open.set()

    thread = threading.Thread(target=count)
    thread.start()
    epoch = iter(loader)
    waiting.set()
    ask(epoch)
    assert counted[0] == 1000  # It counted on until it let the samples come.
    thread.join()


def test_an_epoch_and_its_loader_can_be_referred_to_weakly(folder):
    import weakref

    loader = hr.Loader(f"idx:{folder}", batch_size=16)
    epoch = iter(loader)
    references = [weakref.ref(loader), weakref.ref(epoch)]
    assert all(reference() is not None for reference in references)
    del loader, epoch
    gc.collect()
    assert all(reference() is None for reference in references)


def test_a_python_exception_of_a_source_keeps_its_class_and_says_which_sample():
    class Broken(Pairs):
        def __getitem__(self, index):
            if index == 11:
                raise LookupError("no such image")
            return super().__getitem__(index)

    for workers in (0, 2):
        loader = hr.Loader(Broken(), batch_size=8, shuffle=False, num_workers=workers)
        for _ in range(2):  # It is told again in the next epoch.
            with pytest.raises(LookupError, match="no such image") as caught:
                list(loader)
            assert any("Broken[11]" in note for note in caught.value.__notes__)


@pytest.mark.parametrize("name", ["training", "persistent_workers", "enable_async_data_loading"])
def test_a_text_is_no_truth(name, folder):
    with pytest.raises(hr.errors.InvalidArgumentError, match=f"{name}: wanted True or False, found 'false'"):
        hr.Loader(f"idx:{folder}", batch_size=16, **{name: "false"})
    hr.Loader(f"idx:{folder}", batch_size=16, **{name: numpy.bool_(True)})


CONTEXT = {"live": True, "process": {}, "cores": 2, "refused": {}, "refused_values": {}, "run_steps": None, "budget_s": 0.0, "fixed": [],
           "intra_op_threads": 1, "fused": False, "drops_out": False, "has_replacement": False, "replacement_draws": False,
           "workers_change_batches": False, "loader_type": "list", "loader": None, "dataloader": None}
OPTIONS = {"allow": "rounding", "gain_min": 0.02, "only": [], "fixed": [], "frozen": False, "spent_s": 0.0}
WRONG = {
    "process": (["a"], "texts by key, found ['a']"),
    "run_steps": ([1], "a whole number or None, found [1]"),
    "refused": ({"data": 3}, "texts by key, found {'data': 3}"),
    "refused_values": ({"data": "a"}, "texts by key and value, found {'data': 'a'}"),
    "dataloader": ((1,), "its workers and the batches ahead, found (1,)"),
    "fixed": (3, "texts, found 3"),
}


@pytest.mark.parametrize("key", WRONG)
def test_a_value_of_another_kind_is_named_by_its_key(key):
    assert _core.offer(CONTEXT, "").candidates
    value, sentence = WRONG[key]
    with pytest.raises(hr.errors.InvalidArgumentError) as caught:
        _core.offer({**CONTEXT, key: value}, "")
    assert str(caught.value) == f"offer: {key}: wanted {sentence}"


def test_an_option_of_a_live_tuner_of_another_kind_is_named():
    with pytest.raises(hr.errors.InvalidArgumentError) as caught:
        _core.LiveTuner(None, [], {**OPTIONS, "only": 3}, 0, {})
    assert str(caught.value) == "autotune: only: wanted texts, found 3"
