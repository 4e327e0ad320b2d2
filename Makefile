# What a person types: `make help`. Needs Python 3.11 or later, and nothing else.
#
# Everything runs in $(VENV), which the first command makes (with uv where there is one, else with
# venv and pip). A stamp file says what is installed there, so a second run starts at once.
#
#   make demo ARGS=--once        arguments for `parley demo`
#   make test ARGS=tests/store     arguments for pytest; JOBS=1 runs one test at a time
#   make test PYTHON=python3.12  another Python; $(VENV) is made anew when it holds a different one

VENV ?= .venv
ARGS ?=
JOBS ?= auto
# Tests wait for the processes that they start, so `auto` is one worker more than there are cores.
AUTO = $(BIN)/python -c 'import os; print(os.cpu_count() + 1)'
WORKERS = $(if $(filter auto,$(JOBS)),$$($(AUTO)),$(JOBS))
SECONDS ?= 60
SEEDS ?= 2000

# Tests start a thousand processes: what each imports is compiled once, whatever the shell says.
unexport PYTHONDONTWRITEBYTECODE

ifeq ($(OS),Windows_NT)
BIN := $(VENV)/Scripts
EXE := .exe
else
BIN := $(VENV)/bin
EXE :=
endif

# The Python to make $(VENV) with: the one that was asked for, else the first that is new enough.
ENOUGH := -c 'import sys; sys.exit(sys.version_info < (3, 11))'
ASKED := $(PYTHON)
ifeq ($(ASKED),)
FOUND = $(firstword $(foreach p,python3 python3.14 python3.13 python3.12 python3.11 python, \
	$(shell $(p) $(ENOUGH) >/dev/null 2>&1 && echo $(p))))
STAMP := $(VENV)/made
else
FOUND = $(shell $(ASKED) $(ENOUGH) >/dev/null 2>&1 && echo $(ASKED))
STAMP := $(VENV)/made-$(shell $(ASKED) -c 'import sys; print("%d.%d" % sys.version_info[:2])')
endif

UV := $(shell uv pip install --help 2>/dev/null | grep -q -- --group && echo uv)
ifeq ($(UV),)
INSTALL = $(BIN)/python -m pip install --quiet --disable-pip-version-check
else
INSTALL = uv pip install --quiet --python $(BIN)/python$(EXE)
endif

.PHONY: help web demo test test-quick lint release-check bench bench-quick bench-fleet bench-failover bench-peers docs site conformance interop frameworks fuzz simulation mutants clean

help:
	@echo "make demo    serve the example agents and talk to them (ARGS=--once ends by itself)"
	@echo "make test    run all tests (ARGS=tests/store for some of them)"
	@echo "make test-quick  run the tests that take no time, no service and no process"
	@echo "make lint    style, types, floors; licences and advisories of dependencies, and their SBOM"
	@echo "make release-check  build twice, install on every Python and with each extra (ARGS=3.13)"
	@echo "make bench   measure beside a typed app and other SDKs (ARGS=--write into the documents)"
	@echo "make bench-quick  compare with the figures that are expected, in two minutes"
	@echo "make bench-fleet  measure replicas, stored tasks and memory"
	@echo "make bench-failover  lose a primary, a Redis, a replica, and see what callers see"
	@echo "make bench-peers  make the environments of the SDKs that are measured"
	@echo "make conformance  run the public conformance kits of A2A (ARGS=tck-1.0 for one of them)"
	@echo "make frameworks  ask every adapter of a framework (ARGS='-k strands' for one of them)"
	@echo "make interop  run other people's clients and servers (ARGS=js-1.3 for one of them)"
	@echo "make fuzz    search for inputs that break a decoder (SECONDS=60 for each)"
	@echo "make mutants  change the product at random, see which tests notice (ARGS=engine, a room)"
	@echo "make simulation  a fleet under a seeded scheduler, with faults (SEEDS=10000 for more)"
	@echo "make docs    check the documentation: links, and every command and snippet in it"
	@echo "make web     build the page for browsers from web/ (needs Node.js and npm)"
	@echo "make site    build the site of the documentation, into site/"
	@echo "make clean   remove $(VENV) and everything that the commands above leave behind"

