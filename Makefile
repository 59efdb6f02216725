# The two commands of the README are `make demo` and `make test`. Both need only Python, make and a package index. They
# use .venv, which is created on first use and again whenever pyproject.toml or constraints.txt changes.
PYTHON ?= python3
BIN := .venv/bin
# Tests start processes of their own, which would all compile the sources again if no bytecode were kept.
QUIET := PYTHONDONTWRITEBYTECODE= OMP_NUM_THREADS=1
PYTEST := $(QUIET) $(BIN)/python -m pytest -n 2 --dist loadfile --no-loadscope-reorder
FAST := not slow and not docs and not gpu

.PHONY: demo test test-docs test-extras test-slow test-gpu test-all tests durations lint docs format clean

demo: .venv/installed
	$(BIN)/unpose demo -o demo --force

# Lint, types and the fast tests; mypy uses one core, so it runs beside the tests.
test: .venv/installed
	$(MAKE) --jobs=2 lint tests

tests: .venv/installed
	$(PYTEST) -m "$(FAST)"

# What the documentation shows runs as it stands there: the README, the tutorials, the examples of the reference.
test-docs: .venv/installed
	$(PYTEST) -m "docs and not slow"

# What needs a package that is optional, in an environment that has them all: none of these tests may skip.
test-extras: .venv-extras/installed
	$(subst $(BIN),.venv-extras/bin,$(PYTEST)) -m "extra and not slow and not gpu" --with-extras

# Everything that takes long. Here, property tests look for new examples.
test-slow: .venv-extras/installed
	$(subst $(BIN),.venv-extras/bin,$(PYTEST)) -m "slow and not gpu" --hypothesis-profile new

# On a machine with a GPU, by the Python that is there and without installing anything: PyTorch, Triton, pytest and
# what unpose imports must be there.
test-gpu:
	$(QUIET) PYTHONPATH=src $(PYTHON) -m pytest -m gpu

test-all: test test-docs test-extras test-slow

# Store how long each file takes, by which the lanes are spread over the processes.
durations: .venv/installed
	$(PYTEST) -m "not slow and not gpu" --store-durations

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

.venv-extras/installed: pyproject.toml constraints.txt
	$(PYTHON) -m venv .venv-extras
	.venv-extras/bin/python -m pip install --quiet --upgrade pip
	.venv-extras/bin/python -m pip install --quiet --constraint constraints.txt --editable ".[dev,all,docs]"
	touch $@

clean:
	rm -rf .venv .venv-extras demo dist build docs/_build docs/gallery docs/reference/rooms .pytest_cache .mypy_cache .ruff_cache
