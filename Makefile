# `make demo` and `make test` set up what they need first; nothing else has to be installed by hand.
SHELL := /bin/bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := help
MAKEFLAGS += --no-builtin-rules

BIN := .venv/bin
# The longest first: two run at a time.
CHECKS := check-types check-native check-docs check-lint

.PHONY: help setup setup-tests demo demo-fill demo-hosts demo-kube demo-span demo-tune test test-slow test-all test-nightly test-gpu test-kube kube-assets mutants disk-faults fuzz check $(CHECKS) format bench drill docs wheels lock clean

help: ## Show this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-12s %s\n", $$1, $$2 }' Makefile

setup: ## Make .venv with unidle and all it needs
	@scripts/setup.sh python

setup-tests:
	@scripts/setup.sh tests

demo: setup ## Train a small GPT on 4 ranks, kill one, resume, and show where the time went
	@$(BIN)/python scripts/demo.py $(ARGS)

demo-fill: setup ## Train a pipeline before and after a service prefills in its waits (as root): losses, answers, both ledgers
	@$(BIN)/python scripts/demo_fill.py $(ARGS)

demo-hosts: setup ## Train on three hosts (network namespaces, as root) that join a controller; kill a rank, cut a host, come back
	@$(BIN)/python scripts/demo_hosts.py $(ARGS)

demo-kube: kube-assets ## Train on a Kubernetes cluster of three nodes on this machine (as root); kill a rank, then a node
	@$(BIN)/python scripts/demo_kube.py $(ARGS)

demo-span: setup ## Train a small GPT over four sites with slow links, compared with its model and gloo (as root: in namespaces)
	@$(BIN)/python scripts/demo_span.py $(ARGS)

demo-tune: setup ## Make a slow training program faster: three planted causes and one more, a cheat refused, a report with both waterfalls
	@$(BIN)/python scripts/demo_tune.py $(ARGS)

# Tests of one file, and those that need the same part of the machine, run one after the other (tests/groups.py); the rest
# in parallel. Two workers for each core, at most four: tests of processes use half a core each, as they wait for them.
# WORKERS=0: all in one process, for a debugger.
WORKERS ?= $(shell cores=$$(nproc); echo $$((cores < 2 ? 2 : 4)))

# In a fresh clone each worker would compile every file of src and tests for itself.
define COMPILED
{ $(BIN)/python -m compileall -q -j 2 src; \
	  for part in 'tests/[a-k]*/' 'tests/[l-z]*/'; do $(BIN)/pytest -p no:cacheprovider --collect-only -qq $$part >/dev/null & done; wait; }
endef

test: MARKED := not slow and not nightly and not kube
test-slow: MARKED := slow and not nightly and not kube
test-all: MARKED := not nightly and not kube
test-nightly: MARKED := not kube
test-nightly: export UNIDLE_NIGHTLY := 1
test-nightly: THEN = && $(MAKE) --no-print-directory mutants ARGS= && $(MAKE) --no-print-directory fuzz SECONDS=600 JOBS=2 ARGS=
# Thousands of processes import the same files: their byte code is kept, whatever the environment says.
test test-slow test-all test-nightly: export PYTHONDONTWRITEBYTECODE :=
test: ## Run the quick tests (ARGS="-k lease -x" goes to pytest; WORKERS=0: one after the other)
test-slow: ## Run the tests of long drills and recoveries
test-all: ## Run both, as CI does
test-nightly: ## Run both, with long sweeps, all generated examples, mutants and fuzzing: before a release, after a change of their room
test test-slow test-all test-nightly: setup-tests
	@[ -d tests/__pycache__ ] || $(COMPILED)
	@scratch=$$(mktemp -d -t unidle-tests.XXXXXX); \
	$(BIN)/pytest -n $(WORKERS) --dist loadgroup --no-loadscope-reorder --basetemp="$$scratch/t" -m "$(MARKED)" $(ARGS) && rm -rf "$$scratch" $(THEN)  # kept for a look when a test failed

kube-assets: setup ## Build what a test cluster of Kubernetes is made of, from pinned Go modules: once, 10 minutes on two cores
	@scripts/setup.sh kube
	@scripts/kube assets

