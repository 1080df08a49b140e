# make            set up what is missing, build build/release/bin/headrace
# make demo       the main job on real data: tune examples/fashion_mnist.toml
# make test       everything; the last line is "N passed, N failed"
# make help       the rest
SHELL := bash
BUILD := build/release
PYTHON := .venv/bin/python

.DEFAULT_GOAL := build
.PHONY: help setup build demo photos demo-photos test test-fast tidy format docs \
  bench bench-fashion bench-photos bench-memory bench-planted bench-python-step bench-python-loader bench-python-scripts bench-python-calls bench-python-source bench-first-batch \
  bench-allocators bench-data-targets bench-loader-timing bench-loading-advice bench-autotune bench-small-files bench-peers asan-python install-check fuzz bare-demo bare-test clean

help:
	@echo "make                build (sets up Debian packages and .venv first where they are missing)"
	@echo "make setup          only set up"
	@echo "make demo           build, then tune, train and report on Fashion-MNIST (runs/fashion_mnist/)"
	@echo "make demo-photos    build, then tune two jobs on photographs: one waits for data, one for computing"
	@echo "make photos         cut 3,000 photographs from Debian's wallpaper packages; photos/ links to them"
	@echo "make test           every test and check; PARTS='pytest tidy' runs only those parts"
	@echo "make test-fast      release tests, pytest and the cheap checks; no sanitizers"
	@echo "make bench          the benches that stand beside the sources"
	@echo "make bench-fashion  the demo's job against a plain PyTorch script, 3 seeds each, interleaved"
	@echo "make bench-photos   after demo-photos: ResNet-18 and loading against PyTorch and torchvision, interleaved"
	@echo "make bench-first-batch    the first batch of a process that has just begun, folders of 3,000 and 20,000 photographs"
	@echo "make bench-data-targets   the pipeline against the targets T-06 to T-09: rates, loading, preprocessing, waits"
	@echo "make bench-loading-advice what a loader's advice predicts without the dearest transform, against what is then measured"
	@echo "make bench-loader-timing  what threads, processes and prefetching save where reading waits"
	@echo "make bench-autotune       what a loader that finds its own threads and depth gets of the best fixed setting, and how soon"
	@echo "make bench-small-files    20,000 small files against one pack of them, read cold and warm"
	@echo "make bench-allocators     a training step's memory: glibc, jemalloc, mimalloc, tcmalloc, Headrace's arena"
	@echo "make bench-memory   does memory grow in 20 minutes of training?"
	@echo "make bench-python-step    a step from Python: the plain loop with a fused optimizer against headrace.Trainer"
	@echo "make bench-python-source  a source written in Python: DataLoader's workers against headrace.Loader's"
	@echo "make bench-python-loader  a Python loop: DataLoader against headrace.Loader on photographs; Fashion-MNIST with and without Python"
	@echo "make bench-python-calls   does memory grow when a bound function is called 100,000 times?"
	@echo "make asan-python    the Python bindings under the address sanitizer"
	@echo "make bench-peers    loading against tf.data, DALI, FFCV and others in an environment of their own (3 GB once); PEERS=options"
	@echo "make install-check  pip install . into a fresh environment, then import and step outside the repository"
	@echo "make bench-planted  how often the tuner judges planted knobs right, 20 runs"
	@echo "make fuzz           libFuzzer on every parser, 10 minutes each (FUZZ_SECONDS=600, FUZZERS='jpeg record pack png idx list recipe safetensors')"
	@echo "make bench-python-scripts   hr.tune on the scripts of examples/python, hr.watch against timers placed by hand"
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

# Without tests and benches, which take most of the time to compile.
demo: setup $(BUILD)/build.ninja
	@ninja -C $(BUILD) -j $(shell nproc) headrace_main headrace_torch
	$(BUILD)/bin/headrace tune examples/fashion_mnist.toml

demo-photos: photos setup $(BUILD)/build.ninja
	@ninja -C $(BUILD) -j $(shell nproc) headrace_main headrace_torch
	$(BUILD)/bin/headrace tune examples/photos_small.toml
	$(BUILD)/bin/headrace tune examples/photos_resnet18.toml

photos:
	@tools/setup.sh photos
	@$(PYTHON) tools/make_photos.py

