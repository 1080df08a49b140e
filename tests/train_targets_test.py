"""The benches that set training against its targets tell good from bad: figures made by hand, and memory as the system and torch count
it. Nothing is timed."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "bench"))

from bench_scripts import script  # noqa: E402
from train_targets import findings, memory_run  # noqa: E402

MIB = 2**20


def verdicts(found) -> list[tuple[str, bool | None]]:
    return [(finding.target, finding.met) for finding in found]


def test_a_line_says_what_was_wanted_found_and_why_nothing_is_judged():
    finding = findings.Finding("T-24", "a peak", "half", "a third", None, "a CPU")
    assert str(finding) == "T-24  a peak: wanted half, found a third: not judged (a CPU)"
    assert str(findings.Finding("T-01", "a", "b", "c", False)).endswith("found c: MISSED")


@pytest.mark.parametrize("best, expected", [(600.0, [True, True]), (499.0, [True, False]), (299.0, [False, False])])
def test_speed_is_judged_by_the_last_arm_over_the_naive_one_against_both_targets(best, expected):
    rates = {"naive": [100.0] * 3, "workers": [200.0] * 3, "ours": [best] * 3}
    found = findings.speed(rates, {"workers": 0.0, "ours": 0.01}, 2)
    assert verdicts(found) == [("T-05", True), *zip(("T-05", "T-20, FUT-07"), expected)]
    assert findings.levers(rates)[0] == ("workers", "2.00 times [2.00, 2.00]") and len(findings.levers(rates)) == 2


def test_another_curve_of_losses_is_no_same_result():
    rates = {"naive": [100.0] * 3, "ours": [900.0] * 3}
    assert findings.speed(rates, {"ours": 0.021}, 2)[0].met is False


def test_compute_bound_speed_is_told_and_not_judged():
    found = findings.compute_speed({"naive": [10.0] * 3, "ours": [25.0] * 3})
    assert verdicts(found) == [("T-05, T-20", None)] and "2.50 times" in found[0].found


def runs(peak: int, loss: float, tensors: int | None = MIB) -> list[dict]:
    return [{"idle_bytes": 100 * MIB, "peak_bytes": (100 + peak) * MIB, "loss": loss, "tensor_bytes": tensors}] * 3


@pytest.mark.parametrize("peak, loss, expected", [(60, 2.0, [True, True]), (61, 2.0, [True, False]), (10, 2.1, [False, True])])
def test_memory_is_judged_above_what_was_resident_before_and_for_the_same_result(peak, loss, expected):
    found = {"plain": runs(100, 2.0), "optimised": runs(peak, loss), "bf16": runs(5, 3.0, None)}
    assert verdicts(findings.memory(found, "plain", "optimised", "bf16")) == [*zip(("T-01", "T-01"), expected), ("T-01", None)]
    table = findings.memory_table(found, "plain").splitlines()
    assert "unavailable" in table[-1] and "0.0% [0.0%, 0.0%]" in table[1]


@pytest.mark.parametrize("recomputed, met", [(20, True), (21, False)])
def test_checkpointing_is_judged_by_its_best_case(recomputed, met):
    def stack(kept):
        return {"plain": {"step": 100, "whole": 200, "ms": [10.0] * 3}, "recomputed": {"step": kept, "whole": 150, "ms": [14.0] * 3}}

    *each, best = findings.checkpointing({"small": stack(90), "deep": stack(recomputed)})
    assert [finding.met for finding in each] == [None, None] and best.met is met
    assert each[0].found == "10.0% of a step's bytes, 25.0% of all, for 1.40 times [1.40, 1.40] the time"


def test_halves_are_judged_apart_and_mixed_precision_is_told_with_both_ranges():
    def form(weights, activations, copies=0, step=100):
        return {"weights": weights, "activations": activations, "copies": copies, "step": step}

    found = findings.half({"float32": form(1000, 2000), "bfloat16": form(500, 1100), "autocast": form(1000, 1200, 400, 70)})
    assert verdicts(found) == [("T-16, PREC-17", True), ("T-16, PREC-17", False), ("PREC-17", None), ("T-24", None)]
    assert found[3].found.startswith("30.0%") and "50%" in found[3].wanted and "30% to 50%" in found[3].wanted
    uncounted = findings.half({"float32": form(1000, 2000, step=None), "bfloat16": form(500, 1000), "autocast": form(1000, 1200, step=None)})
    assert uncounted[3].found.startswith("unavailable")


def test_mixed_precision_is_not_timed_without_the_instructions_and_a_detector_makes_no_claim():
    without = findings.mixed_precision({}, "detector", [])
    assert verdicts(without) == [("T-18", None), ("T-23", None)] and all("unavailable" in finding.found for finding in without)
    times = {("matrices", "fp32"): [20.0] * 3, ("matrices", "bf16"): [10.0] * 3, ("small", "fp32"): [10.0] * 3,
             ("small", "bf16"): [12.0] * 3, ("detector", "fp32"): [30.0] * 3, ("detector", "bf16"): [10.0] * 3}
    found = findings.mixed_precision(times, "detector", ["amx_bf16"])
    assert verdicts(found) == [("T-18", True), ("T-18", False), ("T-23", None)]
    assert all("2 times (002) or 1.5 to 2 times (004)" in finding.wanted for finding in found) and "0.83" in found[1].found


@pytest.mark.parametrize("mixed, met", [([0.80, 0.82, 0.84], True), ([0.77, 0.79, 0.81], False), ([0.83, 0.85, 0.87], False)])
def test_accuracy_is_judged_by_the_spread_of_the_seeds(mixed, met):
    (finding,) = findings.accuracy([0.80, 0.82, 0.84], mixed)  # A standard deviation of 0.02.
    assert finding.met is met and "within 0.0200" in finding.wanted


def test_a_search_is_judged_against_one_epoch_and_told_for_a_longer_run():
    def searches(seconds):
        return [{"search_s": seconds, "batch_size": 128, "samples_per_second": 500.0}] * 3  # An epoch of 100 s.

    assert [finding.met for finding in findings.search({"quick": searches(20.0), "slow": searches(30.0)})] == [True, None, False, None]
    assert findings.search({"quick": searches(25.0)})[0].found.startswith("20.0%")


@pytest.mark.parametrize("told, met", [([104.0, 105.0, 120.0], True), ([94.0, 94.0, 100.0], False), ([None, 100.0, None], True)])
def test_samples_a_second_that_are_told_are_judged_by_a_stopwatch(told, met):
    searches = [{"samples_per_second": 100.0, "told_samples_per_second": rate} for rate in told]
    assert verdicts(findings.told_throughput({"net": searches})) == [("BATCH-03", met)]


def test_samples_a_second_of_a_size_that_was_not_tried_are_unavailable():
    (finding,) = findings.told_throughput({"net": [{"samples_per_second": 100.0, "told_samples_per_second": None}] * 3})
    assert finding.met is None and finding.found.startswith("unavailable: ")


@pytest.mark.parametrize("rate, says_reached, met", [(230.0, True, True), (191.0, True, True), (189.0, True, False), (150.0, False, True),
                                                     (209.0, False, True), (211.0, False, False)])
def test_a_target_throughput_is_judged_by_what_was_said_of_it(rate, says_reached, met):
    searches = [{"samples_per_second": rate, "batch_size": 64, "says_reached": says_reached}] * 3
    assert verdicts(findings.target_throughput({200.0: searches})) == [("T-30", met)]


def test_halves_on_a_gpu_are_unavailable_with_the_reason():
    found = findings.on_gpu(["T-18", "T-23"], has_cuda=False)
    assert [finding.found for finding in found] == ["unavailable: no CUDA device here"] * 2 and all(finding.met is None for finding in found)
    assert findings.on_gpu(["T-18"], has_cuda=True)[0].found == "unavailable: this bench measures CPUs"


def test_every_part_has_its_targets_and_another_is_refused(capsys):
    targets = script("train_targets")
    assert {target for _, targets_ in targets.PARTS.values() for target in targets_} == set(findings.GPU_HALVES)
    assert targets.parsed(["half", "--rounds", "2"]).parts == ["half"] and targets.parsed([]).parts == []
    for words, told in ((["sideways"], "wanted one of speed, memory"), (["--seeds", "1"], "--seeds: wanted at least 2")):
        with pytest.raises(SystemExit):
            targets.parsed(words)
        assert told in capsys.readouterr().err


def test_bytes_of_weights_and_activations_are_accounted_apart():
    targets, side = script("train_targets"), 128
    whole, small, mixed = (targets.accounted(dtype, autocast, side) for dtype, autocast in (
        (torch.float32, False), (torch.bfloat16, False), (torch.float32, True)))
    weights = sum(weight.numel() for weight in targets.Detector().parameters())
    assert (whole["weights"], small["weights"], mixed["weights"]) == (4 * weights, 2 * weights, 4 * weights)
    assert whole["copies"] == small["copies"] == 0 < mixed["copies"] <= 2 * weights
    # The images, and what the first BatchNorm, SiLU and second convolution take.
    assert whole["activations"] > 4 * 2 * (3 * side**2 + 3 * 16 * (side // 2)**2)
    assert small["activations"] < 0.51 * whole["activations"]


def test_the_peak_of_a_process_is_the_kernels_and_is_forgotten_when_told():
    code = """
