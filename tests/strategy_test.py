"""Strategies of a user's own, as hr.tune and hr.autotune try them: what they are asked, what is kept, what a fault comes to."""

import gc
import importlib.util
import json
import os
import re
import subprocess
import sys
import textwrap
import time
import weakref
from pathlib import Path

import headrace as hr
import pytest
import torch
from cpp_door_test import TORCH, build, checked, prefix  # noqa: F401
from headrace._autotune import AutoTune
from headrace._strategy import Strategies, StrategyContext
from headrace.errors import Error, InvalidArgumentError, NotFoundError
from planted_loop import Loop, in_one_line, request, texts
from python_tune_test import Loop as TunedLoop
from python_tune_test import everything, subject_of
from state_differences import differences
from tiny_run import ROOT, write_tiny_job
from torch import nn

pytestmark = pytest.mark.usefixtures("one_thread")

# As somebody else's module has it.
PLUG_IN = '''
import time

import headrace as hr


def pause():
    time.sleep(1e-3)


class Pause(hr.Strategy):
    name = "pause"
    sentence = "A pause before each forward."
    numerics = "bit_equal"

    def __init__(self):
        self.calls = []

    def apply(self, context):
        self.calls.append("apply")
        self.hook = context.models[0].register_forward_pre_hook(lambda *given: pause())

    def undo(self, context):
        self.calls.append("undo")
        self.hook.remove()

    def verify(self, context):
        self.calls.append("verify")


strategy = Pause()
hr.register_strategy(strategy)
'''


@pytest.fixture(autouse=True)
def nothing_registered():
    """Before and after each test."""
    assert hr.strategies() == {}
    yield
    for name in hr.strategies():
        hr.unregister_strategy(name)


