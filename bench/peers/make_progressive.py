#!/usr/bin/env python3
"""Writes the photographs of a folder (make setup JOB=photos) once more as progressive JPEG, with the same tables and subsampling:

usage: bench/peers/make_progressive.py photos build/photos-progressive
       bench/peers/run.py --photos build/photos-progressive --works train --rivals turboloader_tar
"""

import json
import sys
from pathlib import Path

from PIL import Image


def main() -> None:
    source, target = map(Path, sys.argv[1:])
    for path in sorted(source.glob("*/*/*.jpg")):
        out = target / path.relative_to(source)
        out.parent.mkdir(parents=True, exist_ok=True)
        Image.open(path).save(out, quality="keep", progressive=True)
    about = json.loads((source / "about.json").read_text())
    (target / "about.json").write_text(json.dumps({**about, "progressive": True}, indent=1) + "\n")


if __name__ == "__main__":
    main()
