"""headrace.Loader over sources written in Python, read by threads and by worker processes."""

import os
import re
import select
import signal
import subprocess
import sys
import textwrap
import threading
import time

import numpy
import pytest
import torch
import user_sources as sources

import headrace as hr
from headrace import errors

OPTIONS = {"batch_size": 5, "seed": 3}
RANDOM = {"flip_probability": 0.5, "pad": 1}


def batches(source, **options) -> list[tuple[torch.Tensor, torch.Tensor]]:
    return [(images.clone(), labels.clone()) for images, labels in hr.Loader(source, **{**OPTIONS, **options})]


KINDS = ["thread", "process"]


def same(ours, theirs) -> bool:
    return len(ours) == len(theirs) > 0 and all(
        torch.equal(a, c) and torch.equal(b, d) for (a, b), (c, d) in zip(ours, theirs))


def test_images_and_labels_are_those_of_the_source():
    source = sources.Images()
    for kind in KINDS:
        loader = hr.Loader(source, batch_size=24, shuffle=False, num_workers=2, worker_type=kind)
        images, labels = next(iter(loader))
        expected = numpy.stack([source.pixels(index) for index in range(24)]).transpose(0, 3, 1, 2)
        assert torch.equal(images, torch.from_numpy(expected).float().div(255))
        assert labels.tolist() == [index % 4 for index in range(24)]
        assert loader.samples == 24 and loader.num_classes is None and loader.options["source"] is source


def test_threads_and_processes_give_the_same_bytes():
    reference = batches(sources.Images(), num_workers=0, transform=RANDOM)
    for workers in (1, 2, 7):
        for kind in KINDS:
            found = batches(sources.Images(), transform=RANDOM, num_workers=workers, worker_type=kind)
            assert same(found, reference), (workers, kind)


@pytest.mark.parametrize("kind", [sources.Strided, sources.Tensors, sources.WithFacts])
def test_kinds_of_pixels_give_the_same_bytes(kind):
    reference = batches(sources.Images())
    assert same(batches(kind()), reference) and same(batches(kind(), num_workers=1, worker_type="process"), reference)


def test_grey_images_have_one_channel():
    images, _ = batches(sources.Grey(), shuffle=False)[0]
    assert images.shape == (5, 1, 6, 5)
    assert torch.equal(images[3, 0].mul(255), torch.from_numpy(sources.Grey().pixels(3).copy()).float())


def test_encoded_images_are_decoded_by_the_loader():
    transform = {"size": 5}
    reference = batches(sources.Images(), transform=transform)
    assert same(batches(sources.Encoded(), transform=transform), reference)
    assert same(batches(sources.Encoded(), transform=transform, num_workers=2, worker_type="process", cache="decoded"), reference)
    with pytest.raises(errors.InvalidArgumentError, match="transform.size must be set"):
        hr.Loader(sources.Encoded())


def test_sizes_may_differ_where_a_transform_makes_them_one():
    reference = batches(sources.Sizes(), transform={"size": 3})
    assert reference[0][0].shape == (5, 3, 3, 3)
    assert same(batches(sources.Sizes(), transform={"size": 3}, num_workers=2, worker_type="process"), reference)
    with pytest.raises(errors.CorruptDataError, match=r"Sizes\[\d+\]: \d+ x 9 pixels of 3 channels; wanted 4 x 9 of 3, "
                                                      "which .* a batch holds images of one size"):
        batches(sources.Sizes())


def test_a_cache_of_decoded_images_asks_the_source_once():
    asked = []

    class Counted(sources.Images):
        def __getitem__(self, index):
            asked.append(index)
            return super().__getitem__(index)

    loader = hr.Loader(Counted(), **OPTIONS, cache="decoded", transform=RANDOM)
    before = len(asked)  # Opening looks at the first sample.
    reference = hr.Loader(sources.Images(), **OPTIONS, transform=RANDOM)
    for _ in range(3):
        ours = [(images.clone(), labels.clone()) for images, labels in loader]
        assert same(ours, [(images.clone(), labels.clone()) for images, labels in reference])
    assert sorted(asked[before:]) == list(range(24)) and loader.statistics()["cache_hits"] == 2 * 24


