"""Settings that hr.autotune switches between the updates of a run: what is computed under them, what is saved, what is refused."""

import copy
import functools
import inspect
import io
import os
import pickle
import types

import headrace as hr
import pytest
import torch
import torch.fx
from headrace import _core, _engine_door
from headrace._inert_hook import InertHook
from headrace._kept_call import KeptCalls
from headrace._live_knobs import LiveKnobs
from headrace._settings import process_settings
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

FUSED = {"optimizer.fused": "true"}
FOREACH = {"optimizer.foreach": "true"}
CHANNELS_LAST = {"model.memory_format": '"channels_last"'}
BF16 = {"train.precision": '"bf16"'}
COMPILED = {"model.compile": "true"}
SWITCHED = {"fused": FUSED, "foreach": FOREACH, "channels-last": CHANNELS_LAST, "bf16": BF16,
            "all": {**FUSED, **CHANNELS_LAST, **BF16}}

OPTIMIZERS = {
    "SGD": lambda parameters: torch.optim.SGD(parameters, lr=0.01, momentum=0.9),
    "AdamW": lambda parameters: torch.optim.AdamW(parameters, lr=1e-3),
}
WITHOUT_FUSED = {kind.__name__: kind for kind in (
    torch.optim.RMSprop, torch.optim.NAdam, torch.optim.RAdam, torch.optim.Adamax, torch.optim.ASGD, torch.optim.Rprop,
    torch.optim.Adadelta)}
WITH_FOREACH = {**OPTIMIZERS, **WITHOUT_FUSED}


pytestmark = pytest.mark.usefixtures("one_thread", "few_objects")


def network():
    torch.manual_seed(3)
    return nn.Sequential(nn.Conv2d(2, 4, 3, bias=False), nn.BatchNorm2d(4), nn.ReLU(), nn.Conv2d(4, 4, 3), nn.ReLU(), nn.Flatten(),
                         nn.Linear(4 * 16, 3))


def some_batches(count=12):
    random = torch.Generator().manual_seed(1)
    return [(torch.randn(8, 2, 8, 8, generator=random), torch.randint(0, 3, (8,), generator=random)) for _ in range(count)]


class Run:
    """A training run, and the knobs on its objects."""

    def __init__(self, optimizer="SGD"):
        self.model = network()
        self.optimizer = WITH_FOREACH[optimizer](self.model.parameters())
        self.knobs = LiveKnobs([self.model], [self.optimizer], None)

    def step(self, batch):
        loss = nn.functional.cross_entropy(self.model(batch[0]), batch[1])
        self.optimizer.zero_grad()
        loss.backward()
        self.optimizer.step()
        return loss.detach()

    @property
    def kernel(self):
        return self.model[3].weight

    def tensors(self):
        """Of parameters, gradients and state, by name."""
        found = {}
        for name, parameter in self.model.named_parameters():
            found[name] = parameter
            if parameter.grad is not None:
                found[f"{name} gradient"] = parameter.grad
            found.update({f"{name} {key}": value for key, value in self.optimizer.state.get(parameter, {}).items()})
        return found


def strides(tensors):
    return {name: tensor.stride() for name, tensor in tensors.items()}


def is_channels_last(tensor):
    return tensor.is_contiguous(memory_format=torch.channels_last) and not tensor.is_contiguous()


def assert_close(run, other, **tolerance):
    for (name, ours), theirs in zip(run.model.state_dict().items(), other.model.state_dict().values()):
        torch.testing.assert_close(ours, theirs, msg=lambda text, name=name: f"{name}: {text}", **tolerance)


def attributes(thing):
    """Of an object, what they are and what containers of them hold."""
    return {key: (id(value), list(value) if isinstance(value, (dict, list)) else value) for key, value in vars(thing).items()
            if not isinstance(value, torch.Tensor)}


def everything(run):
    """All that undo() gives back."""
    return {
        "modules": [attributes(module) for module in run.model.modules()],
        "optimizer": attributes(run.optimizer),
        "groups": [{key: value for key, value in group.items() if key != "params"} for group in run.optimizer.param_groups],
        "strides": strides(run.tensors()),
        "threads": torch.get_num_threads(),
        "process": process_settings(),
        "autocast": (torch.is_autocast_enabled("cpu"), torch.get_autocast_dtype("cpu"), torch.is_autocast_cache_enabled()),
    }


# What is computed.

@pytest.mark.parametrize("optimizer", OPTIMIZERS)
def test_the_fused_optimizer_comes_and_goes_within_rounding(optimizer):
    run, plain = Run(optimizer), Run(optimizer)
    was_fused = []
    for i, batch in enumerate(some_batches()):
        applied = run.knobs.apply(FUSED if i % 3 == 1 else {})
        assert applied == ([("optimizer.fused", "true", "true", "")] if i % 3 == 1 else [])
        was_fused.append(run.optimizer.param_groups[0]["fused"])
        for each in (run, plain):
            each.step(batch)
    assert was_fused == [None, True, None] * 4
    assert_close(run, plain, rtol=0, atol=1e-6)


def implementation(optimizer):
    """What each group says of it."""
    return [(group.get("fused"), group.get("foreach")) for group in optimizer.param_groups]


@pytest.fixture
def updates_by_lists(monkeypatch):
    """One entry for each group that torch updates by foreach; by fused, too."""
    calls, plain = [], torch.optim.Optimizer._group_tensors_by_device_and_dtype

    def counted(*given, **options):
        calls.append(1)
        return plain(*given, **options)

    monkeypatch.setattr(torch.optim.Optimizer, "_group_tensors_by_device_and_dtype", staticmethod(counted))
    return calls


@pytest.mark.parametrize("optimizer", WITH_FOREACH)
def test_the_foreach_optimizer_comes_and_goes_within_rounding(optimizer, updates_by_lists):
    run, plain = Run(optimizer), Run(optimizer)
    fused = None if optimizer in OPTIMIZERS else "absent"
    found = []
    for i, batch in enumerate(some_batches()):
        applied = run.knobs.apply(FOREACH if i % 3 == 1 else {})
        assert applied == ([("optimizer.foreach", "true", "true", "")] if i % 3 == 1 else [])
        group = run.optimizer.param_groups[0]
        found.append((group.get("fused", "absent"), group["foreach"]))
        for each in (run, plain):
            each.step(batch)
    on = (False if fused is None else "absent", True)
    assert found == [(fused, None), on, (fused, None)] * 4
    assert len(updates_by_lists) == 4
    assert_close(run, plain, rtol=0, atol=1e-5)


def test_fused_and_foreach_take_turns_and_are_never_on_together():
    run, plain = Run("AdamW"), Run("AdamW")
    found = []
    for batch, settings in zip(some_batches(6), (FUSED, FOREACH, {}, FOREACH, FUSED, {})):
        run.knobs.apply(settings)
        found += implementation(run.optimizer)
        for each in (run, plain):
            each.step(batch)
    fused, foreach, written = (True, False), (False, True), (None, None)
    assert found == [fused, foreach, written, foreach, fused, written]
    assert_close(run, plain, rtol=0, atol=1e-6)


