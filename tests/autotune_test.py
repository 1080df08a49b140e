"""hr.autotune around loops that know nothing of it: what it keeps, what it leaves behind, what it says. Time is a clock that
passes when the loop says so, and what a change gains is planted on that clock."""

import gc
import json
import math
import random
import threading
import types
import weakref

import headrace as hr
import pytest
import torch
from headrace import _core
from headrace._autotune import AutoTune
from headrace._autotune_request import requested
from headrace._loop_objects import raw_objects
from headrace._tuned_loop import TunedLoop
from own_python import run_python
from planted_loop import (
    ARENA, FASTER, FOREACH, FUSED, SLOWER, STEP_S, Clock, Loop, PlantedKnobs, hooks_of, in_one_line, request, texts)
from torch import nn
from torch.utils.data import DataLoader

pytestmark = pytest.mark.usefixtures("one_thread")


def test_a_change_that_pays_is_proved_kept_in_force_and_reported():
    loop = Loop()
    handle = loop.autotune(FASTER)
    assert loop.run(3000, until=lambda: texts(loop.told, "ended"))
    assert handle.kept == [FUSED] and handle.watching and handle.settings == {"optimizer.fused": "true"} == loop.knobs.planted
    (trial,) = handle.trials
    low, high = trial.gain[1:]
    assert trial.verdict == "kept" and trial.pairs >= 9 and 0.5 < low <= high < 0.7
    assert len(texts(loop.told, "began")) == 1 and any(FUSED in text for text in texts(loop.told, "decided"))
    assert "times as fast as the loop as written, proved in" in in_one_line(handle)
    assert handle.problem is None


def test_of_fused_and_foreach_the_better_is_kept_and_they_are_never_on_together():
    loop = Loop()
    handle = loop.autotune({**FASTER, "optimizer.foreach": 1 / 1.2}, only=[FUSED, FOREACH])
    assert loop.run(3000, until=lambda: texts(loop.told, "ended"))
    assert handle.kept == [FUSED] and loop.knobs.planted == {"optimizer.fused": "true"}
    tried = {tuple(settings) for settings in loop.knobs.applied}
    assert tried == {(), ("optimizer.fused",), ("optimizer.foreach",)}
    verdicts = {trial.name: trial for trial in handle.trials}
    assert verdicts[FOREACH].verdict == "refused" and FUSED in verdicts[FOREACH].sentence
    handle.undo()


def test_the_time_that_finding_out_what_to_try_takes_is_lost(monkeypatch):
    loop, offer = Loop(), PlantedKnobs.offer

    def slow(*given):
        loop.clock.now += 3
        return offer(*given)

    monkeypatch.setattr(PlantedKnobs, "offer", slow)
    handle = loop.autotune(FASTER)
    loop.run(5)
    assert handle.ledger["lost_most_s"] == pytest.approx(3)


def test_a_change_that_costs_is_undone_and_when_nothing_is_left_no_hook_is():
    loop = Loop()
    before = hooks_of(loop)
    handle = loop.autotune(SLOWER, only=[ARENA], allow="bit_equal")
    assert handle.watching and hooks_of(loop) != before
    assert loop.run(3000, until=lambda: not handle.watching)
    assert any("compute.allocator" in settings for settings in loop.knobs.applied)
    assert handle.kept == [] and handle.settings == {} == loop.knobs.planted
    assert [trial.verdict for trial in handle.trials] == ["refused"]
    assert hooks_of(loop) == before and texts(loop.told, "ended")
    loop.run(5)


def test_while_pairs_are_measured_no_hook_is_left_on_a_module():
    loop = Loop()
    handle = loop.autotune(FASTER)
    assert loop.run(3000, until=lambda: loop.knobs.planted) and handle.watching  # In mid-pair.
    assert not any(hooks for module in loop.model.modules() for name, hooks in vars(module).items()
                   if name.startswith(("_forward", "_backward")))
    assert not any(row["key"] == "autotune.calls" for row in handle.ledger["settings"])
    handle.undo()