def test_a_list_is_a_source():
    images = [(numpy.full((2, 2, 1), i, numpy.uint8), i) for i in range(4)]
    images, labels = batches(images, batch_size=4, shuffle=False)[0]
    assert labels.tolist() == [0, 1, 2, 3] and images[3].mul(255).unique().tolist() == [3]


def test_facts_are_told_by_attributes():
    loader = hr.Loader(sources.WithFacts(), **OPTIONS)
    assert loader.num_classes == 4
    wrong = sources.WithFacts()
    wrong.labels = [3] * 24
    with pytest.raises(errors.CorruptDataError, match=r"label 0; the source's labels say 3"):
        batches(wrong, shuffle=False)
    for labels, words in (([0] * 23, "23 labels for 24 samples"), ([4] * 24, "label 4 at 0; wanted 0 to 3")):
        wrong.labels = labels
        for kind in KINDS:
            with pytest.raises(errors.InvalidArgumentError, match=words):
                hr.Loader(wrong, num_workers=1, worker_type=kind)
    wrong.labels = ["a"] * 24
    with pytest.raises(TypeError, match="labels of WithFacts"):
        hr.Loader(wrong)


def test_states_go_on_with_another_number_of_workers():
    reference = batches(sources.Images())
    loader = hr.Loader(sources.Images(), num_workers=2, worker_type="process", **OPTIONS)
    iterator = iter(loader)
    next(iterator)
    state = loader.state_dict()
    for kind in KINDS:
        resumed = hr.Loader(sources.Images(), num_workers=1, worker_type=kind, **OPTIONS)
        resumed.load_state_dict(state)
        assert same([(a.clone(), b.clone()) for a, b in resumed], reference[1:])
    with pytest.raises(errors.InvalidArgumentError, match="fingerprint"):
        hr.Loader(sources.Grey(), **OPTIONS).load_state_dict(state)


def test_the_number_of_workers_changes_within_an_epoch_without_changing_a_byte():
    reference = batches(sources.Images())
    loader = hr.Loader(sources.Images(), num_workers=1, worker_type="process", **OPTIONS)
    found = []
    for place, (images, labels) in enumerate(loader):
        found.append((images.clone(), labels.clone()))
        loader.set_num_workers((3, 1, 2)[place % 3])
        assert loader.statistics()["num_workers"] == loader.options["num_workers"] == (3, 1, 2)[place % 3]
    assert len(found) == 5 and same(found, reference) and loader.options["num_workers"] == 1
    for wrong in (0, "auto"):
        with pytest.raises(errors.InvalidArgumentError, match="processes read this source; wanted a number of at least 1"):
            loader.set_num_workers(wrong)
    with pytest.raises(errors.InvalidArgumentError, match="worker processes; wanted 1 to 256"):
        loader.set_num_workers(257)
    assert loader.options["num_workers"] == 1


def test_workers_are_other_processes_and_live_through_epochs():
    loader = hr.Loader(sources.Remembers(), num_workers=1, worker_type="process", shuffle=False, batch_size=24)
    processes = loader.worker_processes
    assert len(processes) == 1 and os.getpid() not in processes
    for epoch in range(5):
        images, labels = next(iter(loader))
        # One sample was given before the first, to see what images are like.
        assert sorted(labels.tolist()) == list(range(24 * epoch + 1, 24 * epoch + 25))
    assert (images[:, 0, 0, 0] == 0).all(), "a worker imports torch only where the source does"
    assert loader.worker_processes == processes
    assert loader.statistics()["workers_started"] == 1 and loader.statistics()["workers_died"] == 0
    del loader, images, labels
    for process in processes:
        with pytest.raises(ProcessLookupError):
            os.kill(process, 0)




