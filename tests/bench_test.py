"""The scripts in bench/ that judge something tell good from bad."""

import functools
import importlib
import itertools
import json
import os
import random
import re
import signal
import subprocess
import sys
import time
from pathlib import Path
from types import ModuleType, SimpleNamespace

import pytest

ROOT = Path(__file__).resolve().parent.parent
BENCH = ROOT / "bench"
sys.path.insert(0, str(BENCH))

import harness  # noqa: E402
import rows  # noqa: E402
from bench_scripts import script  # noqa: E402
from forked_programs import forked_programs  # noqa: E402
from live_tuning import decisions, recordings, rerun, scripts_known, turns  # noqa: E402

# Stands for `headrace train`: holds 60 MB, says when an epoch ends and goes on once the watch has noted it, keeps some more of
# each when told to, and ends with 143 after SIGTERM.
TRAINER = """
import os, signal, sys, time
signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
held = [b"x" * 60_000_000]  # Written to, so that it is resident.
for epoch in range(1, 1000):
    print(f"epoch {epoch}/1000  loss 0.1", file=sys.stderr, flush=True)
    while not os.path.exists(os.path.join(sys.argv[2], str(epoch))):
        time.sleep(0.01)
    held.append(bytearray(b"x" * int(sys.argv[1])))
"""


@pytest.mark.parametrize("kept, grows", [(0, False), (5_000_000, True)])
def test_memory_that_grows_from_epoch_to_epoch_is_seen(kept, grows, capsys, monkeypatch, tmp_path):
    memory = script("memory")
    watches = []

    class Watch(memory.MemoryWatch):
        def __init__(self, process):
            super().__init__(process)
            watches.append(self)

    def epoch() -> int:
        """That the watch's last sample is of, which the trainer is told. In the place of the clock: a second is an epoch here."""
        noted = max((sample.epoch for sample in watches[-1].samples), default=1)
        for done in range(1, noted):
            (tmp_path / str(done)).touch()
        return noted

    monkeypatch.setattr(memory, "MemoryWatch", Watch)
    monkeypatch.setattr(memory, "time", SimpleNamespace(monotonic=epoch, sleep=time.sleep))
    samples = memory.sample_training([sys.executable, "-c", TRAINER, str(kept), str(tmp_path)], seconds=7, every_s=0.05)
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
    assert harness.interval([5, 1, 2, 3, 4, 100, 6, 7, 8, -100]) == (1, 8)
    assert harness.interval([3, 1, 2]) == (1, 3) and harness.interval([7]) == (7, 7)


def test_an_interval_says_how_often_it_holds_the_median():
    # 1 - 2 * 0.5^n * (1 + n + ...): tables of the sign test.
    assert harness.coverage(1) == 0 and harness.coverage(3) == 0.75 and harness.coverage(5) == 0.9375
    assert harness.coverage(6) == 0.96875 and harness.coverage(10) == 1 - 2 * (1 + 10) / 1024
    assert harness.interval(range(20)) == (5, 14) and harness.coverage(20) == pytest.approx(0.9586, abs=1e-4)
    assert harness.interval(range(1600)) == (760, 839) and harness.coverage(1600) == pytest.approx(0.9518, abs=1e-4)
    assert all(harness.coverage(count) >= 0.95 for count in range(6, 200))


def test_quartiles_and_ratios_of_figures_made_by_hand():
    assert harness.quartiles([4, 1, 3, 2, 5]) == (2, 4) and harness.quartiles([1, 2, 3, 4]) == (1.75, 3.25) and harness.quartiles([7]) == (7, 7)
    assert harness.ratios([1, 9, 4], [2, 3, 4]) == [0.5, 3, 1]
    with pytest.raises(ValueError):
        harness.ratios([1, 2], [1])
    summary = harness.Summary.of([3, 1, 2])
    assert (summary.median, summary.low, summary.high, summary.least, summary.most, summary.count) == (2, 1, 3, 1, 3, 3)


def test_arms_take_turns_in_a_drawn_order_that_its_seed_repeats():
    def orders_of(seed: int, warm_up: int = 0) -> tuple[list[str], dict]:
        asked: list[str] = []

        def arm(name):
            return harness.Arm(name, lambda number: asked.append(name) or number)

        found = harness.interleave([arm(name) for name in "abcde"], 6, warm_up, seed)
        return ["".join(asked[at:at + 5]) for at in range(0, len(asked), 5)], found

    rounds, found = orders_of(1)
    assert rounds == orders_of(1)[0] and rounds != orders_of(2)[0]
    assert all(sorted(order) == list("abcde") for order in rounds)
    assert [order[::-1] for order in rounds[::2]] == rounds[1::2] and len(set(rounds[::2])) > 1
    assert found == {name: [1, 2, 3, 4, 5, 6] for name in "abcde"}
    warm, found = orders_of(1, warm_up=2)
    assert len(warm) == 8 and found == {name: [1, 2, 3, 4, 5, 6] for name in "abcde"}


def test_two_arms_of_one_name_are_refused():
    with pytest.raises(ValueError, match="one name"):
        harness.interleave([harness.Arm("a", lambda _: 1), harness.Arm("a", lambda _: 2)], 1)


def test_an_arm_may_be_a_command_that_prints_its_figures():
    command = (sys.executable, "-c", "print('a word first'); print('{\"rate\": 3}')")
    assert harness.interleave([harness.Arm("a", command)], 2) == {"a": [{"rate": 3}] * 2}


def test_a_program_that_fails_ends_the_bench_with_its_name_status_and_last_lines():
    failing = [sys.executable, "-c", "import sys; print('\\n'.join(f'line {i}.' for i in range(100))); sys.exit(7)"]
    with pytest.raises(SystemExit, match="ended with status 7") as failure:
        harness.run(failing)
    message = str(failure.value)
    assert sys.executable in message and "line 99." in message and "line 5." not in message
    assert harness.run(failing, accepted=(0, 7)).output.startswith("line 0.")
    with pytest.raises(SystemExit, match="/no/such/program.*\n?.*could not be started: No such file"):
        harness.run(["/no/such/program"])
    with pytest.raises(SystemExit, match="printed no line of JSON"):
        harness.run_json([sys.executable, "-c", "print(3)"])


def test_a_program_that_hangs_is_ended():
    with pytest.raises(SystemExit, match=r"not done after 0\.2 s"):
        harness.run(["sleep", "600"], limit_s=0.2)


def test_a_program_ends_with_its_children_when_its_block_is_left(tmp_path, monkeypatch):
    monkeypatch.setattr(harness, "GRACE_S", 0.2)  # It does not listen when it is asked to end.
    pid = tmp_path / "pid"
    stubborn = ("import pathlib, signal, subprocess, time\n"
                "signal.signal(signal.SIGTERM, signal.SIG_IGN)\n"
                f"child = subprocess.Popen(['sleep', '600'])\npathlib.Path({str(pid)!r}).write_text(str(child.pid))\n"
                "time.sleep(600)")
    with pytest.raises(KeyboardInterrupt), harness.started([sys.executable, "-c", stubborn]) as process:
        while not (pid.exists() and pid.read_text()):
            assert process.poll() is None
            time.sleep(0.05)
        raise KeyboardInterrupt
    assert process.returncode == -signal.SIGKILL
    wait_until_gone(int(pid.read_text()))


def wait_until_gone(process: int) -> None:
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline:
        try:
            if Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0] == "Z":
                return
        except OSError:
            return
        time.sleep(0.05)
    raise AssertionError(f"process {process} still runs")


A_BENCH = """
import argparse, sys
sys.path.insert(0, {bench!r})
import harness
arguments = harness.parser("A bench.", rounds=7).parse_args()
bench = harness.Bench(__file__, arguments, "numbers")
command = {command!r}
arms = [harness.Arm("twice", lambda number: 2.0 * number), harness.Arm(("once", 1), lambda number: float(number))]
arms += [harness.Arm("program", lambda number: harness.run(command, limit_s=60).seconds)] if command else []
found = bench.measure(arms, arguments.rounds, title="both")
print(harness.arms_table(found, "m/s", 1, reference="twice"))
sys.exit(bench.end({{"answer": 42}}, 3))
"""


