# The two commands of the README are `make demo` and `make test`; both do their own set-up.
PYTHON ?= python3
VENV   ?= .venv
PIP    := $(VENV)/bin/python -m pip --disable-pip-version-check install --quiet -c constraints.txt

.PHONY: demo test test-all test-integrations test-lowest test-dist dist lint security fuzz types unit docs docs-run docs-serve \
	bench-metrics bench-calibrators bench-class-scaling bench-losses clean

demo: $(VENV)/.core
	$(VENV)/bin/calibrant demo

# The type checker keeps a single core busy, so the tests run beside it.
test: lint security
	$(MAKE) --jobs 2 types unit

lint: $(VENV)/.dev
	$(VENV)/bin/ruff check .
	$(VENV)/bin/ruff format --check .

# Seconds: patterns that are unsafe, and licences of everything that is installed.
security: $(VENV)/.dev
	$(VENV)/bin/bandit --quiet --recursive src --configfile pyproject.toml
	$(VENV)/bin/python scripts/check_licences.py

# Every entrance, with hostile input; failing cases are kept in tests/fuzz/corpus.
FUZZ_CASES ?= 100000
fuzz: $(VENV)/.dev
	OMP_NUM_THREADS=1 $(VENV)/bin/python -m tests.fuzz --cases $(FUZZ_CASES)

types: $(VENV)/.dev
	$(VENV)/bin/mypy

unit: $(VENV)/.dev
	$(VENV)/bin/python -m pytest -n auto -m "not slow and not integration"

# Everything: the slow tests too, and those of the replication.
test-all: lint types
	$(VENV)/bin/python -m pytest -n auto tests src/calibrant replication

# With the real libraries: Lightning, transformers, MLflow, TensorBoard, polars.
test-integrations: $(VENV)/.integrations
	$(VENV)/bin/python -m pytest tests/integrations tests/docs/test_examples.py tests/docs/test_pages.py

# The lowest versions that pyproject.toml declares, on the lowest Python at hand. The extra onnx needs
# a newer PyTorch, which would hide the floor of the others.
LOWEST_PYTHON ?= $(shell command -v python3.10 || echo $(PYTHON))
test-lowest: .venv-lowest/.ready
	.venv-lowest/bin/python -m pytest -n auto -m "not slow and not integration"

.venv-lowest/.ready: pyproject.toml
	@echo "Installing the lowest declared versions into .venv-lowest (some minutes, once) ..."
	$(LOWEST_PYTHON) -m venv --clear .venv-lowest
	.venv-lowest/bin/python -m pip --disable-pip-version-check install --quiet uv
	.venv-lowest/bin/uv pip install --quiet --python .venv-lowest/bin/python --resolution lowest-direct \
		-e '.[tables,metrics,train,bench,scale]'
	.venv-lowest/bin/uv pip install --quiet --python .venv-lowest/bin/python pytest pytest-xdist hypothesis selenium
	@touch $@

# sdist and wheel, the wheel from the tree; `make test-dist` installs it with what it requires and nothing else.
dist: $(VENV)/.dev
	rm -rf dist
	$(VENV)/bin/python -m hatchling build -d dist
	@ls -l dist

test-dist: dist
	$(PYTHON) -m venv --clear .venv-dist
	.venv-dist/bin/python -m pip --disable-pip-version-check install --quiet -c constraints.txt dist/*.whl
	CALIBRANT_DIST_PYTHON=$(CURDIR)/.venv-dist/bin/python $(VENV)/bin/python -m pytest tests/test_dist.py

# The site is built from stored outputs, without importing the package; MKDOCS=mkdocs builds it with Material.
MKDOCS ?= zensical
docs: .venv-docs/.ready
	.venv-docs/bin/python scripts/build_docs.py
	.venv-docs/bin/$(MKDOCS) build --clean
	.venv-docs/bin/python scripts/build_docs.py --check

docs-serve: docs
	@echo "The site is at http://127.0.0.1:8000 (stop with Ctrl-C)"
	.venv-docs/bin/python -m http.server --bind 127.0.0.1 --directory build/site 8000

# Runs every block of code of the pages, stores what they print, and writes the reference anew.
docs-run: $(VENV)/.dev
	$(VENV)/bin/python scripts/run_docs.py
	$(VENV)/bin/python scripts/make_reference.py

.venv-docs/.ready: docs/requirements.txt
	$(PYTHON) -m venv .venv-docs
	.venv-docs/bin/python -m pip --disable-pip-version-check install --quiet -r $<
	@touch $@

# The peers live in an environment of their own; one that does not install is recorded.
bench-metrics: .venv-peers/.ready
	.venv-peers/bin/python benchmarks/metrics.py --write benchmarks/RESULTS.md

JOBS ?= 2
bench-calibrators: .venv-peers/.ready
	.venv-peers/bin/python benchmarks/calibrators.py quality --jobs $(JOBS) --write benchmarks/CALIBRATORS.md --csv benchmarks/calibrator_quality.csv
	.venv-peers/bin/python benchmarks/calibrators.py speed --write benchmarks/CALIBRATOR_SPEED.md

bench-class-scaling: $(VENV)/.dev
	OMP_NUM_THREADS=1 $(VENV)/bin/python benchmarks/class_scaling.py --jobs $(JOBS)
	$(VENV)/bin/python benchmarks/class_scaling.py --report

bench-losses: $(VENV)/.dev
	$(VENV)/bin/python benchmarks/losses.py --json build/losses.json

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

# Modules are compiled as they are imported: most never are.
$(VENV)/.dev: $(VENV)/.python pyproject.toml constraints.txt
	@echo "Installing calibrant and its tools into $(VENV) (a minute or two, once) ..."
	$(PIP) --no-compile -e '.[dev]'
	@touch $@ $(VENV)/.core

$(VENV)/.integrations: $(VENV)/.dev
	@echo "Installing the libraries of the integrations into $(VENV) (a minute or two, once) ..."
	$(PIP) --no-compile -e '.[integrations]'
	@touch $@

clean:
	rm -rf $(VENV) .venv-peers .venv-docs .venv-lowest .venv-dist build dist calibrant-demo
