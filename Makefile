# allpull: `make demo` runs the main job, `make test` passes the tests; both set up .venv by themselves.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
READY := $(VENV)/ready
# pip compiles nothing here (tools/environment.py), so Python has to keep what it compiles on import: half of a start.
unexport PYTHONDONTWRITEBYTECODE
# What the demo needs is a part of what development needs: where the whole is there, it will do.
FOR_DEMO := $(if $(wildcard $(READY)),$(READY),$(VENV)/ready-for-demo)

.PHONY: help venv demo test test-all test-gpu check types lint contracts docs reference proof apptainer frameworks clean

help:            ## say what there is
	@sed -n 's/^\([a-z-]*\): .*## /\1\t/p' Makefile | expand -t 12

venv: $(READY)   ## make .venv with allpull, torch and the tools for development

$(READY): EXTRAS := torch docs dev tune
$(VENV)/ready-for-demo: EXTRAS := torch
$(READY) $(VENV)/ready-for-demo: pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' \
	  || { echo "allpull needs Python 3.11 or newer; give one with: make PYTHON=python3.11"; exit 2; }
	@$(PYTHON) -c 'import venv, ensurepip' \
	  || { echo "Python has no venv module; on Debian: apt install python3-venv"; exit 2; }
	@$(PYTHON) tools/environment.py $(VENV) $(EXTRAS)
	@touch $@

demo: $(FOR_DEMO)  ## train on 1 and 2 ranks, compare, write a report
	$(BIN)/allpull demo

# What needs a quiet machine runs alone, the rest two files at a time in their order, or three where many of them wait:
# what is long comes before the doctests, which fill up the end.
HOSTS := ssh or slurm or root
PYTEST := $(BIN)/python -m pytest
BY_FILE := --dist loadfile --no-loadscope-reorder

test: $(READY)   ## the tests that state the facts, in six minutes on two quiet cores
	$(PYTEST) -m "not (slow or alone or $(HOSTS))" -n 2 $(BY_FILE)

test-all: $(READY)  ## the rest: restarts, queues, hosts, containers, frameworks and browsers, all real
	$(PYTEST) -m "(slow or $(HOSTS)) and not (alone or proof)" -n 3 $(BY_FILE) tests
	$(PYTEST) -m alone $$(grep -rl 'mark\.alone' tests --include='*.py' | sort)

test-gpu: $(READY)  ## what needs an NVIDIA GPU
	$(PYTEST) -m gpu tests

check: lint types contracts  ## the checks that need no run
	$(BIN)/python tools/reference.py --check

lint: $(READY)
	$(BIN)/ruff check . && $(BIN)/ruff format --check .

types: $(READY)
	$(BIN)/mypy

contracts: $(READY)
	$(BIN)/lint-imports --no-cache

reference: $(READY)  ## make the generated part of the documentation again
	$(BIN)/python tools/reference.py

docs: reference  ## build the documentation into site/
	$(BIN)/mkdocs build --strict

proof: $(READY)  ## the long measurements (ONLY=name: one of them) and tests; results go to benchmarks/results/
	$(if $(ONLY),,$(PYTEST) -m proof tests)
	$(BIN)/python benchmarks/proof.py $(if $(ONLY),--only $(ONLY))
	$(BIN)/python tools/reference.py

frameworks: $(READY)  ## get the frameworks whose programs are tested into build/
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps --upgrade --target build/frameworks \
	  -r tests/scripts/requirements.txt
	DS_BUILD_OPS=0 DS_ACCELERATOR=cpu $(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps --upgrade \
	  --no-build-isolation --target build/frameworks-apart -r tests/scripts/requirements-apart.txt

apptainer:       ## get a real Apptainer into build/, for the tests of containers
	test -x build/apptainer/bin/apptainer || $(PYTHON) tools/apptainer.py build/apptainer

clean:           ## remove what was built; runs stay
	rm -rf $(VENV) build site src/*.egg-info .mypy_cache .ruff_cache .import_linter_cache .hypothesis
