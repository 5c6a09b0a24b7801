# Every target makes its own .venv when it is missing; nothing else has to be installed first.
PYTHON ?= python3
VENV   := .venv
BIN    := $(VENV)/bin
READY  := $(VENV)/.ready
# Empty is off: hundreds of processes would compile the same modules again.
export PYTHONDONTWRITEBYTECODE :=

.PHONY: demo test test-runs test-slow test-machines test-spark test-browser test-hosts test-ssh check format bench bench-hosts accuracy clean
.DEFAULT_GOAL := help

help: ## show this list
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 14

# torch comes first and pinned: asked for as a range, pip would fetch gigabytes of CUDA.
$(READY): pyproject.toml constraints.txt
	$(PYTHON) -m venv $(VENV)
	$(BIN)/pip install --quiet --disable-pip-version-check $(shell grep -h '^torch==' constraints.txt)
	$(BIN)/pip install --quiet --disable-pip-version-check --constraint constraints.txt --editable '.[dev]'
	@touch $@

demo: $(READY) ## compare four strategies on handwritten digits, here, now
	$(BIN)/phalanx demo

# Three processes on two cores: many tests wait for others. Files are shared out in the order of
# the folders, so that the long ones come first.
PARALLEL := -n 3 --dist loadfile --no-loadscope-reorder

test: $(READY) ## the test suite
	$(BIN)/pytest $(PARALLEL)

test-runs: $(READY) ## whole runs on this machine, as a user starts them
	$(BIN)/pytest $(PARALLEL) tests/integration -m 'runs and not slow'

test-slow: $(READY) ## the tests that take minutes
	$(BIN)/pytest -m slow --timeout 1200 --ignore tests/ssh --ignore tests/hosts

# Needs root, iproute2 util-linux openssh-server openssl procps, and 4 GB of disk for TensorFlow.
test-machines: $(READY) ## one run over real SSH for each capability (root; about a quarter of an hour)
	$(BIN)/pytest tests/ssh -m machines --timeout 600 -rs

# Needs Java 17 or newer; installs Spark into .venv.
test-spark: $(READY) ## one small training from a Spark DataFrame (Java; about a minute)
	$(BIN)/pip install --quiet --disable-pip-version-check --constraint constraints.txt --editable '.[spark]'
	$(BIN)/pytest tests/spark/test_small_estimator.py -m slow -rs

# Needs the package chromium of Debian.
test-browser: $(READY) ## the pages of `phalanx watch` in a real browser (Chromium; two minutes)
	$(BIN)/pip install --quiet --disable-pip-version-check --constraint constraints.txt --editable '.[browser]'
	$(BIN)/pytest tests/browser -m browser -rs

# Needs root, and these packages of Debian: iproute2 util-linux openssh-server openmpi-bin
test-hosts: $(READY) ## what crosses hosts, on emulated machines (root; about an hour)
	$(BIN)/python tests/hosts/run_contract.py

# Needs root, iproute2 util-linux openssh-server openssl, and 8 GB of free disk.
test-ssh: $(READY) ## runs on emulated machines over real SSH (root; about half an hour)
	$(BIN)/pytest tests/ssh -m slow --timeout 1500

check: $(READY) ## format, lint, types, import order, links, sizes
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/lint-imports --no-cache
	$(BIN)/python tests/check_links.py
	$(BIN)/python tests/list_messages.py --count
	$(BIN)/python tests/check_house.py

.PHONY: docs
docs: $(READY) ## the documentation as a site, in build/site; every link checked
	$(BIN)/pip install --quiet --disable-pip-version-check --constraint constraints.txt --editable '.[docs]'
	$(BIN)/python tests/check_links.py
	$(BIN)/mkdocs build --strict
	@echo build/site/index.html

format: $(READY) ## rewrite the code in the project's format
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

bench: $(READY) ## the benchmarks of one machine, one JSON line per figure
	$(BIN)/python -m benchmarks

bench-hosts: $(READY) ## the benchmarks between machines, in a lab; as root, about an hour
	$(BIN)/pip install --quiet --disable-pip-version-check --constraint constraints.txt --editable '.[bench]'
	$(BIN)/python -m benchmarks hosts

accuracy: $(READY) ## test accuracy of every strategy, an hour or two; goes on where it was
	$(BIN)/python -m benchmarks accuracy

clean: ## remove what the targets made
	rm -rf $(VENV) build dist
