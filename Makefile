# make demo   from bundled raw files to weights and a report, in results/demo
# make demo-finetune  fine-tuning of a tiny model on the bundled structures, in results/demo-finetune
# make check  ruff and the fast unit tests, in a minute: for the edit loop
# make test   lint and all tests
# make docs   the site of the pages in docs/, in site/; a broken link is an error
# make test-triton       compile the kernels for Hopper GPUs with the Triton that the CUDA build of torch brings,
#                        where the tests had another. TRITON=3.8.0, or another version: one configuration of every
#                        kernel, for A100 and H100
# make test-slurm        the workflow on a real Slurm cluster on this machine: as root, half an hour;
#                        tests/workflow/slurm/install.sh installs the daemons
# make attack            damaged files and kills, for hours; findings in results/attack: INPUTS=100000 KILLS=100
# make container-test    build the image and its SIF file from packages, and run them: as root, minutes
# make container-check   on a machine with a GPU: IMAGE=scalefold.sif, docker://... or a local image's name
# make container-clean   remove what container-test keeps for its next run
#
# PYTHON       interpreter for the environment (3.11 or newer)
# VENV         where the environment is made
# TORCH        2.11.0: the torch, and its Triton, that ScaleFold was measured with on GPUs; default: the newest that is
#              tested. The environment keeps the choice until TORCH= takes it back.
# TORCH_INDEX  where torch comes from, if not from the default index: for the CPU build
#              make demo TORCH_INDEX=https://download.pytorch.org/whl/cpu
# PYTEST       options for pytest, such as PYTEST="-n 2"
PYTHON ?= python3
VENV ?= .venv
TORCH ?= $(shell cat $(VENV)/torch-version 2>/dev/null)
TORCH_INDEX ?=
PYTEST ?=
IMAGE ?= scalefold.sif
INPUTS ?= 100000
KILLS ?= 100
CONTAINER_CACHE := /var/tmp/scalefold-containers

SHELL := bash
.SHELLFLAGS := -euo pipefail -c
.DELETE_ON_ERROR:
.DEFAULT_GOAL := help

PINS := $(if $(TORCH),$(or $(wildcard envs/constraints-torch-$(basename $(TORCH)).txt),$(error \
    TORCH=$(TORCH): envs/ has no pins of it; give TORCH=2.11.0, or leave TORCH out))) envs/constraints.txt
CONSTRAINTS := $(VENV)/constraints.txt
## What `make check` runs: no training, no processes, no kernels.
FAST := $(addprefix tests/unit/,chem config features fetch geometry loss model ops optim parallel raw shards) \
	tests/compatibility/test_a3f069b.py::test_configuration_has_the_same_key_of_its_results
## For the tests of kernels where torch is its CPU build: the version of the GPU machines that they are measured on.
CPU_TRITON := triton==3.6.0
## What the CUDA build brings, so what training machines have.
CUDA_TRITON := $(shell grep '^triton==' envs/constraints.txt)
TRITON ?= $(patsubst triton==%,%,$(CUDA_TRITON))
## Nothing is tuned for other versions: what spills there passes.
OFFLINE := $(if $(filter $(CUDA_TRITON),triton==$(TRITON)),--gluon,--first --spills)
BIN := $(abspath $(VENV))/bin
PIP := $(BIN)/python -m pip --disable-pip-version-check
SNAKEMAKE := PATH="$(BIN):$$PATH" snakemake
CODE := src kernels tests tools containers envs .ci

.PHONY: help demo demo-finetune check test attack test-triton test-slurm lint format environment developer-environment clean-demo \
	container-test container-check container-clean FORCE

help:
	@grep -E '^# ' Makefile | cut -c3-

demo: $(VENV)/.installed
	$(SNAKEMAKE) --profile local --configfile demo/config.yaml

