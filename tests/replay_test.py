"""A run that hr.autotune has tuned, repeated from its ledger: the same settings at the same updates, the same bits, and one clear
error where that cannot be."""

import functools
import json
import math
import random

import headrace as hr
import pytest
import torch
from headrace._autotune import AutoTune
from headrace._live_knobs import LiveKnobs
from planted_loop import FASTER, FUSED, STEP_S, Clock, Loop, hooks_of, in_one_line, request, texts
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

CHANGES = ["bf16 autocast", "channels-last", FUSED]
# Of a step's seconds.
FACTORS = {"train.precision": 1 / 1.6, "model.memory_format": 1 / 1.3, "optimizer.fused": 1 / 1.2}


pytestmark = pytest.mark.usefixtures("one_thread", "few_objects")


class Images:
    """A loop over images, with dropout, normalisation, clipping and a schedule, whose settings are really in force. Its clock
    passes by what they are planted to gain."""

    def __init__(self):
        torch.manual_seed(1)
        self.model = nn.Sequential(nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.ReLU(), nn.Conv2d(8, 8, 3), nn.ReLU(), nn.Flatten(),
                                   nn.Dropout(0.2), nn.Linear(8 * 16, 4))
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=1e-3)
        self.schedule = torch.optim.lr_scheduler.ExponentialLR(self.optimizer, 0.9999)
        self.loader = DataLoader(TensorDataset(torch.randn(320, 3, 8, 8), torch.randint(0, 4, (320,))), 8, shuffle=True)
        self.knobs = LiveKnobs([self.model], [self.optimizer], self.loader)
        self.clock, self.noise, self.told, self.in_force = Clock(), random.Random(7), [], []

    def autotune(self, **options):
        return AutoTune([self.model], [self.optimizer], self.loader, request(**options),
                        lambda *told: self.told.append(told), knobs=self.knobs, clock=self.clock)

    def step(self, batch):
        in_force = self.knobs.in_force()
        self.in_force.append(in_force)
        self.clock.now += STEP_S * math.prod(FACTORS.get(key, 1.0) for key in in_force) * math.exp(self.noise.gauss(0, 0.02))
        self.optimizer.zero_grad()
        nn.functional.cross_entropy(self.model(batch[0]), batch[1]).backward()
        nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
        self.optimizer.step()
        self.schedule.step()

    def epochs(self, count, until=lambda: False):
        """So many at most, until something has happened at the end of one: how many."""
        for number in range(count):
            for batch in self.loader:
                self.step(batch)
            if until():
                return number + 1
        return count

    def bits(self):
        """Everything that the training has made, by name."""
        state = {f"{number} {key}": value for number, parameter in enumerate(self.model.parameters())
                 for key, value in self.optimizer.state[parameter].items()}
        gradients = {f"{name} gradient": parameter.grad for name, parameter in self.model.named_parameters()}
        return {**self.model.state_dict(), **state, **gradients, "generator": torch.get_rng_state()}


def differing(one, other):
    assert one.keys() == other.keys()
    return [name for name, values in one.items() if not torch.equal(values, other[name])]


def test_a_replayed_run_has_the_bits_of_the_first(tmp_path):
    first = Images()
    tuned = first.autotune(allow="reduced_precision", only=CHANGES, out=tmp_path)
    torch.manual_seed(5)
    searched = first.epochs(200, until=lambda: texts(first.told, "ended"))
    assert searched < 200 and tuned.kept
    first.clock.now += 700  # What is kept is checked again.
    first.epochs(20)
    bits, after = first.bits(), torch.get_rng_state()
    tuned.stop()
    turns = tuned.ledger["turns"]
    assert any("check of what is kept" in turn["why"] for turn in turns)
    tried = {key for turn in turns for key in turn["settings"]}
    assert tried >= set(FACTORS)  # Each was in force, whether it was kept or not.

    second = Images()
    replay = second.autotune(replay=tmp_path / "ledger.json")
    torch.manual_seed(5)
    second.epochs(searched + 20)
    assert differing(second.bits(), bits) == [] and torch.equal(torch.get_rng_state(), after)
    assert second.in_force == first.in_force
    assert replay.problem is None and not replay.watching
    assert replay.kept == tuned.kept and replay.settings == tuned.settings == second.knobs.in_force()

    untouched = Images()
    torch.manual_seed(5)
    untouched.epochs(searched + 20)
    assert set(differing(untouched.bits(), bits)) >= set(dict(untouched.model.named_parameters()))


