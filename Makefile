# Every target that a person may want: `make help`.
SHELL := /bin/bash
.DELETE_ON_ERROR:
VENV := .venv
PY := $(VENV)/bin/python
UV_VERSION := 0.13.8
PYTHON ?= python3
PROTOS := $(wildcard proto/aegaeon_proto/v1/*.proto)
STAMP := $(VENV)/.installed

.PHONY: help
help: ## list the targets
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | awk -F ':.*## ' '{printf "  %-18s %s\n", $$1, $$2}'

$(VENV)/bin/uv:
	@command -v c++ >/dev/null || { echo "make setup: no C++ compiler found; install one (Debian: apt-get install g++)" >&2; exit 1; }
	@$(PYTHON) -c 'import sys; sys.exit(not (3, 11) <= sys.version_info[:2] <= (3, 13))' || \
	  { echo "make setup: $(PYTHON) is not Python 3.11 to 3.13; set PYTHON=python3.12, for example" >&2; exit 1; }
	$(PYTHON) -m venv $(VENV)
	$(VENV)/bin/python -m pip install --quiet --disable-pip-version-check uv==$(UV_VERSION)

$(STAMP): requirements.lock pyproject.toml native/CMakeLists.txt $(wildcard native/src/*) $(wildcard native/include/aegaeon/*) | $(VENV)/bin/uv
	$(VENV)/bin/uv pip install --quiet --python $(PY) --require-hashes -r requirements.lock
	$(VENV)/bin/uv pip install --quiet --python $(PY) --no-deps --no-build-isolation -e .
	@touch $@

.PHONY: setup
setup: $(STAMP) ## a virtual environment with everything, the native core built
