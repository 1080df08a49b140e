"""What the bench of operator profiles tells of its scripts, and that these are what they are taken for. Figures are made by hand; nothing is
timed."""

import importlib
import math
import re
import sys
from contextlib import contextmanager
from pathlib import Path

import pytest
from torch.optim.optimizer import register_optimizer_step_post_hook

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "bench"))

from operator_profile.top_operators import OURS, THEIRS, by_most, observers_share, one_sided  # noqa: E402

FOLDER = ROOT / "bench" / "operator_profile" / "scripts"
SCRIPTS = sorted(path.stem for path in FOLDER.glob("*.py"))
SAME = {"a": 9e-6, "b": 8e-6, "c": 7e-6, "d": 6e-6}


def test_operators_that_one_profile_alone_has_on_top_are_told_with_both_times():
    ours = by_most({"f": 4e-6, "e": 4.1e-6, **SAME})
    theirs = by_most({"e": 3.9e-6, "f": 4e-6, **SAME})
    assert one_sided("lstm", {OURS: ours, THEIRS: theirs}) == [
        "lstm: f is on top by torch.profiler alone: hr.profile 4.0 us, torch.profiler 4.0 us a step",
        "lstm: e is on top by hr.profile alone: hr.profile 4.1 us, torch.profiler 3.9 us a step"]


def test_an_operator_that_one_profile_lacks_has_no_time_there():
    told = one_sided("mine", {OURS: by_most(SAME), THEIRS: by_most({**SAME, "z": 5e-6})})
    assert told == ["mine: z is on top by torch.profiler alone: hr.profile unavailable, torch.profiler 5.0 us a step"]


def test_of_equal_tops_nothing_is_told_whatever_their_order():
    assert one_sided("mlp", {OURS: by_most({"a": 1e-6, "b": 2e-6}), THEIRS: by_most({"a": 2e-6, "b": 1e-6})}) == []


def test_the_observers_share_is_the_median_of_scripts_that_have_one():
    assert observers_share([0.5, None, 0.7, 0.6]) == "observer alone: 0.60 of hr.profile's overhead (median of 3 scripts, 0.50 to 0.70)"
    assert "unavailable" in observers_share([None])


def test_there_are_fifteen_whole_scripts_that_know_nothing_of_headrace():
    assert len(SCRIPTS) == 15
    for name in SCRIPTS:
        text = (FOLDER / f"{name}.py").read_text()
        assert "headrace" not in text and text.count("with profile():") == 1
        for part in ("DataLoader(", ".to(device", "scheduler.step(", "print(f", 'if __name__ == "__main__":'):
            assert part in text, f"{name} has no {part}"


@pytest.mark.parametrize("name", SCRIPTS)
def test_a_script_makes_its_updates_within_its_profile_and_prints_finite_losses(name, monkeypatch, capsys):
    script = importlib.import_module(f"operator_profile.scripts.{name}")
    seen = []

    @contextmanager
    def counted():
        hook = register_optimizer_step_post_hook(lambda *_: seen.append("update"))
        yield
        hook.remove()
        seen.append("end")

    monkeypatch.setattr(script, "profile", counted)
    script.main()
    assert seen == ["update"] * script.STEPS + ["end"]
    losses = re.findall(r"\bloss ([^\s,]+)", capsys.readouterr().out)
    assert len(losses) >= script.EPOCHS and all(math.isfinite(float(loss)) for loss in losses)