import mmap, sys
sys.path.insert(0, sys.argv[1])
from train_targets.memory_run import forget_peak, resident

def touch():
    with mmap.mmap(-1, 64 << 20) as memory:
        for page in range(0, 64 << 20, 4096):
            memory[page] = 1

touch()
before = resident("VmHWM")
forget_peak()
forgotten = resident("VmHWM")
touch()
assert forgotten <= before - (48 << 20), (before, forgotten)
assert resident("VmHWM") >= forgotten + (48 << 20)
"""
    environment = {**os.environ, "PYTHONPATH": str(Path(memory_run.hr.__file__).parent.parent)}
    done = subprocess.run([sys.executable, "-c", code, ROOT / "bench"], capture_output=True, text=True, env=environment)
    assert done.returncode == 0, done.stderr


def test_parts_of_a_batch_have_the_batch_together():
    batch = next(memory_run.batches(1))
    parts = list(memory_run.parts_of(batch, 4))
    assert [len(labels) for _, labels in parts] == [memory_run.BATCH // 4] * 4
    assert torch.equal(torch.cat([images for images, _ in parts]), batch[0])


@pytest.mark.parametrize("ours, met", [(98.0, True), (97.0, False)])
def test_a_tuned_step_is_judged_by_the_best_rival_of_the_run(ours, met):
    bench = script("resnet_cifar")
    found = {bench.TUNED: [ours] * 3, bench.CHANNELS_LAST: [90.0] * 3, bench.COMPILED: [100.0] * 3, bench.COMPILED_LAST: [80.0] * 3}
    judged, stretch = bench.bars(found, {})
    assert judged.met is met and stretch.stretch and stretch.met is False and "of torch.compile" in judged.found


def test_a_rival_that_could_not_be_had_leaves_the_bar_open_unless_it_is_missed():
    bench = script("resnet_cifar")
    found = {bench.TUNED: [100.0] * 3, bench.CHANNELS_LAST: [90.0] * 3}
    judged, _, *reasons = bench.bars(found, {bench.COMPILED: "no g++", bench.COMPILED_LAST: "no g++"})
    assert judged.met is None and [reason.found for reason in reasons] == ["unavailable: no g++"] * 2
    assert bench.bars({**found, bench.TUNED: [50.0] * 3}, {bench.COMPILED: "no g++"})[0].met is False
    assert bench.time_bar(241, 4).met is False and bench.time_bar(240, 4).met is True


def test_images_of_the_step_are_files_of_its_size_in_ten_classes(tmp_path):
    bench = script("resnet_cifar")
    bench.make_images(tmp_path, 20)
    files = sorted(tmp_path.rglob("*.png"))
    assert len(files) == 20 and len({file.parent for file in files}) == 10
    with bench.Image.open(files[0]) as image:
        assert image.size == (32, 32) and image.mode == "RGB"


def test_the_step_is_that_of_the_network_of_a_recipe():
    from cifar_resnet import cifar_resnet18

    model = cifar_resnet18()
    # Of torchvision's 11,689,512 the head of 1000 classes and the 7x7 stem are replaced.
    assert sum(weight.numel() for weight in model.parameters()) == 11_689_512 - 990 * 513 - 3 * 64 * (49 - 9)
    assert model(torch.zeros(2, 3, 32, 32)).shape == (2, 10)