def test_where_a_hook_sees_the_calls_report_and_ledger_say_why():
    class Calling(nn.Sequential):
        def __call__(self, *args):
            return super().__call__(*args)

    loop = Loop()
    loop.model = Calling(*loop.model)
    loop.optimizer = torch.optim.AdamW(loop.model.parameters(), lr=1e-3)
    handle = loop.autotune(FASTER)
    loop.run(5)
    assert {"key": "autotune.calls", "requested": "no_hook", "applied": "forward_hook",
            "reason": "Calling: it has a __call__ of its own"} in handle.ledger["settings"]
    assert "Calling: it has a __call__ of its own" in in_one_line(handle)
    handle.undo()


def test_stop_keeps_what_is_proved_and_undo_gives_it_back():
    loop = Loop()
    before = hooks_of(loop)
    handle = loop.autotune(FASTER)
    assert loop.run(3000, until=lambda: handle.kept)
    handle.stop()
    assert not handle.watching and loop.knobs.planted == handle.settings == {"optimizer.fused": "true"}
    applied = len(loop.knobs.applied)
    loop.run(50)
    assert len(loop.knobs.applied) == applied
    handle.undo()
    assert loop.knobs.planted == {} and loop.knobs.undone == 1 and hooks_of(loop) == before
    assert handle.kept == [FUSED]  # What was found stays known.
    handle.undo()
    assert loop.knobs.undone == 1


def test_stop_before_anything_is_proved_leaves_the_loop_as_written():
    loop = Loop()
    before = hooks_of(loop)
    handle = loop.autotune(FASTER)
    assert loop.run(3000, until=lambda: loop.knobs.planted)  # In mid-pair.
    handle.stop()
    assert handle.kept == [] and loop.knobs.planted == {} and hooks_of(loop) == before
    assert handle.trials[0].verdict == "inconclusive"


def test_the_end_of_a_with_block_gives_everything_back():
    loop = Loop()
    before = hooks_of(loop)
    with loop.autotune(FASTER) as handle:
        assert loop.run(3000, until=lambda: handle.kept)
    assert loop.knobs.planted == {} and loop.knobs.undone == 1 and hooks_of(loop) == before
    assert handle.kept == [FUSED] and not handle.watching


@pytest.mark.parametrize("error", [RuntimeError("mine"), KeyboardInterrupt()], ids=["exception", "ctrl-c"])
def test_an_exception_of_the_loop_in_mid_pair_passes_and_everything_is_undone(error):
    loop = Loop()
    before = hooks_of(loop)

    def train(handle):
        assert loop.run(3000, until=lambda: loop.knobs.planted)
        raise error

    with pytest.raises(type(error)) as caught, loop.autotune(FASTER) as handle:
        train(handle)
    assert caught.value is error
    assert loop.knobs.planted == {} and hooks_of(loop) == before and handle.kept == []
    assert any("mine" in trial.sentence for trial in handle.trials) == isinstance(error, RuntimeError)


def test_a_loop_that_goes_on_after_an_exception_is_tuned_on():
    loop = Loop()
    handle = loop.autotune(FASTER)
    assert loop.run(3000, until=lambda: loop.knobs.planted)
    with pytest.raises(RuntimeError):
        loop.step((torch.ones(8, 5), torch.zeros(8, dtype=torch.long)))  # Of another width.
    assert loop.run(3000, until=lambda: handle.kept)
    assert handle.kept == [FUSED] and handle.problem is None


def test_ctrl_c_in_one_of_our_hooks_passes_and_undo_still_works():
    loop = Loop()
    before = hooks_of(loop)

    def interrupt(kind, text):
        if kind == "began":
            raise KeyboardInterrupt

    handle = loop.autotune(FASTER, interrupt)
    with pytest.raises(KeyboardInterrupt):
        loop.run(3000)
    handle.undo()
    assert hooks_of(loop) == before and handle.problem is None
    loop.run(5)


def test_an_error_of_headraces_own_ends_the_tuning_and_not_the_run():
    loop = Loop()
    before = hooks_of(loop)
    handle = loop.autotune(FASTER)
    plain, times = loop.knobs.apply, []

    def broken(settings):
        times.append(settings)
        if settings and len([one for one in times if one]) > 1:  # The first is the replay, whose exceptions are the change's.
            raise ValueError("broken\nin two lines")
        return plain(settings)

    loop.knobs.apply = broken
    loop.run(1000)
    assert loop.steps == 1000
    assert "ValueError: broken" in handle.problem and "two lines" not in handle.problem
    assert len(texts(loop.told, "problem")) == 1 and "ValueError: broken" in in_one_line(handle)
    assert texts(loop.told, "ended") == []  # The same line says so.
    assert loop.knobs.planted == {} and hooks_of(loop) == before and not handle.watching


