# ddtree-deploy. Needs git, make and Python 3.11 or newer; brings everything else itself.
#   make deploy        this machine: CPU reference engine, built-in model, benchmark
#   make test          sets up and runs the tests (with throwaway systemd hosts where root)
#   make help          all targets

PYTHON ?= python3
UV := .tools/uv
SGLANG ?= $(CURDIR)/.sglang
# SGLang's lock is for Python 3.12: one of this machine, else one that uv fetches
PYTHON312 ?= $(shell for p in python3.12 /usr/bin/python3.12 $$HOME/.pyenv/versions/3.12.*/bin/python3; do \
  $$p -c 'import sys; assert sys.version_info[:2] == (3, 12); print(sys.executable)' 2>/dev/null && exit; done; echo 3.12)
export UV_SYSTEM_CERTS ?= 1
export UV_PYTHON_PREFERENCE ?= system
export UV_COMPILE_BYTECODE ?= 1
PYTEST := .venv/bin/python -m pytest

.DEFAULT_GOAL := help
.PHONY: help deploy dry test test-sglang lint lab lab-down clean

help: ## this list
	@sed -n 's/^\([a-z-]*\):[^#]*## /  make \1|/p' $(MAKEFILE_LIST) | column -t -s '|' 2>/dev/null \
	  || sed -n 's/^\([a-z-]*\):[^#]*## /  make \1  /p' $(MAKEFILE_LIST)

deploy: .venv/.deploy ## deploys to this machine and benchmarks it
	.venv/bin/pyinfra inventories/local.py deploy.py -y

dry: .venv/.deploy ## what `make deploy` would change
	.venv/bin/pyinfra inventories/local.py deploy.py --dry --diff

test: .venv/.test ## all tests that need neither a GPU nor SGLang
	$(PYTEST) -m "not gpu and not sglang and not host" $(ARGS)

test-sglang: .venv/.test $(SGLANG)/.complete ## tests against SGLang's own Python packages (7 GB)
	SGLANG_PYTHON=$(SGLANG)/bin/python HOSTKIT_TORCH_PYTHON=$(SGLANG)/bin/python \
	  $(PYTEST) -m sglang tests/report tests/plan tests/unit tests/hostkit $(ARGS)
	$(SGLANG)/bin/python -m pytest -m sglang tests/patches tests/models/test_verify.py $(ARGS)

lint: .venv/.test ## ruff and mypy
	.venv/bin/ruff check .
	.venv/bin/ruff format --check .
	.venv/bin/mypy

lab: .venv/.test ## boots the throwaway hosts b300-a and ct200-a
	.venv/bin/python tests/lab/lab.py setup
	.venv/bin/python tests/lab/lab.py up b300-a ct200-a

lab-down: ## stops the throwaway hosts; leaves nothing behind
	.venv/bin/python tests/lab/lab.py down

clean: ## removes the venvs and caches of this checkout
	rm -rf .venv .tools .sglang .pytest_cache .mypy_cache .ruff_cache .hypothesis

.tools/uv: files/hostkit/uv.json
	@$(PYTHON) -c 'import sys; v = sys.version_info; v >= (3, 11) or sys.exit("expected Python 3.11 or newer, found %d.%d; run make PYTHON=python3.12" % v[:2])'
	@$(PYTHON) files/hostkit/get_uv.py .tools $(UV_DEFAULT_INDEX)
	@touch $@

.venv/.deploy: .tools/uv uv.lock pyproject.toml
	$(UV) sync --frozen --inexact --no-dev --python $(PYTHON)
	@touch $@

.venv/.test: .venv/.deploy
	$(UV) sync --frozen --inexact --python $(PYTHON)
	@sh tests/debian-packages.sh
	@touch $@

$(SGLANG)/.complete: .tools/uv files/stack/sglang-0.5.16-cu130.lock
	$(UV) venv --clear --python $(PYTHON312) $(SGLANG)
	$(UV) pip sync --python $(SGLANG)/bin/python --require-hashes files/stack/sglang-0.5.16-cu130.lock
	$(UV) pip install --python $(SGLANG)/bin/python pytest pytest-timeout hypothesis
	@touch $@
