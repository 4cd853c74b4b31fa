# Every target creates .venv if it is missing or older than pyproject.toml.
PYTHON ?= python3
BIN    := .venv/bin
STAMP  := .venv/.installed
# One worker more than cores, because tests of signals and locks wait; at most four. Tests in a file
# share fits, so a file stays with one worker (loadfile).
WORKERS := $(shell $(PYTHON) -c 'import os; print(min(4, (os.cpu_count() or 1) + 1))')
PYTEST  := $(BIN)/python -m pytest -n $(WORKERS) --dist loadfile
PAGES   := tests/test_readme.py tests/test_extending.py
DOCS    := $(PAGES) src/modicum
LAB     := src/modicum_lab
LINTED  := src tests conftest.py docs/conf.py
# Let workers and the processes that tests start share bytecode.
unexport PYTHONDONTWRITEBYTECODE

.PHONY: help install demo test test-unit test-docs test-lab test-slow test-processors golden test-lowest coverage lint format bench parts docs clean

help:
	@echo "make demo         fit real flight data and draw a picture"
	@echo "make test         run the tests of the library"
	@echo "make test-unit    run only tests that run no chain (two minutes)"
	@echo "make test-docs    run the examples in docstrings, README, docs/rows.md and CONTRIBUTING"
	@echo "make test-lab     run the tests of the laboratory: papers, benchmarks, demo"
	@echo "make test-slow    run all tests, including the longer statistical checks"
	@echo "make test-processors  run the tests with the arithmetic of other processors"
	@echo "make golden       compare draws of every door and method with recorded ones (WRITE=1: record)"
	@echo "make test-lowest  run the unit tests with the oldest dependencies pyproject.toml allows"
	@echo "make coverage     run the tests of the library and print line coverage"
	@echo "make lint         run ruff and strict mypy;  make format to reformat"
	@echo "make bench        compare with other samplers (QUICK=1: a couple of minutes)"
	@echo "make parts        time Modicum's components"
	@echo "make docs         run the code of every page, compare its output, and build site/"

install: $(STAMP)

$(BIN)/python:
	$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "Modicum needs Python 3.11 or newer; set PYTHON=...")'
	$(PYTHON) -m venv .venv
	$(BIN)/python -m pip install --quiet --upgrade pip

$(STAMP): pyproject.toml | $(BIN)/python
	$(BIN)/python -m pip install --quiet -e '.[test,bench,lint]'
	touch $@

demo: $(STAMP)
	$(BIN)/modicum demo

test: $(STAMP)
	$(PYTEST) tests $(PAGES:%=--ignore=%)

test-unit: $(STAMP)
	$(PYTEST) -m unit tests

test-docs: $(STAMP)
	$(PYTEST) $(DOCS)

test-lab: $(STAMP)
	$(PYTEST) $(LAB)

test-slow: $(STAMP)
	$(PYTEST) -m "slow or not slow" tests src/modicum $(LAB)

test-processors: $(STAMP)
	$(BIN)/python tests/helpers/processors.py | while read -r settings; do \
		echo "$$settings"; env $$settings $(PYTEST) tests $(PAGES:%=--ignore=%) || exit 1; done

golden: $(STAMP)
	WRITE=$(WRITE) $(BIN)/python -m pytest -m "slow or not slow" -rP tests/test_golden.py | grep ' bits, \|FAILED\|passed'

test-lowest: pyproject.toml
	rm -rf .venv-lowest
	$(PYTHON) -m venv .venv-lowest
	.venv-lowest/bin/python -m pip install --quiet --upgrade pip
	.venv-lowest/bin/python tests/helpers/lowest.py > .venv-lowest/lowest.txt
	.venv-lowest/bin/python -m pip install --quiet -r .venv-lowest/lowest.txt
	.venv-lowest/bin/python -m pip install --quiet --no-deps -e .
	.venv-lowest/bin/python -m pytest -m unit -n $(WORKERS) --dist loadfile tests

coverage: $(STAMP)
	$(PYTEST) --cov=modicum --cov-report=term:skip-covered tests src/modicum

lint: $(STAMP)
	$(BIN)/ruff check $(LINTED)
	$(BIN)/ruff format --check $(LINTED)
	$(BIN)/mypy

format: $(STAMP)
	$(BIN)/ruff check --fix $(LINTED)
	$(BIN)/ruff format $(LINTED)

bench: $(STAMP)
	$(BIN)/modicum bench $(if $(QUICK),--quick)

parts: $(STAMP)
	$(BIN)/python -m modicum_lab.bench.parts $(if $(QUICK),--quick)

docs: | $(BIN)/python
	$(BIN)/python -m pip install --quiet -e '.[docs,test]'
	$(PYTEST) -m "slow or not slow" tests/test_readme.py -k "page or compared"
	$(BIN)/sphinx-build -W --keep-going -b html docs site

clean:
	rm -rf .venv .venv-lowest build dist site .pytest_cache .mypy_cache .ruff_cache .coverage
