"""Machines and runs for `headrace doctor` to look at: five machines that are well, a run that is, and one fault in each copy of these.

Nothing here imports torch or headrace.
"""

import json
import os
import shutil
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy
from PIL import Image

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import harness  # noqa: E402

RECIPE = """
[data]
source = "folder:{data}"
batch_size = 8
num_workers = 1
[data.transform]
size = 32
crop = "random_resized"
mean = [0.5]
std = [0.25]
[model]
name = "strided_cnn"
num_classes = 2
[train]
epochs = 2
[compute]
intra_op_threads = 1
"""

# The whole file tree with a machine's /proc and /sys in the place of the real ones, and no device; in a mount namespace of its own, so that
# nothing is left of it.
ENTER = """
set -e
root=$1 machine=$2 none=$3
shift 3
mount --make-rprivate /
mount --rbind / "$root"
mount --bind "$machine/proc" "$root/proc"
mount --bind "$machine/sys" "$root/sys"
mount --bind "$none" "$root/dev"
exec chroot "$root" env -i "$@"
"""


class Machine:
    """A folder with what a machine tells of itself in /proc and /sys. Of eight cores and 32 GB; a workstation, unless told otherwise."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.write("proc/cpuinfo", "processor\t: 0\nmodel name\t: Fast CPU\n")
        self.write("proc/self/limits", "Max address space         unlimited            unlimited            bytes\n")
        self.write("proc/loadavg", "0.40 0.1 0.1 1/100 1234\n")
        self.has_cores("0-7")
        self.has_memory(32_000_000, 20_000_000)
        self.has_huge_pages("always [madvise] never")
        self.has_governor("performance", "acpi-cpufreq")

    def write(self, path: str, text: str) -> None:
        place = self.folder / path
        place.parent.mkdir(parents=True, exist_ok=True)
        place.write_text(text)

    def has_cores(self, numbers: str) -> None:
        self.write("sys/devices/system/cpu/online", f"{numbers}\n")
        self.write("proc/self/status", f"Name:\tx\nCpus_allowed_list:\t{numbers}\n")

    def has_memory(self, total_kb: int, available_kb: int) -> None:
        self.write("proc/meminfo", f"MemTotal: {total_kb} kB\nMemAvailable: {available_kb} kB\n")

    def has_huge_pages(self, setting: str) -> None:
        self.write("sys/kernel/mm/transparent_hugepage/enabled", f"{setting}\n")

    def has_governor(self, governor: str, driver: str) -> None:
        self.write("sys/devices/system/cpu/cpu0/cpufreq/scaling_governor", f"{governor}\n")
        self.write("sys/devices/system/cpu/cpu0/cpufreq/scaling_driver", f"{driver}\n")

    def tells_no_clock(self) -> None:
        shutil.rmtree(self.folder / "sys/devices/system/cpu/cpu0")
        shutil.rmtree(self.folder / "sys/kernel")

    def doctor(self, program: Path, *words: object, variables: Mapping[str, str] | None = None) -> dict[str, Any]:
        """The document of `headrace doctor`. ProgramFailed, too, where no mount namespace is to be had."""
        executable = self.folder / "proc/self/exe"  # Beside which the program finds its libraries.
        executable.unlink(missing_ok=True)
        executable.symlink_to(program)
        aside = self.folder.with_name(f"{self.folder.name}-root")
        root, none = aside / "root", aside / "none"
        for folder in (root, none):
            folder.mkdir(parents=True, exist_ok=True)
        namespace = ["unshare", "--mount", *([] if os.geteuid() == 0 else ["--user", "--map-root-user"])]
        settings = [f"{name}={value}" for name, value in (variables or {}).items()]
        command = [*namespace, "bash", "-c", ENTER, "doctor_cases", root, self.folder, none, *settings,
                   program, "doctor", *words, "--json", "-", "--quiet"]
        return json.loads(harness.run(command, accepted=(0, 3)).output)


def laptop(machine: Machine) -> None:
    """Its driver calls its ordinary mode powersave."""
    machine.has_huge_pages("[always] madvise never")
    machine.has_governor("powersave", "intel_pstate")


def virtual_machine(machine: Machine) -> None:
    """It tells little, and two of its four cores are at work."""
    machine.tells_no_clock()
    machine.has_cores("0-3")
    machine.write("proc/loadavg", "1.90 0.1 0.1 1/100 1234\n")


def container(machine: Machine) -> None:
    """Its memory is full of files that were read once."""
    machine.write("proc/self/cgroup", "0::/job\n")
    machine.write("proc/self/mountinfo", "30 23 0:26 / /sys/fs/cgroup rw,nosuid shared:4 - cgroup2 cgroup2 rw,nsdelegate\n")
    for name, text in {"memory.max": "8589934592", "memory.current": "8000000000", "cpu.max": "max 100000",
                       "memory.stat": "anon 1000\ninactive_file 4000000000"}.items():
        machine.write(f"sys/fs/cgroup/job/{name}", f"{text}\n")


def server(machine: Machine) -> None:
    """Of two sockets, busy to a third."""
    machine.has_cores("0-63")
    machine.has_memory(512_000_000, 300_000_000)
    machine.write("sys/devices/system/node/online", "0-1\n")
    machine.write("proc/loadavg", "21.00 20.1 19.5 23/900 1234\n")


HEALTHY: dict[str, Callable[[Machine], None]] = {
    "a workstation": lambda _: None, "a laptop": laptop, "a virtual machine": virtual_machine, "a container": container, "a server": server}


def write_photos(folder: Path) -> None:
    """Of two classes, which noise is."""
    noise = numpy.random.default_rng(1)
    for split, count in (("train", 16), ("val", 8)):
        for name in ("cat", "dog"):
            place = folder / split / name
            place.mkdir(parents=True)
            for number in range(count):
                Image.fromarray(noise.integers(0, 256, (40, 40, 3), dtype=numpy.uint8)).save(place / f"{number:02}.jpg")


class Run:
    """A run's folder, by what its result and its environment say."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    @classmethod
    def trained(cls, program: Path, folder: Path) -> "Run":
        """One that ended well, without a figure that hangs on this machine's speed, as if four cores had trained it."""
        write_photos(folder / "data")
        (folder / "recipe.toml").write_text(RECIPE.format(data=folder / "data"))
        harness.run([program, "train", folder / "recipe.toml", "--out", folder / "run", "--quiet"])
        run = cls(folder / "run")
        run.change("environment.json", lambda document: document["machine"].update(cores_usable=4))
        run.change("result.json", cls._calm)
        return run

    @staticmethod
    def _calm(result: dict[str, Any]) -> None:
        result.pop("memory", None)
        result["loading"] = {}
        for epoch in result["training"]["epochs"]:
            epoch["samples_per_second"] = 1000.0

    def copy(self, folder: Path) -> "Run":
        return Run(Path(shutil.copytree(self.folder, folder)))

    def change(self, name: str, edit: Callable[[dict[str, Any]], Any]) -> None:
        path = self.folder / name
        document = json.loads(path.read_text())
        edit(document)
        path.write_text(json.dumps(document, indent=2))

    def result(self, **parts: Any) -> None:
        self.change("result.json", lambda document: document.update(parts))


