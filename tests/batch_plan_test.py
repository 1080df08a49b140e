"""Batches that are made longer, and what a plan of batch sizes shows and computes from what was measured."""

import dataclasses
import json

import headrace as hr
import pytest
import torch
from headrace._batch_parts import is_batch, part_of, repeated
from shown_test import Checked

ROWS, SCALE = torch.arange(6).reshape(3, 2), torch.tensor(2.0)


@dataclasses.dataclass
class Record:
    rows: torch.Tensor
    name: str


@pytest.mark.parametrize("batch, rows_of", [
    (ROWS, lambda batch: batch), ((ROWS, SCALE), lambda batch: batch[0]), ([ROWS, ROWS[:, 0]], lambda batch: batch[0]),
    ({"rows": ROWS, "name": "a"}, lambda batch: batch["rows"]), (Record(ROWS, "a"), lambda batch: batch.rows)],
    ids=["tensor", "tuple", "list", "dict", "record"])
def test_a_batch_of_any_form_is_repeated_from_the_front_and_cut_as_it_is(batch, rows_of):
    longer = repeated(batch, 7)
    assert type(longer) is type(batch)
    assert rows_of(longer).tolist() == [ROWS[place % 3].tolist() for place in range(7)]
    for samples in (2, 3):  # Copies, so that each size takes memory of its own.
        assert rows_of(repeated(batch, samples)).tolist() == ROWS[:samples].tolist()
        assert rows_of(repeated(batch, samples)).untyped_storage().data_ptr() != ROWS.untyped_storage().data_ptr()
    assert rows_of(part_of(batch, 1, 3)).data_ptr() == ROWS[1].data_ptr()


@pytest.mark.parametrize("shape, layout", [((3, 2, 4, 4), torch.channels_last), ((3, 2, 2, 4, 4), torch.channels_last_3d)])
def test_a_repeated_batch_has_the_layout_of_the_batch(shape, layout):
    plain = torch.arange(float(torch.Size(shape).numel())).reshape(shape)
    assert repeated(plain, 5).is_contiguous() and not repeated(plain, 5).is_contiguous(memory_format=layout)
    longer = repeated(plain.contiguous(memory_format=layout), 5)
    assert longer.is_contiguous(memory_format=layout) and torch.equal(longer, plain[torch.arange(5) % 3])


def test_every_field_of_a_loaders_batch_is_repeated():
    ragged = hr.RaggedTensor(torch.arange(4.0), torch.tensor([0, 1, 1, 4]))
    sided = hr.RaggedTensor(torch.arange(4), torch.tensor([0, 2, 2, 4]), torch.tensor([[1, 2], [0, 0], [2, 1]]))
    batch = hr.Batch({"x": torch.arange(3), "points": ragged, "masks": sided, "words": list("abc"), "valid": torch.ones(3)}, 3, 4,
                     {"points": torch.tensor([1, 0, 1])})
    longer = repeated(batch, 5)
    assert isinstance(longer, hr.Batch) and (longer.epoch, longer.index) == (3, 4)
    assert longer["x"].tolist() == [0, 1, 2, 0, 1] and longer["words"] == list("abcab") and len(longer["valid"]) == 5
    assert longer.present("points").tolist() == [1, 0, 1, 1, 0] and longer.present("x") is None
    for name in ("points", "masks"):
        assert len(longer[name]) == 5
        assert all(torch.equal(longer[name][place], batch[name][place % 3]) for place in range(5)), name


@pytest.mark.parametrize("batch, told", [((ROWS, ROWS[:2]), "found 2 and 3"), ({"scale": SCALE}, "found no tensor"), (ROWS[:0], "one of 0")])
def test_what_cannot_be_cut_or_repeated_is_named(batch, told):
    with pytest.raises(hr.errors.InvalidArgumentError, match=told):
        repeated(batch, 4)


def test_a_batch_is_told_from_a_loader():
    for batch in (ROWS, (ROWS, ROWS), [ROWS, ROWS], [ROWS, ROWS, ["a"] * 3], {"rows": ROWS}, Record(ROWS, "a"),
                  hr.Batch({"x": ROWS, "valid": ROWS[:, 0]})):
        assert is_batch(batch), batch
    for loader in ([(ROWS, ROWS)], [{"rows": ROWS}], [], iter([ROWS]), lambda: [ROWS], torch.utils.data.DataLoader(ROWS)):
        assert not is_batch(loader), loader


def plan(**changes) -> hr.BatchPlan:
    probes = (hr.BatchProbe(32, 10 * 2**20, 0.01, 0.001, False), hr.BatchProbe(64, 18 * 2**20, None, None, False),
              hr.BatchProbe(128, None, None, None, True))
    told = {"batch_size": 64, "gradient_accumulation_steps": 2, "largest_batch_size": 72, "probes": probes, "fixed_bytes": 2**20,
            "activation_bytes": 2**20, "bytes_per_sample": 2**18, "predicted_peak": 18 * 2**20, "memory_limit": 20 * 2**20,
            "memory_fraction": 0.9, "samples_per_second": 3200.0, "search_s": 2.0, "reason": "the largest that <fits>"}
    return hr.BatchPlan(**{**told, **changes})


def test_a_plan_is_a_table_in_a_session_and_in_a_notebook():
    page = Checked(plan()._repr_html_())
    assert page.tags.count("tr") == 4 and "fits" not in page.tags
    for text in (page.text, repr(plan())):
        assert all(word in text for word in ("batches of 64 x 2 micro-batches; the largest that <fits>", "10.0", "10.00", "3200.0", "chosen",
                                             "ran out of memory", "unavailable"))
    assert "micro-batches" not in repr(plan(gradient_accumulation_steps=1))
    assert json.loads(json.dumps(plan().as_dict()))["probes"][2] == {"batch_size": 128, "peak_bytes": None, "step_s": None,
                                                                     "spread_s": None, "ran_out": True}


def test_other_memory_has_the_size_that_it_holds_and_a_search_its_share_of_the_run():
    assert [plan().largest_for(mib * 2**20) for mib in (1, 2, 2.25, 18, 100)] == [0, 0, 1, 64, 392]
    assert plan(bytes_per_sample=0.0).largest_for(10**9) is None
    assert plan().search_share(3200 * 38) == pytest.approx(0.05)
    assert plan(samples_per_second=None).search_share(1000) is None
