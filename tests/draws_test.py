"""Random numbers of one run in another whose tensors lie otherwise in memory."""

import pytest
import torch
from headrace._draws import NotedDraws, RepeatedDraws
from torch import nn
from torch.nn import functional

pytestmark = pytest.mark.usefixtures("one_thread")

IMAGES = torch.randn(4, 8, 6, 6)


def in_both_layouts(draw):
    """What draw(images) gives in C order, in channels-last memory with the draws of C order, and in channels-last memory alone;
    whether another order was found."""
    def of(images):
        torch.manual_seed(5)
        return draw(images)

    with NotedDraws() as noted:
        written = of(IMAGES.clone())
    other = IMAGES.to(memory_format=torch.channels_last)
    with RepeatedDraws(noted.draws) as repeated:
        alike = of(other.clone())
    return written, alike, of(other.clone()), repeated.found


MOVED = {
    "dropout": lambda x: functional.dropout(x, 0.3),
    "native_dropout": lambda x: torch.native_dropout(x, 0.3, True)[0],
    "dropout of a permuted view": lambda x: functional.dropout(x.permute(0, 2, 3, 1), 0.3),
    "dropout of patches in a row": lambda x: functional.dropout(x.flatten(2).transpose(1, 2) + 1, 0.3),
    "dropout of one image": lambda x: functional.dropout(x[0], 0.3),
    "native_dropout of some channels": lambda x: torch.native_dropout(x[:, :3], 0.3, True)[0],
    "alpha_dropout": lambda x: functional.alpha_dropout(x, 0.3, True),
    "noise like it": torch.randn_like,
    "noise like some channels": lambda x: torch.rand_like(x[:, :4], dtype=torch.float64),
    "whole numbers like it": lambda x: torch.randint_like(x, 10),
    "in place": lambda x: torch.empty_like(x).normal_(2.0, 3.0),
    "in place of a part": lambda x: x[:, :, 1:].uniform_(),
}


@pytest.mark.parametrize("draw", MOVED.values(), ids=MOVED)
def test_another_layout_has_the_draws_of_the_first(draw):
    written, alike, alone, found = in_both_layouts(draw)
    assert torch.equal(written, alike) and alike.stride() == alone.stride() and alike.dtype == alone.dtype
    assert found and not torch.equal(written, alone)


UNMOVED = {
    "dropout2d": lambda x: functional.dropout2d(x, 0.3),
    "bernoulli": lambda x: torch.bernoulli(x.sigmoid()),
    "rrelu": lambda x: functional.rrelu(x, training=True),
    "in C order as asked for": lambda x: torch.randn_like(x, memory_format=torch.contiguous_format).view(4, -1),
}


@pytest.mark.parametrize("draw", UNMOVED.values(), ids=UNMOVED)
def test_what_draws_alike_by_itself_is_left_alone(draw):
    written, alike, alone, found = in_both_layouts(draw)
    assert torch.equal(written, alike) and torch.equal(written, alone) and not found


def test_images_that_are_channels_last_in_both_runs_are_drawn_as_they_are():
    with NotedDraws() as noted:
        torch.manual_seed(5)
        written = functional.dropout(IMAGES.to(memory_format=torch.channels_last), 0.3)
    with RepeatedDraws(noted.draws) as repeated:
        torch.manual_seed(5)
        again = functional.dropout(IMAGES.to(memory_format=torch.channels_last), 0.3)
    assert torch.equal(written, again) and not repeated.found


def test_draws_of_another_model_are_left_alone():
    with NotedDraws() as noted:
        functional.dropout(IMAGES, 0.3)
    other = torch.randn(2, 8, 5, 5).to(memory_format=torch.channels_last)
    torch.manual_seed(5)
    wanted = functional.dropout(other, 0.3), functional.dropout(other, 0.3)
    with RepeatedDraws(noted.draws) as repeated:
        torch.manual_seed(5)
        found = functional.dropout(other, 0.3), functional.dropout(other, 0.3)
    assert all(map(torch.equal, found, wanted)) and not repeated.found


@pytest.mark.parametrize("mode", [NotedDraws, lambda: RepeatedDraws([])], ids=["noted", "repeated"])
def test_what_is_compiled_stays_so(mode):
    compiled, ran = [], []

    def backend(graph, inputs):
        compiled.append(graph)

        def run(*args):
            ran.append(graph)
            return graph.forward(*args)

        return run

    call = torch.compile(lambda x: functional.dropout(x * 2, 0.3), backend=backend)
    call(IMAGES)
    with mode():
        call(IMAGES)
    call(IMAGES)
    assert (len(compiled), len(ran)) == (1, 3)
    torch._dynamo.reset()


def test_gradients_are_those_of_the_first_layout():
    torch.manual_seed(1)
    model = nn.Sequential(nn.Conv2d(8, 4, 3), nn.Dropout(0.5), nn.Conv2d(4, 2, 3))

    def gradients():
        torch.manual_seed(5)
        return torch.autograd.grad(model(IMAGES).square().sum(), list(model.parameters()))

    with NotedDraws() as noted:
        written = gradients()
    model.to(memory_format=torch.channels_last)
    with RepeatedDraws(noted.draws) as repeated:
        alike = gradients()
    assert repeated.found
    for ours, theirs in zip(alike, written):
        torch.testing.assert_close(ours, theirs)
    assert not torch.allclose(gradients()[0], written[0])
