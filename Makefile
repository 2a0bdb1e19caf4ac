# Every target does its own set-up. Needs make, bash, Python 3.10 to 3.13 with venv, git and a package index.
# The first word of a target's help is its tier: [test] is in make test, [all] in make test-all and .ci/run besides, [weekly] takes too
# long for them, [mirrors] needs git mirrors of the upstreams (MIRRORS=DIR), [by hand] hours, a GPU or a gigabyte.
PROFILE ?= qwen3-235b
# The release of every target: the newest, as patchctl takes it by itself.
RELEASES := $(sort $(basename $(notdir $(wildcard manifests/releases/*.yaml))))
RELEASE ?= $(lastword $(RELEASES))
OLDER := $(firstword $(RELEASES))
WORKSPACE ?= workspace
PYTHON ?= $(shell for p in python3.12 python3.11 python3.13 python3.10 python3; do \
	command -v $$p >/dev/null 2>&1 && $$p -c 'import sys, venv, ensurepip; sys.exit(not (3, 10) <= sys.version_info[:2] <= (3, 13))' 2>/dev/null && echo $$p && break; done)
VENV ?= .venv
RUN := $(VENV)/bin/python
PATCHCTL := $(VENV)/bin/patchctl
PYTEST := $(RUN) -m pytest -q
# MIRRORS=DIR holds one local git repository an upstream: DIR/verl, DIR/mindspeed.git, ...
MIRRORS ?=
# MBRIDGE=DIR is a git directory of mbridge's repository, for two tests and DeepSeek-R1's run in test-recipes.
MBRIDGE ?=
UPSTREAMS := verl vllm vllm-ascend megatron-lm mindspeed
MIRROR_FLAGS := $(if $(MIRRORS),$(foreach u,$(UPSTREAMS),$(foreach d,$(wildcard $(MIRRORS)/$(u) $(MIRRORS)/$(u).git),--mirror $(u)=$(abspath $(d)))))
export PATCHCTL_MBRIDGE := $(if $(MBRIDGE),$(abspath $(MBRIDGE)))
export PATCHCTL_MIRRORS := $(if $(MIRRORS),$(abspath $(MIRRORS)))
export PYTHONDONTWRITEBYTECODE := 1
# Each release has trees, an environment and records of its own.
TREES = build/trees/$(RELEASE)
TORCH_PYTHON = PATCHCTL_TORCH_PYTHON="$$($(RUN) scripts/torch_env.py --release $(RELEASE))"
WITH_TORCH = $(TORCH_PYTHON) && export PATCHCTL_TORCH_PYTHON &&
SHELL_SCRIPTS = $(shell git ls-files '*.sh') .ci/run
EVIDENCE ?= docs/evidence

.PHONY: shares-of-the-newest shares-of-the-oldest help tiers apply check demo demo-share demo-gpu test test-all test-tool test-heavy test-shown test-on test-behaviour test-scripts test-demo-gpu test-share test-subsets test-subset-share test-recipes test-recipes-share test-slow test-suites test-git coverage test-pythons test-upstream test-mutants test-bombs test-processes fuzz torture torture-share image-test image-test-slow lint verify lint-upstream bench bench-patches config-keys published-scripts docs release clean trees

help:  ## say what the targets do
	@grep -hE '^[a-z0-9.-]+:.*##' Makefile | sed -E 's/:.*## /	/' | expand -t 20

# uv takes 5 CPU seconds where pip takes 30; thousands of processes of the tests run what is compiled here.
$(VENV)/.ready: pyproject.toml
	@test -n "$(PYTHON)" || { echo "no Python 3.10 to 3.13 with venv was found; set PYTHON" >&2; exit 2; }
	$(PYTHON) -m venv $(VENV)
	$(RUN) -m pip install -q --disable-pip-version-check 'uv>=0.10'
	$(RUN) scripts/uv_as_pip.py pip install -q --compile-bytecode --python $(RUN) -e '.[test,lint]'
	$(RUN) -m compileall -q patchctl
	touch $@

apply: $(VENV)/.ready  ## apply PROFILE into WORKSPACE: what can be had, naming what cannot
	$(PATCHCTL) apply --profile $(PROFILE)$(if $(filter file,$(origin RELEASE)),, --release $(RELEASE)) --workspace $(WORKSPACE) --skip-unavailable $(MIRROR_FLAGS)
	$(PATCHCTL) status --workspace $(WORKSPACE)

DEMO ?=
demo: $(VENV)/.ready  ## GRPO on a CPU from nothing to a risen reward and its picture, minutes (docs/demo.md); DEMO="--seed 1"
	$(RUN) scripts/demo/run.py $(MIRROR_FLAGS) $(DEMO)

demo-share: $(VENV)/.ready  ## [all] the same in two steps; RELEASE=NAME on another release
	$(RUN) scripts/demo/run.py --share --release $(RELEASE) $(MIRROR_FLAGS)

demo-gpu: $(VENV)/.ready  ## [by hand] the trainer's half on a GPU, where one is at hand (docs/demo.md); DEMO="--device cpu" without
	$(RUN) scripts/demo/gpu.py $(MIRROR_FLAGS) $(DEMO)

# WHOLE=1 has the behaviour tests whole and every 32nd of the heavy ones, as .ci/run does.
test: HEAVY = $(if $(WHOLE),1/32,none)
test: test-tool $(if $(WHOLE),test-behaviour,test-on)  ## the tool but for what is marked heavy, and that every feature does what it says
	$(PATCHCTL) verify --static --quiet
	@echo; echo "make test leaves to others:"; $(MAKE) -s tiers

test-all:  ## all that .ci/run runs
	$(MAKE) lint
	$(MAKE) test WHOLE=1
	$(MAKE) -j2 -O shares-of-the-newest shares-of-the-oldest

# Two makes have two jobs between them, so that neither waits for the other's longest. Each makes its release's trees once.
shares-of-the-newest shares-of-the-oldest: export IMAGE_TESTS = -m "not heavy"
shares-of-the-newest:
	+$(MAKE) torture-share demo-share verify test-shown $(IMAGES_OF_THE_NEWEST) test-suites test-demo-gpu TORTURE=1
shares-of-the-oldest:
	+$(MAKE) $(if $(IMAGES_OF_THE_NEWEST),,image-test) test-scripts test-suites test-recipes-share test-share test-subset-share lint-upstream RELEASE=$(OLDER) COMPARE=

tiers:  ## say what make test does not run, in which tier it is, and why
	@grep -hE '^[a-z0-9.-]+:.*## \[' Makefile | grep -v '\[test' | sed -E 's/:.*## /	/' | expand -t 20

check: lint $(VENV)/.ready  ## lint, types, unit tests, the distribution's own files: a minute
	$(PYTEST) -n 2 tests/unit

TOOL = tests/unit tests/cli tests/hostile tests/upstream tests/fuzz tests/recipes
HEAVY ?= 1/1
test-tool: $(VENV)/.ready  ## [test] the tool alone, no torch; in make test without what is marked heavy
	$(PYTEST) -n 2 $(if $(filter none,$(HEAVY)),-m "not heavy",--heavy $(HEAVY)) $(TOOL)

test-heavy: $(VENV)/.ready  ## [weekly] what is marked heavy: thousands of inputs and kills, pip, pytest in pytest; every 32nd of it is in make test-all
	$(PYTEST) -n 2 -m heavy $(TOOL)

test-shown: $(VENV)/.ready  ## [all] the commands that pages, helps and hints show, run for real
	$(PYTEST) -m heavy tests/cli/test_documented_commands.py

# Counting takes two to three times the time, so that what is heavy is left out. A user of a test's own writes there too.
coverage: $(VENV)/.ready  ## [weekly] lines and branches of patchctl/ that tests/unit and tests/cli run, but for what is heavy; with a floor
	mkdir -p build/coverage && chmod 1777 build/coverage && rm -f build/coverage/*
	$(VENV)/bin/coverage run -m pytest -q -n 2 -m "not heavy" tests/unit tests/cli
	$(VENV)/bin/coverage combine -q
	$(VENV)/bin/coverage report

test-processes: $(VENV)/.ready  ## [weekly] test-tool and test-behaviour where every run is a process started anew, and none is forked
	PATCHCTL_TEST_FORKS=0 $(MAKE) test-tool test-behaviour

# GIT=PROGRAM, as one of the oldest version that is taken, built from git's own repository.
GIT ?= git
test-git: $(VENV)/.ready  ## [by hand] the tool's tests with a git of one's own: GIT=PROGRAM
	PATH="$(dir $(abspath $(GIT))):$$PATH" $(PYTEST) -n 2 tests/unit tests/cli tests/hostile

test-pythons: $(VENV)/.ready  ## [weekly] the unit tests on each Python from 3.10 to 3.14 that this machine has, each in an environment of its own
	$(RUN) scripts/test_pythons.py -- -n 2 tests/unit

test-bombs: $(VENV)/.ready  ## [weekly] archives of gigabytes, with their peak memory: 3 minutes
	$(RUN) -m pytest -q tests/hostile/test_bombs.py --slow

# TORTURE points of each scenario and way to stop it; .ci/run takes one.
TORTURE ?= 8
torture-share: $(VENV)/.ready  ## [all] the tool killed and refused by the disk at a fixed share of its system calls
	PATCHCTL_TORTURE=$(TORTURE) $(PYTEST) -n 2 tests/torture

torture: $(VENV)/.ready  ## [by hand] the same at every one of them; hours on two cores, --resume goes on; writes the counts into docs/reliability.md
	$(RUN) tests/torture/run.py --table docs/reliability.md

verify: $(VENV)/.ready  ## [all] the distribution itself, in every form that can be had, and each feature without the others
	$(PATCHCTL) verify --alone --skip-unavailable $(MIRROR_FLAGS)

# The unpatched and the patched trees, from the same sources, for everything that compares them.
APPLY_TREES = $(PATCHCTL) apply --profile every-stack --release $(RELEASE) --skip-unavailable $(MIRROR_FLAGS)
trees: $(VENV)/.ready
	$(APPLY_TREES) --workspace $(TREES)/patched
	$(APPLY_TREES) --workspace $(TREES)/base
	$(PATCHCTL) revert --workspace $(TREES)/base

BEHAVIOUR = $(PYTEST) -n 2 --dist loadfile --no-loadscope-reorder --trees=$(TREES)/patched
test-on: trees  ## [test] that each feature does what it says: its tests marked `on`, on the patched trees of RELEASE, without what is heavy
	$(WITH_TORCH) $(BEHAVIOUR) -m "on and not heavy" patches

test-behaviour: trees  ## [all] the patched upstream code of RELEASE on a CPU torch
	$(WITH_TORCH) $(BEHAVIOUR) patches tests/behaviour

test-scripts: trees  ## [all] the scripts, and clusters with a real Ray, of RELEASE of the older release
	$(WITH_TORCH) $(BEHAVIOUR) tests/scripts tests/cluster

test-demo-gpu: trees  ## [all] the program of demo-gpu on a CPU; test-scripts has it too where RELEASE is the newest
	$(WITH_TORCH) $(PYTEST) --trees=$(TREES)/patched tests/scripts/test_demo_gpu.py

SHARE ?= 1/32
test-share: trees  ## [all] every 32nd file of them, for RELEASE of the older release; SHARE=2/32 for the next
	$(WITH_TORCH) $(BEHAVIOUR) --share $(SHARE) patches tests/behaviour

test-subsets: trees  ## [weekly] behaviour tests on every subset of the sources at hand that makes other trees, of RELEASE; MIRRORS=DIR for more
	$(WITH_TORCH) $(RUN) scripts/test_subsets.py --release $(RELEASE)

test-subset-share: trees  ## [all] the same without vllm-ascend, every 32nd file
	$(WITH_TORCH) $(RUN) scripts/test_subsets.py --release $(RELEASE) --without vllm-ascend -- --share 1/32 patches tests/behaviour

test-slow: trees  ## [weekly] behaviour tests that take minutes: more processes, larger matrices
	$(WITH_TORCH) $(PYTEST) patches tests/behaviour tests/scripts tests/cluster -m slow --slow --trees=$(TREES)/patched

# Every shipped recipe, shrunk, through verl's own entry module; what is on record for these trees and settings does not run again;
# RERUN=1 runs all anew. ONLY="qwen3-8b/grpo ..."; SIZE="tp=1 cp=1" for fewer ranks; COMPARE=off,one-rank,minus-one,pairs holds further runs against each recipe's own.
test-recipes: trees  ## [by hand] each recipe on CPUs with all its switches: two steps, an update, a checkpoint and its load; hours; COMPARE=off,...
	$(WITH_TORCH) \
	$(RUN) tests/recipes/run.py --release $(RELEASE) --trees=$(TREES)/patched --out build/recipes-$(RELEASE) --records $(EVIDENCE)/recipes-$(RELEASE) --table $(EVIDENCE)/recipes-$(RELEASE).md $(if $(ONLY),--only $(ONLY)) \
	  $(if $(COMPARE),--compare $(COMPARE)) $(if $(SIZE),--size $(SIZE)) $(if $(RERUN),--rerun)$(if $(AGAIN),$(error AGAIN is called RERUN now))

# One whose trees the package index has: FSDP on four ranks, two engines of two.
test-recipes-share: COMPARE ?= off
test-recipes-share: trees  ## [all] one of them on four ranks, with its switches and, but for .ci/run, without
	@$(TORCH_PYTHON) || { echo "recipes skipped: no CPU torch"; exit 0; }; \
	export PATCHCTL_TORCH_PYTHON; \
	$(RUN) tests/recipes/run.py --release $(RELEASE) --trees=$(TREES)/patched --out build/recipes-share --only qwen3-8b/grpo --rerun$(if $(COMPARE), --compare $(COMPARE))

test-suites: trees  ## [all] upstream's own suites that source distributions carry, unpatched against patched; what is on record for the unpatched is not run again
	@$(TORCH_PYTHON) || { echo "upstream's suites skipped: no CPU torch"; exit 0; }; \
	export PATCHCTL_TORCH_PYTHON; \
	$(RUN) scripts/compare_upstream_suites.py --release $(RELEASE) --base $(TREES)/base --patched $(TREES)/patched --off-only --quick --kept --out build/suites

test-upstream: trees  ## [mirrors] all of upstream's listed suites, both trees in one run, and the tests that patches propose; MIRRORS=DIR; writes docs/evidence
	$(WITH_TORCH) \
	$(RUN) scripts/compare_upstream_suites.py --release $(RELEASE) --base $(TREES)/base --patched $(TREES)/patched --out $(EVIDENCE)
	$(WITH_TORCH) $(RUN) scripts/run_proposed_tests.py --release $(RELEASE) --base $(TREES)/base --patched $(TREES)/patched

test-mutants: trees  ## [mirrors] each patch: red on the unpatched tree, green on the patched, red on its mutants; goes on where it was stopped
	$(WITH_TORCH) \
	$(PATCHCTL) prove --all --release $(RELEASE) --trees $(TREES)

# CASES, SEED and FIRST (of each reader's cases) go on where a run was stopped; what is at fault is kept in build/fuzz.
CASES ?= 1000000
SEED ?= 20261122
FIRST ?= 0
fuzz: $(VENV)/.ready  ## [by hand] the readers and the parser against changed bytes, a million cases, about half an hour; MIRRORS=DIR
	$(RUN) tests/fuzz/fuzz_run.py --cases $(CASES) --seed $(SEED) --first $(FIRST) $(if $(MIRRORS),--mirrors $(MIRRORS))
	PATCHCTL_FUZZ_VERBS=100 PATCHCTL_FUZZ_FIRST=$(FIRST) $(RUN) -m pytest -q tests/fuzz/test_fuzz_verbs.py

# The bare stand-in bases are kept in build/. A tree that cannot be had is skipped by what needs it. Of a release whose base has a Python
# that Debian has not, Ubuntu's is taken, where its keys are there; else the images are the older release's.
IMAGE_RELEASE := $(if $(filter file,$(origin RELEASE)),$(if $(wildcard /usr/share/keyrings/ubuntu-archive-keyring.gpg),$(RELEASE),$(OLDER)),$(RELEASE))
IMAGES_OF_THE_NEWEST := $(if $(filter $(lastword $(RELEASES)),$(IMAGE_RELEASE)),image-test)
IMAGES = $(if $(filter $(RELEASE),$(IMAGE_RELEASE)),,$(MAKE) trees RELEASE=$(IMAGE_RELEASE) &&) PATCHCTL_RELEASE=$(IMAGE_RELEASE) $(PYTEST) $(IMAGE_TESTS) tests/image --base-trees=build/trees/$(IMAGE_RELEASE)/base --bases build/image
IMAGE_TESTS ?=
image-test: $(if $(filter $(RELEASE),$(IMAGE_RELEASE)),trees)  ## [all] both images on stand-in bases of three layouts, built with buildah and run; root, about 5 minutes; make test-all leaves out two builds that are marked heavy
	$(IMAGES)

image-test-slow: $(if $(filter $(RELEASE),$(IMAGE_RELEASE)),trees)  ## [by hand] the image with the wheels of the requirements' lock, 1 GB to fetch; root
	$(IMAGES) -m slow --slow

lint: $(VENV)/.ready  ## ruff, mypy, shellcheck, shfmt, hadolint, REUSE, and the patch lint
	$(VENV)/bin/ruff check .
	$(VENV)/bin/ruff format --check .
	$(VENV)/bin/mypy
	$(VENV)/bin/shellcheck -x $(SHELL_SCRIPTS)
	$(VENV)/bin/shfmt -d -i 2 -ci $(SHELL_SCRIPTS)
	$(VENV)/bin/hadolint Dockerfile Dockerfile.into
	$(VENV)/bin/reuse lint --quiet
	$(PATCHCTL) verify --static --quiet

lint-upstream: trees  ## [all] upstream's own gates (licences, linters, formatters), unpatched against patched
	$(RUN) scripts/upstream_gates.py --base $(TREES)/base --patched $(TREES)/patched

bench: $(VENV)/.ready  ## apply beside git am and git apply; REPO=DIR for real history, MIRRORS="NAME=URL ..." for the profile's
	$(RUN) benchmarks/bench_apply.py $(if $(REPO),--repo $(REPO)) --profile $(PROFILE) --release $(RELEASE) $(MIRRORS:%=--mirror %) $(BENCH) --out docs/benchmarks.md
	$(RUN) benchmarks/bench_workspace.py --profile $(PROFILE) --release $(RELEASE) $(MIRRORS:%=--mirror %) --out docs/benchmarks.md

bench-all: BENCH = --sizes 35 200 1000 --made 10000 --trees 1000 4000 16000 --rounds 3 --plot docs/benchmarks-apply.svg
bench-all: bench  ## bench with 10,000 patches, trees of other sizes and the plot: an hour

bench-patches: RELEASE = $(OLDER)
bench-patches: trees  ## what patches gain, as far as a CPU can tell: a simulation, counted bytes, a step's parts
	$(RUN) benchmarks/bench_data_rebalance.py --out docs/benchmarks.md
	$(RUN) benchmarks/bench_rollout_rebalance.py --out docs/benchmarks.md
	$(RUN) benchmarks/bench_hdp.py --out docs/benchmarks.md
	$(RUN) benchmarks/bench_dynamic_cp.py --out docs/benchmarks.md
	$(WITH_TORCH) \
	$(RUN) benchmarks/bench_skip_old_log_prob.py --tree $(TREES)/patched/verl --out docs/benchmarks.md && \
	$(RUN) benchmarks/bench_ep_reshard.py --trees=$(TREES)/patched --out docs/benchmarks.md && \
	$(RUN) benchmarks/bench_chunked_moe.py --trees=$(TREES)/patched --out docs/benchmarks.md && \
	$(RUN) benchmarks/bench_gc.py --trees=$(TREES)/patched --out docs/benchmarks.md && \
	$(RUN) benchmarks/bench_sam.py --trees=$(TREES)/patched $(if $(ARCTIC),--arctic $(ARCTIC)) --out docs/benchmarks.md && \
	$(RUN) benchmarks/bench_drafts_from_others.py --trees=$(TREES)/patched $(if $(ARCTIC),--arctic $(ARCTIC)) --out docs/benchmarks.md

docs: $(VENV)/.ready  ## generated pages, tables, JSON schemas
	$(PATCHCTL) lock --pages
	$(RUN) scripts/log/metrics.py
	$(RUN) tests/recipes/records.py

config-keys: trees  ## manifests/keys: the keys that an override may have, from the patched verl of RELEASE
	"$$($(RUN) scripts/torch_env.py --release $(RELEASE))" scripts/config_keys.py $(TREES)/patched/verl --out manifests/keys/verl/$$(bash -c ". scripts/common.sh; of_release $(RELEASE) stacks verl").tsv

published-scripts: trees  ## [mirrors] verl's published Ascend scripts, by Hydra, verl and our checks; MIRRORS=DIR; writes docs/published-scripts.md
	$(WITH_TORCH) $(RUN) scripts/published_scripts.py --mirror $(firstword $(wildcard $(MIRRORS)/verl $(MIRRORS)/verl.git)) \
		--tree $(TREES)/patched/verl --python "$$PATCHCTL_TORCH_PYTHON" --out docs/published-scripts.md

HOMEPAGE ?=
release: $(VENV)/.ready  ## wheel, sdist, bills of materials and SHA256SUMS in dist/, built twice, installed and run; HOMEPAGE=none BUNDLE=PROFILE SIGN=KEY
	$(RUN) scripts/make_release.py $(if $(HOMEPAGE),--homepage $(HOMEPAGE)) $(foreach one,$(BUNDLE),--bundle $(one)) $(if $(SIGN),--sign $(SIGN))

clean:  ## remove what the targets made
	rm -rf $(VENV) .venv-torch-* build dist

.PHONY: docs-site
docs-site: $(VENV)/.ready  ## [weekly] the site of docs/ in build/site, in both languages; a link or anchor that leads nowhere is an error
	@[ -x build/site-env/bin/python ] || $(RUN) -m venv --without-pip build/site-env
	$(RUN) scripts/uv_as_pip.py pip install -q --python build/site-env/bin/python -r pyproject.toml --extra docs
	NO_MKDOCS_2_WARNING=1 build/site-env/bin/mkdocs build --strict