def test_a_change_that_is_refused_when_it_is_applied_is_out_and_the_rest_goes_on():
    loop = Loop()
    handle = loop.autotune(SLOWER, only=[FUSED, ARENA])
    plain = loop.knobs.apply

    def refusing(settings):
        if "optimizer.fused" in settings:
            raise hr.errors.UnsupportedError("no kernel for this")
        return plain(settings)

    loop.knobs.apply = refusing
    assert loop.run(3000, until=lambda: not handle.watching)
    verdicts = {trial.name: trial for trial in handle.trials}
    assert handle.problem is None and "no kernel for this" in verdicts[FUSED].sentence
    assert verdicts[FUSED].verdict in ("failed", "refused") and verdicts[ARENA].verdict == "refused"
    assert all("optimizer.fused" not in settings for settings in loop.knobs.applied)


@pytest.mark.parametrize("when", ["in turns", "kept"])
def test_a_setting_that_ends_by_itself_fails_its_change_and_the_report_says_why(when):
    loop = Loop()
    handle = loop.autotune(FASTER)
    assert loop.run(3000, until=lambda: handle.kept if when == "kept" else loop.knobs.planted)
    loop.knobs.end("optimizer.fused", "it went away")
    loop.run(1)
    assert loop.knobs.planted == {} and handle.kept == [] and handle.settings == {}
    (trial,) = handle.trials
    assert trial.verdict == "failed" and "it went away" in trial.sentence and handle.problem is None
    row = {"key": "optimizer.fused", "requested": "true", "applied": "false", "reason": "it went away"}
    assert row in handle.ledger["settings"]
    handle.undo()
    assert row in handle.ledger["settings"]


def test_the_turn_of_a_setting_that_ended_by_itself_holds_from_the_next_update_on():
    loop = Loop()
    handle = loop.autotune(FASTER)
    assert loop.run(3000, until=lambda: loop.knobs.planted)
    loop.knobs.end("optimizer.fused", "it went away")
    loop.run(1)
    assert handle.ledger["turns"][-1] == {"update": loop.steps + 1, "settings": {}, "why": "a change failed"}


def test_what_is_undone_when_no_hook_counts_updates_any_more_is_no_turn():
    loop = Loop()
    handle = loop.autotune(FASTER)
    assert loop.run(3000, until=lambda: handle.kept)
    handle.stop()
    turns = handle.ledger["turns"]
    loop.run(50)
    handle.undo()
    assert handle.ledger["turns"] == turns and loop.knobs.planted == {} and handle.ledger["settings"] == []


class ByParts(Loop):
    """Calls a part of its model, and never the model."""

    def __init__(self):
        super().__init__()
        self.model = nn.ModuleDict({"layers": self.model})

    def scores(self, features):
        return self.model["layers"](features)


def test_where_the_loop_never_calls_the_model_itself_precision_is_out_and_the_rest_is_tuned():
    loop = ByParts()
    handle = loop.autotune(FASTER, only=[FUSED, "bf16 autocast"], allow="reduced_precision")
    assert loop.run(3000, until=lambda: handle.kept)
    assert handle.kept == [FUSED] and handle.problem is None
    (bf16,) = [trial for trial in handle.trials if "train.precision" in trial.settings]
    assert bf16.verdict == "failed"
    assert "the loop does not call the ModuleDict itself, but the Sequential within it" in bf16.sentence
    assert not any("train.precision" in turn["settings"] for turn in handle.ledger["turns"])


def test_a_setting_that_ends_in_a_replay_fails_there_and_the_loader_is_left_alone():
    loop = Loop()
    loop.knobs = PlantedKnobs([loop.model], [loop.optimizer], loop.loader, {})
    loop.knobs.apply({"data.num_workers": "2"})

    def replay(apply, reference, candidate, in_force, full_precision):
        apply(reference)
        apply(candidate)
        loop.knobs.end("model.compile", "too many shapes")
        apply(in_force)
        return {"bit_equal": True}

    seen = TunedLoop(loop.knobs, types.SimpleNamespace(replay=replay), None, request())
    found = seen.replay({}, {"model.compile": "true", "data.num_workers": "1"}, True)
    assert found == {"failure": ("invalid_argument", "too many shapes")}
    assert loop.knobs.applied[1:] == [{"data.num_workers": "2"}, {"model.compile": "true", "data.num_workers": "2"},
                                      {"data.num_workers": "2"}]
    assert seen.take_ended() == {"model.compile": "too many shapes"} and seen.take_ended() == {}


