"""hr.gradient_checkpointing_enable: the same bits as without it, BatchNorm updated once, and bytes that autograd keeps, counted by hooks of
the tests' own. Gradients, buffers and dropout are compared with torch's plain run of a copy."""

import contextlib
import copy
import inspect
import io
import random

import headrace as hr
import pytest
import torch
from headrace._recompute_choice import BlockCall, choose, peak_bytes
from torch import nn
from torch.utils.checkpoint import checkpoint

pytestmark = pytest.mark.usefixtures("one_thread")


class Block(nn.Module):
    """Convolution, BatchNorm, ReLU and dropout beside a shortcut; counts its forwards."""

    def __init__(self, channels: int = 8) -> None:
        super().__init__()
        self.convolution = nn.Conv2d(channels, channels, 3, padding=1)
        self.norm = nn.BatchNorm2d(channels)
        self.dropout = nn.Dropout(0.2)
        self.calls = 0

    def forward(self, images):
        self.calls += 1
        return images + self.dropout(torch.relu(self.norm(self.convolution(images))))


class Net(nn.Module):
    def __init__(self, blocks: int = 6) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, 8, 3, padding=1)
        self.backbone = nn.Sequential(*(Block() for _ in range(blocks)))
        self.head = nn.Linear(8, 5)

    def forward(self, images):
        return self.head(self.backbone(self.stem(images)).mean((2, 3)))

    def calls(self) -> list[int]:
        return [block.calls for block in self.backbone]


def net(blocks: int = 6) -> Net:
    torch.manual_seed(1)
    return Net(blocks)


def images(size: int = 4) -> torch.Tensor:
    return torch.randn(size, 3, 8, 8, generator=torch.Generator().manual_seed(2))


def step(model, batch, context=contextlib.nullcontext, seed: int = 3) -> dict[str, torch.Tensor]:
    """Loss, gradients, buffers and the next draw, of one step without update."""
    torch.manual_seed(seed)
    model.zero_grad()
    with context():
        loss = model(batch).float().square().mean()
    loss.backward()
    return {"loss": loss.detach(), "draw": torch.rand(3),
            **{f"gradient of {name}": parameter.grad.clone() for name, parameter in model.named_parameters()},
            **{f"buffer {name}": buffer.clone() for name, buffer in model.named_buffers()}}


def assert_same_bits(found, wanted) -> None:
    assert found.keys() == wanted.keys()
    assert [name for name in wanted if not torch.equal(found[name], wanted[name])] == []


def saved_bytes(model, batch) -> int:
    """What autograd keeps at the end of a training forward, parameters and buffers aside: by hooks, each storage once, all held."""
    constant = {tensor.untyped_storage().data_ptr() for tensor in (*model.parameters(), *model.buffers())}
    held: dict[int, tuple[int, torch.Tensor]] = {}

    def pack(tensor):
        pointer = tensor.untyped_storage().data_ptr()
        if pointer not in constant:
            held[pointer] = (tensor.untyped_storage().nbytes(), tensor.detach())
        return tensor.detach()

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        loss = model(batch).sum()
    total = sum(size for size, _ in held.values())
    del loss
    return total


BF16 = lambda: torch.autocast("cpu", torch.bfloat16)  # noqa: E731


@pytest.mark.parametrize("options", [{}, {"every": 2}, {"policy": ["0", "3.convolution"]}, {"policy": [""]}, {"policy": ["", "2"]},
                                     {"budget_mib": 0.05}, {"budget_mib": 100}], ids=str)
@pytest.mark.parametrize("context", [contextlib.nullcontext, BF16], ids=["float32", "bf16 autocast"])
def test_three_steps_have_the_bits_of_the_plain_run_dropout_and_statistics_included(options, context):
    plain, model = net(), net()
    hr.gradient_checkpointing_enable(model.backbone, **options)
    for seed in range(3):  # A budget's choice changes from the first to the second.
        wanted, found = step(plain, images(), context, seed), step(model, images(), context, seed)
        assert_same_bits(found, wanted)
    assert [int(block.norm.num_batches_tracked) for block in model.backbone] == [3] * 6
    with torch.no_grad():
        torch.manual_seed(9)
        without_replay = model.backbone(torch.ones(2, 8, 8, 8))
        torch.manual_seed(10)
        assert not torch.equal(without_replay, model.backbone(torch.ones(2, 8, 8, 8)))  # Dropout draws, or the test shows nothing.


