#!/usr/bin/env bash
# Checks the spelling of what people read and makes the site of the documents, build/site, of the Markdown files as they are. A word that
# is no word, a page that no other leads to and a link that leads nowhere fail. Needs the network once, for the tools.
set -euo pipefail
cd "$(dirname "$0")/.."
tools=$(tools/environment.sh site docs/site/requirements.txt)
# COO is a layout of sparse tensors.
git ls-files -z '*.md' python examples include | xargs -0 "$tools/bin/codespell" --ignore-words-list=coo
rm -rf build/site
"$tools/bin/python" -m sphinx --quiet --fail-on-warning --keep-going -c docs/site -b html . build/site
echo "build/site/docs/index.html"