demo-finetune: $(VENV)/.installed
	@# The given weights: the demo's model after a short training run.
	$(SNAKEMAKE) --profile local --configfile demo/config.yaml --until train \
	  --config run_name=demo-given training='{steps: 200, checkpoint_every: 200}'
	PATH="$(BIN):$$PATH" scalefold finetune demo/mirror/wwpdb --out results/demo-finetune \
	  --weights results/demo-given/weights/*/step-00000200 --config demo/finetune.yaml \
	  --alignments demo/mirror/openproteinset --query-alone --validation 4

check: $(VENV)/.installed-developer
	$(BIN)/ruff check $(CODE)
	$(BIN)/ruff format --check $(CODE)
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n 2 --dist loadfile $(FAST)

test: lint
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest $(PYTEST)

attack: $(VENV)/.installed-developer
	OMP_NUM_THREADS=1 $(BIN)/python -m tests.attack.fuzz --inputs $(INPUTS) --out results/attack
	OMP_NUM_THREADS=1 $(BIN)/python -m tests.attack.kills --kills $(KILLS)

test-triton: $(VENV)/triton-$(TRITON)/.installed
	PYTHONPATH=$(abspath $(<D)) $(BIN)/python -m tests.kernels.offline $(OFFLINE)
	@# What the compilation complains of, it sees in this version's code too.
	PYTHONPATH=$(abspath $(<D)) $(BIN)/python -m pytest tests/kernels/test_compile.py -k refused

test-slurm: $(VENV)/.installed-developer
	$(BIN)/python -m pytest tests/workflow/slurm -m slurm -rs $(PYTEST)

lint: $(VENV)/.installed-developer
	$(BIN)/ruff check $(CODE)
	$(BIN)/ruff format --check $(CODE)
	$(BIN)/mypy
	$(BIN)/snakefmt --check Snakefile workflow
	$(BIN)/hadolint containers/Containerfile
	$(BIN)/python -m pytest tests/workflow/test_definition.py::test_lint

format: $(VENV)/.installed-developer
	$(BIN)/ruff check --fix $(CODE)
	$(BIN)/ruff format $(CODE)
	$(BIN)/snakefmt Snakefile workflow

environment: $(VENV)/.installed

developer-environment: $(VENV)/.installed-developer

.PHONY: docs
docs: $(VENV)/docs/.installed
	$(<D)/bin/mkdocs build

clean-demo:
	rm -rf results/demo results/demo-given results/demo-finetune

container-test: $(VENV)/.installed-developer
	$(BIN)/python -m pytest tests/containers --build-containers --container-cache $(CONTAINER_CACHE) -rsP --durations=0 $(PYTEST)

container-check:
	containers/check.sh "$(IMAGE)"

container-clean:
	rm -rf $(CONTAINER_CACHE)

$(VENV)/.installed: pyproject.toml kernels/pyproject.toml $(CONSTRAINTS) | $(VENV)/bin/python
	$(PIP) install -c $(CONSTRAINTS) $(if $(TORCH_INDEX),--extra-index-url $(TORCH_INDEX)) torch
	$(PIP) install -c $(CONSTRAINTS) -e ./kernels -e ".[workflow]"
	touch $@

## The first pin of a package counts. An unchanged file is left alone, so that nothing is installed again.
$(CONSTRAINTS): $(PINS) FORCE | $(VENV)/bin/python
	@awk -F== '/==/ && !seen[$$1]++' $(PINS) > $@.new
	@cmp -s $@.new $@ && rm $@.new || mv $@.new $@
	@echo $(TORCH) > $(VENV)/torch-version

$(VENV)/.installed-developer: $(VENV)/.installed
	$(PIP) install -c $(CONSTRAINTS) -e ./kernels -e ".[workflow,test,lint]"
	@# The CUDA build of torch has brought the Triton that it asks for; the CPU build brings none.
	$(BIN)/python -c 'import sys, torch; sys.exit(torch.version.cuda is None and sys.platform == "linux")' || \
	    $(PIP) install "$(CPU_TRITON)"
	touch $@

$(VENV)/docs/.installed: envs/docs.txt | $(VENV)/bin/python
	$(BIN)/python -m venv $(@D)
	$(@D)/bin/pip --disable-pip-version-check install -r $<
	touch $@

$(VENV)/triton-$(TRITON)/.installed: | $(VENV)/.installed-developer
	rm -rf $(@D)
	$(PIP) install --no-deps --target $(@D) "triton==$(TRITON)"
	touch $@

$(VENV)/bin/python:
	@command -v "$(PYTHON)" >/dev/null || { echo "make: no interpreter '$(PYTHON)' found: install Python 3.11 or newer, or name one: make PYTHON=/path/to/python3" >&2; exit 1; }
	@"$(PYTHON)" -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null || { echo "make: $(PYTHON) is $$("$(PYTHON)" --version 2>/dev/null || echo no interpreter that runs), and ScaleFold needs Python 3.11 or newer: make PYTHON=/path/to/python3.11" >&2; exit 1; }
	@"$(PYTHON)" -c 'import shutil, sys; sys.exit(sys.version_info >= (3, 14) and not shutil.which("cc"))' || { echo "make: packages that have no wheels for $$("$(PYTHON)" --version) yet are compiled: install a C compiler and Python's headers (Debian, Ubuntu: apt install gcc python3-dev), or name an older Python: make PYTHON=/path/to/python3.13" >&2; exit 1; }
	@"$(PYTHON)" -c 'import ensurepip, venv' 2>/dev/null || { echo "make: $(PYTHON) cannot make environments: install its venv module (Debian, Ubuntu: apt install python3-venv)" >&2; exit 1; }
	"$(PYTHON)" -m venv $(VENV)