def memory(values: Sequence[float], peak: float, at_peak: Mapping[str, float]) -> dict[str, Any]:
    """Of 120 s, in which the cache held `values` beside 100 MB."""
    times = [120.0 * i / (len(values) - 1) for i in range(len(values))]
    classes: dict[str, Any] = {"parameters": None, "cache": {"values": list(values)}}
    for name, amount in at_peak.items():
        classes.setdefault(name, {})["at_peak"] = amount
    return {"peak": {"bytes": peak}, "at_s": times, "resident": [1e8 + value for value in values], "classes": classes}


def loading(cpu_share: float, **busy_s: float) -> dict[str, Any]:
    """Of 1,000 samples by one thread, beside 1 s of the loop: seconds by stage, of which the thread computed for a share."""
    def stage(name: str, busy: float, waits: float) -> dict[str, Any]:
        return {"name": name, "records": 1000, "busy_s": busy, "wait_for_input_s": waits, "wait_for_output_s": 0.0}

    stages = [stage(name, busy_s.get(name, 0.0), 0.0) for name in ("read", "decode", "transform")]
    return {"num_workers": 1, "cpu_share": cpu_share, "stages": [*stages, stage("consume", 1.0, sum(busy_s.values()) - 1.0)]}


@dataclass(frozen=True)
class Case:
    """What is staged, and what doctor has to say of it. `stage` changes the machine or the copy of the run."""

    what: str
    code: str  # Of each finding.
    evidence: str  # Words of a finding's sentence.
    mend: str  # Words of its advice.
    of_machine: Callable[[Machine], Any] | None = None
    of_run: Callable[[Run], Any] | None = None
    asked: str = ""  # A file of the run in its place.
    variables: Mapping[str, str] = field(default_factory=dict)
    keys: tuple[str, ...] = ()  # Objects that the document has.


