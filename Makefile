# Every target that needs .venv makes it first; the first call takes minutes, later
# ones nothing. A python with torch 2.11 or newer is used as it is.
PY := .venv/bin/python
# Tests and checks are many small operators: more threads only get in each other's way.
ONE_THREAD := OMP_NUM_THREADS=1
# Some environments say otherwise, and then each process that a test starts compiles all
# that it imports anew, and each run all tests.
KEEP_BYTECODE := PYTHONDONTWRITEBYTECODE=
# Two files at once, each in one process: the tests of a file share what they capture.
SIDE_BY_SIDE := -n 2 --dist loadfile

.DEFAULT_GOAL := help
.PHONY: help setup demo docs test test-all prove check bench clean
.PHONY: lint types quick-tests all-tests

help: ## print this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "  make %-9s %s\n", $$1, $$2}' Makefile

setup: ## make .venv ready: torch, partita, the tools
	@bash tools/setup_env.sh

demo: setup ## plan, verify and run a small model
	@$(PY) examples/demo.py

docs: setup ## the pages of docs/ as a site, in build/docs; warnings are errors
	@$(PY) -m sphinx --quiet --fail-on-warning --keep-going docs build/docs

# Types take minutes, of one process: they are checked beside the tests.
test: lint ## the gate: check, and every test but the slow ones
	@$(MAKE) --no-print-directory --jobs=2 types quick-tests

test-all: lint ## check, and every test
	@$(MAKE) --no-print-directory --jobs=2 types all-tests

quick-tests: setup
	@$(ONE_THREAD) $(KEEP_BYTECODE) $(PY) -m pytest $(SIDE_BY_SIDE) -m "not slow"

all-tests: setup
	@$(ONE_THREAD) $(KEEP_BYTECODE) $(PY) -m pytest $(SIDE_BY_SIDE) --hypothesis-profile=search

prove: setup ## the proof of every placement rule, as one table; minutes
	@$(ONE_THREAD) $(PY) -m tests.compiler.rules.report

check: lint types ## lint, format and types (ruff, pyright strict)

lint: setup
	@$(PY) -m ruff check .
	@$(PY) -m ruff format --check .

types: setup
	@$(PY) -m pyright --pythonpath $(PY)

bench: setup ## side by side with what people use today
	@for script in benchmarks/bench_*.py; do $(PY) "$$script" || exit 1; done

clean: ## remove caches and build outputs; .venv stays
	@rm -rf build dist .pytest_cache .ruff_cache .hypothesis .coverage .coverage.*
	@find compiler passes runtime src tests tools -name __pycache__ -prune -exec rm -rf {} +
