# Needs Python 3.11 or newer and nothing else; everything lands in .venv.
PYTHON ?= python3

# How many processes share the tests of `make test`: each has servers of its own, on free ports.
JOBS ?= 3

VENV := .venv
BIN := $(VENV)/bin
OLDEST := .venv-oldest

# What a surrounding environment must not reach into ours. Without bytecode each process compiles all that it imports.
unexport VIRTUAL_ENV PYTHONHOME PYTHONPATH PYTHONDONTWRITEBYTECODE PIP_TARGET PIP_PREFIX PIP_USER

.DEFAULT_GOAL := help
.PHONY: help demo test quick unit coverage soak oldest lint format bench docs clean

help: ## this list
	@grep -hE '^[a-z]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 12

demo: $(VENV)/.$(if $(SERVICE),demo-service,demo) ## clients meet their limits over real HTTP, and a broken file; REDIS=1: two workers on a real server; WORKERS=4: four that share a file; SERVICE=1: Envoy asks the service
	$(BIN)/python $(if $(SERVICE),examples/demo_service.py,examples/demo.py $(if $(REDIS),--redis) $(if $(WORKERS),--workers $(WORKERS)))

test: lint $(VENV)/.browser ## everything that has to hold: style, types, contracts, all tests
	$(BIN)/python -m pytest -n $(JOBS) --dist worksteal $(ARGS)

QUICK := algorithms identity rules stores shells/test_asgi.py shells/test_wsgi.py shells/test_answers.py \
  $(patsubst %,test_%.py,acquiring denials explain imports in_flight kill_switch limiter lists load meter one_step planning \
  policies response shedding structure tally waiting)
SLOWEST := *_against_* database_bombs leases shared

quick: $(VENV)/.dev ## in at most 90 seconds: style, types but pyright's, contracts, the tests of the core on one server
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports --no-cache
	$(BIN)/python -m pytest -n 2 --dist worksteal -q --quick $(addprefix tests/,$(QUICK)) $(SLOWEST:%=--ignore-glob='*/test_%.py') $(ARGS)

unit: $(VENV)/.dev $(VENV)/.browser ## the tests alone: make unit ARGS='-k login -x'
	$(BIN)/python -m pytest $(ARGS)

coverage: $(VENV)/.dev $(VENV)/.browser ## the tests of make test, with at least 95 % branch coverage
	$(BIN)/python -m pytest -n $(JOBS) --dist worksteal --cov --cov-report=term $(ARGS)

soak: $(VENV)/.dev ## what takes minutes: soaks, fuzzers and faults under load in tests/load, and tests with the mark soak
	$(BIN)/python -m pytest tests/load $(ARGS)
	$(BIN)/python -m pytest -m soak $(ARGS)
	IN_STEPS=1 $(BIN)/python -m pytest tests/shells tests/test_response.py tests/test_policies.py $(ARGS)
	$(MAKE) coverage ARGS=
	$(MAKE) oldest ARGS=

# Starlette 0.40's TestClient leaves streams unclosed where an app does not start.
oldest: $(OLDEST)/.made ## the tests of frameworks and stores, on the oldest versions that pyproject.toml admits
	$(OLDEST)/bin/python -m pytest tests/shells tests/inside tests/identity tests/stores \
	  -W 'ignore:Unclosed <MemoryObject:ResourceWarning' -W ignore::pytest.PytestUnraisableExceptionWarning $(ARGS)

lint: $(VENV)/.dev ## style, types and the contracts between the floors
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/pyright
	$(BIN)/lint-imports --no-cache

format: $(VENV)/.dev ## what ruff can put right by itself
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

bench: $(VENV)/.bench ## this package beside its peers, in one run
	$(BIN)/python -m bench $(ARGS)

docs: $(VENV)/.docs ## docs/words.md and docs/api from the code, and docs/_build/html, warnings being errors
	$(BIN)/python -m sphinx -W --keep-going -b html docs docs/_build/html

clean: ## everything that a make made
	rm -rf $(VENV) $(OLDEST) docs/_build dist htmlcov .coverage* .pytest_cache .ruff_cache .mypy_cache .hypothesis

# One stamp for each dependency group: made again when pyproject.toml or the package's version changes.
$(VENV)/.%: pyproject.toml
	@$(BIN)/python -c '' 2>/dev/null || { \
	  $(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' \
	    || { echo 'Python 3.11 or newer is needed: make PYTHON=/path/to/python3.11 …' >&2; exit 1; }; \
	  $(PYTHON) -m venv --clear $(VENV); }
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --upgrade 'pip>=25.1'
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --editable . --group $*
	@touch $@

$(VENV)/.browser: tests/support/install_browser.py $(VENV)/.dev
	$(BIN)/python tests/support/install_browser.py
	@touch $@

$(OLDEST)/.made: pyproject.toml tests/oldest.txt
	$(PYTHON) -m venv --clear $(OLDEST)
	$(OLDEST)/bin/python -m pip install --quiet --disable-pip-version-check --upgrade 'pip>=25.1'
	$(OLDEST)/bin/python -m pip install --quiet --disable-pip-version-check --constraint tests/oldest.txt --editable . --group test
	@touch $@