@pytest.mark.parametrize("as_written, switched, micro_batches, units", [(6, 0, 4, 2), (6, 12, None, 12), (0, 0, 1, 0), (5, 0, 0, 5)])
def test_units_in_a_queue_are_its_batches_by_those_of_an_update(as_written, switched, micro_batches, units):
    boundary = types.SimpleNamespace(queue=as_written, micro_batches=micro_batches)
    assert TunedLoop(types.SimpleNamespace(queue=lambda: switched), None, boundary, request()).queued_units() == units


@pytest.mark.parametrize("times, units", [(None, 0), (types.SimpleNamespace(most_ahead=3), 3)])
def test_units_ahead_are_those_of_a_device(times, units):
    assert TunedLoop(None, None, None, request(), times).units_ahead() == units


def test_an_on_progress_that_raises_ends_the_tuning_and_not_the_run():
    loop = Loop()
    before = hooks_of(loop)

    def raising(kind, text):
        raise LookupError("no such log")

    handle = loop.autotune(FASTER, raising)
    loop.run(500)
    assert loop.steps == 500 and "LookupError: no such log" in handle.problem
    assert hooks_of(loop) == before


def test_stop_may_be_called_from_on_progress():
    loop = Loop()
    before = hooks_of(loop)
    handles = []
    handles.append(loop.autotune(FASTER, lambda kind, text: handles[0].stop() if kind == "began" else None))
    loop.run(1000)
    assert not handles[0].watching and handles[0].problem is None and loop.knobs.planted == {} and hooks_of(loop) == before


@pytest.mark.parametrize("kind", ["began", "decided"])
def test_undo_may_be_called_from_on_progress(kind):
    loop = Loop()
    before = hooks_of(loop)
    handles = []
    handles.append(loop.autotune(FASTER, lambda told, text: handles[0].undo() if told == kind else None))
    loop.run(3000, until=lambda: not handles[0].watching)
    steps = loop.steps
    loop.run(10)
    assert handles[0].problem is None and loop.knobs.planted == {} and hooks_of(loop) == before and loop.steps == steps + 10


def test_without_on_progress_each_decision_is_a_line_on_stderr(capsys):
    loop = Loop()
    loop.knobs = PlantedKnobs([loop.model], [loop.optimizer], loop.loader, FASTER)
    handle = AutoTune([loop.model], [loop.optimizer], loop.loader, request(), knobs=loop.knobs, clock=loop.clock)
    assert loop.run(3000, until=lambda: handle.kept)
    found = capsys.readouterr()
    lines = found.err.splitlines()
    assert found.out == "" and len(lines) >= 2 and all(line.startswith("headrace: ") for line in lines)
    assert any(FUSED in line for line in lines)
    handle.undo()


def test_an_autotune_of_objects_that_one_is_at_work_on_does_nothing_and_says_so():
    loop = Loop()
    first = loop.autotune(FASTER)
    hooked, knobs = hooks_of(loop), loop.knobs
    second = loop.autotune(FASTER)
    assert "another autotune is at work on this Sequential" in second.problem and not second.watching
    assert hooks_of(loop) == hooked and len(texts(loop.told, "problem")) == 1 and "another autotune" in in_one_line(second)
    other = AutoTune([nn.Linear(4, 2)], [loop.optimizer], None, request(), lambda *told: None)
    assert "on this AdamW" in other.problem
    loop.knobs = knobs
    assert loop.run(3000, until=lambda: first.kept)
    first.undo()
    third = loop.autotune(FASTER)
    assert third.problem is None and third.watching
    third.undo()


