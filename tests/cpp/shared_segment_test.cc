// Memory between processes; here a process and its child.
#include "tfring_ops/transport/shared_memory/shared_segment.h"

#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
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

// A process of another container may have the number.
TEST(SharedSegmentTest, AnotherFileIsNotTakenForIt) {
  const auto segment = SharedSegment::Create(kBytes).value();
  SegmentAddress address = segment->address();
  ++address.inode;
  EXPECT_EQ(SharedSegment::Open(address, kBytes).status().code(),
            absl::StatusCode::kNotFound);
}

TEST(SharedSegmentTest, TooMuchIsAnError) {
  EXPECT_FALSE(SharedSegment::Create(size_t{1} << 63).ok());
}

}  // namespace
}  // namespace tfring
