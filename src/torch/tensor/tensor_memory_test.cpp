#include "torch/tensor/tensor_memory.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/from_blob.h>
#include <ATen/ops/full.h>
#include <ATen/ops/matmul.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/randn.h>
#include <ATen/ops/sparse_coo_tensor.h>
#include <ATen/ops/tensor.h>
#include <ATen/ops/zeros.h>
#include <c10/core/CPUAllocator.h>
#include <c10/util/Exception.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "torch/tensor/allocator.h"
#include "torch/tensor/detail/counted_blocks.h"
#include "torch/tensor/translate.h"

namespace headrace {
namespace {

using testing::AllOf;
using testing::HasSubstr;

// Demands that every test gives back what it took.
class TensorMemory : public testing::Test {
 protected:
  void SetUp() override {
    const Applied watched = watch_tensor_memory();
    ASSERT_EQ(watched.requested, "counted");
    ASSERT_EQ(watched.applied, "counted") << watched.reason;
    ASSERT_EQ(watched.reason, "");
    before_ = tensor_bytes();
    ASSERT_GE(before_, 0);
  }
  void TearDown() override {
    EXPECT_EQ(set_tensor_memory_limit(0).applied, "0");
    EXPECT_EQ(tensor_bytes(), before_);
  }
  std::int64_t held() const { return tensor_bytes() - before_; }