def test_a_replay_under_foreach_compares_an_update_with_one_as_written_and_leaves_no_trace(updates_by_lists):
    run, plain = Run("RMSprop"), Run("RMSprop")
    batches = some_batches(2)
    for each in (run, plain):
        each.step(batches[0])
    kept, found = KeptCalls([run.model], [run.optimizer]), []
    kept.arm()
    hook = run.optimizer.register_step_pre_hook(lambda *_: found.append(kept.replay(run.knobs.apply, {}, FOREACH, {})))
    for each in (run, plain):
        each.step(batches[1])
    hook.remove()
    kept.end()
    (result,) = found
    assert result["bit_equal"] and result["update_difference"] is not None and result["update_difference"] < 1e-6
    assert len(updates_by_lists) == 1  # Of the copies, under the change.
    assert implementation(run.optimizer) == [(None, None)]
    assert all(map(torch.equal, run.model.state_dict().values(), plain.model.state_dict().values()))


def test_undo_gives_foreach_back_as_each_group_was_written():
    model = nn.Sequential(*(nn.Linear(3, 3) for _ in range(3)))
    optimizer = torch.optim.RMSprop([
        {"params": list(model[0].parameters())}, {"params": list(model[1].parameters()), "foreach": False},
        {"params": list(model[2].parameters())}])
    del optimizer.param_groups[2]["foreach"]  # As an optimizer of one's own may have it.
    written = [dict(group) for group in optimizer.param_groups]
    knobs = LiveKnobs([model], [optimizer], None)
    knobs.apply(FOREACH)
    assert [group.get("foreach", "absent") for group in optimizer.param_groups] == [True, True, "absent"]
    assert all("fused" not in group for group in optimizer.param_groups)
    assert [group.get("foreach", "absent") for group in optimizer.state_dict()["param_groups"]] == [None, False, "absent"]
    knobs.undo()
    assert optimizer.param_groups == written


def test_several_optimizers_and_their_groups_are_switched_together():
    first, second = nn.Linear(3, 3), nn.Linear(3, 3)
    optimizers = [torch.optim.SGD([{"params": [first.weight]}, {"params": [first.bias], "foreach": True}], lr=0.1),
                  torch.optim.AdamW(second.parameters())]
    knobs = LiveKnobs([first, second], optimizers, None)
    written = [(group["fused"], group["foreach"]) for optimizer in optimizers for group in optimizer.param_groups]
    assert written == [(None, None), (None, True), (None, None)]
    knobs.apply(FUSED)
    assert all((group["fused"], group["foreach"]) == (True, False) for optimizer in optimizers for group in optimizer.param_groups)
    knobs.apply({})
    assert [(group["fused"], group["foreach"]) for optimizer in optimizers for group in optimizer.param_groups] == written


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
@pytest.mark.parametrize("settings", [CHANNELS_LAST, {**CHANNELS_LAST, **FUSED}], ids=["alone", "fused"])
def test_channels_last_takes_gradients_and_state_along_and_gives_the_strides_back(settings, optimizer):
    run, plain = Run(optimizer), Run(optimizer)
    parameters = list(run.model.parameters())
    for i, batch in enumerate(some_batches()):
        run.knobs.apply(settings if 2 <= i < 6 or i == 8 else {})
        if i == 2:
            state = [value for key, value in run.optimizer.state[run.kernel].items() if key != "step"]
            assert state and all(map(is_channels_last, [run.kernel, run.kernel.grad, *state]))
        for each in (run, plain):
            each.step(batch)
    assert strides(run.tensors()) == strides(plain.tensors())
    assert all(ours is theirs for ours, theirs in zip(run.model.parameters(), parameters))
    assert_close(run, plain, rtol=1e-4, atol=1e-5)


def test_weights_of_five_dimensions_change_their_layout_too():
    torch.manual_seed(1)
    model = nn.Conv3d(2, 4, 3)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    knobs = LiveKnobs([model], [optimizer], None)
    video, written = torch.randn(2, 2, 4, 5, 6), model.weight.stride()
    expected = model(video)
    knobs.apply(CHANNELS_LAST)
    assert model.weight.is_contiguous(memory_format=torch.channels_last_3d)
    torch.testing.assert_close(model(video), expected, rtol=1e-4, atol=1e-5)
    knobs.apply({})
    assert model.weight.stride() == written


def test_inputs_get_the_layout_of_weights_of_their_dimensions_alone():
    class Probe(nn.Module):
        def __init__(self):
            super().__init__()
            self.convolution = nn.Conv2d(2, 4, 3)

        def forward(self, images, clip):
            seen.append((is_channels_last(images), clip.is_contiguous()))
            return self.convolution(images).mean() + clip.mean()

    seen = []
    model = Probe()
    knobs = LiveKnobs([model], [torch.optim.SGD(model.parameters(), lr=0.1)], None)
    knobs.apply(CHANNELS_LAST)
    model(torch.randn(2, 2, 5, 5), clip=torch.randn(2, 2, 3, 5, 5))
    assert seen == [(True, True)]


@pytest.mark.engine
def test_a_run_whose_tensors_took_turns_in_the_arena_has_the_bits_of_the_untouched_one():
    run, plain = Run(), Run()
    arena = {"compute.allocator": '"arena"'}
    if "LD_PRELOAD" in os.environ:  # A sanitizer's malloc (make check PARTS=asan-python).
        with pytest.raises(hr.errors.UnsupportedError, match="compute.allocator stays .*AddressSanitizer"):
            run.knobs.apply(arena)
        return
    before = process_settings()
    images = torch.randn(64, 2, 8, 8)  # Large enough for the arena.
    labels = torch.arange(64) % 3
    for i in range(8):
        run.knobs.apply(arena if i % 2 else {})
        assert process_settings() == {**before, **(arena if i % 2 else {})}
        run.step((images, labels))
    run.knobs.apply({})
    assert process_settings() == before
    for _ in range(8):
        plain.step((images, labels))
    for ours, theirs in zip(run.model.state_dict().values(), plain.model.state_dict().values()):
        assert torch.equal(ours, theirs)


def test_threads_and_denormals_are_switched_and_given_back():
    run = Run()
    before = process_settings()
    small = torch.full((4,), 1e-37)  # A hundredth of it is below the least normal number.
    applied = run.knobs.apply({"compute.intra_op_threads": "2", "compute.flush_denormal": "true"})
    assert applied == [("compute.flush_denormal", "true", "true", ""), ("compute.intra_op_threads", "2", "2", "")]
    assert torch.get_num_threads() == 2
    assert (small / 100).sum() == 0
    run.knobs.apply({})
    assert torch.get_num_threads() == 1 and process_settings() == before
    assert (small / 100).sum() > 0


def products_that_are_no_zero():
    """Of 1 << 18 that are too small for a normal number, of which each of two threads makes half."""
    return int(torch.full((1 << 18,), 1e-20).mul(1e-20).ne(0).sum())


def test_denormals_count_as_zero_in_every_compute_thread_until_they_are_given_back():
    run = Run()
    two, flushed = {"compute.intra_op_threads": "2"}, {"compute.flush_denormal": "true"}
    run.knobs.apply(two)
    assert products_that_are_no_zero() == 1 << 18  # The second thread is there now, with the mode of before.
    for _ in range(2):
        run.knobs.apply({**two, **flushed})
        assert process_settings()["compute.flush_denormal"] == "true"
        assert products_that_are_no_zero() == 0
        run.knobs.apply(two)
        assert products_that_are_no_zero() == 1 << 18
    run.knobs.apply({**two, **flushed})
    run.knobs.apply(flushed)  # Which leaves the second thread without work.
    run.knobs.apply({})
    torch.set_num_threads(2)
    assert products_that_are_no_zero() == 1 << 18