# Not part of the others: CI has no assets yet.
test-kube: setup ## Run the tests on a real cluster on this machine, as root (after make kube-assets)
	@$(BIN)/pytest -n 0 -m kube tests/kube tests/engine_contract $(ARGS)

test-gpu: ## Run every GPU path for real, without network (PYTHON=python3, WHEELS=DIR; ARGS="--json")
	@scripts/test-gpu.sh $(ARGS)

mutants: setup ## Small changes in 200 places of the policies, one at a time: at least 90 % are noticed by a test (JOBS=2)
	@nice $(BIN)/python scripts/mutants.py --jobs $(or $(JOBS),2) $(ARGS)

disk-faults: setup-tests ## Faults of a simulated disk under real processes, as root (SEEDS=1000 FROM=0 WORKERS=2; nightly)
	@$(BIN)/python bench/disk_faults.py --seeds $(or $(SEEDS),1000) --from $(or $(FROM),0) --workers $(or $(WORKERS),2) $(ARGS)

fuzz: setup ## Fuzz all readers and listeners (SECONDS=600 for each; ARGS="elf python-job" for some of them; JOBS=2 at once)
	@JOBS=$(or $(JOBS),1) scripts/fuzz.sh $(or $(SECONDS),600) $(ARGS)

check: setup ## Lint, format, types, import contract, house list, docs, native part
	@$(MAKE) --no-print-directory --keep-going --jobs=2 --output-sync=target $(CHECKS)

check-types:
	$(BIN)/mypy

# What maturin gives to the build of PyO3: with other values, this and each build of the wheel would undo the other's work.
check-native: export PYO3_PYTHON := $(CURDIR)/$(BIN)/python
check-native:
	@if command -v cargo >/dev/null; then \
	  export PYO3_ENVIRONMENT_SIGNATURE=$$($(BIN)/python -c 'import sys; print(f"cpython-{sys.version_info[0]}.{sys.version_info[1]}-64bit")'); \
	  set -x; cd native; cargo fmt --check; \
	  cargo clippy --release --all-targets --locked --quiet -- -D warnings; else echo "no cargo: native/ is not checked"; fi

check-lint:
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/lint-imports
	$(BIN)/python scripts/words.py
	$(BIN)/python scripts/house.py
	$(BIN)/python scripts/picture.py

check-docs:
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict --quiet --site-dir .cache/site

format: setup ## Rewrite the code in the project's format
	$(BIN)/ruff check --fix --quiet . || true
	$(BIN)/ruff format .
	@! command -v cargo >/dev/null || (cd native && cargo fmt)

bench: setup ## Run all benchmarks and rewrite docs/benchmarks.md
	$(BIN)/python bench/run_all.py $(ARGS)

drill: setup ## Put every fault into a real job (as root), and show what each cost
	@scratch=$$(mktemp -d -t unidle-make-drill.XXXXXX); trap 'rm -rf "$$scratch"' EXIT; \
	ended=0; $(BIN)/unidle drill examples/drill/drill.yaml --store "$$scratch/drill.db" $(ARGS) || ended=$$?; \
	echo; $(BIN)/unidle guard incidents --store "$$scratch/drill.db"; \
	echo; $(BIN)/unidle ledger --store "$$scratch/drill.db"; \
	exit $$ended

docs: setup ## Build the documentation into site/
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict --quiet
	@echo "docs: site/index.html"

wheels: setup ## Build the wheels and source archives of unidle and its native part into dist/
	@scripts/wheels.sh dist

lock: setup ## Write requirements.lock again (ARGS=--upgrade takes newer versions)
	UV_CUSTOM_COMPILE_COMMAND="make lock" $(BIN)/uv pip compile pyproject.toml --group dev --extra hosts --extra polars --extra postgres --extra serve --extra train --extra tune \
	  --universal --python-version 3.11 --generate-hashes --quiet --output-file requirements.lock $(ARGS)

clean: ## Remove .venv, caches and what was built
	rm -rf .venv .cache site build dist .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache
	find src tests bench scripts examples -name __pycache__ -type d -prune -exec rm -rf {} +
