"""Depth maps and masks of more than 255 instances are uint16."""

import numpy
import pytest
import torch

import headrace as hr


class Depth:
    def __len__(self):
        return 7

    def __getitem__(self, index):
        return {"depth": numpy.full((2, 3), 65535 - index, numpy.uint16), "points": torch.arange(index).to(torch.uint16)}


@pytest.mark.parametrize("options", [{}, {"num_workers": 2, "worker_type": "process"}], ids=["threads", "processes"])
def test_a_field_of_uint16_keeps_its_type_and_its_values(options):
    (batch,) = hr.Loader(Depth(), batch_size=7, shuffle=False, **options)
    assert batch["depth"].dtype == batch["points"].values.dtype == torch.uint16
    assert batch["depth"].to(torch.int64)[:, 1, 2].tolist() == list(range(65535, 65528, -1))
    assert [points.to(torch.int64).tolist() for points in batch["points"].unbind()] == [list(range(n)) for n in range(7)]
