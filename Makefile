# Everything happens in .venv, made on first use and again when a pinned version or the package's metadata changes.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip install --quiet --disable-pip-version-check
STAMP := $(VENV)/.installed
NEWEST := $(CURDIR)/$(VENV)/triton-$(shell sed -n 's/^OLDEST, NEWEST = .*, "\(.*\)"/\1/p' neptune/hopper/gluon/versions.py)
# A worker that dies is not started again: xdist may wait for ever for the new one, and the run fails anyway.
PARALLEL := -n 2 --dist loadfile --max-worker-restart=0
CHECKED := $(wildcard neptune bench qa examples appendix_examples)

# Tests start many processes: what these import is compiled once, also where the environment says otherwise.
export PYTHONDONTWRITEBYTECODE :=

.PHONY: demo test test-all test-ray test-gluon newest lint docs clean

demo: $(STAMP)
	$(BIN)/python examples/causal_attention.py

# Without what is marked slow: see tests/README.md.
test: $(STAMP)
	$(BIN)/python -m pytest $(PARALLEL) -q -m "not slow"

# With the newest Triton too, where `make newest` has installed it.
test-all: $(STAMP)
	NEPTUNE_OTHER_TRITON=$(wildcard $(NEWEST)) $(BIN)/python -m pytest $(PARALLEL) -q --durations=50 --durations-min=1

# The tuner on a local Ray; without Ray, which is 270 MB, its tests are skipped.
test-ray: $(STAMP)
	$(PIP) 'ray>=2.9'
	$(BIN)/python -m pytest -q tests/unit/autotune/test_cluster.py

# Sixteen Gluon kernels, compiled by the pinned Triton and by the newest one.
test-gluon: newest
	NEPTUNE_OTHER_TRITON=$$(test -d $(NEWEST) && echo $(NEWEST)) $(BIN)/python -m pytest -q tests/unit/hopper/test_versions.py \
		tests/unit/hopper/test_compiled.py

# The newest Triton that generated Gluon is for, beside the pinned one (280 MB).
newest: $(STAMP)
	test -d $(NEWEST) || { $(PIP) --no-deps --target $(NEWEST).new triton==$(subst triton-,,$(notdir $(NEWEST))) && mv $(NEWEST).new $(NEWEST); } || echo "$(notdir $(NEWEST)) is not to be had here: its tests are skipped"

lint: $(STAMP)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy --strict $(CHECKED)
	$(BIN)/lint-imports --no-logo

# The documentation as site/, to be read from the folder or served; a broken link or reference fails.
docs: $(STAMP)
	NO_MKDOCS_2_WARNING=1 $(BIN)/python -m mkdocs build --strict

clean:
	rm -rf $(VENV) build dist site .pytest_cache .mypy_cache .ruff_cache .hypothesis .import_linter_cache
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

$(STAMP): requirements-dev.txt pyproject.toml
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	# A torch built for CUDA comes with its own Triton (3.6 or newer): then that one is taken.
	$(PIP) -r requirements-dev.txt || { sed '/^triton==/d' requirements-dev.txt > $(VENV)/requirements.txt && $(PIP) -r $(VENV)/requirements.txt; }
	$(PIP) --no-deps --no-build-isolation -e .
	touch $@
