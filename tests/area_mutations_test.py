"""A fault in the core of each area of tests/test_performance_optimization.py makes a test of that area fail."""

import re
from dataclasses import dataclass
from pathlib import Path

import pytest
import test_performance_optimization as script
from own_python import run_python

ROOT = Path(script.__file__).resolve().parent.parent


@dataclass(frozen=True)
class Fault:
    area: str
    module: str
    before: str  # Once in the module.
    after: str
    test: str  # Of that area, by which it is found.


WITHIN = "\n" + 20 * " "
FAULTS = {
    "a preset goes before what is said": Fault(
        "configuration", "performance_optimization._performance_config", "config.set_by(field) != EXPLICIT", "True",
        "facade_config_test.py::test_a_preset_gives_way_to_what_is_said_and_names_itself"),
    "a contradiction is let through": Fault(
        "configuration", "performance_optimization._performance_config", "if getattr(self, name) == 0 and", "if False and",
        "facade_config_test.py::test_two_settings_that_cannot_both_hold_are_refused_where_both_were_said"),
    "a batch is larger than what was asked for": Fault(
        "batch optimization", "performance_optimization._batch_size", "min(fitting, batch_size)", "fitting",
        "facade_batch_size_test.py::test_the_size_is_that_of_the_memory_and_no_more_than_was_asked_for"),
    "a fixed size is searched": Fault(
        "batch optimization", "performance_optimization._batch_size", "if not self.batch_size_optimization:", "if False:",
        "facade_batch_size_test.py::test_a_fixed_size_stays_and_nothing_is_tried"),
    "scopes do not nest": Fault(
        "profiling", "performance_optimization._profiler", "parent=stack[-1] if stack else None", "parent=None",
        "facade_profiler_test.py::test_scopes_nest_to_a_tree_and_nested_time_counts_once"),
    "the parts of a batch count as loading": Fault(
        "profiling", "performance_optimization._profiler", "max(seconds - sum(parts.values()), 0.0)", "seconds",
        "facade_profiler_test.py::test_the_example_of_batch_metrics_gives_exact_series_and_a_report"),
    "a decorated function is not recorded": Fault(
        "decorators", "headrace._profile", f"with span(name):{WITHIN}return function(", f"if True:{WITHIN}return function(",
        "python_insight_test.py::test_calls_of_a_profiled_operation_are_counted_and_timed_and_give_what_they_gave"),
    "a decorated coroutine is not recorded": Fault(
        "decorators", "headrace._profile", f"with span(name):{WITHIN}return await", f"if True:{WITHIN}return await",
        "python_insight_test.py::test_profiled_coroutines_overlap_and_each_keeps_its_own_time"),
    "gradients of the step before are kept": Fault(
        "training loops", "performance_optimization._training_loop", "    optimizer.zero_grad()\n", "",
        "facade_training_loop_test.py::test_a_standard_step_is_the_step_written_by_hand_bit_for_bit"),
    "a loop trains in evaluation mode": Fault(
        "training loops", "performance_optimization._training_loop", "model.train()  #", "model.eval()  #",
        "facade_training_loop_test.py::test_the_example_of_an_optimized_loop_has_the_weights_of_the_loop_written_by_hand"),
    "cleanup leaves the hardware as it was set": Fault(
        "integration", "performance_optimization._performance", "undone.callback(settings.undo)", "undone.callback(list)",
        "facade_performance_optimizer_test.py::test_one_call_applies_hardware_settings_and_cleanup_undoes_them"),
    "a record of ten steps counts as one": Fault(
        "integration", "performance_optimization._performance_monitor", "(now - last[1]) / steps", "now - last[1]",
        "facade_monitor_test.py::test_a_record_each_tenth_step_still_tells_the_time_of_one"),
}


def test_each_area_that_is_built_has_its_faults():
    assert {fault.area for fault in FAULTS.values()} == {area for area, tests in script.AREAS.items() if tests is not None}
    assert [fault.test for fault in FAULTS.values() if script.area_of(fault.test) != fault.area] == []


@pytest.mark.parametrize("name", FAULTS)
def test_a_fault_in_its_core_makes_a_test_of_the_area_fail(name):
    fault = FAULTS[name]
    source = ROOT / "python" / f"{fault.module.replace('.', '/')}.py"
    assert source.read_text().count(fault.before) == 1, f"{source} has changed: what is the fault there now?"
    done = run_python("-m", "pytest", "--rootdir", ROOT, "-c", ROOT / "pytest.ini", "-q", "-x", "-p", "mutated", "--mutate",
                      fault.module, f"--before={fault.before}", f"--after={fault.after}", ROOT / "tests" / fault.test)
    assert done.returncode == 1 and re.search(r"^1 failed\b", done.stdout, re.MULTILINE), done.stdout + done.stderr
    assert "error" not in done.stdout.splitlines()[-1]
