# Every command of the repository. `make help` lists them.
# How the patch set works: CONTRIBUTING.md.

SHELL := /bin/bash
PYTHON ?= python3
VENV := .venv
PY := $(if $(wildcard $(VENV)/bin/python),$(VENV)/bin/python,$(PYTHON))
FORK := $(PY) tools/fork.py

.DEFAULT_GOAL := help
.PHONY: help tree status export check wheel rebase pr

help: ## list the commands
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "%-14s %s\n", $$1, $$2}' \
	    $(MAKEFILE_LIST)

tree: ## make build/tree: Keras with the patch set (FORCE=1 drops edits)
	@$(FORK) checkout $(if $(FORCE),--force)

status: ## list the patches, and what build/tree has that no export saved
	@$(FORK) status

export: ## write the edits in build/tree back to the repository
	@$(FORK) export

check: ## prove that the repository keeps its rules
	@$(FORK) check

wheel: tree ## build/dist/keras-*.whl, compared with the tree
	@$(FORK) build

rebase: ## move the patch set: make rebase VERSION=3.16.0 [DRY=1]
	@$(FORK) rebase $(or $(VERSION),$(error say which: VERSION=3.16.0, \
	    or VERSION=latest)) $(if $(DRY),--dry-run)

pr: ## a branch for upstream on a clone: make pr CLONE=../keras
	@$(FORK) pr $(or $(CLONE),$(error say where: CLONE=../keras))
