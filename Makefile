# make demo, make test: a fresh clone needs nothing else.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed
INPUTS := pyproject.toml rcdt_agent/version.py rcdt_agent/tasks/constraints.txt rcdt_agent/tasks/install.py
EXTRAS := dev,docs,minari,tune,ray,tensorboard,onnx,record
PIP := -m pip --disable-pip-version-check install --quiet

LATEST := .venv-latest
LATEST_STAMP := $(LATEST)/.installed
# Python 3.12: MetaDrive's engine has no wheel, pybullet would have to be compiled.
WITH_SIMULATORS := $(shell $(PYTHON) -c "import sys; print('yes' * (sys.version_info < (3, 12)))")
LATEST_TESTS := $(if $(WITH_SIMULATORS),not safety_gymnasium,not simulator)

.PHONY: help install test quick test-latest check format lint types docs demo bench clean

help:  ## Show the commands
	@grep -E '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 16

install: $(STAMP)  ## Virtual environment with the tested stack and the three simulators

$(STAMP): $(INPUTS)
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python $(PIP) -c rcdt_agent/tasks/constraints.txt torch
	$(BIN)/python $(PIP) -c rcdt_agent/tasks/constraints.txt -e '.[$(EXTRAS)]'
	$(BIN)/rcdt install-simulators
	touch $@

quick: $(STAMP)  ## The fast tests, in about three minutes
	$(BIN)/python -m pytest -n 2 --dist loadgroup -m "not slow and not simulator"

test: $(STAMP)  ## All tests, in two processes
	$(BIN)/python -m pytest -n 2 --dist loadgroup

check: format lint types docs test  ## Everything that must be clean before a commit

format: $(STAMP)
	$(BIN)/ruff format --check .

lint: $(STAMP)
	$(BIN)/ruff check .

types: $(STAMP)
	$(BIN)/mypy

docs: $(STAMP)  ## Build the documentation, strictly
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict --quiet

demo: $(STAMP)  ## One policy at several cost budgets, in a few minutes
	$(BIN)/python -m rcdt_agent.demo

bench: $(STAMP)  ## Our speed beside the peer's, in a few minutes; build/bench.json (PREVIOUS=folder: and beside another checkout)
	$(BIN)/python benchmarks/all.py --json build/bench.json $(if $(PREVIOUS),--previous $(PREVIOUS))

test-latest: $(LATEST_STAMP)  ## The same tests without Safety-Gymnasium (Python 3.12: any simulator) on gymnasium 1.x, numpy 2
	$(LATEST)/bin/python -m pytest -n 2 --dist loadgroup -m "$(LATEST_TESTS)"

$(LATEST_STAMP): $(INPUTS) constraints-latest.txt
	test -x $(LATEST)/bin/python || $(PYTHON) -m venv $(LATEST)
	$(LATEST)/bin/python $(PIP) -c constraints-latest.txt torch
	$(LATEST)/bin/python $(PIP) -c constraints-latest.txt -e '.[$(EXTRAS)]'
	$(if $(WITH_SIMULATORS),$(LATEST)/bin/rcdt install-simulators bullet metadrive --constraints constraints-latest.txt)
	touch $@

clean:  ## Remove environments and caches
	rm -rf $(VENV) $(LATEST) site build .mypy_cache .ruff_cache .pytest_cache .hypothesis
