# Everything a newcomer types; `make help` lists it. The logic is in packaging/dev/.
PYTHON ?= python3
RUN := .venv/bin/python
.DEFAULT_GOAL := help
.PHONY: help install model encoder demo test lint fix check clean

help:  ## list these targets
	@echo "make TARGET [ARGS=...]"
	@sed -n 's/^\([a-z]*\):.*## /  \1\t/p' $(MAKEFILE_LIST) | expand -t 12

install:  ## make .venv and build the CPU kernels, each only if stale
	@$(PYTHON) packaging/dev/install.py

model: install  ## fetch the small model that the demo and the tests use
	@$(RUN) packaging/dev/fetch_model.py

encoder: install  ## fetch the small encoder that some tests use, and skip without
	@$(RUN) packaging/dev/fetch_encoder.py

demo: model  ## serve that model and ask it a question; ARGS=--once ends after the answer
	@$(RUN) -m daemon.cli demo --model .cache/models/SmolLM2-135M-Instruct.Q4_1.gguf $(ARGS)

test: model  ## run every test; ARGS is given to pytest
	@$(RUN) packaging/dev/run_tests.py $(ARGS)

lint: install  ## style, types, import borders, file sizes; changes nothing
	@$(RUN) packaging/dev/lint.py

fix: install  ## put right what a tool can put right
	@$(RUN) -m ruff check --fix .
	@$(RUN) -m ruff format .

check: lint test  ## what CI runs

clean:  ## remove what these targets made, but not the fetched model
	@rm -rf .venv .demo build .pytest_cache .mypy_cache .ruff_cache .hypothesis .import_linter_cache
	@git clean -qfdX packaging engine; find . -name __pycache__ -type d -prune -exec rm -rf {} +
