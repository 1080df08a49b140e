#include "torch/train/step_figures.h"

#include <ATen/ops/arange.h>
#include <ATen/ops/full.h>
#include <ATen/ops/tensor.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstddef>
#include <cstdint>
#include <stdexcept>
#include <string>
#include <vector>

namespace headrace {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;
using Kind = StepFigure::Kind;

StepFigure loss_of(std::int64_t batch) {
  return {at::full({}, 0.5 + static_cast<double>(batch)).requires_grad_(), 1, batch, 8, Kind::loss};
}

// With the CPU's accelerator, and without one.
class StepFiguresOf : public ::testing::TestWithParam<bool> {
 protected:
  StepFigures made() const {
    std::string reason;
    return StepFigures(GetParam() ? accelerator_of(at::kCPU, reason) : nullptr);
  }
  auto into(std::vector<double>& losses) {
    return [&losses](const StepFigureRead& read) { losses.push_back(read.values[0]); };
  }
};

TEST_P(StepFiguresOf, AreToldInTheOrderOfTheStepsAnExchangeLater) {
  StepFigures figures = made();
  std::vector<double> told;
  figures.exchange(into(told));
  EXPECT_THAT(told, IsEmpty());
  figures.add(loss_of(0));
  figures.add(loss_of(1));
  EXPECT_EQ(figures.waiting(), 2U);
  figures.exchange(into(told));
  EXPECT_THAT(told, IsEmpty()) << "they are sent";
  EXPECT_EQ(figures.waiting(), 0U);
  figures.add(loss_of(2));
  figures.exchange(into(told));
  EXPECT_THAT(told, ElementsAre(0.5, 1.5));
  figures.add(loss_of(3));
  figures.read_all(into(told));
  EXPECT_THAT(told, ElementsAre(0.5, 1.5, 2.5, 3.5));
  figures.read_all(into(told));
  EXPECT_EQ(told.size(), 4U) << "each once";
}

TEST_P(StepFiguresOf, HaveAllTheirValuesAndWhatTheyAreOf) {
  StepFigures figures = made();
  figures.add(loss_of(7));
  figures.add({at::tensor({3.0F, 1.0F, 0.0F, -1.0F}), 2, 8, 0, Kind::update});
  figures.add({at::tensor({0.25, 4.0, 0.0, 1.0, 2.0}, at::kDouble), 2, 9, 5, Kind::step});
  std::vector<std::vector<double>> values;
  std::vector<Kind> kinds;
  std::vector<std::int64_t> places;
  figures.read_all([&](const StepFigureRead& read) {
    values.emplace_back(read.values, read.values + read.of.values.numel());
    kinds.push_back(read.of.kind);
    places.insert(places.end(), {read.of.epoch, read.of.batch, read.of.samples});
  });
  EXPECT_THAT(values, ElementsAre(ElementsAre(7.5), ElementsAre(3, 1, 0, -1), ElementsAre(0.25, 4, 0, 1, 2)));
  EXPECT_THAT(kinds, ElementsAre(Kind::loss, Kind::update, Kind::step));
  EXPECT_THAT(places, ElementsAre(1, 7, 8, 2, 8, 0, 2, 9, 5));
}

TEST_P(StepFiguresOf, AreAsTheyWereWhenTheyWereSent) {
  StepFigures figures = made();
  const at::Tensor value = at::full({}, 2.0);
  figures.add({value, 0, 0, 1, Kind::loss});
  std::vector<double> told;
  figures.exchange(into(told));
  value.fill_(9.0);
  figures.read_all(into(told));
  EXPECT_THAT(told, ElementsAre(2.0));
}

TEST_P(StepFiguresOf, WhatTakingOneThrowsLeavesNone) {
  for (const bool while_sent : {false, true}) {
    StepFigures figures = made();
    std::vector<double> told;
    for (std::int64_t batch = 0; batch < 3; ++batch) figures.add(loss_of(batch));
    if (while_sent) {
      figures.exchange(into(told));
      figures.add(loss_of(3));
    }
    const auto refuse_second = [&](const StepFigureRead& read) {
      if (read.of.batch == 1) throw std::runtime_error("bad");
      told.push_back(read.values[0]);
    };
    EXPECT_THROW(figures.read_all(refuse_second), std::runtime_error);
    EXPECT_THAT(told, ElementsAre(0.5));
    EXPECT_EQ(figures.waiting(), 0U);
    figures.read_all(into(told));
    EXPECT_THAT(told, ElementsAre(0.5));
    figures.add(loss_of(5));  // It can be used on.
    figures.read_all(into(told));
    EXPECT_THAT(told, ElementsAre(0.5, 5.5));
  }
}

TEST_P(StepFiguresOf, AreFullAtFiftyAndTellBeforeOfTheLastPlace) {
  StepFigures figures = made();
  std::vector<double> told;
  for (std::int64_t batch = 0; batch < 50; ++batch) {
    EXPECT_FALSE(figures.is_full()) << batch;
    EXPECT_EQ(figures.has_room_for_one(), batch < 49) << batch;
    figures.add(loss_of(batch));
  }
  EXPECT_TRUE(figures.is_full());
  figures.exchange(into(told));
  EXPECT_FALSE(figures.is_full());
  EXPECT_THAT(told, IsEmpty());
}

TEST_P(StepFiguresOf, AreFullByTheirLossesWhateverElseWaits) {
  std::string reason;
  StepFigures figures(GetParam() ? accelerator_of(at::kCPU, reason) : nullptr, 3);
  const StepFigure of_update{at::tensor({3.0F, 1.0F, 0.0F, -1.0F}), 0, 0, 0, Kind::update};
  std::vector<double> told;
  for (std::int64_t batch = 0; batch < 3; ++batch) {
    EXPECT_FALSE(figures.is_full()) << batch;
    EXPECT_EQ(figures.has_room_for_one(), batch < 2) << batch;
    figures.add(loss_of(batch));
    figures.add(of_update);
  }
  EXPECT_TRUE(figures.is_full());
  figures.drop_to(4);  // The last step's.
  EXPECT_FALSE(figures.is_full());
  figures.add(loss_of(2));
  EXPECT_TRUE(figures.is_full());
  figures.exchange(into(told));
  EXPECT_FALSE(figures.is_full());
  figures.read_all(into(told));
  EXPECT_THAT(told, ElementsAre(0.5, 3, 1.5, 3, 2.5));
}

TEST_P(StepFiguresOf, AreRowsOfBlocksTooWhereverTheseEnd) {
  StepFigures figures = made();
  const at::Tensor first = at::arange(6, at::kFloat).view({3, 2}), second = first.add(10);
  figures.add({.values = first, .batch = 0, .kind = StepFigure::Kind::step, .row = 1});
  figures.add({.values = first, .batch = 1, .kind = StepFigure::Kind::step, .row = 2});
  figures.add({.values = second, .batch = 2, .kind = StepFigure::Kind::step, .row = 0});
  figures.add({.values = at::full({}, 7.0), .batch = 3});
  figures.add({.values = second, .batch = 4, .kind = StepFigure::Kind::step, .row = 2});
  std::vector<double> found;
  figures.read_all([&](const StepFigureRead& read) {
    for (std::int64_t i = 0; i < read.of.count(); ++i) found.push_back(read.values[i]);
  });
  EXPECT_THAT(found, ElementsAre(2, 3, 4, 5, 10, 11, 7, 14, 15));
}

TEST_P(StepFiguresOf, AreDroppedFromTheEnd) {
  StepFigures figures = made();
  std::vector<double> told;
  figures.add(loss_of(0));
  figures.exchange(into(told));
  for (std::int64_t batch = 1; batch < 4; ++batch) figures.add(loss_of(batch));
  figures.drop_to(1);
  EXPECT_EQ(figures.waiting(), 1U);
  figures.read_all(into(told));
  EXPECT_THAT(told, ElementsAre(0.5, 1.5)) << "those that were sent stay";
}

INSTANTIATE_TEST_SUITE_P(Device, StepFiguresOf, ::testing::Bool(),
                         [](const auto& of) { return of.param ? "WithAccelerator" : "Without"; });

}  // namespace
}  // namespace headrace
