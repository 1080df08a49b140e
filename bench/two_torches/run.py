#!/usr/bin/env python3
"""Does tuning offer the same changes, and come to the same verdicts, with another torch and without the engine?

The scripts of examples/python that call hr.tune (60 s each) or hr.autotune run as they are, once in each of three ways in turn: with
this torch and the engine; with this torch without it; and with the torch of another Python, for which there is no engine. Wanted: each change
that is tried in one way is tried in the others, or listed there as not applicable with the reason; and no change is kept in one
way and refused in another. What is left open in one of them is no contradiction, and is shown.

--other is a Python that has torch, torchvision, numpy and Pillow, and no headrace; the package comes from this tree.

usage: make bench NAME=two-torches ARGS='--other PYTHON'        half an hour
"""

import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import harness  # noqa: E402
from python_tune.run import fashion_folder  # noqa: E402

EXAMPLES = harness.ROOT / "examples" / "python"
WITHOUT_ENGINE = harness.PACKAGE.with_name("python-without-engine")
NOTED = Path(__file__).resolve().parent / "noted.py"
LIMIT_S = 900.0
ENGINE, NO_ENGINE, OTHER = "with the engine", "without it", "another torch"

Call = Mapping[str, Any]


def scripts(folder: Path) -> dict[str, list[str]]:
    """Each script with options by which it takes a few minutes at most."""
    return {"fashion_mnist_after": ["--data", str(fashion_folder(folder / "fashion")), "--epochs", "1"],
            "finetune_after": ["--data", str(harness.ROOT / "photos"), "--epochs", "1"],
            "own_dataset_after": ["--epochs", "1"],
            "own_loop": ["--epochs", "4"],
            "vit": ["--steps", "400"]}


def names_in(calls: Mapping[str, Call]) -> list[str]:
    """Of every change that was tried in one of them, in the order in which they were."""
    return list(dict.fromkeys(name for call in calls.values() for name in call["trials"]))


def contradictions(calls: Mapping[str, Call]) -> list[str]:
    """Of one call of hr.tune or hr.autotune, by the way it was run."""
    found = []
    for name in names_in(calls):
        for way, call in calls.items():
            if name not in call["trials"] and name not in call["not_applicable"]:
                found.append(f"{name}: neither tried nor listed {way}")
        verdicts = {call["trials"][name]["verdict"]: way for way, call in calls.items() if name in call["trials"]}
        if "kept" in verdicts and "refused" in verdicts:
            found.append(f"{name}: kept {verdicts['kept']}, refused {verdicts['refused']}")
    return found


def cell(call: Call, name: str) -> str:
    trial = call["trials"].get(name)
    if trial is None:
        return "not applicable" if name in call["not_applicable"] else "-"
    if trial["gain"] is None:
        return trial["verdict"]
    gain, low, high = trial["gain"]
    return f"{trial['verdict']} {gain:+.0%} [{low:+.0%}, {high:+.0%}]"


def table(calls: Mapping[str, Call]) -> str:
    return harness.table(["change", *calls], [[name, *(cell(call, name) for call in calls.values())] for name in names_in(calls)],
                         left=range(1 + len(calls)))


def main() -> int:
    parser = harness.parser(__doc__)
    parser.add_argument("--other", type=Path, required=True, help="a Python with another torch")
    parser.add_argument("--only", action="append", help="a script's name; may be given again")
    arguments = parser.parse_args()
    if not WITHOUT_ENGINE.is_dir():
        parser.error(f"wanted {WITHOUT_ENGINE}, which `make test PARTS=without-engine` makes")
    bench = harness.Bench(__file__, arguments, f"the other is {arguments.other}")
    ways = {ENGINE: (sys.executable, harness.PACKAGE), NO_ENGINE: (sys.executable, WITHOUT_ENGINE),
            OTHER: (arguments.other, WITHOUT_ENGINE)}
    wrong = []
    with tempfile.TemporaryDirectory() as temporary:
        for script, options in scripts(Path(temporary)).items():
            if arguments.only and script not in arguments.only:
                continue
            found = {}
            for way, (python, package) in ways.items():
                found[way] = harness.run([python, NOTED, EXAMPLES / f"{script}.py", *options], {"PYTHONPATH": str(package)},
                                         limit_s=LIMIT_S).json()
            bench.keep({way: [each] for way, each in found.items()}, script)
            for number in range(len(found[ENGINE]["calls"])):
                calls = {f"{way} ({each['torch']})": each["calls"][number] for way, each in found.items()}
                print(f"\n{script}\n{table(calls)}", flush=True)
                for way, call in calls.items():
                    listed = {name: reason for name, reason in call["not_applicable"].items() if "built for torch" in reason}
                    for name, reason in listed.items():
                        print(f"not applicable {way}: {name}: {reason}")
                    if call["problem"]:
                        print(f"{way}: {call['problem']}")
                wrong += [f"{script}: {each}" for each in contradictions(calls)]
    print("\n" + ("\n".join(wrong) or "every change is tried or listed in each way, and no verdict contradicts another"))
    return bench.end(wrong, 3 if wrong else 0)


if __name__ == "__main__":
    sys.exit(main())
