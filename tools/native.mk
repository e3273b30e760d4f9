# Compiles the modules of tfring_ops/, links the op library and the C++ tests.
# setup.py calls it for the library, the Makefile for the tests.
#
# Incremental: an object depends on its source, on the headers that it
# included, on this file, and on config.mk, which names the TensorFlow, the MPI
# and the compiler.  config.mk and link.mk are tools/tfring_build's.

BUILD := build/native
include $(BUILD)/config.mk
-include $(BUILD)/link.mk

CXX ?= g++
NM := nm
# What runs the tests of another CPU: tools/cross.mk.
EMULATOR :=
# What has been compiled before, in another clone, too, is taken from ccache where
# that is installed.  The sloppiness is what its manual asks for precompiled
# headers.
COMPILE := $(shell command -v ccache) $(CXX)
export CCACHE_BASEDIR ?= $(CURDIR)
export CCACHE_NOHASHDIR ?= 1
export CCACHE_SLOPPINESS ?= pch_defines,time_macros,include_file_mtime,include_file_ctime
# plain is what is shipped; tsan and asan are for the C++ tests.  standalone is
# for machines with a GPU and no TensorFlow, whose headers and library are also
# absl's: it has Debian's absl, the system's or that of libabsl-dev in ABSL.
VARIANT := plain
OUT := $(BUILD)/$(VARIANT)
ABSL :=

VARIANT_FLAGS_plain := -O2
VARIANT_FLAGS_standalone := -O2
VARIANT_FLAGS_tsan := -O1 -g1 -fsanitize=thread
# NDEBUG_SANITIZER: under ASan absl's hash tables would have another layout
# than in TensorFlow's library, which holds their other half.
VARIANT_FLAGS_asan := -O1 -g1 -fno-omit-frame-pointer \
  -fsanitize=address,undefined -fno-sanitize-recover=all -DNDEBUG_SANITIZER
VARIANT_FLAGS := $(VARIANT_FLAGS_$(VARIANT))
HEADERS := $(if $(filter standalone,$(VARIANT)),$(ABSL:%=%/usr),$(TENSORFLOW))

FLAGS := -std=c++17 -fPIC -fvisibility=hidden -pthread $(VARIANT_FLAGS) \
  -Wall -Wextra -Werror \
  -D_GLIBCXX_USE_CXX11_ABI=1 -DEIGEN_MAX_ALIGN_BYTES=64 \
  -iquote . $(HEADERS:%=-isystem %/include)

# The GPU's kernels, assembled for each generation of GPUs where there is an
# assembler: tfring_ops/kernels/cuda_cubins.h.
PTXAS ?=
CUBINS := $(if $(PTXAS),$(patsubst %,$(BUILD)/cubins/sm_%.cubin,\
  60 70 80 90 100 120))
UNUSED_CUBINS := $(if $(PTXAS),tfring_ops/kernels/cuda_no_cubins.cc,\
  tfring_ops/kernels/cuda_cubins.cc)

# tfring_ops/xla/pins.h.
UNUSED_PINS := tfring_ops/xla/$(if $(XLA_PINS),no_pins,pins).cc

# Some sources need more flags.
# initial-exec: where thread-local memory is allocated late and lies 16 bytes
# behind the start of a page, g++ 12's TSan takes these for a header with its
# bounds, which glibc 2.19 wrote, and asks for terabytes.
# O0, and no undefined: most tests run for a moment, and compile much sooner.
# maybe-uninitialized: g++ 12 sees one in absl's InlinedVector, inlined into
# ours, where -isystem does not quieten it.
# -idirafter: only for what an older TensorFlow's own headers lack, and for XLA's
# FFI where absl is not TensorFlow's.
TEST_FLAGS := -O0 -fno-sanitize=undefined
# As the library: it moves many messages, and benchmarks count its time.
OPTIMIZED_TESTS := tests/cpp/simulated_job.cc tests/cpp/fibers.cc
FFI_FLAGS := -Wno-maybe-uninitialized \
  $(patsubst %,-idirafter %,$(XLA_HEADERS) $(TENSORFLOW)/include)
