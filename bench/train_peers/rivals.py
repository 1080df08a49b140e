"""The training loops and the optimizers that are compared, the environments in which they are, and how each is run."""

import functools
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import harness

HERE = Path(__file__).resolve().parent
LIMIT_S = 600.0  # For a process.
# By name, what tools/environment.sh installs beside the project's own environment. Apart, so that where one cannot be had the
# others are there.
FRAMEWORKS, COMPOSER, TORCHAO, TIMM = "frameworks", "train-peers-composer", "train-peers-torchao", "train-peers-timm"
REQUIREMENTS = {FRAMEWORKS: harness.ROOT / "tests" / "frameworks_requirements.txt", COMPOSER: HERE / "composer_requirements.txt",
                TORCHAO: HERE / "torchao_requirements.txt", TIMM: HERE / "timm_requirements.txt"}
WHY = harness.UNAVAILABLE  # A key in the place of figures, with the reason.


@dataclass(frozen=True)
class Rival:
    name: str  # In tables.
    word: str  # By which its script knows it.
    environment: str = ""  # One of REQUIREMENTS; none: the project's own.


PLAIN, OURS = Rival("plain loop", "plain"), Rival("hr.Trainer", "ours")
WITH_ALL = Rival("hr.Trainer, all features", "ours-with-all")
FABRIC = Rival("Lightning Fabric", "fabric", FRAMEWORKS)
ACCELERATE = Rival("Accelerate", "accelerate", FRAMEWORKS)
LIGHTNING = Rival("Lightning Trainer", "lightning", FRAMEWORKS)
MOSAIC = Rival("Composer Trainer", "composer", COMPOSER)
LOOPS = (PLAIN, OURS, WITH_ALL, FABRIC, ACCELERATE, LIGHTNING, MOSAIC)

ADAMW_8BIT = Rival("torchao AdamW8bit", "adamw8bit", TORCHAO)
LAMB = Rival("timm Lamb", "lamb", TIMM)
MUON = Rival("torch Muon", "muon")
OPTIMIZERS = (ADAMW_8BIT, LAMB, MUON)

# Words of timm_recipe.py.
RECIPE_BITS, RECIPE_STEP = Rival("bits", "bits", TIMM), Rival("step", "step", TIMM)
TIMM_PHOTOGRAPHS = Rival("timm's loader and loop", "timm-photographs", TIMM)
HR_PHOTOGRAPHS = Rival("hr.Loader, hr.Trainer", "hr-photographs", TIMM)


@functools.cache
def python_of(environment: str) -> tuple[Path | None, str]:
    """The interpreter of one of REQUIREMENTS, or None and why that cannot be made. The network is needed only where it is
    missing, and is asked for it once."""
    if not environment:
        return Path(sys.executable), ""
    try:
        made = harness.run([harness.ROOT / "tools" / "environment.sh", environment, REQUIREMENTS[environment]])
    except harness.ProgramFailed as failure:
        return None, failure.short
    return Path(made.output.strip().splitlines()[-1]) / "bin" / "python", ""


def figures_of(rival: Rival, script: str, options: Mapping[str, Any]) -> dict[str, Any]:
    """What a script of this folder prints of a rival, in a process of its own; {WHY: reason} where that cannot be had, does not
    work, or has another torch than the project."""
    python, reason = python_of(rival.environment)
    if python is None:
        return {WHY: reason}
    words = [word for name, value in options.items() for word in (f"--{name}", value)]
    try:
        found = harness.run_json([python, HERE / script, rival.word, *words], environment=harness.python_path(), limit_s=LIMIT_S)
    except harness.ProgramFailed as failure:
        return {WHY: failure.short}
    if found["torch"] != (wanted := harness.version_of("torch")):
        return {WHY: f"wanted torch {wanted}, found {found['torch']}"}
    return found
