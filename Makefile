# The two commands of the README are `make demo` and `make test`; each does all its set-up itself.
# Without make: see README.md, "Without make".

PYTHON ?= python3
VENV   := .venv
BIN    := $(VENV)/bin
PIP     = $(BIN)/python -m pip install $$(test -t 2 || echo --quiet)
FAST   := not slow and not interop and not kafka and not spark and not root

MINUTES ?= 30
BROKER  ?= ottla

unexport PYTHONDONTWRITEBYTECODE  # where it is set, each of the thousands of processes would compile all modules

.PHONY: help demo test test-clients check lint house reference docs wheel unit bench bench-smoke soak chaos chaos-spark roll sim-roll tables copies librdkafka logins sim fuzz fuzz-logins explore clean

help:  ## this list
	@sed -n 's/^\([a-z-]*\):.*## /\1\t/p' $(MAKEFILE_LIST) | expand -t 14

demo: $(VENV)/.demo  ## a broker, real events, PySpark, and the result (two minutes; needs only Python 3.11+)
	@$(BIN)/ottla demo

test: $(VENV)/.test  ## everything: lint, types, unit, contract, simulation, clients and tools nobody here wrote
	@$(BIN)/python -m testbench.run_tests

test-clients: $(VENV)/.test  ## the Python clients' suite against one broker: BROKER=ottla (the default) or kafka
	@case "$(BROKER)" in ottla) ;; kafka) testbench/setup ;; *) echo "BROKER is ottla or kafka" >&2; exit 1 ;; esac
	@BROKER=$(BROKER) $(BIN)/python -m pytest $(addprefix tests/client/,producer consumer aio examples_test.py)

check: $(VENV)/.test lint unit  ## fast: lint, types, tidy, unit tests (three to four minutes)

lint: $(VENV)/.test  ## ruff, mypy --strict, import contracts, the limits of `make house`
	@$(BIN)/ruff check .
	@$(BIN)/ruff format --check .
	@$(BIN)/mypy
	@$(BIN)/lint-imports
	@$(BIN)/python -m tools.house --quiet

house: $(VENV)/.test  ## names, sizes, imports and language in numbers: what they are, shall be, and may not exceed
	@$(BIN)/python -m tools.house

reference: $(VENV)/.test  ## write the generated pages of docs/: keys, metrics, commands; and the pictures
	@$(BIN)/python -m tools.reference
	@$(BIN)/python -m tools.drawings

docs: $(VENV)/.docs  ## the documentation as a site in build/site; every link is checked
	@$(BIN)/python -m tools.site
	@NO_MKDOCS_2_WARNING=1 $(BIN)/python -m mkdocs build --strict --quiet