XLA_FLAGS := $(FFI_FLAGS) \
  -isystem $(TENSORFLOW)/include/external/highwayhash \
  -isystem $(TENSORFLOW)/include/external/farmhash_archive/src \
  -idirafter tools/tensorflow_headers

# The kernels' variants: tfring_ops/kernels/cpu_variants.h.
# fp-contract: so that they all round alike, with FMA or without.
# maybe-uninitialized: g++ 12 sees one in its own <immintrin.h>.
ARCHITECTURE := $(firstword $(subst -, ,$(shell $(CXX) -dumpmachine)))
KERNELS := tfring_ops/kernels/cpu_
AVX2_FLAGS := -mavx2 -mf16c
AVX512_FLAGS := $(AVX2_FLAGS) -mavx512f -mavx512bw -mavx512dq -mavx512vl \
  -Wno-maybe-uninitialized
FOREIGN_SOURCES := $(foreach other,$(filter-out $(ARCHITECTURE),x86_64 aarch64),\
  $(wildcard $(KERNELS)$(other)_*.cc))

extra_flags = $(if $(filter tfring_ops/xla/%,$1),$(XLA_FLAGS)) \
  $(if $(filter tfring_ops/ffi/% tests/cpp/mpi_cuda_ffi_%,$1),$(FFI_FLAGS)) \
  $(if $(filter tfring_ops/transport/mpi/% tests/cpp/mpi_%,$1),\
    $(MPI_COMPILE_FLAGS)) \
  $(if $(filter $(KERNELS)% tests/gpu/fake/cuda/%,$1),-ffp-contract=off) \
  $(if $(filter %_avx2.cc,$1),$(AVX2_FLAGS)) \
  $(if $(filter %_avx512.cc,$1),$(AVX512_FLAGS)) \
  $(if $(filter tests/gpu/fake/cuda/% tests/gpu/fake/nccl/%,$1),\
    -fno-strict-aliasing -Wno-unknown-pragmas -ftls-model=initial-exec) \
  $(if $(filter tests/%,$1),$(GTEST_COMPILE_FLAGS)) \
  $(if $(filter-out $(OPTIMIZED_TESTS),$(filter tests/cpp/%,$1)),$(TEST_FLAGS))

# The lowering to XLA takes longest by far, so it starts first.
SOURCES := $(filter-out $(UNUSED_PINS),$(wildcard tfring_ops/xla/*.cc)) \
  $(filter-out tfring_ops/xla/% $(FOREIGN_SOURCES) $(UNUSED_CUBINS),$(wildcard \
    tfring_ops/*/*.cc tfring_ops/*/*/*.cc))
# The modules that need neither TensorFlow's runtime nor MPI.
CORE_SOURCES := $(filter-out tfring_ops/transport/mpi/%,$(filter \
  $(patsubst %,tfring_ops/%/%,base kernels transport algorithms nccl \
  engine offload),$(SOURCES)))
