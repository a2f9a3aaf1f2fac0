# Every target stands alone on a fresh machine: Python >= 3.11, make, package registries.
VENV ?= .venv
PYTHON ?= python3
BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt
TM := $(BIN)/tracemask
DEMO ?= demo
PYTEST := $(BIN)/python -m pytest
export PYRIGHT_PYTHON_IGNORE_WARNINGS=1
export TOKENIZERS_PARALLELISM=false

.PHONY: demo test test-slow test-peers test-ray test-browser chromium ci lint types arch schemas regen docs real rl experiments bench fetch wheel clean

$(VENV)/bin/python:
	$(PYTHON) -m venv $(VENV)

$(VENV)/.train: pyproject.toml constraints.txt | $(VENV)/bin/python
	$(PIP) -e '.[train]'
	@touch $@

$(VENV)/.dev: $(VENV)/.train
	$(PIP) -e '.[train,dev]'
	@touch $@

$(VENV)/.ray: $(VENV)/.dev
	$(PIP) -e '.[ray]'
	@touch $@

$(VENV)/.peers: $(VENV)/.dev
	$(PIP) -e '.[peers]'
	@touch $@

fetch: $(VENV)/.dev
	$(BIN)/python fixtures/fetch.py

demo: $(VENV)/.train
	sh examples/demo.sh $(TM) $(DEMO)

test: $(VENV)/.dev fetch
	$(PYTEST) -n 2 --dist worksteal

test-slow: $(VENV)/.ray fetch
	$(PYTEST) -m 'slow or ray'

test-ray: $(VENV)/.ray
	$(PYTEST) -m ray

# Debian's package; elsewhere install Chromium or Chrome yourself.
chromium:
	command -v chromium >/dev/null || command -v google-chrome >/dev/null || (apt-get update -qq && apt-get install -y -qq chromium)

test-browser: $(VENV)/.dev chromium
	$(PYTEST) -m browser

test-peers: $(VENV)/.peers fetch
	$(PYTEST) -m peers

lint: $(VENV)/.dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

types: $(VENV)/.dev
	$(BIN)/pyright

arch: $(VENV)/.dev
	$(BIN)/lint-imports

regen: $(VENV)/.dev
	$(BIN)/python docs/generate.py

schemas: $(VENV)/.dev
	$(BIN)/python docs/generate.py --check

ci: lint types arch schemas chromium test test-ray

real: $(VENV)/.dev fetch
	$(BIN)/python examples/real_smollm2.py

rl: $(VENV)/.dev fetch
	$(BIN)/python examples/rl_smollm2/run.py

experiments: $(VENV)/.train
	$(BIN)/python docs/experiments/run.py

bench: $(VENV)/.peers fetch
	for b in bench/*.py; do case $$b in */gpu.py) ;; *) $(BIN)/python $$b || exit 1 ;; esac; done

wheel: $(VENV)/bin/python
	$(PIP) build
	$(BIN)/python -m build --wheel --outdir dist .

clean:
	rm -rf $(DEMO) dist build
