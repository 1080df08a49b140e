"""headrace._core: 100,000 calls of what a tuned loop, a monitored one and the machine's settings ask for leave nothing behind. Those of a
loader, its transforms and a trace are in core_module_test.py."""

import functools
import itertools
import os
import threading
import time
from collections import OrderedDict
from types import SimpleNamespace

import pytest
from headrace import _core
from headrace.errors import CorruptDataError
from held_memory import blocks_left, calls

OFFERED = {"live": True, "process": {}, "cores": 2, "refused": {}, "refused_values": {}, "run_steps": None, "budget_s": 0.0, "fixed": [],
           "intra_op_threads": 1, "fused": False, "drops_out": False, "has_replacement": False, "replacement_draws": False,
           "workers_change_batches": False, "loader_type": "list", "loader": None, "dataloader": None}
OPTIONS = {"allow": "rounding", "gain_min": 0.02, "only": [], "fixed": [], "frozen": False, "spent_s": 0.0}


class Loop:
    """That a tuner without candidates follows."""

    def apply(self, settings):
        raise AssertionError("nothing is to be switched")

    def updates_left(self):
        return None


def hooked_units():
    """Units of a loop of one optimizer, the functions that its hooks call, and what puts the other hook last."""
    epochs = _core.EpochCounts()
    units = _core.LoopUnits(1, epochs)
    others = OrderedDict.fromkeys(range(1000, 1003))
    return units, epochs, units.hooks, functools.partial(others.move_to_end, 1001)


def an_update():
    units, epochs, (see_call, begin_step, end_step), put_other_last = hooked_units()
    (note_batch,) = epochs.hooks
    moments = itertools.count()

    def update():
        note_batch(0.25)
        see_call(True, True, 16)
        begin_step(0, put_other_last)
        end_step(0, float(next(moments)), put_other_last)
        return units, epochs  # Which it holds so: the functions do not.

    return update


def an_update_that_is_followed():
    """By a native tuner, which is told of it."""
    update = an_update()
    units, _ = update()
    units.follow(_core.LiveTuner(Loop(), [], OPTIONS, 0, {}, lambda: 0.0), {})
    units.set_asks(False)
    return update


def refused(error, function, *given):
    try:
        function(*given)
    except error:
        return
    raise AssertionError(f"wanted {error.__name__} of {function}")


class NoTruth:
    def __bool__(self):
        raise LookupError("it has none")


@calls("LoopUnits.interrupt")
def refused_hooks():
    """Each of them raises, whoever is to blame."""
    units, _, (see_call, begin_step, end_step), put_other_last = hooked_units()
    removed, broken = functools.partial(OrderedDict().move_to_end, 1), [].pop

    def each():
        refused(TypeError, see_call, True, True)
        refused(LookupError, see_call, NoTruth(), True, 1)
        refused(TypeError, see_call, True, True, "many")
        refused(TypeError, begin_step, "first", put_other_last)
        refused(IndexError, begin_step, 0, broken)
        refused(TypeError, end_step, 0, "now", put_other_last)
        refused(IndexError, end_step, 0, 1.0, broken)
        refused(TypeError, end_step, 0, 1.0)
        begin_step(0, removed)  # No error: the hook went in the meantime.
        end_step(0, 1.0, removed)
        units.interrupt()

    return each


@calls(
    "EpochCounts.note_begin", "EpochCounts.note_end", "EpochCounts.note_failure", "EpochCounts.is_watched", "EpochCounts.begun",
    "EpochCounts.ended", "EpochCounts.batches", "EpochCounts.serves_loop", "EpochCounts.length", "EpochCounts.hooks")
def counts_of_epochs():
    epochs = _core.EpochCounts()

    def each():
        epochs.note_begin(0.5)
        epochs.note_end(0.5, 5)
        epochs.note_failure()
        epochs.is_watched = False
        return epochs.begun, epochs.ended, epochs.batches, epochs.serves_loop, epochs.length, epochs.is_watched, epochs.hooks

    return each


@calls(
    "LoopUnits.see_checkpoint", "LoopUnits.note_asked", "LoopUnits.leave_out", "LoopUnits.call_back",
    "LoopUnits.set_looks_for_calls", "LoopUnits.is_telling", "LoopUnits.follow", "LoopUnits.set_asks", "LoopUnits.unit",
    "LoopUnits.updates", "LoopUnits.thread", "LoopUnits.was_called", "LoopUnits.micro_batches", "LoopUnits.updates_an_epoch",
    "LoopUnits.problem", "LoopUnits.hooks")
