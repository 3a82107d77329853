# Everything runs in .venv, which the first target to be called sets up. `make help` lists the targets.

PYTHON ?=
ARGS ?=
VENV := .venv
READY := $(VENV)/.sglang-adaptive-ready
# mypy is strict on the layers that run inside every decode round and on what scores them.
STRICT := sglang_adaptive/policy sglang_adaptive/runtime sglang_adaptive/simulate

.PHONY: help setup demo test lint types docs models bench-sim constraints clean
.DEFAULT_GOAL := help

help:
	@echo "make demo         a real SGLang server on the CPU; watch the draft depth follow the text"
	@echo "make test         unit tests, and tests that drive a real server on the CPU"
	@echo "make lint         ruff"
	@echo "make types        mypy, strict"
	@echo "make docs         the documentation as a site, into site/; ends when a link leads nowhere"
	@echo "make bench-sim    policies against an oracle, on measured round times; then our policy with each part left out"
	@echo "make models       train the demo's tiny model pair again"
	@echo "make setup        only set up .venv"
	@echo "make constraints  pin today's newest packages in constraints.txt"
	@echo "make clean        remove caches and builds; .venv stays"
	@echo
	@echo "ARGS='...' is passed on to demo, test, docs, models and bench-sim; PYTHON=... picks the interpreter of .venv."

setup: $(READY)

$(READY): pyproject.toml constraints.txt overrides.txt scripts/setup.sh
	@PYTHON="$(PYTHON)" sh scripts/setup.sh $(VENV)
	@touch $@

demo: $(READY)
	$(VENV)/bin/sglang-adaptive demo $(ARGS)

test: $(READY)
	$(VENV)/bin/python $(if $(ARGS),-m pytest $(ARGS),scripts/run_tests.py)

lint: $(READY)
	$(VENV)/bin/ruff check .

types: $(READY)
	$(VENV)/bin/mypy $(STRICT)

docs: $(READY)
	$(VENV)/bin/python -m sphinx --quiet --fail-on-warning --conf-dir docs . site $(ARGS)
	@echo "open site/index.html"

models: $(READY)
	$(VENV)/bin/python -m train $(ARGS)

bench-sim: $(READY)
	@mkdir -p benchmarks/results/simulation
	$(VENV)/bin/sglang-adaptive simulate --json benchmarks/results/simulation/simulate.json \
		--html benchmarks/results/simulation/simulate.html $(ARGS)
	$(VENV)/bin/sglang-adaptive simulate --ablate --json benchmarks/results/simulation/ablation.json \
		--html benchmarks/results/simulation/ablation.html $(ARGS)

constraints: $(READY)
	sh scripts/pin.sh $(VENV)

clean:
	rm -rf build dist site .pytest_cache .mypy_cache .ruff_cache .hypothesis .benchmarks
	find . -name __pycache__ -not -path './$(VENV)/*' -prune -exec rm -rf {} +
	@echo "$(VENV) was left in place; remove it with: rm -rf $(VENV) .uv"
