# Everything a checkout needs: each target sets up its own virtual environment first.
PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed
# Test workers and the drivers that tests start import the same modules a few hundred times: compile them once.
unexport PYTHONDONTWRITEBYTECODE
# Tests wait for processes for half of their time, so that small machines serve more workers than they have cores.
WORKERS ?= $(shell n=$$(nproc 2>/dev/null || echo 2); echo $$((n < 4 ? 4 : n)))
# The local cluster: version of Kubernetes, nodes, simulated GPUs of each, the driver's feature gates and further flags.
K8S_VERSION ?= 1.36.3
NODES ?= 1
GPUS ?= h200x2
GATES ?= TimeSlicingSettings=true
DRIVER_FLAGS ?=
# End-to-end tests wait for most of their time: two workers, each with clusters of its own.
E2E_WORKERS ?= 2
E2E_FLAGS ?=

.DEFAULT_GOAL := help
.PHONY: help demo test tools chart toolkit docs check fix stubs bench image cluster cluster-down cluster-build e2e karpenter \
	cert-manager clean

help: ## Show the targets
	@grep -E '^[a-z0-9-]+:.*##' $(MAKEFILE_LIST) | awk -F ':.*## ' '{printf "  %-13s %s\n", $$1, $$2}'

$(STAMP): pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; v = sys.version_info[:2]; sys.exit(0 if (3, 11) <= v < (3, 15) else "Python 3.11 to 3.14 is needed, $(PYTHON) is %d.%d: set PYTHON=python3.12, say" % v)'
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV) || { echo "$(PYTHON) cannot make virtual environments; on Debian and Ubuntu: apt-get install python3-venv"; rm -rf $(VENV); exit 1; }
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --constraint constraints.txt --editable '.[dev]'
	@touch $@

demo: $(STAMP) ## Watch GPUs being shared on a simulated node, through the real protocols
	$(BIN)/dra-driver demo

test: $(STAMP) ## Run the tests
	$(BIN)/python -m pytest -n $(WORKERS)

tools: $(STAMP) ## Test what helps development: bench, trace, images, local cluster
	$(BIN)/python -m pytest -n $(WORKERS) tests/tools

chart: $(STAMP) ## Test the Helm chart, against the schemas of each Kubernetes; Helm is built once, with Go
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --constraint constraints.txt --editable '.[dev,chart]'
	$(BIN)/python -m hack.cluster tool helm
	$(BIN)/python -m pytest -n $(WORKERS) -m chart tests/unit

toolkit: $(STAMP) ## Test against NVIDIA's container toolkit, which is built once, with Go and a C compiler; as root
	$(BIN)/python -m hack.cluster tool nvidia
	$(BIN)/python -m pytest -n $(WORKERS) -m toolkit tests/unit

check: $(STAMP) ## Lint, format check, types, import contract
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

docs: $(STAMP) ## Build the documentation as a site, in build/site; broken links and stale pictures fail
	$(BIN)/python -m hack.docs --check
	$(BIN)/python -m hack.pictures --check
	NO_MKDOCS_2_WARNING=1 $(BIN)/python -m mkdocs build

fix: $(STAMP) ## Format and fix what can be fixed
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

stubs: $(STAMP) ## Generate the gRPC stubs from the .proto files
	$(BIN)/python hack/codegen/stubs.py

bench: $(STAMP) ## Measure prepare, unprepare, start-up and memory
	$(BIN)/python -m hack.bench

image: $(STAMP) ## Build the driver's image with nvidia-cdi-hook in it: build/driver.tar; needs mmdebstrap, Go, a C compiler
	folder=$$($(BIN)/python -m hack.cluster tool nvidia) && \
	$(BIN)/python -m hack.image --output build/driver.tar --nvidia-cdi-hook "$$folder/nvidia-cdi-hook"

cluster: $(STAMP) ## Start a real Kubernetes with the driver on simulated GPUs (hack/cluster/README.md); as root
	$(BIN)/python -m hack.cluster up --k8s $(K8S_VERSION) --nodes $(NODES) --driver $(GPUS) --gates '$(GATES)' -- $(DRIVER_FLAGS)

cluster-down: $(STAMP) ## End that cluster
	$(BIN)/python -m hack.cluster down

cluster-build: $(STAMP) ## Build the cluster's programs, once for each version
	$(BIN)/python -m hack.cluster build --k8s $(K8S_VERSION)

e2e: cluster-build image ## Prove the driver on a real Kubernetes (K8S_VERSION); as root
	K8S_VERSION=$(K8S_VERSION) $(BIN)/python -m pytest -m e2e -n $(E2E_WORKERS) --dist loadfile $(E2E_FLAGS) tests/e2e

karpenter: cluster-build ## Prove static NodePools with Karpenter's core, which is built once (20 minutes); as root
	K8S_VERSION=$(K8S_VERSION) $(BIN)/python -m pytest -m karpenter tests/e2e

cert-manager: cluster-build ## Prove the webhook's certificates with cert-manager's own code, built once (5 minutes); as root
	K8S_VERSION=$(K8S_VERSION) $(BIN)/python -m pytest -m cert_manager tests/e2e

clean: ## Remove the virtual environment and caches
	rm -rf $(VENV) build dist .pytest_cache .mypy_cache .ruff_cache .hypothesis
