# make demo   trains twelve agents, prints what was learned about a reward term, writes demo/report.html
# make test   style, types and the whole test suite
# make docs   writes the tables of docs/metrics.md, docs/runs.md, docs/benchmark.md, docs/reproduction.md,
#             docs/methods/ppo.md and docs/research
# make site   builds the documentation in site/; warnings are errors
# make dist   builds source distribution and wheel in dist/, and checks them
# All make their own virtual environment in .venv when there is none.

PYTHON ?= python3
BIN := .venv/bin
INSTALLED := .venv/.installed
TESTABLE := .venv/.testable

.PHONY: demo test lint docs site dist lock clean

demo: $(INSTALLED)
	$(BIN)/bipars demo --out demo

test: lint
	$(BIN)/python -m pytest -n 2

lint: $(TESTABLE)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports --no-logo

docs: $(INSTALLED)
	$(BIN)/python -m bipars.metrics docs/metrics.md
	$(BIN)/python -m bipars.bench.faults docs/runs.md results/faults
	test ! -e results/trainer || $(BIN)/python -m bipars.bench.trainer docs/research/trainer.md results/trainer
	test ! -e results/jax || $(BIN)/python -m bipars.bench.jax docs/research/jax-environments.md results/jax
	test ! -e results/learner/learner.json || $(BIN)/python -m bipars.bench.learner docs/methods/ppo.md results/learner
	test ! -e results/misspecified || $(BIN)/python -m bipars.report.pairs results/misspecified docs/benchmark.md
	$(BIN)/python -m bipars.report.reproduction results/paper docs/reproduction.md
	test ! -e results/untried || $(BIN)/python -m bipars.report.pairs results/untried docs/research/untried.md

# Not with --quiet, which would also overlook the warnings.
site: $(TESTABLE)
	NO_MKDOCS_2_WARNING=1 $(BIN)/python -m mkdocs build --strict

dist: $(TESTABLE)
	rm -rf dist
	$(BIN)/python -m build --no-isolation
	$(BIN)/python -m twine check --strict dist/*

$(INSTALLED): requirements.lock pyproject.toml
	$(PYTHON) -m venv .venv
	$(BIN)/python -m pip install --quiet --requirement requirements.lock
	$(BIN)/python -m pip install --quiet --no-deps --no-build-isolation --editable .
	touch $@

# The tests also need the extras: MuJoCo, TensorBoard scalars, videos, Stable-Baselines3; Playwright for the page, MkDocs
# for the site, build and twine for what is released.
$(TESTABLE): $(INSTALLED) requirements-test.lock
	$(BIN)/python -m pip install --quiet --requirement requirements-test.lock
	touch $@

# Pins whatever the newest compatible versions are now: what the library needs, with hashes, and what its tests need with that
# (without hashes: builds of torch for processors alone have others than those on the public index).
LOCK := .venv-lock/bin/python -m pip
lock:
	rm -rf .venv-lock
	$(PYTHON) -m venv .venv-lock
	$(LOCK) install --quiet setuptools --upgrade
	$(LOCK) install --quiet .
	$(LOCK) freeze --all --exclude bipars --exclude pip > requirements.lock
	$(LOCK) install --quiet uv
	.venv-lock/bin/uv pip compile --quiet --no-header --no-annotate --no-deps --generate-hashes requirements.lock --output-file requirements.lock
	$(LOCK) uninstall --quiet --yes uv
	$(LOCK) install --quiet torch==2.13.0
	$(LOCK) install --quiet '.[bench,dev,docs,interop,monks,mujoco,onnx,ray,tables,tensorboard,video]'
	$(LOCK) freeze --all --exclude bipars --exclude pip | sed 's/+cpu$$//' > requirements-test.lock
	rm -rf .venv-lock build

clean:
	rm -rf .venv build demo dist site
