"""The scripts in bench/ that judge something tell good from bad."""

import importlib.util
import sys
from pathlib import Path
from types import ModuleType

import pytest

ROOT = Path(__file__).resolve().parent.parent

# Stands for `headrace train`: holds 60 MB, says when an epoch ends, keeps some more of each when told to, and ends with
# 143 after SIGTERM.
TRAINER = """
import signal, sys, time
signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
held = [bytes(60_000_000)]
for epoch in range(1, 1000):
    time.sleep(0.3)
    print(f"epoch {epoch}/1000  loss 0.1", file=sys.stderr, flush=True)
    held.append(bytearray(b"x" * int(sys.argv[1])))
"""


def script(name: str) -> ModuleType:
    """bench/<name>/run.py; all of them are called run."""
    module_name = f"bench_{name}"
    specification = importlib.util.spec_from_file_location(module_name, ROOT / "bench" / name / "run.py")
    module = importlib.util.module_from_spec(specification)
    sys.modules[module_name] = module  # Dataclasses look their module up.
    specification.loader.exec_module(module)
    return module


@pytest.mark.parametrize("kept, grows", [(0, False), (5_000_000, True)])
def test_memory_that_grows_from_epoch_to_epoch_is_seen(kept, grows, capsys):
    memory = script("memory")
    samples = memory.sample_training([sys.executable, "-c", TRAINER, str(kept)], seconds=3, every_s=0.05)
    growth = memory.report(samples)
    assert (growth > 0.02) == grows
    assert "peak of epoch 1: " in capsys.readouterr().out


def test_memory_of_a_run_that_fails_or_is_too_short_is_not_judged():
    memory = script("memory")
    with pytest.raises(SystemExit, match="ended with status 3"):
        memory.sample_training([sys.executable, "-c", "raise SystemExit(3)"], seconds=5, every_s=0.05)
    with pytest.raises(SystemExit, match="wanted the first and two more"):
        memory.report([memory.Sample(1, 100, 100), memory.Sample(2, 100, 100)])


def test_shares_of_kept_changes_add_up(capsys):
    gain = {"low": 0.9, "high": 1.1}
    trials = [{"name": name, "verdict": verdict, "removed_again": removed, "gain": {"median": median, **gain}, "changes": {}}
              for name, verdict, removed, median in
              [("doubled", "kept", False, 1.0), ("quadrupled", "kept", False, 3.0), ("undone", "kept", True, 1.0),
               ("refused", "refused", False, -0.5)]]
    script("train_photos").show_shares({"trials": trials, "written": "today", "speedup": {"median": 8, "low": 7, "high": 9}})
    shown = capsys.readouterr().out.splitlines()
    assert len(shown) == 3 and "8.00x [7.00, 9.00]" in shown[0]
    assert "doubled" in shown[1] and "33% of the gain" in shown[1]
    assert "quadrupled" in shown[2] and "67% of the gain" in shown[2]


def peers_results(peers, speeds: dict[tuple[str, int], list[float | None]], cpu_ms: float = 1.0) -> dict:
    """Rounds of the train work by (arm, threads); None: the arm was unavailable in that round."""
    def of(speed):
        return {"unavailable": "gone"} if speed is None else {
            "images": speed, "seconds": 1.0, "cpu_seconds": speed * cpu_ms / 1000, "first_batch_s": 0.05, "rss_bytes": 100e6,
            "version": "1"}
    return {peers.Arm(peers.TRAIN, name, threads, ()): [of(speed) for speed in rounds]
            for (name, threads), rounds in speeds.items()}


def test_bars_against_rivals_are_met_or_missed_by_ratios_within_rounds():
    peers = script("peers")
    results = peers_results(peers, {(peers.OURS, 2): [130, 260, 390], (peers.OURS, 1): [65, 130, 195],
                                    (peers.YARDSTICK, 2): [100, 200, 300], (peers.YARDSTICK, 1): [50, 100, 150],
                                    (peers.NATIVE, 2): [130, 260, 390], (peers.THREE, 2): [500, 500, 500],
                                    ("slow", 2): [10, 20, 30], ("fast", 2): [50, 104, 170]})
    rows = {row["what"]: row for row in peers.Verdicts(results, 2).judge()}
    decode = rows["train: ours / full decode alone"]
    assert decode["values"] == pytest.approx([1.3, 1.3, 1.3]) and decode["met"]
    rival = rows["train: ours / best rival (fast)"]
    assert rival["median"] == pytest.approx(2.5) and rival["met"]
    assert not rows["train: CPU an image, ours / full decode alone"]["met"]  # Equal, and wanted at most 0.85.
    assert rows["train: gain from 1 to 2 threads, ours / full decode alone"]["median"] == pytest.approx(1)
    assert rows["first batch, C++ from exec, ms"]["met"]
    assert rows["train: memory above the process before, with 3 float batches, MB"]["met"]


