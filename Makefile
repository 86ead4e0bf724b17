# One environment for everything: `make demo`, `make test`. PYTHON picks the interpreter (3.11 or newer).
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed
SOURCES := dualpath_jax storage scheduler configs tests benchmarks tools

.PHONY: demo test test-long bench lint types unit protos lock clean

$(STAMP): requirements.lock pyproject.toml
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { \
	  echo "$(PYTHON) is $$($(PYTHON) --version 2>&1); Python 3.11 or newer is needed: make PYTHON=/path/to/python3.11" >&2; exit 2; }
	$(PYTHON) -m venv --clear $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --require-hashes --requirement requirements.lock
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps --no-build-isolation --editable .
	@touch $@

demo: $(STAMP)
	$(BIN)/dualpath-replay --config=local_1p1d --trace=demo --compare --report=build/demo

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
	for script in benchmarks/*.py; do $(BIN)/python $$script || exit 1; done

# Regenerate the protocol-buffer modules beside their .proto files.
protos: $(STAMP)
	$(BIN)/python tools/protos.py

# Needs uv; resolves for every supported Python at once.
lock:
	uv pip compile --quiet --universal --python-version 3.11 --generate-hashes --group dev pyproject.toml --output-file requirements.lock

clean:
	rm -rf $(VENV) build .mypy_cache .ruff_cache .pytest_cache .hypothesis
