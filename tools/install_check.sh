#!/usr/bin/env bash
# `make package`: builds the wheel into build/package, installs it into a fresh environment that sees the torch of .venv, then
# imports and steps outside the repository. Takes as long as compiling the libraries once (minutes without ccache).
set -euo pipefail
cd "$(dirname "$0")/.."
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
.venv/bin/python -m venv "$folder/venv"
site=$("$folder/venv/bin/python" -c 'import sysconfig; print(sysconfig.get_paths()["purelib"])')
.venv/bin/python -c 'import sysconfig; print(sysconfig.get_paths()["purelib"])' >"$site/torch_of_the_repository.pth"
rm -rf build/package
"$folder/venv/bin/python" -m pip wheel --no-input --quiet --no-deps --wheel-dir build/package .
"$folder/venv/bin/python" -m pip install --no-input --quiet build/package/*.whl
cd "$folder"
env -u PYTHONPATH -u LD_LIBRARY_PATH "$folder/venv/bin/python" - <<'PYTHON'
import time

import torch

begin = time.perf_counter()
import headrace as hr

seconds = time.perf_counter() - begin
model = torch.nn.Linear(4, 2)
trainer = hr.Trainer(model, torch.optim.AdamW(model.parameters()), lambda m, b: m(b).square().mean())
trainer.step(torch.randn(3, 4))
print(f"{hr.__file__}: imported in {1e3 * seconds:.0f} ms beside torch, and stepped")
assert "site-packages" in hr.__file__
PYTHON
