# setup needs Python >= 3.11.4, git, gcc and the package index; uv is used where it is present, pip otherwise.
PYTHON ?= python3.11
VENV   ?= .venv
BIN    := $(VENV)/bin
PACKS  ?= pack05 pack09 pack16

.PHONY: setup reproduce test lint clean

setup: $(VENV)/.ready

$(VENV)/.ready: pyproject.toml
	@if command -v uv >/dev/null 2>&1; then \
	  uv venv -q --allow-existing --python $(PYTHON) $(VENV) && uv pip install -q --python $(BIN)/python -e '.[cpu,dev]'; \
	else \
	  $(PYTHON) -m venv $(VENV) && $(BIN)/python -m pip install -q -e '.[cpu,dev]'; \
	fi
	@touch $@

reproduce: setup
	$(BIN)/python -m reproducers.run $(PACKS)

test: setup
	$(BIN)/python -m pytest -n auto --dist worksteal

lint: setup
	$(BIN)/ruff check . && $(BIN)/ruff format --check . && $(BIN)/mypy

clean:
	rm -rf build .pytest_cache .mypy_cache .ruff_cache
