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
  $(if $(filter $(KERNELS)% tests/fake_cuda/%,$1),-ffp-contract=off) \
  $(if $(filter %_avx2.cc,$1),$(AVX2_FLAGS)) \
  $(if $(filter %_avx512.cc,$1),$(AVX512_FLAGS)) \
  $(if $(filter tests/fake_cuda/% tests/fake_nccl/%,$1),\
    -fno-strict-aliasing -Wno-unknown-pragmas -ftls-model=initial-exec) \
  $(if $(filter tests/%,$1),$(GTEST_COMPILE_FLAGS)) \
  $(if $(filter tests/cpp/%,$1),$(TEST_FLAGS)) \
  $(call precompiled,$1)

# The lowering to XLA takes longest by far, so it starts first.
SOURCES := $(wildcard tfring_ops/xla/*.cc) \
  $(filter-out tfring_ops/xla/% $(FOREIGN_SOURCES) $(UNUSED_CUBINS),$(wildcard \
    tfring_ops/*/*.cc tfring_ops/*/*/*.cc))
# The modules that need neither TensorFlow's runtime nor MPI.
CORE_SOURCES := $(filter-out tfring_ops/transport/mpi/%,$(filter \
  $(patsubst %,tfring_ops/%/%,base kernels transport algorithms nccl \
  engine offload),$(SOURCES)))
