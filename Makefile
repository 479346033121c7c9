# Everything runs from this folder with Python 3.11+ and make; nothing is installed outside of it.
# Variables count only when given to make itself (make run PORT=9000): a NAME or PORT that happens to
# be in the environment means something else. DEV_HOME and PYTHON may come from either.

UV_VERSION := 0.13.9
PY := .venv/bin/python
UV := .boot/bin/uv
HAS_UV := .boot/.uv-$(UV_VERSION)
export UV_PYTHON_DOWNLOADS := never

# $(call option,NAME,name) is --name "..." if NAME was given to make.
option = $(if $(filter command,$(origin $(1))),--$(2) "$($(1))")
STACK = $(call option,NAME,name)

.PHONY: help run demo install install-dev test test-thorough test-kill test-storage test-pgbouncer test-slow check format docs bench bench-rivals clean lock
.DEFAULT_GOAL := help

help:
	@echo 'make run        the whole stack on this machine, until Ctrl-C   3 s; first 15 s more'
	@echo 'make demo       one job on it, from the message to the proof'
	@echo 'make demo-lost  the runner dies half-way; also demo-cancel, demo-stuck'
	@echo 'make test       all tests, on real parts; T=tests/... for some'
	@echo 'make test-thorough   every rule in depth; test-kill: it is killed; test-slow: full sizes'
	@echo 'make test-storage ENDPOINT=... BUCKET=... ACCESS_KEY_ID=... SECRET_ACCESS_KEY=...   your store'
	@echo 'make test-pgbouncer  what speaks to the database, through a transaction pooler'
	@echo 'make check      style, types, import rules'
	@echo 'make docs       the generated reference'
	@echo 'make bench      measurements on this machine, and what they should reach; also bench-claim, ...'
	@echo '  bench-growth, bench-plans   over ten million finished attempts; bench-data builds 2.5 million'
	@echo 'make clean      remove the data of the stack (.dev)'
	@echo
	@echo 'run takes PORT=9000, NAME=feature-x (a second stack beside the first), DEV_HOME=/path.'

run: install
	@exec $(PY) -m app dev up $(STACK) $(call option,PORT,port) $(call option,OUTPUT,output)

demo: install
	@exec $(PY) -m app dev demo $(STACK)

demo-%: install
	@exec $(PY) -m app dev demo $* $(STACK)

test: install-dev
	@exec $(PY) -m pytest -n 2 $(T)

# Every rule, input and part in depth; processes that die, stop and starve; the full size of every
# proof, for a quiet hour.
test-thorough: install-dev
	@exec $(PY) -m pytest -n 2 -m 'thorough and not slow' $(or $(T),tests)

test-kill: install-dev
	@exec $(PY) -m pytest -m 'kill and not slow' $(or $(T),tests)

# The tests of storage against any S3 endpoint; docs/storage.md has examples.
test-storage: install-dev
	@STORAGE_TEST_ENDPOINT='$(ENDPOINT)' STORAGE_TEST_BUCKET='$(BUCKET)' \
	STORAGE_TEST_ACCESS_KEY_ID='$(ACCESS_KEY_ID)' \
	STORAGE_TEST_SECRET_ACCESS_KEY='$(SECRET_ACCESS_KEY)' \
	STORAGE_TEST_OBJECTS='$(or $(OBJECTS),{})' \
	$(PY) -m pytest -m '' tests/artifacts

# Everything that speaks to the database, through Debian's PgBouncer in transaction mode.
test-pgbouncer: install-dev
	@exec $(PY) -m pytest -n 2 --pgbouncer -m 'not slow and not kill' \
	  $(or $(T),tests/store tests/lifecycle tests/scheduler tests/api tests/test_life.py)
	@exec $(PY) -m pytest -m 'kill and not slow' tests/kill/test_pooler.py

test-slow: install-dev
	@exec $(PY) -m pytest -m slow $(or $(T),tests)

check: install-dev
	$(PY) -m ruff check .
	$(PY) -m ruff format --check .
	$(PY) -m mypy
	.venv/bin/lint-imports
	$(PY) -m docs.generate --check

format: install-dev
	$(PY) -m ruff check --fix .
	$(PY) -m ruff format .

