# `make demo` and `make test` do all the set-up there is. PYTHON chooses the interpreter (3.11 or newer).
PYTHON ?= python3
BIN := .venv/bin

.PHONY: demo test check-cub format benchmark clean

demo: .venv/core  ## train, test and report on the embedded data
	$(BIN)/dgz demo

test: .venv/dev  ## every check: format, lint, types, tests, doctests, README, the wheel in a fresh environment
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/python -m pytest -n auto -m 'not alone'
	$(BIN)/python -m pytest -m alone tests

check-cub: .venv/dev  ## five seeds on real CUB (DGZ_DATA), about ten minutes on two cores
	DGZ_CUB_SEEDS='0 1 2 3 4' DGZ_REQUIRE=data $(BIN)/python -m pytest -m alone -rP tests/test_cub.py

format: .venv/dev
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

benchmark: .venv/dev
	$(BIN)/python benchmarks/loading.py

.venv/core: pyproject.toml constraints.txt
	$(PYTHON) -c 'import sys; sys.version_info >= (3, 11) or sys.exit("dgz needs Python 3.11 or newer: make PYTHON=...")'
	$(PYTHON) -m venv .venv
	$(BIN)/pip install --quiet --constraint constraints.txt --editable .
	touch $@

.venv/dev: .venv/core
	$(BIN)/pip install --quiet --constraint constraints.txt --editable '.[dev]'
	touch $@

clean:
	rm -rf .venv build dist .pytest_cache .mypy_cache .ruff_cache .hypothesis