MPI_SOURCES := $(wildcard tfring_ops/transport/mpi/*.cc)
TEST_SOURCES := $(wildcard tests/cpp/*_test.cc)
TEST_HELPER_SOURCES := $(filter-out $(TEST_SOURCES),$(wildcard tests/cpp/*.cc))
FAKE_CUDA_SOURCES := $(wildcard tests/fake_cuda/*.cc)
FAKE_NCCL_SOURCES := $(wildcard tests/fake_nccl/*.cc)
FAKE_GPU_SOURCES := $(wildcard tests/fake_gpu/*.cc)
BENCHMARK_SOURCES := $(wildcard benchmarks/*.cc)

objects = $(1:%.cc=$(OUT)/%.o)
ALL_OBJECTS := $(call objects,$(SOURCES) $(TEST_SOURCES) \
  $(TEST_HELPER_SOURCES) $(FAKE_CUDA_SOURCES) $(FAKE_NCCL_SOURCES) \
  $(FAKE_GPU_SOURCES) $(BENCHMARK_SOURCES))

# Much of the time that the sanitizers' builds take is for the same headers.  The
# plain one goes without them, and so sees what a source forgets to include.
PRECOMPILED := $(OUT)/precompiled
ifeq ($(filter plain standalone,$(VARIANT)),)
# Not those that are compiled for some CPUs alone.
PRECOMPILING := $(filter-out $(KERNELS)%,$(CORE_SOURCES))
precompiled = $(if $(filter $1,$(PRECOMPILING)),-include $(PRECOMPILED)/core.h) \
  $(if $(filter tests/cpp/%,$1),-include $(PRECOMPILED)/tests.h)
$(call objects,$(PRECOMPILING)): $(PRECOMPILED)/core.h.gch
$(call objects,$(TEST_SOURCES) $(TEST_HELPER_SOURCES)): $(PRECOMPILED)/tests.h.gch
$(PRECOMPILED)/tests.h.gch: FLAGS += $(TEST_FLAGS) $(GTEST_COMPILE_FLAGS) \
  -include gtest/gtest.h
endif
$(PRECOMPILED)/%.h.gch: tools/precompiled.h $(BUILD)/config.mk tools/native.mk
	@mkdir -p $(@D)
	@echo "$(VARIANT): $< for $*"
	@$(CXX) $(FLAGS) -x c++-header -o $@ $<

.DELETE_ON_ERROR:
.SECONDARY:
.PHONY: library tests check tidy

$(ALL_OBJECTS): $(OUT)/%.o: %.cc $(BUILD)/config.mk tools/native.mk
	@mkdir -p $(@D)
	@echo "$(VARIANT): $<"
	@$(CXX) $(FLAGS) $(call extra_flags,$<) -MMD -MP -c -o $@ $<
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
# -z defs: an undefined symbol is an error here, and not in a user's process.
$(LIBRARY): $(call objects,$(SOURCES)) $(BUILD)/link.mk
	@mkdir -p $(@D)
	@echo "$@"
	@$(CXX) -shared -pthread -o $@ $(filter %.o,$^) -Wl,-z,defs \
	  -Wl,--enable-new-dtags $(RUN_PATHS:%='-Wl,-rpath,%') \
	  -L$(TENSORFLOW) -l:libtensorflow_framework.so.2 \
	  -l:libtensorflow_cc.so.2 $(MPI_LINK_FLAGS)

# The same without TensorFlow's operations, for VARIANT=standalone.  absl lies
# beside it: Debian's archives are not made for shared libraries.  An RPATH, as
# a RUNPATH does not hold for the libraries that absl's ask for.
STANDALONE := $(OUT)/libtfring_ops.so
STANDALONE_SOURCES := $(filter-out tfring_ops/tf/% tfring_ops/xla/%,$(SOURCES))
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

# Tests that need MPI are called mpi_*_test.cc.  They are run by the launcher,
# and not under the sanitizers: MPI libraries leak and race by themselves.  Nor
# are those called large_*_test.cc, which would take minutes there.  Tests with
# a single thread have nothing to show to TSan.
SERIAL_TESTS := $(addprefix tests/cpp/,$(addsuffix _test,c_status \
  cached_schedule conversion coordinator cpu_variants deadlock difference fusion \
  half heartbeats kernels messages options shared_segment))
OMITTED_plain :=
OMITTED_asan := tests/cpp/mpi_% tests/cpp/large_%
# Streams that wait for a rank that is lost or has failed are let go, and then
# race by design.
OMITTED_tsan := $(OMITTED_asan) $(SERIAL_TESTS) tests/cpp/cuda_%races_test \
  tests/cpp/cuda_lost_rank_test
# So that none of those that take long is left for the end.
LONG_TESTS := $(addprefix tests/cpp/,$(addsuffix _test,engine_faults ring \
  cuda_fusion cuda_nccl soak))
ALL_TESTS := $(TEST_SOURCES:%.cc=%)
TESTS := $(filter-out $(OMITTED_$(VARIANT)),\
  $(LONG_TESTS) $(filter-out $(LONG_TESTS),$(ALL_TESTS)))
PLAIN_TESTS := $(filter-out tests/cpp/mpi_%,$(TESTS))
MPI_TESTS := $(filter tests/cpp/mpi_%,$(TESTS))
# The rings themselves meet 5 to 8 ranks as threads: ring_test, large_ring_test.
MPI_RANKS = $(if $(findstring mpi_engine_,$1),1 2 3 4 5 8,1 2 3 4)
TFRINGRUN := python3 -m tfring.run
TEST_TIMEOUT := 300

# One archive, so that a test links only what it uses.
$(OUT)/libcore.a: $(call objects,$(CORE_SOURCES) $(TEST_HELPER_SOURCES))
	@rm -f $@
	@ar rcs $@ $^
$(OUT)/libmpi_transport.a: $(call objects,$(MPI_SOURCES))
	@rm -f $@
	@ar rcs $@ $^

# tests/fake_cuda/fake_cuda.h.  The tests of what needs a GPU find it before
# they find the driver of a real one.  An RPATH, as a RUNPATH does not hold for
# the sanitizers' dlopen.
FAKE_CUDA := $(OUT)/tests/fake_cuda/libcuda.so.1
$(FAKE_CUDA): $(call objects,$(FAKE_CUDA_SOURCES) tfring_ops/base/types.cc)
	@$(CXX) -shared -pthread $(VARIANT_FLAGS) -Wl,-soname,$(@F) -o $@ $^ -ldl
# tests/fake_nccl/fake_nccl.h, which takes the driver that is loaded.
FAKE_NCCL := $(OUT)/tests/fake_nccl/libnccl.so.2
$(FAKE_NCCL): $(call objects,$(FAKE_NCCL_SOURCES))
	@$(CXX) -shared -pthread $(VARIANT_FLAGS) -Wl,-soname,$(@F) -o $@ $^ -ldl
# TensorFlow's device with that driver, which tests/parallel/conftest.py loads.
FAKE_GPU := $(OUT)/tests/fake_gpu/fake_gpu.so
$(FAKE_GPU): $(call objects,$(FAKE_GPU_SOURCES)) $(FAKE_CUDA)
	@$(CXX) -shared -pthread -o $@ $^ -Wl,-rpath,'$$ORIGIN/../fake_cuda' \
	  -L$(TENSORFLOW) -l:libtensorflow_framework.so.2 -Wl,-rpath,$(TENSORFLOW)
.PHONY: fake-gpu
fake-gpu: $(FAKE_GPU) $(FAKE_NCCL)
CUDA_TESTS := $(filter tests/cpp/cuda_% tests/cpp/mpi_cuda_%,$(TESTS))
$(CUDA_TESTS:%=$(OUT)/%): LINK_FLAGS := \
  -Wl,-rpath,'$$ORIGIN/../fake_cuda' -Wl,--disable-new-dtags
$(CUDA_TESTS:%=$(OUT)/%): | $(FAKE_CUDA)
# The others find no NCCL.
NCCL_TESTS := $(filter tests/cpp/cuda_nccl_%,$(CUDA_TESTS))
$(NCCL_TESTS:%=$(OUT)/%): LINK_FLAGS += -Wl,-rpath,'$$ORIGIN/../fake_nccl'
$(NCCL_TESTS:%=$(OUT)/%): | $(FAKE_NCCL)

LINK_TEST = $(CXX) -pthread $(VARIANT_FLAGS) -o $@ $(filter %.o,$^) \
  $(filter %.a,$^) $(GTEST_LINK_FLAGS) -lgtest_main -lgmock -lgtest \
  -L$(TENSORFLOW) -l:libtensorflow_framework.so.2 -Wl,-rpath,$(TENSORFLOW) \
  $(LINK_FLAGS)

$(PLAIN_TESTS:%=$(OUT)/%): %: %.o $(OUT)/libcore.a
	@$(LINK_TEST)
# They have what is made for the engines of a process, too.
$(patsubst %,$(OUT)/tests/cpp/mpi_cuda_%_test,ffi handles lane): $(call objects,\
  $(filter tfring_ops/runtime/% tfring_ops/ffi/%,$(SOURCES)))
$(MPI_TESTS:%=$(OUT)/%): %: %.o $(OUT)/libmpi_transport.a $(OUT)/libcore.a
	@$(LINK_TEST) $(MPI_LINK_FLAGS) \
	  $(patsubst -L%,-Wl$(comma)-rpath$(comma)%,$(filter -L%,$(MPI_LINK_FLAGS)))
comma := ,

tests: $(PLAIN_TESTS:%=$(OUT)/%) $(MPI_TESTS:%=$(OUT)/%)

# Or TensorFlow's library greets everyone who loads it.
check check-unsanitized: export TF_ENABLE_ONEDNN_OPTS := 0

CHECKS := $(PLAIN_TESTS:%=check/%) $(MPI_TESTS:%=check/%)
.PHONY: $(CHECKS)
check: $(CHECKS)
# Only the tests that do not run under a sanitizer.
.PHONY: check-unsanitized
check-unsanitized: $(filter $(OMITTED_asan:%=check/%),$(CHECKS)) check/symbols

$(PLAIN_TESTS:%=check/%): check/%: $(OUT)/%
	@echo $<
	@timeout $(TEST_TIMEOUT) $< --gtest_brief=1
# In turn, as each takes several ranks.
$(MPI_TESTS:%=check/%): check/%: $(OUT)/%
	@set -e; for ranks in $(call MPI_RANKS,$@); do \
	  echo "$< on $$ranks ranks"; \
	  timeout $(TEST_TIMEOUT) $(TFRINGRUN) -np $$ranks $< --gtest_brief=1; \
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
	@nm --defined-only --extern-only --demangle --print-file-name $^ | \
	  awk '$$NF !~ /^tfring::kCpu/ { print; leaks = 1 } END { exit leaks }'

# ---- Benchmarks ----

BENCHMARKS := $(BENCHMARK_SOURCES:%.cc=%)
$(BENCHMARKS:%=$(OUT)/%): %: %.o $(OUT)/libcore.a
	@$(CXX) -pthread $(VARIANT_FLAGS) -o $@ $^ -L$(TENSORFLOW) \
	  -l:libtensorflow_framework.so.2 -Wl,-rpath,$(TENSORFLOW)
.PHONY: $(BENCHMARKS:%=run/%)
$(BENCHMARKS:%=run/%): run/%: $(OUT)/%
	@$<

# ---- clang-tidy ----

# Not over tf/ and xla/, where it would be busy with TensorFlow's headers.
CLANG_TIDY := clang-tidy
TIDY := $(patsubst %,tidy/%,$(CORE_SOURCES) $(MPI_SOURCES) \
  $(wildcard tfring_ops/runtime/*.cc tfring_ops/capi/*.cc))
.PHONY: $(TIDY)
tidy: $(TIDY)
$(TIDY): tidy/%: %
	@echo "clang-tidy: $<"
	@$(CLANG_TIDY) --quiet $< -- $(FLAGS) \
	  $(call extra_flags,$<) -Wno-unknown-pragmas \
	  -Wno-unknown-warning-option 2>&1