MPI_SOURCES := $(wildcard tfring_ops/transport/mpi/*.cc)
TEST_SOURCES := $(wildcard tests/cpp/*_test.cc)
TEST_STEMS := $(patsubst tests/cpp/%_test.cc,%,$(TEST_SOURCES))
MPI_MAIN := tests/cpp/mpi_main.cc
TEST_HELPER_SOURCES := $(filter-out $(TEST_SOURCES) $(MPI_MAIN),\
  $(wildcard tests/cpp/*.cc))
FAKE_CUDA_SOURCES := $(wildcard tests/gpu/fake/cuda/*.cc)
FAKE_NCCL_SOURCES := $(wildcard tests/gpu/fake/nccl/*.cc)
FAKE_GPU_SOURCES := $(wildcard tests/gpu/fake/device/*.cc)
BARE_GPU_SOURCE := tests/gpu/bare_gpu.cc
BENCHMARK_SOURCES := $(wildcard benchmarks/*.cc)

objects = $(1:%.cc=$(OUT)/%.o)
ALL_OBJECTS := $(call objects,$(SOURCES) $(TEST_SOURCES) \
  $(TEST_HELPER_SOURCES) $(MPI_MAIN) $(FAKE_CUDA_SOURCES) $(FAKE_NCCL_SOURCES) \
  $(FAKE_GPU_SOURCES) $(BARE_GPU_SOURCE) $(BENCHMARK_SOURCES))

# Most of the time that a source takes to compile is for the same headers.
# clang-tidy goes without, and so sees what a source forgets to include.
PRECOMPILED := $(OUT)/precompiled
TF_SOURCES := $(filter tfring_ops/tf/%,$(SOURCES))
# Not those that are compiled for some CPUs alone, nor the lowering to XLA, whose
# headers are all its own.
CORE_LIKE := $(filter-out $(KERNELS)% tfring_ops/xla/% $(TF_SOURCES),$(SOURCES))
precompiled = -include $(PRECOMPILED)/$1.h
$(call objects,$(CORE_LIKE)): PRECOMPILED_FLAGS = $(call precompiled,core)
$(call objects,$(CORE_LIKE)): $(PRECOMPILED)/core.h.gch
$(call objects,$(TF_SOURCES)): PRECOMPILED_FLAGS = $(call precompiled,tensorflow)
$(call objects,$(TF_SOURCES)): $(PRECOMPILED)/tensorflow.h.gch
OF_TESTS := $(call objects,$(filter-out $(OPTIMIZED_TESTS),\
  $(TEST_SOURCES) $(TEST_HELPER_SOURCES) $(MPI_MAIN)))
$(OF_TESTS): PRECOMPILED_FLAGS = $(call precompiled,tests)
$(OF_TESTS): $(PRECOMPILED)/tests.h.gch
$(PRECOMPILED)/tests.h.gch: FLAGS += $(TEST_FLAGS) $(GTEST_COMPILE_FLAGS) \
  -include gtest/gtest.h
$(PRECOMPILED)/tensorflow.h.gch: FLAGS += \
  -include tensorflow/core/framework/op_kernel.h \
  -include tensorflow/core/framework/shape_inference.h
$(PRECOMPILED)/%.h.gch: tools/precompiled.h $(BUILD)/config.mk tools/native.mk
	@mkdir -p $(@D)
	@echo "$(VARIANT): $< for $*"
	@$(COMPILE) $(FLAGS) -x c++-header -o $@ $<

.DELETE_ON_ERROR:
.SECONDARY:
.PHONY: library tests check tidy

$(ALL_OBJECTS): $(OUT)/%.o: %.cc $(BUILD)/config.mk tools/native.mk
	@mkdir -p $(@D)
	@echo "$(VARIANT): $<"
	@$(COMPILE) $(FLAGS) $(call extra_flags,$<) $(PRECOMPILED_FLAGS) -MMD -MP -c -o $@ $<
-include $(ALL_OBJECTS:.o=.d)
# The compiler does not see what the assembler includes.
$(OUT)/tfring_ops/kernels/cuda_kernels.o: tfring_ops/kernels/cuda_kernels.ptx
$(OUT)/tfring_ops/kernels/cuda_cubins.o: $(CUBINS)
$(BUILD)/cubins/sm_%.cubin: tfring_ops/kernels/cuda_kernels.ptx
	@mkdir -p $(@D)
	@echo "$@"
	@$(PTXAS) --warn-on-spills --warning-as-error -arch=sm_$* -o $@ $<

# ---- The op library ----

library: $(LIBRARY)
# The op library with the functions of tests/gpu/bare_gpu.cc.
BARE_GPU := $(OUT)/tests/gpu/libtfring_ops.so
$(BARE_GPU): $(call objects,$(BARE_GPU_SOURCE))
# -z defs: an undefined symbol is an error here, and not in a user's process.
$(LIBRARY) $(BARE_GPU): $(call objects,$(SOURCES)) $(BUILD)/link.mk
	@mkdir -p $(@D)
	@echo "$@"
	@$(CXX) -shared -pthread -o $@ $(filter %.o,$^) -Wl,-z,defs \
	  -Wl,--enable-new-dtags $(RUN_PATHS:%='-Wl,-rpath,%') \
	  -L$(TENSORFLOW) -l:libtensorflow_framework.so.2 \
	  -l:libtensorflow_cc.so.2 $(MPI_LINK_FLAGS)

# That library without TensorFlow's operations, for VARIANT=standalone.  absl lies
# beside it: Debian's archives are not made for shared libraries.  An RPATH, as
# a RUNPATH does not hold for the libraries that absl's ask for.
STANDALONE := $(OUT)/libtfring_ops.so
STANDALONE_SOURCES := $(BARE_GPU_SOURCE) \
  $(filter-out tfring_ops/tf/% tfring_ops/xla/%,$(SOURCES))
.PHONY: standalone
standalone: $(STANDALONE)
$(STANDALONE): $(call objects,$(STANDALONE_SOURCES))
	@echo "$@"
	@cp $(wildcard $(ABSL)/usr/lib/*/libabsl_*.so.????????) $(@D)
	@$(CXX) -shared -pthread -o $@ $^ -Wl,-z,defs -Wl,--as-needed \
	  -Wl,--disable-new-dtags -Wl,-rpath,'$$ORIGIN' \
	  -Wl,-rpath,'$$ORIGIN/../mpi/lib' \
	  $(wildcard $(ABSL)/usr/lib/*/libabsl_*.so) $(MPI_LINK_FLAGS) -ldl -lrt

# ---- The C++ tests ----

comma := ,
# A few binaries of many tests: each is linked against TensorFlow's library.
# A source of tests/cpp is in one of them, by its name without _test.cc.
#   core       what has one thread, and so nothing to show to TSan
#   timing     what depends on real time, or takes minutes under a sanitizer
#   mpi        is started by the launcher, and not under the sanitizers: MPI
#              libraries leak and race by themselves
#   simulated  has fibers, which the sanitizers do not know
# The tests of what needs a GPU find tests/gpu/fake/cuda before they find the
# driver of a real one; those of `nccl` alone find tests/gpu/fake/nccl.
core := c_status cached_schedule conversion coordinator coordinator_schedule \
  cost_model cpu_variants deadlock difference fusion half heartbeats kernels \
  messages options shared_segment way_choice wire_type
transport := mailbox shared_channel shared_memory tcp transport
algorithms := adasum allgather allreduce_algorithms determinism ring
engine := abandoned_memory buckets_in_flight chains device_lanes engine \
  engine_errors engine_faults join late_rank negotiator offload process_sets \
  repeated_steps silent_rank tcp_engine timeline
random := property
simulated := simulated_engine simulated_job simulated_negotiation
nccl := $(filter cuda_nccl cuda_nccl_%,$(TEST_STEMS))
cuda := $(filter-out $(nccl),$(filter cuda_%,$(TEST_STEMS)))
mpi := $(filter mpi_%,$(TEST_STEMS))
timing := $(filter large_% %_timing,$(TEST_STEMS))
# So that none of those that take long is left for the end.
GROUPS := engine algorithms random nccl cuda transport simulated core mpi timing

ifneq ($(sort $(TEST_STEMS)),$(sort $(foreach group,$(GROUPS),$($(group)))))
$(error $(lastword $(MAKEFILE_LIST)): in no group, or in two: \
  $(filter-out $(foreach group,$(GROUPS),$($(group))),$(TEST_STEMS)))
endif

# Streams that wait for a rank that is lost or has failed are let go, and then
# race by design.
OMITTED_tsan := cuda_races cuda_nccl_races cuda_lost_rank
UNSANITIZED := mpi timing simulated
CHECKED_plain := $(GROUPS)
CHECKED_asan := $(filter-out $(UNSANITIZED),$(GROUPS))
CHECKED_tsan := $(filter-out core,$(CHECKED_asan))
# Those of `make test`: CONTRIBUTING.md, The two suites.
ifeq ($(EXTENT),gate)
CHECKED_plain := $(filter-out timing,$(GROUPS))
CHECKED_tsan := engine transport
# As the same threads do on fewer ranks, or with less in a tensor.
FILTER_tsan := -InATree/*:*EngineFaultTest*:*HugeMessages*:$(subst $() ,:,$(patsubst \
  %,SizeAndMedium/RepeatedStepsTest.*/%,4 5 6 7))
