# `make` alone lists the targets. Everything runs in .venv; the first target that needs .venv makes it.
.DEFAULT_GOAL := help
.PHONY: help setup setup-spark setup-test demo test tests archive test-fast test-faults test-docs test-matrix chaos fuzz check docs format bench dist constraints clean
MAKEFLAGS += --no-print-directory
PYTHON ?= python3
FLIGHTS ?=
KEEP ?=
ARGS ?=
BIN := .venv/bin
# Spark starts its workers with the `python3` of the PATH and the jars of SPARK_HOME: both have to be those of .venv.
# Airflow and Spark start many Python processes. Without bytecode, each compiles all that it imports of this folder.
RUN = env -u PYTHONDONTWRITEBYTECODE -u SPARK_HOME -u PYSPARK_PYTHON -u PYSPARK_DRIVER_PYTHON PATH="$(CURDIR)/.venv/bin:$$PATH" python
MKDOCS = NO_MKDOCS_2_WARNING=1 $(RUN) -m mkdocs
PYTEST = $(RUN) -m pytest -q
SCRIPTS = $(shell find airflow_provider_taskq bench docs -name '*.js' -o -name '*.css')
SQLFLUFF = $(BIN)/sqlfluff
DENO = DENO_NO_UPDATE_CHECK=1 $(BIN)/deno
# Tests of Airflow and Spark mostly wait, so there are more processes than cores. On a server of yours there is one: tests
# of two processes would meet each other's transactions.
PROCESSES = $(if $(TASKQ_TEST_DSN),,-n $(shell expr $$(nproc 2>/dev/null || echo 2) + 2))
SETUP = command -v "$(PYTHON)" >/dev/null || { \
	echo 'setup: TaskQ needs Python 3.11 or newer, and there is no "$(PYTHON)" on the PATH.' >&2; exit 1; }; \
	"$(PYTHON)" tools/setup.py

help:  ## list the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-12s %s\n", $$1, $$2 }' Makefile

setup:  ## once, or never: make .venv from the pinned releases; each target does it
	@$(SETUP)

setup-spark:
	@$(SETUP) --java

setup-test:
	@$(SETUP) --java --browser

demo: setup-spark  ## drain real flights with Airflow and Spark; FLIGHTS=20000 limits them, KEEP=1 keeps Airflow running
	@$(RUN) -m demo $(if $(FLIGHTS),--flights "$(FLIGHTS)") $(if $(KEEP),--keep)

test: setup-test archive  ## before a commit: check, and prove every promise; ARGS='tests/queue -k lease' goes to pytest instead
	@$(MAKE) -j2 check $(if $(strip $(ARGS)),,tests)
	@$(if $(strip $(ARGS)),$(PYTEST) $(ARGS),true)

tests:
	@$(PYTEST) $(PROCESSES) --durations=20

archive:
	@$(RUN) -m tests.spark.archives

test-fast: setup  ## while you work: the tests that start neither Airflow nor Spark nor a browser; ARGS go to pytest
	@$(PYTEST) -m 'not (slow or faults or documents or chaos)' $(or $(ARGS),$(PROCESSES))

test-faults: setup-test archive  ## after a change of leases, workers or commits: kills, cuts, load, and the model; ARGS go to pytest
	@$(PYTEST) -m faults $(PROCESSES) $(ARGS)

test-docs: setup-test archive  ## after a change of a page or the demonstration: all that a newcomer types; ARGS go to pytest
	@$(PYTEST) -m documents $(PROCESSES) $(ARGS)

test-matrix: setup  ## after an upgrade of a dependency: the oldest Airflow, Spark and PostgreSQL; ARGS=--all, '--only airflow-3.1'
	@$(RUN) tools/matrix.py $(ARGS)

chaos: setup-test archive  ## before a release: each fault for longer, judged by its history, in an hour; ARGS='--only crash'
	@$(RUN) -m tests.chaos $(ARGS)

fuzz: setup-test  ## after a change of what users pass in: hostile input, new in each run; TASKQ_FUZZ=fixed repeats that of CI
	@TASKQ_FUZZ="$(or $(TASKQ_FUZZ),fresh)" $(PYTEST) $(PROCESSES) tests/fuzz tests/plugin/test_hostile_requests.py $(ARGS)

check: setup  ## before a commit, and part of test: format, lint, types, layers, words, promises, the site
	@$(BIN)/ruff format --check --quiet . || { echo 'check: run `make format`' >&2; exit 1; }
	@$(BIN)/ruff check --quiet .
	@$(DENO) fmt --check --quiet --line-width 120 $(SCRIPTS) || { echo 'check: run `make format`' >&2; exit 1; }
	@$(DENO) lint --quiet --rules-exclude=require-await $(SCRIPTS)
	@$(SQLFLUFF) lint --processes 0 --nocolor airflow_provider_taskq/queue/sql >.venv/sqlfluff.log 2>/dev/null || { \
		grep -v PASS .venv/sqlfluff.log >&2; exit 1; }
	@$(BIN)/python -m mypy --no-error-summary
	@$(BIN)/lint-imports --no-cache >.venv/lint-imports.log || { cat .venv/lint-imports.log >&2; exit 1; }
	@$(BIN)/python tools/words.py
	@$(BIN)/python -m tests.durations
	@$(BIN)/python tools/promises.py --check
	@$(MKDOCS) build -f tools/mkdocs.yml >.venv/mkdocs.log 2>&1 || { cat .venv/mkdocs.log >&2; exit 1; }
	@echo 'check: format, lint, types, layers, words, promises and the site are in order'

docs: setup  ## while you write: build the site into build/site, and check its links; ARGS=serve serves it
	@$(MKDOCS) $(or $(ARGS),build) -f tools/mkdocs.yml

format: setup  ## when check asks for it: format the sources, and write the page of promises
	@$(BIN)/ruff check --quiet --fix-only .
	@$(BIN)/ruff format --quiet .
	@$(DENO) fmt --quiet --line-width 120 $(SCRIPTS)
	@$(SQLFLUFF) fix --quiet airflow_provider_taskq/queue/sql
	@$(BIN)/python tools/promises.py

bench: setup-spark  ## after a change of the hot path: measure push, claim and drain, and raw SQL; ARGS=peers adds other queues
	@$(RUN) -m bench $(ARGS)

dist: setup  ## before a release: build both distributions into dist/, check and install them; ARGS='--release v1.2.3'
	@$(RUN) tools/dist.py $(ARGS)

constraints: setup  ## after a change of a dependency: resolve all pins again; ARGS=audit asks the advisory database about them
	@$(if $(filter audit,$(ARGS)),$(AUDIT),$(BIN)/python tools/constraints.py && $(BIN)/python tools/matrix.py --resolve)

define AUDIT
	for pins in constraints/*.txt tools/pins/spark-*.txt bench/peers/pins.txt; do \
		grep == "$$pins" | $(BIN)/uv tool run --quiet pip-audit==2.10.1 --requirement /dev/stdin --no-deps --disable-pip \
			--strict --progress-spinner off || { echo "audit: $$pins" >&2; exit 1; }; \
	done
endef

clean:  ## remove .venv, caches and built files
	@test ! -e .venv || test -e .venv/made-by-taskq-setup || { echo 'clean: .venv is not ours' >&2; exit 1; }
	@rm -rf .venv .venv.old build dist .mypy_cache .pytest_cache .ruff_cache .hypothesis .import_linter_cache spark-warehouse
	@find . -name __pycache__ -type d -not -path './.git/*' -prune -exec rm -rf {} +
