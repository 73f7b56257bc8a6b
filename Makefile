# demo, test, lint, format, bench, clean: each sets up what it needs (Python 3.11+). test-oldest: the oldest transformers.
PYTHON ?= python3
BIN := .venv/bin
SETUP := .venv/.ready
OLDEST := .venv-oldest
INSTALL := -m pip install --quiet --disable-pip-version-check

.PHONY: demo test test-oldest lint format bench clean

demo: $(SETUP)
	$(BIN)/divevlm demo

test: $(SETUP)
	$(BIN)/pytest

test-oldest: $(OLDEST)/.ready
	$(OLDEST)/bin/pytest tests/engine -W ignore::DeprecationWarning -W ignore::FutureWarning

lint: $(SETUP)
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy

format: $(SETUP)
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

bench: $(SETUP)
	$(BIN)/divevlm bench selection
	$(BIN)/divevlm bench engine

%/.ready: pyproject.toml constraints.txt constraints-oldest.txt
	$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "divevlm needs Python 3.11 or later: make PYTHON=python3.11")'
	$(PYTHON) -m venv $*
	$*/bin/python $(INSTALL) --constraint $(if $(filter $(OLDEST),$*),constraints-oldest.txt,constraints.txt) --editable '.[dev,fast,plot]'
	touch $@

clean:
	rm -rf .venv $(OLDEST) dist .mypy_cache .pytest_cache .ruff_cache .hypothesis
	find src tests -name __pycache__ -type d -prune -exec rm -rf {} +
