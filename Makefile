# Everything a person or CI does with a checkout; `make` alone lists it. Needs python3, make and a
# package index. Every target that runs code first brings .venv into the pinned state, and heals it.

PYTHON ?= python3
WORKERS ?= 2
BENCHES ?= coverage
ARGS ?=

VENV := .venv
BIN := $(VENV)/bin
LEROBOT := .venv-lerobot
PIP := $(BIN)/python -m pip install
TORCH := $(shell sed -n 's/^\(torch==[0-9.]*\).*/\1/p' constraints.txt)

# The workers share the cores; a thread pool in each would make them fight.
ONE_THREAD := OMP_NUM_THREADS=1 MKL_NUM_THREADS=1 OPENBLAS_NUM_THREADS=1
PYTEST := $(ONE_THREAD) $(BIN)/pytest

export PIP_DISABLE_PIP_VERSION_CHECK := 1
export PIP_NO_INPUT := 1
export PIP_USER := 0

.DEFAULT_GOAL := help
.NOTPARALLEL:
.PHONY: help demo docs test test-all test-docs test-gpu test-lerobot test-wheels check lint types format coverage bench clean environment environment-lerobot

help: ## list the targets
	@echo "usage: make TARGET [ARGS='...'] [PYTHON=python3.12]"
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  %-12s %s\n", $$1, $$2 }' Makefile

demo: environment ## run the demo
	$(BIN)/muninn-bench demo $(ARGS)

docs: environment ## build the documentation into site/, strictly
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict
	@echo "To read it: $(BIN)/python -m http.server -d site"

test: environment ## run the fast tests and the doctests
	$(PYTEST) -n $(WORKERS) --dist worksteal -m "not slow and not gpu and not wheels and not site" $(ARGS)

test-all: environment ## run the slow tests too
	$(PYTEST) -n $(WORKERS) --dist worksteal -m "not gpu and not wheels and not site" $(ARGS)

test-gpu: environment ## run the tests that need a CUDA device
	$(BIN)/pytest -m gpu $(ARGS)

test-wheels: environment ## build both wheels, install them elsewhere, run every documented command
	$(PYTEST) -q -m wheels tests/wheels $(ARGS)

test-docs: docs ## open the documentation in Chromium, if it is installed
	$(PYTEST) -q -m site tests/site $(ARGS)

test-lerobot: environment-lerobot ## run the adapters on LeRobot's own classes, and Meta-World
	$(LEROBOT)/bin/python -c "import lerobot.policies.diffusion.modeling_diffusion, lerobot.policies.smolvla.modeling_smolvla, metaworld"
	$(ONE_THREAD) $(LEROBOT)/bin/python -m pytest tests/library/adapters tests/bench/tasks/metaworld $(ARGS)
	$(ONE_THREAD) $(LEROBOT)/bin/python -m pytest -q tests/bench/test_tasks.py -k metaworld

check: lint types test ## all that CI runs: lint, types, then the fast tests

lint: environment ## check style, formatting and duplicate code
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/pylint src/muninn
	$(BIN)/pylint benchmarks/muninn_bench

types: environment ## check types, strictly
	$(BIN)/mypy

format: environment ## mend style and formatting in place
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

coverage: environment ## run the fast tests and show the lines they miss
	$(PYTEST) -n $(WORKERS) -m "not slow and not gpu and not wheels and not site" --cov --cov-report=term --cov-report=html $(ARGS)

bench: environment ## run the benchmarks named in BENCHES
	@set -e; for name in $(BENCHES); do \
	    echo "muninn-bench $$name $(ARGS)"; $(BIN)/muninn-bench $$name $(ARGS); \
	done

clean: ## remove .venv, caches and build outputs; keep data/, runs/ and results/
	rm -rf $(VENV) $(LEROBOT) build dist htmlcov site .coverage .coverage.* .hypothesis .mypy_cache .pytest_cache .ruff_cache
	find src benchmarks tests -name __pycache__ -type d -prune -exec rm -rf {} +

# The environment is believed only while .venv/installed.json says so. `record` writes it as the last
# act of an installation; `verify` exits 0 if all is as recorded, 3 if only pyproject.toml, constraints.txt
# or this file changed since, and 1 if .venv is unfinished, moved or damaged. Every installed file's
# size is compared, about 20,000 of them in half a second, and nothing is imported.
define LEDGER
import csv, hashlib, json, os, sys, sysconfig

site = sysconfig.get_path("purelib")
ledger = os.path.join(sys.prefix, "installed.json")


def sizes(distribution):
    digest = hashlib.sha256()
    with open(os.path.join(site, distribution, "RECORD"), encoding="utf-8", newline="") as lines:
        for path, *_ in csv.reader(lines):
            if not path.endswith(".pyc"):
                file = os.path.join(site, path)
                size = os.stat(file).st_size if os.path.exists(file) else "missing"
                digest.update(f"{path} {size}\n".encode())
    return digest.hexdigest()


def inputs():
    digest = hashlib.sha256()
    for name in ("pyproject.toml", "benchmarks/pyproject.toml", "constraints.txt", "requirements-lerobot.txt", "Makefile"):
        with open(name, "rb") as file:
            digest.update(file.read())
    return digest.hexdigest()


def record():
    names = [name for name in sorted(os.listdir(site)) if name.endswith(".dist-info")]
    state = {"place": site, "inputs": inputs()}
    state["files"] = {name: sizes(name) for name in names if not name.startswith("pip-")}
    with open(ledger + ".new", "w", encoding="utf-8") as file:
        json.dump(state, file, indent=1)
    os.replace(ledger + ".new", ledger)