def a_bench(tmp_path: Path, *options: str, command: list[str] | None = None) -> subprocess.Popen:
    folder = tmp_path / "numbers"
    folder.mkdir(exist_ok=True)
    (folder / "run.py").write_text(A_BENCH.format(bench=str(BENCH), command=command))
    return subprocess.Popen([sys.executable, str(folder / "run.py"), *options], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def test_the_json_of_a_bench_holds_the_machine_the_command_and_every_figure(tmp_path):
    target = tmp_path / "below" / "found.json"
    process = a_bench(tmp_path, "--json", str(target), "--order-seed", "5")
    output, errors = process.communicate()
    assert process.returncode == 3, errors
    document = json.loads(target.read_text())
    assert list(target.parent.iterdir()) == [target]  # Nothing is left of the file written aside.
    assert document["format"] == 1 and document["bench"] == "numbers" and document["status"] == 3 and document["results"] == {"answer": 42}
    assert document["command"][1:] == ["--json", str(target), "--order-seed", "5"] and document["options"]["rounds"] == 7
    assert document["machine"]["cores"] == len(os.sched_getaffinity(0)) and document["machine"]["torch"]
    assert set(document["before"]["pressure"]) == {"cpu", "memory", "io"} and "load_1_min" in document["after"]
    assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ", document["date"]) and document["seconds"] >= 0
    twice, once = document["arms"]
    assert twice["title"] == "both" and twice["values"] == [2.0 * number for number in range(1, 8)] and twice["summary"]["median"] == 8
    assert once["name"] == "once, 1"
    lines = output.splitlines()
    assert document["machine"]["processor"] in lines[0] and lines[1] == "numbers: numbers"
    assert re.search(r"^once, 1 +4\.0 .*0\.500 \[0\.500, 0\.500\]$", output, re.MULTILINE)


def test_a_bench_that_is_told_to_end_ends_the_program_it_measures(tmp_path):
    pid = tmp_path / "pid"
    command = [sys.executable, "-c", f"import os, pathlib, time; pathlib.Path({str(pid)!r}).write_text(str(os.getpid())); time.sleep(600)"]
    process = a_bench(tmp_path, command=command)
    while not (pid.exists() and pid.read_text()):
        assert process.poll() is None, process.communicate()
        time.sleep(0.05)
    process.send_signal(signal.SIGINT)
    process.communicate(timeout=60)
    assert process.returncode == 128 + signal.SIGINT
    wait_until_gone(int(pid.read_text()))


def test_pressure_that_the_kernel_does_not_tell_is_unavailable(tmp_path):
    (tmp_path / "cpu").write_text("some avg10=1.50 avg60=0.40 avg300=0.10 total=2500000\nfull avg10=0 avg60=0 avg300=0 total=0\n")
    (tmp_path / "io").write_text("nothing of the kind\n")
    assert harness.pressure("cpu", tmp_path) == {"some_10_s": 0.015, "some_total_s": 2.5}
    assert harness.pressure("io", tmp_path) == harness.UNAVAILABLE and harness.pressure("memory", tmp_path) == harness.UNAVAILABLE
    before = {"pressure": {"cpu": {"some_total_s": 1.0}, "io": harness.UNAVAILABLE}}
    after = {"pressure": {"cpu": {"some_total_s": 2.0}, "io": harness.UNAVAILABLE}}
    assert harness.pressure_between(before, after, 4.0) == "cpu 25.0%, io unavailable"


def entry() -> ModuleType:
    """bench/run.py."""
    return script(".")


def test_every_bench_says_what_it_needs_and_what_it_is():
    run = entry()
    assert sorted(run.NEEDS) == sorted(path.parent.name for path in BENCH.glob("*/run.py"))
    cmake = "\n".join(path.read_text() for path in [ROOT / "CMakeLists.txt", BENCH / "CMakeLists.txt", ROOT / "tests" / "CMakeLists.txt",
                                                    ROOT / "cmake" / "python.cmake"])
    known = set(re.findall(r"(?:add_executable|add_library|headrace_library)\((\w+)", cmake)) | set(run.programs())
    assert {target for needs in run.NEEDS.values() for target in needs.targets} <= known
    assert {folder for runs in run.ALIASES.values() for folder, _ in runs} <= set(run.NEEDS)
    for line in run.listing().splitlines():
        assert re.fullmatch(r"\S+ {2,}\S.*", line), f"a bench without its one line: {line}"


def test_a_name_of_the_benches_is_found_in_every_spelling():
    run = entry()
    assert run.runs_of("fashion", []) == [("train_fashion", ())]
    assert run.runs_of("photos", []) == [("load_photos", ()), ("train_photos", ())]
    assert run.runs_of("train_fashion", ["--epochs", "1"]) == run.runs_of("train-fashion", ["--epochs", "1"]) == [("train_fashion", ("--epochs", "1"))]
    assert run.runs_of("python-loader", []) == [("python_loader", ()), ("python_loader", ("--work", "fashion"))]
    assert run.runs_of("python-loader", ["--rounds", "1"]) == [("python_loader", ("--rounds", "1"))]
    assert run.runs_of("trace-bench", ["1"]) == run.runs_of("trace_bench", ["1"]) == [("trace_bench", ("1",))]
    assert run.runs_of("programs", []) == [(name, ()) for name in run.programs()]


@pytest.mark.parametrize("words, told", [(["fashon"], "no bench is called fashon; did you mean fashion?"),
                                         (["xyzzy"], "no bench is called xyzzy\n"),
                                         (["photos", "--rounds", "1"], "photos is load-photos and train-photos; options are for one of them")])
def test_a_name_that_no_bench_has_is_refused_with_the_nearest_and_the_list(words, told):
    done = subprocess.run([sys.executable, BENCH / "run.py", *words], capture_output=True, text=True)
    assert done.returncode == 2 and told in done.stderr
    assert words[0] == "photos" or "planted  " in done.stderr


def test_a_build_is_told_to_be_slower_by_its_median_or_by_its_interval(capsys):
    builds = script("two_builds")
    assert builds.judge([0.99] * 20) and not builds.judge([0.97] * 20)
    assert not builds.judge([0.94] * 7 + [1.0] * 13)  # The sixth of 20 ordered values is the interval's lower end.
    assert builds.judge([0.94] * 5 + [1.0] * 15)
    quiet = builds.row_of("demo", {"old": [100.0, 100], "new": [90.0, 90], "old again": [100.0, 100]})
    noisy = builds.row_of("idx", {"old": [100.0, 100], "new": [101.0, 101], "old again": [80.0, 80]})
    assert quiet["new_over_old"] == [0.9, 0.9] and not quiet["met"] and quiet["control_met"] and noisy["met"] and not noisy["control_met"]
    builds.show([quiet, noisy])
    shown = capsys.readouterr().out
    assert re.search("^demo .*MISSED$", shown, re.MULTILINE) and re.search("^idx .*met$", shown, re.MULTILINE)
    assert "idx: old against old misses the bar as well" in shown and "demo: old against old" not in shown


def test_each_build_is_asked_in_the_words_that_its_schema_knows():
    builds = script("two_builds")
    old = builds.keys_of({"properties": {"seed": {"type": "integer"}, "optimizer": {"properties": {"kernel": {}}}}})
    new = builds.keys_of({"properties": {"optimizer": {"properties": {"fused": {}}}}})
    assert old == {"seed", "optimizer", "optimizer.kernel"}
    wanted = (("optimizer.fused", "true"), ("optimizer.kernel", "one"))
    assert builds.spelled(wanted, old) == ("--optimizer.kernel", "one") and builds.spelled(wanted, new) == ("--optimizer.fused", "true")
    with pytest.raises(SystemExit, match="knows none of optimizer.fused, optimizer.kernel"):
        builds.spelled(wanted, {"seed"})


def test_a_build_has_its_package_whatever_its_extension_is_called(tmp_path):
    builds = script("two_builds")
    build, package = builds.Build(tmp_path), tmp_path / "build" / "release" / "python"
    with pytest.raises(SystemExit, match="build _engine or _.* there"):
        build.package()
    (package / "headrace").mkdir(parents=True)
    for name in builds.EXTENSIONS:
        extension = package / "headrace" / f"{name}.cpython-311-x86_64-linux-gnu.so"
        extension.touch()
        assert build.package() == package
        extension.unlink()


def test_the_keys_that_two_builds_sets_are_those_of_this_build():
    builds = script("two_builds")
    keys = builds.keys_of(json.loads((ROOT / "docs" / "recipe.schema.json").read_text()))
    for wanted in builds.KEPT:
        builds.spelled(wanted, keys)


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


def test_a_cache_that_did_not_hold_all_images_is_no_figure():
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


def test_a_tuned_division_of_the_cores_is_judged_by_the_best_cell_round_by_round():
    division = script("cores_division")
    assert division.grid(2) == [(0, 1), (0, 2), (1, 1), (1, 2), (2, 1), (2, 2)]
    assert len(division.grid(16)) == 36 and (4, 12) in division.grid(16)
    assert division.cell_of({"compute.intra_op_threads": "1"}, (1, 2)) == (1, 1) and division.cell_of({}, (1, 2)) == (1, 2)
    found = {(1, 2): [50.0, 100.0, 80.0], (2, 1): [60.0, 110.0, 100.0], (2, 2): [200.0, 1.0, 1.0]}
    best, ratios = division.tuned_ratios(found, (1, 2))
    assert best == (2, 1) and ratios == pytest.approx([50 / 60, 100 / 110, 0.8])
    assert division.tuned_ratios(found, best) == (best, [1.0, 1.0, 1.0])


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
             "collecting": [0.0001, 0.02, 0.0002], "asking": [0.001] * 3, "asking without": [0.019] * 3,
             "leaving": [0.004, 0.9, 1.2]}
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


def run_live_tuning(part: str, *options: str) -> subprocess.CompletedProcess:
    return subprocess.run([sys.executable, BENCH / "live_tuning" / "run.py", part, *options], capture_output=True, text=True)


@pytest.mark.parametrize("words, told", [
    (["sideways"], "wanted one of recordings, decisions, rerun, grid, lost-time, hooks, gate, loaders, bits, traps, "
                   "on-cuda, environments, found sideways"),
    (["rerun", "--minutes", "0"], "argument --minutes: wanted a number above 0, found 0"),
    (["rerun", "--scripts", "cnn", "no_such"], "argument --scripts: invalid choice: 'no_such'"),
    (["loaders", "--queues", "3"], "argument --queues: invalid choice: 3"),
    (["lost-time", "--allow", "anything"], "argument --allow: invalid choice: 'anything'")])