def test_torch_itself_updates_batchnorm_twice_and_so_the_test_of_once_can_fail():
    block = Block()
    result = checkpoint(block, torch.randn(2, 8, 4, 4), use_reentrant=False)
    result.sum().backward()
    assert int(block.norm.num_batches_tracked) == 2


def test_the_forward_of_each_block_runs_twice_and_of_what_is_no_part_of_it_once():
    model = net()
    checkpointing = hr.gradient_checkpointing_enable(model.backbone)
    step(model, images())
    assert model.calls() == [2] * 6
    assert checkpointing.report.recomputed == tuple("012345")
    hr.gradient_checkpointing_enable(model.backbone, ["1", "4"])
    step(model, images())
    assert model.calls() == [3, 4, 3, 3, 4, 3]


def test_every_third_block_is_recomputed():
    model = net()
    checkpointing = hr.gradient_checkpointing_enable(model.backbone, every=3)
    step(model, images())
    assert model.calls() == [2, 1, 1, 2, 1, 1]
    assert checkpointing.report.requested == "one of 3 blocks" and checkpointing.report.applied == "2 of 6 blocks recomputed"


def test_only_the_part_that_is_enabled_recomputes_and_disable_gives_it_back():
    model = nn.ModuleDict({"left": net().backbone, "right": net().backbone})
    before = {name: dict(vars(module)) for name, module in model.named_modules()}
    hr.gradient_checkpointing_enable(model["left"])

    def both():
        model["right"](model["left"](torch.ones(2, 8, 8, 8))).sum().backward()
        return [block.calls for block in model["left"]], [block.calls for block in model["right"]]

    assert both() == ([2] * 6, [1] * 6)
    hr.gradient_checkpointing_disable(model["left"])
    assert {name: vars(module).keys() for name, module in model.named_modules()} == {name: kept.keys() for name, kept in before.items()}
    assert all(type(module).forward.__get__(module) == module.forward for module in model.modules())
    assert both() == ([3] * 6, [2] * 6)
    hr.gradient_checkpointing_disable(model["left"])  # Once more does nothing.


def test_enabling_twice_recomputes_by_the_second_policy_and_once():
    plain, model = net(), net()
    hr.gradient_checkpointing_enable(model.backbone)
    hr.gradient_checkpointing_enable(model.backbone, ["2"])
    assert_same_bits(step(model, images()), step(plain, images()))
    assert model.calls() == [1, 1, 2, 1, 1, 1]


@pytest.mark.parametrize("way", ["eval", "no_grad"])
def test_nothing_is_recomputed_or_kept_in_evaluation(way):
    plain, model = net(), net()
    hr.gradient_checkpointing_enable(model.backbone)
    if way == "eval":
        assert_same_bits(step(model.eval(), images()), step(plain.eval(), images()))  # With gradients.
    else:
        with torch.no_grad():
            torch.manual_seed(3)
            result = model(images())
            torch.manual_seed(3)
            assert torch.equal(result, plain(images())) and result.grad_fn is None
    assert model.calls() == [1] * 6


def test_three_budgets_keep_three_different_amounts_in_order_and_the_report_says_what_was_kept():
    batch = images(16)
    plain = net(12)
    whole = saved_bytes(plain, batch)
    all_recomputed = net(12)
    hr.gradient_checkpointing_enable(all_recomputed)
    step(all_recomputed, batch)
    least = saved_bytes(all_recomputed, batch)
    kept, predicted = [], []
    for share in (0.35, 0.6, 0.85):
        model = net(12)
        budget = least + share * (whole - least)
        checkpointing = hr.gradient_checkpointing_enable(model, budget_mib=budget / 2**20)
        step(model, batch)
        step(model, batch)
        report = checkpointing.report
        assert report.peak_bytes <= budget and report.reason == ""
        assert report.saved_bytes_after == saved_bytes(model, batch) <= budget
        assert report.saved_bytes_before == whole
        assert 0 < len(report.recomputed) < 12 and 0 < report.recompute_s < report.forward_s
        calls = sum(model.calls())
        step(model, batch)
        assert sum(model.calls()) - calls == 12 + len(report.recomputed)
        kept.append(report.saved_bytes_after)
        predicted.append(report.peak_bytes)
    assert least < kept[0] < kept[1] < kept[2] < whole
    assert predicted == sorted(predicted)