  std::int64_t before_ = 0;
};

// Its memory comes from LibTorch's own allocator, as that of a tensor that was made before anybody counted.
at::Tensor made_before(std::int64_t numbers) {
  const auto bytes = static_cast<std::size_t>(numbers) * sizeof(float);
  const at::Storage storage(c10::Storage::use_byte_size_t(), bytes, c10::GetDefaultCPUAllocator(), /*resizable=*/true);
  return at::empty({0}).set_(storage, 0, {numbers});
}

TEST_F(TensorMemory, CountsBytesAsAskedForOfSmallAndLargeTensorsFromEitherAllocator) {
  for (const Allocator allocator : {Allocator::system, Allocator::arena, Allocator::system}) {
    apply_allocator(allocator);
    reset_peak_tensor_bytes();
    {
      const at::Tensor small = at::empty({3});
      EXPECT_EQ(held(), 12);
      at::Tensor large = at::empty({1 << 20});
      EXPECT_EQ(held(), 12 + (4 << 20));
      large.reset();
      EXPECT_EQ(held(), 12);
    }
    EXPECT_EQ(held(), 0);
    EXPECT_EQ(peak_tensor_bytes() - before_, 12 + (4 << 20));
    reset_peak_tensor_bytes();
    EXPECT_EQ(peak_tensor_bytes(), tensor_bytes());
  }
}

TEST_F(TensorMemory, CountsRawBlocksAndWhatGrows) {
  void* const block = c10::GetCPUAllocator()->raw_allocate(1000);
  EXPECT_EQ(held(), 1000);
  c10::GetCPUAllocator()->raw_deallocate(block);
  EXPECT_EQ(held(), 0);
  at::Tensor growing = at::empty({10});
  growing.resize_({1000});
  EXPECT_EQ(held(), 4000);
}

TEST_F(TensorMemory, WhatIsOlderCountsOnceItIsNamedAndEndsWithItsTensor) {
  {
    const at::Tensor older = made_before(500);
    EXPECT_EQ(held(), 0);
    const at::Tensor newer = at::empty({100});
    float numbers[4] = {};
    const at::Tensor of_others = at::from_blob(numbers, {4});
    count_tensors({{"older", older}, {"view", older.narrow(0, 0, 10)}, {"newer", newer}, {"others", of_others}});
    EXPECT_EQ(held(), 2000 + 400);
    count_tensors({{"older", older}, {"undefined", at::Tensor()}});
    EXPECT_EQ(held(), 2000 + 400);
  }
  EXPECT_EQ(held(), 0);
}

TEST_F(TensorMemory, WhatIsOlderGrowsWhereNobodyCounts) {
  const at::Tensor older = made_before(500);
  count_tensors({{"older", older}});
  EXPECT_EQ(held(), 2000);
  older.resize_({5000});
  EXPECT_EQ(held(), 0);
  count_tensors({{"older", older}});
  EXPECT_EQ(held(), 20'000);
}

TEST_F(TensorMemory, IndicesAndValuesOfASparseTensorCount) {
  const at::Tensor indices = made_before(6), values = made_before(12);  // Read as 3 numbers of int64 and as 3 rows.
  values.zero_();
  const at::Tensor places = indices.zero_().view(at::kLong).view({1, 3});
  const at::Tensor sparse = at::sparse_coo_tensor(places, values.view({3, 4}), {8, 4});
  const std::int64_t before = held();
  count_tensors({{"sparse", sparse}});
  EXPECT_EQ(held() - before, 24 + 48);
}

TEST_F(TensorMemory, TellsWhatWouldEndWithTensors) {
  const at::Tensor own = at::zeros({100}), flat = at::zeros({50}), kept = flat.narrow(0, 0, 20);
  const at::Tensor halves = at::zeros({2, 32}), first = halves.select(0, 0), second = halves.select(0, 1);
  float numbers[4] = {};
  const at::Tensor of_others = at::from_blob(numbers, {4}), older = made_before(500);
  EXPECT_EQ(bytes_of_these_alone({own, at::Tensor(), of_others, older}), 400);
  EXPECT_EQ(bytes_of_these_alone({kept}), 0);
  EXPECT_EQ(bytes_of_these_alone({first, second}), 0);  // `halves` holds them, too.
  EXPECT_EQ(bytes_of_these_alone({first, second, halves}), 256);
  const at::Tensor sparse =
      at::sparse_coo_tensor(at::tensor({1, 5, 2}, at::kLong).view({1, 3}), at::zeros({3, 4}), {8, 4});
  EXPECT_EQ(bytes_of_these_alone({sparse}), 24 + 48);
}

TEST(CountedBlocks, ABlockAtTheAddressOfOneThatNobodyCountedOffTakesItsPlace) {
  CountedBlocks blocks;
  const int place = 0;
  for (const std::size_t bytes : {100U, 40U}) {
    CountedBlocks::Reservation reserved(blocks, bytes);
    reserved.take_over(&place);
  }
  EXPECT_EQ(blocks.held(), 40);
  EXPECT_EQ(blocks.peak(), 100);
  EXPECT_EQ(blocks.bytes_of(&place), 40);
  EXPECT_EQ(blocks.forget(&place), 40);
  EXPECT_EQ(blocks.bytes_of(&place), 0);
  blocks.give_back(40);
  EXPECT_EQ(blocks.held(), 0);
}

TEST_F(TensorMemory, BeyondItsLimitAnAllocationNamesAskedHeldAndLimit) {
  const at::Tensor kept = at::empty({1000});
  const Applied applied = set_tensor_memory_limit(before_ + 10'000);
  EXPECT_EQ(applied.applied, std::to_string(before_ + 10'000));
  EXPECT_EQ(applied.reason, "");
  EXPECT_EQ(tensor_memory_limit(), before_ + 10'000);
  const at::Tensor fits = at::empty({1500});  // To the last byte.
  std::string told;
  try {
    at::empty({1});
  } catch (const c10::OutOfMemoryError& error) {
    told = error.what_without_backtrace();
    EXPECT_EQ(translate(std::current_exception()).code(), ErrorCode::out_of_memory);
  }
  EXPECT_THAT(told, AllOf(HasSubstr("wanted 4 bytes"), HasSubstr(std::to_string(before_ + 10'000)),
                          HasSubstr(std::to_string(tensor_bytes()) + " are held")));
  EXPECT_EQ(held(), 10'000);
  set_tensor_memory_limit(0);
  EXPECT_EQ(tensor_memory_limit(), 0);
  EXPECT_EQ(at::empty({1}).numel(), 1);
}

TEST_F(TensorMemory, ALimitBelowWhatIsHeldRefusesAllAndWhatWasRefusedIsNoPeak) {
  const at::Tensor kept = at::full({1000}, 2.0F);
  reset_peak_tensor_bytes();
  set_tensor_memory_limit(1);
  for (int i = 0; i < 3; ++i) EXPECT_THROW(at::empty({1 << 20}), c10::OutOfMemoryError);
  EXPECT_EQ(peak_tensor_bytes(), tensor_bytes());
  set_tensor_memory_limit(0);
  EXPECT_EQ(kept.sum().item<float>(), 2000);
}

TEST_F(TensorMemory, ABackwardThatRunsOutLeavesNothingBehind) {
  const at::Tensor weight = at::ones({64, 64}).requires_grad_();
  const at::Tensor input = at::ones({64, 64});
  const std::int64_t own = held();
  const auto step = [&] { at::matmul(at::matmul(input, weight), weight).sum().backward(); };
  reset_peak_tensor_bytes();
  step();
  weight.mutable_grad().reset();
  const std::int64_t needs = peak_tensor_bytes();
  int refused = 0;
  for (std::int64_t limit = before_ + own + 1; limit < needs; limit += 1 << 13) {
    set_tensor_memory_limit(limit);
    EXPECT_THROW(step(), c10::OutOfMemoryError) << limit;
    ++refused;
    weight.mutable_grad().reset();
    EXPECT_EQ(held(), own) << limit;
  }
  EXPECT_GE(refused, 4);
  set_tensor_memory_limit(needs);
  EXPECT_NO_THROW(step());
}

TEST_F(TensorMemory, ThreadsDoNotPassTheLimitTogether) {
  constexpr std::int64_t kLimit = 64 * 1024;
  set_tensor_memory_limit(before_ + kLimit);
  reset_peak_tensor_bytes();
  std::atomic<int> made{0}, refused{0};
  {
    std::vector<std::jthread> threads;
    for (int t = 0; t < 4; ++t) {
      threads.emplace_back([&] {
        for (int i = 0; i < 2000; ++i) {
          try {
            const at::Tensor one = at::empty({6 * 1024}), two = at::empty({4 * 1024});  // 24 and 16 KiB.
            ++made;
          } catch (const c10::OutOfMemoryError&) {
            ++refused;
          }
        }
      });
    }
  }
  EXPECT_EQ(made.load() + refused.load(), 8000);
  EXPECT_GT(made.load(), 0);
  EXPECT_LE(peak_tensor_bytes() - before_, kLimit);
}

TEST_F(TensorMemory, ATensorThatAnotherThreadEndsIsCountedOff) {
  at::Tensor made = at::empty({1 << 16});
  EXPECT_EQ(held(), 4 << 16);
  std::jthread([taken = std::move(made)]() mutable { taken.reset(); }).join();
  EXPECT_EQ(held(), 0);
}

TEST_F(TensorMemory, AChildOfAForkCountsWhileThreadsHereDo) {
  std::jthread busy([](const std::stop_token& stop) {
    while (!stop.stop_requested()) at::empty({64});
  });
  for (int i = 0; i < 50; ++i) {
    const pid_t child = ::fork();
    if (child == 0) {
      ::alarm(60);  // A child that inherited a lock waits for good.
      const std::int64_t before = tensor_bytes();
      const at::Tensor made = at::empty({1000});
      ::_exit(tensor_bytes() - before == 4000 ? 0 : 1);
    }
    int status = -1;
    ASSERT_EQ(::waitpid(child, &status, 0), child);
    ASSERT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 0) << i;
  }
}

TEST_F(TensorMemory, AChildOfAForkHasNoLimit) {
  set_tensor_memory_limit(tensor_bytes() + 1);
  const pid_t child = ::fork();
  if (child == 0) {
    bool good = false;
    try {
      good = tensor_memory_limit() == 0 && at::empty({1000}).numel() == 1000;
    } catch (...) {
      good = false;
    }
    ::_exit(good ? 0 : 1);
  }
  int status = -1;
  ASSERT_EQ(::waitpid(child, &status, 0), child);
  EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 0);
  EXPECT_EQ(tensor_memory_limit(), tensor_bytes() + 1);  // The parent's stays.
}

TEST_F(TensorMemory, ALimitBelowZeroIsAnError) {
  try {
    set_tensor_memory_limit(-1);
    FAIL();
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::invalid_argument);
    EXPECT_THAT(error.what(), HasSubstr("found -1"));
  }
}

#if !defined(__SANITIZE_ADDRESS__)  // It ends the process where malloc is asked for as much.
TEST_F(TensorMemory, WhatTheSystemRefusesIsNotCounted) {
  reset_peak_tensor_bytes();
  EXPECT_THROW(at::empty({std::int64_t{1} << 55}, at::kByte), c10::Error);
  EXPECT_EQ(held(), 0);
  EXPECT_EQ(peak_tensor_bytes(), tensor_bytes());
}
#endif

TEST_F(TensorMemory, NobodyCountsOnceAnotherAllocatorHasThePlaceAndSaysSo) {
  const auto displaced = [] {
    struct Other final : c10::Allocator {
      c10::DataPtr allocate(std::size_t bytes) override { return c10::GetDefaultCPUAllocator()->allocate(bytes); }
      void copy_data(void* to, const void* from, std::size_t bytes) const override {
        default_copy_data(to, from, bytes);
      }
    };
    static Other other;
    c10::SetCPUAllocator(&other, 1);
    const Applied watched = watch_tensor_memory(), limited = set_tensor_memory_limit(1000);
    const bool good = watched.applied == "unavailable" &&
                      watched.reason.find("another allocator") != std::string::npos && limited.requested == "1000" &&
                      limited.applied == "0" && limited.reason == watched.reason && tensor_bytes() == -1 &&
                      peak_tensor_bytes() == -1 && tensor_memory_limit() == 0;
    ::_exit(good ? 0 : 1);
  };
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  EXPECT_EXIT(displaced(), testing::ExitedWithCode(0), "");
}

}  // namespace
}  // namespace headrace
