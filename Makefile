# attn-mlir: everything a checkout can do. `make help` lists the targets.
#
# Needs Python 3.11 or newer and make. The environment is made in .venv from pyproject.toml.

PYTHON ?= $(shell command -v python3 || command -v python)
VENV   := .venv
BIN    := $(VENV)/bin
JOBS   ?= $(shell nproc 2>/dev/null || echo 2)
TORCH  ?= 2.13.0
TRANSFORMERS ?= 5.23.0
GPU_BUNDLES ?= build/gpu-bundles.zip

.DEFAULT_GOAL := help
.PHONY: help setup torch demo test skipped lit pytest long lint format count numerics mutants conformance differential gpu-bundles gpu bench calibrate model clean distclean

help:  ## list the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## /{printf "  make %-12s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

setup: $(VENV)/.installed  ## make the environment in .venv

$(VENV)/.installed: pyproject.toml
	@$(PYTHON) -c 'import sys; v = sys.version_info; sys.exit(f"attn-mlir needs Python 3.11 or newer, {sys.executable} is {v[0]}.{v[1]}: set PYTHON=") if v < (3, 11) else None'
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --editable '.[test]'
	@touch $@

$(VENV)/.installed-lint: $(VENV)/.installed
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --editable '.[test,lint]'
	@touch $@

torch: $(VENV)/.installed-torch  ## add PyTorch (TORCH=version) and transformers to .venv: tests with tensors are skipped without

$(VENV)/.installed-torch: $(VENV)/.installed
	$(BIN)/python -m pip install --quiet --disable-pip-version-check torch==$(TORCH) transformers==$(TRANSFORMERS)
	@touch $@

demo: setup  ## compile causal attention for the GPU here, or sm_100a for the emulator, run it, compare it with float64
	@$(BIN)/python -m attn_mlir.cli demo $(DEMO_ARGS)

test: setup  ## the whole suite: lit, then pytest; needs no GPU
	@$(BIN)/python test/run_all.py --jobs $(JOBS)

skipped: setup  ## only what the last `make test` skipped, for example after `make torch`
	@$(BIN)/python test/run_all.py --jobs $(JOBS) --skipped

lit: setup  ## only the tests of the IR
	@$(BIN)/lit -j$(JOBS) -sv test

pytest: setup  ## only the tests in Python
	@$(BIN)/python -m pytest -q test

long: setup  ## the tests in Python that `make test` leaves out, marked `long`
	@$(BIN)/python -m pytest -q -n $(JOBS) --dist worksteal -m long test

lint: $(VENV)/.installed-lint build/typing/attn_mlir  ## ruff and pyright
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/pyright

# pyright wants packages on disk: a folder that holds links to the flat folders under their import names.
build/typing/attn_mlir: $(wildcard frontend/*) Makefile
	@rm -rf $@ && mkdir -p $@
	@for path in frontend/*; do ln -s ../../../$$path $@/$${path##*/}; done
	@for folder in bench dialect passes lowering runtime schedules test/validation; do ln -s ../../../$$folder $@/$${folder##*/}; done
	@touch $@

count: setup  ## lines of the product by room (COUNT_ARGS=)
	@$(BIN)/python docs/tools/count_lines.py $(COUNT_ARGS)

format: $(VENV)/.installed-lint  ## let ruff write the layout
	$(BIN)/ruff check --fix . && $(BIN)/ruff format .

numerics: long  ## tests marked `long`, the numerics sweep, 300 random problems, all drawn calls and files
	@$(BIN)/python test/validation/numerics/sweep.py $(NUMERICS_ARGS)
	@$(BIN)/python test/validation/numerics/sparse_sweep.py --jobs $(JOBS)
	@$(BIN)/python test/validation/numerics/draws/replay.py --count 300 --jobs $(JOBS)
	@$(BIN)/python -m attn_mlir.validation.numerics.latent_draws --count 200
	@$(BIN)/python -m attn_mlir.validation.numerics.decode_draws --count 100
	@$(BIN)/python -m attn_mlir.validation.numerics.sparse_draws --count 100
	@$(BIN)/python -m attn_mlir.validation.numerics.kvcache_draws --count 100
	@$(BIN)/python -m attn_mlir.validation.numerics.gradient_draws --count 300
	@$(BIN)/python -m attn_mlir.validation.numerics.latent_gradient_draws --count 100
	@$(BIN)/python -m attn_mlir.validation.numerics.decode_sweep --jobs $(JOBS)
	@$(BIN)/python -m attn_mlir.validation.numerics.prefill_sweep --jobs $(JOBS)
	@$(BIN)/python test/validation/fuzz/fuzz.py all --jobs $(JOBS)

conformance: setup  ## kernels of other projects on the emulator; makes .venv-peers (3 GB) on first use
	@$(BIN)/python test/validation/conformance/run.py --jobs $(JOBS) $(CONFORMANCE_ARGS)

differential: setup  ## generated PTX on a Hopper GPU and on the emulator (needs the GPU; DIFFERENTIAL_ARGS=)
	@$(BIN)/python test/validation/differential/run.py all $(DIFFERENTIAL_ARGS)

mutants: setup  ## plant mistakes in kernels and in the host, and count who notices (long; MUTANTS_ARGS=, HOST_MUTANTS_ARGS=)
	@$(BIN)/python test/validation/mutation/mutants.py --jobs $(JOBS) $(MUTANTS_ARGS)
	@$(BIN)/python test/validation/mutation/host/run.py --jobs $(JOBS) $(HOST_MUTANTS_ARGS)

gpu-bundles: setup  ## compile what `make gpu` needs into GPU_BUNDLES, where the compiler is
	@mkdir -p $(dir $(GPU_BUNDLES))
	@$(BIN)/python -m attn_mlir.validation.gpu.bundles $(GPU_BUNDLES) $(GPU_ARGS)

gpu: build/typing/attn_mlir  ## check a GPU with plain python3 and GPU_BUNDLES; nothing is installed
	@PYTHONPATH=build/typing $(PYTHON) -m attn_mlir.validation.gpu.run $(GPU_BUNDLES) $(GPU_ARGS)

calibrate: setup  ## microbenchmarks for the model of time, on a Hopper GPU; JSON to build/probes
	$(BIN)/python bench/calibrate.py --write build/probes
	$(BIN)/python bench/calibrate.py --read build/probes | tee build/probes/measured.json

model: setup  ## the model of time beside the measured clocks of attention; needs no GPU
	$(BIN)/python bench/cycles.py --write build/model
	$(BIN)/python bench/model.py build/model
	$(BIN)/python bench/cycles.py --write build/model_long $(foreach d,64 96 128 192 256,$(foreach m,full causal,$(foreach n,2048 8192,--cell $(d) $(m) $(n))))
	$(BIN)/python bench/model.py build/model_long --measured bench/h200_cycles.md

bench: setup  ## compile time, static quality of the machine code, emulator speed
	@$(BIN)/python bench/compile.py
	@$(BIN)/python bench/sass.py
	@$(BIN)/python bench/emulator.py

clean:  ## remove what was built, keep .venv
	rm -rf build dist out .pytest_cache .ruff_cache .hypothesis test/Output
	find . -name __pycache__ -type d -not -path './.venv*' -prune -exec rm -rf {} +

distclean: clean  ## remove .venv as well
	rm -rf $(VENV)
