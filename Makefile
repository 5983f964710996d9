# On a fresh machine with git, make and Python 3.11 or newer:
#   make run    sets up .venv, installs fedkeel and trains the quick start
#   make test   sets up .venv and passes the tests
# Both take the version of PyTorch in constraints/cpu.txt; `make run CONSTRAINTS=` takes the one that pip would choose.
# `make run TORCH_INDEX=…` takes PyTorch from another index, such as that of its CPU builds, which have no CUDA.
PYTHON ?= python3
BIN := .venv/bin
CONSTRAINTS ?= constraints/cpu.txt
TORCH_INDEX ?=
# modules are compiled when they are first imported: most of PyTorch never is
PIP := -m pip install --quiet --disable-pip-version-check --no-compile $(addprefix -c ,$(CONSTRAINTS))
# alone and without its dependencies, so that the other index is asked for nothing else
TORCH := $(PIP) --no-deps $(addprefix --index-url ,$(TORCH_INDEX)) torch

.PHONY: run test test-fast test-flower test-flower-fast check bench docs clean

run: .venv/installed
	$(BIN)/fedkeel run

# processes that are started find modules compiled
run test test-fast test-flower test-flower-fast: export PYTHONDONTWRITEBYTECODE :=

test: check
	$(BIN)/python -m pytest -n 2 --dist loadfile -m "not slow"
	$(BIN)/python -m pytest -n 2 --dist loadfile -m "slow or hypothesis"

test-fast: .venv/developing
	$(BIN)/python -m pytest -n 2 --dist loadfile -m "not slow"

RAY := tests/studies/test_ray_cluster.py tests/engines/test_ray_workers.py tests/engines/test_ray_machines.py

# Flower pins its dependencies, so it is tested in an environment of its own
test-flower: test-flower-fast
	.venv-flower/bin/python -m pytest -n 0 -m slow tests/engines/flower tests/federation $(RAY)

# in one process each: no federation is started
test-flower-fast: .venv-flower/installed
	.venv-flower/bin/python -m pytest -n 2 --dist loadfile -m "not slow" tests/engines/flower tests/federation tests/older

check: .venv/developing
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

# the site, with every warning an error, in build/site
docs: .venv-docs/installed
	NO_MKDOCS_2_WARNING=1 .venv-docs/bin/python -m mkdocs build --strict

bench: .venv/developing
	$(BIN)/python benchmarks/engines_cpu.py
	$(BIN)/python benchmarks/peers_cpu.py
	$(BIN)/python benchmarks/filter_cpu.py

clean:
	rm -rf .venv .venv-flower .venv-docs build dist .pytest_cache .mypy_cache .ruff_cache

.venv/installed: pyproject.toml $(CONSTRAINTS)
	test -x $(BIN)/python || $(PYTHON) -m venv .venv
	$(if $(CONSTRAINTS),$(BIN)/python $(TORCH))
	$(BIN)/python $(PIP) -e .
	touch $@

.venv-docs/installed: pyproject.toml $(CONSTRAINTS)
	test -x .venv-docs/bin/python || $(PYTHON) -m venv .venv-docs
	$(if $(CONSTRAINTS),.venv-docs/bin/python $(TORCH))
	.venv-docs/bin/python $(PIP) -e ".[docs]"
	touch $@

.venv-flower/installed: pyproject.toml $(CONSTRAINTS)
	test -x .venv-flower/bin/python || $(PYTHON) -m venv .venv-flower
	$(if $(CONSTRAINTS),.venv-flower/bin/python $(TORCH))
	.venv-flower/bin/python $(PIP) -e ".[flower]" pytest pytest-xdist hypothesis
	touch $@

# pip learned --group in 25.1
.venv/developing: pyproject.toml .venv/installed
	$(BIN)/python $(PIP) "pip>=25.1"
	$(BIN)/python $(PIP) -e . --group dev
	touch $@