def test_denormals_stay_where_torchs_other_threads_cannot_be_reached(monkeypatch):
    run = Run()
    before = everything(run)
    monkeypatch.setattr(_core, "share_float_mode", lambda threads: f"{threads} threads cannot be reached")
    with pytest.raises(hr.errors.UnsupportedError) as caught:
        run.knobs.apply({"compute.intra_op_threads": "2", "compute.flush_denormal": "true"})
    assert str(caught.value) == "autotune: compute.flush_denormal stays false: 2 threads cannot be reached"
    assert everything(run) == before and run.knobs.in_force() == {}


# Autocast.

class Probe(nn.Module):
    """Notes the type that its layer computes in."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(2)
        self.linear = nn.Linear(4, 2)
        self.seen = []

    def forward(self, value):
        result = self.linear(value)
        self.seen.append(result.dtype)
        return {"logits": result, "pair": (result, value)}

    def training_loss(self, value):
        return nn.functional.mse_loss(self.linear(value), torch.zeros(len(value), 2))


def probed():
    model = Probe()
    return model, LiveKnobs([model], [torch.optim.SGD(model.parameters(), lr=0.1)], None)


def test_precision_is_bfloat16_inside_and_float32_outside():
    model, knobs = probed()
    knobs.apply(BF16)
    result = model(torch.ones(1, 4))
    knobs.apply({})
    model(torch.ones(1, 4))
    assert model.seen == [torch.bfloat16, torch.float32]
    assert result["logits"].dtype == result["pair"][0].dtype == torch.float32
    assert not torch.is_autocast_enabled("cpu")


def test_an_evaluation_runs_as_written():
    model, knobs = probed()
    knobs.apply(BF16)
    model.eval()
    with torch.no_grad():
        model(torch.ones(1, 4))
    model(torch.ones(1, 4))  # A model that is trained in eval mode, as with frozen statistics.
    model.train()
    with torch.no_grad():  # A generator whose images the discriminator is trained with.
        model(torch.ones(1, 4))
    assert model.seen == [torch.float32, torch.bfloat16, torch.bfloat16]


def test_of_models_within_each_other_the_outermost_call_is_tuned():
    class Outer(nn.Module):
        def __init__(self):
            super().__init__()
            self.inner = Probe()

        def forward(self, value):
            found.append(self.inner(value)["logits"].dtype)
            return value

    found = []
    model = Outer()
    knobs = LiveKnobs([model, model.inner], [torch.optim.SGD(model.parameters(), lr=0.1)], None)
    knobs.apply(BF16)
    model(torch.ones(1, 4))
    assert found == [torch.bfloat16]
    assert model.inner(torch.ones(1, 4))["logits"].dtype == torch.float32 and model.inner.seen == [torch.bfloat16] * 2


def test_an_exception_in_the_forward_leaves_no_autocast_behind():
    model, knobs = probed()
    knobs.apply(BF16)
    with pytest.raises(RuntimeError):
        model(torch.ones(1, 5))
    assert not torch.is_autocast_enabled("cpu")
    model(torch.ones(1, 4))
    assert model.seen == [torch.bfloat16]


def test_a_forward_keeps_its_signature():
    model, knobs = probed()
    written = inspect.signature(model.forward)
    knobs.apply(BF16)
    assert inspect.signature(model.forward) == written


def test_an_autocast_of_the_loop_s_own_ends_the_setting_and_is_told():
    model, knobs = probed()
    knobs.apply(BF16)
    with torch.autocast("cpu", torch.bfloat16):
        assert model(torch.ones(1, 4))["logits"].dtype == torch.bfloat16  # As the loop has it.
    reason = "the loop calls the model under autocast of its own, to torch.bfloat16"
    assert knobs.ended == {"train.precision": reason} and knobs.in_force() == {}
    with pytest.raises(hr.errors.UnsupportedError) as caught:
        knobs.apply(BF16)
    assert str(caught.value) == f"autotune: train.precision: {reason}"
    assert knobs.apply({}) == []


def test_where_the_loop_calls_a_part_and_never_the_model_precision_and_compiling_are_out():
    model, knobs = probed()
    knobs.note_calls([])
    knobs.note_calls([model.linear, model])
    assert knobs.ended == {}
    knobs.note_calls([model.linear])
    reason = "the loop does not call the Probe itself, but the Linear within it; wanted that among the models"
    assert knobs.ended == {"train.precision": reason, "model.compile": reason}
    with pytest.raises(hr.errors.UnsupportedError) as caught:
        knobs.apply(BF16)
    assert str(caught.value) == f"autotune: train.precision: {reason}"
    knobs.apply(FUSED)
    knobs.undo()


def test_a_part_that_the_loop_calls_is_tuned_where_it_stands_among_the_models():
    torch.manual_seed(3)
    model, value = Probe(), torch.randn(2, 4)
    knobs = LiveKnobs([model, model.linear], [torch.optim.SGD(model.parameters(), lr=0.1)], None)
    knobs.note_calls([model.linear])
    assert knobs.ended == {}
    plain = model.training_loss(value)
    knobs.apply(BF16)
    rounded = model.training_loss(value)
    assert rounded.dtype == torch.float32 and not torch.equal(rounded, plain)
    torch.testing.assert_close(rounded, plain, rtol=0.05, atol=0.01)
    knobs.undo()
    assert torch.equal(model.training_loss(value), plain) and "forward" not in vars(model.linear)


# What is saved.

def fresh_model(run):
    fresh = network()
    fresh.load_state_dict({name: tensor.clone() for name, tensor in run.model.state_dict().items()})
    return fresh


def assert_plain(model, run):
    """A copy of the run's model with nothing of headrace's."""
    fresh = fresh_model(run)
    for ours, theirs in zip(model.modules(), fresh.modules()):
        assert vars(ours).keys() == vars(theirs).keys()
        assert not any(value for key, value in vars(ours).items() if "_hooks" in key)
    assert strides(dict(model.named_parameters())) == strides(dict(fresh.named_parameters()))
    images = some_batches(1)[0][0]
    assert torch.equal(model.train()(images), fresh.train()(images))


def in_force(run, settings):
    return (
        implementation(run.optimizer) == [(True, False) if FUSED.keys() <= settings.keys() else
                                          (False, True) if FOREACH.keys() <= settings.keys() else (None, None)]
        and is_channels_last(run.kernel) == (CHANNELS_LAST.keys() <= settings.keys())
        and ("forward" in vars(run.model)) == (settings not in (FUSED, FOREACH)))


@pytest.mark.parametrize("settings", SWITCHED.values(), ids=SWITCHED.keys())
def test_what_is_saved_under_a_setting_is_as_written_and_the_setting_stays(settings):
    run, plain = Run(), Run()
    batches = some_batches(6)
    for each in (run, plain):
        each.step(batches[0])
    run.knobs.apply(settings)
    run.step(batches[1])
    assert in_force(run, settings)

    state = run.model.state_dict()
    assert strides(state) == strides(plain.model.state_dict())
    run.step(batches[2])
    assert in_force(run, settings)

    saved, expected = run.optimizer.state_dict(), plain.optimizer.state_dict()
    assert saved["param_groups"] == expected["param_groups"]
    for ours, theirs in zip(saved["state"].values(), expected["state"].values()):
        assert strides(ours) == strides(theirs)
    run.step(batches[3])
    assert in_force(run, settings)

    assert_plain(copy.deepcopy(run.model), run)
    run.step(batches[4])
    assert in_force(run, settings)

    file = io.BytesIO()
    torch.save(run.model, file)
    for data in (pickle.dumps(run.model), file.getvalue()):
        assert b"headrace" not in data
    assert_plain(pickle.loads(pickle.dumps(run.model)), run)
    file.seek(0)
    assert_plain(torch.load(file, weights_only=False), run)
    run.step(batches[5])
    assert in_force(run, settings)


def test_a_part_of_a_model_is_saved_as_written_too():
    run = Run()
    written = run.kernel.stride()
    run.knobs.apply(CHANNELS_LAST)
    assert run.model[3].state_dict()["weight"].stride() == written
    run.step(some_batches(1)[0])
    data = pickle.dumps(run.model[3])
    assert b"headrace" not in data and pickle.loads(data).weight.stride() == written


def test_after_a_save_training_has_the_layout_again_and_evaluation_does_not_bring_it():
    run = Run()
    images = some_batches(1)[0][0]
    run.knobs.apply(CHANNELS_LAST)
    run.model.state_dict()
    assert not is_channels_last(run.kernel)
    run.model.eval()
    with torch.no_grad():
        run.model(images)
    assert not is_channels_last(run.kernel)
    run.model.train()(images)
    assert is_channels_last(run.kernel)
    run.model.state_dict()
    run.knobs.apply({})  # Nobody waits for a training call any more.
    run.model(images)
    assert not is_channels_last(run.kernel)


def test_what_is_written_into_a_state_dict_arrives_in_the_model():
    run = Run()
    run.knobs.apply(CHANNELS_LAST)
    for name, tensor in run.model.state_dict().items():
        if name == "3.weight":
            tensor.fill_(0.5)
    run.model(some_batches(1)[0][0])
    assert is_channels_last(run.kernel) and bool((run.kernel == 0.5).all())


def test_a_layout_that_cannot_be_put_back_after_a_save_is_told_and_the_loop_goes_on(monkeypatch):
    run = Run()
    run.step(some_batches(1)[0])
    run.knobs.apply(CHANNELS_LAST)
    run.model.state_dict()

    def full(*ignored):
        raise MemoryError("no room")

    monkeypatch.setattr("headrace._live_layout.in_layout_of", full)
    run.model(some_batches(1)[0][0]).sum().backward()
    monkeypatch.undo()
    assert run.kernel.is_contiguous() and run.knobs.in_force() == {}
    assert run.knobs.ended == {"model.memory_format": "after a save the layout could not be put back: no room"}


def test_copies_have_the_user_s_hooks_and_none_of_headrace_s():
    run = Run()
    told = []
    run.model.register_forward_pre_hook(InertHook(lambda *given: told.append("ours")), with_kwargs=True)
    run.model.register_forward_hook(tell_of_a_call)
    run.knobs.apply(BF16)
    copied = copy.deepcopy(run.model)
    assert len(copied._forward_pre_hooks) == len(copied._forward_pre_hooks_with_kwargs) == 0
    assert list(copied._forward_hooks.values()) == [tell_of_a_call]
    copied(some_batches(1)[0][0])
    assert told == []
    run.model(some_batches(1)[0][0])
    assert told == ["ours"]


def tell_of_a_call(module, args, result):
    del module, args, result


class Whole(torch.optim.SGD):
    """Its copies have all that it has."""

    def __getstate__(self):
        return dict(vars(self))


def test_the_copy_of_an_optimizer_that_copies_its_hooks_tells_how_it_stands_itself():
    model = nn.Linear(3, 3)
    optimizer = Whole(model.parameters(), lr=0.1)
    knobs = LiveKnobs([model], [optimizer], None)
    knobs.apply(FUSED)
    copied = copy.deepcopy(optimizer)
    knobs.undo()
    assert copied.state_dict()["param_groups"][0]["fused"] is True
    assert optimizer.state_dict()["param_groups"][0]["fused"] is None


def test_a_forward_that_the_user_put_on_the_model_is_called_copied_and_given_back():
    run = Run()
    calls = []

    def forward(self, images):
        calls.append(self)
        return nn.Sequential.forward(self, images)

    own = run.model.forward = types.MethodType(forward, run.model)
    run.knobs.apply(BF16)
    images = some_batches(1)[0][0]
    run.model(images)
    copied = copy.deepcopy(run.model)
    copied(images)
    assert [call is run.model for call in calls] == [True, False] and calls[1] is copied
    assert isinstance(vars(copied)["forward"], types.MethodType)
    run.knobs.undo()
    assert vars(run.model)["forward"] is own


def test_a_forward_that_somebody_puts_over_ours_stays_there():
    model, knobs = probed()
    knobs.apply(BF16)
    inner = model.forward
    outer = model.forward = lambda value: inner(value)
    model(torch.ones(1, 4))
    knobs.apply({})
    model(torch.ones(1, 4))
    knobs.apply(BF16)
    model(torch.ones(1, 4))
    knobs.undo()
    assert vars(model)["forward"] is outer
    model(torch.ones(1, 4))
    assert model.seen == [torch.bfloat16, torch.float32, torch.bfloat16, torch.float32]


@pytest.mark.parametrize("update, groups", [(FUSED, (True, False)), (FOREACH, (False, True))], ids=["fused", "foreach"])
@pytest.mark.parametrize("optimizer", OPTIMIZERS)
def test_a_checkpoint_loaded_under_settings_gets_them_and_is_as_saved_without(optimizer, update, groups):
    run, plain = Run(optimizer), Run(optimizer)
    batches = some_batches(8)
    for each in (run, plain):
        for batch in batches[:2]:
            each.step(batch)
    checkpoint = copy.deepcopy((plain.model.state_dict(), plain.optimizer.state_dict()))
    checkpoint[1]["param_groups"][0]["lr"] = 0.003
    settings = {**update, **CHANNELS_LAST}
    run.knobs.apply(settings)
    run.step(batches[2])
    for each in (run, plain):
        each.model.load_state_dict(checkpoint[0])
        each.optimizer.load_state_dict(copy.deepcopy(checkpoint[1]))  # torch takes the tensors themselves.
    group = run.optimizer.param_groups[0]
    assert (group["fused"], group["foreach"], group["lr"]) == (*groups, 0.003)
    assert run.optimizer.state_dict()["param_groups"] == plain.optimizer.state_dict()["param_groups"]
    for batch in batches[3:6]:
        for each in (run, plain):
            each.step(batch)
    assert in_force(run, settings)
    assert all(map(is_channels_last, [value for key, value in run.optimizer.state[run.kernel].items() if key != "step"]))
    run.knobs.apply({})
    group = run.optimizer.param_groups[0]
    assert (group["fused"], group["foreach"], group["lr"]) == (None, None, 0.003)
    for batch in batches[6:]:
        for each in (run, plain):
            each.step(batch)
    assert_close(run, plain, rtol=1e-4, atol=1e-5)


# How it ends.

@pytest.mark.parametrize("settings", SWITCHED.values(), ids=SWITCHED.keys())
@pytest.mark.parametrize("end", ["undo", "apply nothing"])
def test_at_the_end_the_objects_are_as_they_were_but_for_their_values(settings, end):
    run, plain = Run(), Run()
    batches = some_batches(4)
    for each in (run, plain):
        each.step(batches[0])
    before = everything(run)
    run.knobs.apply({**settings, "compute.intra_op_threads": "2"})
    for batch in batches[1:3]:
        run.step(batch)
    run.model.state_dict()
    run.step(batches[3])
    if end == "undo":
        run.knobs.undo()
    else:
        run.knobs.apply({})
        run.knobs.keep_only()
    assert everything(run) == before
    assert run.knobs.in_force() == {}
    weights = run.kernel.detach().clone()
    run.knobs.undo()
    assert torch.equal(run.kernel, weights) and everything(run) == before


def test_keep_only_leaves_what_a_setting_in_force_needs():
    run = Run()
    before = everything(run)
    run.knobs.apply({**FUSED, **BF16})
    run.knobs.apply(FUSED)
    run.knobs.keep_only()
    assert [attributes(module) for module in run.model.modules()] == before["modules"]
    assert run.optimizer.state_dict()["param_groups"][0]["fused"] is None
    assert run.optimizer.param_groups[0]["fused"] is True


def test_the_baseline_says_what_the_objects_have():
    run = Run()
    baseline = run.knobs.baseline()
    written = {"train.precision": '"fp32"', "model.memory_format": '"contiguous"', "optimizer.fused": "false",
               "optimizer.foreach": "false", "model.compile": "false"}
    assert {key: baseline[key] for key in written} == written
    assert baseline["compute.intra_op_threads"] == "1"
    assert baseline.items() >= process_settings().items()
    assert run.knobs.apply(baseline) == [(key, value, value, "") for key, value in sorted(baseline.items())]
    assert not any(key in vars(run.model) for key in ("forward", "__getstate__"))


def test_settings_that_have_passed_are_looked_at_again_only_where_something_has_ended():
    class Counting(LiveKnobs):
        looks = 0

        def baseline(self):
            self.looks += 1
            return super().baseline()

    model = network()
    knobs = Counting([model], [torch.optim.AdamW(model.parameters())], None)
    for _ in range(3):
        knobs.apply(FUSED)
        knobs.apply({})
    assert knobs.looks == 2
    knobs.ended_between_switches["optimizer.fused"] = "it is over"
    with pytest.raises(hr.errors.UnsupportedError, match="optimizer.fused: it is over"):
        knobs.apply(FUSED)
    knobs.apply({})
    assert knobs.looks == 4
    knobs.offer("rounding", (), (), None)  # The objects may have changed since.
    before = knobs.looks
    knobs.apply({})
    assert knobs.looks == before + 1


# The loader.

def test_settings_of_the_loader_are_switched_with_the_others_and_given_back(monkeypatch):
    run = Run()
    loader = DataLoader(TensorDataset(torch.zeros(64, 2)), 2, num_workers=2)
    knobs = LiveKnobs([run.model], [run.optimizer], loader)
    assert type(loader) is DataLoader
    written = {"data.num_workers": "2", "data.prefetch_batches": "2"}
    assert knobs.baseline().items() >= written.items() and knobs.queue() == 4
    knobs.follow()
    assert knobs.apply({"data.num_workers": "1", **FUSED}) == [
        ("data.num_workers", "1", "1", ""), ("optimizer.fused", "true", "true", "")]
    assert knobs.queue() == 2 and run.optimizer.param_groups[0]["fused"] is True
    with pytest.raises(hr.errors.InvalidArgumentError) as caught:
        knobs.apply({"data.num_workers": "-1"})
    assert str(caught.value) == "autotune: data.num_workers: wanted a whole number of at least 0, found -1"

    def full(channels_last):
        if channels_last:
            raise MemoryError("no room")

    monkeypatch.setattr(knobs._layout, "set", full)
    with pytest.raises(hr.errors.OutOfMemoryError):
        knobs.apply({"data.prefetch_batches": "4", **CHANNELS_LAST})
    assert knobs.queue() == 2 and knobs.in_force() == {"data.num_workers": "1", **FUSED}
    knobs.undo()
    assert knobs.queue() == 4 and type(loader) is DataLoader and loader.num_workers == 2


# Compiling.

def counted(compilations, monkeypatch, failure=None):
    """In the place of torch.compile: as many compilations at each call, as torch counts them."""
    from torch._dynamo.utils import counters

    calls = iter(compilations)
    made = []

    def compiling(forward):
        made.append(forward)

        def compiled(*args, **kwargs):
            counters["frames"]["ok"] += next(calls)
            if failure is not None:
                raise failure
            return forward(*args, **kwargs)

        return compiled

    monkeypatch.setattr(torch, "compile", compiling)
    return made


def test_a_model_that_recompiles_is_given_up_after_four_times(monkeypatch):
    made = counted([1, 0, 1, 0, 1, 1, 1], monkeypatch)
    run, plain = Run(), Run()
    run.knobs.apply(COMPILED)
    for batch in some_batches(9):
        assert torch.equal(run.step(batch), plain.step(batch))
    reason = "given up after 4 recompilations, the last for inputs of shape (8, 2, 8, 8)"
    assert run.knobs.ended == {"model.compile": reason} and run.knobs.in_force() == {} and len(made) == 1
    with pytest.raises(hr.errors.UnsupportedError) as caught:
        run.knobs.apply({**COMPILED, **FUSED})
    assert str(caught.value) == f"autotune: model.compile: {reason}"
    run.knobs.apply({})


def test_the_first_compilation_under_each_precision_is_none_too_many(monkeypatch):
    counted([1, 0, 1, 0, 1, 1, 1], monkeypatch)
    run = Run()
    for settings, steps in ((COMPILED, 2), ({**COMPILED, **BF16}, 2), (COMPILED, 3)):
        run.knobs.apply(settings)
        for batch in some_batches(steps):
            run.step(batch)
    assert run.knobs.ended == {}  # Three recompilations.


def test_a_compiled_forward_is_kept_from_switch_to_switch_and_freed_at_the_end(monkeypatch):
    made = counted([1] + [0] * 9, monkeypatch)
    run = Run()
    batches = some_batches(4)
    for batch, settings in zip(batches, (COMPILED, {}, COMPILED, {})):
        run.knobs.apply(settings)
        run.step(batch)
    assert len(made) == 1
    run.knobs.keep_only()
    run.knobs.apply(COMPILED)
    run.step(batches[0])
    assert len(made) == 2


def test_a_compiler_that_fails_is_told_and_the_loop_goes_on(monkeypatch):
    from torch._dynamo.exc import InternalTorchDynamoError

    counted([0], monkeypatch, InternalTorchDynamoError("no such operator\nand how it came"))
    run, plain = Run(), Run()
    run.knobs.apply(COMPILED)
    batch = some_batches(1)[0]
    assert torch.equal(run.step(batch), plain.step(batch))
    assert run.knobs.ended == {"model.compile": "torch.compile failed: InternalTorchDynamoError: no such operator"}
    assert run.knobs.in_force() == {}


def test_an_evaluation_is_not_compiled(monkeypatch):
    made = counted([1], monkeypatch)
    run = Run()
    run.knobs.apply(COMPILED)
    run.model.eval()
    with torch.no_grad():
        run.model(some_batches(1)[0][0])
    assert made == []


def test_torch_traces_the_forward_once_for_inputs_of_one_shape(monkeypatch):
    """Without a compiler behind it."""
    from torch._dynamo.utils import counters

    monkeypatch.setattr(torch, "compile", functools.partial(torch.compile, backend="eager"))
    run, plain = Run(), Run()
    run.knobs.apply(COMPILED)
    compiled = []
    for batch in some_batches(3):
        before = counters["frames"]["ok"]
        torch.testing.assert_close(run.step(batch), plain.step(batch))
        compiled.append(counters["frames"]["ok"] - before > 0)
    assert compiled == [True, False, False] and run.knobs.ended == {}
    run.knobs.undo()


# What is offered.

def offered(models, optimizers, loader=None, steps=1000, fixed=()):
    knobs = LiveKnobs(models, optimizers, loader)
    offer = knobs.offer("rounding", fixed, [], steps)
    return knobs, offer, {entry.key: entry.reason for entry in offer.not_tried}


def within_reach(*keys):
    """Of these keys, those that can be had here."""
    return tuple(key for key in keys if key not in _engine_door.refusals())


def test_what_switches_live_is_offered_from_the_hardware_to_the_model(monkeypatch):
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {0, 1})
    run = Run()
    knobs, offer, reasons = offered([run.model], [run.optimizer])
    assert tuple(candidate.key for candidate in offer.candidates) == within_reach(
        "compute.allocator", "compute.intra_op_threads", "compute.flush_denormal", "train.precision", "optimizer.fused",
        "optimizer.foreach", "model.memory_format", "model.compile")
    assert [dict(candidate.changes) for candidate in offer.candidates[-5:]] == [BF16, FUSED, FOREACH, CHANNELS_LAST, COMPILED]
    # Where the machine is not quiet, the first of these are tried, in the order above.
    by_promise = sorted(offer.candidates, key=lambda candidate: candidate.promise_rank)
    assert tuple(candidate.key for candidate in by_promise) == within_reach(
        "model.memory_format", "train.precision", "optimizer.fused", "compute.allocator", "compute.intra_op_threads",
        "model.compile", "optimizer.foreach", "compute.flush_denormal")
    assert knobs.baseline().keys() == {candidate.key for candidate in offer.candidates}
    assert reasons["data.num_workers"] == reasons["data.prefetch_batches"] == "no loader was given"
    own_steps = "the loop makes its steps itself; headrace.tune(whole_step=True) tries it"
    assert reasons["train.micro_batches"] == own_steps
    needing = dict.fromkeys(("compute.allocator", "train.engine"))
    assert {key: reasons.get(key) for key in needing} == {**needing, "train.engine": own_steps, **_engine_door.refusals()}
    assert reasons["model.fusion"].startswith("the network is your own")
    assert reasons.keys().isdisjoint(candidate.key for candidate in offer.candidates)


@pytest.mark.parametrize("optimizer", WITH_FOREACH)
def test_foreach_is_offered_where_torch_updates_one_parameter_after_the_other(optimizer):
    run = Run(optimizer)
    knobs, offer, reasons = offered([run.model], [run.optimizer])
    found = {candidate.key: candidate for candidate in offer.candidates}
    assert found["optimizer.foreach"].changes == FOREACH and found["optimizer.foreach"].numerics == "rounding"
    assert ("optimizer.fused" in found) == (optimizer in OPTIMIZERS)
    assert reasons.get("optimizer.fused") == (None if optimizer in OPTIMIZERS else f"{optimizer} has no fused implementation")
    assert knobs.baseline()["optimizer.foreach"] == "false"


@pytest.mark.parametrize("make, in_use", [
    (lambda parameters: torch.optim.AdamW(parameters), True), (lambda parameters: torch.optim.RMSprop(parameters), True),
    (lambda parameters: torch.optim.AdamW(parameters, foreach=False), False),
    (lambda parameters: torch.optim.AdamW(parameters, fused=False), False),
    (lambda parameters: torch.optim.Adafactor(parameters), False),
], ids=["AdamW", "RMSprop", "foreach=False", "fused=False", "Adafactor"])
def test_where_torch_chooses_foreach_itself_it_is_not_offered(monkeypatch, make, in_use):
    monkeypatch.setattr("headrace._settings._default_to_fused_or_foreach", lambda *given, **options: (False, True))  # As on a GPU.
    model = network()
    knobs, offer, reasons = offered([model], [make(model.parameters())])
    assert ("optimizer.foreach" in {candidate.key for candidate in offer.candidates}) == (not in_use)
    assert reasons.get("optimizer.foreach") == ("the optimizer uses foreach already" if in_use else None)
    assert knobs.baseline()["optimizer.foreach"] == ("true" if in_use else "false")


class Noisy(TensorDataset):
    """Draws in the process that loads."""

    def __getitem__(self, index):
        return super().__getitem__(index)[0] + torch.rand(2)


LOADING = ["data.num_workers", "data.num_workers", "data.prefetch_batches"]


@pytest.mark.forks
@pytest.mark.parametrize("kind, numerics", [(TensorDataset, "bit_equal"), (Noisy, "rounding")],
                         ids=["same batches", "other draws"])
def test_workers_and_prefetch_are_offered_between_the_hardware_and_the_training(monkeypatch, kind, numerics):
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {0, 1})
    run, loader = Run(), DataLoader(kind(torch.zeros(64, 2)), 4, num_workers=2)
    knobs, offer, reasons = offered([run.model], [run.optimizer], loader)
    keys = [candidate.key for candidate in offer.candidates]
    assert [key for key in keys if key.startswith("data.")] == LOADING
    assert keys[keys.index(LOADING[0]) - 1].startswith("compute.") and keys[keys.index(LOADING[-1]) + 1] == "train.precision"
    by_name = {candidate.name: candidate for candidate in offer.candidates}
    assert [by_name[f"num_workers {count}"].changes for count in (1, 0)] == [{LOADING[0]: "1"}, {LOADING[0]: "0"}]
    assert by_name["num_workers 1"].numerics == by_name["num_workers 0"].numerics == numerics
    assert ("Other draws: " in by_name["num_workers 1"].sentence) == (numerics == "rounding")
    assert by_name["deeper prefetch"].changes == {LOADING[-1]: "4"} and by_name["deeper prefetch"].numerics == "bit_equal"
    for candidate in offer.candidates:  # What is offered can be applied.
        if candidate.key in LOADING:
            assert [row[0] for row in knobs.apply(candidate.changes)] == list(candidate.changes)
    knobs.undo()
    assert type(loader) is DataLoader and set(LOADING) <= knobs.baseline().keys() and reasons.keys().isdisjoint(LOADING)


@pytest.mark.forks
@pytest.mark.parametrize("workers, options, stays, reason", [
    (2, {"worker_init_fn": lambda worker: None}, "num_workers 4",
     "its worker_init_fn prepares each worker process, and there would be none"),
    (4, {"multiprocessing_context": "spawn"}, "num_workers 2",
     "worker processes start by spawn, and import the script anew while the loop waits; wanted fork"),
], ids=["prepared workers", "spawn"])
def test_a_number_of_workers_that_the_loader_rules_out_is_not_offered_and_the_reason_is_told(
        monkeypatch, workers, options, stays, reason):
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {0, 1, 2, 3})
    run, loader = Run(), DataLoader(TensorDataset(torch.zeros(64, 2)), 4, num_workers=workers, **options)
    knobs, offer, _ = offered([run.model], [run.optimizer], loader)
    assert [candidate.name for candidate in offer.candidates if candidate.key == LOADING[0]] == [stays]
    assert [(entry.name, entry.reason) for entry in offer.not_tried if entry.key == LOADING[0]] == [("num_workers 0", reason)]
    with pytest.raises(hr.errors.UnsupportedError, match=reason):
        knobs.apply({LOADING[0]: "0"})
    knobs.undo()


def test_a_loader_that_goes_its_own_way_keeps_its_workers():
    class Own(DataLoader):
        def __iter__(self):
            return super().__iter__()

    run = Run()
    _, offer, reasons = offered([run.model], [run.optimizer], Own(TensorDataset(torch.zeros(64, 2)), 4, num_workers=2))
    assert all(candidate.key not in LOADING for candidate in offer.candidates)
    assert reasons[LOADING[0]] == reasons[LOADING[-1]] == "a Own goes over its batches in a way of its own"


def sgd(model):
    return [model], [torch.optim.SGD(model.parameters(), lr=0.1)]


def changed(change):
    """The network after `change`, under SGD."""
    def make():
        model = network()
        return sgd(change(model) or model)
    return make


def with_optimizer(make):
    def made():
        model = network()
        return [model], [make(model)]
    return made


class FullyShardedDataParallel(nn.Sequential):
    """Known by its name, so that nobody has to import torch's."""


