"""hr.compiled: modes of torch.compile that are tried in order, down to the forward as it is written. Back ends of the tests' own stand in
for compilers; one test has torch's own, which runs g++."""

import copy
import inspect
import json
import pickle
import re
import time

import headrace as hr
import pytest
import torch
from headrace import _compiled
from torch import nn

pytestmark = pytest.mark.usefixtures("nothing_compiled")

LENGTHS = [*range(2, 52)]


def as_captured(graph, inputs):
    """torch's graph, operator by operator."""
    return graph.forward


def failing(graph, inputs):
    raise RuntimeError("no such instruction\nat 0x12")


def faulty(graph, inputs):
    def run(*given):
        raise RuntimeError("illegal memory access")

    return run


def doubling(graph, inputs):
    return lambda *given: tuple(2 * one for one in graph.forward(*given))


def slow(graph, inputs):
    def run(*given):
        time.sleep(0.02)
        return graph.forward(*given)

    return run


def failing_from(number):
    """Compiles so many graphs before it fails."""
    made = []

    def failing_later(graph, inputs):
        made.append(graph)
        return failing(graph, inputs) if len(made) >= number else graph.forward

    return failing_later


def failing_backward(graph, inputs):
    def refuse(gradient):
        raise RuntimeError("no kernel for the backward")

    def run(*given):
        outputs = graph.forward(*given)
        outputs[0].register_hook(refuse)
        return outputs

    return run


def network() -> nn.Sequential:
    torch.manual_seed(3)
    return nn.Sequential(nn.Linear(8, 16), nn.BatchNorm1d(16), nn.ReLU(), nn.Linear(16, 4))


def batch(samples=8) -> torch.Tensor:
    return torch.randn(samples, 8, generator=torch.Generator().manual_seed(samples))


def rows_of(made):
    return [(one.mode, one.tried, one.applied) for one in made.attempts]