# Of a loop whose settings are planted: which were in force, when.


class Noting(Loop):
    """Notes what was in force in each step."""

    def __init__(self):
        super().__init__()
        self.in_force = []

    def step(self, batch):
        self.in_force.append(dict(self.knobs.planted))
        super().step(batch)


@functools.cache
def tuned_run(updates=700):
    """The ledger of a run, and what was in force in each update."""
    loop = Noting()
    handle = loop.autotune(FASTER)
    loop.run(updates)
    handle.stop()
    assert handle.kept == [FUSED] and len(handle.ledger["turns"]) > 10
    return json.dumps(handle.ledger), loop.in_force


def written(folder, change=lambda ledger: None):
    ledger = json.loads(tuned_run()[0])
    change(ledger)
    path = folder / "ledger.json"
    path.write_text(json.dumps(ledger))
    return path


def with_turns(folder, turns):
    def change(ledger):
        ledger["turns"] = [{"update": update, "settings": settings, "why": "a turn"} for update, settings in turns]

    return written(folder, change)


FUSED_ON, ARENA_ON = {"optimizer.fused": "true"}, {"compute.allocator": '"arena"'}


def test_nothing_is_measured_or_tried_and_the_last_turn_ends_it(tmp_path):
    loop = Noting()
    before = hooks_of(loop)
    handle = loop.autotune({}, replay=written(tmp_path))  # That nothing gains anything does not matter.
    assert handle.watching and handle.kept == [] and loop.knobs.applied == []
    loop.run(700)
    in_force = tuned_run()[1]
    assert loop.in_force == in_force
    assert hooks_of(loop) == before and not handle.watching and handle.problem is None
    assert handle.kept == [FUSED] and loop.knobs.planted == FUSED_ON
    assert [kind for kind, _ in loop.told] == ["began", "ended"]
    turns = len(handle.ledger["turns"])
    assert loop.told[0][1] == f"{turns} turns of {tmp_path / 'ledger.json'} are repeated, nothing is measured"


def test_a_resumed_run_is_repeated_from_its_own_update_on(tmp_path):
    path = with_turns(tmp_path, [(10, FUSED_ON), (22, {}), (23, ARENA_ON), (30, {})])
    loop = Noting()
    handle = loop.autotune({}, replay=path, first_update=21)
    loop.run(12)
    assert loop.in_force == [FUSED_ON, {}, *[ARENA_ON] * 7, *[{}] * 3]
    assert handle.problem is None and not handle.watching
    assert handle.ledger["command"].endswith(f'replay="{path}", first_update=21)')


def test_the_ledger_of_a_resumed_run_counts_from_its_own_update(tmp_path):
    first = Noting()
    tuned = first.autotune(FASTER, out=tmp_path, first_update=1001)
    first.run(700)
    tuned.stop()
    turns = tuned.ledger["turns"]
    assert tuned.kept == [FUSED] and len(turns) > 10 and all(1002 < turn["update"] <= 1701 for turn in turns)
    second = Noting()
    replay = second.autotune({}, replay=tmp_path / "ledger.json", first_update=1001)
    second.run(700)
    assert second.in_force == first.in_force and replay.problem is None