def verify(wanted):
    version = "%d.%d" % sys.version_info[:2]
    if wanted and wanted != version:
        return f"it has Python {version} and PYTHON is {wanted}"
    try:
        with open(ledger, encoding="utf-8") as file:
            state = json.load(file)
    except (OSError, ValueError):
        return "its installation did not finish"
    if state["place"] != site:
        return "it was made in another place"
    for name, digest in state["files"].items():
        try:
            damaged = sizes(name) != digest
        except OSError:
            damaged = True
        if damaged:
            return f"files of {name[:-len('.dist-info')]} are gone or changed"
    if state["inputs"] != inputs():
        sys.exit(3)
    return None


if sys.argv[1] == "record":
    record()
else:
    problem = verify(sys.argv[2])
    sys.exit(problem and f"{os.path.basename(sys.prefix)} cannot be used: {problem}.")
endef
environment environment-lerobot: export LEDGER := $(LEDGER)

# What is asked of $(PYTHON) before anything is made. It must parse on any Python.
define SUITABLE
import sys
if not (3, 10) <= sys.version_info[:2] <= (3, 13):
    sys.exit("Python %d.%d is not supported: Muninn's environment needs 3.10 to 3.13." % sys.version_info[:2])
try:
    import ensurepip, venv
except ImportError:
    sys.exit("This Python cannot make virtual environments (no venv or ensurepip). "
             "On Debian and Ubuntu: apt-get install python3-venv")
endef
environment: export SUITABLE := $(SUITABLE)

# The lock, where flock exists, keeps two makes from installing into one .venv. torch comes first, by
# itself and named exactly, so that pip takes a CPU build where one is offered. Of gym-hil only the
# meshes are used, so it comes without what it needs.
environment:
	@exec 9<Makefile; \
	if command -v flock >/dev/null && ! flock -n 9; then \
	    echo "Waiting for another make to finish setting up $(VENV)."; flock 9; \
	fi; \
	advise() { \
	    echo "Name a suitable Python, 3.10 to 3.13: make $(MAKECMDGOALS) PYTHON=python3.11 (now: $(PYTHON))"; \
	    exit 1; \
	}; \
	wanted=; \
	if [ "$(origin PYTHON)" != file ]; then \
	    wanted=$$($(PYTHON) -c 'import sys; print("%d.%d" % sys.version_info[:2])') || advise; \
	fi; \
	state=1; \
	if [ -x $(BIN)/python ]; then \
	    $(BIN)/python -I -c "$$LEDGER" verify "$$wanted"; state=$$?; \
	fi; \
	if [ $$state = 0 ]; then exit 0; fi; \
	$(PYTHON) -c "$$SUITABLE" || advise; \
	quiet=; if [ ! -t 1 ]; then quiet=-qq; fi; \
	rm -f $(VENV)/installed.json; \
	if [ $$state = 3 ]; then \
	    echo "Bringing $(VENV) up to date."; \
	else \
	    echo "Setting up $(VENV): one to three minutes, 2.4 GB."; \
	    rm -rf $(VENV) && $(PYTHON) -m venv $(VENV) || exit 1; \
	fi; \
	echo "Installing $(TORCH)."; \
	if ! $(PIP) $$quiet $(TORCH); then \
	    echo "pip could not install $(TORCH); its reason is above."; \
	    echo "If it found no matching distribution, $$($(BIN)/python -V) has no build of it on this machine."; \
	    advise; \
	fi; \
	echo "Installing Muninn and its development tools."; \
	$(PIP) $$quiet -c constraints.txt -e '.[dev]' -e './benchmarks[arm,fly,viz]' && \
	$(PIP) $$quiet --no-deps -c constraints.txt gym-hil && \
	$(BIN)/python -I -c "$$LEDGER" record && \
	echo "$(VENV) is ready."

# LeRobot wants other versions of what .venv holds, so it has an environment of its own; the file of
# its pins says why they are installed without their dependencies.
environment-lerobot: ## set up .venv-lerobot, with LeRobot and Meta-World
	@exec 9<requirements-lerobot.txt; \
	if command -v flock >/dev/null && ! flock -n 9; then \
	    echo "Waiting for another make to finish setting up $(LEROBOT)."; flock 9; \
	fi; \
	state=1; \
	if [ -x $(LEROBOT)/bin/python ]; then \
	    $(LEROBOT)/bin/python -I -c "$$LEDGER" verify ""; state=$$?; \
	fi; \
	if [ $$state = 0 ]; then exit 0; fi; \
	quiet=; if [ ! -t 1 ]; then quiet=-qq; fi; \
	rm -f $(LEROBOT)/installed.json; \
	if [ $$state != 3 ]; then \
	    echo "Setting up $(LEROBOT) with LeRobot: one to three minutes, 1.5 GB."; \
	    rm -rf $(LEROBOT) && $(PYTHON) -m venv $(LEROBOT) || exit 1; \
	fi; \
	pip="$(LEROBOT)/bin/python -m pip install $$quiet"; \
	$$pip $(TORCH) && $$pip --no-deps -r requirements-lerobot.txt && $$pip --no-deps -e . -e ./benchmarks && \
	$(LEROBOT)/bin/python -I -c "$$LEDGER" record && \
	echo "$(LEROBOT) is ready."
