# Every target sets up what it needs, once, in .venv. `make test` on a fresh clone needs Python 3.11 and make.
.DEFAULT_GOAL := help
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.esupcon-installed

.PHONY: help setup demo docs test check format bench trials study soak clean

help:  ## list the targets
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:.*## */\t/' | expand -t 12

setup: $(STAMP)  ## create .venv and install everything (a second run installs nothing)

# The stamp is written last, so that an interrupted installation is repeated.
$(STAMP): pyproject.toml constraints.txt scripts/find-python
	@python=$$(PYTHON="$(PYTHON)" sh scripts/find-python) || exit 1; \
	test -x $(BIN)/python || "$$python" -m venv $(VENV)
	@echo "Installing into $(VENV) (once; a minute or two) ..."
	@PIP_CONSTRAINT=constraints.txt PIP_DISABLE_PIP_VERSION_CHECK=1 $(BIN)/python -m pip install --quiet --editable ".[dev]"
	@touch $@

demo: $(STAMP)  ## train CE, SupCon+Tt and ESupCon on included data and write a report
	$(BIN)/esupcon demo --out runs/demo

docs: $(STAMP)  ## build the documentation into site/; it works offline
	$(BIN)/python scripts/docs_site.py --out site

# One process per core with one thread each: more threads than cores slow each other down.
test: $(STAMP)  ## run all tests
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n auto --dist worksteal

check: $(STAMP)  ## format, lint, types, layers
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/lint-imports

format: $(STAMP)  ## format the code
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

bench: $(STAMP)  ## speed and memory compared with other libraries
	$(BIN)/python benchmarks/losses.py
	$(BIN)/python benchmarks/augment.py
	$(BIN)/python benchmarks/decode.py
	$(BIN)/python benchmarks/training.py
	$(BIN)/python benchmarks/grid.py
	$(BIN)/python benchmarks/report.py

# CIFAR-10 and Tiny ImageNet are found in DATA. Pass CIFAR100 and PHOTOS if they are elsewhere; ARGS chooses a part.
DATA ?= data
CIFAR100 ?= cifar100
PHOTOS ?= $(DATA)/photos
trials: $(STAMP)  ## continue the choice of settings for the study (hours), in studies/second/trials.jsonl
	test -f $(DATA)/cifar100-held.npz || $(BIN)/python studies/second/heldout.py $(DATA) $(CIFAR100) $(DATA)
	OMP_NUM_THREADS=1 $(BIN)/esupcon reproduce studies/second/trials.toml --store runs/trials \
	  --study studies/second/trials.jsonl \
	  --source cifar10=$(DATA)/cifar10-held.npz --source cifar100=$(DATA)/cifar100-held.npz $(ARGS)

study: $(STAMP)  ## continue the second study (hours); its results are in studies/second/results.jsonl
	OMP_NUM_THREADS=1 $(BIN)/esupcon reproduce studies/second/study.toml --store runs/second \
	  --study studies/second/results.jsonl --data-dir $(DATA) \
	  --source cifar100=$(CIFAR100) --source photos=$(PHOTOS) $(ARGS)

soak: $(STAMP)  ## long versions of the reliability tests (hours)
	ESUPCON_SOAK=1 $(BIN)/python -m pytest -m reliability --timeout 7200
	$(BIN)/python fuzz/run.py --cases 20000 --results
	$(BIN)/python scripts/soak.py

clean:  ## remove everything that the targets created
	rm -rf $(VENV) .pytest_cache .mypy_cache .ruff_cache .hypothesis .import_linter_cache dist site
