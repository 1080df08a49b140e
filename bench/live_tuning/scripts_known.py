"""The foreign scripts of scripts/, what each needs, and how they are run by play.py."""

import argparse
import json
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import harness

HERE = Path(__file__).resolve().parent


@dataclass(frozen=True)
class Script:
    name: str
    package: str = ""  # Beside torch and torchvision; only the frameworks' environment has it.
    queue: int = 0  # Batches that its loader holds, where its loop waits for them.


SCRIPTS = {script.name: script for script in (
    Script("cnn"), Script("vit"), Script("char_lstm"), Script("unet_photos", queue=2), Script("gan"), Script("transformer_lm"),
    Script("tabular_mlp"), Script("detector"), Script("hugging_face", "transformers"), Script("lightning_module", "lightning"),
    Script("gnn"), Script("transducer"))}


def add_options(parser: argparse.ArgumentParser, default: tuple[str, ...] = tuple(SCRIPTS)) -> None:
    parser.add_argument("--scripts", nargs="+", choices=list(SCRIPTS), default=list(default), metavar="SCRIPT",
                        help=f"of {', '.join(SCRIPTS)}")
    parser.add_argument("--frameworks", type=Path, metavar="PYTHON",
                        help="of an environment with transformers and lightning, without which two scripts are left out")


def runnable(arguments: argparse.Namespace) -> list[str]:
    """Of --scripts; says which are left out."""
    wanted = [name for name in arguments.scripts if not SCRIPTS[name].package or arguments.frameworks]
    for name in arguments.scripts:
        if name not in wanted:
            print(f"{name} is left out: it needs {SCRIPTS[name].package}; give --frameworks PYTHON")
    return wanted


def play(name: str, arguments: argparse.Namespace, arm: str, steps: int, seed: int = 1, limit_s: float | None = None,
         python: Path | None = None, **more: Any) -> dict[str, Any]:
    """The figures of one run of a script under an arm of play.py, in a process of its own. It is given up after twice the
    limit and two minutes."""
    request = {"script": name, "arm": arm, "steps": steps, "seed": seed, **more}
    if limit_s is not None:
        request["limit_s"] = limit_s
    interpreter = python or (arguments.frameworks if SCRIPTS[name].package else Path(sys.executable))
    return harness.run_json([interpreter, HERE / "play.py", json.dumps(request)], environment=harness.python_path(),
                            limit_s=2 * (limit_s or harness.LIMIT_S) + 120)


def step_seconds(name: str, arguments: argparse.Namespace) -> dict[str, Any]:
    """What a step of the script alone takes."""
    limit_s, steps = (1.0, 8) if arguments.quick else (20.0, 20_000)
    found = play(name, arguments, "untouched", steps, limit_s=limit_s)
    return {"step_s": found["median_step_s"], "steps": found["steps"]}
