# Two commands do everything on a fresh machine: `make demo` and `make test`.
PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin

.PHONY: demo test oldest check bench fuzz exhaustive watch coverage mutants docs setup running clean

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
	$(BIN)/pytest -n auto --dist worksteal

# With the oldest releases of Numba and NumPy that are supported: what leans on Numba's inner names, and replays.
oldest:
	$(PYTHON) -m venv $(VENV)-oldest
	grep -vE '^(llvmlite|numba|numpy)==' constraints.txt | cat - constraints-oldest.txt > $(VENV)-oldest/constraints.txt
	$(VENV)-oldest/bin/pip install --quiet --disable-pip-version-check \
	  --constraint $(VENV)-oldest/constraints.txt --editable . pytest pytest-xdist hypothesis
	$(VENV)-oldest/bin/pytest -q -n auto tests/unit/test_machine_code.py tests/unit/test_goldens_of_replay.py

check: setup
	$(BIN)/mypy
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/lint-imports
	$(BIN)/pytest -q tests/unit/test_only_advance_writes_states.py

bench: setup
	$(BIN)/python bench/run.py

# With fresh seeds until the time is over; each round prints its seed, and how to make it again.
MINUTES ?= 10
fuzz: setup
	$(BIN)/python tests/support/hunt.py --minutes $(MINUTES)

# Every small corpus on every small deployment, some minutes.
exhaustive: setup
	$(BIN)/python tests/support/small_scope.py

# Interpreted, with every event looked at: its guard holds, and it is a move of the models that are proven.
watch: setup
	NUMBA_DISABLE_JIT=1 PLAYPROOF_MONITOR=1 HYPOTHESIS_PROFILE=watched $(BIN)/pytest -n auto --dist worksteal -q tests/properties \
		-m "not unwatched" --ignore tests/properties/test_interpreted.py --ignore tests/properties/test_monitor.py \
		--ignore tests/properties/test_fuzz_files.py --ignore tests/properties/test_fuzz_sessions.py

# How much of the kernel, interpreted, the tests of its rules reach: lines and branches.
coverage: setup
	NUMBA_DISABLE_JIT=1 HYPOTHESIS_PROFILE=watched $(BIN)/coverage run --branch --source=kernel -m pytest -q -p no:xdist \
		-m "not unwatched" tests/unit/test_goldens_of_replay.py tests/unit/test_goldens_of_controls.py \
		tests/unit/test_scheduling.py tests/unit/test_sglang_rules.py tests/properties/test_disaggregated.py \
		tests/properties/test_host_memory.py tests/properties/test_live.py tests/properties/test_pressure.py \
		tests/properties/test_router.py tests/properties/test_run_controls.py
	$(BIN)/coverage report --skip-covered

# One fault at a time in a copy of the project: the tests named for it must fail. ONLY="kernel-12 spec" tries some.
mutants: setup
	$(if $(ONLY),,$(BIN)/pytest -q tests/unit/test_table_mutants.py)
	$(BIN)/python tests/mutants/mutate.py --jobs 2 $(if $(ONLY),--only $(ONLY))

docs: setup
	$(BIN)/python -m playproof.docs

clean:
	rm -rf $(VENV) $(VENV)-oldest out build dist