def quantised():
    from torch.ao.nn.quantized import ReLU6

    model = network()
    model.append(ReLU6())
    return sgd(model)


def lazy():
    model = nn.Sequential(nn.LazyLinear(3), nn.Linear(3, 3))
    return [model], [torch.optim.SGD(model[1].parameters(), lr=0.1)]


def flat():
    """Two weights as parts of one vector."""
    model = nn.Sequential(nn.Conv2d(2, 2, 3, bias=False), nn.Conv2d(2, 2, 3, bias=False))
    vector = torch.randn(72)
    for i in range(2):
        model[i].weight.data = vector[36 * i:36 * (i + 1)].view(2, 2, 3, 3)
    return sgd(model)


def foreign(model):
    return torch.optim.SGD([*model.parameters(), nn.Parameter(torch.zeros(5))], lr=0.1)


def without_the_kernel(model):
    return torch.optim.SGD([one for one in model.parameters() if one is not model[3].weight], lr=0.1)


def one_fused(model):
    return torch.optim.SGD([{"params": list(model[0].parameters()), "fused": True}, {"params": list(model[3].parameters())}], lr=0.1)


def one_foreach(model):
    return torch.optim.RMSprop([{"params": list(model[0].parameters()), "foreach": True}, {"params": list(model[3].parameters())}])


