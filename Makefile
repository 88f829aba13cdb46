# Two commands do everything on a fresh machine: `make demo` and `make test`.
PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin

.PHONY: demo test check bench fuzz docs setup running clean

# What running needs, and what development needs besides.
setup: $(VENV)/.developing
running: $(VENV)/.running

INSTALL := $(BIN)/pip install --quiet --disable-pip-version-check --constraint constraints.txt

$(VENV)/.running: pyproject.toml constraints.txt
	$(PYTHON) -m venv $(VENV)
	$(INSTALL) --editable .
	touch $@

$(VENV)/.developing: $(VENV)/.running
	$(INSTALL) --editable ".[dev]"
	touch $@

demo: running
	$(BIN)/playproof validate examples/weka
	$(BIN)/playproof replay examples/weka --config examples/deployment.yaml --out out/demo --per-request
	@echo "The report lies in out/demo/report.json, one line per request in out/demo/requests.jsonl."

test: setup
	$(BIN)/pytest -n auto

check: setup
	$(BIN)/mypy
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/lint-imports
	$(BIN)/pytest -q tests/unit/test_only_advance_writes_states.py

bench: setup
	$(BIN)/python bench/run.py

fuzz: setup
	HYPOTHESIS_PROFILE=deep FUZZ_SECONDS=60 $(BIN)/pytest -n auto tests/properties

docs: setup
	$(BIN)/python -m playproof.docs

clean:
	rm -rf $(VENV) out build dist
