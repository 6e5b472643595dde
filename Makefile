# Every target makes the virtual environment it needs; nothing has to be activated.
#
#   make demo     a graph is killed, resumed, interrupted, answered and forked, on a real MongoDB
#   make test     the suite on a replica set, on a standalone server, and reading by plain finds
#   make check    lint, format, types and the import rule
#   make docs     the documentation, in site/
#   make cli      docs/reference/cli.md anew, from the command itself
#   make bench    the benchmark beside the peers
#   make format   what `make check` would complain of, as far as it can be mended by a tool
#   make clean    removes everything that the targets made
#
#   make test-source SOURCE=docker     the suite once, on servers from docker, path or wheel
#
# make test PYTHON=python3.13             another interpreter, after `make clean`
# make test PYTEST_ARGS="-k segments"     further arguments for pytest

PYTHON ?= python3
PYTEST_ARGS ?=
SOURCE ?= docker

VENV := .venv
BIN := $(VENV)/bin
BENCH_VENV := .venv-bench
EXTRAS := cli,motor,local,docker
PYTEST := $(BIN)/coverage run -m pytest
REPEATED := --ignore=tests/unit --ignore=tests/server/test_testing.py \
	--ignore=tests/server/test_demo.py --ignore=tests/server/test_bench.py --ignore=tests/cli

TWO_FACES := --face=sync --face=async

# What decides without doing any I/O can be tested without exception. It is 99 and not 100 because
# before Python 3.12 the tracer loses lines that a plan runs after an error was thrown into it.
PURE := mongosaver/errors.py,mongosaver/schema.py,mongosaver/ops.py,mongosaver/codec.py,mongosaver/segments.py,mongosaver/migrations.py,mongosaver/plans/*
FLOOR := 95
PURE_FLOOR := 99

.DEFAULT_GOAL := help
.PHONY: help demo test test-source check docs cli bench format clean
# pip must not work on one environment twice at the same time.
.NOTPARALLEL:

help:
	@sed -n 's/^#   //p' $(firstword $(MAKEFILE_LIST))

demo: $(VENV)/.demo
	$(BIN)/python examples/demo.py $(DEMO_ARGS)

# The first run is on all four faces. The second and third leave out what no option of theirs
# reaches, and take one driver of each kind: what differs there is the server and the plans.
test: $(VENV)/.dev
	$(BIN)/coverage erase
	$(PYTEST) --mongo-topology=replica $(PYTEST_ARGS)
	$(PYTEST) --mongo-topology=standalone $(TWO_FACES) $(REPEATED) $(PYTEST_ARGS)
	$(PYTEST) --mongo-topology=standalone --read-mode=finds $(TWO_FACES) $(REPEATED) $(PYTEST_ARGS)
	$(BIN)/coverage combine --quiet
	@# Some of the tests cover some of the code.
ifeq ($(strip $(PYTEST_ARGS)),)
	$(BIN)/coverage report --fail-under=$(FLOOR)
	$(BIN)/coverage report --include='$(PURE)' --fail-under=$(PURE_FLOOR)
endif

test-source: $(VENV)/.dev
	MONGOSAVER_TEST_SOURCE=$(SOURCE) $(BIN)/python -m pytest $(PYTEST_ARGS)

check: $(VENV)/.dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/python -m pytest -q tests/unit/test_architecture.py

docs: $(VENV)/.docs
	@# The variable turns off the theme's advertisement of its successor.
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict --quiet

cli: $(VENV)/.dev
	$(BIN)/python docs/cli_reference.py

bench: $(BENCH_VENV)/.bench
	$(BENCH_VENV)/bin/python -m bench $(BENCH_ARGS)

format: $(VENV)/.dev
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

clean:
	rm -rf $(VENV) $(BENCH_VENV) build dist site htmlcov .coverage .coverage.* .hypothesis \
		.mypy_cache .pytest_cache .ruff_cache *.egg-info
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

# The stamps below are files in the environments: an environment is brought up to date when
# pyproject.toml is newer than its stamp.

$(VENV)/.pip $(BENCH_VENV)/.pip:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 10))' || \
		{ echo 'mongosaver needs Python 3.10 or later: make PYTHON=/path/to/python3'; exit 1; }
	$(PYTHON) -m venv $(@D)
	@# Dependency groups need pip 25.1.
	$(@D)/bin/python -m pip install --quiet --disable-pip-version-check --upgrade 'pip>=25.1'
	@touch $@

$(VENV)/.demo: $(VENV)/.pip pyproject.toml
	$(BIN)/python -m pip install --quiet -e '.[$(EXTRAS)]' --group demo
	@touch $@

$(VENV)/.dev: $(VENV)/.pip pyproject.toml
	$(BIN)/python -m pip install --quiet -e '.[$(EXTRAS)]' --group dev
	@touch $@

$(VENV)/.docs: $(VENV)/.pip pyproject.toml
	$(BIN)/python -m pip install --quiet -e . --group docs
	@touch $@

$(BENCH_VENV)/.bench: $(BENCH_VENV)/.pip pyproject.toml
	$(BENCH_VENV)/bin/python -m pip install --quiet -e '.[$(EXTRAS)]' --group bench
	@touch $@