OF_UPDATE = ("optimizer.fused", "optimizer.foreach")
OF_MODEL = ("train.precision", "model.memory_format", "model.compile")
OF_PROCESS = within_reach("compute.intra_op_threads", "compute.allocator", "compute.flush_denormal")
REFUSED = {
    "compiled": (changed(lambda model: model.compile()), OF_MODEL, "the model is compiled already"),
    "a part compiled": (changed(lambda model: model[3].compile()), OF_MODEL, "layer 3 is compiled already"),
    "DataParallel": (changed(nn.DataParallel), OF_MODEL, "the model is a DataParallel, which copies its modules at each call"),
    "FSDP": (changed(FullyShardedDataParallel), (*OF_MODEL, *OF_UPDATE),
             "the model is a FullyShardedDataParallel, whose ranks would have to switch at the same update"),
    "script": (changed(torch.jit.script), OF_MODEL, "the model is a ScriptModule, which runs outside of Python"),
    "torch.fx": (changed(torch.fx.symbolic_trace), OF_MODEL, "the model copies itself by __copy__ of its own"),
    "quantised": (quantised, OF_MODEL, "layer 7 is quantised"),
    "half": (changed(nn.Module.bfloat16), (*OF_MODEL, *OF_UPDATE), "the parameters are not float32 alone: torch.bfloat16"),
    "double": (changed(nn.Module.double), ("train.precision",), "the parameters are not float32 alone: torch.float64"),
    "frozen": (changed(lambda model: model.requires_grad_(False)), OF_MODEL, "no parameter requires a gradient"),
    "frozen for the optimizer": (changed(lambda model: model.requires_grad_(False)), OF_UPDATE,
                                 "none of the SGD's parameters requires a gradient"),
    "lazy": (lazy, OF_MODEL, "parameter 0.weight has no shape before the first call"),
    "no convolution": (lambda: sgd(nn.Linear(3, 3)), ("model.memory_format",), "the model has no parameter of four or five dimensions"),
    "channels-last already": (changed(lambda model: model.to(memory_format=torch.channels_last)), ("model.memory_format",),
                              "the parameters are in that layout already"),
    "flat": (flat, ("model.memory_format",), "parameters share memory"),
    "other processes": (changed(nn.Module.share_memory), ("model.memory_format",),
                        "parameter 0.weight shares its memory with other processes"),
    "not updated": (with_optimizer(without_the_kernel), ("model.memory_format",),
                    "parameter 3.weight requires a gradient, and none of the given optimizers updates it"),
    "LBFGS": (with_optimizer(lambda model: torch.optim.LBFGS(model.parameters())), ("optimizer.fused",),
              "LBFGS has no fused implementation"),
    "LBFGS, foreach": (with_optimizer(lambda model: torch.optim.LBFGS(model.parameters())), ("optimizer.foreach",),
                       "LBFGS has no foreach implementation"),
    "LBFGS's vectors": (with_optimizer(lambda model: torch.optim.LBFGS(model.parameters())), ("model.memory_format",),
                        "LBFGS is not known to work on gradients in another layout"),
    "born fused": (with_optimizer(lambda model: torch.optim.AdamW(model.parameters(), fused=True)), OF_UPDATE,
                   "the optimizer is fused already"),
    "born foreach": (with_optimizer(lambda model: torch.optim.AdamW(model.parameters(), foreach=True)), ("optimizer.foreach",),
                     "the optimizer uses foreach already"),
    "a group born foreach": (with_optimizer(one_foreach), ("optimizer.foreach",), "1 of 2 parameter groups use foreach already"),
    "nesterov": (with_optimizer(lambda model: torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9, nesterov=True)),
                 ("optimizer.foreach",), "with nesterov and no weight decay foreach writes into the gradients"),
    "lr as a tensor": (with_optimizer(lambda model: torch.optim.AdamW(model.parameters(), lr=torch.tensor(1e-3))),
                       ("optimizer.foreach",), "lr or betas is a tensor, which AdamW does not take with foreach"),
    "a group born fused": (with_optimizer(one_fused), OF_UPDATE, "1 of 2 parameter groups are fused already"),
    "differentiable": (with_optimizer(lambda model: torch.optim.AdamW(model.parameters(), differentiable=True)), OF_UPDATE,
                       "AdamW is differentiable or capturable"),
    "foreign": (with_optimizer(foreign), OF_UPDATE,
                "1 of the SGD's 8 parameters belong to no given model, the first of shape (5,)"),
    "sparse": (lambda: sgd(nn.Sequential(nn.Embedding(9, 3, sparse=True), nn.Linear(3, 3))), OF_UPDATE,
               "layer 0 has sparse gradients"),
    "elsewhere": (changed(lambda model: model.to("meta")), OF_PROCESS,
                  "parameter 0.weight is on meta, and the setting is one of the CPU"),
    "foreach elsewhere": (changed(lambda model: model.to("meta")), ("optimizer.foreach",),
                          "SGD has no foreach implementation on meta"),
    "no autocast": (changed(lambda model: model.to("meta")), ("train.precision",), "there is no autocast on meta"),
}


