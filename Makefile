# Everything a newcomer needs: `make demo`, `make dev`, `make test`, `make check`.
PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
CONSTRAINTS ?= .ci/constraints.txt
PORT ?= 3000
TASKS ?= 2
KILLS ?= 1

.PHONY: help demo dev test oldest check explore benchmarks format clean

help:  ## list the targets
	@grep -E '^[a-z]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 12

$(VENV)/.installed: pyproject.toml $(CONSTRAINTS)
	@echo "Installing into $(VENV), once; this takes a few minutes …"
	@$(PYTHON) -m venv $(VENV)
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check --constraint $(CONSTRAINTS) --editable ".[dev]"
	@touch $@

demo: $(VENV)/.installed  ## run this week's tick, kill a worker mid-call, retry, backfill, count the charges; a minute or two
	@$(BIN)/python -m example_repo.demo --tasks $(TASKS) --kills $(KILLS)

dev: $(VENV)/.installed  ## open the Dagster UI on the example (choose with PORT=number)
	@$(BIN)/python -m example_repo.dev --port $(PORT)

# The tests start many processes: each module is compiled once, not by each of them, whatever the environment says.
test explore: export PYTHONDONTWRITEBYTECODE =

test: $(VENV)/.installed  ## run the test suite; three workers, since its tests wait more than they compute
	@$(BIN)/python -m pytest -n 3

# What old releases of others warn about is not ours to mend, so a warning is no failure here.
oldest:  ## run the test suite on the oldest versions that pyproject.toml allows
	@PYTEST_ADDOPTS="-W default" $(MAKE) test VENV=.venv-oldest CONSTRAINTS=.ci/constraints-oldest.txt

check: $(VENV)/.installed  ## lint, types, layers
	@$(BIN)/ruff check .
	@$(BIN)/ruff format --check .
	@$(BIN)/basedpyright
	@$(BIN)/lint-imports

# The browser's exploration needs Debian's packages chromium and chromium-driver; it fails, saying so, without them.
explore: $(VENV)/.installed  ## run the long explorations (choose with ONLY=expression)
	@$(BIN)/python -m pytest -n 2 -m explore $(if $(ONLY),-k "$(ONLY)")

benchmarks: $(VENV)/.installed  ## measure what each step costs, as ratios to one INSERT
	@$(BIN)/python -m benchmarks

format: $(VENV)/.installed  ## rewrite the layout of the code
	@$(BIN)/ruff check --fix .
	@$(BIN)/ruff format .

clean:  ## end what the example left running; remove all that it wrote, and the virtual environment
	@test ! -x $(BIN)/python || $(BIN)/python -m example_repo.clean
	rm -rf $(VENV) .venv-oldest .dagster_home .dagster_idempotent
