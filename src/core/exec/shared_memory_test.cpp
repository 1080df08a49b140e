#include "core/exec/shared_memory.h"

#include <gtest/gtest.h>
#include <headrace/error.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstring>
#include <utility>

#include "core/exec/child_process.h"

namespace headrace {
namespace {

TEST(SharedMemory, ShowsWhatAChildWrites) {
  const SharedMemory memory{"test", 4096};
  ChildProcess child{
      {.arguments = {"sh", "-c", "printf water >&3"}, .descriptors = {memory.descriptor()}, .environment = {}}};
  EXPECT_EQ(child.wait(std::chrono::seconds(60))->code, 0);
  EXPECT_EQ(std::memcmp(memory.front(5).data(), "water", 5), 0);
}

TEST(SharedMemory, CannotBeResizedByWhoeverHoldsIt) {
  const SharedMemory memory{"test", 4096};
  EXPECT_EQ(::ftruncate(memory.descriptor(), 0), -1);
  EXPECT_EQ(::ftruncate(memory.descriptor(), 1 << 20), -1);
  EXPECT_EQ(memory.bytes().size(), 4096U);
}

TEST(SharedMemory, RefusesPartsThatItDoesNotHave) {
  const SharedMemory memory{"test", 100};
  EXPECT_EQ(memory.front(100).size(), 100U);
  EXPECT_TRUE(memory.front(0).empty());
  EXPECT_THROW(memory.front(101), Error);
  EXPECT_THROW(memory.front(-1), Error);
  EXPECT_THROW((SharedMemory{"test", 0}), Error);
}

TEST(SharedMemory, KeepsItsAddressWhenMovedAndIsZeroAfterRelease) {
  SharedMemory first{"test", 3 << 20};
  const std::byte* address = first.bytes().data();
  std::fill(first.bytes().begin(), first.bytes().end(), std::byte{9});
  const SharedMemory second{std::move(first)};
  EXPECT_EQ(second.bytes().data(), address);
  second.release_after(1 << 20);
  EXPECT_EQ(second.bytes()[(1 << 20) - 1], std::byte{9});
  EXPECT_EQ(second.bytes()[1 << 20], std::byte{0});
  second.release_after(std::ssize(second.bytes()));
}

}  // namespace
}  // namespace headrace
