# The two commands of the README are `make demo` and `make test`; both do their own set-up.
PYTHON ?= python3
VENV   ?= .venv
PIP    := $(VENV)/bin/python -m pip --disable-pip-version-check install --quiet -c constraints.txt

.PHONY: demo test lint types unit bench-metrics clean

demo: $(VENV)/.core
	$(VENV)/bin/calibrant demo

test: lint types unit

lint: $(VENV)/.dev
	$(VENV)/bin/ruff check .
	$(VENV)/bin/ruff format --check .

types: $(VENV)/.dev
	$(VENV)/bin/mypy

unit: $(VENV)/.dev
	$(VENV)/bin/python -m pytest -n auto

# The peers live in an environment of their own; one that does not install is recorded.
bench-metrics: .venv-peers/.ready
	.venv-peers/bin/python benchmarks/metrics.py --write benchmarks/RESULTS.md

.venv-peers/.ready: benchmarks/peers.py pyproject.toml constraints.txt
	$(PYTHON) -m venv --clear .venv-peers
	.venv-peers/bin/python benchmarks/peers.py
	@touch $@

$(VENV)/.python:
	$(PYTHON) -c 'import sys; sys.exit(0 if sys.version_info >= (3, 10) else "calibrant needs Python 3.10 or newer; set PYTHON=python3.x")'
	$(PYTHON) -m venv $(VENV)
	@touch $@

$(VENV)/.core: $(VENV)/.python pyproject.toml constraints.txt
	@echo "Installing calibrant into $(VENV) (a minute or two, once) ..."
	$(PIP) -e .
	@touch $@

$(VENV)/.dev: $(VENV)/.core
	$(PIP) -e '.[dev]'
	@touch $@

clean:
	rm -rf $(VENV) .venv-peers calibrant-demo