MPI_RANKS := 2 3
MPI_ENGINE_RANKS :=
endif
CHECKED := $(CHECKED_$(VARIANT))

# Under the launcher all on these, and the engine's on more.  The rings meet 5 to
# 8 ranks as threads.
MPI_RANKS ?= 1 2 3 4
MPI_ENGINE_RANKS ?= 5 8
TFRINGRUN := python3 -m tfring.run
TEST_TIMEOUT := 600
# Where what the tests took goes, as XML, if anywhere.
REPORTS :=
REPORT = $(if $(REPORTS),GTEST_OUTPUT=xml:$(REPORTS)/$(@F).xml)

# One archive, so that a binary links only what it uses.
$(OUT)/libcore.a: $(call objects,$(CORE_SOURCES) $(TEST_HELPER_SOURCES))
	@rm -f $@
	@$(AR) rcs $@ $^
$(OUT)/libmpi_transport.a: $(call objects,$(MPI_SOURCES))
	@rm -f $@
	@$(AR) rcs $@ $^

# tests/gpu/fake/cuda/fake_cuda.h.  An RPATH, as a RUNPATH does not hold for the
# sanitizers' dlopen.
FAKE_CUDA := $(OUT)/tests/gpu/fake/cuda/libcuda.so.1
$(FAKE_CUDA): $(call objects,$(FAKE_CUDA_SOURCES) tfring_ops/base/types.cc)
	@$(CXX) -shared -pthread $(VARIANT_FLAGS) -Wl,-soname,$(@F) -o $@ $^ -ldl
