# make            set up what is missing, build build/release/bin/headrace
# make demo       the main job on real data: tune examples/fashion_mnist.toml
# make test       everything; the last line is "N passed, N failed"
# make help       the rest
SHELL := bash
BUILD := build/release
PREFIX ?= /usr/local
PYTHON := .venv/bin/python

.DEFAULT_GOAL := build
.PHONY: help setup build demo test check bench docs format install package clean

help:
	@echo "make                build (sets up Debian packages and .venv first where they are missing)"
	@echo "make setup          only set up; JOB=photos: also cut 3,000 photographs from Debian's wallpaper packages (photos/ links to them)"
	@echo "make demo           build, then tune, train and report on Fashion-MNIST (runs/fashion_mnist/)"
	@echo "make demo JOB=photos    tune two jobs on photographs: one waits for data, one for computing"
	@echo "make test           every test and check; what passed before with the same inputs is not run again under the sanitizers"
	@echo "make test PARTS=fast    release tests, pytest and the cheap checks; PARTS='pytest tidy' runs only those parts"
	@echo "make test MINUTES=75    sanitizers and clang-tidy leave out, by name, what they have not done by then"
	@echo "make check          every test anew, clang-tidy on every source, the bindings under ASan, adapters to other frameworks, and fuzzing (FUZZ_SECONDS=60 a parser)"
	@echo "make check PARTS=fuzz   one part of it; FUZZERS='jpeg png' chooses parsers"
	@echo "make check ON=gpu   build, then the checks of tests/gpu, which need a CUDA device and a torch that sees it"
	@echo "make bench          lists the benches; NAME=peers runs one, with ARGS='--rounds 1' as its words"
	@echo "make docs           write docs/options.md, docs/recipe.schema.json, docs/api.md and the classes of headrace.transforms anew, from the code itself"
	@echo "make docs FORM=site   check the spelling, and make build/site of the documents (needs the network once)"
	@echo "make format         clang-format in place"
	@echo "make install        libraries, headers and CMake package for C++ into PREFIX=/usr/local; DESTDIR is respected"
	@echo "make package        build, repair and check the wheel, in dist/; TORCH=2.15: with an engine for that torch, in dist/torch2.15/"
	@echo "make package CHECK=1    also install it into fresh environments in bare Debian 12 and 13 and run its tests there (needs root; 20 minutes)"
	@echo "make demo IN=bare   make demo in a bare Debian 12 made by debootstrap (needs root); make test IN=bare"
	@echo "make clean          remove build/"

# Refuses a value that an argument does not have: $(call one_of,IN,bare).
one_of = $(if $(filter-out $(2),$($(1))),$(error no $(1)=$($(1)); there is $(2:%=$(1)=%)))

setup:
	$(call one_of,JOB,photos)
	@tools/setup.sh $(JOB)
	$(if $(JOB),@$(PYTHON) tools/make_photos.py)

$(BUILD)/build.ninja: CMakePresets.json | $(if $(wildcard $(BUILD)/build.ninja),,setup)
	cmake --preset release

build: setup $(BUILD)/build.ninja
	@ninja -C $(BUILD) -j $(shell nproc)

# Without tests and benches, which take most of the time to compile. Exit code 3 says that no change paid here: a result, as where
# other programs take the cores.
ifeq ($(IN),)
demo: setup $(BUILD)/build.ninja
	@ninja -C $(BUILD) -j $(shell nproc) headrace_main headrace_torch
	$(if $(JOB),,$(BUILD)/bin/headrace tune examples/fashion_mnist.toml || [ $$? -eq 3 ])
	$(if $(JOB),$(BUILD)/bin/headrace tune examples/photos_small.toml || [ $$? -eq 3 ])
	$(if $(JOB),$(BUILD)/bin/headrace tune examples/photos_resnet18.toml || [ $$? -eq 3 ])
else
demo:
	$(call one_of,IN,bare)
	@tools/bare.sh demo $(JOB)
endif

test:
	$(call one_of,IN,bare)
	@$(if $(IN),tools/bare.sh test $(PARTS),tools/test.sh $(if $(MINUTES),--minutes $(MINUTES)) $(PARTS))

# Whether torch sees a GPU is asked before the build, which takes long. A machine without .venv that build/carried was brought to
# has its own torch, and builds nothing.
CHECKS_ON_GPU := -m pytest -o 'python_files=*_check.py' tests/gpu
SEES_GPU := -c 'import sys, torch; sys.exit(None if torch.cuda.is_available() else "make check ON=gpu: torch sees no CUDA device here")'
ifeq ($(ON),)
check:
	@tools/test.sh --anew $(PARTS)
else ifneq ($(if $(wildcard .venv),,$(wildcard build/carried)),)
check:
	$(call one_of,ON,gpu)
	@python3 $(SEES_GPU)
	@tools/carried.sh run python3 $(CHECKS_ON_GPU)
else
check: $(if $(filter gpu,$(ON)),setup)
	$(call one_of,ON,gpu)
	@$(PYTHON) $(SEES_GPU)
	@$(MAKE) --no-print-directory build
	@$(PYTHON) $(CHECKS_ON_GPU)
endif

# Which need a build or photographs is known there.
bench: setup
	@$(PYTHON) bench/run.py $(or $(NAME),list) $(ARGS)

ifeq ($(FORM),)
docs: build
	$(BUILD)/bin/headrace explain --markdown >docs/options.md
	$(BUILD)/bin/headrace explain --schema >docs/recipe.schema.json
	$(PYTHON) tools/operation_classes.py <docs/recipe.schema.json >python/headrace/_operation_classes.py
	$(PYTHON) tools/loader_options.py <docs/recipe.schema.json >python/headrace/_loader_options.py
	PYTHONPATH=$(BUILD)/python $(PYTHON) tools/api_reference.py >docs/api.md
else
docs: setup
	$(call one_of,FORM,site)
	@tools/site.sh
endif

format: setup
	@git ls-files -z '*.h' '*.cpp' | xargs -0 clang-format -i

# Without the Python package, tests and benches. Set-up is left out where a build is configured: it would give root, by
# `sudo make install`, a Python environment of its own. CMake's list of what it wrote would be root's, too.
install: $(if $(wildcard $(BUILD)/build.ninja),,setup) $(BUILD)/build.ninja
	@ninja -C $(BUILD) -j $(shell nproc) headrace_main headrace_torch
	@cmake --install $(BUILD) --prefix "$(PREFIX)" --component cpp
	@rm -f $(BUILD)/install_manifest_cpp.txt

package: setup
	$(call one_of,CHECK,1)
	@$(PYTHON) tools/package.py $(if $(TORCH),--torch $(TORCH))
	$(if $(CHECK),@tools/package_check.sh $(TORCH))

clean:
	rm -rf build
