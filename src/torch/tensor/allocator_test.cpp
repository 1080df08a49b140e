#include "torch/tensor/allocator.h"

#include <ATen/ops/conv2d.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/full.h>
#include <ATen/ops/randn.h>
#include <c10/core/CPUAllocator.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <fstream>
#include <string>
#include <thread>

#include "core/hardware/machine.h"
#include "torch/tensor/tensor_allocations.h"

namespace headrace {
namespace {

constexpr std::int64_t kLarge = 4 << 20;  // Numbers: 16 MiB.

#if defined(__SANITIZE_ADDRESS__)
TEST(TensorArena, IsNotAppliedWhereAddressSanitizerWatchesAndSaysSo) {
  const Applied applied = apply_allocator(Allocator::arena);
  EXPECT_EQ(applied.requested, "arena");
  EXPECT_EQ(applied.applied, "system");
  EXPECT_THAT(applied.reason, testing::HasSubstr("AddressSanitizer"));
  EXPECT_EQ(allocator_in_force(), Allocator::system);
  give_freed_memory_back();
}
#else

// Whether `address` lies in a mapping behind which many addresses are reserved that nobody may touch yet, the arena's,
// and not in one that ends where the arena begins.
bool lies_in_arena(const void* address, const void* front) {
  if (address < front) return false;
  constexpr std::uintptr_t kReserved = std::uintptr_t{1} << 30;  // glibc reserves 64 MiB for a thread's heap.
  std::ifstream maps("/proc/self/maps");
  std::uintptr_t begin = 0, end = 0, reached = 0;  // `reached`: how far from `address` on no mapping is missing.
  char dash = 0;
  std::string permissions, rest;
  while (maps >> std::hex >> begin >> dash >> end >> permissions && std::getline(maps, rest)) {
    const auto wanted = reinterpret_cast<std::uintptr_t>(address);
    if (begin <= wanted && wanted < end) reached = begin;
    if (begin != reached) continue;
    if (permissions == "---p") return end - begin >= kReserved;
    reached = end;
  }
  return false;
}

class TensorArena : public testing::Test {
 protected:
  void SetUp() override {
    const Applied applied = apply_allocator(Allocator::arena);
    ASSERT_EQ(applied.key, "compute.allocator");
    ASSERT_EQ(applied.requested, "arena");
    ASSERT_EQ(applied.applied, "arena") << applied.reason;
    ASSERT_EQ(applied.reason, "");
    if (front_ == nullptr) front_ = at::empty({kLarge}).data_ptr();  // The first block ever lies at the arena's front.
  }
  void TearDown() override {
    // More than all that a test holds: it has room at the front only where every block of the test has come back.
    apply_allocator(Allocator::arena);
    EXPECT_EQ(at::empty({16 * kLarge}).data_ptr(), front_);
    EXPECT_EQ(apply_allocator(Allocator::system).applied, "system");
  }

