#!/usr/bin/env bash
# `make package CHECK=1`: installs the wheel of dist/ into fresh environments of bare Debian systems, which have a Python and nothing to
# build with, and runs there the tests of what a package is for: loader, tune, watch, report and command. What each took and found is
# in checks.txt beside the wheel. 20 minutes, and the time to download each torch.
#
# usage: package_check.sh [MINOR]     the wheel of dist/torchMINOR, with that torch    (needs root and debootstrap; 16 GB in ${TMPDIR:-/var/tmp})
# shellcheck disable=SC2088  # ~ is expanded inside.
set -euo pipefail
cd "$(dirname "$0")/.."
# shellcheck source=tools/debian.sh
. tools/debian.sh

# System and torch of each environment: that of the engine, the newest of 2026-11-26, and none.
ENVIRONMENTS=("bookworm 2.11.0" "bookworm 2.15.0" "bookworm none" "trixie 2.15.0")
TESTED_WITH=$(grep -E '^(iniconfig|numpy|packaging|pillow|pluggy|Pygments|pytest|safetensors)==' requirements.txt | xargs)
ALWAYS=(tests/package/installed_check.py tests/command_test.py tests/cli_test.py tests/python_package_test.py)
WITH_TORCH=(tests/python_loader_test.py tests/python_source_test.py tests/fields_test.py tests/python_tune_test.py tests/autotune_test.py
  tests/live_knobs_test.py tests/python_watch_test.py tests/python_insight_test.py tests/facade_test.py
  tests/facade_stability_test.py tests/batch_plan_test.py tests/facade_batch_size_test.py)
# What wants a compiler, torchvision, or the layout of the build tree.
LEFT_OUT="not verb_without_its_library and not wait_policy and not really_compiles and not outside_the_tree and not another_allocator"
LEFT_OUT+=" and not fashion_mnist and not images_with_other_transforms and not engine_can_be_had"

python_inside() { inside "~/env/bin/python $*"; }

pip_inside() {
  inside "~/env/bin/pip install --no-input --quiet --no-compile $*" || fail "pip cannot install $*"
}

# What the bench of imports and pytest found inside. A test that was left out on its way counts as failed.
found_inside() {
  python3 - "$root/root/import.json" "$root/root/junit.xml" <<'PYTHON'
import json, os, sys
import xml.etree.ElementTree as ElementTree
imports, tests = sys.argv[1:]
if os.path.exists(imports):
    print(", ".join(f"{name} {ms:.0f} ms" for name, ms in json.load(open(imports))["results"].items()), end="; ")
cases = list(ElementTree.parse(tests).getroot().iter("testcase")) if os.path.exists(tests) else []
bad = sum(any(child.tag in ("failure", "error", "skipped") for child in case) for case in cases)
print(f"{len(cases) - bad} passed, {bad} failed")
PYTHON
}

check_environment() {  # SYSTEM TORCH. Where it fails it says so in its line, and returns 1.
  local begin installed_s python files=("${ALWAYS[@]}") marks="not alone" left_out=$LEFT_OUT status=0
  inside "rm -rf ~/env ~/junit.xml ~/import.json && python3 -m venv ~/env" || fail "cannot make an environment in $1"
  pip_inside "$TESTED_WITH"
  if [ "$2" = none ]; then
    left_out="$left_out and not without_numpy_batches"
  else
    pip_inside "'torch==$2'"
    files+=("${WITH_TORCH[@]}")
  fi
  begin=$SECONDS
  pip_inside "~/wheel/*.whl"
  installed_s=$((SECONDS - begin))
  inside "~/env/bin/pip check" || status=1
  python=$(python_inside "-c 'import platform; print(platform.python_version())'")
  python_inside "-c 'from headrace import _engine_door as door; exit(door.why_not() is not None)'" || marks="$marks and not engine"
  python_inside "bench/import_time/run.py --installed --json ~/import.json" || status=1
  begin=$SECONDS
  # CXX: what torch.compile would need, so that it is among what is offered; nothing here compiles.
  inside "HEADRACE_BIN=~/env/bin/headrace CXX=true timeout 5400 ~/env/bin/python -m pytest -q -o pythonpath=tests \
    -o 'python_files=*_test.py *_check.py' --junit-xml ~/junit.xml -m '$marks' -k '$left_out' ${files[*]}" || status=1
  echo "$1, Python $python, torch $2: installed in $installed_s s; $(found_inside) in $((SECONDS - begin)) s$(
    [ $status -eq 0 ] || echo "; FAILED")" | tee -a "$results"
  return $status
}

need_root
folder=dist${1:+/torch$1}
wheels=("$folder"/headrace-*.whl)
[ -f "${wheels[0]}" ] || fail "no wheel in $folder; wanted what make package leaves there"
[ -z "${1:-}" ] || ENVIRONMENTS=("bookworm $1.*" "bookworm none")
results=$folder/checks.txt
echo "$(basename "${wheels[0]}"), $(git describe --always --dirty), $(date -u +%F)" >"$results"

export PIP_NO_CACHE_DIR=1
root=$(mktemp -d "${TMPDIR:-/var/tmp}/headrace-package-XXXXXX")
trap 'rm -rf --one-file-system "$root" "$root.log"' EXIT
trap 'exit 130' INT
trap 'exit 143' TERM
made=
failed=0
for environment in "${ENVIRONMENTS[@]}"; do
  read -r system torch <<<"$environment"
  if [ "$system" != "$made" ]; then
    rm -rf --one-file-system "$root"
    mkdir "$root"
    make_debian "$system"
    install_inside python3 python3-venv
    mkdir "$root/root/wheel"
    cp "${wheels[0]}" "$root/root/wheel"
    git clone -q "file://$PWD" "$root/root/headrace-tree"
    made=$system
  fi
  check_environment "$system" "$torch" || failed=$((failed + 1))
done
sum=$(cd "$folder" && sha256sum checks.txt)
sed -i '/  checks\.txt$/d' "$folder/SHA256SUMS"
echo "$sum" >>"$folder/SHA256SUMS"
[ "$failed" -eq 0 ] || fail "$failed of ${#ENVIRONMENTS[@]} environments failed; see above, and $results"
echo "package_check: all of ${#ENVIRONMENTS[@]} environments passed; times are in $results"
