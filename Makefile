# Every command of this repository. `make help` lists them.

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
ALL := jax tensorflow torch numpy openvino
BACKENDS = $(or $(BACKEND),$(ALL))
ONE = $(or $(BACKEND),jax)
ifneq ($(filter-out $(ALL),$(BACKEND)),)
$(error BACKEND must be one of: $(ALL). Received: $(BACKEND))
endif
# The tools need no packages; with the environment there, check runs ruff too.
FORK = $(shell test -x $(BIN)/ruff && echo $(BIN)/python || echo $(PYTHON)) \
	tools/fork.py
# `-n 2 --dist loadfile` runs on both cores of a small machine.
PYTEST ?= -n 2 --dist loadfile
OURS := $(wildcard tools devtree integration_tests benchmarks examples)

.DEFAULT_GOAL := help
.PHONY: help setup tree status export seams check lint wheel test test-tools \
	test-tree test-upstream test-wheel smoke mutation demo bench notebook rebase pr clean
# pip must not run twice at once in one environment.
.NOTPARALLEL:

help:  ## list the commands
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "  %-14s %s\n", $$1, $$2}' \
		$(MAKEFILE_LIST)
	@echo "  BACKEND=jax|tensorflow|torch|numpy|openvino (test: all, demo: jax)"

HAVE = $(VENV)/.have-common $(BACKENDS:%=$(VENV)/.have-%)

setup: $(HAVE)  ## make .venv with BACKEND, or with all

$(BIN)/python:
	$(PYTHON) -m venv $(VENV)

# What the demo needs; the rest of requirements.txt is for work on the code.
$(VENV)/.have-demo: requirements-demo.txt | $(BIN)/python
	$(BIN)/python -m pip install -q -r $<
	@touch $@

$(VENV)/.have-common: requirements.txt $(VENV)/.have-demo
	$(BIN)/python -m pip install -q -r $<
	@touch $@

$(VENV)/.have-%: requirements-%.txt $(VENV)/.have-demo
	$(BIN)/python -m pip install -q -r $<
	@touch $@

# KerasHub's own requirements bring all of TensorFlow: see the file.
$(VENV)/.have-hub: requirements-hub.txt $(VENV)/.have-common
	$(BIN)/python -m pip install -q --no-deps -r $<
	@touch $@

tree:  ## assemble build/tree: upstream's archive and our patch set
	@$(FORK) checkout

status:  ## list the patches, and the edits of build/tree not yet exported
	@$(FORK) status

export:  ## write the edits of build/tree back to the patch set
	@$(FORK) export

check: $(VENV)/.have-common  ## prove that the patch set keeps its rules
	@$(FORK) check

seams:  ## write the table of seams in docs/upstream.md
	@$(FORK) seams

lint: $(VENV)/.have-common  ## ruff on the files that are not part of Keras
	$(BIN)/ruff check -q $(OURS)
	$(BIN)/ruff format -q --check $(OURS)

wheel: tree  ## build the wheel in build/dist
	@$(FORK) build

# The wheel keeps its time stamp as long as the tree does not change.
$(VENV)/.have-wheel: wheel $(VENV)/.have-demo
	@if test ! -e $@ || test build/dist/made-from -nt $@; then \
		$(BIN)/python -m pip install -q build/dist/keras-*.whl && \
		$(BIN)/python -m pip install -q --no-deps --force-reinstall \
			build/dist/keras-*.whl && touch $@; fi

test: check lint test-tools test-tree smoke  ## all that CI runs; BACKEND=one

test-tools: $(VENV)/.have-common  ## the tests of tools/
	$(BIN)/python -m pytest -q tools

test-tree: setup tree  ## our tests in build/tree
	@for x in $(BACKENDS); do \
		$(BIN)/python tools/suites.py ours $$x -- $(PYTEST) || exit 1; done

smoke: setup $(VENV)/.have-hub $(VENV)/.have-wheel  ## integration tests, notebook and cookbook on the wheel
	@for x in $(BACKENDS); do \
		$(BIN)/python tools/suites.py smoke $$x || exit 1; done

test-wheel: setup $(VENV)/.have-hub $(VENV)/.have-wheel  ## all our tests on the installed wheel
	@for x in $(BACKENDS); do \
		$(BIN)/python tools/suites.py wheel $$x || exit 1; done

test-upstream: setup tree  ## upstream's tests; DIRS="keras/src/ops ..."
	@for x in $(BACKENDS); do $(BIN)/python tools/suites.py upstream $$x \
		$(DIRS) -- $(PYTEST) || exit 1; done

mutation: setup  ## show that a test fails without each patch
	@$(FORK) mutate

demo: $(VENV)/.have-$(ONE) $(VENV)/.have-wheel  ## build, install, run the demo
	KERAS_BACKEND=$(ONE) $(BIN)/python examples/demo.py

bench: $(VENV)/.have-$(ONE) $(VENV)/.have-hub $(VENV)/.have-wheel  ## benchmarks; MODEL=name
	KERAS_BACKEND=$(ONE) $(BIN)/python benchmarks/run.py \
		--backend $(ONE) $(if $(MODEL),--model $(MODEL))

notebook: $(VENV)/.have-$(ONE) $(VENV)/.have-common $(VENV)/.have-wheel  ## write the notebook and its outputs from its source
	KERAS_BACKEND=$(ONE) $(BIN)/python examples/write_guide.py

rebase:  ## move the patch set to VERSION (or latest); DRY=1 only tries it
	@$(FORK) rebase $(VERSION) $(if $(DRY),--dry-run)

pr:  ## make a branch of the patch set on CLONE, a git clone of Keras
	@$(FORK) pr $(CLONE)

clean:  ## remove what was built; refuses to lose unexported edits
	@test ! -d build/tree || $(FORK) checkout
	rm -rf build/tree build/dist build/scratch-*
