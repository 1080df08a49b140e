"""What the parts of this bench found, beside what was wanted. Figures come in as plain numbers, so that nothing here computes with
tensors."""

import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import harness
from overhead_budgets import BATCH_SEARCH

FASTER_T05, FASTER_T20 = 3.0, 5.0
LOSS_TOLERANCE = 0.02  # Between two curves of losses that begin near 2.5.
MEMORY_SAVED = 0.4
LOSS_SHARE = 1e-3  # Of the plain run's last loss, by which another way to the same result may differ.
CHECKPOINTING_SAVED = 0.8
HALF_SAVED = 0.495  # The claim is 50 %; statistics of norms and labels have no half.
AMP_FASTER, AMP_FASTER_NARROW = 2.0, (1.5, 2.0)
AMP_SAVED, AMP_SAVED_NARROW = 0.5, (0.3, 0.5)
RATE_TOLERANCE = 0.05  # Of samples/s that are told, beside those of a stopwatch.
TARGET_RATES = (100.0, 200.0)  # Samples/s.
EPOCH_SAMPLES = 50_000
EPOCHS = (1, 10)  # Lengths of run that a search is set against; the first one is judged.
CPU_IS_NO_CLAIM = "a CPU's figure, which no claim is made of"
RANGES_OF_SPEED = f"{AMP_FASTER:g} times (002) or {AMP_FASTER_NARROW[0]:g} to {AMP_FASTER_NARROW[1]:g} times (004)"
RANGES_OF_MEMORY = f"{AMP_SAVED:.0%} saved (002) or {AMP_SAVED_NARROW[0]:.0%} to {AMP_SAVED_NARROW[1]:.0%} (004)"
MIB = 2**20

# Of each target with one, what its half that needs a GPU is.
GPU_HALVES = {
    "T-01": "peak allocated and peak reserved, each lever", "T-05": "against FP32 without TF32 and with it", "T-14": "the search on a device",
    "T-15": "peak allocated of stacks of 8 to 128", "T-16": "half-precision inference, and training's total", "T-18": "FP16 and BF16 beside TF32",
    "T-20": "as T-05", "T-23": "a 640 x 640 network, FP16 and BF16", "T-24": "peak allocated, the same network and batch",
    "T-25, PREC-07": "FP16 with a loss scale to convergence"}


@dataclass(frozen=True)
class Finding:
    """A line against a target. `met` is None where nothing is judged; `remark` says why then, or what belongs to the figure."""

    target: str
    what: str
    wanted: str
    found: str
    met: bool | None = None
    remark: str = ""

    def __str__(self) -> str:
        verdict = {True: "met", False: "MISSED", None: "not judged"}[self.met]
        return f"{self.target}  {self.what}: wanted {self.wanted}, found {self.found}: {verdict}{f' ({self.remark})' if self.remark else ''}"


def on_gpu(targets: Sequence[str], has_cuda: bool) -> list[Finding]:
    reason = "this bench measures CPUs" if has_cuda else "no CUDA device here"
    return [Finding(target, f"on a GPU: {GPU_HALVES[target]}", "a figure", f"{harness.UNAVAILABLE}: {reason}")
            for target in targets if target in GPU_HALVES]


def gain_text(gains: Sequence[float]) -> str:
    return harness.with_interval(gains, "times", 2)


# T-05, T-20, FUT-07. Rates in samples/s, by arm, the naive one first, each with a lever more than the one before.


def levers(rates: Mapping[str, Sequence[float]]) -> list[tuple[str, str]]:
    """Of each arm but the first, how many times as fast it is as the one before."""
    names = list(rates)
    return [(name, gain_text(harness.ratios(rates[name], rates[before]))) for before, name in zip(names, names[1:])]


def speed(rates: Mapping[str, Sequence[float]], loss_differences: Mapping[str, float], threads: int) -> list[Finding]:
    """Of work that is bound by data. loss_differences: the largest difference of each arm's losses from the naive arm's."""
    naive, best = next(iter(rates)), list(rates)[-1]
    gains = harness.ratios(rates[best], rates[naive])
    farthest = max(loss_differences.values())
    equal = Finding("T-05", "data-bound: losses of an epoch beside the naive loop's", f"at most {LOSS_TOLERANCE:g} apart", f"{farthest:.4f}",
                    farthest <= LOSS_TOLERANCE)
    remark = f"data-bound, {threads} cores: by less work an image and no decoding after the first epoch, not by computing faster"
    return [equal, *(Finding(target, f"data-bound: {best} over {naive}", f"at least {least:g} times", gain_text(gains),
                             statistics.median(gains) >= least, remark)
                     for target, least in (("T-05", FASTER_T05), ("T-20, FUT-07", FASTER_T20)))]


def compute_speed(rates: Mapping[str, Sequence[float]]) -> list[Finding]:
    naive, best = next(iter(rates)), list(rates)[-1]
    return [Finding("T-05, T-20", f"compute-bound: {best} over {naive}", f"{FASTER_T05:g} and {FASTER_T20:g} times of data-bound work",
                    gain_text(harness.ratios(rates[best], rates[naive])), None, "printed beside; the claim is of data-bound work")]