def counts_of_units():
    update = an_update()
    for _ in range(4):
        units, _ = update()
    tuner = frozen_tuner()

    def each():
        units.see_checkpoint()
        units.note_asked()
        units.leave_out("a report was written")
        units.call_back()
        units.set_looks_for_calls(True)
        units.is_telling = False
        units.follow(tuner, {})
        units.set_asks(False)
        units.follow(None, {})
        return (units.unit, units.updates, units.thread, units.was_called, units.micro_batches, units.updates_an_epoch, units.problem,
                units.hooks, units.is_telling)

    return each


def frozen_tuner():
    return _core.LiveTuner(None, [], {**OPTIONS, "frozen": True}, 0, {}, None)


@calls("LiveTuner.keeps_call", "LiveTuner.watching", "LiveTuner.note_update", "LiveTuner.before_update", "LiveTuner.trials")
def a_tuner():
    tuner = frozen_tuner()
    return lambda: (tuner.keeps_call(), tuner.watching(), tuner.note_update(1), tuner.before_update(), tuner.trials())


@calls("MetricSeries.add", "MetricSeries.statistics")
def a_series():
    series = _core.MetricSeries(window=16)
    return lambda: (series.add(1.5), series.statistics())


@calls(
    "Monitor.record", "Monitor.latest", "Monitor.tell", "Monitor.tell_setting", "Monitor.take_events", "Monitor.status",
    "Monitor.clear")
def a_monitor():
    """Without a sink."""
    monitor = _core.Monitor(tensorboard="", csv="", json_lines="", events="", prometheus="", otlp="", system_s=0.0, queue_records=64, alerts=[])
    return lambda: (monitor.record(1, {"loss": 1.5}), monitor.latest(), monitor.tell("info", "note", "a sentence", {"count": 1}, 1),
                    monitor.tell_setting("key", "on", "off", "why"), monitor.take_events(), monitor.status(), monitor.clear(),
                    refused(ValueError, monitor.record, 1, {"loss": "none"}))


@calls("StrategySwitch.keys", "StrategySwitch.ended", "StrategySwitch.set")
def a_switch_of_strategies():
    switch, context = _core.StrategySwitch([("pause", "A pause.", "bit_equal")]), SimpleNamespace(live=True)
    return lambda: (switch.keys, switch.ended, switch.set({}, {}, context))


@calls("check_strategy", "native_strategies")
def a_strategy_s_name():
    return lambda: (_core.check_strategy("pause", "A pause.", "bit_equal", ["other"]), _core.native_strategies(),
                    refused(ValueError, _core.check_strategy, "A name", "A pause.", "bit_equal", []))


@calls("flushes_denormals", "torch_built_for", "trace_suffix", "page_locking", "lock_pages", "share_float_mode")
def facts_of_the_process():
    return lambda: (_core.flushes_denormals(), _core.torch_built_for(), _core.trace_suffix("chrome"), _core.page_locking(),
                    _core.lock_pages("/nowhere/libtorch_cuda.so", 0), _core.share_float_mode(1))


@calls("AlertRule")
def an_alert_rule():
    return lambda: (_core.AlertRule("slow", "step_s", "above", 2.0, 1.5, 3, "", 10),
                    refused(ValueError, _core.AlertRule, "slow", "step_s", "beside", 2.0, None, 1, "", 10))


@calls("profile_action", "StepMarks.mark")
def a_schedule():
    marks = _core.StepMarks()
    return lambda: (_core.profile_action(1, 1, 3, 2, 0, 5), marks.mark(1))


@calls("summarize_spans")
def spans_in_sum():
    spans = [("forward", 1, 0, 1_000_000), ("backward", 1, 1_000_000, 3_000_000)]
    return lambda: _core.summarize_spans(spans)


@calls("identify_bottlenecks")
def what_limits_a_loop():
    return lambda: _core.identify_bottlenecks(20, 3.0, 5.0, None, [1.0, 0.9])


@calls("Offer.candidates", "Offer.not_tried", "NotApplicable.name", "NotApplicable.key", "NotApplicable.reason", "Candidate.name",
       "Candidate.sentence", "Candidate.changes", "Candidate.numerics", "Candidate.resource", "Candidate.key", "Candidate.late_share",
       "Candidate.prepare_s", "Candidate.prepare_note", "Candidate.promise_rank")
def what_was_offered():
    offered = _core.offer(OFFERED, "compute")
    assert offered.candidates and offered.not_tried

    def look():
        one, other = offered.candidates[0], offered.not_tried[0]
        one.prepare_s, one.prepare_note = 0.5, "as it was before"
        return (one.name, one.sentence, one.changes, one.numerics, one.resource, one.key, one.late_share, one.prepare_s, one.prepare_note,
                one.promise_rank, other.name, other.key, other.reason)

    return look


