"""What the bench of operator profiles tells of its scripts. Figures are made by hand; nothing is timed."""

import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "bench"))

from operator_profile.top_operators import OURS, THEIRS, by_most, observers_share, one_sided  # noqa: E402

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
