#!/usr/bin/env python3
"""hr.profile beside torch.profiler on 15 training scripts: what either adds to a step, the size of its file, the five operators on top.

scripts/ has whole scripts as users write them, with a DataLoader, a device, a rate that changes and losses that are printed; sizes are small
and fixed. One process, one thread, the CPU. In a round each script runs from its beginning to its end plain, with hr.profile around its loop,
with torch.profiler, and with the engine's observer alone, in a drawn order. The loop alone is timed; what is added is its time over the plain
one's of the same round, what starting, stopping and writing takes not included. The observer alone, without shapes and memory and with no
Trace to record into, returns at once: it is what of hr.profile's overhead LibTorch takes for any observer, and nothing is judged by it (`make
bench NAME=operator_spans_bench` has it by loop, beside an observer that does nothing). Files are of the last round: hr.profile's in Perfetto's
form and as a Chrome trace, torch's as torch.profiler writes it. The five operators with the most time of their own are of that round, too;
they may change places where two take the same time, so those that only one of the two has are told with their times.

usage: make bench NAME=operator-profile
"""

import contextlib
import importlib
import io
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import harness  # noqa: E402

sys.path.insert(0, str(harness.PACKAGE))
os.environ["CUDA_VISIBLE_DEVICES"] = ""  # The scripts take a GPU where they see one.

import headrace as hr  # noqa: E402
import torch  # noqa: E402
from headrace import _engine_door  # noqa: E402
from top_operators import OBSERVER, OURS, THEIRS, TOP, by_most, observers_share, one_sided  # noqa: E402

OVERHEAD_MOST, FILE_MOST = 0.3, 0.2
PLAIN = "plain"
SCRIPTS = sorted(path.stem for path in (Path(__file__).resolve().parent / "scripts").glob("*.py"))


@contextmanager
def observer() -> Iterator[None]:
    spans = _engine_door.engine("bench/operator_profile").OperatorSpans(False, False)
    spans.start()
    try:
        yield
    finally:
        spans.stop()


class Script:
    """A script, and the profiles of its last round."""

    def __init__(self, name: str, options: dict[str, bool]) -> None:
        self.name, self._options = name, options
        self._module = importlib.import_module(f"scripts.{name}")
        self._loop_s = 0.0
        self.ours: Any = None
        self.theirs: Any = None

    def arms(self) -> list[harness.Arm]:
        return [harness.Arm(PLAIN, lambda _: self._seconds(nullcontext)), harness.Arm(OURS, lambda _: self._seconds(self._open_ours)),
                harness.Arm(THEIRS, lambda _: self._seconds(self._open_theirs)), harness.Arm(OBSERVER, lambda _: self._seconds(observer))]

    def _open_ours(self) -> Any:
        self.ours = hr.profile(["cpu"], source="engine", **self._options)
        return self.ours

    def _open_theirs(self) -> Any:
        self.theirs = torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU], **self._options)
        return self.theirs

    def _seconds(self, profiled: Callable[[], Any]) -> float:
        """Of a step of the script's loop, with `profiled` around that."""

        @contextmanager
        def timed() -> Iterator[None]:
            with profiled():
                begin = time.perf_counter()
                yield
                self._loop_s = time.perf_counter() - begin

        self._module.profile = timed
        with contextlib.redirect_stdout(io.StringIO()):
            self._module.main()
        return self._loop_s / self._module.STEPS

    def file_bytes(self, folder: Path) -> dict[str, int]:
        """By form."""
        sizes = {form: sum(path.stat().st_size for path in self.ours.export(folder / f"{self.name}.{form}", form))
                 for form in ("perfetto", "chrome")}
        theirs = folder / f"{self.name}-torch.json"
        self.theirs.export_chrome_trace(str(theirs))
        return {**sizes, "torch": theirs.stat().st_size}

    def own_seconds(self) -> dict[str, dict[str, float]]:
        """Of a step, by profile and operator, the most first."""
        ours = {row.name: row.self_s / self._module.STEPS for row in self.ours.key_averages()}
        theirs = {row.key: 1e-6 * row.self_cpu_time_total / self._module.STEPS for row in self.theirs.key_averages() if row.key != "[memory]"}
        return {OURS: by_most(ours), THEIRS: by_most(theirs)}


