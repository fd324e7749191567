.DEFAULT_GOAL := help
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
READY := $(VENV)/.ready
ACTIVEMQ := $(VENV)/.activemq

.PHONY: help activemq run test soak servers lint type fmt bench clean

help: ## Show this help
	@grep -hE '^[a-z]+:.*##' $(MAKEFILE_LIST) | awk -F ':.*## ' '{printf "  make %-8s %s\n", $$1, $$2}'

$(READY): requirements.lock pyproject.toml
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "FlowCatalyst needs Python 3.11 or newer, this is " + sys.version.split()[0] + ". Try: make PYTHON=python3.11 ...")'
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV) || { echo "Python's venv module is missing. On Debian: apt-get install python3-venv"; rm -rf $(VENV); exit 1; }
	@echo "Installing into $(VENV) (first run only, about a minute) ..."
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check -r requirements.lock
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps -e .
	@touch $@

# The AMQP client is built from source: only those who need ActiveMQ need a C compiler.
$(ACTIVEMQ): $(READY) requirements-activemq.lock
	@echo "Building the AMQP client (first run only, about half a minute) ..."
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check -r requirements-activemq.lock || \
	  { test "$$(id -u)" = 0 && apt-get update -qq && DEBIAN_FRONTEND=noninteractive apt-get install -y -qq gcc libc6-dev python3-dev >/dev/null && \
	    $(BIN)/python -m pip install --quiet --disable-pip-version-check -r requirements-activemq.lock; } || \
	  { echo "The AMQP client cannot be built: it needs a C compiler. On Debian: apt-get install gcc libc6-dev python3-dev"; exit 1; }
	@touch $@

activemq: $(ACTIVEMQ) ## Add what ActiveMQ queues need (builds the AMQP client, needs a C compiler)

run: $(READY) ## Start a router with demo traffic on http://127.0.0.1:8080
	@$(BIN)/flowcatalyst up --demo

test: $(ACTIVEMQ) ## Run all tests
	@$(BIN)/python -m pytest -m 'not brokers' -n 3 --dist loadgroup
	@$(BIN)/python -m pytest -m brokers -n 6 --dist loadgroup

SEEDS ?= 5000
soak: $(READY) ## Play many simulated histories: make soak SEEDS=100000 (FIRST= picks the first seed)
	@$(BIN)/python -m tests.sim $(SEEDS) --first $(or $(FIRST),0)

servers: $(ACTIVEMQ) ## Start Redis, NATS, ElasticMQ, moto, ActiveMQ and Artemis to play with, until Ctrl-C
	@$(BIN)/python -m tests.servers

lint: $(READY) ## Check style
	@$(BIN)/ruff check . && $(BIN)/ruff format --check .

type: $(READY) ## Check types
	@$(BIN)/mypy

fmt: $(READY) ## Format the code and fix what can be fixed
	@$(BIN)/ruff format . && $(BIN)/ruff check --fix .

bench: $(ACTIVEMQ) ## Measure throughput and CPU against wrk and a naive router, and on each broker (installs nginx and wrk on Debian)
	@$(BIN)/python -m bench

clean: ## Remove the virtual environment and caches
	rm -rf $(VENV) .mypy_cache .ruff_cache .pytest_cache .hypothesis .servers build dist