def test_a_gan_is_one_cycle_of_two_optimizers():
    torch.manual_seed(1)
    generator, judge = nn.Linear(4, 6), nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 1))
    optimizers = [torch.optim.AdamW(model.parameters()) for model in (generator, judge)]
    clock, noise, told = Clock(), random.Random(7), []
    knobs = PlantedKnobs([generator, judge], optimizers, None, FASTER)
    handle = AutoTune([generator, judge], optimizers, None, request(), lambda *one: told.append(one), knobs=knobs, clock=clock)
    for _ in range(600):
        false = generator(torch.randn(8, 4))
        optimizers[1].zero_grad()
        (judge(torch.randn(8, 6)).square().mean() - judge(false.detach()).square().mean()).backward()
        optimizers[1].step()
        optimizers[0].zero_grad()
        judge(false).square().mean().backward()
        clock.now += STEP_S * knobs.factor() * math.exp(noise.gauss(0, 0.02))
        optimizers[0].step()
    assert handle.problem is None and len(texts(told, "began")) == 1
    assert [trial.name for trial in handle.trials] == [FUSED]
    handle.undo()
    assert all(not optimizer._optimizer_step_post_hooks for optimizer in optimizers)


def test_auto_tune_false_hooks_nothing_and_finds_nothing(tmp_path):
    loop = Loop()
    before = hooks_of(loop)
    told = []
    handle = hr.autotune(loop.model, loop.optimizer, loop.loader, auto_tune=False, on_progress=lambda *one: told.append(one))
    assert hooks_of(loop) == before
    loop.run(100)
    assert hooks_of(loop) == before and not handle.watching and told == []
    assert handle.trials == [] and handle.kept == [] and handle.settings == {} and handle.problem is None
    assert "No change was tried" in in_one_line(handle) and handle.ledger["title"] == "training loop"
    handle.stop()
    handle.undo()


def test_under_bit_equal_the_run_has_the_bits_of_an_untouched_one():
    plain, tuned = Loop(), Loop()
    torch.manual_seed(5)
    plain.run(3000)
    after = torch.get_rng_state()
    torch.manual_seed(5)
    told = []
    with hr.autotune(tuned.model, tuned.optimizer, tuned.loader, allow="bit_equal", fixed=["data"],
                     on_progress=lambda *one: told.append(one)) as handle:
        tuned.run(3000)
    assert handle.problem is None and texts(told, "began")
    assert torch.equal(torch.get_rng_state(), after)
    for ours, theirs in zip(tuned.model.parameters(), plain.model.parameters()):
        assert torch.equal(ours, theirs) and torch.equal(ours.grad, theirs.grad)
        for key, value in plain.optimizer.state[theirs].items():
            assert torch.equal(tuned.optimizer.state[ours][key], value)


def test_ledger_and_report_lie_in_out_at_the_end(tmp_path):
    loop = Loop()
    handle = loop.autotune(SLOWER, only=[ARENA], out=tmp_path)
    assert not (tmp_path / "ledger.json").exists()
    assert loop.run(3000, until=lambda: not handle.watching)
    written = json.loads((tmp_path / "ledger.json").read_text())
    assert written["title"] == "loop" and written["problem"] is None
    assert written["command"].startswith("headrace.autotune(Sequential, AdamW")
    assert written["environment"] and written["not_tried"] and all(entry["reason"] for entry in written["not_tried"])
    assert [trial["name"] for trial in written["ledger"]["trials"]] == [ARENA] and written["turns"]
    assert ARENA in (tmp_path / "report.html").read_text()
    assert {path.name for path in tmp_path.iterdir()} == {"ledger.json", "report.html"}


def test_a_run_that_is_killed_leaves_what_it_had_decided(tmp_path):
    loop = Loop()
    handle = loop.autotune(FASTER, out=tmp_path)
    assert loop.run(3000, until=lambda: texts(loop.told, "decided"))
    assert handle.watching
    written = json.loads((tmp_path / "ledger.json").read_text())
    assert [trial["verdict"] for trial in written["ledger"]["trials"]].count("kept") == len(handle.kept)
    assert written["turns"] == handle.ledger["turns"]


def test_a_folder_that_cannot_be_written_is_a_problem_and_not_an_exception(tmp_path):
    loop = Loop()
    handle = loop.autotune(SLOWER, only=[ARENA], out=tmp_path / "gone")
    assert loop.run(3000, until=lambda: not handle.watching)
    assert "gone" in handle.problem and len(texts(loop.told, "problem")) == 1


