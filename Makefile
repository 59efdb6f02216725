# The two commands of the README are `make demo` and `make test`. Both need only Python, make and a package index. They
# use .venv, which is created on first use and again whenever pyproject.toml or constraints.txt changes.
PYTHON ?= python3
BIN := .venv/bin
# Tests start processes of their own, which would all compile the sources again if no bytecode were kept.
PYTEST := PYTHONDONTWRITEBYTECODE= OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n 2 --dist loadfile --no-loadscope-reorder

.PHONY: demo test test-all lint tests tests-all docs format clean

demo: .venv/installed
	$(BIN)/unpose demo -o demo --force

# Lint, types and all tests but those marked slow; mypy uses one core, so it runs beside the tests.
test: .venv/installed
	$(MAKE) --jobs=2 lint tests

# Lint, types and all tests.
test-all: .venv/installed
	$(MAKE) --jobs=2 lint tests-all

tests: .venv/installed
	$(PYTEST) -m "not slow"

tests-all: .venv/installed
	$(PYTEST)

lint: .venv/installed
	$(BIN)/ruff check src tests benchmarks examples docs/*.py hatch_build.py
	$(BIN)/ruff format --check src tests benchmarks examples docs/*.py hatch_build.py
	$(BIN)/mypy

# The site, from scratch: every example is run, warnings are errors, links are checked. Needs no network once the
# packages are there; `unpose docs` opens it.
docs: .venv/docs
	rm -rf docs/_build docs/gallery docs/reference/rooms docs/reference/backreferences
	OMP_NUM_THREADS=1 $(BIN)/sphinx-build -q -W --keep-going -j 2 -d docs/_build/doctrees docs docs/_build/html
	$(BIN)/python docs/check_links.py docs/_build/html

.venv/docs: .venv/installed
	$(BIN)/python -m pip install --quiet --constraint constraints.txt --editable ".[docs]"
	touch $@

format: .venv/installed
	$(BIN)/ruff check --fix src tests benchmarks examples docs/*.py hatch_build.py
	$(BIN)/ruff format src tests benchmarks examples docs/*.py hatch_build.py

.venv/installed: pyproject.toml constraints.txt
	$(PYTHON) -m venv .venv
	$(BIN)/python -m pip install --quiet --upgrade pip
	$(BIN)/python -m pip install --quiet --constraint constraints.txt --editable ".[dev]"
	touch $@

clean:
	rm -rf .venv demo dist build docs/_build docs/gallery docs/reference/rooms .pytest_cache .mypy_cache .ruff_cache