def test_a_rival_that_cannot_run_is_named_and_never_counts(capsys):
    peers = script("peers")
    results = peers_results(peers, {(peers.OURS, 2): [100, 100], (peers.YARDSTICK, 2): [None, 200], ("gone", 2): [None, None]})
    verdicts = peers.Verdicts(results, 2)
    assert verdicts.best_rival(peers.TRAIN) is None
    rows = {row["what"]: row for row in verdicts.judge()}
    assert rows["train: ours / full decode alone"]["values"] == [0.5]  # The round in which both ran.
    assert "met" not in rows["first batch, C++ from exec, ms"]
    peers.show_table(peers.TRAIN, 2, results)
    assert "gone                                   unavailable: gone" in capsys.readouterr().out


def test_an_arm_that_fails_or_hangs_is_unavailable_with_the_reason():
    peers = script("peers")
    failing = peers.Arm(peers.TRAIN, "a", 2, (sys.executable, "-c", "import no_such_module"))
    assert peers.run(failing, 60)["unavailable"].endswith("No module named 'no_such_module'")
    hanging = peers.Arm(peers.TRAIN, "b", 2, (sys.executable, "-c", "import time; time.sleep(60)"))
    assert peers.run(hanging, 1)["unavailable"] == "not done after 1 s"
    talking = peers.Arm(peers.TRAIN, "c", 2, (sys.executable, "-c", "print('a warning'); print('{\"images\": 3}')"))
    assert peers.run(talking, 60) == {"images": 3}


def data_targets_missed(show: str, found: dict, *settings) -> list[str]:
    targets = script("data_targets")
    table = targets.Table()
    getattr(targets, show)(found, *settings, table)
    return table.missed


def test_an_interval_of_the_median_leaves_out_what_one_repeat_in_ten_may_be():
    interval = script("data_targets").loader_rounds.interval
    assert interval([5, 1, 2, 3, 4, 100, 6, 7, 8, -100]) == (1, 8)
    assert interval([3, 1, 2]) == (1, 3) and interval([7]) == (7, 7)


def test_a_rate_below_its_target_is_missed(capsys):
    assert data_targets_missed("show_rates", {"small": [6000, 5200, 5100], "large": [100, 99, 9000]}) == ["T-06 large"]
    assert "100 samples/s [99, 9,000]" in capsys.readouterr().out


def test_loading_is_judged_against_the_same_state_of_the_page_cache_by_both_readings(capsys):
    def seconds(value, resident=0.0):
        return [{"seconds": value, "resident": resident, "decoded": 0}] * 3

    found = {"sequential 0 cold": seconds(2.0), "sequential 0 warm": seconds(1.0, 1), "loader 1 cold": seconds(1.0, 0.5),
             "loader 2 cold": seconds(0.5), "loader 1 warm": seconds(1.0), "loader 2 warm": seconds(0.5), "loader 1 cached": seconds(0.2),
             "loader 2 cached": seconds(0.1)}
    assert data_targets_missed("show_loads", found, 2) == [
        "T-07 cold, 1 thread: 70 % less time", "T-07 warm, 1 thread: 70 % less time", "T-07 warm, 1 thread: 1.7 times",
        "T-07 warm, 2 threads: 70 % less time"]
    assert "loader 1 cold: 50% of the pages stayed in the page cache" in capsys.readouterr().out


def test_a_chain_that_computes_something_else_or_is_too_slow_is_missed():
    def ours(speed, bytes_hash="a"):
        return [{"images": speed, "seconds": 1.0, "hash": bytes_hash, "set": "best", "decoded": 0}] * 3

    found = {"best files 1": ours(100), "plain files 1": ours(50), "best pixels 1": ours(900), "plain pixels 1": ours(300, "b"),
             "torchvision files 1": [20.0] * 3, "torchvision pixels 1": [100.0] * 3, "Pillow files 1": [10.0] * 3}
    assert data_targets_missed("show_chains", found, [1]) == [
        "T-08 from JPEG files, 1 thread: scalar specification", "T-08 from decoded pixels, 1 thread: equal output"]


def test_a_cache_that_did_not_hold_all_pictures_is_no_figure():
    targets = script("data_targets")
    targets.check_no_decoding([{"decoded": 0}, {"decoded": 0}])
    with pytest.raises(SystemExit, match="decoded again"):
        targets.check_no_decoding([{"decoded": 0}, {"decoded": 3}])