@pytest.mark.parametrize("make, keys, reason", REFUSED.values(), ids=REFUSED.keys())
def test_what_cannot_take_turns_is_refused_by_one_clear_reason(make, keys, reason):
    models, optimizers = make()
    knobs, offer, reasons = offered(models, optimizers)
    assert {key: reasons.get(key) for key in keys} == dict.fromkeys(keys, reason)
    assert not {candidate.key for candidate in offer.candidates} & set(keys)
    values = {"train.precision": '"bf16"', "model.memory_format": '"channels_last"', "model.compile": "true",
              "compute.intra_op_threads": "2", **FUSED, **FOREACH}
    for key in keys:
        if key in values and knobs.baseline()[key] != values[key]:
            with pytest.raises(hr.errors.UnsupportedError) as caught:
                knobs.apply({key: values[key]})
            assert str(caught.value) == f"autotune: {key}: {reason}"


def test_a_model_that_was_compiled_under_another_name_is_found():
    run = Run()
    compiled = torch.compile(run.model)
    _, _, reasons = offered([run.model], [run.optimizer])
    assert reasons["train.precision"] == "the model is compiled already" and compiled is not run.model


def test_memory_that_somebody_else_holds_keeps_its_layout():
    run = Run()
    held = [parameter.data for parameter in run.model.parameters()]  # As a hand-written average holds them.
    _, _, reasons = offered([run.model], [run.optimizer])
    assert reasons["model.memory_format"].startswith("another tensor shares the memory of parameter ")
    del held
    assert "model.memory_format" not in offered([run.model], [run.optimizer])[2]


