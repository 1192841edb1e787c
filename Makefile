# Every target creates what it needs: `make quickstart` and `make test` work on a fresh clone.
# PYTHON: the interpreter to build .venv with. TORCH: how pip is to find PyTorch, for example a CPU-only build.
PYTHON ?= python3
TORCH  ?= "torch>=2.11,<2.14"
VENV   := .venv
BIN    := $(VENV)/bin
STAMP  := $(VENV)/.installed
TRITON := .triton
PIP    := $(BIN)/python -m pip install -qq --disable-pip-version-check
# One test process per core, up to eight; in each, PyTorch keeps to one core.
PYTEST := OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n auto --maxprocesses 8 --dist worksteal

# Tests of the tools around training, of placements and of reports.
TOOLS  := $(addprefix tests/,tools plan report) \
	$(patsubst %,tests/cli/setup/test_%.py,deploy doctor init plan prepare tune) \
	tests/cli/trained/test_report.py tests/cli/test_tables.py tests/launch/test_placement.py \
	tests/chaos/test_drawing.py tests/cluster/test_dense_plan.py tests/cluster/test_kubernetes.py
OTHERS := $(addprefix --ignore ,$(TOOLS))

# Programs that start again and again read compiled files, not the source.
unexport PYTHONDONTWRITEBYTECODE

.PHONY: setup servers quickstart test golden test-all test-tools test-slow test-cluster test-dense test-chaos test-triton test-gpu test-ray test-acceptance test-floor test-wheel mutants kills hostile tables check types house docs format bench clean

setup: $(STAMP)

$(STAMP): pyproject.toml
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
	  { echo "satrap needs Python 3.11 or newer; name one: make setup PYTHON=python3.12"; exit 1; }
	@echo "setup 1/3  virtual environment in $(VENV) (a few seconds)"
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	@echo "setup 2/3  PyTorch (about a minute; several with a slow network)"
	@$(PIP) $(TORCH)
	@echo "setup 3/3  satrap and its tools (about a minute)"
	@$(PIP) --editable ".[dev]"
	@touch $@

# Servers that some tests talk to, from Debian; where they are missing, these tests are skipped and say so.
servers:
	@for name in redis-server haproxy; do command -v $$name > /dev/null || apt-get install -y -q=2 $$name || true; done

quickstart: setup
	@$(BIN)/satrap quickstart

test: setup
	$(PYTEST) $(OTHERS) --ignore tests/house

# Small seeded runs leave what they left before: first after a change that is to change nothing.
golden: setup
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -m golden tests/golden

test-slow: setup
	$(PYTEST) -m slow --timeout 900

test-cluster: setup
	$(PYTEST) $(OTHERS) -m "cluster and not slow" --timeout 900

test-tools: setup
	$(PYTEST) -m "not slow and not gpu and not dense and not ray" --timeout 900 $(TOOLS)

# Every test that needs neither a GPU nor a network, with all examples; up to two hours.
test-all: setup
	$(PYTHON) tools_dev/stages.py all

# The network over every mesh of up to four workers; minutes each.
test-dense: setup
	$(PYTEST) -m dense --timeout 900

test-chaos: setup
	$(PYTEST) -m "chaos and not slow" --timeout 900

# Kernels for a GPU in Triton's interpreter; needs a network once, for the oldest Triton that PyTorch's floor brings.
test-triton: setup $(TRITON)/.installed
	TRITON_INTERPRET=$$($(BIN)/python -c 'import torch; print(int(not torch.cuda.is_available()))') \
	  PYTHONPATH=$(TRITON) $(PYTEST) --dist loadfile -m triton --timeout 900 tests/models/kernels tests/store/gpu tests/contract

# Apart from .venv, so that no other test sees Triton; its interpreter needs an older NumPy.
$(TRITON)/.installed:
	@$(PIP) --no-deps --target $(TRITON) "triton==3.6.0" "numpy==2.3.*"
	@touch $@

# Needs a CUDA device; without one, each test is skipped and says why.
test-gpu: setup
	$(BIN)/python -m pytest -m gpu -rs --timeout 900 tests/gpu

# Runs on a Ray cluster of several nodes, all on this machine; needs a network once, for Ray.
test-ray: setup
	@$(PIP) --editable ".[dev,ray]"
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -m ray --timeout 900 tests/launchers tests/prepare tests/serve

# A new user's first hour: a wheel in an empty environment, forty steps. Needs a network for the tool that builds the wheel.
test-acceptance: setup
	$(BIN)/python -m pytest -m acceptance --timeout 3600 tests/acceptance

# With the oldest versions that pyproject.toml allows, in .venv-floor; needs a network once, for several gigabytes with pip's default PyTorch.
test-floor:
	test -x .venv-floor/bin/python || $(PYTHON) -m venv .venv-floor
	.venv-floor/bin/python -m pip install -qq $$($(PYTHON) -m tests.house.floor) hypothesis "moto[server]" pandas pytest pytest-timeout pytest-xdist scikit-learn torchmetrics
	.venv-floor/bin/python -m pip install -qq --no-deps --editable .
	OMP_NUM_THREADS=1 .venv-floor/bin/python -m pytest -n auto --maxprocesses 8 --dist worksteal --ignore tests/house --ignore tests/docs --ignore tests/deploy

# Wheel and sdist in dist/; the wheel is installed in an empty environment, where the core of the tests runs. Needs a network.
test-wheel:
	@TORCH=$(TORCH) $(PYTHON) tools_dev/wheel.py $(WHEEL)

# Faults planted at random that no test notices; for example `make mutants MUTANTS="--count 40 --seed 7"`.
mutants: setup
	$(BIN)/python -m tools_dev.mutants $(MUTANTS)

# Processes of training runs killed at random, and what they leave checked; for example `make kills KILLS="--kills 40 --changes"`.
kills: setup
	$(BIN)/python -m tools_dev.chaos.kills $(KILLS)

# Attacks on all roles beside honest clients; for example `make hostile HOSTILE="--minutes 2 --messages 100000"`.
hostile: setup
	$(BIN)/python -m tools_dev.hostile $(HOSTILE)

# Random tables from `satrap init` to predictions; for example `make tables TABLES="--minutes 5 --seed 1"`.
tables: setup
	$(BIN)/python -m tools_dev.tables $(TABLES)

check: setup
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/lint-imports --cache-dir .import_linter_cache
	@$(MAKE) --no-print-directory --jobs 2 --output-sync types house

types: setup
	MYPY_NUM_WORKERS=2 $(BIN)/mypy

house: setup
	$(BIN)/python -m pytest tests/house

# The site: opens as files, `make docs` prints where; needs a network once, for MkDocs.
docs: setup
	@$(PIP) --editable ".[docs]"
	@NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --quiet --strict
	@echo "site/index.html"

format: setup
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

bench: setup
	$(BIN)/python -m benchmarks.peers
	$(BIN)/python -m benchmarks.train_vs_pytorch
	$(BIN)/python -m benchmarks.memory
	$(BIN)/python -m benchmarks.store
	$(BIN)/python -m benchmarks.exchange
	$(BIN)/python -m benchmarks.persia
	$(BIN)/python -m benchmarks.delay
	$(BIN)/python -m benchmarks.modes

clean:
	rm -rf $(VENV) .venv-floor .peers .venv-wheel dist $(TRITON) .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache .mutants site