def test_words_that_live_tuning_does_not_know_are_refused(words, told):
    done = run_live_tuning(*words)
    assert (done.returncode, told in done.stderr) == (2, True), done.stderr


def test_parts_of_live_tuning_that_need_others_first_say_so(tmp_path):
    done = run_live_tuning("decisions", "--rows", str(tmp_path))
    assert done.returncode == 1
    assert f"decisions: {tmp_path / 'recordings.jsonl'}: wanted recorded steps, found none: run recordings first" in done.stderr
    done = run_live_tuning("grid", "--rows", str(tmp_path), "--scripts", "cnn")
    assert f"cnn is left out: {tmp_path / 'rerun.jsonl'} has not all of its re-run; run rerun first" in done.stdout, done.stderr


def test_scripts_whose_packages_cannot_be_had_are_left_out(monkeypatch, capsys):
    def missing(environment: str) -> Path:
        raise harness.ProgramFailed([environment], "ended with status 1", "is there a network?")

    monkeypatch.setattr(scripts_known, "packages_of", missing)
    assert scripts_known.runnable(SimpleNamespace(scripts=["cnn", "hugging_face"])) == ["cnn"]
    assert capsys.readouterr().out == ("hugging_face is left out: the environment with transformers cannot be made: ended with "
                                       "status 1: is there a network?\n")
    assert scripts_known.runnable(SimpleNamespace(scripts=["cnn", "gan"])) == ["cnn", "gan"]  # Nothing is made for these.


ONE = ("--scripts", "tabular_mlp")
MANY_PROGRAMS = {"rerun", "grid", "lost-time", "loaders", "bits"}  # These parts run here, and their programs in forks.


@pytest.fixture(scope="module")
def programs():
    with forked_programs("torch", "headrace") as found:
        yield found


@pytest.fixture
def run_part(programs, monkeypatch, capsys):
    """run_live_tuning(), for which a start of each program of MANY_PROGRAMS takes no seconds."""
    monkeypatch.setattr(harness, "run", programs.run)
    before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)}  # A Bench sets others.

    def run(part: str, *options: str) -> subprocess.CompletedProcess:
        if part not in MANY_PROGRAMS:
            return run_live_tuning(part, *options)
        status = importlib.import_module(f"live_tuning.{part.replace('-', '_')}").main(list(options))
        return subprocess.CompletedProcess((part, *options), status, *capsys.readouterr())

    yield run
    for number, action in before.items():
        signal.signal(number, action)


@pytest.mark.parametrize("calls", [
    [("recordings", *ONE), ("decisions", "--runs", "1")], [("rerun", *ONE), ("grid", "--without-rivals", *ONE)],
    [("lost-time", "--seeds", "1", *ONE)], [("hooks",)], [("gate",)], [("loaders",)], [("bits", *ONE)], [("traps",)]],
    ids=lambda calls: calls[-1][0])
def test_a_part_of_live_tuning_measures_tells_its_bars_and_measures_nothing_twice(calls, run_part, tmp_path):
    for part, *options in calls:
        first, kept = (run_part(part, "--quick", "--rows", str(tmp_path), *options),
                       tmp_path / f"{part.replace('-', '_')}-quick.jsonl")
        assert first.returncode in (0, 3) and "FAILED" not in first.stdout, f"{first.stdout}\n{first.stderr}"
        measured = rows.Rows(kept).found()
        assert measured, first.stdout
        ends = [line for line in first.stdout.splitlines() if re.search(
            r"^[^|]+: wanted .+, found .+: (met|missed|open, as not all is measured)$", line)]
        assert ends and f"{kept}: {len(measured)} rows" in first.stdout, first.stdout
        again = run_part(part, "--quick", "--rows", str(tmp_path), *options)
        assert again.returncode == first.returncode and rows.Rows(kept).found() == measured, again.stderr
        assert [line for line in again.stdout.splitlines() if line in ends] == ends


def test_rows_outlive_a_process_that_is_killed_in_the_middle_of_one(tmp_path):
    path = tmp_path / "below" / "some.jsonl"
    kept = rows.Rows(path)
    kept.add({"script": "cnn", "seed": 1}, {"seconds": 2.5})
    with open(path, "a") as file:
        file.write('{"format": 1, "key": {"script": "cnn", "se')
    again = rows.Rows(path)
    assert again.has({"script": "cnn", "seed": 1}) and path.read_text().endswith("}\n")
    again.add({"script": "cnn", "seed": 2}, None)
    assert [key["seed"] for key, _ in rows.Rows(path).found(script="cnn")] == [1, 2]
    assert rows.Rows(path).figures(seed=1) == {"seconds": 2.5} and rows.Rows(path).figures(seed=3) is None
    for line in path.read_text().splitlines():
        assert {"day", "commit", "processor", "cores", "torch", "load_1_min"} < json.loads(line).keys()
    with pytest.raises(ValueError, match="already"):
        again.add({"script": "cnn", "seed": 2}, 3)


@pytest.mark.parametrize("line, told", [('{"format": 2, "key": {}}', ":2: wanted rows of format 1, found 2"),
                                        ("{x}", ":2: wanted a line of JSON")])
def test_rows_of_another_format_are_refused_by_name(line, told, tmp_path):
    path = tmp_path / "some.jsonl"
    rows.Rows(path).add({"a": 1}, 1)
    path.write_text(f"{path.read_text()}{line}\n")
    with pytest.raises(SystemExit, match=told):
        rows.Rows(path)


def test_rows_that_were_put_aside_are_counted(tmp_path):
    arguments = SimpleNamespace(rows=tmp_path, quick=False, anew=True)
    rows.open_rows(arguments, "some").add({"a": 1}, 1)
    anew = rows.open_rows(arguments, "some")
    assert anew.found() == [] and anew.about().endswith("no row yet; 1 file of earlier rows put aside by --anew")
    anew.add_failure({"a": 1}, "ended with status 7")
    assert anew.about().endswith("put aside by --anew; 1 failed try")
    anew.add({"a": 1}, 1)
    anew.add_failure({"a": 2}, "ended with status 7")
    assert rows.Rows(anew.path).about().endswith("; 2 failed tries")


def test_a_call_ends_before_its_minutes_are_over_and_the_next_goes_on_from_there(tmp_path):
    now, done = [0.0], []

    def item(number: int) -> rows.Item:
        def work() -> int:
            now[0] += 60
            done.append(number)
            return number * number
        return rows.Item({"number": number}, 60, work)

    def call(minutes: float | None) -> bool:
        return rows.Session(rows.Rows(tmp_path / "some.jsonl"), minutes, lambda: now[0]).run(item(number) for number in range(6))

    assert not call(2.5) and done == [0, 1]
    assert not call(0.1) and done == [0, 1, 2]  # The first is always begun.
    assert call(None) and done == [0, 1, 2, 3, 4, 5]
    assert call(2.5) and len(done) == 6
    assert [figures for _, figures in rows.Rows(tmp_path / "some.jsonl").found()] == [0, 1, 4, 9, 16, 25]


def failing(error: BaseException):
    def work() -> None:
        raise error

    return work


@pytest.mark.parametrize("error, told", [(harness.ProgramFailed(["a"], "ended with status 7"), "ended with status 7"),
                                         (KeyError("step_s"), "KeyError: 'step_s'")])
def test_what_fails_is_named_and_costs_nobody_else_a_row(error, told, tmp_path, capsys):
    def session() -> rows.Session:
        return rows.Session(rows.Rows(tmp_path / "some.jsonl"), None)

    first = session()
    assert first.run([rows.Item({"name": "bad"}, 1, failing(error)), rows.Item({"name": "good"}, 1, lambda: 1)])
    assert first.failures == [f"bad: {told}"] and first.lacks and f"FAILED bad: {told}" in capsys.readouterr().out
    assert session().run([rows.Item({"name": "bad"}, 1, lambda: 2)])  # It is tried again by the next call.
    kept = rows.Rows(tmp_path / "some.jsonl")
    assert (kept.figures(name="bad"), kept.figures(name="good")) == (2, 1)


def test_what_failed_twice_is_left_alone_and_told(tmp_path, capsys):
    tries = []

    def item() -> rows.Item:
        return rows.Item({"name": "bad"}, 1, lambda: tries.append(1) or failing(RuntimeError("broken"))())

    for number in (1, 2, 3):
        session = rows.Session(rows.Rows(tmp_path / "some.jsonl"), None)
        assert session.run([item()]) and session.lacks
        assert session.given_up == ([] if number == 1 else ["bad: RuntimeError: broken"])
    assert len(tries) == 2
    assert rows.tell(session, True, []) == 0
    assert "failed 2 times, and left alone: bad: RuntimeError: broken" in capsys.readouterr().out


def test_an_end_that_is_asked_for_is_no_failure_of_an_item(tmp_path):
    session = rows.Session(rows.Rows(tmp_path / "some.jsonl"), None)
    with pytest.raises(SystemExit):
        session.run([rows.Item({"name": "a"}, 1, failing(SystemExit(143)))])
    assert session.rows.failures({"name": "a"}) == []