# tests/gpu/fake/nccl/fake_nccl.h, which takes the driver that is loaded.
FAKE_NCCL := $(OUT)/tests/gpu/fake/nccl/libnccl.so.2
$(FAKE_NCCL): $(call objects,$(FAKE_NCCL_SOURCES))
	@$(CXX) -shared -pthread $(VARIANT_FLAGS) -Wl,-soname,$(@F) -o $@ $^ -ldl
# TensorFlow's device with that driver, which tests/parallel/conftest.py loads.
FAKE_GPU := $(OUT)/tests/gpu/fake/device/fake_gpu.so
$(FAKE_GPU): $(call objects,$(FAKE_GPU_SOURCES)) $(FAKE_CUDA)
	@$(CXX) -shared -pthread -o $@ $^ -Wl,-rpath,'$$ORIGIN/../cuda' \
	  -L$(TENSORFLOW) -l:libtensorflow_framework.so.2 -Wl,-rpath,$(TENSORFLOW)
.PHONY: fake-gpu
fake-gpu: $(FAKE_GPU) $(FAKE_NCCL) $(BARE_GPU)

BINARIES := $(GROUPS:%=$(OUT)/tests/cpp/%_tests)
TEST_BINARIES := $(CHECKED:%=$(OUT)/tests/cpp/%_tests)
# What tfring_ops/ has for the engines of a process, beside libcore.a.
RUNTIME := $(call objects,$(filter tfring_ops/runtime/% tfring_ops/ffi/%,$(SOURCES)))
$(foreach group,$(GROUPS),$(eval $(OUT)/tests/cpp/$(group)_tests: $(call objects,\
  $(patsubst %,tests/cpp/%_test.cc,$(filter-out $(OMITTED_$(VARIANT)),$($(group)))))))