@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("persistent", [True, False])
def test_workers_live_through_epochs_with_what_they_keep_or_are_new_in_each(kind, persistent, tmp_path):
    loader = hr.Loader(sources.Ids(tmp_path, 2), batch_size=6, persistent_workers=persistent, num_workers=2, worker_type=kind)
    epochs = [{reader for _, labels in loader for reader in labels.tolist()} for _ in range(5)]
    assert len(epochs[0]) == 2 and not any(os.getpid() in readers for readers in epochs)
    expected = 2 if persistent else 5 * 2
    assert loader.statistics()["workers_started"] == expected
    assert len(list(tmp_path.iterdir())) == expected, "what a worker opened stays open as long as it lives"
    assert not persistent or all(readers <= epochs[0] for readers in epochs)
    assert ("persistent_workers", str(persistent).lower(), str(persistent).lower(), "") in loader.applied


def inits_of(folder, count: int) -> list[int]:
    """The numbers that user_sources.Init was called with, each in a process of its own. One worker may read a whole epoch before
    another has started."""
    deadline = time.monotonic() + 60
    while len(list(folder.iterdir())) < count:
        assert time.monotonic() < deadline
        time.sleep(0.005)
    calls = [file.read_text().split() for file in folder.iterdir()]
    assert len({process for process, _ in calls}) == len(calls) and str(os.getpid()) not in {process for process, _ in calls}
    return sorted(int(number) for _, number in calls)


def test_worker_init_fn_is_called_with_its_number_in_each_worker_before_it_reads(tmp_path):
    loader = hr.Loader(sources.Initialised(), num_workers=3, worker_type="process", shuffle=False, batch_size=24, worker_init_fn=sources.Init(tmp_path))
    (_, labels), = loader
    list(loader)
    assert inits_of(tmp_path, 3) == [0, 1, 2]
    assert set(labels.tolist()) <= {0, 1, 2}, "the source sees what worker_init_fn did"


def test_a_worker_in_the_place_of_another_has_its_number(tmp_path):
    (tmp_path / "calls").mkdir()
    source = sources.Once("dies", tmp_path / "died")
    loader = hr.Loader(source, num_workers=2, worker_type="process", worker_init_fn=sources.Init(tmp_path / "calls"), **OPTIONS)
    found = [(images.clone(), labels.clone()) for images, labels in loader]
    assert same(found, batches(sources.Images()))
    assert loader.statistics()["workers_died"] == 1
    assert inits_of(tmp_path / "calls", 3) in ([0, 0, 1], [0, 1, 1])


def test_a_worker_init_fn_that_fails_or_cannot_be_called_is_named(tmp_path):
    with pytest.raises(errors.InvalidArgumentError, match=r"Images: worker 0 .*FileNotFoundError: .*gone"):
        hr.Loader(sources.Images(), num_workers=1, worker_type="process", worker_init_fn=sources.Init(tmp_path / "gone"))
    with pytest.raises(errors.InvalidArgumentError, match="worker_init_fn cannot go to a worker process: .*lambda"):
        hr.Loader(sources.Images(), num_workers=1, worker_type="process", worker_init_fn=lambda number: None)
    with pytest.raises(errors.InvalidArgumentError, match="worker_init_fn is a int; wanted something to call"):
        hr.Loader(sources.Images(), num_workers=1, worker_type="process", worker_init_fn=3)
    with pytest.raises(errors.InvalidArgumentError, match="threads of this process read the source.* wanted worker_type \"process\""):
        hr.Loader(sources.Images(), num_workers=2, worker_init_fn=sources.Init(tmp_path))


