# demo, test, lint, format, bench, clean: each sets up what it needs (Python 3.11+).
PYTHON ?= python3
BIN := .venv/bin
SETUP := .venv/.ready

.PHONY: demo test lint format bench clean

demo: $(SETUP)
	$(BIN)/divevlm demo

test: $(SETUP)
	$(BIN)/pytest

lint: $(SETUP)
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy

format: $(SETUP)
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

bench: $(SETUP)
	$(BIN)/divevlm bench selection

$(SETUP): pyproject.toml constraints.txt
	$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "divevlm needs Python 3.11 or later: make PYTHON=python3.11")'
	$(PYTHON) -m venv .venv
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --constraint constraints.txt --editable '.[dev,fast,plot]'
	touch $@

clean:
	rm -rf .venv dist .mypy_cache .pytest_cache .ruff_cache .hypothesis
	find src tests -name __pycache__ -type d -prune -exec rm -rf {} +