@pytest.fixture
def plug_in(tmp_path):
    (tmp_path / "plug_in.py").write_text(PLUG_IN)
    spec = importlib.util.spec_from_file_location("plug_in", tmp_path / "plug_in.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


class Run(Loop):
    """A run under hr.autotune itself, whose steps take what `pace` says."""

    def __init__(self):
        super().__init__()
        self.pace, self.knobs = 1.0, self

    def factor(self):
        return self.pace

    def tuned(self, *only, **options):
        return AutoTune([self.model], [self.optimizer], self.loader, request(only=list(only), **options),
                        lambda *told: self.told.append(told), clock=self.clock)


class Pace(hr.Strategy):
    """Makes a run's steps take `factor` of their time, and raises where it is told to."""

    sentence = "Another pace."
    numerics = "bit_equal"

    def __init__(self, name, run, factor=1.0, raises_in=None, error=None):
        self.name, self.run, self.factor, self.raises_in = name, run, factor, raises_in
        self.error = ValueError("broken\nin two lines") if error is None else error
        self.calls = []

    def why_not(self, context):
        self.raise_in("why_not")

    def apply(self, context):
        self.calls.append("apply")
        self.run.pace *= self.factor
        self.raise_in("apply")

    def undo(self, context):
        self.calls.append("undo")
        self.run.pace /= self.factor
        self.raise_in("undo")

    def verify(self, context):
        self.raise_in("verify")

    def raise_in(self, method):
        if method == self.raises_in:
            raise self.error


def taking_turns(calls):
    """Whether each apply is followed by its undo, before the next; one may hold at the end."""
    return [call for call in calls if call != "verify"] == (["apply", "undo"] * len(calls))[:len(calls) - calls.count("verify")]


def pairs_of(calls):
    return calls.count("apply"), calls.count("undo")


# What is tried, kept and taken back.

def test_a_strategy_from_outside_is_listed_applied_and_rolled_back_when_slower(plug_in):
    run = Run()
    hooks = len(run.model._forward_pre_hooks)
    plug_in.pause = lambda: run.take(0.02)
    assert hr.strategies() == {"pause": "A pause before each forward."}
    handle = run.tuned("pause")
    assert run.run(3000, until=lambda: not handle.watching)
    (trial,) = [trial for trial in handle.trials if trial.name == "pause"]
    assert (trial.verdict, trial.reason) == ("refused", "slower") and trial.settings == {"custom.pause": "true"}
    assert trial.pairs >= 1 and handle.kept == [] and handle.settings == {} and handle.problem is None
    assert any("pause: Slower" in text for text in texts(run.told, "decided")) and "pause" in in_one_line(handle)
    applied = [turn for turn in handle.ledger["turns"] if "custom.pause" in turn["settings"]]
    calls = plug_in.strategy.calls
    assert calls[:2] == ["apply", "verify"] and calls.count("verify") == 1 and taking_turns(calls)
    assert calls.count("apply") == calls.count("undo") > len(applied) > 0  # Also in replays of a kept call.
    assert len(run.model._forward_pre_hooks) == hooks


def test_hr_tune_lists_a_strategy_applies_it_and_rolls_it_back_when_slower(plug_in):
    loop = TunedLoop()
    before = everything(loop)
    tuned = loop.tune(only=["pause"], budget_s=10.0)
    (trial,) = tuned.trials
    assert trial.verdict != "kept" and trial.gain[0] < 0, trial.sentence
    assert tuned.settings == {} and differences(before, everything(loop)) == []
    calls = plug_in.strategy.calls
    assert calls[:2] == ["apply", "verify"] and calls.count("verify") == 1 and taking_turns(calls)
    assert calls.count("apply") == calls.count("undo") > 1
    assert "pause" in tuned.summary() and len(loop.model._forward_pre_hooks) == 0


def test_a_strategy_that_pays_is_kept_in_force_until_undo():
    run = Run()
    faster = Pace("faster", run, 0.6)
    hr.register_strategy(faster)
    handle = run.tuned("faster")
    assert run.run(3000, until=lambda: texts(run.told, "ended"))
    assert handle.kept == ["faster"] and handle.settings == {"custom.faster": "true"} and run.pace == pytest.approx(0.6)
    row = {"key": "custom.faster", "requested": "true", "applied": "true", "reason": ""}
    assert row in handle.ledger["settings"]
    assert handle.ledger["ledger"]["baseline"]["settings"]["custom.faster"] == "false"
    handle.stop()
    assert run.pace == pytest.approx(0.6)
    handle.undo()
    assert run.pace == pytest.approx(1.0) and taking_turns(faster.calls) and faster.calls[-1] == "undo"


def test_hr_tune_keeps_what_pays_and_takes_it_back_and_forth():
    loop = TunedLoop()

    class Quick(Pace):
        def apply(self, context):
            super().apply(context)
            assert context == StrategyContext((loop.model,), (loop.optimizer,), loop.loader, live=False)

    run = Run()
    run.pace = 5e-3
    hr.register_strategy(Quick("quick", run, 0.1))
    tuned = loop.tune(only=["quick"], budget_s=20.0, forward=lambda model, batch: (time.sleep(run.pace), loop.loss(batch))[1])
    assert tuned.kept == ["quick"] and run.pace == pytest.approx(5e-4)
    assert tuned.undo().applied is False and run.pace == pytest.approx(5e-3)
    tuned.apply()
    assert run.pace == pytest.approx(5e-4)


def test_strategies_are_offered_behind_headraces_own_in_their_order():
    run = Run()
    for name in ("zebra", "apple"):
        hr.register_strategy(Pace(name, run))
    subject = subject_of(TunedLoop(), only=["none"])
    offered = subject.offer("compute").candidates
    assert [each.key for each in offered[-2:]] == ["custom.zebra", "custom.apple"]
    assert all(not each.key.startswith("custom.") for each in offered[:-2])
    assert {each.resource for each in offered[-2:]} == {"compute"} and dict(offered[-1].changes) == {"custom.apple": "true"}
    assert subject.baseline()["custom.zebra"] == "false"
    subject.configure({"custom.zebra": "true", "custom.apple": "true"})
    assert [row[:3] for row in subject.applied()] == [("custom.apple", "true", "true"), ("custom.zebra", "true", "true")]
    subject.configure({})


def test_the_order_of_their_registration_is_that_of_apply_and_undo_goes_back():
    order = []

    class Noted(hr.Strategy):
        sentence = "Notes what it is asked."

        def __init__(self, name):
            self.name = name

        def apply(self, context):
            order.append(f"{self.name} on")

        def undo(self, context):
            order.append(f"{self.name} off")

    for name in ("zebra", "apple"):
        hr.register_strategy(Noted(name))
    strategies = Strategies(StrategyContext((), (), None, live=True))
    strategies.set({"custom.apple": "true", "custom.zebra": "true", "optimizer.fused": "true"})
    strategies.set({})
    assert order == ["zebra on", "apple on", "apple off", "zebra off"]


# What a fault comes to.

LEFT = "undo: ValueError: broken; what it changed may still hold"


@pytest.mark.parametrize("method", ["why_not", "apply", "verify", "undo"])
def test_what_a_strategy_raises_is_its_own_failure_and_the_others_are_tried(method):
    run = Run()
    broken, faster = Pace("broken", run, 1.3, raises_in=method), Pace("faster", run, 0.6)
    hr.register_strategy(broken)
    hr.register_strategy(faster)
    handle = run.tuned("broken", "faster")
    if method == "undo":
        with pytest.warns(RuntimeWarning, match=f"custom.broken: {LEFT}") as told:
            assert run.run(3000, until=lambda: handle.kept)
        assert len([one for one in told if "custom.broken" in str(one.message)]) == 1
    else:
        assert run.run(3000, until=lambda: handle.kept)
    assert handle.kept == ["faster"] and handle.problem is None
    failed = [trial for trial in handle.trials if trial.name == "broken"]
    if method == "why_not":
        assert failed == [] and broken.calls == []
        assert [one.reason for one in handle.not_applicable if one.key == "custom.broken"] == ["why_not: ValueError: broken"]
    else:
        assert failed[0].verdict == "failed" and f"{method}: ValueError: broken" in failed[0].sentence
        assert "two lines" not in failed[0].sentence and broken.calls == ["apply", "undo"]
    handle.undo()
    assert run.pace == pytest.approx(1.0) and taking_turns(faster.calls)


def test_what_verify_finds_wrong_is_a_failure_and_never_in_force():
    run = Run()
    wrong = Pace("wrong", run, 0.5)
    wrong.verify = lambda context: "the model computes something else."
    hr.register_strategy(wrong)
    handle = run.tuned("wrong")
    assert run.run(3000, until=lambda: not handle.watching)
    (trial,) = [trial for trial in handle.trials if trial.name == "wrong"]
    assert trial.verdict == "failed" and "custom.wrong: verify: the model computes something else." in trial.sentence
    assert wrong.calls == ["apply", "undo"] and handle.ledger["turns"] == []


@pytest.mark.parametrize("method", ["apply", "verify", "undo"])
def test_hr_tune_reports_what_a_strategy_raises_and_goes_on(method, recwarn):
    loop, run = TunedLoop(), Run()
    before = everything(loop)
    broken = Pace("broken", run, raises_in=method)
    hr.register_strategy(broken)
    tuned = loop.tune(only=["broken"], budget_s=2.0)
    (trial,) = tuned.trials
    assert (trial.verdict, trial.reason) == ("failed", "error") and f"{method}: ValueError: broken" in trial.sentence
    assert broken.calls == ["apply", "undo"] and differences(before, everything(loop)) == []
    warned = [one for one in recwarn if "custom.broken" in str(one.message)]
    assert len(warned) == (1 if method == "undo" else 0)


def test_one_that_cannot_be_undone_in_a_race_fails_alone():
    run = Run()
    stuck, slower = Pace("stuck", run, 1.05), Pace("slower", run, 1.06)
    hr.register_strategy(stuck)
    hr.register_strategy(slower)
    handle = run.tuned("stuck", "slower")
    assert run.run(3000, until=lambda: stuck.calls.count("apply") > 2 and slower.calls.count("apply") > 2)
    stuck.raises_in = "undo"
    with pytest.warns(RuntimeWarning, match=f"custom.stuck: {LEFT}"):
        run.run(3000, until=lambda: not handle.watching)
    verdicts = {trial.name: trial.verdict for trial in handle.trials}
    assert verdicts["stuck"] == "failed" and verdicts["slower"] == "refused" and handle.problem is None


def test_one_that_cannot_be_undone_at_the_end_is_told_by_one_line():
    run = Run()
    stuck = Pace("stuck", run, 0.6)
    hr.register_strategy(stuck)
    handle = run.tuned("stuck")
    assert run.run(3000, until=lambda: texts(run.told, "ended")) and handle.kept == ["stuck"]
    stuck.raises_in = "undo"
    with pytest.warns(RuntimeWarning, match=f"custom.stuck: {LEFT}"):
        handle.undo()
    undone = stuck.calls.count("undo")
    handle.undo()
    assert stuck.calls.count("undo") == undone and taking_turns(stuck.calls)


def test_ctrl_c_in_a_strategy_passes_and_it_is_undone():
    run = Run()
    interrupted = Pace("interrupted", run, raises_in="apply", error=KeyboardInterrupt())
    hr.register_strategy(interrupted)
    handle = run.tuned("interrupted")
    with pytest.raises(KeyboardInterrupt) as caught:
        run.run(3000)
    assert caught.value is interrupted.error and interrupted.calls == ["apply", "undo"]
    handle.undo()
    loop = TunedLoop()
    with pytest.raises(KeyboardInterrupt):
        loop.tune(only=["interrupted"], budget_s=2.0)
    assert pairs_of(interrupted.calls) == (2, 2)


def test_too_little_memory_is_told_as_that():
    run = Run()
    hr.register_strategy(Pace("large", run, raises_in="apply", error=MemoryError("no room")))
    handle = run.tuned("large")
    assert run.run(3000, until=lambda: not handle.watching)
    (trial,) = [trial for trial in handle.trials if trial.name == "large"]
    assert (trial.verdict, trial.reason) == ("refused", "memory") and "MemoryError: no room" in trial.sentence


# Numerics: as of any other change.

class OnModel(hr.Strategy):
    """Does something to the model and the optimizer, and undoes it."""

    name, sentence = "on-model", "Something else is computed."

    def __init__(self, numerics, do, undo):
        self.numerics, self.do, self.back, self.calls = numerics, do, undo, []

    def apply(self, context):
        self.calls.append("apply")
        self.done = self.do(context.models[0], context.optimizers[0])

    def undo(self, context):
        self.calls.append("undo")
        self.back(context.models[0], context.optimizers[0], self.done)


def hooked(model, optimizer):
    return model.register_forward_hook(lambda module, given, result: 1.05 * result)


def unhooked(model, optimizer, hook):
    hook.remove()


def other_layer(model, optimizer):
    model[1].forward = lambda x: 1.05 * x.relu()


def plain_layer(model, optimizer, done):
    del model[1].forward


def faster_rate(model, optimizer):
    optimizer.param_groups[0]["lr"] *= 2


def plain_rate(model, optimizer, done):
    optimizer.param_groups[0]["lr"] /= 2


@pytest.mark.parametrize("numerics", ["bit_equal", "rounding"])
@pytest.mark.parametrize("do, undo", [(hooked, unhooked), (other_layer, plain_layer), (faster_rate, plain_rate)],
                         ids=["outputs", "a layer", "the update"])
def test_a_strategy_that_computes_something_else_than_it_says_is_refused(numerics, do, undo):
    run = Run()
    wrong = OnModel(numerics, do, undo)
    hr.register_strategy(wrong)
    handle = run.tuned("on-model")
    assert run.run(3000, until=lambda: not handle.watching)
    (trial,) = [trial for trial in handle.trials if trial.name == "on-model"]
    assert (trial.verdict, trial.reason) == ("refused", "numerics"), trial.sentence
    assert handle.ledger["turns"] == [] and pairs_of(wrong.calls)[0] == pairs_of(wrong.calls)[1] > 0
    assert run.optimizer.param_groups[0]["lr"] == pytest.approx(1e-3)


def test_an_attribute_that_a_strategy_sets_is_seen_by_the_replay():
    class Scaled(nn.Module):
        scale = 1.0

        def __init__(self):
            super().__init__()
            self.layer = nn.Linear(4, 2)

        def forward(self, x):
            return self.scale * self.layer(x)

    run = Run()
    run.model = Scaled()
    run.optimizer = torch.optim.SGD(run.model.parameters(), lr=1e-3)
    hr.register_strategy(OnModel("rounding", lambda model, optimizer: setattr(model, "scale", 1.5),
                                 lambda model, optimizer, done: setattr(model, "scale", 1.0)))
    handle = run.tuned("on-model")
    assert run.run(3000, until=lambda: not handle.watching)
    (trial,) = [trial for trial in handle.trials if trial.name == "on-model"]
    assert (trial.verdict, trial.reason) == ("refused", "numerics") and run.model.scale == 1.0


def test_hr_tune_refuses_a_strategy_that_computes_something_else():
    loop = TunedLoop()
    hr.register_strategy(OnModel("rounding", hooked, unhooked))
    (trial,) = loop.tune(only=["on-model"], budget_s=3.0).trials
    assert (trial.verdict, trial.reason) == ("refused", "numerics")


def test_what_is_looser_than_allowed_or_fixed_is_never_in_force():
    run = Run()
    loose, fixed = Pace("loose", run, 0.5), Pace("fixed-one", run, 0.5)
    loose.numerics = "reduced_precision"
    hr.register_strategy(loose)
    hr.register_strategy(fixed)
    handle = run.tuned("loose", "fixed-one", fixed=["custom.fixed-one"])
    assert run.run(3000, until=lambda: not handle.watching)
    reasons = {trial.name: trial.reason for trial in handle.trials}
    assert reasons["loose"] == "not_allowed" and reasons["fixed-one"] == "fixed"
    assert handle.ledger["turns"] == [] and fixed.calls == []


# What may be registered, and for how long.

@pytest.mark.parametrize("name", ["", "Pause", "a pause", "custom.pause", "1st", "häufig", "pause\n", "x" * 41, "../pause", "'"])
def test_a_name_of_another_form_is_one_clear_error(name):
    with pytest.raises(InvalidArgumentError, match="^strategy: name: wanted 1 to 40 of a to z, 0 to 9, _ and -,") as raised:
        hr.register_strategy(Pace(name, None))
    assert "\n" not in str(raised.value)
    assert hr.strategies() == {}


@pytest.mark.parametrize("name", ["channels-last", "memory_format", "num_workers", "fused", "foreach", "micro-batches"])
def test_a_name_of_headraces_own_is_one_clear_error(name):
    with pytest.raises(InvalidArgumentError, match=f'found "{name}", which is headrace\'s [a-z]+\\.'):
        hr.register_strategy(Pace(name, None))


def test_a_name_is_registered_once_and_free_again_when_it_is_taken_back():
    hr.register_strategy(Pace("once", None))
    with pytest.raises(InvalidArgumentError, match='^strategy: name: wanted a new one, found "once", which is registered'):
        hr.register_strategy(Pace("once", None))
    hr.unregister_strategy("once")
    with pytest.raises(NotFoundError, match='found "once"'):
        hr.unregister_strategy("once")
    hr.register_strategy(Pace("once", None))


@pytest.mark.parametrize("change, message", [
    ({"sentence": ""}, "strategy: one: sentence: wanted what it changes, found an empty text"),
    ({"sentence": None}, "strategy: Pace: sentence: wanted a text, found NoneType"),
    ({"numerics": "exact"}, 'strategy: one: numerics: wanted one of bit_equal, rounding, reduced_precision, found "exact"'),
    ({"name": 7}, "strategy: Pace: name: wanted a text, found int"),
])
def test_what_makes_no_sense_is_one_clear_error(change, message):
    strategy = Pace("one", None)
    vars(strategy).update(change)
    with pytest.raises(InvalidArgumentError, match=f"^{re.escape(message)}$"):
        hr.register_strategy(strategy)


def test_what_is_no_strategy_is_one_clear_error():
    for given, found in ((7, "found int"), (Pace, "found the class Pace itself")):
        with pytest.raises(InvalidArgumentError, match=f"wanted an instance of headrace.Strategy, {found}"):
            hr.register_strategy(given)


def test_one_that_lacks_apply_fails_by_name():
    class Empty(hr.Strategy):
        name, sentence = "empty", "Nothing."

    hr.register_strategy(Empty())
    strategies = Strategies(StrategyContext((), (), None, live=True))
    with pytest.warns(RuntimeWarning, match="Empty has no undo"), pytest.raises(
            Error, match=r"^custom.empty: apply: NotImplementedError: Empty has no apply\(\); undo: "):
        strategies.set({"custom.empty": "true"})


def test_a_reason_that_is_no_text_is_named():
    one = Pace("one", None)
    one.why_not = lambda context: False
    hr.register_strategy(one)
    subject = subject_of(TunedLoop(), only=["none"])
    subject.offer("compute")
    assert [entry.reason for entry in subject.not_applicable if entry.key == "custom.one"] == [
        "why_not: wanted a text or None, found bool"]


def test_a_tuning_under_way_goes_on_with_a_strategy_that_is_taken_back():
    run = Run()
    hr.register_strategy(Pace("faster", run, 0.6))
    handle = run.tuned("faster")
    hr.unregister_strategy("faster")
    assert run.run(3000, until=lambda: handle.kept)
    handle.undo()
    assert "faster" not in [candidate.name for candidate in subject_of(TunedLoop(), only=["none"]).offer("compute").candidates]


def test_a_registered_strategy_keeps_no_loop_alive(plug_in):
    def train():
        run = Run()
        plug_in.pause = lambda: None
        run.tuned("pause")
        run.run(40)
        return weakref.ref(run.model)

    model = train()
    plug_in.strategy.hook = None  # Its own, which knows the model's hooks.
    gc.collect()
    assert model() is None


# Outside of the tree.

def test_a_script_with_a_strategy_of_its_own_says_what_became_of_it(tmp_path):
    script = tmp_path / "script.py"
    script.write_text(textwrap.dedent("""
        import headrace as hr
        import plug_in
        import torch
        from torch import nn

        torch.manual_seed(1)
        model = nn.Linear(8, 2)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        batches = [(torch.randn(16, 8), torch.randint(0, 2, (16,))) for _ in range(400)]
        tuning = hr.autotune(model, optimizer, batches, steps=400, only=["pause"])
        for images, labels in batches:
            optimizer.zero_grad()
            nn.functional.cross_entropy(model(images), labels).backward()
            optimizer.step()
        tuning.undo()
        print(sorted(hr.strategies()), plug_in.strategy.calls.count("apply") == plug_in.strategy.calls.count("undo"))
        print(tuning.report())
    """))
    (tmp_path / "plug_in.py").write_text(PLUG_IN)
    done = subprocess.run([sys.executable, script], capture_output=True, text=True, cwd=tmp_path,
                          env={**os.environ, "PYTHONPATH": str(Path(hr.__file__).parent.parent)})
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("['pause'] True\n") and "pause" in done.stdout.split("\n", 1)[1]


@pytest.fixture(scope="module")
def outside(prefix, tmp_path_factory):  # noqa: F811
    """Where the project of tests/outside was built against an installed headrace."""
    folder = tmp_path_factory.mktemp("outside")
    (folder / "source").symlink_to(ROOT / "tests" / "outside")
    build(prefix, folder, tmp_path_factory.getbasetemp(), "g++")
    return folder / "build"


def test_a_program_outside_the_tree_keeps_the_strategy_that_pays(outside):
    told = checked(outside / "own_strategies", env={"PATH": "/usr/bin:/bin"}).splitlines()
    assert told[:3] == [f"registered {name}: Steps at another pace." for name in ("longer", "shorter", "broken")]
    assert told[3].startswith("refused longer: Slower: ") and told[4].startswith("kept shorter: ")
    assert told[5] == "failed broken: Failed: custom.broken: apply: there is no other pace."
    assert told[6:] == ["1 are in force", "0 are in force at the end"]


def test_a_recipe_s_tuner_tries_what_a_library_outside_the_tree_registers(outside, prefix, tmp_path):  # noqa: F811
    library = outside / "libslow_steps.so"
    recipe = write_tiny_job(tmp_path, 1, f'[tune]\nstrategies = ["{library}"]\nonly = ["slow-steps"]\nbudget_s = 5.0')
    environment = {"PATH": "/usr/bin:/bin", "HEADRACE_TORCH": str(TORCH)}

    def tuned(out):
        command = [prefix / "bin/headrace", "tune", recipe, "--out", tmp_path / out]
        return subprocess.run(command, capture_output=True, text=True, env=environment)

    planned = checked(prefix / "bin/headrace", "tune", recipe, "--dry-run", env=environment)
    assert re.search("slow-steps +Waits before each update", planned)
    done = tuned("run")
    assert done.returncode == 3, done.stderr  # Nothing pays.
    ledger = json.loads((tmp_path / "run/ledger.json").read_text())
    (trial,) = ledger["trials"]
    assert trial["changes"] == {"custom.slow-steps": "true"} and trial["verdict"] != "kept" and trial["gain"]["high"] < 0
    assert ledger["best"]["settings"] == {} and ledger["baseline"]["settings"]["custom.slow-steps"] == "false"
    recipe.write_text(recipe.read_text().replace(str(library), "no_such.so"))
    missing = tuned("other")
    assert missing.returncode == 1 and "no_such.so: cannot open shared object file" in missing.stderr