def test_workers_of_an_epoch_that_was_left_early_are_gone():
    loader = hr.Loader(sources.Images(), num_workers=2, worker_type="process", persistent_workers=False, batch_size=1)
    iterator = iter(loader)
    next(iterator)
    processes = loader.worker_processes
    assert len(processes) == 2
    del iterator
    assert loader.worker_processes == []
    for process in processes:
        with pytest.raises(ProcessLookupError):
            os.kill(process, 0)
    assert len(list(loader)) == 24 and loader.statistics()["workers_started"] == 4


@pytest.mark.parametrize("kind", KINDS)
def test_batches_in_flight_are_workers_times_prefetch_factor(kind, tmp_path):
    loader = hr.Loader(sources.NotedImages(tmp_path), batch_size=1, shuffle=False, prefetch_factor=3, num_workers=2, worker_type=kind)
    batches = iter(loader)
    for delivered in (1, 2, 3):
        next(batches)
        deadline = time.monotonic() + 60
        while len(list(tmp_path.iterdir())) != delivered + 2 * 3:
            assert time.monotonic() < deadline
            time.sleep(0.005)
    assert ("prefetch_factor", "3", "3", "") in loader.applied


@pytest.mark.parametrize("options", [{"num_workers": 2}, {"num_workers": 2, "worker_type": "process"}])
def test_samples_are_read_at_the_same_time(options, tmp_path):
    # Samples 10 and 11 each wait until the other has begun.
    found = batches(sources.Meets(tmp_path), batch_size=1, shuffle=False, **options)
    assert [labels.item() for _, labels in found] == [index % 4 for index in range(24)]


def test_what_is_raised_keeps_its_type_and_trace_and_names_the_sample():
    with pytest.raises(sources.Water) as caught:
        batches(sources.SampleFive("raises"))
    assert caught.value.args == ("too much of it", 7)
    assert [entry.name for entry in caught.traceback][-2:] == ["__getitem__", "raises"]
    assert any("SampleFive[5]" in note for note in caught.value.__notes__)
    with pytest.raises(errors.CorruptDataError) as caught:
        batches(sources.SampleFive("raises"), num_workers=2, worker_type="process")
    text = str(caught.value)
    assert re.search(r"SampleFive\[5\]: user_sources.Water: \('too much of it', 7\)", text)
    assert "Traceback in worker process" in text and "user_sources.py" in text and "in raises" in text


@pytest.mark.parametrize("sample, words", [
    (None, "a sample is a NoneType; wanted (image, label)"),
    ((numpy.zeros((6, 5, 3), "u1"),), "a sample is a tuple of 1"),
    ((numpy.zeros((6, 5, 3), "f4"), 1), "an array of float32; wanted uint8"),
    ((torch.zeros(6, 5, 3), 1), "a tensor of torch.float32; wanted torch.uint8"),
    ((numpy.zeros((3, 6, 5), "u1"), 1), "an image has 5 channels, the last of its shape (3, 6, 5); wanted 1 or 3"),
    ((numpy.zeros((6, 5, 4), "u1"), 1), "an image has 4 channels, the last of its shape (6, 5, 4); wanted 1 or 3"),
    ((torch.zeros(6, 5, 2, dtype=torch.uint8), 1), "an image has 2 channels, the last of its shape (6, 5, 2); wanted 1 or 3"),
    ((numpy.zeros((6, 5), "u1"), 1), "6 x 5 pixels of 1 channels; wanted 6 x 5 of 3"),
    ((numpy.zeros((1, 6, 5, 3), "u1"), 1), "shape (1, 6, 5, 3); wanted"),
    ((numpy.zeros((0, 5, 3), "u1"), 1), "shape (0, 5, 3); wanted"),
    ((numpy.zeros((6, 6, 3), "u1"), 1), "6 x 6 pixels of 3 channels; wanted 6 x 5 of 3"),
    ((numpy.zeros((6, 5, 3), "u1"), "cat"), "a label is a str; wanted an integer, as the first sample had"),
    ((numpy.zeros((6, 5, 3), "u1"), -1), "label -1; wanted 0 to"),
    ((numpy.zeros((6, 5, 3), "u1"), 1 << 70), "wanted 64 bits"),
    ((b"GIF89a", 1), "neither a JPEG nor a PNG file"),
    (("file.jpg", 1), "an image is a str; wanted a uint8 NumPy array"),
])
def test_samples_that_are_none_are_named(sample, words):
    for kind in KINDS:
        with pytest.raises(Exception, match=re.escape(words)) as caught:
            batches(sources.SampleFive("gives", sample), num_workers=1, worker_type=kind)
        names = [str(caught.value), *getattr(caught.value, "__notes__", [])]
        assert any("SampleFive[5]" in name for name in names), names


