.DEFAULT_GOAL := help
.PHONY: help demo dev test soak lint clean

VENV := .venv
BIN := $(VENV)/bin
PYTHON ?= $(firstword $(foreach p,python3 python3.14 python3.13 python3.12 python3.11,$(shell $(p) -c 'import sys; sys.version_info >= (3, 11) and print("$(p)")' 2>/dev/null)))
PIP := $(BIN)/python -m pip --disable-pip-version-check --quiet
ALL := .[webserver,gemini,s3server]
COMPILE := $(BIN)/python -m compileall -q -j 0 $(VENV)/lib llm_batch_assets || true
LINT := $(BIN)/ruff check . && $(BIN)/ruff format --check . && $(BIN)/mypy \
	&& $(BIN)/lint-imports --no-cache
INPUTS := pyproject.toml constraints.txt
ARGS ?=
# Most tests wait for a server's clock or for the disk: more workers than cores, and files in memory
# where the machine has a folder for that.
FAST := $(firstword $(wildcard /dev/shm) $(TMPDIR) /var/tmp)

# Every start of a Dagster process costs three times as much without .pyc files.
export PYTHONDONTWRITEBYTECODE :=

help: ## Show this list
	@grep -hE '^[a-z]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/^([a-z]+):.*## /  make \1\t/' | expand -t 14
	@echo '  ARGS="--records all --seed 7" (demo, dev) or ARGS="-k name" (test) is handed on.'

$(VENV)/.made:
	@test -n "$(PYTHON)" || { echo "Python 3.11 or newer is needed: make PYTHON=/path/to/python3" >&2; exit 2; }
	@echo "Making $(VENV) with $(PYTHON)" >&2
	@$(PYTHON) -m venv $(VENV)
	@touch $@

# pip compiles one file after the other; compileall uses every core.
$(VENV)/.demo: $(VENV)/.made $(INPUTS)
	@echo "Installing what the demo needs (about a minute the first time)" >&2
	@$(PIP) install --no-compile -c constraints.txt -e ".[webserver]"
	@$(COMPILE)
	@touch $@

$(VENV)/.dev: $(VENV)/.made $(INPUTS)
	@echo "Installing what the tests need (about a minute the first time)" >&2
	@$(PIP) install --no-compile -c constraints.txt -e ".[webserver,dev]"
	@$(COMPILE)
	@touch $@ $(VENV)/.demo

demo: $(VENV)/.demo ## One dataset from source to published, offline, in about two minutes
	@case "$(ARGS)" in *gemini*|*bedrock*) $(PIP) install -c constraints.txt -e "$(ALL)" >&2 ;; esac
	@$(BIN)/llm-batch-assets demo $(ARGS)

dev: $(VENV)/.demo ## The UI and the simulator to play with, until Ctrl-C
	@$(BIN)/llm-batch-assets demo --dev $(ARGS)

# Style and types are looked at while tests wait; what they say comes last.
test: $(VENV)/.dev ## Everything that must hold: the tests, style, types, layers
	@( $(LINT) ) >$(VENV)/lint.log 2>&1 & lint=$$!; \
	PYTEST_DEBUG_TEMPROOT=$(FAST) $(BIN)/pytest -n 6 --dist worksteal -m "not soak" $(ARGS); \
	tested=$$?; wait $$lint; linted=$$?; \
	[ $$linted -eq 0 ] && echo "lint: clean" || cat $(VENV)/lint.log; \
	[ $$linted -eq 0 ] && exit $$tested

soak: $(VENV)/.dev ## The long suites: some hours
	@PYTEST_DEBUG_TEMPROOT=$(FAST) $(BIN)/pytest -n 4 --dist worksteal -m soak $(ARGS)

lint: $(VENV)/.dev ## ruff, mypy and the import layers
	@$(LINT)

clean: ## Remove what was made here (the ledger in .llm_batch stays)
	@rm -rf $(VENV) .dagster .pytest_cache .ruff_cache .mypy_cache .hypothesis
