.DEFAULT_GOAL := help
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip install --quiet --disable-pip-version-check
READY := $(VENV)/.ready
EXTRAS := $(VENV)/.extras
DEV := $(VENV)/.dev
ACTIVEMQ := $(VENV)/.activemq
BENCH := $(VENV)/.bench
NEEDS := $(PYTHON) tests/servers/needs.py
# Where it is set, each of the hundreds of processes of a test run compiles whatever it imports.
export PYTHONDONTWRITEBYTECODE :=

.PHONY: help extras activemq run quick test soak servers lint type fmt bench pictures dist clean

help: ## Show this help
	@grep -hE '^[a-z]+:.*##' $(MAKEFILE_LIST) | awk -F ':.*## ' '{printf "  make %-8s %s\n", $$1, $$2}'

$(READY): requirements.lock pyproject.toml
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "FlowCatalyst needs Python 3.11 or newer, this is " + sys.version.split()[0] + ". Try: make PYTHON=python3.11 ...")'
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV) || { echo "Python's venv module is missing. On Debian: apt-get install python3-venv"; rm -rf $(VENV); exit 1; }
	@echo "Installing the router into $(VENV) (first run only, less than a minute) ..."
	@$(PIP) -r requirements.lock
	@$(PIP) --no-deps -e .
	@touch $@

$(EXTRAS): $(READY) requirements-extras.lock
	@echo "Installing the clients of SQS, NATS, Redis, PostgreSQL, HTTP/2 and OpenTelemetry into $(VENV) (first run only) ..."
	@$(PIP) -r requirements-extras.lock
	@touch $@

$(DEV): $(EXTRAS) requirements-dev.lock
	@echo "Installing the tools of tests into $(VENV) (first run only, about a minute) ..."
	@$(PIP) --no-deps -r requirements-dev.lock
	@touch $@

# The AMQP client is built from source: only those who need ActiveMQ need a C compiler.
$(ACTIVEMQ): $(READY) requirements-activemq.lock
	@echo "Building the AMQP client (first run only, about half a minute) ..."
	@$(PIP) -r requirements-activemq.lock || \
	  { test "$$(id -u)" = 0 && apt-get update -qq && DEBIAN_FRONTEND=noninteractive apt-get install -y -qq $$($(NEEDS) compiler) >/dev/null && \
	    $(PIP) -r requirements-activemq.lock; } || \
	  { echo "The AMQP client cannot be built: it needs a C compiler. On Debian: apt-get install $$($(NEEDS) compiler)"; exit 1; }
	@touch $@

extras: $(EXTRAS) ## Add what SQS and NATS queues, a Redis standby, PostgreSQL, HTTP/2 and traces need

activemq: $(ACTIVEMQ) ## Add what ActiveMQ queues need (builds the AMQP client, needs a C compiler)

run: $(READY) ## Start a router with demo traffic on http://127.0.0.1:8080
	@$(BIN)/flowcatalyst up --demo

quick: $(DEV) ## Run what needs no server and no process (80 s of processor time)
	@$(BIN)/python -m pytest --quick -n 3 --dist loadgroup --tb=short -p no:schemathesis

test: ## Run all tests; says first what it installs for them
	@$(NEEDS)
	@$(MAKE) --no-print-directory $(DEV)
	@$(MAKE) --no-print-directory $(ACTIVEMQ) || test -z "$$TEST_REQUIRE_SERVERS"
	@$(BIN)/python -m tests

SEEDS ?= 5000
soak: $(DEV) ## Look for new faults: simulated histories, SEEDS=100000 of them (FIRST= picks the first), and properties
	@$(BIN)/python -m tests.sim $(SEEDS) --first $(or $(FIRST),0)
	@$(BIN)/python -m pytest -n 2 -m hypothesis --hypothesis-profile explore --no-summary

servers: $(DEV) $(ACTIVEMQ) ## Start Redis, PostgreSQL, NATS, ElasticMQ, moto, ActiveMQ and Artemis to play with, until Ctrl-C
	@$(BIN)/python -m tests.servers

lint: $(DEV) ## Check style, and that packages import one way
	@$(BIN)/ruff check . && $(BIN)/ruff format --check . && $(BIN)/lint-imports --no-logo

type: $(DEV) ## Check types
	@$(BIN)/mypy

fmt: $(DEV) ## Format the code and fix what can be fixed
	@$(BIN)/ruff format . && $(BIN)/ruff check --fix .

$(BENCH): $(DEV) requirements-bench.lock
	@$(PIP) -r requirements-bench.lock
	@touch $@

bench: $(DEV) $(ACTIVEMQ) $(BENCH) ## Measure throughput and CPU against wrk and a naive router, and on each broker (installs nginx and wrk on Debian)
	@$(BIN)/python -m bench

pictures: $(DEV) ## Retake the pictures of README and docs from a demo run (needs chromium, takes two minutes)
	@$(BIN)/python -m tools.screenshots

dist: $(DEV) ## Build the wheel and the source distribution into dist/
	@$(BIN)/python -m build --no-isolation

clean: ## Remove the virtual environment and caches
	rm -rf $(VENV) .mypy_cache .ruff_cache .pytest_cache .hypothesis .servers build dist