def test_bars_are_told_one_a_line_and_only_those_that_are_no_stretch_decide(tmp_path, capsys):
    session = rows.Session(rows.Rows(tmp_path / "some.jsonl"), None)
    bars = [rows.Bar("a", "1", "2", True), rows.Bar("b", "at most 3", "4", False, stretch=True),
            rows.Bar("c", "1", "1 so far", rows.at_the_end(True, False))]
    assert rows.tell(session, False, bars) == 0
    assert capsys.readouterr().out.splitlines()[-3:] == [
        "a: wanted 1, found 2: met", "b (stretch): wanted at most 3, found 4: missed",
        "c: wanted 1, found 1 so far: open, as not all is measured"]
    assert rows.tell(session, True, [*bars, rows.Bar("d", "1", "0", rows.once_complete(False, False))]) == 3
    assert rows.once_complete(True, True) and rows.at_the_end(False, True) is False and rows.at_the_end(False, False) is None


def test_items_made_from_the_rows_before_them_are_reached_in_one_call(tmp_path):
    kept = rows.Rows(tmp_path / "some.jsonl")

    def items():
        yield rows.Item({"what": "list"}, 1, lambda: [3, 4])
        for number in kept.figures(what="list"):
            yield rows.Item({"what": number}, 1, lambda number=number: 10 * number)

    assert rows.Session(kept, None).run(items())
    assert [figures for _, figures in kept.found()] == [[3, 4], 30, 40]


def test_settings_take_turns_in_blocks_whose_first_steps_are_not_counted():
    now, applied = [0.0], []
    shape = turns.Shape(wash_out=1, first_visit=2, counted=2)
    made = turns.Turns(lambda settings: applied.append(settings), [{}, {"a": "1"}], 3, shape, 1, lambda: now[0])
    steps = 0
    while not made.done:
        slow = len(applied) <= 2 and 10.0 or 0.0  # What only the steps behind a setting's first visit take.
        in_block = steps - sum((5, 5, 3, 3, 3, 3)[:len(applied) - 1])
        now[0] += (2.0 if applied[-1] else 3.0) + (slow if in_block < 3 else 0.0)
        made.stepped(7.0)
        steps += 1
    assert steps == 2 * 5 + 4 * 3 and made.found == [[3.0] * 3, [2.0] * 3] and made.work == [[7.0] * 3] * 2
    assert made.first_s == {0: 39.0, 1: 36.0} and made.uncounted_at_first == 3
    assert sorted(map(len, applied)) == [0, 0, 0, 1, 1, 1]
    rounds = [applied[at:at + 2] for at in (0, 2, 4)]
    assert all({} in pair and {"a": "1"} in pair for pair in rounds) and rounds[1] == rounds[0][::-1]
    gain = turns.Gain.of(*made.found)
    assert gain == turns.Gain(0.5, 0.5, 0.5, 3) and str(gain) == "+50.0% [+50.0%, +50.0%], 3 pairs"


def test_a_setting_that_ends_in_mid_turn_is_out_and_the_others_go_on():
    now, tries = [0.0], []

    def apply(settings) -> str | None:
        tries.append(settings)
        return "it recompiles" if settings and tries.count(settings) > 1 else None

    made = turns.Turns(apply, [{}, {"a": "1"}], 4, turns.Shape(1, 0, 1), 1, lambda: now[0])
    while not made.done:
        now[0] += 1
        made.stepped()
    assert made.found == [[1.0] * 4, []] and made.refused == {1: "it recompiles"} and tries.count({"a": "1"}) == 2


def test_blocks_are_as_long_as_a_loaders_queue_asks_for():
    assert turns.shape_of(0.3) == turns.Shape(1, 2, 1)
    assert turns.shape_of(0.001) == turns.Shape(5, 10, 100)
    assert turns.shape_of(0.3, queue=4) == turns.Shape(4, 2, 8)


def test_blocks_of_other_work_count_as_if_they_had_had_that_of_the_middle():
    draw = random.Random(1)
    work = [draw.uniform(10, 100) for _ in range(60)]
    plain, faster = [0.02 + 0.001 * each for each in work], [(0.02 + 0.001 * each) / 1.25 for each in work[::-1]]
    as_they_are = turns.Gain.of(plain, faster)
    assert as_they_are.high - as_they_are.low > 0.3
    even = turns.Gain.of(turns.even(plain, work, plain, work), turns.even(faster, work[::-1], plain, work))
    assert (even.low, even.median, even.high) == pytest.approx((0.25, 0.25, 0.25))
    assert turns.even(faster, [1.0] * 60, plain, [1.0] * 60) == faster and turns.even([2.0], [5.0], [1.0], [1.0]) == [2.0]


def test_recorded_steps_are_drawn_in_segments_of_at_least_40_neighbours():
    drawn = list(itertools.islice(decisions.resampled(range(1000), random.Random(1)), 5000))
    ends = [at for at in range(1, 5000) if drawn[at] != drawn[at - 1] + 1]
    lengths = [after - before for before, after in zip(ends, ends[1:])]
    assert len(lengths) > 30 and min(lengths) >= 40 and len(set(lengths)) > 5
    again = itertools.islice(decisions.resampled(range(1000), random.Random(1)), 5000)
    assert list(again) == drawn
    assert set(itertools.islice(decisions.resampled([5.0] * 40, random.Random(2)), 200)) == {5.0}  # As short as it may be.


def test_recordings_that_are_too_short_to_draw_from_are_left_out(tmp_path):
    kept = rows.Rows(tmp_path / "recordings.jsonl")
    kept.add({"job": "long"}, {"step_s": [0.1] * 40})
    kept.add({"job": "short"}, {"step_s": [0.1] * 39})
    assert recordings.step_times(kept) == {"long": [0.1] * 40}


def test_the_native_tuner_decides_on_recorded_steps_by_what_a_change_is_worth():
    draw = random.Random(3)
    recorded = [0.1 * draw.lognormvariate(0, 0.05) for _ in range(300)]
    better, worse = decisions.verdict(recorded, 0.60, 1, 300.0), decisions.verdict(recorded, -0.20, 1, 300.0)
    assert better["verdict"] == "kept" and 9 <= better["pairs"] <= 60 and better["seconds"] < 300
    assert 2 * better["pairs"] <= better["steps"]  # Of each pair two steps are measured.
    assert worse["verdict"] == "refused" and worse["seconds"] < 300
    assert decisions.verdict(recorded, 0.60, 1, 300.0) == better  # By its seed alone.
    found = decisions.regret(recorded, 1, 300.0)
    assert 0 < found["regret"] < 0.48 and 0.60 in found["kept_gains"] and -0.20 not in found["kept_gains"]


def test_the_first_replay_of_an_update_is_charged_with_that_of_the_loop_as_written():
    loop = decisions.SimulatedLoop([1.0], 0.5, {}, 10.0)
    assert [loop.replay({}, {})["seconds"], loop.replay({}, {})["seconds"]] == [0.5, 0.5] and loop.now == 1.5


def test_changes_that_a_race_kept_wrongly_are_counted():
    runs = [{"kept_gains": [0.0, 0.0, 0.6]}, {"kept_gains": [-0.2, 0.0]}, {"kept_gains": [0.6]}]
    assert (decisions.kept_text(runs, 0.0), decisions.kept_text(runs, -0.20)) == ("3 of 6", "1 of 3")


def a_run(verdict: str, pairs: int = 8, steps: int = 20) -> dict:
    return {"verdict": verdict, "pairs": pairs, "steps": steps, "seconds": 1.0}


def verdicts_of(runs: dict, step_s: float = 0.1, complete: bool = True) -> dict[str, bool | None]:
    """By what a bar is about."""
    return {bar.what + " (stretch)" * bar.stretch: bar.met
            for bar in decisions.verdict_bars({"a job": step_s}, {"a job": runs}, complete)}


def test_bars_on_recorded_steps_are_met_or_missed():
    good = {-0.20: [a_run("refused")] * 10, 0.0: [a_run("inconclusive")] * 1000,
            0.02: [a_run("kept")] * 20 + [a_run("inconclusive")] * 980, 0.05: [a_run("kept")] * 5 + [a_run("inconclusive")] * 5,
            0.15: [a_run("kept", 35, 90)] * 10, 0.60: [a_run("kept", 10, 35)] * 10}
    assert len(verdicts_of(good)) == 10 and all(verdicts_of(good).values())
    assert set(verdicts_of(good, complete=False).values()) == {None}
    short = verdicts_of(good, step_s=0.001)  # No bars of steps where a block is not one step.
    assert [what for what, met in short.items() if met is None] == [
        f"{gain} {word}, median steps, where a block is one step" for gain, word in
        (("-20%", "dropped"), ("+60%", "kept"), ("+15%", "kept"))]
    bad = {-0.20: [a_run("kept")] * 10, 0.0: [a_run("kept")] * 6 + [a_run("inconclusive")] * 994,
           0.02: [a_run("kept")] * 21 + [a_run("inconclusive")] * 979, 0.05: [a_run("kept")] * 4 + [a_run("inconclusive")] * 6,
           0.15: [a_run("kept", 36, 91)] * 10, 0.60: [a_run("inconclusive", 9, 9)] * 6 + [a_run("kept")] * 4}
    assert set(verdicts_of(bad).values()) == {False}


def test_regret_is_judged_by_the_job_that_has_most():
    means = {"a": {"1 h": 0.001, "5 min": 0.03}, "b": {"1 h": 0.009, "5 min": 0.079}}
    assert [bar.met for bar in decisions.regret_bars(means, True)] == [True, True, False]
    assert [bar.met for bar in decisions.regret_bars({**means, "c": {"1 h": 0.011, "5 min": 0.081}}, True)] == [False] * 3
    assert {bar.met for bar in decisions.regret_bars({}, False)} == {None}


