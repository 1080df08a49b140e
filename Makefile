# make            set up what is missing, build build/release/bin/headrace
# make demo       the main job on real data: tune examples/fashion_mnist.toml
# make test       everything; the last line is "N passed, N failed"
# make help       the rest
SHELL := bash
BUILD := build/release
PYTHON := .venv/bin/python

# GNU make would write "*** [test] Error 1" below the count of a failed run. In question mode it runs only lines marked
# with + and gives exit status 1 without a word when another line would have to run. So the run itself never fails and
# leaves a mark, and the line after it is there only when it finds the mark.
ifneq ($(filter test test-fast bare-test,$(MAKECMDGOALS)),)
ifeq ($(words $(MAKECMDGOALS)),1)
MAKEFLAGS += -q
unexport MAKEFLAGS
endif
endif
counted = mkdir -p build; touch build/.test-failed; if $(1); then rm -f build/.test-failed; fi
fail_if_marked = $(shell test -e build/.test-failed && echo @false)

.DEFAULT_GOAL := build
.PHONY: help setup build demo test test-fast run-test run-test-fast tidy format docs bench bench-fashion bare-demo \
  bare-test run-bare-test clean

help:
	@echo "make                build (sets up Debian packages and .venv first where they are missing)"
	@echo "make setup          only set up"
	@echo "make demo           build, then tune, train and report on Fashion-MNIST (runs/fashion_mnist/)"
	@echo "make test           every test and check; PARTS='pytest tidy' runs only those parts"
	@echo "make test-fast      release tests, pytest and the cheap checks; no sanitizers"
	@echo "make bench          the benches that stand beside the sources"
	@echo "make bench-fashion  the demo's job against a plain PyTorch script, 3 seeds each, interleaved"
	@echo "make format, tidy   clang-format in place; clang-tidy on every source"
	@echo "make docs           write docs/options.md and docs/recipe.schema.json anew, from the options themselves"
	@echo "make bare-demo      make demo in a bare Debian 12 made by debootstrap (needs root)"
	@echo "make bare-test      make test there"
	@echo "make clean          remove build/"

setup:
	@tools/setup.sh

$(BUILD)/build.ninja: CMakePresets.json | setup
	cmake --preset release

build: setup $(BUILD)/build.ninja
	@ninja -C $(BUILD) -j $(shell nproc)

demo: build
	$(BUILD)/bin/headrace tune examples/fashion_mnist.toml

test: run-test
	$(fail_if_marked)
test-fast: run-test-fast
	$(fail_if_marked)
bare-test: run-bare-test
	$(fail_if_marked)
run-test:
	+@$(call counted,tools/test.sh $(PARTS))
run-test-fast:
	+@$(call counted,tools/test.sh fast)
run-bare-test:
	+@$(call counted,tools/bare.sh test)

bare-demo:
	@tools/bare.sh demo

tidy: build
	@$(PYTHON) tools/tidy.py --all

format: setup
	@git ls-files -z '*.h' '*.cpp' | xargs -0 clang-format -i

docs: build
	$(BUILD)/bin/headrace explain --markdown >docs/options.md
	$(BUILD)/bin/headrace explain --schema >docs/recipe.schema.json

bench: build
	@for bench in $(BUILD)/bin/*_bench; do echo "== $$bench"; $$bench || exit 1; done

bench-fashion: build
	@$(PYTHON) bench/train_fashion/run.py

clean:
	rm -rf build