class Scores(nn.Module):
    """Of sequences of any length, each position by itself."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(5)
        self.embedding, self.head = nn.Embedding(32, 8), nn.Linear(8, 4)

    def forward(self, tokens):
        return self.head(torch.relu(self.embedding(tokens)))


def tokens(length, samples=3):
    return torch.randint(32, (samples, length), generator=torch.Generator().manual_seed(length))


# ---- The list of modes ----


@pytest.mark.parametrize("first, words", [(failing, "RuntimeError: no such instruction"), (faulty, "RuntimeError: illegal memory access"),
                                          ("no_such_back_end", "no_such_back_end")])
@pytest.mark.parametrize("has_example", [False, True])
def test_where_the_first_mode_fails_the_next_one_runs_and_it_is_said_why(first, words, has_example):
    plain, model = network(), network()
    made = hr.compiled(model, [first, as_captured], example=batch() if has_example else None)
    for samples in (8, 8, 8):
        torch.testing.assert_close(model(batch(samples)), plain(batch(samples)), rtol=1e-6, atol=1e-6)
    name = first if isinstance(first, str) else first.__name__
    assert rows_of(made) == [(name, True, False), ("as_captured", True, True), ("eager", False, False)]
    assert words in made.attempts[0].reason and "\n" not in made.attempts[0].reason
    assert made.compile_enabled and made.mode == "as_captured" and made.reason == "" and made.model is model
    assert model[1].num_batches_tracked == 3  # A call that failed did not count twice.
    torch.testing.assert_close(model.state_dict(), plain.state_dict(), rtol=1e-6, atol=1e-6)


def test_where_every_mode_fails_the_model_runs_as_written_and_is_not_said_to_be_compiled():
    plain, model = network(), network()
    made = hr.compiled(model, [failing, faulty], example=batch())
    assert torch.equal(model(batch()), plain(batch()))
    assert not made.compile_enabled and made.mode == "eager"
    assert rows_of(made) == [("failing", True, False), ("faulty", True, False), ("eager", True, True)]
    assert made.reason == "failing: RuntimeError: no such instruction; faulty: RuntimeError: illegal memory access"
    told = json.loads(json.dumps(made.report, allow_nan=False))
    assert told["requested"] == ["failing", "faulty"] and told["applied"] == "eager" and told["compile_enabled"] is False
    assert [one["reason"] for one in told["attempts"]][2] == ""


def test_before_its_first_call_nothing_is_said_to_be_compiled():
    made = hr.compiled(network(), [as_captured])
    assert not made.compile_enabled and made.reason == "the model was not called yet: torch compiles at its first call"
    assert rows_of(made) == [("as_captured", False, False), ("eager", False, False)]


def test_a_mode_that_fails_at_a_later_call_is_left_then():
    plain, model = network(), network()
    made = hr.compiled(model, [failing_from(2), as_captured], dynamic=False)
    for samples in (8, 8, 6, 6, 8):
        torch.testing.assert_close(model(batch(samples)), plain(batch(samples)), rtol=1e-6, atol=1e-6)
    assert rows_of(made)[:2] == [("failing_later", True, False), ("as_captured", True, True)]
    assert made.attempts[0].compilations == 1 and made.compile_enabled
    assert model[1].num_batches_tracked == 5


def test_a_call_that_fails_behind_a_graph_break_is_done_again_from_where_it_began():
    class Broken(nn.Module):
        def __init__(self):
            super().__init__()
            torch.manual_seed(3)
            self.norm, self.head = nn.BatchNorm1d(8), nn.Linear(8, 2)

        def forward(self, inputs):
            hidden = torch.dropout(self.norm(inputs), 0.5, True)
            torch._dynamo.graph_break()
            return self.head(hidden)

    plain, model = Broken(), Broken()
    made = hr.compiled(model, [failing_from(2)])
    torch.manual_seed(7)
    found = model(batch())
    torch.manual_seed(7)
    assert torch.equal(found, plain(batch()))
    assert made.attempts[0].graph_breaks >= 1 and made.attempts[0].compilations == 1 and not made.compile_enabled
    assert model.norm.num_batches_tracked == 1
    assert torch.equal(model.norm.running_mean, plain.norm.running_mean)


def test_what_is_wrong_with_a_call_is_raised_as_by_the_model_as_written_and_the_mode_stays():
    model = network()
    made = hr.compiled(model, [as_captured])
    model(batch())
    with pytest.raises(RuntimeError) as wanted:
        network()(torch.randn(8, 5))
    with pytest.raises(RuntimeError) as found:
        model(torch.randn(8, 5))
    assert str(found.value) == str(wanted.value) and made.mode == "as_captured"
    with pytest.raises(RuntimeError, match="shapes cannot be multiplied"):
        hr.compiled(network(), [as_captured], example=torch.randn(8, 5))


def test_memory_that_runs_out_is_no_fault_of_the_mode():
    def hungry(graph, inputs):
        def run(*given):
            raise torch.OutOfMemoryError("wanted 8 GiB")

        return run

    model = network()
    made = hr.compiled(model, [hungry])
    with pytest.raises(torch.OutOfMemoryError, match="wanted 8 GiB"):
        model(batch())
    assert made.mode == "hungry"


def test_a_forward_without_a_graph_is_not_called_compiled():
    class Opaque(nn.Module):
        def __init__(self):
            super().__init__()
            self.head = nn.Linear(8, 2)

        @torch.compiler.disable
        def forward(self, inputs):
            return self.head(inputs)

    model = Opaque()
    made = hr.compiled(model, [as_captured])
    model(batch())
    assert not made.compile_enabled and made.reason == "as_captured: torch.compile found no graph in the forward"


def test_without_a_compiler_it_stays_as_written_and_says_so(monkeypatch):
    monkeypatch.setenv("CXX", "no-such-compiler")
    model = network()
    made = hr.compiled(model, example=batch())
    assert not made.compile_enabled and made.mode == "eager"
    assert [one.reason for one in made.attempts[:2]] == ["there is no C++ compiler, which torch.compile needs"] * 2
    assert torch.equal(model(batch()), network()(batch()))


def test_a_module_of_torchscript_is_left_alone():
    script = torch.jit.script(nn.Sequential(nn.Linear(8, 2)))
    made = hr.compiled(script, [as_captured])
    script(batch())
    assert not made.compile_enabled and "TorchScript" in made.reason
    made.undo()


# ---- Trying with an example ----


def test_a_try_is_timed_and_leaves_nothing_behind():
    model = network()
    model(batch()).sum().backward()
    gradients = [parameter.grad for parameter in model.parameters()]
    before = copy.deepcopy((model.state_dict(), [gradient.clone() for gradient in gradients]))
    state = torch.get_rng_state()
    made = hr.compiled(model, [as_captured], example=batch())
    assert torch.equal(torch.get_rng_state(), state)
    torch.testing.assert_close(model.state_dict(), before[0], rtol=0, atol=0)
    assert all(parameter.grad is gradient for parameter, gradient in zip(model.parameters(), gradients))
    torch.testing.assert_close(gradients, before[1], rtol=0, atol=0)
    (attempt, _) = made.attempts
    assert made.compile_enabled and attempt.compile_s > 0 and attempt.eager_ms > 0 and attempt.compiled_ms > 0
    assert attempt.compilations == 1 and attempt.recompilations == attempt.graph_breaks == 0


def test_what_is_shown_has_a_state_and_a_reason_for_each_mode_and_a_name_for_each_column():
    made = hr.compiled(network(), [failing, as_captured, doubling], example=batch())
    title, head, *rows = repr(made).splitlines()
    columns = ["mode", "state", "compile time, s", "eager step, ms", "compiled step, ms", "graphs compiled", "recompilations",
               "graph breaks", "reason"]
    assert title == "<headrace.Compiled: runs compiled, mode as_captured" and re.split(r" {2,}", head) == columns
    cells = [re.split(r" {2,}", row.removesuffix(">").rstrip()) for row in rows]
    assert cells[0] == ["failing", "dropped", "unavailable", "unavailable", "unavailable", "0", "0", "0",
                        "RuntimeError: no such instruction"]
    assert cells[1][:2] == ["as_captured", "applied"] and all(float(time) >= 0 for time in cells[1][2:5]) and cells[1][5:] == ["1", "0", "0"]
    assert cells[2] == ["doubling", "not tried", *"------"]
    assert cells[3] == ["eager", "not tried", *"------", "a mode before it is in use"]
    assert [row.find("applied") - row.find("as_captured") for row in rows[1:2]] == [head.find("state") - head.find("mode")]
    assert all(f">{column}</th>" in made._repr_html_() for column in columns)
    made.undo()
    assert [one.state for one in made.attempts] == ["dropped", "undone", "not tried", "applied"]


def test_without_an_example_nothing_is_timed_but_the_call_that_compiles():
    model = network()
    made = hr.compiled(model, [as_captured])
    model(batch())
    (attempt, _) = made.attempts
    assert attempt.compile_s > 0 and attempt.eager_ms is None and attempt.compiled_ms is None


def test_a_mode_whose_backward_fails_is_left():
    made = hr.compiled(network(), [failing_backward, as_captured], example=batch())
    assert made.mode == "as_captured" and made.attempts[0].reason == "RuntimeError: no kernel for the backward"


def test_a_mode_that_computes_something_else_is_left():
    model = network()
    made = hr.compiled(model, [doubling, as_captured], example=batch())
    assert made.mode == "as_captured" and "outputs differ from the uncompiled model's by 1.0e+00" in made.attempts[0].reason
    torch.testing.assert_close(model(batch()), network()(batch()), rtol=1e-6, atol=1e-6)


def test_outputs_that_depend_on_draws_are_not_compared():
    model = nn.Sequential(nn.Linear(8, 8), nn.Dropout(0.5))
    assert hr.compiled(model, [doubling], example=batch()).mode == "doubling"


def test_a_slower_mode_is_left_where_only_faster_ones_are_wanted():
    assert hr.compiled(network(), [slow], example=batch()).mode == "slow"
    made = hr.compiled(network(), [slow], example=batch(), only_if_faster=True)
    assert made.mode == "eager" and made.attempts[0].reason.startswith("not faster: ")
    assert made.attempts[0].compiled_ms > max(20, made.attempts[0].eager_ms)
    with pytest.raises(hr.errors.InvalidArgumentError, match="only_if_faster: wanted an example to time, found none"):
        hr.compiled(network(), [slow], only_if_faster=True)


@pytest.mark.parametrize("example", [(batch(), 2.0), {"inputs": batch(), "scale": 2.0}], ids=["arguments", "keywords"])
def test_an_example_may_be_arguments_or_keywords(example):
    class Scaled(nn.Linear):
        def forward(self, inputs, scale):
            return {"scores": super().forward(inputs) * scale}

    assert hr.compiled(Scaled(8, 2), [as_captured], example=example).compile_enabled


def test_a_step_by_forward_is_tried_and_one_that_does_not_call_the_model_is_named():
    def forward(model, given):
        loss = model(given[0]).square().mean()
        return loss, {"loss": loss}

    assert hr.compiled(network(), [as_captured], example=(batch(), None), forward=forward).compile_enabled
    made = hr.compiled(network(), [as_captured], example=batch(), forward=lambda model, given: model[0](given).mean())
    assert made.reason == "as_captured: the step does not call the model itself"


# ---- Shapes ----


def test_50_shapes_compile_a_bounded_number_of_times_and_all_are_right():
    plain, model = Scores(), Scores()
    made = hr.compiled(model, [as_captured], dynamic=False, recompilations_max=4)
    for length in LENGTHS:
        torch.testing.assert_close(model(tokens(length)), plain(tokens(length)), rtol=1e-6, atol=1e-6)
    (attempt, _) = made.attempts
    assert (attempt.compilations, attempt.recompilations, made.report["forms"]) == (5, 4, 50)
    assert not made.compile_enabled  # Of the last call.
    assert made.reason.startswith("after 4 recompilations, the last for inputs of shape (3, 6), nothing more is compiled")
    model(tokens(LENGTHS[0]))
    assert made.compile_enabled and made.attempts[0].compilations == 5


def test_with_dynamic_shapes_50_of_them_take_two_compilations():
    plain, model = Scores(), Scores()
    made = hr.compiled(model, [as_captured])
    for length in LENGTHS:
        torch.testing.assert_close(model(tokens(length)), plain(tokens(length)), rtol=1e-6, atol=1e-6)
        assert made.compile_enabled
    assert made.attempts[0].compilations <= 2 and made.reason == ""


def test_torchs_own_limit_is_told_where_it_is_met():
    import torch._dynamo

    model = Scores()
    made = hr.compiled(model, [as_captured], dynamic=False, recompilations_max=100)
    with torch._dynamo.config.patch(recompile_limit=3):
        for length in LENGTHS[:8]:
            torch.testing.assert_close(model(tokens(length)), Scores()(tokens(length)), rtol=1e-6, atol=1e-6)
    assert made.attempts[0].compilations == 3 and "torch's own limit of graphs" in made.reason and not made.compile_enabled


def test_50_lengths_in_buckets_compile_once_a_bucket():
    plain, model = Scores(), Scores()
    made = hr.compiled(model, [as_captured], dynamic=False)
    loader = hr.bucket_shapes([(tokens(length), length) for length in LENGTHS], [16, 32, 64])
    for given, length, mask in loader:
        assert mask.shape == given.shape and mask.sum() == 3 * length
        torch.testing.assert_close(model(given)[mask], plain(tokens(length)).flatten(0, 1), rtol=1e-6, atol=1e-6)
        assert made.compile_enabled
    assert made.attempts[0].compilations == 3 == len(loader.shapes) and made.reason == ""


def test_the_last_batch_does_not_compile_again_where_it_is_padded():
    def losses_of(model, loader, is_padded):
        found = []
        for _ in range(2):
            for inputs, *rest in loader:
                scores = nn.functional.cross_entropy(model(inputs), torch.zeros(len(inputs), dtype=torch.long), reduction="none")
                found.append(((scores * rest[0]).sum() / rest[0].sum() if is_padded else scores.mean()).item())
        return found

    data = torch.utils.data.TensorDataset(batch(10))
    loader = torch.utils.data.DataLoader(data, batch_size=4)
    model, cut = network().eval(), network().eval()
    made, other = (hr.compiled(one, [as_captured], dynamic=False) for one in (model, cut))
    wanted = losses_of(network().eval(), loader, is_padded=False)
    assert losses_of(model, hr.pad_last_batch(loader), is_padded=True) == pytest.approx(wanted, abs=1e-6)
    assert made.attempts[0].compilations == 1 and made.attempts[0].recompilations == 0
    losses_of(cut, loader, is_padded=False)
    assert other.attempts[0].compilations == 2  # Without it.


def test_models_of_one_class_have_a_limit_of_their_own():
    import torch._dynamo

    with torch._dynamo.config.patch(recompile_limit=2):
        for _ in range(5):
            model = Scores()
            made = hr.compiled(model, [as_captured], dynamic=False)
            for length in (4, 5):
                model(tokens(length))
            assert made.compile_enabled and made.attempts[0].compilations == 2 and made.reason == ""


# ---- The model ----


def test_the_model_keeps_its_names_and_its_copies_run_as_written():
    plain, model = network(), network()
    made = hr.compiled(model, [as_captured])
    model(batch()), plain(batch())
    assert list(model.state_dict()) == list(plain.state_dict())
    assert inspect.signature(model.forward) == inspect.signature(plain.forward)
    for other in (copy.deepcopy(model), pickle.loads(pickle.dumps(model))):
        assert other.forward.module is other
        assert torch.equal(other(batch()), copy.deepcopy(plain)(batch()))
        assert hr.compiled(other, [as_captured]).mode == "as_captured"
    assert made.compile_enabled and made.attempts[0].compilations == 1


def test_undone_it_is_as_it_was():
    model = network()
    made = hr.compiled(model, [as_captured], example=batch())
    made.undo()
    assert "forward" not in model.__dict__ and not made.compile_enabled and made.mode == "eager"
    own = model.forward
    model.forward = own  # One of the instance's own.
    made = hr.compiled(model, [as_captured], example=batch())
    assert made.compile_enabled
    made.undo()
    assert model.__dict__["forward"] is own


def test_paused_it_runs_as_written_and_compiles_nothing():
    model = network()
    made = hr.compiled(model, [as_captured])
    with _compiled.paused():
        model(batch())
    assert made.attempts[0].compilations == 0
    model(batch())
    assert made.compile_enabled and made.reason == ""
    with _compiled.paused():
        model(batch())
    assert not made.compile_enabled and made.reason == "the last call ran uncompiled"


def test_parts_of_a_batch_that_memory_has_halved_are_told_of_where_they_compile_again(capsys):
    model = nn.Sequential(network())
    _compiled.tell_of_halving(model, 4)
    hr.compiled(model[0], [as_captured])
    _compiled.tell_of_halving(model, 4)
    assert capsys.readouterr().err == ""  # Nothing is compiled yet.
    model(batch())
    _compiled.tell_of_halving(model, len(batch()))
    assert capsys.readouterr().err == ""
    _compiled.tell_of_halving(model, len(batch()) // 2)
    said = capsys.readouterr().err
    assert said.count("\n") == 1 and f"was compiled for larger batches: parts of {len(batch()) // 2} samples may compile it again" in said


@pytest.mark.parametrize("make, words", [
    (lambda: hr.compiled(print), "model: wanted a torch.nn.Module, found builtin_function_or_method"),
    (lambda: hr.compiled(torch.compile(network())), "found one that it has"),
    (lambda: hr.compiled(hr.compiled(network(), [as_captured]).model), "it is compiled already; undo"),
    (lambda: hr.compiled(network(), "default"), "modes: wanted a list of names and back ends, found 'default'"),
    (lambda: hr.compiled(network(), [1]), "modes: wanted a list"),
    (lambda: hr.compiled(network(), ["eager", "default"]), 'wanted "eager" at the end'),
    (lambda: hr.compiled(network(), recompilations_max=-1), "recompilations_max: wanted a whole number of at least 0, found -1")])
def test_what_cannot_be_is_refused(make, words):
    with pytest.raises(hr.errors.InvalidArgumentError, match=words.replace("(", r"\(")):
        make()


# ---- Steps ----


@pytest.mark.engine
@pytest.mark.parametrize("modes", [[as_captured], [failing, "aot_eager"]], ids=["one mode", "the second"])
def test_a_trainer_steps_a_compiled_model_as_the_model_as_written(modes):
    def forward(model, given):
        return nn.functional.cross_entropy(model(given[0]), given[1])

    data = [(batch(), torch.arange(8) % 4) for _ in range(6)]
    plain, model = network(), network()
    losses = []
    for one in (plain, model):
        made = hr.compiled(one, modes, example=data[0], forward=forward) if one is model else None
        trainer = hr.Trainer(one, torch.optim.SGD(one.parameters(), lr=0.05, momentum=0.9), forward, max_grad_norm=1.0)
        losses.append([trainer.step(given).item() for given in data])
        losses[-1].append(trainer.evaluate(data)["loss"])
    assert losses[1] == pytest.approx(losses[0], rel=1e-5)
    torch.testing.assert_close(model.state_dict(), plain.state_dict(), rtol=1e-4, atol=1e-5)
    assert made.compile_enabled and made.mode in ("as_captured", "aot_eager")


def test_torchs_own_compiler_computes_the_same(monkeypatch, tmp_path):
    import torch._inductor.config

    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path))
    plain, model = network(), network()
    # Or torch would first compile, and load in a process of its own, a program for each instruction set of this machine.
    with torch._inductor.config.patch({"cpp.vec_isa_ok": True}):
        made = hr.compiled(model, [failing, "default"], example=batch())
    assert made.compile_enabled and made.mode == "default", made
    torch.testing.assert_close(model(batch()), plain(batch()), rtol=1e-5, atol=1e-5)
    attempt = made.attempts[1]
    assert attempt.compile_s > attempt.compiled_ms / 1e3 and attempt.compilations == 1 and list(tmp_path.rglob("*.so"))
