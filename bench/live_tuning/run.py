#!/usr/bin/env python3
"""Live tuning (hr.autotune) against its bars: decisions, foreign scripts, lost time, a grid, hooks, the numeric gate, loaders.

usage: make bench NAME=live-tuning ARGS='PART [OPTION...]'        `PART --help` tells the options

Parts that take long append rows to runs/live_tuning/ and go on where the call before them ended: --minutes 9 ends after about
nine minutes. --quick makes everything tiny.
"""

import ast
import importlib
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import harness  # noqa: E402

sys.path.insert(0, str(harness.PACKAGE))

HERE = Path(__file__).resolve().parent
PARTS = ("recordings", "decisions", "rerun", "lost_time", "grid", "hooks", "gate", "loaders")


def listing() -> str:
    width = max(map(len, PARTS))
    about = {part: ast.get_docstring(ast.parse((HERE / f"{part}.py").read_text())).split("\n\n")[0] for part in PARTS}
    return "\n".join(f"{part.replace('_', '-'):<{width}}  {' '.join(text.split())}" for part, text in about.items())


def main() -> int:
    words = sys.argv[1:]
    if not words or words[0] in ("-h", "--help"):
        print(f"{__doc__.strip()}\n\n{listing()}")
        return 0 if words else 2
    part = words[0].replace("-", "_")
    if part not in PARTS:
        known = ", ".join(name.replace("_", "-") for name in PARTS)
        print(f"live-tuning: wanted one of {known}, found {words[0]}", file=sys.stderr)
        return 2
    return importlib.import_module(f"live_tuning.{part}").main(words[1:])


if __name__ == "__main__":
    sys.exit(main())