  static inline const void* front_ = nullptr;
};

long page_faults_of_a_tensor() {
  rusage before{}, after{};
  ::getrusage(RUSAGE_SELF, &before);
  at::full({kLarge}, 1.0F);
  ::getrusage(RUSAGE_SELF, &after);
  return after.ru_minflt - before.ru_minflt;
}

TEST_F(TensorArena, HoldsLargeTensorsAndNoSmallOnes) {
  const at::Tensor small = at::empty({16 * 1024 - 1}, at::kByte);
  EXPECT_FALSE(lies_in_arena(small.data_ptr(), front_));
  const at::Tensor large = at::empty({16 * 1024}, at::kByte);
  EXPECT_TRUE(lies_in_arena(large.data_ptr(), front_));
  EXPECT_EQ(reinterpret_cast<std::uintptr_t>(large.data_ptr()) % 64, 0U);
}

TEST_F(TensorArena, PagesStayForTheNextTensorUntilTheSystemsAllocatorIsBack) {
  constexpr long kLeast = kLarge * 4 / (2 << 20);  // A fault a huge page.
  page_faults_of_a_tensor();
  EXPECT_LT(page_faults_of_a_tensor(), kLeast);
  const std::int64_t resident = resident_memory().value();
  apply_allocator(Allocator::system);
  EXPECT_LT(resident_memory().value(), resident - kLarge * 4 / 2);
  apply_allocator(Allocator::arena);
  EXPECT_GE(page_faults_of_a_tensor(), kLeast);
  EXPECT_LT(page_faults_of_a_tensor(), kLeast);
  give_freed_memory_back();
  EXPECT_GE(page_faults_of_a_tensor(), kLeast);
}

TEST_F(TensorArena, TensorsEndWhereTheyBeganWhicheverIsInForce) {
  apply_allocator(Allocator::system);
  at::Tensor of_system = at::full({kLarge}, 1.0F);
  apply_allocator(Allocator::arena);
  at::Tensor of_arena = at::full({kLarge}, 2.0F);
  EXPECT_FALSE(lies_in_arena(of_system.data_ptr(), front_));
  EXPECT_TRUE(lies_in_arena(of_arena.data_ptr(), front_));
  of_system.resize_({2 * kLarge});  // By the allocator that the storage began with, which is this one now.
  EXPECT_EQ(of_system[kLarge - 1].item<float>(), 1);
  of_system.reset();
  apply_allocator(Allocator::system);
  EXPECT_EQ(of_arena.sum().item<double>(), 2.0 * kLarge);
  of_arena.reset();
}

// oneDNN frees by the allocator that is in force then, whoever gave the memory.
TEST_F(TensorArena, FreesRawBlocksOfEither) {
  apply_allocator(Allocator::system);
  void* const of_system = c10::GetCPUAllocator()->raw_allocate(1 << 20);
  apply_allocator(Allocator::arena);
  void* const of_arena = c10::GetCPUAllocator()->raw_allocate(1 << 20);
  EXPECT_FALSE(lies_in_arena(of_system, front_));
  EXPECT_TRUE(lies_in_arena(of_arena, front_));
  c10::GetCPUAllocator()->raw_deallocate(of_system);
  apply_allocator(Allocator::system);
  c10::GetCPUAllocator()->raw_deallocate(of_arena);
}

TEST_F(TensorArena, AConvolutionHasTheSameBitsFromEither) {
  at::manual_seed(1);
  const at::Tensor images = at::randn({8, 16, 32, 32}), weights = at::randn({32, 16, 3, 3});
  const at::Tensor in_arena = at::conv2d(images, weights);
  apply_allocator(Allocator::system);
  EXPECT_TRUE(at::conv2d(images, weights).equal(in_arena));
}

TEST_F(TensorArena, WhatTensorsHoldIsCountedAsWithoutIt) {
  const TensorAllocations allocations;
  const std::int64_t before = TensorAllocations::bytes().value();
  {
    const at::Tensor large = at::empty({kLarge});
    EXPECT_EQ(TensorAllocations::bytes().value() - before, kLarge * 4);
  }
  EXPECT_EQ(TensorAllocations::bytes().value(), before);
}

TEST_F(TensorArena, WhatItHasNoRoomForComesFromTheSystem) {
  for (const int times : {2, 5}) {  // The machine's memory; the arena has addresses for 4 times.
    const std::int64_t bytes = detect_machine().memory_total.value() * times;
    std::string refusal;
    try {
      const at::Tensor huge = at::empty({bytes}, at::kByte);  // Addresses alone: nobody writes there.
    } catch (const c10::Error& error) {
      refusal = error.what_without_backtrace();
    }
    std::ifstream file("/proc/sys/vm/overcommit_memory");
    int overcommit = -1;
    if (file >> overcommit && overcommit != 1) {  // Else a system with swap may grant it.
      EXPECT_THAT(refusal, testing::HasSubstr("can't allocate memory")) << times;  // As LibTorch's own says it.
    }
  }
}

TEST_F(TensorArena, IsNotInForceWhereAnotherAllocatorHasThePlace) {
  const auto displaced = [] {
    struct Other final : c10::Allocator {
      c10::DataPtr allocate(std::size_t bytes) override { return c10::GetDefaultCPUAllocator()->allocate(bytes); }
      void copy_data(void* to, const void* from, std::size_t bytes) const override {
        default_copy_data(to, from, bytes);
      }
    };
    static Other other;
    c10::SetCPUAllocator(&other, 1);
    const Applied applied = apply_allocator(Allocator::arena);
    const bool good = applied.requested == "arena" && applied.applied == "system" &&
                      applied.reason.find("another allocator") != std::string::npos &&
                      allocator_in_force() == Allocator::system;
    ::_exit(good ? 0 : 1);
  };
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  EXPECT_EXIT(displaced(), testing::ExitedWithCode(0), "");
}

TEST_F(TensorArena, AChildOfAForkMakesTensorsWhileThreadsHereDo) {
  std::jthread busy([](const std::stop_token& stop) {
    while (!stop.stop_requested()) at::empty({1 << 16});
  });
  for (int i = 0; i < 50; ++i) {
    const pid_t child = ::fork();
    if (child == 0) {
      ::alarm(60);  // A child that inherited a lock waits for good.
      const at::Tensor made = at::empty({1 << 16});
      ::_exit(made.numel() == 1 << 16 ? 0 : 1);
    }
    int status = -1;
    ASSERT_EQ(::waitpid(child, &status, 0), child);
    ASSERT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 0) << i;
  }
}

TEST_F(TensorArena, AChildOfAForkKeepsNoCopyOfThePagesThatAreFree) {
  page_faults_of_a_tensor();
  const std::int64_t before = resident_memory().value();
  const pid_t child = ::fork();
  if (child == 0) ::_exit(resident_memory().value() < before - kLarge * 4 / 2 ? 0 : 1);
  int status = -1;
  ASSERT_EQ(::waitpid(child, &status, 0), child);
  EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 0);
  EXPECT_LT(page_faults_of_a_tensor(), kLarge * 4 / 4096 / 4);  // Here they are as they were, if not writable at once.
}

TEST(LargeBlocks, AreMappedOneByOneAndUnmappedByMalloc) {
  const auto maps = [] {
    map_large_blocks();
    for (int i = 0; i < 4; ++i) {                   // After which glibc as it is would keep the next of this size.
      void* volatile block = std::malloc(8 << 20);  // Volatile, or the compiler leaves both calls out.
      std::free(block);
    }
    const std::int64_t before = resident_memory().value();
    auto* volatile block = static_cast<char*>(std::malloc(8 << 20));
    std::fill_n(block, 8 << 20, '\1');
    std::free(block);
    ::_exit(resident_memory().value() < before + (2 << 20) ? 0 : 1);
  };
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  EXPECT_EXIT(maps(), testing::ExitedWithCode(0), "");
}
#endif

}  // namespace
}  // namespace headrace