def test_a_source_whose_every_image_is_none_is_refused_by_its_first_sample():
    source = sources.EverySample("gives", (b"GIF89a", 1))
    with pytest.raises(ValueError, match="neither a JPEG nor a PNG file") as caught:
        hr.Loader(source)
    assert any("sample 0" in note for note in caught.value.__notes__)
    with pytest.raises(errors.InvalidArgumentError, match=r"neither a JPEG nor a PNG file(.|\n)*sample 0"):
        hr.Loader(source, num_workers=1, worker_type="process")


def test_every_form_of_input_gives_the_same_values_in_every_type_and_layout():
    for grey in (False, True):
        def image(index):
            return sources.Images().pixels(index)[:, :, 1:2] if grey else sources.Images().pixels(index)

        forms = {
            "array": lambda index: numpy.ascontiguousarray(image(index)),
            "strided array": lambda index: image(index).repeat(2, 0)[::2],
            "reversed array": lambda index: numpy.ascontiguousarray(image(index)[::-1])[::-1],
            "Fortran array": lambda index: numpy.asfortranarray(image(index)),
            "tensor": lambda index: torch.from_numpy(numpy.ascontiguousarray(image(index))),
            "permuted tensor": lambda index: torch.from_numpy(image(index).transpose(2, 0, 1).copy()).permute(1, 2, 0),
        }
        if grey:
            forms["array without channels"] = lambda index: image(index)[:, :, 0]
            forms["tensor without channels"] = lambda index: torch.from_numpy(image(index)[:, :, 0].copy())
        pixels = torch.from_numpy(numpy.stack([image(index) for index in range(24)])).permute(0, 3, 1, 2)
        for dtype, expected in (("uint8", pixels), ("float32", pixels.float().div(255)),
                                ("bfloat16", pixels.float().div(255).bfloat16())):
            for layout in ("nchw", "nhwc"):
                for name, form in forms.items():
                    source = [(form(index), index) for index in range(24)]
                    transform = {"dtype": dtype, "layout": layout}
                    images, _ = next(iter(hr.Loader(source, batch_size=24, shuffle=False, transform=transform)))
                    assert torch.equal(images, expected), (name, dtype, layout, grey)
                    assert layout == "nchw" or images.is_contiguous(memory_format=torch.channels_last)


def test_samples_that_are_none_obey_on_corrupt():
    for options in ({}, {"num_workers": 2, "worker_type": "process"}):
        for source in (sources.SampleFive("raises"), sources.SampleFive("gives", None)):
            loader = hr.Loader(source, on_corrupt="zero", split="test", batch_size=24, **options)
            batch = next(iter(loader))
            assert batch["valid"].tolist() == [index != 5 for index in range(24)]
            assert loader.statistics()["corrupt"] == 1


def test_labels_outside_the_classes_are_named():
    source = sources.SampleFive("gives", (sources.Images().pixels(5), 4))
    source.classes = 4
    for kind in KINDS:
        with pytest.raises(errors.CorruptDataError, match=r"SampleFive\[5\]: label 4; wanted 0 to 3"):
            batches(source, num_workers=1, worker_type=kind)