def test_the_ledger_that_a_killed_run_leaves_repeats_what_it_had_decided(tmp_path):
    first = Noting()
    first.autotune(FASTER, out=tmp_path)
    assert first.run(700, until=lambda: texts(first.told, "decided"))
    turns = json.loads((tmp_path / "ledger.json").read_text())["turns"]
    second = Noting()
    handle = second.autotune({}, replay=tmp_path / "ledger.json")
    second.run(700)
    until = turns[-1]["update"] + 1  # What the last turn made hold.
    assert len(turns) > 5 and second.in_force[:until] == first.in_force[:until] and handle.problem is None


def test_report_and_ledger_say_of_which_run_they_are_and_how_much_of_it_was_repeated(tmp_path):
    path = with_turns(tmp_path, [(10, FUSED_ON), (20, {}), (30, FUSED_ON)])
    loop = Loop()
    out = tmp_path / "again"
    out.mkdir()
    handle = loop.autotune({}, replay=path, out=out)
    loop.run(15)
    assert "1 of 3 turns are applied, nothing is measured." in in_one_line(handle)
    assert f'headrace.autotune(Sequential, AdamW, replay="{path}")' in handle.ledger["command"]
    loop.run(15)
    document = json.loads((out / "ledger.json").read_text())
    assert document["repeated"] == {"ledger": str(path), "turns_applied": 3, "turns": 3}
    assert document["turns"] == json.loads(path.read_text())["turns"] and document["problem"] is None
    assert "3 of 3 turns" in (out / "report.html").read_text()
    again = Loop()
    second = again.autotune({}, replay=out / "ledger.json")  # What a replay has written can be repeated, too.
    again.run(30)
    assert second.problem is None and again.knobs.planted == FUSED_ON


def test_undo_gives_everything_back_and_stop_leaves_what_that_run_kept(tmp_path):
    path = with_turns(tmp_path, [(10, ARENA_ON), (20, FUSED_ON)])
    for end, planted in (("undo", {}), ("stop", FUSED_ON)):
        loop = Loop()
        before = hooks_of(loop)
        handle = loop.autotune({}, replay=path)
        loop.run(12)
        assert loop.knobs.planted == ARENA_ON
        getattr(handle, end)()
        assert loop.knobs.planted == planted and hooks_of(loop) == before
        assert handle.problem == f"{path}: the run ended after 12 updates, with 1 of 2 turns applied"
        loop.run(20)
        assert loop.knobs.planted == planted


def test_a_with_block_is_repeated_as_one(tmp_path):
    def run(**options):
        loop = Noting()
        with loop.autotune(FASTER, **options) as handle:
            loop.run(700)
            inside = dict(loop.knobs.planted)
        assert loop.knobs.planted == {}
        return handle, loop.in_force, inside

    first, in_force, inside = run(out=tmp_path)
    assert inside == FUSED_ON and first.ledger["turns"][-1]["why"] == "undone"
    again, *found = run(replay=tmp_path / "ledger.json")
    assert found == [in_force, inside] and again.problem is None


def test_a_setting_that_ended_by_itself_ends_at_the_same_update(tmp_path):
    first = Noting()
    tuned = first.autotune(FASTER, out=tmp_path)
    assert first.run(3000, until=lambda: tuned.kept)
    first.run(5)
    first.knobs.end("optimizer.fused", "it went away")
    first.run(40)
    tuned.stop()
    assert first.in_force[-1] == {} and tuned.kept == []
    second = Noting()
    replay = second.autotune({}, replay=tmp_path / "ledger.json")
    second.run(len(first.in_force))
    assert second.in_force == first.in_force and replay.problem is None


