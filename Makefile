# The two commands of the README are `make demo` and `make test`. Both need only Python, make and a package index. They
# use .venv, which is created on first use and again whenever pyproject.toml or constraints.txt changes.
PYTHON ?= python3
BIN := .venv/bin

.PHONY: demo test test-all lint tests tests-all format clean

demo: .venv/installed
	$(BIN)/unpose demo -o demo --force

# Lint, types and all tests but those marked slow; mypy uses one core, so it runs beside the tests.
test: .venv/installed
	$(MAKE) --jobs=2 lint tests

# Lint, types and all tests.
test-all: .venv/installed
	$(MAKE) --jobs=2 lint tests-all

tests: .venv/installed
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n 2 --dist loadfile --no-loadscope-reorder -m "not slow"

tests-all: .venv/installed
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n 2 --dist loadfile --no-loadscope-reorder

lint: .venv/installed
	$(BIN)/ruff check src tests benchmarks
	$(BIN)/ruff format --check src tests benchmarks
	$(BIN)/mypy

format: .venv/installed
	$(BIN)/ruff check --fix src tests benchmarks
	$(BIN)/ruff format src tests benchmarks

.venv/installed: pyproject.toml constraints.txt
	$(PYTHON) -m venv .venv
	$(BIN)/python -m pip install --quiet --upgrade pip
	$(BIN)/python -m pip install --quiet --constraint constraints.txt --editable ".[dev]"
	touch $@

clean:
	rm -rf .venv demo dist build .pytest_cache .mypy_cache .ruff_cache