def test_a_deep_stack_of_equal_blocks_keeps_a_third_of_its_bytes_and_less():
    batch = images(8)
    plain, model = net(32), net(32)
    checkpointing = hr.gradient_checkpointing_enable(model)
    step(model, batch)
    assert saved_bytes(model, batch) < saved_bytes(plain, batch) / 3
    assert checkpointing.report.saved_bytes_after < checkpointing.report.saved_bytes_before / 3


def test_a_budget_that_cannot_be_reached_says_so_and_a_large_one_recomputes_nothing():
    model = net()
    checkpointing = hr.gradient_checkpointing_enable(model, budget_mib=1e-6)
    step(model, images())
    least = f"{checkpointing.report.peak_bytes / 2**20:.1f} MiB"
    assert f"budget_mib: wanted at most 1e-06 MiB kept at once for the backward, found {least} with" in checkpointing.report.reason
    assert "of 6 blocks recomputed, the least that a choice of blocks reaches" in checkpointing.report.reason
    checkpointing = hr.gradient_checkpointing_enable(model, budget_mib=1000)
    step(model, images())
    assert checkpointing.report.applied == "0 of 6 blocks recomputed"
    calls = model.calls()
    step(model, images())
    assert [after - before for before, after in zip(calls, model.calls())] == [1] * 6


class Many(nn.Module):
    """Arguments of several kinds, results in a dict."""

    def __init__(self) -> None:
        super().__init__()
        self.linear, self.dropout, self.calls = nn.Linear(4, 4), nn.Dropout(0.5), 0

    def forward(self, pair, scale, *, options, shift=None, mode="plain"):
        self.calls += 1
        first, second = pair
        result = self.dropout(torch.tanh(self.linear(first) * scale)) * second["weight"]
        if mode == "shifted":
            result = result + shift * options["factor"]
        return {"result": result, "others": (result.detach().sum(), None, mode)}


def test_arguments_and_results_of_any_form_go_through_with_their_gradients():
    def run(enables: bool):
        torch.manual_seed(1)
        model = Many()
        tensors = [torch.randn(3, 4, requires_grad=True) for _ in range(3)]
        if enables:
            hr.gradient_checkpointing_enable(model)
        torch.manual_seed(2)
        found = model([tensors[0], {"weight": tensors[1]}], 2.0, options={"factor": 3}, shift=tensors[2], mode="shifted")
        assert found["others"][1:] == (None, "shifted")
        found["result"].square().sum().backward()
        return model.calls, [found["result"].detach(), *(tensor.grad for tensor in tensors), model.linear.weight.grad]

    calls, found = run(True)
    assert calls == 2
    assert all(map(torch.equal, found, run(False)[1]))


class Outer(nn.Module):
    """Blocks within blocks, and one of them in two places."""

    def __init__(self) -> None:
        super().__init__()
        shared = Block()
        self.first, self.second = nn.Sequential(Block(), shared), nn.Sequential(shared, Block())

    def forward(self, images):
        return self.second(self.first(images))


@pytest.mark.parametrize("names", [["first", "second"], ["first", "first.0", "first.1"], ["first.1"], ["", "first", "first.0"]], ids=str)
def test_nested_and_shared_modules_have_the_bits_of_the_plain_run(names):
    torch.manual_seed(1)
    plain = Outer()
    model = copy.deepcopy(plain)
    hr.gradient_checkpointing_enable(model, names)
    batch = torch.randn(4, 8, 8, 8)
    for seed in range(2):
        assert_same_bits(step(model, batch, seed=seed), step(plain, batch, seed=seed))
    assert int(model.first[1].norm.num_batches_tracked) == 4  # Two calls a step.
    assert model.first[0].calls + model.first[1].calls > plain.first[0].calls + plain.first[1].calls


def test_a_second_backward_and_a_gradient_of_a_gradient_are_those_of_the_plain_run():
    def run(enables: bool):
        model = net(2).double()
        if enables:
            hr.gradient_checkpointing_enable(model)
        torch.manual_seed(3)
        batch = images(2).double().requires_grad_()
        loss = model(batch).square().sum()
        once = torch.autograd.grad(loss, batch, retain_graph=True)[0]
        twice = torch.autograd.grad(loss, batch, create_graph=True)[0]
        weights = [block.convolution.weight for block in model.backbone]
        return once, twice.detach(), *torch.autograd.grad(twice.square().sum(), weights)

    found, wanted = run(True), run(False)
    assert torch.equal(found[0], wanted[0]) and torch.equal(found[1], wanted[1])
    for ours, theirs in zip(found[2:], wanted[2:], strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-10, atol=1e-12)


