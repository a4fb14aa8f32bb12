# Every target makes what it needs: a fresh clone needs `make demo` or `make test` and nothing before it.
PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
VENV_XLA ?= .venv-xla
BIN_XLA := $(VENV_XLA)/bin
VENV_AUDIT ?= .venv-audit
# modules are compiled when they are first imported: compiling all 19,000 of the packages takes longer than the demo
INSTALL := pip install --quiet --no-compile --constraint
export PYTHONDONTWRITEBYTECODE = # else every process would compile them anew

.PHONY: help install demo check format test test-all test-xla bench bench-gpu demo-rows demo-model demo-table docs site reliability soak scores build release audit clean

help: ## show this list
	@grep -E '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:[^#]*## /\t/' | expand -t 14

install: $(VENV)/installed ## create a virtual environment with bertkit and its development tools

$(VENV)/installed: pyproject.toml constraints.txt
	$(PYTHON) -m venv $(VENV)
	$(BIN)/$(INSTALL) constraints.txt torch
	$(BIN)/$(INSTALL) constraints.txt --editable '.[dev]'
	@touch $@

demo: install ## fine-tune a tiny model on a made-up grammar, offline, in less than a minute
	$(BIN)/bertkit finetune cola --model demo --data demo --output runs/demo
	@echo "To type bertkit without a path: . $(BIN)/activate"

check: install ## check formatting, lint, types, layers, the size of the code and its English
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/ruff check --preview --select PLW1514 bertkit  # the encoding of Windows is not UTF-8
	$(BIN)/mypy
	$(BIN)/mypy --platform win32 --cache-dir .mypy_cache/win32
	$(BIN)/lint-imports
	$(BIN)/python tools/count_code.py --total
	$(BIN)/python tools/dialect.py --max 12

format: install ## format the code and apply automatic fixes
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

test: install ## the tests that run in a few minutes, offline
	$(BIN)/python -m pytest -n 2 --dist worksteal

test-all: install ## all tests, the slow ones too
	$(BIN)/python -m pytest -n 2 --dist worksteal -m ""

test-xla: $(VENV_XLA)/installed ## run commands on XLA by its CPU client, in an environment of 7 GB of its own
	$(BIN_XLA)/python -m pytest -m "" tests/test_xla.py

# torch_xla goes with one release of torch, which is older than that of constraints.txt
$(VENV_XLA)/installed: pyproject.toml constraints.txt
	$(PYTHON) -m venv $(VENV_XLA)
	grep -v '^torch==' constraints.txt > $(VENV_XLA)/constraints.txt
	$(BIN_XLA)/$(INSTALL) $(VENV_XLA)/constraints.txt torch==2.9.0 torch_xla==2.9.0
	$(BIN_XLA)/$(INSTALL) $(VENV_XLA)/constraints.txt --editable . pytest pytest-socket hypothesis
	@touch $@

bench: install ## measure bertkit beside its peers, about two hours on an idle machine (MODEL=folder DATA=folder of the data sets)
	$(BIN)/python -m benchmarks.speed cola stsb ner squad mlm --model $(MODEL) --data $(DATA)
	$(BIN)/python -m benchmarks.whole cola:1 --model $(MODEL) --data $(DATA) --engines bertkit,hf-dynamic,hf-tuned
	$(BIN)/python -m benchmarks.prediction --model $(MODEL) --data $(DATA) --threads 1
	$(BIN)/python -m benchmarks.embedding --model $(MODEL) --data $(DATA)
	$(BIN)/python -m benchmarks.encoders --tokenizer $(MODEL) --data $(DATA)
	$(BIN)/python -m benchmarks.report

bench-gpu: install ## measure fine-tuning and pretraining steps on a GPU (MODEL=folder of a tokenizer DATA=folder of the data sets)
	$(BIN)/python -m benchmarks.gpu --tokenizer $(MODEL) --data $(DATA) --threads 4 --foreign 8
	$(BIN)/python -m benchmarks.report

demo-rows: install ## write the demo rows and the demo text again
	$(BIN)/python -m tools.demo.make

demo-model: install ## train the demo model again, half an hour on one core
	$(BIN)/python -m tools.demo.make_model

demo-table: install ## fine-tune the demo model with every recipe, and write the table of docs/demo.md
	$(BIN)/python tools/make_demo_table.py

docs: install ## write docs/cli.md, the table of docs/encoders.md and the picture of docs/architecture.md
	$(BIN)/python tools/make_cli_page.py
	$(BIN)/python tools/make_encoders_table.py
	$(BIN)/python tools/make_architecture_picture.py

site: docs $(VENV)/site ## write those pages, and build all of docs/ as a site in site/
	$(BIN)/zensical build --strict --clean

$(VENV)/site: $(VENV)/installed
	$(BIN)/$(INSTALL) constraints.txt --editable '.[docs]'
	@touch $@

reliability: install ## run the tests of docs/reliability.md and write that page, about ten minutes
	$(BIN)/python tools/make_reliability_page.py

soak: install ## break off, run twice and damage what every command does, two hours (MINUTES=120 SEED=1)
	$(BIN)/python tools/attack.py soak --minutes $(or $(MINUTES),120) --seed $(or $(SEED),1) --output benchmarks/results/attack.json

scores: install ## recount all metrics, simulate the coverage of intervals, and write docs/scores.md
	$(BIN)/python -m benchmarks.coverage
	$(BIN)/python tools/make_scores_page.py

build: install ## build the wheel
	$(BIN)/pip install --quiet build
	$(BIN)/python -m build --wheel

release: install ## build sdist and wheel twice, compare them, and test the wheel on each Python that is here (RELEASE=options)
	$(BIN)/pip install --quiet build cyclonedx-bom twine
	$(BIN)/python tools/release.py $(RELEASE)

# in an environment of its own, without torch: versions are looked up, and nothing is installed
audit: ## look for known vulnerabilities of the packages in constraints.txt, which needs the internet
	$(PYTHON) -m venv $(VENV_AUDIT)
	$(VENV_AUDIT)/bin/pip install --quiet pip-audit
	$(VENV_AUDIT)/bin/pip-audit --strict --no-deps --disable-pip --requirement constraints.txt

clean: ## remove the environment and build leftovers
	rm -rf $(VENV) $(VENV_XLA) $(VENV_AUDIT) build dist site .cache *.egg-info