def a_distance(**other) -> dict:
    return {"relative_l2": 0.001, "cosine": 1.0, "worst_tensor": 0.001, "worst_name": "a", "output_difference": 1e-6,
            "finite": True, "bit_equal": False, "seconds": 0.1, "update_difference": None, "between_calls": 1.0, **other}


def test_numbers_of_a_kept_call_are_judged_by_their_class():
    passes = rerun.call_passes
    assert passes("bit_equal", a_distance(bit_equal=True)) and not passes("bit_equal", a_distance())
    assert not passes("bit_equal", a_distance(bit_equal=True, update_difference=1e-9))
    assert passes("rounding", a_distance())
    for worse in ({"relative_l2": 0.02}, {"worst_tensor": 0.2}, {"output_difference": 1e-4}, {"update_difference": 1e-5},
                  {"finite": False}):
        assert not passes("rounding", a_distance(**worse)), worse
    assert passes("reduced_precision", a_distance(relative_l2=0.5))
    assert not passes("reduced_precision", a_distance(relative_l2=0.51))
    assert not passes("reduced_precision", a_distance(cosine=0.89))
    assert passes("reduced_precision", a_distance(between_calls=None)) is None
    assert passes("rounding", {"failure": ["internal", "x"]}) is False
    assert passes("rounding", {"failure": ["out_of_memory", "x"]}) is None
    bad, good = a_distance(relative_l2=0.6), a_distance()
    assert rerun.numerics_hold("reduced_precision", [bad, good, good])
    assert not rerun.numerics_hold("reduced_precision", [bad, bad, good])
    assert rerun.numerics_hold("rounding", []) is None
    assert rerun.numerics_hold("rounding", [a_distance(relative_l2=0.02), good]) is None  # As many yes as no.


def a_rerun(folder: Path, verdict: str, with_s: list[float], distance: dict, key: str = "optimizer.fused",
            sentence: str = "found", reason: str = "none", prepare_s: float = 0.0, refused: str | None = None,
            failure: str | None = None, numerics_failure: str | None = None, name: str = "the change") -> rows.Rows:
    """Rows of a script with one change, whose re-run or gradients failed twice where a failure is given. name: of the live trial."""
    kept = rows.Rows(folder / "rerun.jsonl")
    change = {"name": "the change", "key": key, "changes": {key: "true"}, "numerics": "rounding"}
    trial = {"name": name, "verdict": verdict, "reason": reason, "sentence": sentence, "settings": {key: "true"}}
    ledger = {"estimates": [{"pairs_needed": 40}], "turns": [{"update": update} for update in (10, 14, 14, 18, 30)],
              "lost_most_s": 1.0, "lost_allowed_s": 16.0}
    kept.add({"script": "cnn", "what": "step"}, {"step_s": 0.1})
    kept.add(rerun.live_key("cnn", "reduced_precision"), {
        "trials": [trial], "ledger": ledger, "problem": None, "kept": [], "steps": 1400, "told_steps": 3000,
        "settings": {key: "true"} if verdict == "kept" else {}})
    kept.add({"script": "cnn", "what": "offered"}, {"candidates": [change]})
    assert rerun.checked("cnn", kept) is None  # Verdicts are not looked at while a re-run is missing.
    work, pairs = [1.0] * len(with_s), rerun.pairs_key("cnn", change["name"], 60)
    if failure is None:
        kept.add(pairs, {"without_s": [1.0] * len(with_s), "with_s": with_s, "without_work": work, "with_work": work,
                         "refused": refused, "prepare_s": prepare_s})
    for _ in range(2 if failure else 0):
        assert rerun.checked("cnn", kept) is None
        kept.add_failure(pairs, failure)
    assert rerun.checked("cnn", kept) is None
    numerics = {"script": "cnn", "what": "numerics"}
    if numerics_failure is None:
        kept.add(numerics, {"distances": {change["name"]: [distance]}})
    for _ in range(2 if numerics_failure else 0):
        assert rerun.checked("cnn", kept) is None
        kept.add_failure(numerics, numerics_failure)
    return kept


@pytest.mark.parametrize("step_s, told_steps, live_s", [(0.5, 1800, 300), (2.0, 900, 600)])
def test_a_live_run_lasts_its_minutes_and_its_steps_however_fast_it_becomes(step_s, told_steps, live_s, tmp_path, monkeypatch):
    asked = {}
    monkeypatch.setattr(scripts_known, "play", lambda name, arm, steps, **more: asked.update({arm: (steps, more)}))
    found = rows.Rows(tmp_path / "rerun.jsonl")
    found.add({"script": "cnn", "what": "step"}, {"step_s": step_s})
    found.add({"script": "cnn", "what": "offered"}, {"candidates": []})
    arguments = SimpleNamespace(quick=False, pairs=60, allow="reduced_precision")
    for item in list(rerun.items("cnn", found, arguments))[1:3]:
        item.work()
    assert asked["autotuned"] == (told_steps, {"limit_s": live_s, "least_steps": 300, "allow": "reduced_precision"})
    assert asked["offered"][1]["run_steps"] == told_steps


DECIDED, BEYOND_10, WRONG = 0, 2, 3  # Of rerun.bars_of().


@pytest.mark.parametrize("verdict, with_s, numerics, met, wrong, is_open", [
    ("kept", 0.8, {}, True, False, False), ("kept", 1.2, {}, False, True, False),
    ("kept", 0.8, {"relative_l2": 0.5}, False, True, False), ("inconclusive", 0.8, {}, False, False, True),
    ("inconclusive", 0.95, {}, True, False, False), ("refused", 1.3, {}, True, False, False)])
def test_a_live_verdict_is_judged_by_the_changes_own_re_run(verdict, with_s, numerics, met, wrong, is_open, tmp_path, capsys):
    made = rerun.checked("cnn", a_rerun(tmp_path, verdict, [with_s] * 20, a_distance(**numerics)))
    bars = rerun.bars_of(made, True)
    assert (bars[DECIDED].met, bars[WRONG].met) == (not is_open, not wrong)
    assert all(bar.met for bar in bars if not bar.stretch) == met
    assert rerun.bars_of(made, False)[DECIDED].met in (None, False)
    assert made[0].rerun.median == pytest.approx(1 / with_s - 1) == made[0].worth and made[0].pairs_needed == 40
    assert made[0].steps_needed == 40 * 2 * 4 and rerun.steps_a_pair([{"update": 3}]) is None
    rerun.show(made)
    shown = capsys.readouterr().out
    assert ("WRONGLY" in shown) == wrong and ("  40  " in shown) == ("  320  " in shown) == (verdict == "inconclusive")
    assert "refused live" not in shown


@pytest.mark.parametrize("prepare_s, sentence, reason, is_decided, is_far", [
    (60.0, "Not tried: to prepare and check it takes 60 s", "budget", True, False),  # 300 s gain 3 %.
    (80.0, "Not tried: 80 s to prepare", "budget", True, False), (200.0, "Not tried: 200 s", "budget", True, True),
    (200.0, "Not tried: the machine is not quiet", "not_quiet", False, True), (0.0, "Not tried: 0 s", "budget", False, True)])
def test_compiling_is_worth_what_is_left_of_its_gain_when_it_is_paid(prepare_s, sentence, reason, is_decided, is_far, tmp_path):
    (made,) = rerun.checked("cnn", a_rerun(tmp_path, "inconclusive", [0.8] * 20, a_distance(), rerun.COMPILE, sentence, reason,
                                           prepare_s))
    assert made.worth == pytest.approx(300 / (prepare_s + 240) - 1) and made.is_beyond(rerun.FAR) == is_far
    assert made.is_decided == (is_decided and made.worth < 0)
    assert rerun.bars_of([made], True)[DECIDED].met == (not is_far or made.is_decided)


def test_a_change_that_ended_by_itself_has_no_re_run(tmp_path):
    (made,) = rerun.checked("cnn", a_rerun(tmp_path, "failed", [0.8] * 20, a_distance(), refused="it recompiles"))
    assert made.rerun is None and made.worth is None and all(bar.met for bar in rerun.bars_of([made], True))


@pytest.mark.parametrize("lacking", [{"numerics_failure": "not done after 9 s"}, {"name": "a change that is not offered"}])
def test_a_kept_change_whose_gradients_or_re_run_nobody_has_leaves_the_bar_open(lacking, tmp_path, capsys):
    made = rerun.checked("cnn", a_rerun(tmp_path, "kept", [0.8] * 20, a_distance(), **lacking))
    (unverified,) = [one for one in made if one.is_unverified]
    assert unverified.numerics_hold is None and rerun.bars_of(made, True)[WRONG].met is None
    rerun.show(made)
    assert unverified.change in capsys.readouterr().out


def test_a_re_run_that_failed_twice_is_none_and_its_script_is_judged(tmp_path, capsys):
    kept = a_rerun(tmp_path, "refused", [], a_distance(), failure="not done after 9 s")
    (made,) = rerun.checked("cnn", kept)
    assert made.rerun is None and made.worth is None and all(bar.met for bar in rerun.bars_of([made], True))
    rerun.show([made])
    assert "unavailable: not done after 9 s" in capsys.readouterr().out
    assert rerun.checked("cnn", kept, allow="rounding") is None  # Another live run,
    assert rerun.checked("cnn", kept, pairs=20) is None  # and another re-run.