docs: install-dev
	@exec $(PY) -m docs.generate

# Options of one of them: make bench-heartbeats ARGS='--seconds 600'
bench: install-dev .venv-bench/.done
	@exec $(PY) -m bench.whole $(ARGS)

# The libraries that lives are compared with are in a set of their own; without it the rest goes on.
bench-rivals: install-dev .venv-bench/.done
	@exec $(PY) -m bench.rivals $(ARGS)

bench-%: install-dev
	@exec $(PY) -m bench.$* $(ARGS)

clean:
	@if [ -x $(PY) ]; then exec $(PY) -m app dev clean $(STACK); \
	else rm -rf "$${DEV_HOME:-.dev}" && echo "Removed $${DEV_HOME:-.dev}."; fi

# --- the locked sets ------------------------------------------------------------------------------

# Renews the locks from pyproject.toml; what they hold stays unless UPGRADE=--upgrade says otherwise.
# The service alone (for the image), with the embedded parts, with the tools; and, by themselves,
# what benchmarks compare with.
LOCK_OF = $(UV) pip compile --quiet --universal --generate-hashes --python-version 3.11 $(UPGRADE)
LOCK = $(LOCK_OF) pyproject.toml
lock: $(HAS_UV)
	$(LOCK) -o requirements-service.lock
	$(LOCK) --extra embedded -o requirements.lock
	$(LOCK) --extra embedded --group dev -o requirements-dev.lock
	$(LOCK_OF) --group bench -o requirements-bench.lock

install: .venv/.run .venv/bin/execution-plane
install-dev: .venv/.dev .venv/bin/execution-plane

# A sync removes what its lock does not name. So where the tools were installed once, their lock,
# which holds the service's own as well, is the one to follow.
.venv/.run: requirements.lock $(HAS_UV)
	@if [ ! -e .venv/.dev ]; then $(call sync,requirements.lock,.venv); \
	elif [ .venv/.dev -ot requirements-dev.lock ]; then \
	  $(call sync,requirements-dev.lock,.venv) && touch .venv/.dev; fi
	@touch $@

.venv/.dev: requirements-dev.lock $(HAS_UV)
	@$(call sync,requirements-dev.lock,.venv)
	@touch $@ .venv/.run

.venv-bench/.done: requirements-bench.lock $(HAS_UV)
	@$(call sync,requirements-bench.lock,.venv-bench)
	@touch $@

define sync
begun=$$(date +%s); \
printf '  dependencies  installing the locked set, once ... '; \
{ [ -x $(2)/bin/python ] || $(UV) venv --quiet --python .boot/bin/python3 $(2); } && \
VIRTUAL_ENV=$(2) $(UV) pip sync --quiet --require-hashes $(1) && \
printf '%4d s  $(2)\n' $$(($$(date +%s) - begun))
endef

# Runs from any folder, unlike "python -m app".
.venv/bin/execution-plane: Makefile | .venv/.run
	@printf '#!/bin/sh\nPYTHONPATH="%s" exec "%s" -P -m app "$$@"\n' \
	  '$(CURDIR)' '$(CURDIR)/$(PY)' > $@ && chmod +x $@

$(HAS_UV):
	@if [ "$$($(UV) --version 2>/dev/null | cut -d' ' -f2)" != $(UV_VERSION) ]; then \
	  $(find_python) && \
	  printf '  installer     uv %s, once ...\n' $(UV_VERSION) && \
	  "$$python" -m venv .boot && \
	  .boot/bin/python3 -m pip install --quiet --disable-pip-version-check uv==$(UV_VERSION); fi
	@touch $@

define find_python
python=; for name in $(PYTHON) python3.13 python3.12 python3.11 python3; do \
  if "$$name" -c 'import sys; sys.exit(sys.version_info < (3, 11))' >/dev/null 2>&1; \
  then python=$$name; break; fi; done; \
if [ -z "$$python" ]; then \
  echo 'Python 3.11 or newer is needed and was not found; make PYTHON=/path/to/python3 says where.' >&2; \
  exit 1; fi; \
if ! "$$python" -c 'import ensurepip, venv' >/dev/null 2>&1; then \
  echo "$$python lacks its venv module. Mend:  sudo apt install python3-venv" >&2; exit 1; fi
endef