$(OUT)/tests/cpp/nccl_tests: $(call objects,tfring_ops/runtime/device_lane.cc)
$(OUT)/tests/cpp/mpi_tests: $(call objects,$(MPI_MAIN)) $(RUNTIME) $(OUT)/libmpi_transport.a
$(patsubst %,$(OUT)/tests/cpp/%_tests,cuda nccl mpi timing): LINK_FLAGS := \
  -Wl,-rpath,'$$ORIGIN/../gpu/fake/cuda' -Wl,--disable-new-dtags
$(patsubst %,$(OUT)/tests/cpp/%_tests,cuda nccl mpi timing): | $(FAKE_CUDA)
$(OUT)/tests/cpp/nccl_tests: LINK_FLAGS += -Wl,-rpath,'$$ORIGIN/../gpu/fake/nccl'
$(OUT)/tests/cpp/nccl_tests: | $(FAKE_NCCL)
$(OUT)/tests/cpp/mpi_tests: LINK_FLAGS += $(MPI_LINK_FLAGS) \
  $(patsubst -L%,-Wl$(comma)-rpath$(comma)%,$(filter -L%,$(MPI_LINK_FLAGS)))

$(BINARIES): $(OUT)/libcore.a
	@echo "$@"
	@$(CXX) -pthread $(VARIANT_FLAGS) -o $@ $(filter %.o,$^) \
	  $(filter %/libmpi_transport.a,$^) $(OUT)/libcore.a \
	  $(GTEST_LINK_FLAGS) -lgtest_main -lgmock -lgtest \
	  -L$(TENSORFLOW) -l:libtensorflow_framework.so.2 -Wl,-rpath,$(TENSORFLOW) \
	  $(LINK_FLAGS)

tests: $(TEST_BINARIES)

# Or TensorFlow's library greets everyone who loads it.
check check-unsanitized: export TF_ENABLE_ONEDNN_OPTS := 0
check: export TSAN_OPTIONS := suppressions=$(CURDIR)/tools/tsan_suppressions

# The longest are two jobs.
HALVED := engine
HALVES := $(foreach group,$(filter $(HALVED),$(CHECKED)),$(group).0 $(group).1)
CHECKS := $(patsubst %,check/%,$(HALVES) $(filter-out $(HALVED),$(CHECKED)))
.PHONY: $(CHECKS)
check: $(CHECKS)

RUN_TESTS = @echo "$<"; $(REPORT) GTEST_FILTER='$(or $(FILTER_$(VARIANT)),*)' \
  timeout $(TEST_TIMEOUT) $(EMULATOR) $< --gtest_brief=1
$(filter-out check/mpi $(HALVES:%=check/%),$(CHECKS)): check/%: $(OUT)/tests/cpp/%_tests
	$(RUN_TESTS)
$(filter %.0,$(HALVES:%=check/%)): check/%.0: $(OUT)/tests/cpp/%_tests
	$(RUN_TESTS)
$(filter %.1,$(HALVES:%=check/%)): check/%.1: $(OUT)/tests/cpp/%_tests
	$(RUN_TESTS)
$(HALVES:%=check/%): export GTEST_TOTAL_SHARDS := 2
$(HALVES:%=check/%): export GTEST_SHARD_INDEX = $(patsubst .%,%,$(suffix $@))
# In turn, as each takes several ranks.
check/mpi: $(OUT)/tests/cpp/mpi_tests
	@set -e; for ranks in $(MPI_RANKS) $(MPI_ENGINE_RANKS); do \
	  case " $(MPI_ENGINE_RANKS) " in *" $$ranks "*) filter=MpiEngine*;; \
	    *) filter=*;; esac; \
	  echo "$< on $$ranks ranks"; \
	  $(REPORT:%.xml=%_$$ranks.xml) GTEST_FILTER=$$filter timeout $(TEST_TIMEOUT) $(TFRINGRUN) -np $$ranks \
	    $(EMULATOR) $< --gtest_brief=1; \
	done

