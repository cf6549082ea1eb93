# setup needs Python >= 3.11.4, git, gcc and the package index; uv is used where it is present, pip otherwise. Everything
# comes by the digests in requirements/ but torch and CUDA's libraries, of which each build of torch has others.
PYTHON ?= python3.11
VENV   ?= .venv
BIN    := $(VENV)/bin
PACKS  ?= pack05 pack09 pack16
STACK  ?= released
RUN    ?= build/train$(if $(filter-out released,$(STACK)),_$(STACK))
# A thread a worker: as many workers as cores, each with as many threads as cores, wait for each other.
PYTEST := OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n auto --dist worksteal
comma  := ,
# Some hosts forbid bytecode; then each of the hundreds of processes of the tests would compile the project anew.
unexport PYTHONDONTWRITEBYTECODE
SETUP  := cpu,dev,desk

.PHONY: setup reproduce train test test-all test-ci lint lock clean

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

# install: by the lock of this name, with these extras.
define install
	@command -v uv >/dev/null 2>&1 || $(PYTHON) -c 'import sys; sys.exit("Python >= 3.11.4 is needed, $(PYTHON) is "\
	  + sys.version.split()[0] + "; fix: make PYTHON=PATH-TO-IT" if sys.version_info < (3, 11, 4) else 0)'
	@if [ -f $(VENV)/pyvenv.cfg ] && [ "$(or $(ASKED),$$(cat $(VENV)/.python 2>/dev/null))" != \
	  "$$(cat $(VENV)/.python 2>/dev/null)" ]; then \
	  rm -rf $(VENV); fi
	@if command -v uv >/dev/null 2>&1; then \
	  uv venv -q --allow-existing --python $(PYTHON) $(VENV) && \
	  uv pip install -q --python $(BIN)/python --require-hashes -r requirements/$(1).txt && \
	  uv pip install -q --python $(BIN)/python --no-build-isolation -e '.[$(2)]'; \
	else \
	  $(PYTHON) -m venv $(VENV) && \
	  $(BIN)/python -m pip install -q --require-hashes -r requirements/$(1).txt && \
	  $(BIN)/python -m pip install -q --no-build-isolation -e '.[$(2)]'; \
	fi
	@[ -z "$(ASKED)" ] && [ -f $(VENV)/.python ] || echo $(PYTHON) > $(VENV)/.python
	@touch $(VENV)/.ready $@
endef

$(VENV)/.ready: pyproject.toml requirements/setup.txt
	$(call install,setup,$(SETUP))

# With what training draws and logs with, and the tests of model/ and of the rules read: not needed to reproduce.
$(VENV)/.train: pyproject.toml requirements/train.txt
	$(call install,train,$(SETUP)$(comma)train$(comma)data$(comma)reference)

reproduce: $(VENV)/.ready
	$(BIN)/python -m reproducers.run --no-census $(PACKS)

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

# Of the rest, packs only whose receipts do not hold any more; nothing where the time is over before it begins.
test-ci: test
	@if [ -n "$$PATCHLANE_TESTS_END" ] && [ $$(date +%s) -ge $$PATCHLANE_TESTS_END ]; then \
	  echo "skipped: the rest, for the time is over; make test-all runs it"; \
	else $(PYTEST) -m 'rest and not proved'; fi

lint: $(VENV)/.ready
	$(BIN)/ruff check . && $(BIN)/ruff format --check . && $(BIN)/mypy

# Needs uv. Keeps what still fits pyproject.toml; NEW=--upgrade takes the newest of everything.
COMPILE = uv pip compile -q $(NEW) --universal --python-version 3.11 --generate-hashes --no-annotate \
  --custom-compile-command 'make lock' pyproject.toml $(foreach extra,$(subst $(comma), ,$(2)),--extra $(extra)) \
  $(3) -o requirements/$(1).txt && sed -i '/^\(torch==\|cuda-\|nvidia-\)/,/[^\\]$$/d' requirements/$(1).txt
lock:
	$(call COMPILE,setup,$(SETUP))
	$(call COMPILE,train,$(SETUP)$(comma)train$(comma)data$(comma)reference,-c requirements/setup.txt)

clean:
	rm -rf build .pytest_cache .mypy_cache .ruff_cache