@pytest.mark.parametrize("key, distance, other, is_open", [
    ("optimizer.fused", {}, {}, False), ("optimizer.fused", {}, {"failure": "not done after 9 s"}, True),
    ("optimizer.fused", {}, {"refused": "it recompiles"}, True),
    ("optimizer.fused", {"failure": ["out_of_memory", "x"]}, {}, True),
    ("data.num_workers", {"failure": ["out_of_memory", "x"]}, {}, False)])  # On a kept call it has nothing to show.
def test_a_kept_change_that_could_not_be_measured_again_is_not_right(key, distance, other, is_open, tmp_path):
    made = rerun.checked("cnn", a_rerun(tmp_path, "kept", [0.8] * 20, a_distance(**distance), key, **other))
    bar = rerun.bars_of(made, True)[WRONG]
    assert bar.met is (None if is_open else True)
    assert ("; kept, but without a re-run or gradients that tell: cnn: the change" in bar.found) == is_open


def test_a_refused_change_that_its_re_run_puts_far_above_is_told(tmp_path, capsys):
    rerun.show(rerun.checked("cnn", a_rerun(tmp_path, "refused", [0.8] * 20, a_distance(), reason="no_gain")))
    assert "refused live (no_gain), and worth +25.0% by its re-run: cnn: the change" in capsys.readouterr().out


def test_lost_time_is_the_worst_tenth_of_the_median_of_the_seeds():
    lost = importlib.import_module("live_tuning.lost_time")
    plain = {"tenths_s": [30.0 * tenth for tenth in range(1, 11)]}
    late = {"tenths_s": [seconds + 15 for seconds in plain["tenths_s"][:3]] + plain["tenths_s"][3:]}
    later = {"tenths_s": [seconds + 100 for seconds in plain["tenths_s"]]}
    verdict = lost.judge([(plain, late)] * 2 + [(plain, later)])
    assert verdict == {"behind_s": [15.0] * 3 + [0.0] * 7, "allowed_s": 16.0, "worst_s": [15.0, 15.0, 100.0], "problems": [],
                       "met": True}
    gave_up = lost.judge([(plain, plain), (plain, {**plain, "problem": "nothing can be checked"})])
    assert gave_up["problems"] == ["nothing can be checked"] and not gave_up["met"]
    assert not lost.judge([(plain, late), (plain, later), (plain, later)])["met"]


def a_cell(settings: dict[str, str], *seconds: float) -> dict:
    return {"settings": settings, "step_s": list(seconds), "work": [1.0] * len(seconds)}


def test_a_grid_has_at_most_16_cells_over_the_changes_that_matter_most():
    grid = importlib.import_module("live_tuning.grid")
    changes = [{"name": f"{key} {value}", "key": key, "changes": {key: str(value)}} for key, values in
               (("a", [1]), ("b", [1, 2]), ("c", [1]), ("d", [1]), ("e", [1])) for value in values]
    gains = {"a 1": 0.10, "b 1": -0.30, "b 2": 0.04, "c 1": 0.02, "d 1": 0.05, "e 1": 0.03}
    choices = grid.choices_of(changes, gains)
    assert list(choices) == ["b", "a", "d", "e"] and choices["b"] == [{}, {"b": "1"}, {"b": "2"}]
    cells = grid.cells_of(choices)
    assert len(cells) == 12 and {} in cells and {"a": "1", "b": "2", "d": "1"} in cells and not any("e" in cell for cell in cells)
    assert grid.cells_of({}) == [{}]
    measured = {"cells": [a_cell({}, 1, 9, 1), a_cell({"a": "1"}, 0.9, 0.9, 2), a_cell({"b": "1"})]}
    assert grid.best_of(measured) == {"a": "1"} and grid.best_of(measured, without="a") == {}
    assert grid.best_of({"cells": []}) == {}


def test_what_runs_then_is_compared_with_the_best_cell_as_it_is_measured_anew(tmp_path):
    grid = importlib.import_module("live_tuning.grid")
    reruns, found = a_rerun(tmp_path, "kept", [0.8] * 20, a_distance()), rows.Rows(tmp_path / "grid.jsonl")
    ours, best = {"optimizer.fused": "true"}, {rerun.COMPILE: "true"}
    found.add({"script": "cnn", "what": "cells"}, {"cells": [a_cell({}, 1.0), a_cell(ours, 0.8), a_cell(best, 0.7)]})
    found.add({"script": "cnn", "what": "optuna"}, {"settings": {"a": "1"}})
    found.add({"script": "cnn", "what": "one call"}, {"applied": []})
    assert grid.duellists("cnn", found, reruns) == {"as written": {}, "best cell": best, "hr.autotune": ours,
                                                    "best cell without torch.compile": ours, "Optuna": {"a": "1"}}
    found.add(grid.duel_key("cnn", grid.duellists("cnn", found, reruns)), {
        "cells": [a_cell({}, 1.0, 1.0), a_cell(ours, 0.8, 0.4), a_cell(best, 0.4, 0.4)],
        "refused": [{"settings": {"a": "1"}, "reason": "no such key"}]})
    ratios = grid.ratios_of(found, reruns, "cnn")
    assert ratios["hr.autotune"] == ratios["best cell without torch.compile"] == [0.5, 1.0] and ratios["as written"] == [0.4, 0.4]
    assert ratios["Optuna"] == "no such key" and ratios["pytorch-autotune"] == "it switches nothing on here: as written"
    assert grid.told([1.0]) == "1 (the same settings)" and grid.told("why") == "unavailable: why"


def test_an_arm_that_came_later_was_not_in_the_comparison(tmp_path):
    grid = importlib.import_module("live_tuning.grid")
    reruns, found = a_rerun(tmp_path, "kept", [0.8] * 20, a_distance()), rows.Rows(tmp_path / "grid.jsonl")
    ours = {"optimizer.fused": "true"}
    found.add({"script": "cnn", "what": "cells"}, {"cells": [a_cell({}, 1.0), a_cell(ours, 0.8, 0.7)]})
    first = grid.duel_key("cnn", grid.duellists("cnn", found, reruns))
    found.add(first, {"cells": [a_cell({}, 1.0), a_cell(ours, 0.8)], "refused": []})
    assert grid.ratios_of(found, reruns, "cnn") == {"as written": [0.8], "hr.autotune": [1.0]}
    found.add({"script": "cnn", "what": "optuna"}, {"settings": {"a": "1"}})
    assert grid.ratios_of(found, reruns, "cnn")["Optuna"] == "was not in the comparison"
    assert not found.has(grid.duel_key("cnn", grid.duellists("cnn", found, reruns)))  # It is made again, with all.
    assert grid.rounds_of(found.figures(what="cells")) == "1 to 2"


def test_a_rival_that_cannot_run_is_a_figure_and_one_that_took_too_long_is_tried_again():
    grid = importlib.import_module("live_tuning.grid")
    assert grid.or_unavailable(failing(harness.ProgramFailed(["a"], "ended with status 7"))) == {
        "unavailable": "ended with status 7"}
    with pytest.raises(harness.ProgramFailed):
        grid.or_unavailable(failing(harness.ProgramFailed(["a"], "not done after 9 s")))


def test_cells_that_load_begin_when_loading_can_switch():
    plays = importlib.import_module("live_tuning.grid").Plays("lightning_module", 0.01)
    assert plays.begin_at([{}, {"data.num_workers": "2"}]) == 937 and plays.begin_at([{"optimizer.fused": "true"}]) == 0


def test_a_change_whose_gradients_are_too_far_off_is_in_no_cell(tmp_path):
    grid = importlib.import_module("live_tuning.grid")
    (tmp_path / "far").mkdir()
    (tmp_path / "near").mkdir()
    assert grid.honest_of(a_rerun(tmp_path / "far", "refused", [0.8] * 20, a_distance(relative_l2=0.5)), "cnn") == []
    assert len(grid.honest_of(a_rerun(tmp_path / "near", "kept", [0.8] * 20, a_distance()), "cnn")) == 1


def test_a_grid_is_met_by_ten_of_twelve_and_missed_by_one_far_below():
    grid = importlib.import_module("live_tuning.grid")
    assert grid.bar_of({str(i): 0.96 if i < 10 else 0.91 for i in range(12)}, True).met
    assert grid.bar_of({str(i): 0.96 if i < 9 else 0.91 for i in range(12)}, True).met is False
    assert grid.bar_of({"a": 0.96}, False).met is None and grid.bar_of({"a": 0.89}, False).met is False
    assert "below 0.9: 11 0.890" in grid.bar_of({str(i): 0.96 if i < 11 else 0.89 for i in range(12)}, True).found


@pytest.mark.parametrize("verdict, reason, gain, truth, is_0, sign, off", [
    ("kept", "none", 0.5, 0.6, False, True, 1 / 6), ("kept", "none", 0.5, -0.5, False, False, 2.0),
    ("kept", "none", 0.03, 0.02, True, False, 0.03),  # What is measured of a truth of 0 makes nothing right.
    ("refused", "slower", -0.3, -0.5, False, True, 0.4), ("refused", "slower", -0.3, 0.2, False, False, 2.5),
    ("refused", "no_gain", 0.01, 0.2, False, False, 0.95), ("refused", "no_gain", 0.0, 0.0, True, True, 0.0),
    ("refused", "slower", -0.04, 0.01, True, True, 0.04), ("inconclusive", "none", 0.04, 0.005, True, None, 0.04),
    ("inconclusive", "budget", None, 0.9, False, None, None)])