def added(found: dict[str, list[float]], arm: str) -> list[float]:
    """Seconds a step, a round after a round."""
    return [profiled - plain for profiled, plain in zip(found[arm], found[PLAIN], strict=True)]


def main() -> int:
    parser = harness.parser(__doc__, rounds=15)
    parser.add_argument("--only", choices=SCRIPTS, help="one script")
    parser.add_argument("--record-shapes", action="store_true")
    parser.add_argument("--profile-memory", action="store_true")
    arguments = parser.parse_args()

    torch.set_num_threads(1)
    options = {"record_shapes": arguments.record_shapes, "profile_memory": arguments.profile_memory}
    bench = harness.Bench(__file__, arguments, f"{arguments.rounds} rounds of a script and arm, {options}")
    rows, results, apart = [], {}, []
    with tempfile.TemporaryDirectory() as folder:
        for name in [arguments.only] if arguments.only else SCRIPTS:
            script = Script(name, options)
            found = bench.measure(script.arms(), arguments.rounds, warm_up=2, title=name)
            ours, theirs = statistics.median(added(found, OURS)), statistics.median(added(found, THEIRS))
            sizes = script.file_bytes(Path(folder))
            alone = statistics.median(added(found, OBSERVER))
            own = script.own_seconds()
            top = {profile: list(seconds)[:TOP] for profile, seconds in own.items()}
            apart += one_sided(name, own)
            plain = statistics.median(found[PLAIN])
            results[name] = {"plain_s": plain, "added_s": {OURS: ours, THEIRS: theirs, OBSERVER: alone},
                             "overhead": ours / theirs if theirs > 0 else None, "observer": alone / ours if ours > 0 else None,
                             "file": sizes["perfetto"] / sizes["torch"], "bytes": sizes, "top": top, "own_seconds": own}
            ratio = f"{ours / theirs:.2f}" if theirs > 0 else harness.UNAVAILABLE
            rows.append([name, f"{plain * 1e6:,.0f}", f"{ours / plain:+.1%}", f"{theirs / plain:+.1%}", ratio, f"{alone / plain:+.1%}",
                         f"{sizes['perfetto'] / sizes['torch']:.3f}", f"{sizes['chrome'] / sizes['torch']:.3f}",
                         f"{len(set(top[OURS]) & set(top[THEIRS]))} of {TOP}"])
    print(harness.table(["script", "us a step", OURS, THEIRS, "ratio", OBSERVER, "file", "as Chrome trace", "same on top"], rows))
    for line in apart:
        print(line)
    print(observers_share([one["observer"] for one in results.values()]))
    ratios = [one["overhead"] for one in results.values() if one["overhead"] is not None]
    files = [one["file"] for one in results.values()]
    same = sum(set(one["top"][OURS]) == set(one["top"][THEIRS]) for one in results.values())
    if not ratios:
        print("overhead: unavailable: torch.profiler added nothing that could be measured")
        return bench.end(results, 3)
    overhead = statistics.median(ratios)
    print(f"overhead {overhead:.2f} x torch.profiler's (median of scripts, {min(ratios):.2f} to {max(ratios):.2f}), wanted {OVERHEAD_MOST} "
          f"at most; file {max(files):.3f} x at most, wanted {FILE_MOST}; the same five operators in {same} of {len(results)} scripts")
    return bench.end(results, 0 if overhead <= OVERHEAD_MOST and max(files) <= FILE_MOST and same == len(results) else 3)


if __name__ == "__main__":
    sys.exit(main())
