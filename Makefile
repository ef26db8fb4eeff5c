# Every target that a person may want: `make help`.
SHELL := /bin/bash
.DELETE_ON_ERROR:
VENV := .venv
BIN := $(VENV)/bin
PY := $(BIN)/python
PYTHON ?= python3
UV_VERSION := 0.13.8
STAMP := $(VENV)/.installed
NATIVE := $(wildcard native/src/* native/include/aegaeon/* native/CMakeLists.txt)
PROTOS := $(wildcard proto/aegaeon_proto/v1/*.proto)
CODE := operator sidecar native/aegaeon_native tests benchmarks examples
CACHE := $(or $(XDG_CACHE_HOME),$(HOME)/.cache)/aegaeon
MODELS ?= $(CACHE)/models
export OMP_NUM_THREADS ?= 1

.PHONY: help
help: ## list the targets
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | awk -F ':.*## ' '{printf "  %-16s %s\n", $$1, $$2}'

# ---- set-up --------------------------------------------------------------------------------------------------------

$(BIN)/uv:
	@command -v c++ >/dev/null || { echo "no C++ compiler found; install one (Debian: apt-get install g++)" >&2; exit 1; }
	@$(PYTHON) -c 'import sys; sys.exit(not (3, 11) <= sys.version_info[:2] <= (3, 13))' || \
	  { echo "$(PYTHON) is not Python 3.11 to 3.13; say PYTHON=python3.12, for example" >&2; exit 1; }
	$(PYTHON) -m venv $(VENV)
	$(PY) -m pip install --quiet --disable-pip-version-check uv==$(UV_VERSION)

$(STAMP): requirements.lock pyproject.toml $(NATIVE) | $(BIN)/uv
	$(BIN)/uv pip install --quiet --python $(PY) --require-hashes -r requirements.lock
	$(BIN)/uv pip install --quiet --python $(PY) --no-deps --no-build-isolation -e .
	@touch $@

.PHONY: setup models
setup: $(STAMP) ## make the virtual environment and build the native core
models: $(STAMP) ## train the four tiny models of the quickstart (once; cached)
	@$(BIN)/aegaeon models make $(MODELS)

# ---- run and test --------------------------------------------------------------------------------------------------

.PHONY: demo test test-slow test-native test-gpu exactness soak
demo: models ## four models share one decode engine: the whole stack, driven by an OpenAI client
	@$(BIN)/aegaeon demo --models $(MODELS)
test: $(STAMP) redis-server ## the tests
	$(BIN)/pytest -q -m "not slow and not gpu"
test-slow: $(STAMP) ## the tests that take minutes
	$(BIN)/pytest -q -m "slow and not gpu"
test-gpu: $(STAMP) ## the tests that need a CUDA device
	$(BIN)/pytest -q -m gpu
test-native: $(STAMP) native-dependencies ## the native core's own tests under the sanitizers
	@for s in address,undefined thread; do \
	  $(BIN)/cmake -S native -B build/native-$${s%%,*} -G Ninja -DAEGAEON_TESTS=ON -DAEGAEON_SANITIZE=$$s \
	    -DCMAKE_MAKE_PROGRAM=$(abspath $(BIN))/ninja >/dev/null && \
	  $(BIN)/cmake --build build/native-$${s%%,*} && \
	  $(BIN)/ctest --test-dir build/native-$${s%%,*} --output-on-failure || exit 1; done
SWITCHES ?= 10000
exactness: models ## SWITCHES forced switches under random traffic, every output held against transformers
	$(PY) -m benchmarks.exactness --switches $(SWITCHES) --models $(MODELS)
MINUTES ?= 30
soak: models ## MINUTES' worth of random traffic with cancels; everything must be back to empty
	$(PY) -m benchmarks.soak --minutes $(MINUTES) --models $(MODELS)

.PHONY: redis-server
redis-server:
	@command -v redis-server >/dev/null || \
	  { [ "$$(id -u)" = 0 ] && apt-get update -qq && apt-get install -qq -y redis-server >/dev/null; } || \
	  echo "tests with Redis are skipped: as root, apt-get install redis-server" >&2

.PHONY: native-dependencies
native-dependencies:
	@test -f /usr/include/gtest/gtest.h && test -e "$$(c++ -print-file-name=libasan.so)" || \
	  { [ "$$(id -u)" = 0 ] && apt-get update -qq && apt-get install -qq -y libgtest-dev >/dev/null; } || \
	  { echo "the native tests need GoogleTest: as root, apt-get install libgtest-dev" >&2; exit 1; }

# ---- measure -------------------------------------------------------------------------------------------------------

.PHONY: bench
BENCHES := slabs copies core switch cache load engine gateway batch_invariance
bench: models ## every figure beside its limit; JSON in benchmarks/results
	@missed=; for b in $(BENCHES); do echo "== $$b"; $(PY) -m benchmarks.$$b || missed="$$missed $$b"; done; \
	  echo "== exactness"; $(PY) -m benchmarks.exactness --switches $(SWITCHES) --models $(MODELS) || missed="$$missed exactness"; \
	  [ -z "$$missed" ] || { echo "not all figures hold:$$missed" >&2; exit 1; }

.PHONY: figures
SEEDS ?= 1
figures: $(STAMP) ## the paper's figures again, SEEDS for each point; docs/evaluation.md and what it shows
	@$(BIN)/aegaeon figures --seeds $(SEEDS)

# ---- keep clean ----------------------------------------------------------------------------------------------------

.PHONY: check format generate lock
check: $(STAMP) native-dependencies ## lint, types, layers, generated files
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/clang-format --dry-run --Werror $(wildcard native/src/*.cpp native/src/*.hpp native/include/aegaeon/*.hpp native/cpp_tests/*.cpp)
	@$(BIN)/cmake -S native -B build/tidy -G Ninja -DAEGAEON_TESTS=ON -DCMAKE_EXPORT_COMPILE_COMMANDS=ON \
	  -DCMAKE_MAKE_PROGRAM=$(abspath $(BIN))/ninja >/dev/null
	$(BIN)/clang-tidy -p build/tidy --quiet $(filter-out native/src/bindings%,$(wildcard native/src/*.cpp))
	$(BIN)/mypy
	$(BIN)/lint-imports
	@$(MAKE) --no-print-directory generate
	@git diff --exit-code --stat -- proto crds docs || { echo "generated files differ: run make generate and commit" >&2; exit 1; }
format: $(STAMP) ## put the code into its form
	$(BIN)/ruff check --fix --exit-zero .
	$(BIN)/ruff format .
	$(BIN)/clang-format -i $(wildcard native/src/*.cpp native/src/*.hpp native/include/aegaeon/*.hpp native/cpp_tests/*.cpp)
generate: $(STAMP) ## everything that is made from something else
	@$(PY) -m grpc_tools.protoc -I proto --python_out=proto --grpc_python_out=proto --mypy_out=quiet:proto --mypy_grpc_out=quiet:proto \
	  --plugin=protoc-gen-mypy=$(BIN)/protoc-gen-mypy --plugin=protoc-gen-mypy_grpc=$(BIN)/protoc-gen-mypy_grpc $(PROTOS)
	@$(PY) docs/reference/make.py
	@$(PY) -m aegaeon_operator.spec.crd crds
lock: $(BIN)/uv ## requirements.lock from pyproject.toml
	$(BIN)/uv pip compile --quiet pyproject.toml --extra engine --extra demo --extra s3 --extra figures --extra dev -c constraints.in --universal \
	  --generate-hashes --no-header --no-emit-index-url --no-annotate -o requirements.lock
