"""Samples whose fields are not what they were: one error that names sample and field, and nothing is lost."""

import gc
import os
import pathlib
import re
import time

import array_fields as sources
import pytest
import torch
from running_threads import running_threads

import headrace as hr
from headrace import errors

KINDS = ["thread", "process"]
SAMPLE = "array_fields.Spoiled[5]"
NAMES = "image, boxes, kinds, mask, tags, caption"
SO = "Where it differs from sample to sample say so"
# What a sample becomes, and what is said of it.
SPOILED = {
    sources.without_boxes: f"a sample is a dict of image, kinds, mask, tags, caption; wanted {NAMES}, as sample 0 had. One that some "
                           "lack is declared: fields={'boxes': headrace.Field(..., optional=True)}",
    sources.other_type: f"field boxes is float64 (3, 4); wanted float32 (-1, 4), as other samples had. {SO}: "
                        "fields={'boxes': headrace.Field('float32', (-1, 4))}",
    sources.other_rank: f"field boxes is float32 (4); wanted float32 (-1, 4), as other samples had. {SO}: "
                        "fields={'boxes': headrace.Field('float32', (-1, 4))}",
    sources.other_columns: f"field boxes is float32 (3, 5); wanted float32 (-1, 4), as other samples had. {SO}: "
                           "fields={'boxes': headrace.Field('float32', (-1, 4))}",
    sources.ragged_tags: f"field tags is bool (6); wanted bool (7), as other samples had. {SO}: "
                         "fields={'tags': headrace.Field('bool', (-1,))}",
    sources.no_text: "field caption is no text that UTF-8 can hold: 'utf-8' codec can't encode character '\\ud800' in position 0: "
                     "surrogates not allowed",
    sources.a_tuple: f"a sample is a tuple of 0, 1, 2, 3, 4, 5; wanted {NAMES}, as sample 0 had",
    sources.a_name_twice: "a sample has two fields image; wanted each once",
}


def threads_that_load() -> int:
    return sum(name.startswith("loader ") for name in running_threads().values())


def digests(batches) -> list[list]:
    return [[field.tolist() if isinstance(field, torch.Tensor) else [part.tolist() for part in field]
             if isinstance(field, hr.RaggedTensor) else field for field in batch.values()] for batch in batches]


def refusal_of(data, kind) -> Exception:
    """What a Loader raises over such a sample. The batch before it is there, the next epoch is whole, and nobody is left."""
    gc.collect()
    file, before = pathlib.Path(data.file), threads_that_load()
    loader = hr.Loader(data, batch_size=4, shuffle=False, num_workers=2, worker_type=kind)
    reference = digests(loader)
    file.touch()
    batches = iter(loader)
    assert digests([next(batches)]) == reference[:1]
    with pytest.raises(Exception) as caught:
        next(batches)
    file.unlink()
    assert digests(loader) == reference and len(reference) == 6
    processes = loader.worker_processes
    assert (len(processes) in (1, 2)) == (kind == "process")  # One that was killed is replaced when it is needed.
    del loader, batches
    gc.collect()
    assert threads_that_load() == before and not any(os.path.exists(f"/proc/{process}") for process in processes)
    return caught.value


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("spoil", SPOILED, ids=lambda spoil: spoil.__name__)
def test_a_sample_of_other_fields_is_named_and_nothing_is_lost(spoil, kind, tmp_path):
    check_words(refusal_of(sources.Spoiled(tmp_path / "spoiled", spoil), kind), kind, SAMPLE, SPOILED[spoil])


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("are_pairs, words", [
    (True, "a sample is a dict; wanted (image, label)"),
    (False, f"a sample is a dict of {NAMES}; wanted 0, 1, 2, 3, 4, 5, as sample 0 had"),
], ids=["pairs", "tuples"])
def test_a_dict_among_tuples_is_named_and_nothing_is_lost(are_pairs, words, kind, tmp_path):
    error = refusal_of(sources.SpoiledTuples(tmp_path / "spoiled", are_pairs), kind)
    check_words(error, kind, "array_fields.SpoiledTuples[5]", words)


def check_words(error, kind, sample, words):
    if kind == "thread":
        assert isinstance(error, (TypeError, ValueError)) and str(error) == words
        assert error.__notes__ == [f"headrace: raised by sample {sample}"]
    else:
        assert isinstance(error, errors.CorruptDataError)
        assert re.fullmatch(f"data: {re.escape(sample)}: (Type|Value|UnicodeEncode)Error: {re.escape(words)}",
                            str(error).split("\n\nTraceback in worker process")[0])


@pytest.mark.parametrize("kind", KINDS)
def test_boxes_of_10_gib_are_refused_before_they_are_copied(kind, tmp_path):
    message = str(refusal_of(sources.Spoiled(tmp_path / "spoiled", sources.huge_boxes), kind)).split("\n\n")[0]
    if kind == "thread":
        assert message == f"data: {SAMPLE}: field boxes: 10737418240 bytes; wanted at most 268435456 (data.max_sample_bytes)"
    else:
        assert re.fullmatch(rf"data: {re.escape(SAMPLE)}: ValueError: field boxes: 10737418240 bytes, of \d+ for the sample; a worker "
                            r"may give \d+", message)


def test_offsets_that_fall_end_the_worker_that_gave_them(tmp_path):
    message = str(refusal_of(sources.Spoiled(tmp_path / "spoiled", sources.falling_offsets), "process"))
    assert message.startswith(f"data: {SAMPLE}: ") and "field boxes" in message, message


def test_a_worker_that_speaks_another_format_is_refused_by_number():
    gc.collect()
    before = threads_that_load()
    with pytest.raises(errors.InternalError, match="array_fields.OfAnotherFormat: .*speaks format 1 of the protocol, in a message of "
                                                   "kind 1; wanted 2 and 1"):
        hr.Loader(sources.OfAnotherFormat(), num_workers=2, worker_type="process")
    assert threads_that_load() == before and children() == []


def children() -> list[str]:
    """Commands of the processes that this one has started and that live."""
    deadline = time.monotonic() + 60  # One that was killed is there until it is reaped.
    while True:
        found = []
        for process in filter(str.isdigit, os.listdir("/proc")):
            try:
                with open(f"/proc/{process}/stat") as stat, open(f"/proc/{process}/cmdline") as command:
                    if int(stat.read().rsplit(")", 1)[1].split()[1]) == os.getpid():
                        found.append(command.read())
            except (FileNotFoundError, ProcessLookupError):
                continue
        if not any("worker.py" in command for command in found):
            return []
        if time.monotonic() > deadline:
            return found
        time.sleep(0.05)