def test_the_first_batch_of_an_epoch_counts_as_a_request_and_a_fast_consumer_fails():
    def waits(usual):
        return [{"batch_size": 64, "waits_ms": [usual] * 36, "firsts_ms": [40.0]}] * 3

    found = {"sleeps": waits(0.02), "computes": waits(0.02), "none": waits(20.0)}
    missed = data_targets_missed("show_waits", found)
    assert missed[:2] == ["T-09 consumer sleeps 50 ms a batch, with first batches: p99",
                          "T-09 consumer computes 50 ms a batch, with first batches: p99"]
    assert len(missed) == 6 and all("faster than the producer" in name for name in missed[2:])


@pytest.mark.parametrize("predicted, met", [(124, True), (126, False), (76, True), (74, False)])
def test_a_prediction_more_than_a_quarter_off_is_missed(predicted, met, capsys):
    advice = script("loading_advice")
    job = advice.Job("a job", "", "crop", {}, 1)
    assert advice.show(job, [(70, predicted), (70, predicted), (70, 500)], [100, 100, 100])["met"] == met
    assert ("MISSED" in capsys.readouterr().out) == (not met)


@pytest.mark.parametrize("predicted, worse", [(109, False), (111, True), (88, True), (91, False)])
def test_a_prediction_that_errs_by_more_than_none_would_is_missed(predicted, worse, capsys):
    advice = script("loading_advice")
    job = advice.Job("a job", "", "crop", {}, 1)
    found = advice.show(job, [(95, predicted)] * 3, [100] * 3)
    assert found["worse"] == worse and found["met"] == (not worse)
    assert ("worse" in capsys.readouterr().out) == worse
    assert not advice.show(job, [(80, predicted)] * 3, [100] * 3)["worse"]  # Predicting nothing would have erred by 20 %.


def test_what_advice_says_is_what_a_job_is_changed_to():
    advice = script("loading_advice")
    job = advice.Job("a job", "", "crop", {"size": 8, "crop": "random_resized", "scale": [0.5, 1.0]}, 1)
    job.setting = 'data.transform.crop = "center"; data.transform.scale = [0.08, 1.0]'
    assert job.changed() == {"size": 8, "crop": "center", "scale": [0.08, 1.0]}


def test_times_of_a_loader_are_judged_by_their_medians(capsys):
    found = {"1 thread": [2.0] * 3, "8 threads": [0.3, 0.3, 9.0], "8 threads, out of order": [2.1] * 3, "with prefetching": [(1.1, 0.9)] * 3,
             "without": [(2.0, 0.0)] * 3, "the loop reads": [1.0] * 3, "4 threads": [0.3] * 3, "4 processes": [0.41] * 3,
             "collecting": [0.0001, 0.02, 0.0002], "asking": [0.001] * 3, "asking without": [0.019] * 3}
    assert script("loader_timing").show(found) == 3
    missed = [line for line in capsys.readouterr().out.splitlines() if line.endswith("MISSED")]
    assert [line[:15] for line in missed] == ["DATA-05  8 thre", "DATA-14  4 proc", "DATA-17  asking"]
    too_long = {**found, "without": [(2.6, 0.0)] * 3, "asking without": [0.026] * 3}
    assert script("loader_timing").show(too_long) == 4
    missed = [line for line in capsys.readouterr().out.splitlines() if line.endswith("MISSED")]
    assert "DATA-07  without" in missed[1] and "enable_async_data_loading=False" in missed[3]


@pytest.mark.parametrize("after_s, tuning_s, gains, paid", [
    (6.0, 8.0, ("2.00", "0.86"), "after 6 epochs"), (3.0, 0.0, ("4.00", "4.00"), "after 0 epochs"),
    (12.0, 8.0, ("1.00", "0.60"), "after no number of epochs")])
def test_a_scripts_gain_is_told_without_and_with_its_tuning_and_when_it_has_paid(after_s, tuning_s, gains, paid, monkeypatch,
                                                                                 capsys):
    bench = script("python_tune")

    def run(name, which, options, folder):
        training_s = 12.0 if which == "before" else after_s
        return {"training_s": training_s, "wall_s": training_s + 5 + tuning_s * (which == "after"), "epochs": 4,
                "accuracy": 0.9, "output": "  + kept  channels-last  +20 %\n" * (which == "after")}

    monkeypatch.setattr(bench, "run_script", run)
    assert bench.compare("own_dataset", [], 3, Path()) == (after_s <= 12.0)
    *_, without, whole = capsys.readouterr().out.splitlines()
    assert f" {gains[0]} [{gains[0]}, {gains[0]}] times as fast without the tuning" in without
    assert f" {gains[1]} [{gains[1]}, {gains[1]}] times as fast with the tuning of {tuning_s:.1f} s" in whole
    assert whole.endswith(f"it has paid {paid}")
