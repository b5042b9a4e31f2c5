# Every command is printed before it runs, so that it can be run by hand.

K ?= capacity
MOETIER_POOL ?= $(or $(XDG_CACHE_HOME),$(HOME)/.cache)/pytest-moetier/pool
BOOTSTRAP_PYTHON ?= python3
BENCH_OPTIONS ?=
REPORT ?= report
TEST_OPTIONS ?=
FUZZ_INPUTS ?= 5000
PEERS_OPTIONS ?=
KERNELS ?= 6.1 6.12 newest
# A test that hangs ends the run, with every thread's stack shown.
HANG := -o faulthandler_timeout=300 -o faulthandler_exit_on_timeout=true

VENV := .venv
BIN := $(VENV)/bin
CMAKE = $(shell command -v cmake || echo $(BIN)/cmake)
NATIVE := pyproject.toml CMakeLists.txt $(shell find native -name '*.[ch]' -o -name CMakeLists.txt)
PIP := $(BIN)/python -m pip install --quiet --disable-pip-version-check
APT := apt-get install python3-venv python3-dev gcc libc6-dev make

.DEFAULT_GOAL := help
.DELETE_ON_ERROR:
.PHONY: help bench kernels test lint sanitize static peers wheel clean

help: ## list the targets
	@awk -F ':.*## ' '/^[a-z]+:.*## / { printf "make %-10s %s\n", $$1, $$2 }' Makefile
	@echo
	@echo "K=EXPR             the finding to run with make bench ($(K))"
	@echo "MOETIER_POOL=PATH  where the pool is, or is created ($(MOETIER_POOL))"
	@echo "REPORT=DIR         where make bench writes the page to look at, index.html ($(REPORT))"
	@echo "KERNELS=...        the kernels to compare with make kernels ($(KERNELS))"
	@echo "BENCH_OPTIONS=...  more options for pytest bench/, TEST_OPTIONS=... for pytest tests/"

bench: $(VENV)/installed ## set up, create the pool and measure this host: pytest bench/ -k "$K"
	$(if $(findstring engine,$(K)),$(PIP) --editable '.[engine]')
	$(if $(filter-out routing small_box hit_cost tiers engine or and not,$(K)),test -e "$(MOETIER_POOL)/manifest.yaml" || $(BIN)/moetier pool create default "$(MOETIER_POOL)")
	$(BIN)/pytest bench/ -k "$(K)" --moetier-pool="$(MOETIER_POOL)" --moetier-refuted=report --moetier-compare --benchmark-autosave --moetier-report="$(REPORT)" $(BENCH_OPTIONS)

# A word with a slash is a kernel of one's own.
FETCHED = $(strip $(foreach each,$(KERNELS),$(if $(findstring /,$(each)),,$(each))))

# A cell that failed (status 1) has its place in the table as well; the target still ends with that status.
kernels: $(VENV)/installed ## measure the reclaim cells on several kernels, in virtual machines, and print cells x kernels
	$(if $(FETCHED),$(BIN)/moetier guest fetch $(FETCHED))
	$(BIN)/pytest bench/ -k reclaim $(addprefix --moetier-kernel=,$(KERNELS)) --moetier-pool="$(MOETIER_POOL)" --moetier-refuted=report --moetier-json=kernels.json $(BENCH_OPTIONS); status=$$?; { [ $$status -gt 1 ] || $(BIN)/moetier guest table kernels.json; } && exit $$status

test: $(VENV)/installed-dev ## set up and run the tests of this software
	$(BIN)/pytest tests/ -rsxX $(HANG) $(TEST_OPTIONS)

lint: $(VENV)/installed-dev ## style, types and the direction of imports
	$(BIN)/ruff check
	$(BIN)/ruff format --check
	$(BIN)/mypy
	$(BIN)/lint-imports

# Extensions built under AddressSanitizer, in a Python that is not. libcachesim's own binding frees with free() what new
# gave it; our extensions are C and have no new.
SANITIZED := LD_PRELOAD="$(shell cc -print-file-name=libasan.so)" ASAN_OPTIONS=detect_leaks=0:alloc_dealloc_mismatch=0 $(BIN)/python tests/native/run_with.py build/sanitize

sanitize: $(VENV)/installed-dev $(CMAKE) ## run the native tests and the readers' fuzzer under AddressSanitizer and UBSan
	$(CMAKE) -S . -B build/sanitize -DMOETIER_SANITIZE=ON -DPython_EXECUTABLE="$(CURDIR)/$(BIN)/python"
	$(CMAKE) --build build/sanitize --parallel 2
	MOETIER_BIN="$(CURDIR)/build/sanitize/bin" $(BIN)/pytest tests/native $(HANG) $(TEST_OPTIONS)
	$(SANITIZED) tests/simulate -k 'not libcachesim and not others and not sweep' $(HANG) $(TEST_OPTIONS)
	$(SANITIZED) tests/trace/test_scan.py tests/trace/test_locality.py tests/trace/test_bad_files.py $(HANG) $(TEST_OPTIONS)
	$(SANITIZED) --script tests/fuzz/run.py --inputs $(FUZZ_INPUTS)

static: $(VENV)/installed-dev $(CMAKE) ## link the executables statically, for a guest without Python
	$(CMAKE) -S . -B build/static -DMOETIER_STATIC=ON -DMOETIER_EXTENSION=OFF
	$(CMAKE) --build build/static --parallel 2
	ls -l build/static/bin

peers: $(VENV)/installed-dev ## compare the speed with fio, memcpy, json and numpy: writes peers.json
	$(BIN)/python tests/peers/compare.py --output peers.json $(PEERS_OPTIONS)

wheel: $(VENV)/made ## build a wheel into dist/
	$(BIN)/python -m pip wheel --disable-pip-version-check --no-deps --wheel-dir dist .

clean: ## remove what was built; the pool and the history of measurements stay
	rm -rf build dist $(VENV) .pytest_cache .ruff_cache .mypy_cache .import_linter_cache .hypothesis

$(VENV)/made:
	$(BOOTSTRAP_PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and f"Python {sys.version.split()[0]} seen; 3.11 or later expected")'
	$(BOOTSTRAP_PYTHON) -c 'import ensurepip' || { echo "python3 has no ensurepip; next: $(APT)" >&2; exit 1; }
	$(BOOTSTRAP_PYTHON) -m venv $(VENV)
	touch $@

$(VENV)/installed: $(VENV)/made $(NATIVE)
	$(BIN)/python -c 'import os, sysconfig, sys; h = sysconfig.get_paths()["include"] + "/Python.h"; sys.exit(None if os.path.exists(h) else h + " is missing")' || { echo "next: $(APT)" >&2; exit 1; }
	$(PIP) --editable '.[report]'
	touch $@

$(VENV)/installed-dev: $(VENV)/installed
	$(PIP) --upgrade 'pip>=25.1'
	$(PIP) --group dev
	touch $@

$(BIN)/cmake: $(VENV)/made
	$(PIP) cmake