def test_a_setting_that_ends_where_it_did_not_in_the_first_run_is_a_problem_and_all_is_undone(tmp_path):
    path = with_turns(tmp_path, [(10, FUSED_ON), (40, {})])
    loop = Loop()
    before = hooks_of(loop)
    handle = loop.autotune({}, replay=path)
    loop.run(20)
    loop.knobs.end("optimizer.fused", "it went away")
    loop.run(1)
    assert handle.problem == (f"the run cannot be repeated: UnsupportedError: tune: {path}: update 21: optimizer.fused stays in "
                              "force in the first run, and has ended by itself here: it went away")
    assert texts(loop.told, "problem") == [f"{handle.problem}; the loop goes on as written"]
    assert loop.knobs.planted == {} and hooks_of(loop) == before
    loop.run(30)
    assert loop.steps == 51 and loop.knobs.planted == {}


def test_a_turn_that_cannot_be_applied_is_named_and_the_loop_goes_on_as_written(tmp_path):
    path = with_turns(tmp_path, [(5, ARENA_ON), (10, FUSED_ON)])
    loop = Loop()
    before = hooks_of(loop)
    handle = loop.autotune({}, replay=path)
    plain = loop.knobs.apply

    def refusing(settings):
        if "optimizer.fused" in settings:
            raise hr.errors.UnsupportedError("autotune: optimizer.fused: no kernel for this")
        return plain(settings)

    loop.knobs.apply = refusing
    loop.run(30)
    assert loop.steps == 30
    assert (f"tune: {path}: what holds from update 10 on (a turn; optimizer.fused = true) cannot be applied: autotune: "
            "optimizer.fused: no kernel for this") in handle.problem
    assert loop.knobs.planted == {} and hooks_of(loop) == before and len(texts(loop.told, "problem")) == 1
    assert "cannot be applied: autotune: optimizer.fused: no kernel for this" in in_one_line(handle)


def test_a_run_that_is_shorter_than_the_ledger_says_so(tmp_path):
    path = with_turns(tmp_path, [(10, FUSED_ON), (40, {})])
    loop = Loop()
    handle = loop.autotune({}, replay=path)
    loop.run(20)
    handle.stop()
    assert handle.problem == f"{path}: the run ended after 20 updates, with 1 of 2 turns applied"
    assert texts(loop.told, "problem") == [handle.problem]


def test_a_ledger_without_turns_is_repeated_at_once(tmp_path):
    loop = Loop()
    before = hooks_of(loop)
    handle = loop.autotune({}, replay=with_turns(tmp_path, []))
    assert not handle.watching and handle.problem is None and hooks_of(loop) == before and handle.kept == [FUSED]


def test_an_on_progress_that_raises_before_the_first_turn_ends_the_replay_and_nothing_is_in_force(tmp_path):
    loop = Loop()
    loop.loader = list(loop.loader)  # Which is told first.

    def raising(kind, text):
        raise LookupError("no such log")

    handle = loop.autotune({}, raising, replay=with_turns(tmp_path, [(1, FUSED_ON), (9, {})]))
    loop.run(20)
    assert "LookupError: no such log" in handle.problem and not handle.watching
    assert loop.knobs.planted == {} and FUSED_ON not in loop.knobs.applied and not loop.optimizer._optimizer_step_post_hooks


def test_auto_tune_false_repeats_nothing_either(tmp_path):
    loop = Loop()
    before = hooks_of(loop)
    handle = loop.autotune({}, replay=tmp_path / "is not there", auto_tune=False)
    loop.run(20)
    assert hooks_of(loop) == before and not handle.watching and loop.told == []


# Ledgers that cannot be used.


def own(change):
    return lambda folder: written(folder, change)


def text(content):
    def write(folder):
        (folder / "ledger.json").write_text(content)
        return folder / "ledger.json"

    return write


def of_hr_tune(ledger):
    inner = ledger["ledger"]
    ledger.clear()
    ledger.update(inner)