# Note [One definition for each CPU] in tfring_ops/kernels/cpu_loops.h: a unit
# that is compiled for some CPUs gives the linker nothing but its table.
VARIANT_OBJECTS := $(filter-out %_variants.o %_kernels.o %_streaming.o,$(filter \
  $(OUT)/$(KERNELS)%.o,$(call objects,$(SOURCES))))
# Not under the sanitizers, which add some.
check: $(if $(filter plain,$(VARIANT)),check/symbols)
.PHONY: check/symbols
check/symbols: $(VARIANT_OBJECTS)
	@echo "$@"
	@$(NM) --defined-only --extern-only --demangle --print-file-name $^ | \
	  awk '$$NF !~ /^tfring::kCpu/ { print; leaks = 1 } END { exit leaks }'

# ---- Benchmarks ----

BENCHMARKS := $(BENCHMARK_SOURCES:%.cc=%)
$(BENCHMARKS:%=$(OUT)/%): %: %.o $(OUT)/libcore.a
	@$(CXX) -pthread $(VARIANT_FLAGS) -o $@ $(filter %.o,$^) $(OUT)/libcore.a \
	  $(LINK_FLAGS) -L$(TENSORFLOW) -l:libtensorflow_framework.so.2 \
	  -Wl,-rpath,$(TENSORFLOW)
.PHONY: $(BENCHMARKS:%=run/%)
$(BENCHMARKS:%=run/%): run/%: $(OUT)/%
	@$<

# The transport over SimGrid's MPI: benchmarks/smpi_polling.h.
SMPI_TRANSPORT := $(OUT)/benchmarks/smpi/mpi.o
$(OUT)/benchmarks/scale_smpi: $(SMPI_TRANSPORT)
$(OUT)/benchmarks/scale_smpi: LINK_FLAGS := -lsimgrid
$(SMPI_TRANSPORT): tfring_ops/transport/mpi/mpi.cc $(BUILD)/config.mk \
  tools/native.mk
	@mkdir -p $(@D)
	@echo "$(VARIANT): $< for SMPI"
	@$(COMPILE) $(FLAGS) -isystem /usr/include/smpi \
	  -include benchmarks/smpi_polling.h -MMD -MP -c -o $@ $<
-include $(SMPI_TRANSPORT:.o=.d)

# ---- clang-tidy ----

# Not over tf/ and xla/, where it would be busy with TensorFlow's headers. Without
# warnings of what is deprecated: libstdc++ 12 uses such things itself, and g++
# gives the warnings for ours.
CLANG_TIDY := clang-tidy
TIDIED := $(CORE_SOURCES) $(MPI_SOURCES) \
  $(wildcard tfring_ops/runtime/*.cc tfring_ops/capi/*.cc)
# In `make test` the few that include most headers, and so see most of the code.
ifeq ($(EXTENT),gate)
TIDIED := $(patsubst %,tfring_ops/%.cc,engine/engine \
  engine/negotiation/negotiator algorithms/ring/allreduce transport/tcp/tcp \
  runtime/engines)
endif
TIDY := $(TIDIED:%=tidy/%)
.PHONY: $(TIDY)
tidy: $(TIDY)
$(TIDY): tidy/%: %
	@echo "clang-tidy: $<"
	@$(CLANG_TIDY) --quiet $< -- $(FLAGS) \
	  $(call extra_flags,$<) -Wno-unknown-pragmas \
	  -Wno-unknown-warning-option -Wno-deprecated-declarations 2>&1
