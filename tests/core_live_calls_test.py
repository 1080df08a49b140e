"""headrace._core: 100,000 calls of what a tuned, a repeated and a watched run ask for leave nothing behind; core_calls_test.py has the
rest. Which names that leaves out, and why: tests/uncalled_names.txt."""

import pytest
from headrace import _core
from held_memory import blocks_left, calls

OPTIONS = {"allow": "rounding", "gain_min": 0.02, "only": [], "fixed": [], "frozen": False, "spent_s": 0.0}
RUN = {"title": "a loop", "command": "", "note": "", "baseline": {}, "not_tried": [], "settings": []}


class Loop:
    """Whose settings are switched by nobody else."""

    def apply(self, settings):
        pass

    def updates_left(self):
        return None


def a_tuner():
    return _core.LiveTuner(Loop(), [], OPTIONS, 0, {}, lambda: 0.0)


def a_replay(folder):
    """Of a run in which nothing was tried."""
    document, _, _ = a_tuner().result(RUN)
    (folder / "ledger.json").write_text(document)
    return _core.LiveReplay(Loop(), str(folder / "ledger.json"), {})


@calls("LiveTuner.after_update", "LiveTuner.failed", "LiveTuner.stop", "LiveTuner.undo")
def the_end_of_a_tuning(folder):
    tuner = a_tuner()
    return lambda: (tuner.after_update(1, 0.01, 1.0, 0.0, True, ""), tuner.failed("internal", "it raised"), tuner.stop("it is over"),
                    tuner.undo())


@calls("LiveReplay.begin", "LiveReplay.keeps_call", "LiveReplay.before_update", "LiveReplay.after_update", "LiveReplay.note_update",
       "LiveReplay.failed", "LiveReplay.watching", "LiveReplay.turns", "LiveReplay.settings", "LiveReplay.trials")
def a_run_that_is_repeated(folder):
    replay = a_replay(folder)
    return lambda: (replay.begin(0), replay.keeps_call(), replay.before_update(), replay.after_update(1, 0.01, 1.0, 0.0, True, ""),
                    replay.note_update(1), replay.failed("internal", "it raised", ["data.num_workers"]), replay.watching(), replay.turns(),
                    replay.settings(), replay.trials())


@calls("LiveReplay.stop", "LiveReplay.undo")
def the_end_of_a_repeated_run(folder):
    replay = a_replay(folder)
    return lambda: (replay.stop("it is over"), replay.undo())


@calls("LoopWatch.epoch_begins", "LoopWatch.beside_begins", "LoopWatch.beside_ends", "LoopWatch.steps")
def a_watch_that_is_told(folder):
    watch = _core.LoopWatch(1024)
    return lambda: (watch.epoch_begins(), watch.beside_begins("transfer"), watch.beside_ends(), watch.steps)


@calls("LoopWatch.add_garbage", "LoopWatch.set_idle_wait", "LoopWatch.set_loading", "LoopWatch.set_step_work", "LoopWatch.time_host_alone")
def figures_of_a_watch(folder):
    watch = _core.LoopWatch(1024)
    loading = {"read_s": 1.0, "decode_s": 2.0, "augment_s": 0.5, "collate_s": 0.1, "batches": 4.0, "num_workers": 1, "prefetch_batches": 2,
               "batch_s": [0.1, 0.2]}
    return lambda: (watch.add_garbage(1e-6), watch.set_idle_wait(0.001), watch.set_loading(**loading), watch.time_host_alone(),
                    watch.set_step_work(flops=None, why_no_flops="nobody counts", update_bytes=8, update_tensors=2))


@calls("EpochCounts", "LoopUnits", "MetricSeries", "StepMarks", "StrategySwitch")
def objects_that_are_made(folder):
    return lambda: (_core.LoopUnits(1, _core.EpochCounts()), _core.MetricSeries(window=4), _core.StepMarks(),
                    _core.StrategySwitch([("pause", "A pause.", "bit_equal")]))


@pytest.mark.parametrize("make", [
    the_end_of_a_tuning, a_run_that_is_repeated, the_end_of_a_repeated_run, a_watch_that_is_told, figures_of_a_watch,
    objects_that_are_made], ids=lambda make: make.__name__)
def test_100000_calls_leave_nothing_behind(make, tmp_path):
    assert blocks_left(make(tmp_path)) < 200


def results_of_runs(folder):
    tuner, replay = a_tuner(), a_replay(folder)
    return lambda: (tuner.result(RUN), replay.result(RUN))


def tuners_that_are_made(folder):
    return lambda: (a_tuner(), a_replay(folder))


def a_step_s_memory(folder):
    reader = _core.StepMemoryReader()
    return reader.take


def settings_of_the_other_package(folder):
    return _core.performance_settings


def a_monitor_that_is_emptied(folder):
    nowhere = dict.fromkeys(["tensorboard", "csv", "json_lines", "events", "prometheus", "otlp"], "")
    monitor = _core.Monitor(**nowhere, system_s=0.0, queue_records=64, alerts=[])
    return lambda: (monitor.record(1, {"loss": 1.5}), monitor.flush())


def files_that_are_written(folder):
    with _core.Trace() as trace:
        with _core.span("work"):
            pass
    return lambda: (_core.write_file(str(folder / "text"), "some"), trace.write(folder / "trace.json"))


@pytest.mark.parametrize("make", [results_of_runs, tuners_that_are_made, a_step_s_memory, settings_of_the_other_package,
                                  a_monitor_that_is_emptied, files_that_are_written], ids=lambda make: make.__name__)
def test_500_calls_of_what_takes_longer_leave_nothing_behind(make, tmp_path):
    assert blocks_left(make(tmp_path), 500, warm_up=50) < 200