@pytest.mark.parametrize("make", [
    an_update, an_update_that_is_followed, refused_hooks, counts_of_epochs, counts_of_units, a_tuner, a_series, a_monitor,
    a_switch_of_strategies, a_strategy_s_name, facts_of_the_process, an_alert_rule, a_schedule, spans_in_sum,
    what_limits_a_loop, what_was_offered], ids=lambda make: make.__name__)
def test_100000_calls_leave_nothing_behind(make):
    assert blocks_left(make()) < 200


@pytest.mark.parametrize("look", [_core.free_memory, _core.usable_cores, functools.partial(_core.oversubscription, 2, 2)],
                         ids=["free_memory", "usable_cores", "oversubscription"])
def test_5000_looks_at_the_machine_leave_nothing_behind(look):
    assert blocks_left(look, 5000) < 200


def a_trace():
    """Of three steps."""
    with _core.Trace() as trace:
        marks = _core.StepMarks()
        for number in range(3):
            with _core.StepPart("forward"):
                time.sleep(0.001)
            marks.mark(number)
    return trace


def a_diagnosis(folder):
    trace = a_trace()
    return lambda: (_core.diagnose(trace, 16, loader_busy_s=0.5), _core.operator_table(trace), trace.time_split(),
                    refused(CorruptDataError, functools.partial(_core.diagnose, trace, 16, skip=3)))


def a_report(folder):
    trace = a_trace()
    return lambda: _core.write_report(folder / "report.html", trace, 16, title="three steps", command="python train.py")


def what_is_offered(folder):
    def look():
        offered = _core.offer(OFFERED, "compute")
        for one in offered.candidates:
            _ = (one.name, one.sentence, one.changes, one.numerics, one.resource, one.key, one.late_share, one.prepare_s, one.prepare_note,
                 one.promise_rank)
        return [(one.name, one.key, one.reason) for one in offered.not_tried]

    return look


def what_a_doctor_finds(folder):
    (folder / "result.json").write_text("{}")
    return lambda: (_core.doctor(), _core.doctor(folder), refused(FileNotFoundError, _core.doctor, folder / "nothing"))


def a_change_of_settings(folder):
    """To what is there already: nobody may lower a niceness again."""
    niceness, cores = os.getpriority(os.PRIO_PROCESS, 0), ",".join(map(str, sorted(os.sched_getaffinity(0))))

    def change():
        for made in (_core.set_affinity(cores), _core.set_niceness(niceness)):
            assert made.setting.keys() == made.undo().keys()
        refused(ValueError, _core.set_affinity, "all")

    return change


def two_functions(folder):
    def one():
        pass

    compare = functools.partial(_core.compare_functions, pairs=1, budget_s=1.0, sample_s=1e-4, warmup_calls=0, old_name="a", new_name="b")
    return lambda: (compare(one, one), refused(LookupError, compare, one, NoTruth().__bool__))


@pytest.mark.parametrize("make", [a_diagnosis, a_report, what_is_offered, what_a_doctor_finds, a_change_of_settings, two_functions],
                         ids=lambda make: make.__name__)
def test_500_calls_of_what_takes_longer_leave_nothing_behind(make, tmp_path):
    assert blocks_left(make(tmp_path), 500, warm_up=50) < 200


@pytest.mark.engine
def test_1000_windows_of_operators_leave_nothing_behind():
    from headrace._engine_door import engine

    def window():
        spans = engine("this test").OperatorSpans(True, True)
        with _core.Trace():
            spans.start()
            spans.stop()

    assert blocks_left(window, 1000, warm_up=50) < 200


def test_the_other_hook_is_put_last_by_the_loops_own_thread_and_by_no_other():
    """And while a callback is at work by none."""
    units, _, (_, begin_step, end_step), _ = hooked_units()
    others = OrderedDict.fromkeys([7, 8])
    put = functools.partial(others.move_to_end, 7)
    begin_step(0, put)
    assert list(others) == [8, 7] and units.thread == threading.get_ident()
    others.move_to_end(8)
    elsewhere = threading.Thread(target=lambda: (begin_step(0, put), end_step(0, 1.0, put)))
    elsewhere.start()
    elsewhere.join()
    assert list(others) == [7, 8] and units.problem == "the optimizer steps in two threads"
    units.is_telling = True
    end_step(0, 2.0, put)
    assert list(others) == [7, 8]
    units.is_telling = False
    end_step(0, 3.0, put)
    assert list(others) == [8, 7]