def test_planted_changes_of_loaders_are_judged_by_sign_and_size(verdict, reason, gain, truth, is_0, sign, off):
    loaders = importlib.import_module("live_tuning.loaders")
    live = {"verdict": verdict, "reason": reason, "gain": None if gain is None else [gain, gain, None]}
    found = loaders.judge(live, truth, is_0)
    assert (found["sign"], found["is_0"]) == (sign, is_0) and found["off"] == (None if off is None else pytest.approx(off))
    assert loaders.gain_text(live["gain"]) == ("" if gain is None else f"{gain:+.1%} [{gain:+.1%}, unavailable]")


@pytest.mark.parametrize("wait, nothing", [("0 %", {"loading halved"}), ("50 %", {"compute halved", "compute 1.25"}),
                                           ("90 %", {"compute halved", "compute 1.25"})])
def test_a_change_of_what_a_loop_does_not_wait_for_is_nothing(wait, nothing):
    loaders = importlib.import_module("live_tuning.loaders")
    found = {change for change in loaders.CHANGES if loaders.is_nothing(wait, change)}
    assert found == {"nothing, compute", "nothing, loading", *nothing}


def test_sizes_of_loaders_are_wanted_with_a_queue_of_four_and_signs_with_all():
    loaders = importlib.import_module("live_tuning.loaders")
    good = {"sign": True, "is_0": False, "off": 0.05, "queue": 4, "wait": "50 %", "change": "a"}
    of_0 = {**good, "is_0": True, "off": 0.0}

    def bars(**other) -> list[bool | None]:
        return [bar.met for bar in loaders.bars_of([of_0, good, {**good, **other}], 3, True)]

    assert bars() == [True] * 5 and bars(sign=False)[0] is False and bars(is_0=True, off=0.031)[1] is False
    assert bars(off=0.31)[2:] == [False] * 3 and bars(off=0.31, queue=8)[2:] == [True, False, False]
    assert bars(off=0.2)[2:] == [True, True, False]


def test_bars_of_loaders_are_not_met_by_runs_that_measured_nothing():
    loaders = importlib.import_module("live_tuning.loaders")
    good = {"sign": True, "is_0": False, "off": 0.05, "queue": 4, "wait": "50 %", "change": "a"}
    of_0 = {**good, "is_0": True, "off": 0.0}
    missing = loaders.bars_of([of_0, good], 90, True)
    assert {bar.met for bar in missing} == {None} and all("; 88 of 90 runs are missing" in bar.found for bar in missing)
    unsized = loaders.bars_of([of_0, {**good, "off": None}], 2, True)
    assert [bar.met for bar in unsized] == [True, True, False, False, False]
    assert unsized[2].found == "0 of 0; 1 without a size"
    undecided = loaders.bars_of([{**one, "sign": None} for one in (of_0, good)], 2, True)
    assert undecided[0].met is False and undecided[0].found == "0 of 0 right, 2 open"
    assert {bar.met for bar in loaders.bars_of([], 2, True)} == {None}


def test_hooks_are_judged_by_what_they_add_to_a_step():
    hooks = importlib.import_module("live_tuning.hooks")

    def bars(searching_us: float, stopped_us: float, left: float = 0.0, searched: float = 1.0,
             watching_us: float = 0.0) -> list[bool | None]:
        def rounds(cpu_us: float, **other: float) -> list[dict[str, float]]:
            return [{"us": cpu_us, "cpu_us": cpu_us, "hooks": 0.0, "searched": 0.0, **other}] * 10

        found = {hooks.ALONE: rounds(100), hooks.SEARCHING: rounds(100 + searching_us, searched=searched),
                 hooks.WATCHING: rounds(100 + watching_us, searched=searched), hooks.STOPPED: rounds(100 + stopped_us, hooks=left)}
        return [bar.met for bar in hooks.bars_of(hooks.judge(found, 860.0), "0.86 ms", True)]

    assert bars(2.5, 0.0) == [True] * 4 and bars(2.6, 0.0)[0] is False and bars(2.5, 0.0, searched=0.0)[:2] == [False, False]
    assert bars(2.5, 0.1, left=2.0) == [True, True, False, False] and bars(2.5, 0.0, watching_us=2.6) == [True, False, True, True]
    one = {"us": 0.0, "hooks": 0.0, "searched": 1.0}
    found = {arm: [{**one, "cpu_us": cpu_us}] * 3 for arm, cpu_us in zip(hooks.ARMS, (100.0, 108.0, 112.0, 103.0, 100.0), strict=True)}
    assert hooks.judge(found, 860.0)["added_us"] == {
        hooks.EMPTY_HOOK: [8.0] * 3, hooks.SEARCHING: [12.0] * 3, hooks.WATCHING: [3.0] * 3, hooks.STOPPED: [0.0] * 3}


def test_hooks_take_their_share_of_a_recorded_step_where_there_is_one(tmp_path):
    hooks = importlib.import_module("live_tuning.hooks")
    arguments = SimpleNamespace(step_ms=None, rows=tmp_path, quick=False)
    assert hooks.step_of(arguments) == (0.86, "assumed, as there is no recording of tabular_mlp")
    rows.Rows(tmp_path / "recordings.jsonl").add({"job": "tabular_mlp"}, {"step_s": [0.002] * 40})
    assert hooks.step_of(arguments) == (2.0, "the median of tabular_mlp as recorded")
    assert hooks.step_of(SimpleNamespace(step_ms=5.0)) == (5.0, "as --step-ms says")


def test_the_gate_is_judged_by_every_change_and_every_forward(tmp_path):
    gate = importlib.import_module("live_tuning.gate")
    kept = rows.Rows(tmp_path / "gate.jsonl")

    def add(what: str, count: int, passed: bool | None, forwards: int = 3) -> None:
        numerics = None if passed is None else {"checked": True, "passed": passed, "value": 0.1, "tolerance": 1.0, "measure": "m"}
        checked = [{"job": "a", "change": "b", "numerics": numerics, "sentence": ""}] * count
        kept.add({"what": what, "job": len(kept.found())},
                 {"checked": checked, "forwards": forwards, "allowed": 3, "problem": None})

    add("honest", 19, True)
    add("broken", 10, False)
    assert [bar.met for bar in gate.bars_of(kept, False)] == [None, None, None]
    assert [bar.met for bar in gate.bars_of(kept, True)] == [False, True, True]  # 19 of 20 are there.
    add("honest", 1, True, forwards=4)
    assert [bar.met for bar in gate.bars_of(kept, True)] == [True, True, False]
    add("broken", 1, None)  # One that was not checked.
    assert gate.bars_of(kept, False)[1].met is False and gate.bars_of(kept, False)[1].found == "10 of 11"


def test_a_trap_is_right_by_its_verdict_and_its_reason():
    traps = importlib.import_module("live_tuning.traps")

    def is_right(case: str, name: str, verdict: str, reason: str, sentence: str = "") -> bool:
        return traps.is_right(case, {"name": name, "verdict": verdict, "reason": reason, "sentence": sentence})

    assert is_right("planted", "faster", "kept", "none") and not is_right("planted", "faster", "inconclusive", "budget")
    assert is_right("random loss", "faster-but-wrong", "refused", "numerics")
    assert not is_right("random loss", "faster-but-wrong", "refused", "slower")
    assert is_right("planted", "no-effect", "inconclusive", "none") and not is_right("planted", "no-effect", "kept", "none")
    assert is_right("recompiling", "torch.compile", "failed", "error", "Failed: given up after 4 recompilations, the last for")
    assert not is_right("recompiling", "torch.compile", "failed", "error", "Failed: no compiler.")
    assert {change for changes in traps.RIGHT.values() for change in changes} >= set(traps.SAYS)


def test_a_trap_without_a_trial_is_not_right():
    traps = importlib.import_module("live_tuning.traps")
    right = {"problem": None, "trials": [{"name": "faster", "verdict": "kept", "reason": "none", "sentence": ""}]}
    gave_up = {"problem": "headrace failed: x", "trials": []}

    def bar(runs: list[dict], whole: bool = True) -> rows.Bar:
        return traps.bar_of("planted", "faster", runs, whole)

    assert bar([right] * 20).met and bar([right] * 19).met is False and bar([right] * 19, False).met is None
    assert bar([]).met is False and bar([]).found == "no trial: not run" and bar([], False).met is None
    assert bar([gave_up] * 20).met is False and bar([gave_up] * 20).found == "no trial: headrace failed: x"
    assert bar([right] * 20 + [gave_up]).met is False
    assert bar([right] * 20 + [gave_up]).found == "20 of 21; without a trial 1: headrace failed: x"


def test_bits_are_not_shown_by_runs_that_gave_up_or_repeated_nothing():
    bits = importlib.import_module("live_tuning.bits")

    def judged(run: str, digest: str = "a", problem: str | None = None, turns: int = 3) -> bool | None:
        runs = {bits.UNTOUCHED: {"digest": "a"}, bits.BIT_EQUAL: {"turns": turns}, bits.FIRST: {"digest": "a", "turns": turns},
                bits.REPEATED: {}}
        runs[run] |= {"digest": digest, "problem": problem}
        return bits.judge(runs, run, dict(bits.PAIRS)[run])

    for run in (bits.BIT_EQUAL, bits.REPEATED):
        assert judged(run) and judged(run, digest="b") is False and judged(run, problem="headrace failed: x") is False
    assert judged(bits.BIT_EQUAL, turns=0) and judged(bits.REPEATED, turns=0) is None
    assert bits.bar_of("bits", {"a": True, "b": True}, 2, True).met
    shown = bits.bar_of("bits", {"a": True, "b": None}, 2, True)
    assert shown.met is None and shown.found == "in 1 of 1; a ledger without turns, which shows nothing: b"
    assert bits.bar_of("bits", {"a": False, "b": None}, 2, True).met is False
    assert bits.bar_of("bits", {}, 0, True).met is None


