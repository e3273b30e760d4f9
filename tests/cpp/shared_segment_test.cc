// Memory between processes; here a process and its child.
#include "tfring_ops/transport/shared_memory/shared_segment.h"

#include <gtest/gtest.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <csignal>
#include <cstdint>
#include <memory>

namespace tfring {
namespace {

constexpr size_t kBytes = 10'000;

TEST(SharedSegmentTest, BeginsWithZerosOnAPage) {
  const auto segment = SharedSegment::Create(kBytes).value();
  EXPECT_EQ(reinterpret_cast<uintptr_t>(segment->data()) % 4096, 0u);
  EXPECT_EQ(std::count(segment->data(), segment->data() + kBytes, std::byte{0}),
            static_cast<int64_t>(kBytes));
}

TEST(SharedSegmentTest, WhatOneProcessWritesAnotherReads) {
  const auto segment = SharedSegment::Create(kBytes).value();
  const SegmentAddress address = segment->address();
  const pid_t child = fork();
  if (child == 0) {
    const auto opened = SharedSegment::Open(address, kBytes);
    if (opened.ok()) (*opened)->data()[kBytes - 1] = std::byte{7};
    _exit(opened.ok() ? 0 : 1);
  }
  int status = -1;
  waitpid(child, &status, 0);
  EXPECT_EQ(status, 0);
  EXPECT_EQ(segment->data()[kBytes - 1], std::byte{7});
}

TEST(SharedSegmentTest, StaysWhenItsCreatorIsGone) {
  auto segment = SharedSegment::Create(kBytes).value();
  const auto opened = SharedSegment::Open(segment->address(), kBytes).value();
  segment->data()[0] = std::byte{7};
  segment.reset();
  EXPECT_EQ(opened->data()[0], std::byte{7});
}

TEST(SharedSegmentTest, CannotBeOpenedOnceItsDescriptorIsClosed) {
  const auto segment = SharedSegment::Create(kBytes).value();
  const SegmentAddress address = segment->address();
  segment->CloseDescriptor();
  EXPECT_EQ(SharedSegment::Open(address, kBytes).status().code(),
            absl::StatusCode::kNotFound);
  segment->data()[0] = std::byte{7};
}

// A process of another container may have the same number.
TEST(SharedSegmentTest, AnotherFileIsNotTakenForIt) {
  const auto segment = SharedSegment::Create(kBytes).value();
  SegmentAddress address = segment->address();
  ++address.inode;
  EXPECT_EQ(SharedSegment::Open(address, kBytes).status().code(),
            absl::StatusCode::kNotFound);
}

// The bytes of the file that have memory.
int64_t AllocatedBytes(const SegmentAddress& address) {
  struct stat file{};
  EXPECT_EQ(fstat(static_cast<int>(address.descriptor), &file), 0);
  return int64_t{512} * file.st_blocks;
}

TEST(SharedSegmentTest, WhatIsReservedIsAllocatedLater) {
  constexpr size_t kBlockBytes = 100'000, kBlocks = 3;
  const auto segment =
      SharedSegment::Reserve(kBlocks * kBlockBytes, kBlockBytes, 100).value();
  // Before the blocks are used, each has at most two pages.
  EXPECT_LE(AllocatedBytes(segment->address()), int64_t{kBlocks * 2 * 4096});
  const auto opened =
      SharedSegment::Open(segment->address(), kBlocks * kBlockBytes).value();
  EXPECT_LE(AllocatedBytes(segment->address()), int64_t{kBlocks * 2 * 4096});
  for (size_t block = 0; block < kBlocks; ++block) {
    segment->data()[block * kBlockBytes] = std::byte{7};
  }
  for (int time = 0; time < 2; ++time) {
    ASSERT_TRUE(AllocatePages(segment->data(), kBlocks * kBlockBytes).ok());
    EXPECT_GE(AllocatedBytes(segment->address()),
              int64_t{kBlocks * kBlockBytes});
  }
  for (size_t block = 0; block < kBlocks; ++block) {
    EXPECT_EQ(opened->data()[block * kBlockBytes], std::byte{7});
    EXPECT_EQ(opened->data()[block * kBlockBytes + 50'000], std::byte{0});
  }
}

TEST(SharedSegmentTest, AllThatIsCreatedIsAllocated) {
  const auto segment = SharedSegment::Create(100'000).value();
  EXPECT_GE(AllocatedBytes(segment->address()), 100'000);
}

TEST(SharedSegmentTest, PagesThatCannotBeAllocatedAreAnError) {
  EXPECT_EQ(AllocatePages(reinterpret_cast<void*>(0x1000), 100).code(),
            absl::StatusCode::kResourceExhausted);
}

TEST(SharedSegmentTest, TooMuchIsAnError) {
  EXPECT_FALSE(SharedSegment::Create(size_t{1} << 63).ok());
}

}  // namespace
}  // namespace tfring