def test_a_loop_under_autocast_gets_no_other_precision():
    run = Run()
    with torch.autocast("cpu", torch.bfloat16):
        _, _, reasons = offered([run.model], [run.optimizer])
    assert reasons["train.precision"] == "the loop runs under autocast already, to torch.bfloat16"


def test_compiling_needs_a_compiler_batches_of_one_size_and_a_known_length(monkeypatch):
    def reason(**options):
        run = Run()
        return offered([run.model], [run.optimizer], fixed=["data"], **options)[2].get("model.compile")

    uneven = DataLoader(TensorDataset(torch.zeros(10, 2)), 4)
    assert reason() is None and reason(loader=DataLoader(uneven.dataset, 5)) is None
    assert reason(loader=uneven) == "the last batch of an epoch is smaller than the others, so that it would compile twice"
    assert reason(steps=None) == "the length of the run is not known: give epochs or steps"
    monkeypatch.setenv("CXX", "no-such-compiler")
    assert reason() == "there is no C++ compiler, which torch.compile needs"


def test_of_several_models_a_parameter_is_named_with_its_model():
    generator, critic = network(), network()
    optimizers = [torch.optim.SGD(generator.parameters(), lr=0.1), without_the_kernel(critic)]
    reasons = offered([generator, critic], optimizers)[2]
    assert reasons["model.memory_format"] == (
        "parameter models[1].3.weight requires a gradient, and none of the given optimizers updates it")


