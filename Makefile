# setup needs Python >= 3.11.4, git, gcc and the package index; uv is used where it is present, pip otherwise.
PYTHON ?= python3.11
VENV   ?= .venv
BIN    := $(VENV)/bin
PACKS  ?= pack05 pack09 pack16
STACK  ?= released
RUN    ?= build/train$(if $(filter-out released,$(STACK)),_$(STACK))
PYTEST := $(BIN)/python -m pytest -n auto --dist worksteal
comma  := ,

.PHONY: setup reproduce train test test-all test-ci lint clean

# Asked for by name it looks at what is there, and brings what is missing.
setup:
	@$(MAKE) --no-print-directory -W pyproject.toml $(or $(wildcard $(VENV)/.train),$(VENV)/.ready)

# An interpreter that is asked for replaces an environment of another one.
ASKED := $(if $(filter file default,$(origin PYTHON)),,$(PYTHON))
ifneq ($(filter-out $(shell cat $(VENV)/.python 2>/dev/null),$(ASKED)),)
$(VENV)/.ready $(VENV)/.train: another
endif
.PHONY: another
another:

define install
	@command -v uv >/dev/null 2>&1 || $(PYTHON) -c 'import sys; sys.exit("Python >= 3.11.4 is needed, $(PYTHON) is "\
	  + sys.version.split()[0] + "; fix: make PYTHON=PATH-TO-IT" if sys.version_info < (3, 11, 4) else 0)'
	@if [ -f $(VENV)/pyvenv.cfg ] && [ "$(or $(ASKED),$$(cat $(VENV)/.python 2>/dev/null))" != \
	  "$$(cat $(VENV)/.python 2>/dev/null)" ]; then \
	  rm -rf $(VENV); fi
	@if command -v uv >/dev/null 2>&1; then \
	  uv venv -q --allow-existing --python $(PYTHON) $(VENV) && uv pip install -q --python $(BIN)/python -e '.[$(1)]'; \
	else \
	  $(PYTHON) -m venv $(VENV) && $(BIN)/python -m pip install -q -e '.[$(1)]'; \
	fi
	@[ -z "$(ASKED)" ] && [ -f $(VENV)/.python ] || echo $(PYTHON) > $(VENV)/.python
	@touch $(VENV)/.ready $@
endef

$(VENV)/.ready: pyproject.toml
	$(call install,cpu$(comma)dev$(comma)audit$(comma)desk)

# With what training draws and logs with, and the tests of model/ and of the rules read: not needed to reproduce.
$(VENV)/.train: pyproject.toml
	$(call install,cpu$(comma)dev$(comma)train$(comma)data$(comma)audit$(comma)desk)

reproduce: $(VENV)/.ready
	$(BIN)/python -m reproducers.run $(PACKS)

# On the CPU wherever it is; on one core, for tensors are small and threads wait for each other longer than they work.
# A run that RUN holds already is resumed; one that had ended only draws and reports again. STACK: one of model/stacks.yaml.
train: $(VENV)/.train
	CUDA_VISIBLE_DEVICES= OMP_NUM_THREADS=1 $(BIN)/python -m model.train cpu_tiny --stack $(STACK) --out $(RUN)
	$(BIN)/python -m model.report $(RUN)

# Minutes: all but what tests/kit/tiers.py marks as the rest.
test: $(VENV)/.train
	$(PYTEST) -m 'not rest'

test-all: test
	$(PYTEST) -m rest

# Of the rest, packs only whose receipts do not hold any more.
test-ci: test
	$(PYTEST) -m 'rest and not proved'

lint: $(VENV)/.ready
	$(BIN)/ruff check . && $(BIN)/ruff format --check . && $(BIN)/mypy

clean:
	rm -rf build .pytest_cache .mypy_cache .ruff_cache