def gpu_without_driver(machine: Machine) -> None:
    machine.write("sys/bus/pci/devices/0000:17:00.0/vendor", "0x10de\n")
    machine.write("sys/bus/pci/devices/0000:17:00.0/class", "0x030200\n")


def costly_trace(run: Run) -> None:
    """4,000 spans in 100 us."""
    events: list[dict[str, Any]] = [{"ph": "M", "pid": 1, "tid": 0, "name": "thread_name", "args": {"name": "main"}}]
    span = {"ph": "X", "pid": 1, "tid": 0, "dur": 0.01, "name": "augment", "cat": "work", "args": {"value": 0}}
    events += [{**span, "ts": round(0.025 * i, 3)} for i in range(4000)]
    facts = {"format": "headrace-trace", "version": 1, "dropped": 0, "duration_ns": 100_000, "counters": {}}
    (run.folder / "trace.json").write_text(json.dumps({"displayTimeUnit": "ns", "otherData": facts, "traceEvents": events}))


def failed_compilation(run: Run) -> None:
    """As a performance optimizer's get_performance_summary() tells it."""
    attempts = [("default", False, "there is no C++ compiler, which torch.compile needs"), ("eager", True, "")]
    compilation = {"applied": "eager", "attempts": [
        {"mode": mode, "tried": True, "applied": applied, "reason": reason} for mode, applied, reason in attempts]}
    summary = {"config": {"optimization_level": "advanced"}, "features": {}, "compilation": compilation,
               "live_tuning": {"status": "applied"}, "performance_monitor": None,
               "cache_stats": "unavailable: not built yet", "memory_trends": "unavailable: not built yet"}
    (run.folder / "summary.json").write_text(json.dumps(summary))


def flipped_bit(run: Run) -> None:
    checkpoint = sorted(run.folder.glob("checkpoint-0*.safetensors"))[-1]
    content = bytearray(checkpoint.read_bytes())
    content[content.index(b'"epoch":"2"') + 9] ^= 1
    checkpoint.write_bytes(content)


def growing(run: Run) -> None:
    run.result(memory=memory([1e6 * i for i in range(256)], 3e8, {}),
               loading={"cache": {"hits": 300, "misses": 100, "bytes": 1e6, "samples_per_epoch": 100}})


FAULTS = (
    Case("TRBL-01 memory nearly full", "memory_nearly_full", "GB", "data.batch_size",
         of_run=lambda run: run.result(memory=memory([1, 1], 1e15, {"activations": 2e9, "cache": 4e9}))),
    Case("TRBL-02 low hit rate", "low_hit_rate", "it is too small", "data.cache",
         of_run=lambda run: run.result(loading={"cache": {"hits": 50, "misses": 250, "bytes": 26e6, "samples_per_epoch": 100}})),
    Case("TRBL-03 too few threads for a slow disk", "loop_waits_for_data", "reading waits", "data.num_workers = ",
         of_run=lambda run: run.result(loading=loading(0.02, read=10.0))),
    Case("TRBL-04 a recording that costs", "profiling_overhead", "4000 spans", "every_steps=10", of_run=costly_trace),
    Case("TRBL-05 a GPU without its driver", "no_gpu_driver", "0000:17:00.0", "Install NVIDIA's driver", of_machine=gpu_without_driver),
    Case("TRBL-06 a compilation that failed", "compile_failed", "default: there is no C++ compiler", "Remove the reason",
         of_run=failed_compilation, asked="summary.json"),
    Case("TRBL-07 memory above 80 %", "memory_in_use", "81 % of the memory", "End what else holds memory",
         of_machine=lambda machine: machine.has_memory(10_000_000, 1_900_000)),
    Case("TRBL-08 memory that grows, in one document", "memory_growth", "memory grew", 'Most of it is in "cache"', of_run=growing,
         keys=("performance_summary", "cache_stats", "memory_trends")),
    Case("TRBL-09 a debugging variable left on", "debug_mode", "CUDA_LAUNCH_BLOCKING=1", "unset it", of_machine=lambda _: None,
         variables={"CUDA_LAUNCH_BLOCKING": "1"}),
    Case("TRBL-10 a gain that one setting has", "loop_waits_for_data", "loading computes", "samples/s predicted",
         of_run=lambda run: run.result(loading=loading(1.0, decode=8.0))),
    Case("TRBL-11 a damaged checkpoint", "damaged", "checksum", "Resume takes the next older checkpoint", of_run=flipped_bit),
)
