# The commands people type. `make` alone lists them.
PYTHON ?= $(shell for p in python3 python3.13 python3.12 python3.11; do \
	$$p -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null && echo $$p && break; done)
PORT ?= 8000
DATA_DIR ?= .corral
NODES ?= 2
PY = .venv/bin/python
TESTS ?=

.DEFAULT_GOAL := help
.PHONY: help run test check bench docs lock prepare prepare-test

help:  ## List these commands.
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | awk -F':.*## ' '{printf "  make %-14s %s\n", $$1, $$2}'

run: prepare  ## Start everything on this machine with demo data; PORT and DATA_DIR change it.
	@exec $(PY) manage.py up --port $(PORT) --data-dir "$(DATA_DIR)" --nodes $(NODES)

test: prepare-test  ## Run the whole suite on real servers, a real browser included.
	@$(PY) -m pytest -n auto --dist worksteal $(TESTS)

check: prepare-test  ## Format, lint, types, import contracts, migrations, API description.
	@.venv/bin/ruff format --check --quiet . || { .venv/bin/ruff format --diff --quiet .; exit 1; }
	@.venv/bin/ruff check --quiet .
	@.venv/bin/lint-imports --config pyproject.toml
	@.venv/bin/mypy
	@$(PY) -m portal.operate.check

bench: prepare-test  ## Measure: ratios, printed with their method.
	@for b in benches/*.py; do echo "== $$b"; $(PY) $$b || exit 1; done

docs: prepare-test  ## Build the documentation into site/.
	@.venv/bin/mkdocs build --strict --quiet

lock:  ## Lock every requirement again (needs uv).
	uv pip compile pyproject.toml -q --universal --python-version 3.11 --generate-hashes --no-header --all-extras -o requirements/dev.txt
	uv pip compile pyproject.toml -q --universal --python-version 3.11 --generate-hashes --no-header --extra portal --extra embedded -c requirements/dev.txt -o requirements/demo.txt
	uv pip compile pyproject.toml -q --universal --python-version 3.11 --generate-hashes --no-header --extra portal -c requirements/dev.txt -o requirements/portal.txt
	uv pip compile pyproject.toml -q --universal --python-version 3.11 --generate-hashes --no-header --extra agent -c requirements/dev.txt -o requirements/agent.txt

prepare:
	@test -n "$(PYTHON)" || { echo "Corral needs Python 3.11 or newer: install it, or set PYTHON=..."; exit 1; }
	@$(PYTHON) portal/operate/prepare.py run

prepare-test:
	@test -n "$(PYTHON)" || { echo "Corral needs Python 3.11 or newer: install it, or set PYTHON=..."; exit 1; }
	@$(PYTHON) portal/operate/prepare.py test
