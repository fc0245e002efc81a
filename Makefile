# make run    a server on the bundled model, and one completion from it; states are kept in STATES
# make test   the tests that need no GPU
# make soak   the tests of docs/reliability.md as often as it promises: hours of one core
# make check  format, lint, types and layers
# make console       build the console again, from clients/console; needs Node
# make console-test  its tests, in Chromium too (CHROMIUM names it); needs Node
# make evaluation  an environment of its own for the slow tests with lm-eval and other clients
#
# All but the last make .venv when it is missing, and bring it up to date when pyproject.toml or
# constraints.txt has changed.

SHELL := /bin/bash
PYTHON ?= python3
VENV ?= .venv
EVALUATION ?= .venv-evaluation
PORT ?= 8000
BINARY_PORT ?= 8001
MODEL ?=
# Where the server of `make run` keeps states; empty for memory alone.
STATES ?= .states
WORKERS ?= 2
CHROMIUM ?= /usr/bin/chromium
PYTEST_ARGS ?=
SOAK_ARGS ?=

# torch is installed first and alone, so that no other requirement chooses it.
# TORCH: what to install. TORCH_INDEX: one more index to look in; on Linux the ordinary one serves
# a build with several gigabytes of CUDA libraries, PyTorch's index of CPU builds does not.
HAS_GPU := $(shell nvidia-smi -L >/dev/null 2>&1 && echo yes)
TORCH ?= $(if $(HAS_GPU),torch>=2.11,torch==2.13.0)
TORCH_INDEX ?=

BIN := $(VENV)/bin
STAMPS := $(VENV)/.stamps
LIMITS := $(STAMPS)/constraints.txt
PIP := $(BIN)/python -m pip --disable-pip-version-check install --quiet --constraint $(LIMITS)
INPUTS := pyproject.toml constraints.txt

.PHONY: run test soak check console console-test evaluation wheel clean
.DEFAULT_GOAL := run
.DELETE_ON_ERROR:

run: $(STAMPS)/engine
	@exec $(BIN)/python -m tools.demo --port $(PORT) --binary-port $(BINARY_PORT) \
	  --state-dir '$(STATES)' $(MODEL)

test: $(STAMPS)/test
	OMP_NUM_THREADS=1 TOKENIZERS_PARALLELISM=false \
	  $(BIN)/python -m pytest --numprocesses $(WORKERS) --dist loadscope \
	    --no-loadscope-reorder $(PYTEST_ARGS)

soak: $(STAMPS)/test
	$(BIN)/python -m tools.soak $(SOAK_ARGS)

check: $(STAMPS)/lint
	$(BIN)/ruff format --check
	$(BIN)/ruff check
	$(BIN)/mypy
	PYRIGHT_PYTHON_IGNORE_WARNINGS=1 $(BIN)/pyright --pythonpath $(BIN)/python
	$(BIN)/lint-imports

wheel: $(STAMPS)/test
	$(BIN)/python -m pip wheel --quiet --no-deps --wheel-dir dist .

console:
	cd clients/console && npm ci && npm run build

console-test: $(STAMPS)/engine
	cd clients/console && npm ci && npm test && \
	  WKVM_CHROMIUM='$(CHROMIUM)' WKVM_PYTHON='$(abspath $(BIN)/python)' npm run e2e

# What these clients ask for does not go with the versions in constraints.txt.
evaluation: pyproject.toml
	@$(PYTHON) -m venv $(EVALUATION)
	@$(EVALUATION)/bin/python -m pip --disable-pip-version-check install --quiet --upgrade 'pip>=25.1'
	@$(EVALUATION)/bin/python -m pip --disable-pip-version-check install --quiet --group evaluation

clean:
	rm -rf $(VENV) $(EVALUATION) dist build

$(STAMPS)/venv:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { \
	  echo "wkvm needs Python 3.11 or newer, and '$(PYTHON)' is not: $$($(PYTHON) --version 2>&1)." \
	    "Name another one: make PYTHON=python3.12" >&2; exit 1; }
	@echo "making $(VENV)"
	@$(PYTHON) -m venv $(VENV) || { \
	  echo "'$(PYTHON) -m venv' failed; on Debian and Ubuntu it needs the package python3-venv" >&2; \
	  exit 1; }
	@$(BIN)/python -m pip --disable-pip-version-check install --quiet --upgrade 'pip>=25.1'
	@mkdir -p $(STAMPS) && touch $@

$(STAMPS)/engine: $(INPUTS) | $(STAMPS)/venv
	@sed -e '$(if $(filter torch==2.13.0,$(TORCH)),,/^torch==/d; /^triton==/d)' \
	  constraints.txt > $(LIMITS)
	@echo "installing $(TORCH) (most of the time and space goes here)"
	@$(PIP) $(if $(TORCH_INDEX),--extra-index-url '$(TORCH_INDEX)') '$(TORCH)'
	@echo "installing wkvm and the libraries of its engine"
	@$(PIP) --editable '.[engine,top]'
	@touch $@

$(STAMPS)/test: $(STAMPS)/engine
	@echo "installing the tests' tools"
	@$(PIP) --group test --group oracle --group clients
	@touch $@

$(STAMPS)/lint: $(STAMPS)/test
	@echo "installing the linters"
	@$(PIP) --group lint
	@touch $@