# What is asked for wrongly.

WRONG = {
    "another key": ({"data.num_workers": "2"}, hr.errors.InvalidArgumentError,
                    "autotune: data.num_workers does not switch between two updates; wanted one of compute."),
    "precision": ({"train.precision": '"fp16"'}, hr.errors.InvalidArgumentError,
                  'autotune: train.precision: wanted "fp32" or "bf16", found "fp16"'),
    "no TOML": ({"model.memory_format": "channels_last"}, hr.errors.InvalidArgumentError,
                'autotune: model.memory_format: wanted "contiguous" or "channels_last", found channels_last'),
    "a number": ({"optimizer.fused": "1"}, hr.errors.InvalidArgumentError, "autotune: optimizer.fused: wanted false or true, found 1"),
    "fused and foreach": ({**FUSED, **FOREACH}, hr.errors.InvalidArgumentError,
                          "autotune: optimizer.fused and optimizer.foreach are both true; wanted one of them"),
    "no threads": ({"compute.intra_op_threads": "0"}, hr.errors.InvalidArgumentError,
                   "autotune: compute.intra_op_threads: wanted a whole number of at least 1, found 0"),
    "allocator": pytest.param({"compute.allocator": '"heap"'}, hr.errors.InvalidArgumentError,
                              'setting:1: compute.allocator must be arena | system, found "heap"', marks=pytest.mark.engine),
    "denormals": ({"compute.flush_denormal": '"some"'}, hr.errors.InvalidArgumentError,
                  'autotune: compute.flush_denormal: wanted true or false, found "some"'),
}


@pytest.mark.parametrize("settings, kind, message", WRONG.values(), ids=WRONG.keys())
@pytest.mark.parametrize("before", [{}, {**FUSED, **BF16}], ids=["as written", "tuned"])
def test_settings_that_are_wrong_change_nothing(before, settings, kind, message):
    run = Run()
    run.step(some_batches(1)[0])
    run.knobs.apply(before)
    state = everything(run)
    with pytest.raises(kind) as caught:
        run.knobs.apply({**before, "compute.intra_op_threads": "2", **CHANNELS_LAST, **settings})
    assert message is None or str(caught.value).startswith(message)
    assert everything(run) == state and run.knobs.in_force() == before
    run.knobs.undo()


def test_a_layout_without_memory_for_it_changes_nothing(monkeypatch):
    run = Run()
    run.step(some_batches(1)[0])
    before = everything(run)
    calls = []
    plain = torch.Tensor.clone

    def clone(tensor, **options):
        calls.append(tensor)
        if len(calls) == 2:
            raise RuntimeError("[enforce fail] DefaultCPUAllocator: can't allocate memory: you tried to allocate 9 bytes.\nand more")
        return plain(tensor, **options)

    monkeypatch.setattr(torch.Tensor, "clone", clone)
    with pytest.raises(hr.errors.OutOfMemoryError, match="^autotune: a setting cannot be applied: .*you tried to allocate 9 bytes.$"):
        run.knobs.apply({**FUSED, **BF16, **CHANNELS_LAST, "compute.intra_op_threads": "2"})
    assert len(calls) == 2 and everything(run) == before and run.knobs.in_force() == {}


def test_nothing_is_switched_while_a_graph_is_captured(monkeypatch):
    run = Run()
    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: True)
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: True)
    with pytest.raises(hr.errors.UnsupportedError) as caught:
        run.knobs.apply(FUSED)
    assert str(caught.value) == "autotune: a CUDA graph is being captured; wanted a moment between two updates"
    assert run.optimizer.param_groups[0]["fused"] is None