demo: $(VENV)/for-demo
	@$(BIN)/parley demo $(ARGS)

test: $(VENV)/for-tests
	@$(BIN)/python -m pytest -rs -n $(WORKERS) -p tests.second_run --part=twice $(ARGS)

test-quick: $(VENV)/for-tests
	@$(BIN)/python -m pytest -n $(WORKERS) -p tests.second_run --part=quick $(ARGS)

lint: $(VENV)/for-tests
	@$(BIN)/ruff check
	@$(BIN)/ruff format --check
	@$(BIN)/mypy
	@$(BIN)/lint-imports
	@$(BIN)/python -m tests.house.dependencies

# What is released: not a part of .ci/run, since it takes minutes.
release-check: $(VENV)/for-tests
	@$(BIN)/python -m tests.house.release_check $(ARGS)

bench: $(VENV)/for-tests
	@$(BIN)/python benchmarks/run.py $(ARGS)

bench-quick: $(VENV)/for-tests
	@$(BIN)/python benchmarks/quick.py $(ARGS)

bench-fleet: $(VENV)/for-tests
	@$(BIN)/python benchmarks/run.py --parts memory,fleet,stored $(ARGS)

bench-failover: $(VENV)/for-tests
	@$(BIN)/python benchmarks/failover.py $(ARGS)

bench-peers: $(VENV)/for-tests
	@$(BIN)/python benchmarks/environments.py

docs: $(VENV)/for-tests
	@$(BIN)/python -m pytest tests/house/test_docs.py tests/house/test_links.py $(ARGS)

site: $(VENV)/for-site
	@$(BIN)/python site_build.py $(ARGS)

# The built files are committed: neither installing Parley nor running it needs Node.js.
web:
	@cd web && npm ci --no-audit --no-fund --ignore-scripts && npm run build

fuzz: $(VENV)/for-tests
	@$(BIN)/python -m tests.fuzz.run --seconds $(SECONDS) $(ARGS)

simulation: $(VENV)/for-tests
	@$(BIN)/python -m tests.simulation --seeds $(SEEDS) $(ARGS)

mutants: $(VENV)/for-tests
	@$(BIN)/python -m tests.mutants $(ARGS)

conformance: $(VENV)/for-tests
	@$(BIN)/python -m conformance $(ARGS)

frameworks: $(VENV)/for-tests
	@PARLEY_FRAMEWORKS=all $(BIN)/python -m pytest -rs tests/integrations $(ARGS)

interop: $(VENV)/for-tests
	@$(BIN)/python -m tests.peers $(ARGS)

clean:
	rm -rf $(VENV) build site .peers .mypy_cache .ruff_cache .import_linter_cache .hypothesis .fuzz

$(STAMP):
	@test -n "$(FOUND)" || { echo "Parley needs Python 3.11 or later$(if $(ASKED),; $(ASKED) is not). \
	Install it; or name it: make $(MAKECMDGOALS) PYTHON=/path/to/python3.11"; exit 1; }
	@echo "making $(VENV) with $(FOUND)"
ifeq ($(UV),)
	@$(FOUND) -m venv $(if $(ASKED),--clear) $(VENV)
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check --upgrade 'pip>=25.1'
else
	@uv venv --quiet $(if $(ASKED),--clear,--allow-existing) --python $(FOUND) $(VENV)
endif
	@touch $(STAMP) $(VENV)/made

$(VENV)/for-demo: $(STAMP) pyproject.toml
	@echo "installing Parley"
	@$(INSTALL) -e '.[cli]'
	@touch $@

$(VENV)/for-tests: $(STAMP) pyproject.toml
	@echo "installing Parley and what its tests need"
	@$(INSTALL) -e '.[cli,reload]' --group dev
	@$(BIN)/python -m compileall -q -j 0 src # else servers under test compile what they load late
	@touch $@ $(VENV)/for-demo $(VENV)/for-site

$(VENV)/for-site: $(STAMP) pyproject.toml
	@echo "installing what builds the site"
	@$(INSTALL) --group site
	@touch $@