def test_division_and_zero_configuration_are_judged_by_the_rounds_that_are_whole(tmp_path, capsys):
    division, zero = script("cores_division"), script("zero_configuration")
    kept = rows.Rows(tmp_path / "rows.jsonl")
    ledger = {"best": {"settings": {"data.num_workers": "2"}}, "quietness": {"sentence": "quiet"}, "trials": [],
              "assumed": [], "speedup": {"median": 1.2}}
    assert division.judge("a", division.Job("r.toml", 1), kept, 2, True) is None
    kept.add({"job": "a", "what": "tune"}, ledger)
    for number, cell in itertools.product((1, 2), division.grid(2)):
        if (number, cell) != (2, (0, 1)):  # The second round is not whole.
            speed = (100.0 if cell == (2, 2) else 50.0) if number == 1 else 1.0
            kept.add({"job": "a", "what": "cell", "loading": cell[0], "computing": cell[1], "round": number},
                     {"samples_per_second": speed, "data_wait": 0.5})
    assert division.judge("a", division.Job("r.toml", 1), kept, 2, True).met
    assert "2 loading, 2 computing, 2.00 times as fast" in capsys.readouterr().out

    assert zero.judge("tiles", kept, True) is None
    kept.add({"workload": "tiles", "what": "tune"}, {"ledger": {**ledger, "trials": [
        {"name": "b", "verdict": "kept", "gain": None, "pairs": 0}]}, "seconds": 9.0})
    for arm, seconds in (("basic", 2.0), ("tuned", 2.1)):
        kept.add({"workload": "tiles", "what": "train", "arm": arm, "seed": 1}, {"training_s": seconds, "accuracy": 0.5})
    kept.add({"workload": "tiles", "what": "train", "arm": "basic", "seed": 2}, {"training_s": 9.0, "accuracy": 0.5})
    assert zero.judge("tiles", kept, True).met is False and zero.judge("tiles", kept, False).met is None
    assert "in 1 rounds" in capsys.readouterr().out


def test_the_loop_and_the_trainer_with_all_features_come_to_the_same_weights_and_averages():
    assert script("python_step").farthest(30) < 1e-5


def test_a_trainers_share_of_the_plain_loops_time_is_told_with_its_bar(capsys):
    bench = script("python_step")
    times = {f"{kind}: {arm}": [100.0] * 3 for kind in bench.BARS for arm in ("Python loop", "hr.Trainer")}
    shares = bench.judge({**times, "all: hr.Trainer": [40.0, 50.0, 60.0], "clip: hr.Trainer": [51.0] * 3})
    assert (shares["all"], shares["clip"], shares["plain"]) == (0.5, 0.51, 1.0)
    plain, clip, _, with_all = capsys.readouterr().out.splitlines()
    assert with_all == "all: 0.50 of the plain loop's time (ratio of medians; round by round 0.50 [0.40, 0.60]; wanted at most 0.5): met"
    assert clip.endswith("wanted at most 0.5): missed") and plain.startswith("plain: 1.00 of ")


def loop_runs(times: list[float | None]) -> list[dict]:
    """Of a process each; None: it was unavailable."""
    return [{"unavailable": "gone"} if us is None else {"us": us, "version": "1"} for us in times]


def test_steps_are_judged_by_the_rounds_in_which_both_ran_and_a_loop_that_never_ran_is_told():
    peers = script("train_peers")
    times = {peers.rivals.PLAIN: [200.0, 200.0, 100.0], peers.rivals.WITH_ALL: [180.0, 190.0, None],
             peers.rivals.LIGHTNING: [1000.0, 1000.0, 1.0], peers.rivals.MOSAIC: [None]}
    found = {loop.name: loop_runs(us) for loop, us in times.items()}
    assert [str(bar) for bar in peers.step_bars(found)] == [
        "hr.Trainer, all features, over Lightning Trainer: wanted at most 0.2, found 0.185 [0.180, 0.190]: met",
        "hr.Trainer, all features, over Composer Trainer: wanted at most 0.1, found unavailable: gone: open, as not all is measured"]
    _, plain, ours, _, composer = peers.step_table(found).splitlines()
    assert "1.000 [1.000, 1.000]" in plain and ours.endswith("1; 1 of 3 runs unavailable: gone") and "0.925 [0.900, 0.950]" in ours
    assert re.fullmatch("Composer Trainer +unavailable: gone", composer)
    slow = {**found, peers.rivals.LIGHTNING.name: loop_runs([800.0] * 3)}
    assert peers.step_bars(slow)[0].met is False
    assert peers.step_bars({})[0].found == "unavailable: not run"


@pytest.mark.parametrize("ours, same_bits, met", [(100.0, True, [True, True]), (101.0, True, [False, True]), (90.0, False, [True, False])])
def test_an_optimizer_is_judged_by_time_and_bits_beside_the_plain_loop_with_it(ours, same_bits, met):
    peers = script("train_peers")
    figures = {"us": {"plain": [100.0] * 3, "ours": [ours] * 3, "adamw": [50.0] * 3}, "same_bits": same_bits, "compared": 20,
               "bytes": 1000, "adamw_bytes": 4000, "version": "1", "by": "a.Lamb.step()"}
    found = {"timm Lamb": figures, "torchao AdamW8bit": {"unavailable": "gone"}}
    bars = peers.optimizer_bars(found)
    assert [bar.met for bar in bars] == [*met, None, None] and bars[2].found == bars[3].found == "unavailable: gone"
    _, lamb, torchao = peers.optimizers_table(found).splitlines()
    assert lamb.split()[-3:] == ["4,000", "1,", "a.Lamb.step()"] and ("the same" in lamb) == same_bits
    assert torchao.endswith("  unavailable: gone")


def test_a_rival_whose_environment_cannot_be_made_is_unavailable_and_asked_for_once(monkeypatch):
    rivals = script("train_peers").rivals
    asked = []

    def failing(command, **_options):
        asked.append(command)
        raise harness.ProgramFailed(command, "ended with status 1", "is there a network?")

    monkeypatch.setattr(rivals, "python_of", functools.cache(rivals.python_of.__wrapped__))
    monkeypatch.setattr(harness, "run", failing)
    for loop in (rivals.FABRIC, rivals.LIGHTNING):
        assert rivals.figures_of(loop, "steps.py", {}) == {"unavailable": "ended with status 1: is there a network?"}
    assert len(asked) == 1


def test_a_rival_that_cannot_be_imported_or_has_another_torch_is_unavailable(monkeypatch):
    rivals = script("train_peers").rivals
    monkeypatch.setattr(rivals, "python_of", lambda _environment: (Path(sys.executable), ""))
    assert rivals.figures_of(rivals.MOSAIC, "steps.py", {})["unavailable"].endswith("No module named 'composer'")
    monkeypatch.setattr(harness, "run_json", lambda *_command, **_options: {"us": 1.0, "torch": "0.1"})
    assert rivals.figures_of(rivals.PLAIN, "steps.py", {}) == {"unavailable": f"wanted torch {harness.version_of('torch')}, found 0.1"}


@pytest.mark.parametrize("word, program, options", [
    ("plain", "steps.py", {"steps": 5, "warm-up": 2}), ("ours-with-all", "steps.py", {"steps": 5, "warm-up": 2}),
    ("muon", "optimizers.py", {"rounds": 1, "steps": 2})])
def test_what_the_projects_own_environment_has_of_the_rivals_is_measured(word, program, options):
    rivals = script("train_peers").rivals
    found = rivals.figures_of(rivals.Rival(word, word), program, options)
    assert "unavailable" not in found, found
    if program == "steps.py":
        assert found["us"] > 0
    else:
        assert found["same_bits"] and 0 < found["bytes"] < found["adamw_bytes"] and "Muon.step()" in found["by"]
        assert [len(times) for times in found["us"].values()] == [1, 1, 1]


def test_a_part_that_the_bench_of_trainers_does_not_have_is_refused(capsys):
    peers = script("train_peers")
    assert peers.parsed([]).parts == [] and peers.parsed(["step", "--rounds", "2"]).parts == ["step"]
    with pytest.raises(SystemExit):
        peers.parsed(["sideways"])
    assert "wanted one of step, optimizers, timm, environments, found sideways" in capsys.readouterr().err


def test_checkpointing_is_judged_by_bytes_time_and_updates(capsys):
    bench = script("activation_checkpointing")
    names = (bench.PLAIN, bench.TORCH, bench.BLOCKS, bench.BUDGET)
    peaks = dict(zip(names, (100, 40, 40, 49)))
    times = dict(zip(names, ([10.0] * 3, [14.0] * 3, [14.0] * 3, [13.0] * 3)))
    assert bench.judge(peaks, times, dict.fromkeys(names, 1)) is True
    assert bench.judge({**peaks, bench.BUDGET: 51}, times, dict.fromkeys(names, 1)) is False
    assert bench.judge(peaks, times, {**dict.fromkeys(names, 1), bench.BLOCKS: 2}) is False
    assert "bytes of hr, budget 45 % over plain: 0.49, wanted at most 0.5: met" in capsys.readouterr().out