# T-01. Runs as memory_run.py prints them, some of each.


def run_peak(runs: Sequence[Mapping[str, Any]]) -> list[int]:
    """Resident memory at the most, less what was resident before."""
    return [run["peak_bytes"] - run["idle_bytes"] for run in runs]


def saved(plain: Sequence[float], other: Sequence[float]) -> list[float]:
    return [1 - share for share in harness.ratios(other, plain)]


def share_text(shares: Sequence[float]) -> str:
    low, high = harness.interval(shares)
    return f"{statistics.median(shares):.1%} [{low:.1%}, {high:.1%}]"


def memory_table(found: Mapping[str, Sequence[Mapping[str, Any]]], plain: str) -> str:
    lines = []
    for name, runs in found.items():
        tensors = [run["tensor_bytes"] for run in runs if run["tensor_bytes"] is not None]
        lines.append([name, f"{statistics.median(run_peak(runs)) / MIB:,.1f}", share_text(saved(run_peak(found[plain]), run_peak(runs))),
                      f"{statistics.median(tensors) / MIB:,.1f}" if tensors else harness.UNAVAILABLE, f"{runs[-1]['loss']:.5f}"])
    return harness.table(["", "peak above idle, MiB", "saved", "tensors' peak, MiB", "last loss"], lines)


def memory(found: Mapping[str, Sequence[Mapping[str, Any]]], plain: str, optimised: str, with_bf16: str) -> list[Finding]:
    def shares(name: str) -> list[float]:
        return saved(run_peak(found[plain]), run_peak(found[name]))

    wanted_loss = found[plain][-1]["loss"]
    difference = max(abs(run["loss"] / wanted_loss - 1) for run in found[optimised])
    return [
        Finding("T-01", f"last loss, {optimised} beside {plain}", f"at most {LOSS_SHARE:g} of it apart", f"{difference:.2e}",
                difference <= LOSS_SHARE),
        Finding("T-01", f"peak resident memory, {optimised}", f"{MEMORY_SAVED:.0%} less than {plain}", share_text(shares(optimised)),
                statistics.median(shares(optimised)) >= MEMORY_SAVED, "by checkpointing and accumulation"),
        Finding("T-01", f"peak resident memory, {with_bf16}", "nothing, as mixed precision does not count", share_text(shares(with_bf16)))]


# T-15. By stack: bytes of a step's peak beyond what was held before ("step") and of all that the stack holds then ("whole"), of plain
# and recomputed, and milliseconds of each.


def checkpointing(stacks: Mapping[str, Mapping[str, Any]]) -> list[Finding]:
    found, best = [], 0.0
    for name, stack in stacks.items():
        step, whole = (1 - stack["recomputed"][kind] / stack["plain"][kind] for kind in ("step", "whole"))
        best = max(best, step)
        longer = gain_text(harness.ratios(stack["recomputed"]["ms"], stack["plain"]["ms"]))
        found.append(Finding("T-15", name, f"up to {CHECKPOINTING_SAVED:.0%} saved", f"{step:.1%} of a step's bytes, {whole:.1%} of all, for "
                             f"{longer} the time"))
    return [*found, Finding("T-15", "best case", f"at least {CHECKPOINTING_SAVED:.0%} saved", f"{best:.1%}", best >= CHECKPOINTING_SAVED,
                            "what a backward makes anew, and gradients, count")]


# T-16, T-24, PREC-17. Bytes by form ("float32", "bfloat16", "autocast"): "weights", "copies" of them that autocast keeps,
# "activations", and "step", the peak beyond what was held before.


def half(found: Mapping[str, Mapping[str, int | None]]) -> list[Finding]:
    whole, small, mixed = (found[form] for form in ("float32", "bfloat16", "autocast"))

    def share(form: Mapping[str, int | None], kind: str) -> float:
        return 1 - form[kind] / whole[kind]

    storage = [Finding("T-16, PREC-17", f"bytes of {kind}, all in bfloat16", f"50% saved, {HALF_SAVED:.1%} counts",
                       f"{share(small, kind):.1%} of {whole[kind] / MIB:.2f} MiB", share(small, kind) >= HALF_SAVED, "BF16 storage on a CPU")
               for kind in ("weights", "activations")]
    kinds = ", ".join(f"{kind} {mixed[kind] / MIB:.2f} of {whole[kind] / MIB:.2f} MiB" for kind in ("weights", "activations"))
    accounts = Finding("PREC-17", "mixed precision, accounted separately", "figures",
                       f"{kinds}, and {mixed['copies'] / MIB:.2f} MiB of copies of weights", None, "master weights stay float32")
    if whole["step"] is None or mixed["step"] is None:
        text = f"{harness.UNAVAILABLE}: tensors are not counted here"
    else:
        text = f"{share(mixed, 'step'):.1%} of {whole['step'] / MIB:.1f} MiB"
    return [*storage, accounts, Finding("T-24", "bf16 autocast: a step's peak", RANGES_OF_MEMORY, text, None, CPU_IS_NO_CLAIM)]