def test_what_could_not_be_written_once_is_written_the_next_time(tmp_path):
    loop = Loop()
    handle = loop.autotune(FASTER, out=tmp_path / "later")
    assert loop.run(3000, until=lambda: texts(loop.told, "decided"))
    assert "later" in handle.problem and handle.watching
    (tmp_path / "later").mkdir()
    handle.stop()
    assert handle.problem is None and json.loads((tmp_path / "later" / "ledger.json").read_text())["problem"] is None


def test_a_handle_that_nobody_keeps_tunes_on_and_is_freed_with_the_loop_and_its_ledger_written(tmp_path):
    loop = Loop()
    loop.autotune(FASTER, out=tmp_path)
    gc.collect()
    assert loop.run(3000, until=lambda: texts(loop.told, "decided"))
    model, optimizer = weakref.ref(loop.model), weakref.ref(loop.optimizer)
    del loop
    gc.collect()
    gc.collect()
    assert model() is None and optimizer() is None
    assert json.loads((tmp_path / "ledger.json").read_text())["title"] == "loop"


THREE_STEPS = """
import headrace as hr
import torch

model = torch.nn.Linear(4, 2)
optimizer = torch.optim.SGD(model.parameters(), 0.1)
hr.autotune(model, optimizer, out="found")
for _ in range(3):
    optimizer.zero_grad()
    model(torch.ones(2, 4)).sum().backward()
    optimizer.step()
print("done")
"""


def test_a_run_of_three_steps_says_so_when_the_interpreter_ends(tmp_path):
    done = run_python("-c", THREE_STEPS, cwd=tmp_path)
    assert (done.returncode, done.stdout) == (0, "done\n"), done.stderr
    assert "over after 3 updates" in done.stderr and "Traceback" not in done.stderr
    ledger = json.loads((tmp_path / "found" / "ledger.json").read_text())
    assert "3 updates" in ledger["problem"]
    assert "3 updates" in (tmp_path / "found" / "report.html").read_text()


def test_a_loader_that_does_not_tell_of_its_epochs_is_told_first():
    loop = Loop()
    loop.loader = list(loop.loader)
    handle = loop.autotune(FASTER)
    assert loop.told == [("loader", "waiting for data is not seen: a list does not tell of its epochs")]
    handle.stop()
    assert handle.problem == ("no update was seen: none of the optimizers' step() was called; a list does not tell of its "
                              "epochs")


def test_a_loop_that_never_updates_says_so():
    loop = Loop()
    before = hooks_of(loop)
    handle = loop.autotune(FASTER)
    for batch in loop.loader:
        loop.model(batch[0]).sum().backward()
    handle.stop()
    assert "no update" in handle.problem and texts(loop.told, "problem") == [handle.problem] and texts(loop.told, "ended") == []
    assert hooks_of(loop) == before


def run_in_two_threads(loop):
    begun = loop.steps
    other = threading.Thread(target=loop.run, args=(20,))
    other.start()
    other.join()
    loop.run(20)
    assert loop.steps == begun + 40


def test_updates_in_two_threads_end_the_tuning_in_one_line_and_the_loop_goes_on():
    loop = Loop()
    before = hooks_of(loop)
    handle = loop.autotune(FASTER)
    assert loop.run(3000, until=lambda: loop.knobs.planted)
    run_in_two_threads(loop)
    assert handle.problem == "the optimizer steps in two threads"
    assert loop.knobs.planted == {} and not handle.watching
    handle.stop()
    assert hooks_of(loop) == before
    assert texts(loop.told, "problem") == [f"{handle.problem}; the loop goes on as written"] and texts(loop.told, "ended") == []
    assert handle.ledger["end_reason"] == handle.problem


def test_what_ends_the_tuning_behind_a_kept_change_says_that_it_stays():
    loop = Loop()
    handle = loop.autotune(FASTER)
    assert loop.run(3000, until=lambda: handle.kept)
    run_in_two_threads(loop)
    assert texts(loop.told, "problem") == [f"{handle.problem}; what was kept stays: {FUSED}"]
    assert texts(loop.told, "ended") == []
    assert loop.knobs.planted == handle.settings == {"optimizer.fused": "true"} and not handle.watching


