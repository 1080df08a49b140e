"""hr.memory_by_role: bytes of every role, each block of memory once, against sizes that are known."""

import pytest
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

import headrace as hr

MIB = 2**20


def sizes(tensors) -> int:
    return sum(tensor.numel() * tensor.element_size() for tensor in tensors)


def trained(model, optimizer, inputs):
    model(inputs).sum().backward()
    optimizer.step()


def test_parameters_gradients_buffers_and_optimizer_state_are_exact():
    model = nn.Sequential(nn.Linear(64, 32), nn.BatchNorm1d(32), nn.Linear(32, 8))
    optimizer = torch.optim.Adam(model.parameters())
    trained(model, optimizer, torch.randn(4, 64))
    memory = hr.memory_by_role(model, optimizer)
    parameters = sizes(model.parameters())
    assert memory.bytes["parameters"] == memory.bytes["gradients"] == parameters
    assert memory.bytes["buffers"] == sizes(model.buffers())
    # Two averages and the count of steps of each parameter.
    assert memory.bytes["optimizer"] == 2 * parameters + 4 * len(list(model.parameters()))
    assert memory.bytes["batches"] is None and memory.bytes["activations"] is None  # Nobody handed them over.
    assert memory.total == sum(size for size in memory.bytes.values() if size is not None)


def test_views_and_shared_weights_count_once_and_in_the_first_role():
    model = nn.ModuleList([nn.Linear(16, 16, bias=False), nn.Linear(16, 16, bias=False)])
    model[1].weight = model[0].weight
    model.register_buffer("view", model[0].weight.detach()[:4])
    batch = {"images": (whole := torch.zeros(8, 3)), "halves": [whole[:4], whole[4:]]}
    memory = hr.memory_by_role(model, batch=batch)
    assert memory.bytes["parameters"] == 16 * 16 * 4
    assert memory.bytes["buffers"] == 0
    assert memory.bytes["batches"] == 8 * 3 * 4


def test_activations_are_what_the_graph_saved():
    inputs = torch.randn(256, 1024, requires_grad=True)  # 1 MiB.
    loss = inputs.exp().relu().sum()  # exp saves its result, relu its own.
    memory = hr.memory_by_role(loss=loss)
    assert memory.bytes["activations"] == 2 * MIB
    assert {block.name for block in memory.blocks} == {"ExpBackward0", "ReluBackward0"}
    loss.backward()
    assert hr.memory_by_role(loss=loss).bytes["activations"] == 0  # Freed.


def test_to_look_at_activations_computes_none_of_them_again():
    calls = []
    block = nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4))
    block.register_forward_pre_hook(lambda *given: calls.append(1))
    loss = checkpoint(block, torch.randn(2, 4), use_reentrant=False).sum()
    memory = hr.memory_by_role(block, loss=loss)
    assert memory.bytes["activations"] is None and memory.bytes["parameters"] == 4 * (16 + 3 * 4)
    assert len(calls) == 1
    loss.backward()
    assert len(calls) == 2


def test_names_lead_to_modules_and_the_largest_block_is_first():
    model = nn.Sequential()
    model.add_module("small", nn.Linear(2, 2))
    model.add_module("large", nn.Linear(100, 100))
    memory = hr.memory_by_role(model)
    assert memory.blocks[0].name == "large.weight" and memory.blocks[0].bytes == 40_000
    assert memory.by_module() == {"large": 40_400, "small": 24}


def test_tensors_elsewhere_do_not_count():
    model = nn.Linear(4, 4, device="meta")
    assert hr.memory_by_role(model, device="cpu").bytes["parameters"] == 0
    assert hr.memory_by_role(device="cpu").bytes["parameters"] is None


@pytest.mark.engine
def test_what_is_in_no_role_is_told_where_the_engine_counts():
    from headrace import _engine

    if _engine.watch_tensor_memory()[1] != "counted":
        pytest.fail("the engine cannot count in this process")
    kept = torch.empty(4 * MIB, dtype=torch.uint8)
    memory = hr.memory_by_role(nn.Linear(4, 4))
    assert memory.allocated is not None and memory.other >= kept.numel()
