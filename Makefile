# metalane: build, tests, demo. Everything lives in .venv and build/; `make test` from a fresh clone needs a C++20
# compiler, Python with its headers and venv, and make.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
BENCH := .venv-bench
BUILD := build/dev
# The Metal backend on the test double of Metal, plain and with sanitizers.
DOUBLE := .venv-double
SANITIZED := .venv-sanitized
CLANG ?= $(firstword $(foreach version,19 18 17 16,$(shell command -v clang++-$(version))))
JOBS ?= $(shell nproc 2>/dev/null || sysctl -n hw.ncpu)
export CMAKE_BUILD_PARALLEL_LEVEL := $(JOBS)

CXX_FILES = $(shell git ls-files 'csrc/*.h' 'csrc/*.cpp' 'csrc/*.mm' 'shaders/*.h' 'tests/*.h' 'tests/*.cpp' 'tests/*.mm' 'benchmarks/*.cpp' 'csrc/msl/stdlib/*')
SOURCES = $(shell git ls-files csrc shaders cmake python tests/cpp CMakeLists.txt pyproject.toml)

.PHONY: demo test test-metal-double test-metal-double-older test-sanitized soak bench accuracy lint format clean install
.DELETE_ON_ERROR:

demo: install
	$(BIN)/python examples/dflash2_demo.py

test: install lint
	$(BIN)/ctest --test-dir $(BUILD) -j $(JOBS) --output-on-failure --no-tests=error
	$(BIN)/python -m pytest -n auto --dist loadfile

# On Linux: everything that a Mac would run on its GPU, on the test double. Needs Clang, GNUstep and the blocks runtime
# (Debian: clang-16 libgnustep-base-dev libblocksruntime-dev).
test-metal-double: $(DOUBLE)/.installed
	METALANE_TEST_DEVICES=metal $(DOUBLE)/bin/python -m pytest -n auto --dist loadfile tests/metal tests/ops tests/host

# The same on a system without residency sets, math modes and binary archives, and with small limits. Left out is what none
# of them touches: the shaders' text, the standard library, files and the package.
test-metal-double-older: $(DOUBLE)/.installed
	METAL_DOUBLE_SYSTEM=older METALANE_TEST_DEVICES=metal \
	  $(DOUBLE)/bin/python -m pytest -n auto --dist loadfile tests/metal tests/ops tests/host \
	  --ignore=tests/metal/test_strict.py --ignore-glob='tests/ops/test_stdlib_*' --ignore-glob='tests/host/test_gguf_*' \
	  $(patsubst %,--ignore=tests/host/test_%.py,dequantize documents package params stdlib)

# The C++ tests and the suite with AddressSanitizer and UndefinedBehaviorSanitizer. Left out is what runs little of the
# library: packaging, headers, declarations, functions of metal_stdlib and the many shapes of GGML products, since kernels
# are compiled without sanitizers.
test-sanitized: $(SANITIZED)/.installed
	$(SANITIZED)/bin/ctest --test-dir build/sanitized -j $(JOBS) --output-on-failure --no-tests=error
	METALANE_TEST_DEVICES=metal $(SANITIZED)/bin/python-sanitized -m pytest -n auto --dist loadfile \
	  tests/metal tests/ops tests/host --ignore-glob='*/test_stdlib*' --ignore-glob='*/test_ggml_*' \
	  --ignore=tests/metal/test_metal_api.py --ignore=tests/host/test_package.py

soak: install
	METALANE_SOAK=1 $(BIN)/python -m pytest -n auto --dist loadfile

# Beside the peers; e.g. `make bench SUBJECTS="mat_vec experts" ONLY=Q4_K QUICK=1`. LLAMA=1 builds llama.cpp (minutes)
# and measures its ggml, too.
bench: $(BENCH)/.installed $(if $(LLAMA),$(BENCH)/.llama)
	$(BENCH)/bin/python benchmarks/run.py $(if $(QUICK),--quick) $(if $(ONLY),--only '$(ONLY)') $(SUBJECTS)

# docs/ggml_accuracy.md.
accuracy: $(BENCH)/.installed
	$(BENCH)/bin/python benchmarks/ggml_accuracy.py

lint: $(VENV)/.tools install
	$(BIN)/clang-format --dry-run -Werror $(CXX_FILES)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy -p metalane -p pytest_metalane
	$(BIN)/codespell

