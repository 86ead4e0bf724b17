# One environment for everything: `make demo`, `make test`. PYTHON picks the interpreter (3.11 or newer).
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed
PIP := $(BIN)/python -m pip --disable-pip-version-check --no-input install
LOG := $(VENV)/install.log
SOURCES := dualpath_jax storage scheduler configs tests benchmarks tools

.PHONY: help demo test test-long bench lint types unit protos lock clean

help:
	@echo "make demo       replay agent sessions on a local cluster in three modes; report in build/demo/"
	@echo "make test       lint, types and the test suite"
	@echo "make test-long  the tests that take minutes each"
	@echo "make bench      the benchmarks"
	@echo "make lint, make types, make unit    the parts of make test"
	@echo "make protos     regenerate the protocol-buffer modules"
	@echo "make lock       resolve the dependencies anew (needs uv)"
	@echo "make clean      remove $(VENV), build/ and the caches"
	@echo
	@echo "Everything installs into $(VENV) first, once; PYTHON=/path/to/python3.11 picks the interpreter."

$(STAMP): requirements.lock requirements-nodeps.lock pyproject.toml
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { \
	  echo "$(PYTHON) is $$($(PYTHON) --version 2>&1); Python 3.11 or newer is needed: make PYTHON=/path/to/python3.11" >&2; exit 2; }
	@echo "Installing into $(VENV) with $$($(PYTHON) --version); this takes a minute or more"
	@$(PYTHON) -m venv --clear $(VENV)
	@{ $(PIP) --require-hashes --requirement requirements.lock && \
	  $(PIP) --require-hashes --no-deps --requirement requirements-nodeps.lock && \
	  $(PIP) --no-deps --no-build-isolation --editable . ; } > $(LOG) 2>&1 || { \
	  tail -n 20 $(LOG) >&2; echo "The installation failed; all of its output is in $(LOG)" >&2; exit 1; }
	@touch $@

demo: $(STAMP)
	$(BIN)/dualpath-replay --config=local_1p1d --trace=demo --compare --min_speedup=1.8 \
	  --report=build/demo --compilation_cache=build/compiled

test: lint types unit

lint: $(STAMP)
	$(BIN)/ruff check $(SOURCES)
	$(BIN)/ruff format --check $(SOURCES)

types: $(STAMP)
	$(BIN)/mypy

unit: $(STAMP)
	$(BIN)/python -m pytest -m "not long"

test-long: $(STAMP)
	$(BIN)/python -m pytest -m long --timeout=1800

bench: $(STAMP)
	set -e; for script in benchmarks/*.py; do echo "$$script"; $(BIN)/python $$script; done

# Regenerate the protocol-buffer modules beside their .proto files.
protos: $(STAMP)
	$(BIN)/python tools/protos.py

# Resolves for every supported Python at once.
lock:
	uv pip compile --quiet --universal --python-version 3.11 --generate-hashes --group dev pyproject.toml --output-file requirements.lock
	uv pip compile --quiet --no-deps --universal --python-version 3.11 --generate-hashes requirements-nodeps.in --output-file requirements-nodeps.lock

clean:
	rm -rf $(VENV) build .mypy_cache .ruff_cache .pytest_cache .hypothesis