def test_lengths_that_make_no_sense_are_refused():
    for kind in KINDS:
        with pytest.raises(errors.InvalidArgumentError, match="no samples"):
            hr.Loader(sources.Lengths(0), num_workers=1, worker_type=kind)
        with pytest.raises(ValueError, match="__len__"):
            hr.Loader(sources.Lengths(-1), num_workers=1, worker_type=kind)
    longer = hr.Loader([sources.Images()[0]] * 3, batch_size=1, shuffle=False, num_workers=0)
    longer.options["source"].clear()
    with pytest.raises(IndexError):
        list(longer)


def test_objects_that_are_no_source_are_refused():
    for other in (None, 7, {"a": 1}, iter([])):
        with pytest.raises(errors.InvalidArgumentError, match='wanted a str as data.source has it, such as "folder:DIR", or an object'):
            hr.Loader(other)
    with pytest.raises(errors.InvalidArgumentError, match='num_workers is "auto"; wanted a number with worker_type "process"'):
        hr.Loader(sources.Images(), num_workers=-1, worker_type="process")
    with pytest.raises(errors.InvalidArgumentError, match='worker_type is "fibre"; wanted "thread" or "process"'):
        hr.Loader(sources.Images(), worker_type="fibre")
    none = hr.Loader(sources.Images(), num_workers=0, worker_type="process")
    assert (none.options["num_workers"], none.options["worker_type"]) == (0, "process")
    with pytest.raises(errors.InvalidArgumentError, match="made with no process"):
        none.set_num_workers(2)
    with pytest.raises(errors.InvalidArgumentError, match="unknown key workers, which is now num_workers with worker_type"):
        hr.Loader(sources.Images(), workers=2)
    with pytest.raises(errors.InvalidArgumentError, match="worker_timeout_s is 0"):
        hr.Loader(sources.Images(), num_workers=1, worker_type="process", worker_timeout_s=0)
    with pytest.raises(errors.InvalidArgumentError, match="processes are for sources written in Python"):
        hr.Loader("idx:/nowhere", num_workers=2, worker_type="process")


def test_sources_that_cannot_be_sent_are_named():
    class Local(sources.Images):
        pass

    holder = sources.Images()
    holder.function = lambda image: image
    for source, words in ((Local(), "Local"), (holder, "lambda")):
        with pytest.raises(errors.InvalidArgumentError, match=f"cannot go to a worker process: .*{words}"):
            hr.Loader(source, num_workers=1, worker_type="process")
    with pytest.raises(errors.InvalidArgumentError, match="no module named water"):
        hr.Loader(sources.Unready(), num_workers=1, worker_type="process")


def test_a_worker_that_dies_is_named_and_its_sample_read_again(tmp_path):
    loader = hr.Loader(sources.Once("dies", tmp_path / "died"), num_workers=2, worker_type="process", **OPTIONS)
    found = [(images.clone(), labels.clone()) for images, labels in loader]
    assert same(found, batches(sources.Images()))
    assert loader.statistics()["workers_died"] == 1
    assert re.fullmatch(r"worker \d \(process \d+\) was killed by SIGKILL while it read user_sources.Once\[5\]",
                        loader.worker_deaths[0])
    for act, words in (("dies", "was killed by SIGKILL"), ("leaves", "ended with exit status 3")):
        with pytest.raises(errors.CorruptDataError, match=rf"SampleFive\[5\]: two worker processes were lost on it: .*{words}"):
            batches(sources.SampleFive(act), num_workers=2, worker_type="process")


def growth_after_the_first_batch(batches, processes) -> int:
    """Bytes by which what the processes have written to grows, each for itself, from the first batch to the end of the epoch. A
    page of a library is a process' own, too, once no other one has the library open."""

    def private() -> int:
        lines = [line for process in processes() for line in open(f"/proc/{process}/smaps_rollup").read().splitlines()]
        return sum(int(line.split()[1]) * 1024 for line in lines if line.startswith("Private_Dirty"))

    next(batches)
    before = private()
    assert len(list(batches)) == 23
    return private() - before