format: $(VENV)/.tools
	$(BIN)/clang-format -i $(CXX_FILES)
	$(BIN)/ruff check --fix-only .
	$(BIN)/ruff format .

install: $(VENV)/.installed

# The package as users get it (not editable), from a build folder that is kept; C++ tests come with it.
$(VENV)/.installed: $(VENV)/.tools $(SOURCES)
	$(BIN)/pip install --quiet --no-build-isolation --no-deps --force-reinstall . \
	  -C build-dir=$(BUILD) -C cmake.define.METALANE_TESTS=ON
	touch $@

ON_THE_DOUBLE = --quiet --no-build-isolation --no-deps --force-reinstall . -C cmake.define.METALANE_METAL_DOUBLE=ON \
  -C cmake.define.CMAKE_CXX_COMPILER=$(CLANG) -C cmake.define.CMAKE_OBJCXX_COMPILER=$(CLANG)

$(DOUBLE)/.installed: $(DOUBLE)/.tools $(SOURCES) $(shell git ls-files tests/metal/double)
	$(DOUBLE)/bin/pip install $(ON_THE_DOUBLE) -C build-dir=build/double
	touch $@

$(SANITIZED)/.installed: $(SANITIZED)/.tools $(SOURCES) $(shell git ls-files tests/metal/double)
	$(SANITIZED)/bin/pip install $(ON_THE_DOUBLE) -C build-dir=build/sanitized -C cmake.build-type=Debug \
	  -C cmake.define.METALANE_TESTS=ON -C cmake.define.METALANE_FUZZ=ON \
	  -C cmake.define.METALANE_SANITIZE=address,undefined
	ln -sf $(CURDIR)/build/sanitized/tests/cpp/sanitized_python $(SANITIZED)/bin/python-sanitized
	touch $@

$(DOUBLE)/.tools $(SANITIZED)/.tools: pyproject.toml
	@[ -n "$(CLANG)" ] || { echo "there is no Clang: install clang-16, or set CLANG" >&2; exit 1; }
	$(PYTHON) -m venv $(@D)
	$(@D)/bin/python -m pip install --quiet --upgrade 'pip>=25.1'
	$(@D)/bin/pip install --quiet --group build --group lint --group test numpy ml_dtypes
	touch $@

# An environment of its own: peers to measure against are large, and nothing else needs them.
$(BENCH)/.installed: $(BENCH)/.peers $(SOURCES)
	$(BENCH)/bin/pip install --quiet --no-build-isolation --no-deps --force-reinstall . -C build-dir=build/bench
	touch $@

# What cannot be had for a machine is left out of the comparisons.
$(BENCH)/.peers: $(VENV)/.tools
	$(PYTHON) -m venv $(BENCH)
	$(BENCH)/bin/python -m pip install --quiet --upgrade 'pip>=25.1'
	$(BENCH)/bin/pip install --quiet --group build --group bench
	for peer in torch mlx ggml; do \
	  $(BENCH)/bin/pip install --quiet --group bench-$$peer || echo "$$peer is not to be had here" >&2; \
	done
	touch $@

$(BENCH)/.llama: $(BENCH)/.peers
	CMAKE_ARGS=-DLLAVA_BUILD=OFF $(BENCH)/bin/pip install --quiet --group bench-llama
	touch $@

$(VENV)/.tools: pyproject.toml
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 10))' || \
	  { echo "metalane needs Python 3.10 or later; set PYTHON=..." >&2; exit 1; }
	@$(PYTHON) -c 'import ensurepip, venv' || \
	  { echo "$(PYTHON) has no venv: install it (Debian: python3-venv)" >&2; exit 1; }
	@$(PYTHON) -c 'import os, sys, sysconfig; sys.exit(not os.path.exists(os.path.join(sysconfig.get_path("include"), "Python.h")))' || \
	  { echo "$(PYTHON) has no headers: install them (Debian: python3-dev)" >&2; exit 1; }
	@command -v $${CXX:-c++} >/dev/null || \
	  { echo "there is no C++ compiler: install GCC 12 or Clang 15, or set CXX" >&2; exit 1; }
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --upgrade 'pip>=25.1'
	$(BIN)/pip install --quiet --group build --group lint --group test numpy ml_dtypes
	touch $@

clean:
	rm -rf $(VENV) $(BENCH) $(DOUBLE) $(SANITIZED) build dist .pytest_cache .mypy_cache .ruff_cache
