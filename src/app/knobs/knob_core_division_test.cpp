#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "app/knobs/knob.h"

namespace headrace {
namespace {

constexpr const char* kWorkers = "data.num_workers";
constexpr const char* kThreads = "compute.intra_op_threads";

KnobContext context_of(std::int64_t num_workers, std::int64_t compute_threads, int cores) {
  Recipe recipe;
  recipe.data.num_workers = num_workers;
  recipe.compute.intra_op_threads = compute_threads;
  Machine machine;
  machine.cores_usable = cores;
  return headrace::context_of(recipe, machine, {});
}

std::vector<Candidate> offered(const KnobContext& context) {
  return offer(context, "data").candidates;
}

std::vector<std::string> divisions(const KnobContext& context) {
  std::vector<std::string> names;
  for (const Candidate& candidate : offered(context)) {
    if (candidate.key == "compute.division") names.push_back(candidate.name);
  }
  return names;
}

std::string why_not(const KnobContext& context) {
  for (const Report::NotTried& change : offer(context, "data").not_tried) {
    if (change.key == "compute.division") return change.reason;
  }
  return "";
}

// Loading, compute.
using Cell = std::pair<std::int64_t, std::int64_t>;

// To which changes lead, one on top of the other.
std::set<Cell> reached(const KnobContext& context, Cell written) {
  std::set<Cell> cells{written};
  for (std::size_t before = 0; before != cells.size();) {
    before = cells.size();
    for (const Cell& cell : std::set<Cell>(cells)) {
      for (const Candidate& candidate : offered(context)) {
        const auto value = [&](const char* key, std::int64_t now) {
          const auto change = candidate.changes.find(key);
          return change == candidate.changes.end() ? now : std::stoll(change->second);
        };
        cells.emplace(value(kWorkers, cell.first), value(kThreads, cell.second));
      }
    }
  }
  return cells;
}

TEST(CoreDivision, ChangesBothSidesBehindTheKnobsThatChangeOne) {
  const KnobContext context = context_of(1, 0, 4);
  EXPECT_EQ(divisions(context),
            (std::vector<std::string>{"loaders 2 with compute threads 2", "loaders 4 with compute threads 1",
                                      "loaders 3 with compute threads 1"}));
  std::size_t last_of_one_side = 0, first_division = offered(context).size();
  for (std::size_t i = 0; i < offered(context).size(); ++i) {
    const Candidate candidate = offered(context)[i];
    if (candidate.key == kWorkers || candidate.key == kThreads) last_of_one_side = i;
    if (candidate.key != "compute.division") continue;
    first_division = std::min(first_division, i);
    EXPECT_EQ(candidate.changes.size(), 2U);
    EXPECT_TRUE(candidate.divides_cores) << candidate.name;
    EXPECT_EQ(candidate.numerics, NumericClass::rounding);
  }
  EXPECT_GT(first_division, last_of_one_side);
}

TEST(CoreDivision, OnTwoCoresChangesLeadFromEachDivisionToEachOther) {
  std::set<Cell> all;
  for (const std::int64_t loading : {0, 1, 2}) {
    for (const std::int64_t compute : {1, 2}) all.emplace(loading, compute);
  }
  for (const auto& [loading, compute] : all) {
    EXPECT_EQ(reached(context_of(loading, compute, 2), {loading, compute}), all) << loading << " and " << compute;
  }
}

TEST(CoreDivision, WhereItIsNotTriedItSaysWhy) {
  EXPECT_EQ(why_not(context_of(1, 0, 1)), "there is one core");
  EXPECT_THAT(why_not(context_of(1, 1, 2)), testing::HasSubstr("either side"));
  KnobContext context = context_of(0, 0, 4);
  EXPECT_EQ(why_not(context), "");
  context.door = Door::python;
  context.loader = LoaderKind::torch;
  EXPECT_EQ(why_not(context), "");
  context.workers_change_batches = true;
  EXPECT_THAT(why_not(context), testing::HasSubstr("other draws"));
  context.has_replacement = true;
  EXPECT_THAT(why_not(context), testing::HasSubstr("threads of its own"));
  context.live = true;
  EXPECT_THAT(why_not(context), testing::HasSubstr("while the run goes on"));
}

}  // namespace
}  // namespace headrace
