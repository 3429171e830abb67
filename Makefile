# make train: install into .venv and train on two ranks.   make test: install what the tests need and run them all.
# make bench: run the benchmarks; rows and pictures go to build/bench.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
RANKS ?= 2
ARGS ?=
BENCHMARKS ?= limits spmm attention epoch memory scaling overlap

SOURCES := setup.py setup.cfg pyproject.toml $(wildcard native/*)

.PHONY: train test bench lint clean

train: $(VENV)/.mpi
	$(BIN)/mpiexec -n $(RANKS) $(BIN)/python -m sarlite.train --progress $$(test -t 2 && echo bar || echo lines) $(ARGS)

test: $(VENV)/.test
	$(BIN)/python -m pytest -q tests/unit
	for n in 1 2 3 4; do \
	  timeout 300 $(BIN)/mpiexec -n $$n $(BIN)/python -m pytest -q --with-mpi -m mpi tests/mpi || exit 1; \
	done
	$(BIN)/python -m pytest -q tests/failure
	for example in examples/*.py; do timeout 120 $(BIN)/python $$example || exit 1; done

bench: $(VENV)/.plot
	mkdir -p build/bench
	for name in $(BENCHMARKS); do $(BIN)/python benchmarks/$$name.py --json build/bench/$$name.json || exit 1; done
	for name in $(BENCHMARKS); do \
	  case $$name in limits) axes="--x row_bytes --y gb_per_s";; memory) axes="--y peak_mib";; *) axes=;; esac; \
	  $(BIN)/python benchmarks/plot.py build/bench/$$name.json $$axes || exit 1; \
	done

lint: $(VENV)/.test
	$(BIN)/ruff check --no-cache --line-length 140 --target-version py310 --select E,F,W,I,B,UP --ignore B905 \
	  --config 'lint.isort.known-first-party = ["sarlite"]' .

# One stamp an extra; both are made again when the native code or the metadata changes.
$(VENV)/.mpi: $(SOURCES) | $(VENV)/.pip
	$(BIN)/pip install -q -e '.[mpi]'
	touch $@

$(VENV)/.test: $(SOURCES) | $(VENV)/.pip
	$(BIN)/pip install -q -e '.[mpi,test]'
	touch $@ $(VENV)/.mpi

$(VENV)/.plot: $(SOURCES) | $(VENV)/.pip
	$(BIN)/pip install -q -e '.[mpi,plot]'
	touch $@ $(VENV)/.mpi

$(VENV)/.pip:
	$(PYTHON) -m venv $(VENV)
	$(BIN)/pip install -q --upgrade pip
	touch $@

clean:
	rm -rf $(VENV) build *.egg-info sarlite/_native*.so sarlite/_native.c