wheel: $(VENV)/bin/python  ## a wheel and a source archive in dist/, checked in an empty environment
	@$(PIP) build twine
	@rm -rf dist && $(BIN)/python -m build --outdir dist .
	@$(BIN)/python -m twine check --strict dist/*
	@$(BIN)/python tools/check_wheel.py dist

unit: $(VENV)/.test  ## the tests that need nothing but Python and a quarter of a second each, in two processes
	@$(BIN)/python -m pytest tests -m "$(FAST)" -n 2

bench: $(VENV)/.test  ## measure against Apache Kafka and a C floor; writes RESULTS, COORDINATORS, STORAGE, CLUSTER, CLIENTS, COMMANDS, SPARK, SCHEMAS, TABLES, GROWTH and SECURITY.md
	@testbench/setup
	@bad=0; for part in run coordinators storage cluster clients commands spark schemas tables growth security; do $(BIN)/python bench/$$part.py || bad=1; done; exit $$bad

bench-smoke: $(VENV)/.test  ## whether a benchmark runs: four rows, without Kafka, a minute; its numbers mean nothing
	@mkdir -p build/bench && rm -f build/bench/RESULTS.md && $(BIN)/python bench/run.py --quick --no-kafka --runs 1 \
	  --only start,frame-16k,fetch-64k,e2e-acks1 --out build/bench || test -s build/bench/RESULTS.md

soak: MINUTES = 120
soak: $(VENV)/.test  ## two hours of mixed load on three brokers with faults (MINUTES=, RATE=, SEED=; needs root)
	@$(BIN)/python -m testbench.soak --minutes $(MINUTES) $(if $(RATE),--rate $(RATE)) $(if $(SEED),--seed $(SEED))

chaos: $(VENV)/.test  ## three brokers, plain and secured, 30 minutes of faults on each engine (MINUTES=, SEED=; needs root)
	@testbench/setup
	@for engine in embedded zookeeper secured; do \
	  $(BIN)/python -m testbench.chaos --engine $$engine --minutes $(MINUTES) $(if $(SEED),--seed $(SEED)) || exit 1; \
	done

chaos-spark: $(VENV)/.test  ## Spark's exactly-once sink: tasks, workers, executors and drivers die at each step (BROKER=, ROWS=, CASE=, KEEP=)
	@testbench/setup
	@$(BIN)/python -m testbench.spark_chaos --broker $(BROKER) --rows $(or $(ROWS),100000) \
	  --transaction-version $(or $(TRANSACTION_VERSION),2) $(if $(CASE),--case "$(CASE)") \
	  $(if $(KEEP),--keep "$(KEEP)")

roll: $(VENV)/.test  ## brokers are replaced by those of release 0.1 and back, the five steps of an upgrade, with kills (ROUNDS=, SEED=)
	@testbench/setup
	@$(BIN)/python -m testbench.rolls --rounds $(or $(ROUNDS),3) $(if $(SEED),--seed $(SEED))

sim-roll: $(VENV)/.test  ## 500 simulated clusters roll from release 0.1 to this one and back, and fail without each gate (SEEDS=)
	@$(BIN)/python -m testbench.mixed --seeds $(or $(SEEDS),1..500)
	@$(BIN)/python -m testbench.mixed --gates --seeds 1..100 --seconds 12 --brokers 3

tables: $(VENV)/.test  ## all real events into Iceberg and Delta tables, killed at each step; DuckDB and Spark read them
	@testbench/setup
	@$(BIN)/python -m testbench.table_readers --spark
	@TABLES_EVENTS=all TABLES_STRIDE=1 $(BIN)/python -m pytest tests/tables/backfill_test.py tests/tables/kill_test.py \
	  tests/pipeline/table_output_test.py

copies: $(VENV)/.test  ## four libraries copy 100,000 records exactly once under kills (MESSAGES=)
	@testbench/setup
	@OTTLA_COPY_MESSAGES=$(or $(MESSAGES),100000) $(BIN)/python -m pytest tests/interop/exactly_once_test.py

librdkafka: $(VENV)/.test  ## librdkafka's own tests against three brokers: SOURCE=DIR (its sources), BROKER=, TESTS=, FULL=1
	@test -n "$(SOURCE)" || { echo "SOURCE=DIR names a checkout of confluentinc/librdkafka" >&2; exit 1; }
	@$(BIN)/python testbench/kafka fetch 4.4.0 >/dev/null
	@$(BIN)/python -m testbench.librdkafka --source "$(SOURCE)" --broker $(BROKER) $(if $(TESTS),--tests $(TESTS)) \
	  $(if $(FULL),--full)

logins: $(VENV)/.test  ## seven client libraries log in at Ottla and at Apache Kafka; writes docs/login-matrix.md
	@testbench/setup
	@$(BIN)/python -m testbench.logins --write

sim: $(VENV)/.test  ## 200 simulated runs with disk and network faults
	@$(BIN)/ottla sim --seeds 1..200

fuzz: $(VENV)/.test  ## hostile input until stopped (Ctrl-C); BROKERS=3, SECONDS=3600
	@$(BIN)/python bench/fuzz.py --brokers $(or $(BROKERS),1) $(if $(SECONDS),--seconds $(SECONDS))

fuzz-logins: $(VENV)/.test  ## a million connections that do not log in; CONNECTIONS=10000
	@$(BIN)/python bench/fuzz_logins.py --connections $(or $(CONNECTIONS),1000000)

explore: $(VENV)/.test  ## property tests with new examples until one fails (or Ctrl-C)
	@while EXPLORE=1 $(BIN)/python -m pytest tests -m "hypothesis and not interop" -q; do :; done

$(VENV)/bin/python:
	@command -v $(PYTHON) >/dev/null || { echo "there is no $(PYTHON) here: install Python 3.11 or newer" >&2; exit 1; }
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' \
	  || { echo "Ottla needs Python 3.11 or newer; $$($(PYTHON) --version) is too old. Try: make $(MAKECMDGOALS) PYTHON=python3.11" >&2; exit 1; }
	@$(PYTHON) -m venv $(VENV) \
	  || { rm -rf $(VENV); echo "$(PYTHON) -m venv failed; on Debian and Ubuntu: apt-get install python3-venv" >&2; exit 1; }
	@$(BIN)/python -m pip install --quiet --upgrade pip

$(VENV)/.demo: pyproject.toml | $(VENV)/bin/python
	@echo "installing Ottla and PySpark into $(VENV) (once; about 800 MB) …" >&2
	@$(PIP) --editable '.[spark]'
	@touch $@

$(VENV)/.test: pyproject.toml | $(VENV)/bin/python
	@echo "installing Ottla, PySpark and the test tools into $(VENV) (once; about 1 GB) …" >&2
	@$(PIP) --editable '.[spark,cluster,test]'
	@touch $@

$(VENV)/.docs: pyproject.toml | $(VENV)/bin/python
	@echo "installing the site generator into $(VENV) (once; about 50 MB) …" >&2
	@$(PIP) --editable '.[docs]'
	@touch $@

clean:  ## remove the virtual environment and everything that tests and tools left
	rm -rf $(VENV) build dist .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache spark-warehouse
	find . -name __pycache__ -prune -exec rm -rf {} +