class Moving(nn.Module):
    """A buffer that its forward changes and computes with, as spectral normalisation does; draws from Python's generator."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(4, 4)
        self.register_buffer("state", torch.ones(4))

    def forward(self, values):
        with torch.no_grad():
            self.state.mul_(0.5).add_(values.mean(0))
        return torch.tanh(self.linear(values) * self.state) * random.uniform(0.5, 1.0)


def test_buffers_that_a_forward_computes_with_and_pythons_draws_are_replayed():
    torch.manual_seed(1)
    plain = nn.Sequential(*(nn.Sequential(Moving()) for _ in range(3)))
    model = copy.deepcopy(plain)
    hr.gradient_checkpointing_enable(model)
    batch = torch.randn(5, 4)
    for seed in range(2):
        random.seed(seed)
        wanted = step(plain, batch)
        draw = random.random()
        random.seed(seed)
        assert_same_bits(step(model, batch), wanted)
        assert random.random() == draw


def test_a_mode_that_is_switched_before_the_backward_is_as_in_the_forward_there():
    plain, model = net(), net()
    hr.gradient_checkpointing_enable(model)
    gradients = []
    for each in (plain, model):
        torch.manual_seed(3)
        loss = each(images()).square().mean()
        each.eval()
        loss.backward()
        gradients.append([parameter.grad for parameter in each.parameters()])
        assert not any(module.training for module in each.modules())
    assert all(map(torch.equal, *gradients))


class Failing(Block):
    fails_at = 0

    def forward(self, images):
        if self.calls + 1 == self.fails_at:
            self.calls += 1
            raise KeyError("made up")
        return super().forward(images)


@pytest.mark.parametrize("fails_at", [1, 2], ids=["in the forward", "in the recomputation"])
def test_an_exception_passes_and_leaves_hooks_generators_and_buffers_as_without_it(fails_at):
    torch.manual_seed(1)
    model = nn.Sequential(Block(), Failing())
    hr.gradient_checkpointing_enable(model)
    model[1].fails_at = fails_at
    batch = torch.randn(2, 8, 4, 4)
    with pytest.raises(KeyError, match="made up") as caught:
        loss = model(batch).sum()
        buffers = {name: buffer.clone() for name, buffer in model.named_buffers()}
        draws = torch.get_rng_state()
        loss.backward()
    assert torch._C._autograd._top_saved_tensors_default_hooks(False) is None  # While the traceback is still held.
    if fails_at == 2:
        assert torch.equal(torch.get_rng_state(), draws)
        assert all(torch.equal(buffer, buffers[name]) for name, buffer in model.named_buffers())
    del caught
    plain = nn.Sequential(Block(), Failing())
    plain.load_state_dict(model.state_dict())
    assert_same_bits(step(model, batch), step(plain, batch))


def test_a_forward_that_computes_something_else_the_second_time_is_an_error_that_names_it():
    class Changing(Block):
        def forward(self, images):
            result = super().forward(images)
            return result.sin() if self.calls == 1 else result[:, :4].sin()

    model = nn.Sequential(Block(), Changing(), Block())
    hr.gradient_checkpointing_enable(model)
    with pytest.raises(hr.errors.UnsupportedError, match="gradient_checkpointing: 1: wanted a forward that computes the same"):
        model[1](torch.randn(2, 8, 4, 4)).sum().backward()


def test_a_block_that_changes_its_argument_in_place_is_named_in_the_forward():
    model = nn.Sequential(nn.Conv2d(3, 3, 1), nn.Sequential(nn.ReLU(inplace=True), nn.Conv2d(3, 3, 1)))
    hr.gradient_checkpointing_enable(model)
    with pytest.raises(hr.errors.UnsupportedError, match="gradient_checkpointing: 1: .*in place"):
        model(torch.randn(1, 3, 4, 4))


@pytest.mark.parametrize("options, words", [
    ({"policy": ["backbone.7"]}, "backbone.7"), ({"policy": ["bakbone"]}, "did you mean backbone"), ({"policy": "layers"}, "layers"),
    ({"policy": []}, "list of names"), ({"every": 0}, "at least 1"), ({"every": True}, "at least 1"), ({"budget_mib": 0}, "above 0"),
    ({"budget_mib": float("nan")}, "above 0"), ({"every": 2, "budget_mib": 1}, "found every=2 and budget_mib=1"),
    ({"policy": ["head"], "every": 2}, r"found policy=\['head'\] and every=2"),
    ({"offload": "disk"}, "offload: wanted False, \"host\" or True, which is \"host\", found 'disk'")], ids=str)
def test_what_makes_no_sense_is_refused_and_changes_nothing(options, words):
    model = net()
    with pytest.raises(hr.errors.InvalidArgumentError, match=words):
        hr.gradient_checkpointing_enable(model, **options)
    assert not any("forward" in vars(module) for module in model.modules())


def test_what_is_compiled_or_belongs_to_another_part_is_refused():
    model = net()
    hr.gradient_checkpointing_enable(model.backbone)
    with pytest.raises(hr.errors.InvalidArgumentError, match="backbone.0: .*disable that first"):
        hr.gradient_checkpointing_enable(model)
    with pytest.raises(hr.errors.UnsupportedError, match="compiled"):
        hr.gradient_checkpointing_enable(torch.jit.script(nn.Sequential(nn.Linear(2, 2))))
    with pytest.raises(hr.errors.UnsupportedError, match="compiled"):
        hr.gradient_checkpointing_enable(torch.compile(net()))
    model = net()
    made = hr.compiled(model, [lambda graph, inputs: graph.forward])
    with pytest.raises(hr.errors.UnsupportedError, match=r"the part: .*headrace.compiled\(\)"):
        hr.gradient_checkpointing_enable(model)
    made.undo()
    assert hr.gradient_checkpointing_enable(model).report.recomputed


def test_blocks_are_found_in_torchvisions_networks_and_what_has_no_list_is_one():
    from torchvision import models
    resnet = hr.gradient_checkpointing_enable(models.resnet18(num_classes=2)).report.blocks
    assert resnet == tuple(f"layer{stage}.{block}" for stage in range(1, 5) for block in range(2))
    vit = models.VisionTransformer(image_size=32, patch_size=8, num_layers=3, num_heads=2, hidden_dim=16, mlp_dim=32)
    names = hr.gradient_checkpointing_enable(vit).report.blocks
    assert names == tuple(f"encoder.layers.encoder_layer_{place}" for place in range(3))
    report = hr.gradient_checkpointing_enable(nn.Sequential(nn.Linear(2, 2), nn.ReLU())).report
    assert report.blocks == ("",) and "no list of blocks" in report.reason
    within = nn.Sequential(nn.Sequential(nn.Sequential(nn.Linear(2, 2), nn.ReLU()), nn.Sequential(nn.Linear(2, 2))), nn.Linear(2, 2))
    assert hr.gradient_checkpointing_enable(within).report.blocks == ("0.0", "0.1")


@pytest.mark.parametrize("name", ["resnet18", "mobilenet_v3_small", "densenet121"])
def test_a_network_of_torchvision_has_the_bits_of_its_plain_run(name):
    from torchvision import models
    torch.manual_seed(1)
    plain = getattr(models, name)(num_classes=3)
    model = copy.deepcopy(plain)
    hr.gradient_checkpointing_enable(model)
    batch = torch.randn(2, 3, 64, 64)
    assert_same_bits(step(model, batch), step(plain, batch))
    assert saved_bytes(model, batch) < 0.7 * saved_bytes(plain, batch)


def test_copies_and_pickles_recompute_by_themselves_and_signatures_stay():
    model = net()
    hr.gradient_checkpointing_enable(model)
    step(model, images())
    file = io.BytesIO()
    torch.save(model, file)
    file.seek(0)
    plain = net()
    plain.load_state_dict(model.state_dict())
    wanted = step(plain, images())
    for other in (copy.deepcopy(model), torch.load(file, weights_only=False)):
        calls = model.calls()
        before = other.calls()
        assert_same_bits(step(other, images()), wanted)
        assert [after - start for start, after in zip(before, other.calls())] == [2] * 6 and model.calls() == calls
        hr.gradient_checkpointing_disable(other)
        assert "forward" not in vars(other) and "forward" in vars(model)
    assert list(inspect.signature(model.forward).parameters) == ["images"]


def test_a_forward_that_another_put_over_ours_stays_and_ours_does_nothing_after_disable():
    model = net()
    hr.gradient_checkpointing_enable(model.backbone)
    inner = model.backbone[0].forward
    model.backbone[0].forward = lambda images: inner(images)
    hr.gradient_checkpointing_disable(model.backbone)
    step(model, images())
    assert model.calls() == [1] * 6 and "forward" in vars(model.backbone[0])


def test_within_hooks_of_the_users_own_nothing_is_measured_and_the_report_says_so():
    model = net()
    checkpointing = hr.gradient_checkpointing_enable(model, budget_mib=1)
    with torch.autograd.graph.save_on_cpu():
        model(images()).sum().backward()
    assert "not measured" in checkpointing.report.reason and checkpointing.report.saved_bytes_before is None
    assert model.calls() == [2] * 6
    step(model, images())
    assert "not measured" not in checkpointing.report.reason and checkpointing.report.saved_bytes_before > 0


def test_a_part_within_torchs_own_checkpoint_goes_through():
    plain, model = net(), net()
    hr.gradient_checkpointing_enable(model, budget_mib=0.01)
    gradients = []
    for each in (plain, model):
        torch.manual_seed(3)
        checkpoint(each, images(), use_reentrant=False).sum().backward()
        gradients.append([parameter.grad for parameter in each.parameters()])
    assert all(map(torch.equal, *gradients))


def test_offload_on_the_cpu_is_not_applied_and_says_why():
    plain, model = net(), net()
    report = hr.gradient_checkpointing_enable(model, offload="host").report
    assert report.offload == "none" and "offload=\"host\" is not applied: the part is on cpu" in report.reason
    assert_same_bits(step(model, images()), step(plain, images()))


@pytest.mark.engine
@pytest.mark.parametrize("precision", ["fp32", "bf16"])
def test_a_trainer_takes_the_same_steps_with_it(precision):
    def trained(enables: bool) -> Net:
        model = net()
        if enables:
            hr.gradient_checkpointing_enable(model.backbone, budget_mib=0.05)
        trainer = hr.Trainer(model, torch.optim.AdamW(model.parameters(), lr=1e-2, fused=True),
                             lambda model, batch: model(batch).float().square().mean(), precision=precision)
        torch.manual_seed(4)
        for _ in range(4):
            trainer.step(images())
        return model

    found, wanted = trained(True), trained(False)
    assert sum(found.calls()) > sum(wanted.calls())
    assert_same_bits(found.state_dict(), wanted.state_dict())


# The choice, which needs no torch.


def chain(sizes: list[int], seconds: list[float]) -> list[BlockCall]:
    """Blocks one behind the other: each saves its input, of 10 bytes, and so many bytes of its own."""
    return [BlockCall(str(place), time, {f"input {place}": 10, f"own {place}": size}, {f"input {place}": 10})
            for place, (size, time) in enumerate(zip(sizes, seconds))]


def test_the_peak_is_what_is_saved_or_what_one_block_adds_when_it_is_computed_again():
    calls = chain([100, 200, 50], [1, 1, 1])
    assert peak_bytes(calls, {"head": 7}, ()) == 7 + 30 + 350
    assert peak_bytes(calls, {"head": 7}, {"0", "2"}) == 7 + 30 + 200 + 50  # Block 2 again, where block 1 is kept.
    assert peak_bytes(calls, {"head": 7}, {"0", "1", "2"}) == 7 + 20 + 200  # Block 1 again, where block 2 is gone.
    assert peak_bytes(calls, {}, {"0", "1", "2"}, keeps_inputs=False) == 210


def test_the_choice_takes_the_cheapest_bytes_first_and_no_more_than_it_must():
    calls = chain([100, 100, 100, 100], [4, 1, 2, 3])
    assert choose(calls, {}, 440).recomputed == frozenset()
    assert choose(calls, {}, 340).recomputed == {"1"}
    assert choose(calls, {}, 240).recomputed == {"1", "2"}
    small_and_cheap = chain([30, 300], [0.1, 9])
    assert choose(small_and_cheap, {}, 340).recomputed == {"0"}
    assert choose(chain([30, 300, 300], [0.1, 2, 2]), {}, 400).recomputed == {"1"}  # Block 0 went first, and was not needed.


def test_a_choice_that_cannot_fit_is_the_smallest_found():
    choice = choose(chain([100, 100], [1, 1]), {"head": 5}, 50)
    assert not choice.fits and choice.peak_bytes == peak_bytes(chain([100, 100], [1, 1]), {"head": 5}, choice.recomputed) < 5 + 220