def test_workers_do_not_grow_by_reading_what_the_source_holds():
    source = sources.Names()
    # One worker: a second one might still be starting, and growing by that, when the first batch is there.
    loader = hr.Loader(source, num_workers=1, worker_type="process", batch_size=1)
    assert growth_after_the_first_batch(iter(loader), lambda: loader.worker_processes) < 1_000_000
    # A forked one copies each page whose strings it touches: 4 MB and more of the 20 that there are.
    theirs = torch.utils.data.DataLoader(source, batch_size=1, num_workers=1, collate_fn=len, persistent_workers=True)
    forked = iter(theirs)
    assert growth_after_the_first_batch(forked, lambda: [worker.pid for worker in forked._workers]) > 4_000_000


FORKS = """
import ctypes, torch, user_sources
import headrace as hr

forks = []
seen = ctypes.CFUNCTYPE(None)(lambda: forks.append(1))  # As CUDA asks to be told, to refuse the child.
assert getattr(ctypes.CDLL(None), "__register_atfork")(seen, None, None, None) == 0
loader = hr.Loader(user_sources.Images(), num_workers=2, worker_type="process", batch_size=12)
list(loader)
print(loader.statistics()["workers_started"], len(forks))
print(len(list(torch.utils.data.DataLoader(user_sources.Images(), num_workers=2, collate_fn=len))), len(forks))
"""


def test_workers_are_not_forked_from_a_process_that_may_have_touched_cuda():
    done = run_python("-c", FORKS)
    assert done.stdout == "2 0\n24 2\n", done.stderr


def test_source_whose_every_sample_kills_is_an_error_at_once():
    with pytest.raises(errors.InternalError, match="ended with exit status 3 before it was ready"):
        hr.Loader(sources.EverySample("leaves"), num_workers=2, worker_type="process")


def test_a_worker_that_hangs_is_ended_by_the_timeout(tmp_path):
    reference = batches(sources.Images())
    for limit in (4, 90):  # The limit is for the start of a worker, too, which may take longer where other programs have the cores.
        hung = tmp_path / f"hung {limit}"
        try:
            loader = hr.Loader(sources.Once("hangs", hung), num_workers=1, worker_type="process", worker_timeout_s=limit, **OPTIONS)
            found = [(images.clone(), labels.clone()) for images, labels in loader]
        except hr.Error as error:
            assert limit == 4 and "gave no answer within worker_timeout_s = 4 s" in str(error)
            continue
        break
    assert same(found, reference)
    words = f"gave no answer within worker_timeout_s = {limit} s and was killed while it read user_sources.Once[5]"
    assert any(words in death for death in loader.worker_deaths)


def test_what_a_source_prints_goes_to_stdout():
    program = "import user_sources, headrace as hr; print(sum(len(b[1]) for b in hr.Loader(user_sources.Prints(), num_workers=2, worker_type='process')))"
    done = run_python("-c", program)
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    assert "24" in lines and lines.count("and one past Python") >= 24


def run_python(*arguments, **options) -> subprocess.CompletedProcess:
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(path for path in sys.path if path)}
    return subprocess.run([sys.executable, *arguments], env=environment, capture_output=True, text=True, timeout=300, **options)


SCRIPT = """
    import numpy
    import headrace as hr

    class Mine:
        def __len__(self):
            return 6
        def __getitem__(self, index):
            return numpy.full((2, 2, 3), index, numpy.uint8), index

    {guard}
        loader = hr.Loader(Mine(), num_workers=2, worker_type="process", batch_size=6, shuffle=False)
        print(next(iter(loader))[1].tolist())
"""


def test_a_script_may_define_its_source_itself(tmp_path):
    script = tmp_path / "train.py"
    script.write_text(textwrap.dedent(SCRIPT.format(guard='if __name__ == "__main__":')))
    done = run_python(str(script))
    assert done.stdout == "[0, 1, 2, 3, 4, 5]\n", done.stderr
    script.write_text(textwrap.dedent(SCRIPT.format(guard="if True:")))
    done = run_python(str(script))
    assert done.returncode != 0 and 'put that under if __name__ == "__main__":' in done.stderr