def test_a_module_on_another_device_is_left_alone():
    loop = Loop()
    loop.model.to("meta")
    optimizer = torch.optim.SGD(loop.model.parameters(), 0.1)
    told = []
    handle = hr.autotune(loop.model, optimizer, on_progress=lambda *one: told.append(one))
    assert "parameter 0.weight is on meta; wanted the CPU" in handle.problem and not handle.watching
    assert [kind for kind, _ in told] == ["problem"] and not optimizer._optimizer_step_post_hooks


def test_what_an_adapter_refuses_is_the_problem_and_nothing_is_hooked():
    loop = Loop()
    before = hooks_of(loop)
    handle = AutoTune([loop.model], [], None, request(), lambda *told: loop.told.append(told), refusal="the strategy is another")
    assert handle.problem == "the strategy is another" and not handle.watching and hooks_of(loop) == before
    assert loop.told == [("problem", "the strategy is another; the loop goes on as written")]
    assert "the strategy is another" in in_one_line(handle)
    frozen = AutoTune([loop.model], [], None, request(auto_tune=False), lambda *told: loop.told.append(told), refusal="no")
    assert frozen.problem is None and len(loop.told) == 1


def test_what_is_requested_has_hr_autotunes_defaults_and_makes_its_folder(tmp_path):
    assert requested() == request(only=[], title="training loop")
    assert requested(out=tmp_path / "a" / "b").out.is_dir()
    (tmp_path / "file").touch()
    with pytest.raises(hr.errors.IoError, match=r"^autotune: out: .*file"):
        requested(out=tmp_path / "file")


def test_the_rest_of_a_resumed_run_is_counted_with_what_was_made_before():
    assert requested(first_update=101).with_rest(50).steps == 150
    assert requested(steps=7).with_rest(50).steps == 7 and requested(epochs=2).with_rest(50).steps is None
    assert requested().with_rest(None).steps is None


@pytest.mark.parametrize("given, message", [
    ({"model": 3}, "model: wanted a torch.nn.Module or a list of them, found int$"),
    ({"model": []}, "model: wanted a torch.nn.Module or a list of them, found an empty list"),
    ({"model": [nn.Linear(1, 1), 3]}, "model: wanted .*, found int at 1 of the list"),
    ({"optimizer": "adam"}, "optimizer: wanted a torch.optim.Optimizer or a list of them, found str$"),
    ({"optimizer": DataLoader([1])}, "optimizer: wanted .*, found DataLoader$"),  # In the order of hr.tune.
    ({"optimizer": torch.optim.SGD(nn.Linear(1, 1).parameters(), 0.1)}, "found a SGD none of whose 2 parameters is the model's"),
    ({"loader": 7}, "loader: wanted .*, found int$"),
    ({"steps": 0}, "steps: wanted a whole number of at least 1, found 0"),
    ({"epochs": True}, "epochs: wanted .*, found True"),
    ({"seed": -1}, "seed: wanted a whole number of at least 0, found -1"),
    ({"first_update": 0}, "first_update: wanted a whole number of at least 1, found 0"),
    ({"only": FUSED}, "only: wanted a list of texts, found 'fused optimizer'"),
    ({"fixed": [1]}, "fixed: wanted a list of texts"),
    ({"replay": 7}, "replay: wanted the path of a ledger.json, found int$"),
    ({"out": 7}, "out: wanted the path of a folder, found int$"),
    ({"title": 7}, "title: wanted a text, found 7$"),
    ({"allow": None}, "allow: wanted a text, found None$"),
    ({"gain_min": "small"}, "gain_min: wanted a number, found 'small'$"),
    ({"only": ["fusd optimizer"]}, 'only: wanted names of changes, found "fusd optimizer"; there are .*fused optimizer'),
    ({"allow": "anything"}, "allow.*bit_equal.*anything|allow.*anything.*bit_equal"),
    ({"gain_min": -1.0}, "gain_min"),
])
def test_what_makes_no_sense_is_refused_at_once_by_name_and_nothing_is_hooked(given, message):
    loop = Loop()
    before = hooks_of(loop)
    objects = {"model": loop.model, "optimizer": loop.optimizer, "loader": loop.loader, "fixed": ["data"], **given}
    with pytest.raises(hr.errors.InvalidArgumentError, match=message) as caught:
        hr.autotune(**objects, on_progress=lambda *told: None)
    assert "\n" not in str(caught.value)
    assert hooks_of(loop) == before
    again = hr.autotune(loop.model, loop.optimizer, loop.loader, fixed=["data"], on_progress=lambda *told: None)
    assert again.problem is None  # The one that was refused is not at work.
    again.undo()