test:
	@tools/test.sh $(PARTS)
test-fast:
	@tools/test.sh fast
bare-test:
	@tools/bare.sh test

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

bench-planted: build
	@$(PYTHON) bench/planted/run.py

bench-photos: build photos
	@$(PYTHON) bench/load_photos/run.py
	@$(PYTHON) bench/train_photos/run.py

bench-python-scripts: build photos
	@$(PYTHON) bench/python_watch/run.py
	@$(PYTHON) bench/python_tune/run.py

bench-first-batch: build photos
	@$(PYTHON) bench/first_batch/run.py

bench-data-targets: build photos
	@$(PYTHON) bench/data_targets/run.py

bench-loading-advice: build photos
	@$(PYTHON) bench/loading_advice/run.py

bench-loader-timing: build
	@$(PYTHON) bench/loader_timing/run.py

bench-autotune: setup $(BUILD)/build.ninja
	@ninja -C $(BUILD) -j $(shell nproc) autotune_bench
	@$(BUILD)/bin/autotune_bench

bench-small-files: setup $(BUILD)/build.ninja
	@ninja -C $(BUILD) -j $(shell nproc) pack_bench
	@$(BUILD)/bin/pack_bench 20000 3

bench-allocators: build photos
	@$(PYTHON) bench/allocators/run.py

bench-memory: build photos
	@$(PYTHON) bench/memory/run.py

bench-python-step: build
	@$(PYTHON) bench/python_step/run.py

bench-python-loader: build photos
	@$(PYTHON) bench/python_loader/run.py
	@$(PYTHON) bench/python_loader/run.py --work fashion

bench-python-source: build photos
	@$(PYTHON) bench/python_source/run.py

bench-python-calls: build
	@$(PYTHON) bench/python_calls/run.py

# Not a part of make test: the bindings take minutes to compile under the sanitizers. torch keeps what it made at import, and
# ASan keeps what was freed, so neither leaks nor growth mean anything here. Tests marked forks are left out: the runtime that
# g++ 12 brings does not hold its allocator's locks over fork (LLVM's since its pull request 75290 does), so a DataLoader's
# worker that is forked beside a thread which allocates may wait for ever. torch.compile would run g++ under ASan, for longer
# than its test's budget.
asan-python: setup photos
	@cmake --preset asan >/dev/null
	@ninja -C build/asan _native
	@LD_PRELOAD="$$(g++ -print-file-name=libasan.so) $$(g++ -print-file-name=libstdc++.so)" \
	  ASAN_OPTIONS=detect_leaks=0:detect_stack_use_after_return=1:strict_string_checks=1 UBSAN_OPTIONS=print_stacktrace=1 \
	  $(PYTHON) -m pytest -q -o "pythonpath=tests build/asan/python" -o faulthandler_timeout=120 -k "not grow and not really_compiles" -m "not forks" \
	  tests/python_trainer_test.py tests/python_loader_test.py tests/python_pipeline_test.py tests/python_insight_test.py tests/python_twin_test.py \
	  tests/python_tune_test.py tests/python_watch_test.py

# The environment and the rivals' forms of the photographs are made once, in the cache; make test needs nothing of it.
bench-peers: build photos
	@tools/setup.sh peers
	@$(PYTHON) bench/peers/run.py $(PEERS)

install-check: setup
	@tools/install_check.sh

bench-fashion: build
	@$(PYTHON) bench/train_fashion/run.py

# Begins with the inputs that are kept in tests/fuzz_inputs. What is found stays in build/fuzz, beside the new inputs.
FUZZ_SECONDS := 600
FUZZERS := jpeg record pack png idx list recipe safetensors
fuzz: setup
	@cmake --preset fuzz >/dev/null
	@ninja -C build/fuzz $(FUZZERS:=_fuzz)
	@cd build/fuzz && for fuzzer in $(FUZZERS); do echo "== $$fuzzer"; mkdir -p $$fuzzer && bin/$${fuzzer}_fuzz \
	  -max_total_time=$(FUZZ_SECONDS) -timeout=5 -rss_limit_mb=1024 -max_len=16384 -print_final_stats=1 \
	  $$fuzzer ../../tests/fuzz_inputs/$$fuzzer || exit 1; done

clean:
	rm -rf build
