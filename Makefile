# make train: install into .venv and train on two ranks.   make test: install what the tests need and run them all.
# make sanitize: the kernels' tests under AddressSanitizer and UndefinedBehaviorSanitizer.
# make bench: run the benchmarks; rows and pictures go to build/bench.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
RANKS ?= 2
ARGS ?=
BENCHMARKS ?= limits spmm attention epoch memory scaling overlap

SOURCES := setup.py setup.cfg pyproject.toml $(wildcard native/*)

.PHONY: train test sanitize bench lint clean

train: $(VENV)/.mpi
	$(BIN)/mpiexec -n $(RANKS) $(BIN)/python -m sarlite.train --progress $$(test -t 2 && echo bar || echo lines) $(ARGS)

test: $(VENV)/.test
	$(BIN)/python -m pytest -q tests/unit
	for isa in $$($(BIN)/python -c 'from sarlite import kernels; print(*kernels.instruction_sets()[:-1])'); do \
	  SARLITE_ISA=$$isa $(BIN)/python -m pytest -q tests/unit/test_kernels_*.py tests/unit/test_activate.py || exit 1; \
	done
	for n in 1 2 3 4; do \
	  timeout 300 $(BIN)/mpiexec -n $$n $(BIN)/python -m pytest -q --with-mpi -m mpi tests/mpi || exit 1; \
	done
	$(BIN)/python -m pytest -q tests/failure
	for example in examples/*.py; do timeout 120 $(BIN)/python $$example || exit 1; done

# The kernels' tests on a build with AddressSanitizer and UndefinedBehaviorSanitizer, in a place of its own.
SANITIZED := build/sanitize/lib
PRELOAD = $(shell $(CC) -print-file-name=libasan.so)
# Python leaks at its end; a test asks for more memory than there is.
SANITIZER_OPTIONS := detect_leaks=0:allocator_may_return_null=1
SANITIZER_TESTS := tests/unit/test_instruction_sets.py tests/unit/test_kernels_arguments.py tests/unit/test_buffers.py

sanitize: $(VENV)/.test
	@test -e "$(PRELOAD)" || { echo "make sanitize: $(CC) has no libasan.so"; exit 1; }
	SARLITE_SANITIZE=1 $(BIN)/python setup.py -q build --build-base build/sanitize --build-lib $(SANITIZED)
	cd build && LD_PRELOAD="$(PRELOAD)" ASAN_OPTIONS="$(SANITIZER_OPTIONS)" PYTHONPATH=$(CURDIR)/$(SANITIZED) \
	  $(CURDIR)/$(BIN)/python -c "import sarlite._native as n; assert 'sanitize' in n.__file__, n.__file__"
	LD_PRELOAD="$(PRELOAD)" ASAN_OPTIONS="$(SANITIZER_OPTIONS)" PYTHONPATH=$(CURDIR)/$(SANITIZED) \
	  $(BIN)/pytest -q -s --timeout 600 $(SANITIZER_TESTS)

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
