# make demo       compressed and full KV beside each other, two real servers
# make test       unit and engine tests (CPU is enough)
# make test-full  those and one engine per case
# make lint       ruff and mypy (seconds)
# make docs       docs/ as a website in build/site
# make dist       wheel and source archive in dist/
# make test-0.5.23  the engine tests on SGLang 0.5.23 (make test: 0.5.17), in an environment of its own: VENV23=folder
# make venv       only the environment; VENV=folder puts it, or uses it, elsewhere
# make demo ARGS="--help": the demo's options; make test ARGS="-k name": pytest's

SHELL := /bin/bash
PYTHON ?= python3.11
VENV ?= .venv
VENV23 ?= .venv23
CONSTRAINTS ?= constraints.txt
ARGS ?=
PY = $(VENV)/bin/python
# Tests that run SGLang.
RELEASE_TESTS := tests/unit/test_contract.py tests/engine
# Threads that fight for few cores stall SGLang's CPU engine.
export OMP_NUM_THREADS ?= 1

.PHONY: demo test test-full test-0.5.23 lint docs dist venv
.NOTPARALLEL:

demo: venv
	@$(PY) -m benchmarks.demo $(ARGS)

test: venv
	@$(PY) -m pytest -n 2 --dist loadgroup $(ARGS)

test-full: venv
	@$(PY) -m pytest -m "" -n 2 --dist loadgroup $(ARGS)

# mypy sees kernels/ and patches/ under the names they are imported by; its cache lies with the environment.
lint: venv
	@$(PY) -m ruff check .
	@types="$$(mktemp -d)"; trap 'rm -rf "$$types"' EXIT; \
	ln -s "$(CURDIR)/zipage_sglang" "$$types/zipage_sglang"; \
	ln -s "$(CURDIR)/kernels" "$$types/zipage_kernels"; ln -s "$(CURDIR)/patches" "$$types/zipage_patches"; \
	cd "$$types" && MYPYPATH="$$types" "$(abspath $(PY))" -m mypy --config-file "$(CURDIR)/pyproject.toml" \
	  --cache-dir "$(abspath $(VENV))/.mypy_cache" -p zipage_sglang -p zipage_kernels -p zipage_patches

docs: venv
	@$(PY) -c "import material" 2>/dev/null || $(PY) -m pip install -q --disable-pip-version-check -c constraints.txt -e ".[docs]"
	@NO_MKDOCS_2_WARNING=1 $(PY) -m mkdocs build --strict

dist: venv
	@$(PY) -m build
test-0.5.23: VENV := $(VENV23)
test-0.5.23: CONSTRAINTS := constraints-0.5.23.txt
test-0.5.23: venv
	@$(PY) -m pytest -n 2 --dist loadgroup $(RELEASE_TESTS) $(ARGS)

# The stamp names what was installed and from where, so that an edited file or a second clone that shares the folder is
# installed again, and an unchanged one is not.
venv:
	@key="$$(cat $(CONSTRAINTS) pyproject.toml | sha256sum | cut -c1-16) $(CURDIR)"; \
	stamp="$(VENV)/.installed"; \
	[ "$$(cat "$$stamp" 2>/dev/null)" = "$$key" ] && exit 0; \
	set -e; \
	if [ -x "$(PY)" ]; then \
	  echo "Checking $(VENV) against $(CONSTRAINTS) and installing this checkout into it"; \
	else \
	  command -v "$(PYTHON)" >/dev/null || { echo "make: no $(PYTHON) here; install Python 3.11 or say PYTHON=/path/to/it" >&2; exit 1; }; \
	  echo "Making $(VENV) with $$($(PYTHON) --version): SGLang, torch and this checkout, 9 GB on disk, several minutes"; \
	  "$(PYTHON)" -m venv "$(VENV)"; \
	fi; \
	rm -f "$$stamp"; \
	"$(PY)" -m pip install --disable-pip-version-check --no-input -c $(CONSTRAINTS) -e ".[test,eval,dev]" \
	  | awk '/^(Collecting|  Downloading|Installing|Successfully)/ { print substr($$0, 1, 100); fflush() }'; \
	[ "$${PIPESTATUS[0]}" = 0 ] || { echo "make: pip failed; run '$(PY) -m pip install -c $(CONSTRAINTS) -e .[test,eval,dev]' to see why" >&2; exit 1; }; \
	echo "$$key" > "$$stamp"