# T-18, T-23. Milliseconds a step by (net, precision).


def mixed_precision(times: Mapping[tuple[str, str], Sequence[float]], detector: str, sets: Iterable[str]) -> list[Finding]:
    """sets: instruction sets with bf16 that the CPU has; with none nothing was timed."""
    sets = list(sets)
    if not sets:
        reason = f"{harness.UNAVAILABLE}: the CPU has neither AVX512_BF16 nor AMX"
        return [Finding("T-18", "bf16 autocast over float32", RANGES_OF_SPEED, reason),
                Finding("T-23", f"{detector}: bf16 autocast over float32", RANGES_OF_SPEED, reason, None, CPU_IS_NO_CLAIM)]
    found = []
    for name in dict.fromkeys(net for net, _ in times):
        gains = harness.ratios(times[name, "fp32"], times[name, "bf16"])
        is_judged = name != detector
        found.append(Finding("T-18" if is_judged else "T-23", f"{name}: bf16 autocast over float32", RANGES_OF_SPEED, gain_text(gains),
                             statistics.median(gains) >= AMP_FASTER if is_judged else None,
                             f"by {', '.join(sets)}" if is_judged else CPU_IS_NO_CLAIM))
    return found


# T-25, PREC-07. Accuracies, one a seed.


def accuracy(full: Sequence[float], mixed: Sequence[float]) -> list[Finding]:
    deviation = statistics.stdev(full)
    difference = statistics.mean(mixed) - statistics.mean(full)
    each = " ".join(f"{one:.4f}/{other:.4f}" for one, other in zip(full, mixed, strict=True))
    return [Finding("T-25, PREC-07", f"mean accuracy of {len(full)} seeds, bf16 autocast less float32",
                    f"within {deviation:.4f}, one standard deviation of float32's seeds", f"{difference:+.4f}", abs(difference) <= deviation,
                    f"float32/bf16 a seed: {each}; a toy task on a CPU")]


# T-14. By network, some searches: seconds of each, and samples/s of training at the size that it chose.


def search(found: Mapping[str, Sequence[Mapping[str, float]]]) -> list[Finding]:
    findings = []
    for name, searches in found.items():
        for epochs in EPOCHS:
            shares = [each["search_s"] / (each["search_s"] + epochs * EPOCH_SAMPLES / each["samples_per_second"]) for each in searches]
            what = f"{name}: search in a run of {epochs} x {EPOCH_SAMPLES:,} samples"
            sizes = ", ".join(str(int(size)) for size in dict.fromkeys(each["batch_size"] for each in searches))
            seconds = harness.with_interval([each["search_s"] for each in searches], "s", 2)
            findings.append(Finding(BATCH_SEARCH.target, what, f"{BATCH_SEARCH.wanted()}, of its time", BATCH_SEARCH.found(shares),
                                    not BATCH_SEARCH.is_above(shares) if epochs == EPOCHS[0] else None, f"{seconds} to find {sizes}"))
    return findings


# BATCH-03. The same searches: samples/s as the search tells them, None where the size that it chose was not tried.


def told_throughput(found: Mapping[str, Sequence[Mapping[str, Any]]]) -> list[Finding]:
    findings = []
    for name, searches in found.items():
        what, wanted = f"{name}: samples/s told beside a stopwatch's", f"within {RATE_TOLERANCE:.0%}"
        shares = [each["told_samples_per_second"] / each["samples_per_second"] for each in searches if each["told_samples_per_second"]]
        if not shares:
            reason = "the sizes that were chosen were not tried"
            findings.append(Finding("BATCH-03", what, wanted, f"{harness.UNAVAILABLE}: {reason}"))
            continue
        apart = statistics.median(shares) - 1
        is_near = abs(apart) <= RATE_TOLERANCE + 1e-9  # A share of exactly 1.05 is not in binary.
        findings.append(Finding("BATCH-03", what, wanted, f"{apart:+.1%}", is_near, f"median of {len(shares)} searches"))
    return findings


# T-30. By samples/s that were asked for, some searches.


def target_throughput(found: Mapping[float, Sequence[Mapping[str, Any]]]) -> list[Finding]:
    """A size that is said to reach its target does so by the stopwatch, and one that is said to fall short does, but for the tolerance."""
    findings = []
    for target, searches in found.items():
        rate, size = (statistics.median(each[key] for each in searches) for key in ("samples_per_second", "batch_size"))
        says_reached = sum(each["says_reached"] for each in searches) * 2 > len(searches)
        met = rate >= (1 - RATE_TOLERANCE) * target if says_reached else rate <= (1 + RATE_TOLERANCE) * target
        findings.append(Finding("T-30", f"{target:g} samples/s asked for", "a size that reaches them, or the sentence that none does",
                                f"{'reached' if says_reached else 'told that none does'}: {rate:,.0f} samples/s by batches of {size:g}", met))
    return findings
