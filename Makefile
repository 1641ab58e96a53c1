# Targets for people; everything happens in a virtual environment, .venv.
#   make tour    run the gallery from top to bottom, write tour.html
#   make lab     open the notebooks in JupyterLab
#   make test    the whole suite: tests, a share of them in each mode, notebooks, ruff, mypy
#   make test-modes  all tests of the runtime in eager debug mode and op by op
#   make lint    ruff and mypy only
#   make bench   the benchmarks
#   make clean   remove .venv and what the tools left behind
# INDEX takes further options of pip, such as another package index.

PYTHON ?= python3
VENV ?= .venv
INDEX ?=
BIN = $(VENV)/bin
ROOT = $(if $(filter 0,$(shell id -u)),--allow-root)
INSTALL = $(BIN)/python -m pip install --disable-pip-version-check $(INDEX) -c constraints.txt
# One line for each package that pip downloads, and for an index that does not answer, which pip asks
# again for minutes; the full output only when it fails.
PROGRESS = tee $(VENV)/install.log | sed -n -e 's/^Collecting \([A-Za-z0-9._-]*\).*/  \1/p' -e 's/^\(Installing collected\).*/  \1 packages/p' \
  -e 's/^WARNING: Retrying (Retry(total=4.*: \([^ ]*\)$$/  no answer yet from the index for \1/p'

.PHONY: help tour lab test test-modes lint bench clean

help:
	@sed -n 's/^#   //p' Makefile

tour: $(VENV)/.lab
	@$(BIN)/python -m lazyviz tour

# Jupyter's server refuses root, which a container's user is, unless it is told.
lab: $(VENV)/.lab
	@$(BIN)/python -m jupyterlab $(ROOT) notebooks

test: $(VENV)/.dev
	@sh .ci/system-packages
	@BIN=$(BIN) sh .ci/suite

test-modes: $(VENV)/.dev
	@for mode in EAGER OPBYOP; do echo "== LAZYVIZ_$$mode=1"; \
	  env LAZYVIZ_$$mode=1 $(BIN)/python -m pytest -q tests/runtime -m "not slow and not browser" || exit 1; done

lint: $(VENV)/.dev
	@BIN=$(BIN) sh .ci/suite lint

bench: $(VENV)/.dev
	@$(BIN)/python -m benchmarks all

clean:
	rm -rf $(VENV) build dist .mypy_cache .pytest_cache .ruff_cache .hypothesis tour.html
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

$(BIN)/python:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { \
	  echo "lazyviz needs Python 3.11 or newer; $(PYTHON) is `$(PYTHON) -V 2>&1`." >&2; \
	  echo "Name another one: make PYTHON=python3.12" >&2; exit 1; }
	@echo "Creating $(VENV)"
	@$(PYTHON) -m venv $(VENV)

$(VENV)/.lab: $(BIN)/python pyproject.toml constraints.txt
	@echo "Installing lazyviz with torch, jax and JupyterLab (the first time takes some minutes)"
	@rm -f $@
	@{ $(INSTALL) -e '.[lab]' && : > $@; } 2>&1 | $(PROGRESS); \
	  test -f $@ || { cat $(VENV)/install.log >&2; exit 1; }

$(VENV)/.dev: $(BIN)/python pyproject.toml constraints.txt
	@echo "Installing lazyviz and what its tests need (the first time takes some minutes)"
	@rm -f $@
	@{ $(INSTALL) -e '.[dev,lab,layout,test]' && : > $@ && : > $(VENV)/.lab; } 2>&1 | $(PROGRESS); \
	  test -f $@ || { cat $(VENV)/install.log >&2; exit 1; }
