"""The foreign scripts of scripts/, what each needs, and how they are run by play.py."""

import argparse
import functools
import json
import os
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import harness

HERE = Path(__file__).resolve().parent
# By name, what tools/environment.sh installs beside the project's own environment.
ENVIRONMENTS = {"frameworks": harness.ROOT / "tests" / "frameworks_requirements.txt", "live-tuning": HERE / "requirements.txt"}
FRAMEWORKS, RIVALS = ENVIRONMENTS


@dataclass(frozen=True)
class Script:
    name: str
    package: str = ""  # Beside torch and torchvision; only the frameworks' environment has it.
    queue: int = 0  # Batches that its loader holds, where its loop waits for them.
    # Updates of the first epoch, where its batches come from an iterator that was made before on_ready: loading does not switch
    # in it.
    begun: int = 0


SCRIPTS = {script.name: script for script in (
    Script("cnn"), Script("vit"), Script("char_lstm"), Script("unet_photos", queue=2), Script("gan"), Script("transformer_lm"),
    Script("tabular_mlp"), Script("detector"), Script("hugging_face", "transformers"),
    Script("lightning_module", "lightning", begun=937), Script("gnn"), Script("transducer"))}


def add_options(parser: argparse.ArgumentParser, default: tuple[str, ...] = tuple(SCRIPTS)) -> None:
    parser.add_argument("--scripts", nargs="+", choices=list(SCRIPTS), default=list(default), metavar="SCRIPT",
                        help=f"of {', '.join(SCRIPTS)}")


@functools.cache
def packages_of(environment: str) -> Path:
    """The folder of packages that this one of ENVIRONMENTS has beside the project's own. bench/run.py has made it; the network
    is needed only where it is missing."""
    made = harness.run([harness.ROOT / "tools" / "environment.sh", environment, ENVIRONMENTS[environment]])
    python = Path(made.output.strip().splitlines()[-1]) / "bin" / "python"
    asked = harness.run([python, "-c", "import sysconfig; print(sysconfig.get_paths()['purelib'])"])
    return Path(asked.output.strip())


def why_missing(environment: str) -> str | None:
    """Why this one of ENVIRONMENTS cannot be had; None: it is there."""
    try:
        packages_of(environment)
    except harness.ProgramFailed as failure:
        return failure.short
    return None


def runnable(arguments: argparse.Namespace) -> list[str]:
    """Of --scripts; says which are left out."""
    needing = [name for name in arguments.scripts if SCRIPTS[name].package]
    reason = why_missing(FRAMEWORKS) if needing else None
    for name in needing if reason else ():
        print(f"{name} is left out: the environment with {SCRIPTS[name].package} cannot be made: {reason}")
    return [name for name in arguments.scripts if reason is None or name not in needing]


def play(name: str, arm: str, steps: int, seed: int = 1, limit_s: float | None = None,
         environments: Sequence[str] = (), **more: Any) -> dict[str, Any]:
    """The figures of one run of a script under an arm of play.py, in a process of its own that has the packages of these
    ENVIRONMENTS, and of that which the script needs; nothing is known there of earlier compilations. It is given up after twice
    the limit and two minutes."""
    request = {"script": name, "arm": arm, "steps": steps, "seed": seed, **more}
    if limit_s is not None:
        request["limit_s"] = limit_s
    wanted = dict.fromkeys([*([FRAMEWORKS] if SCRIPTS[name].package else []), *environments])
    path = os.pathsep.join(map(str, [harness.PACKAGE, *map(packages_of, wanted)]))
    with tempfile.TemporaryDirectory() as cache:
        return harness.run_json([sys.executable, HERE / "play.py", json.dumps(request)],
                                environment={"PYTHONPATH": path, "XDG_CACHE_HOME": cache},
                                limit_s=2 * (limit_s or harness.LIMIT_S) + 120)


def step_seconds(name: str, quick: bool) -> dict[str, Any]:
    """What a step of the script alone takes."""
    limit_s, steps = (1.0, 8) if quick else (10.0, 20_000)
    found = play(name, "untouched", steps, limit_s=limit_s)
    return {"step_s": found["median_step_s"], "steps": found["steps"]}