class Wrapped(torch.optim.Optimizer):
    """As AcceleratedOptimizer: an optimizer by its class that has none of its attributes."""

    def __init__(self, optimizer):
        self.optimizer = optimizer


class Holding:
    """As LightningOptimizer: no optimizer by its class."""

    def __init__(self, optimizer):
        self.optimizer = optimizer


def test_frameworks_wrappers_are_taken_off_and_each_object_counts_once():
    loop = Loop()
    wrapped_once = Wrapped(loop.optimizer)
    for wrapped in (loop.optimizer, wrapped_once, Holding(wrapped_once), [loop.optimizer, wrapped_once]):
        models, optimizers, loader = raw_objects((loop.model, loop.model), wrapped, loop.loader)
        assert len(models) == 1 and models[0] is loop.model
        assert len(optimizers) == 1 and optimizers[0] is loop.optimizer and loader is loop.loader
    optimized, _ = hr.DataPipelineOptimizer(num_workers=0).optimize_loader(loop.loader)
    assert raw_objects(loop.model, loop.optimizer, optimized)[2] is optimized  # Which the loop goes over.


class Mine(Exception):
    pass


class Calls:
    """A LiveLoop of nothing, in which one method does something else."""

    def __init__(self, **others):
        self.applied = []
        vars(self).update(others)

    def apply(self, settings):
        self.applied.append(settings)

    def replay(self, reference, candidate, full_precision):
        return {"relative_l2": 0.0, "cosine": 1.0, "worst_tensor": 0.0, "worst_name": "", "output_difference": 0.0,
                "finite": True, "bit_equal": True, "seconds": 0.01, "update_difference": None, "other_draws": False}

    def distance_between_calls(self):
        return 1.0

    def updates_left(self):
        return None

    def agree(self, yes):
        return yes


def native_tuner(loop, clock):
    mine = Loop()
    knobs = PlantedKnobs([mine.model], [mine.optimizer], mine.loader, {})
    candidates = knobs.offer("rounding", [], [ARENA], None).candidates
    options = {"allow": "rounding", "gain_min": 0.02, "only": [ARENA], "fixed": [], "frozen": False, "spent_s": 0.0}
    return _core.LiveTuner(loop, candidates, options, 0, {}, clock)


def drive(tuner, clock, updates):
    noise = random.Random(7)
    for update in range(1, updates + 1):
        seconds = STEP_S * math.exp(noise.gauss(0, 0.02))
        clock.now += seconds
        if tuner.keeps_call():
            tuner.before_update()
        tuner.after_update(update, seconds, 1.0, 0.0, True, "")


@pytest.mark.parametrize("method", ["apply", "replay"])
def test_what_the_loop_raises_comes_through_the_tuner_as_it_is(method):
    error = Mine("as it is")

    def raising(*settings):
        if settings[-1]:
            raise error

    clock = Clock()
    tuner = native_tuner(Calls(**{method: raising}), clock)
    with pytest.raises(Mine) as caught:
        drive(tuner, clock, 2000)
    assert caught.value is error
    tuner.undo()
    assert not tuner.watching()


def test_a_replay_without_one_of_its_fields_is_named():
    clock = Clock()
    with pytest.raises(KeyError, match="relative_l2"):
        drive(native_tuner(Calls(replay=lambda *settings: {}), clock), clock, 2000)


def test_a_change_whose_replay_fails_is_never_in_force_and_its_sentence_is_told():
    too_large = {"failure": ("out_of_memory", "needs 2 GB, 1 GB is free")}
    clock, calls = Clock(), Calls(replay=lambda reference, candidate, full: too_large if candidate else Calls().replay({}, {}, full))
    tuner = native_tuner(calls, clock)
    drive(tuner, clock, 2000)
    assert all(settings == {} for settings in calls.applied)
    (trial,) = tuner.trials()
    assert "needs 2 GB, 1 GB is free" in trial["sentence"] and trial["reason"] == "memory"
    assert not tuner.watching()
