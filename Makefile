# On a fresh machine with git, make and Python 3.11 or newer:
#   make run    sets up .venv, installs fedkeel and trains the quick start
#   make test   sets up .venv and passes the tests
PYTHON ?= python3
BIN := .venv/bin

.PHONY: run test test-fast test-flower test-flower-fast check bench docs clean

run: .venv/installed
	$(BIN)/fedkeel run

# processes that tests start find modules compiled
test test-fast test-flower test-flower-fast: export PYTHONDONTWRITEBYTECODE :=

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

.venv/installed: pyproject.toml
	test -x $(BIN)/python || $(PYTHON) -m venv .venv
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -e .
	touch $@

.venv-docs/installed: pyproject.toml
	test -x .venv-docs/bin/python || $(PYTHON) -m venv .venv-docs
	.venv-docs/bin/python -m pip install --quiet --disable-pip-version-check -e ".[docs]"
	touch $@

.venv-flower/installed: pyproject.toml
	test -x .venv-flower/bin/python || $(PYTHON) -m venv .venv-flower
	.venv-flower/bin/python -m pip install --quiet --disable-pip-version-check -e ".[flower]" pytest pytest-xdist hypothesis
	touch $@

# pip learned --group in 25.1
.venv/developing: pyproject.toml .venv/installed
	$(BIN)/python -m pip install --quiet --disable-pip-version-check "pip>=25.1"
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -e . --group dev
	touch $@
