"""Generators of Python and NumPy, from which a forward may draw, are put back by a rollback and where a part is computed again."""

import random

import headrace as hr
import numpy
import pytest
import torch
from headrace import _place
from torch import nn


def drawn():
    return random.random(), random.gauss(0, 1), numpy.random.rand()


def test_their_states_are_bytes_that_put_them_back():
    random.seed(3)
    numpy.random.seed(4)
    drawn()
    states = _place.other_generators()
    wanted = drawn()
    assert states.dtype == torch.uint8 and states.dim() == 1 and drawn() != wanted
    assert len(_place.other_generators()) == len(states)
    _place.set_other_generators(states.clone())
    assert drawn() == wanted


class Drawing:
    """A forward that draws, and has a loss of NaN in one call."""

    def __init__(self, bad: int):
        self.bad, self.calls, self.seen = bad, 0, []

    def __call__(self, model, batch):
        self.seen.append(drawn())
        self.calls += 1
        loss = model(batch).square().mean() * (1 + 0.01 * self.seen[-1][0])
        return loss * float("nan") if self.calls == self.bad else loss


@pytest.mark.engine
def test_a_rollback_puts_them_back_to_where_they_were_with_the_state():
    torch.manual_seed(1)
    model, forward = nn.Linear(4, 2), Drawing(bad=4)
    trainer = hr.Trainer(model, torch.optim.SGD(model.parameters(), lr=0.01), forward, step_guard={"policy": "rollback", "keep_every": 2})
    random.seed(5)
    numpy.random.seed(6)
    for _ in range(5):
        trainer.step(torch.ones(3, 4))
    assert trainer.progress["step_guard"]["rolled_back"] == 1
    assert forward.seen[4] == forward.seen[2], "the state after two updates"
    assert len(set(forward.seen)) == 4


@pytest.mark.engine
def test_a_part_that_is_computed_again_draws_the_same():
    model, forward = nn.Linear(4, 2), Drawing(bad=0)

    def hungry(model, batch):
        loss = forward(model, batch)
        if len(batch) > 2:
            raise torch.OutOfMemoryError("made up")
        return loss

    trainer = hr.Trainer(model, torch.optim.SGD(model.parameters(), lr=0.01), hungry, on_out_of_memory="halve")
    random.seed(5)
    numpy.random.seed(6)
    trainer.step(torch.ones(4, 4))
    assert trainer.progress["out_of_memory"] == 1
    assert forward.seen[0] == forward.seen[1] != forward.seen[2]