def test_a_source_of_an_interactive_session_is_refused():
    done = run_python("-c", textwrap.dedent(SCRIPT.format(guard="if True:")))
    assert "needs Mine, which is defined in an interactive session" in done.stderr


def test_no_worker_outlives_a_killed_parent():
    program = ("import os, signal, user_sources, headrace as hr\n"
               "loader = hr.Loader(user_sources.SampleFive('hangs'), num_workers=3, worker_type='process')\n"
               "iterator = iter(loader)\n"
               "print(*loader.worker_processes, flush=True)\n"
               "os.kill(os.getpid(), signal.SIGKILL)\n")
    done = run_python("-c", program)
    assert done.returncode == -signal.SIGKILL
    processes = [int(process) for process in done.stdout.split()]
    assert len(processes) == 3
    for process in processes:
        try:
            watch = os.pidfd_open(process)
        except ProcessLookupError:
            continue
        assert select.select([watch], [], [], 60)[0], f"process {process} lives on"
        os.close(watch)


def test_ctrl_c_ends_a_loop_whose_workers_hang(ctrl_c, tmp_path):
    hung = tmp_path / "hung"
    loader = hr.Loader(sources.Once("hangs", hung), num_workers=1, worker_type="process", batch_size=1, shuffle=False)

    def interrupt():
        while not hung.exists():
            time.sleep(0.01)
        time.sleep(0.2)
        os.kill(os.getpid(), signal.SIGINT)

    # The sample may be read before those in front of it: which batch is waited for is not known.
    thread = threading.Thread(target=interrupt, daemon=True)
    thread.start()
    with pytest.raises(KeyboardInterrupt):
        for _ in loader:
            pass
    thread.join()
    loader.start_at(1)
    assert len(next(iter(loader))[1]) == 1, "a new epoch may begin"


def test_a_signals_function_may_ask_where_a_waiting_loader_stands():
    taken, answered, states = threading.Event(), threading.Event(), []

    class Signals(sources.Images):
        def __getitem__(self, index):
            if index == 5:
                assert taken.wait(60)  # Threads read ahead of the first batch too.
                os.kill(os.getpid(), signal.SIGUSR1)
                assert answered.wait(60)  # While the main thread waits for this sample.
            return super().__getitem__(index)

    loader = hr.Loader(Signals(), batch_size=3, shuffle=False)
    before = signal.signal(signal.SIGUSR1, lambda *_: (states.append(loader.state_dict()), answered.set()))
    try:
        batches = iter(loader)
        next(batches)
        taken.set()
        assert len(list(batches)) == 7
    finally:
        signal.signal(signal.SIGUSR1, before)
    assert [state["position"] for state in states] == [3]


def test_python_ends_while_threads_are_reading():
    program = ("import user_sources, headrace as hr\n"
               "loader = hr.Loader(user_sources.Sleeps(), num_workers=4, batch_size=2)\n"
               "iterator = iter(loader)\n"
               "print(len(next(iterator)[1]))\n")
    done = run_python("-c", program)
    assert (done.returncode, done.stdout) == (0, "2\n"), done.stderr


def test_a_forked_process_leaves_the_workers_alone():
    program = ("import os, user_sources, headrace as hr\n"
               "loader = hr.Loader(user_sources.Images(), num_workers=2, worker_type='process', batch_size=24)\n"
               "if os.fork() == 0:\n"
               "    del loader\n"
               "    os._exit(0)\n"
               "os.wait()\n"
               "print(len(next(iter(loader))[1]), loader.statistics()['workers_died'])\n")
    done = run_python("-c", program)
    assert done.stdout == "24 0\n", done.stderr
