# make demo   trains three agents, prints what was learned about a reward term, draws curves
# make test   style, types and the whole test suite
# Both make their own virtual environment in .venv when there is none.

PYTHON ?= python3
BIN := .venv/bin
INSTALLED := .venv/.installed

.PHONY: demo test lint lock clean

demo: $(INSTALLED)
	$(BIN)/bipars demo --out demo

test: lint
	$(BIN)/python -m pytest -n 2

lint: $(INSTALLED)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

$(INSTALLED): requirements.lock pyproject.toml
	$(PYTHON) -m venv .venv
	$(BIN)/python -m pip install --quiet --requirement requirements.lock
	$(BIN)/python -m pip install --quiet --no-deps --no-build-isolation --editable .
	touch $@

# Pins whatever the newest compatible versions are now.
lock:
	rm -rf .venv-lock
	$(PYTHON) -m venv .venv-lock
	.venv-lock/bin/python -m pip install --quiet setuptools --upgrade
	.venv-lock/bin/python -m pip install --quiet '.[dev]'
	.venv-lock/bin/python -m pip freeze --all --exclude bipars --exclude pip > requirements.lock
	rm -rf .venv-lock build

clean:
	rm -rf .venv demo build