@pytest.mark.parametrize("write, error, said", [
    (lambda folder: folder / "ledger.json", hr.errors.NotFoundError, "No such file"),
    (text(""), hr.errors.CorruptDataError, "is not a live ledger: .*no whole JSON document"),
    (text("{"), hr.errors.CorruptDataError, "is not a live ledger: .*no whole JSON document"),
    (text("[1]"), hr.errors.CorruptDataError, "is not a live ledger: .*found JSON of type array"),
    (own(of_hr_tune), hr.errors.CorruptDataError, 'is not a live ledger: .*found format "headrace-ledger"'),
    (own(lambda ledger: ledger.update(version=2)), hr.errors.UnsupportedError, "has live ledger version 2, known here is 1"),
    (own(lambda ledger: ledger.pop("turns")), hr.errors.CorruptDataError, "is a damaged live ledger: turns is missing"),
    (own(lambda ledger: ledger["turns"][3].pop("why")), hr.errors.CorruptDataError, r"turns\[3\]: .*why"),
    (own(lambda ledger: ledger["turns"][3].update(update=1)), hr.errors.CorruptDataError, r"turns\[3\]\.update: wanted at least"),
    (own(lambda ledger: ledger.update(turns=ledger["turns"][:1] * 8193)), hr.errors.CorruptDataError,
     "at most 8192 turns, found 8193"),
    (lambda folder: with_turns(folder, [(9, {"model.width": "7"})]), hr.errors.InvalidArgumentError,
     "ledger.json: model.width does not switch between two updates"),
    (lambda folder: with_turns(folder, [(9, {"optimizer.fused": "7"})]), hr.errors.InvalidArgumentError,
     "ledger.json: optimizer.fused: wanted false or true, found 7"),
    (lambda folder: with_turns(folder, [(9, {"optimizer.fused": "true", "optimizer.foreach": "true"})]),
     hr.errors.InvalidArgumentError, "ledger.json: optimizer.fused and optimizer.foreach are both true; wanted one of them"),
    (lambda folder: with_turns(folder, [(9, {"model.memory_format": '"channels_last"'})]), hr.errors.UnsupportedError,
     "autotune: replay: .*ledger.json: model.memory_format: the model has no parameter of four"),
], ids=["missing", "empty", "truncated", "no object", "of hr.tune", "newer", "without turns", "damaged turn", "order", "long",
        "unknown key", "unknown value", "two implementations", "of other objects"])
def test_a_ledger_that_cannot_be_used_is_refused_at_once_by_file_and_key_and_nothing_is_hooked(tmp_path, write, error, said):
    loop = Loop()
    before = hooks_of(loop)
    path = write(tmp_path)
    with pytest.raises(error, match=said) as caught:
        loop.autotune({}, replay=path)
    assert type(caught.value) is error
    assert "\n" not in str(caught.value) and str(path) in str(caught.value)
    assert hooks_of(loop) == before and loop.told == []
    again = loop.autotune({}, replay=with_turns(tmp_path, [(3, FUSED_ON)]))  # The one that was refused is not at work.
    loop.run(5)
    assert again.problem is None and loop.knobs.planted == FUSED_ON


def test_a_file_that_is_larger_than_any_ledger_is_not_read(tmp_path):
    path = tmp_path / "ledger.json"
    with path.open("wb") as file:
        file.truncate(1 << 30)  # Without a block of its own on most file systems.
    with pytest.raises(hr.errors.OutOfMemoryError, match="ledger.json"):
        Loop().autotune({}, replay=path)


def test_the_users_door_takes_a_ledger(tmp_path):
    path = with_turns(tmp_path, [(3, FUSED_ON), (6, {})])
    loop = Loop()
    told, fused = [], []
    handle = hr.autotune(loop.model, loop.optimizer, loop.loader, replay=str(path), on_progress=lambda *one: told.append(one))
    for batch in list(loop.loader)[:8]:
        fused.append(bool(loop.optimizer.param_groups[0]["fused"]))
        loop.step(batch)
    assert fused == [False, False, True, True, True, False, False, False]
    assert handle.problem is None and [kind for kind, _ in told] == ["began", "ended"]
