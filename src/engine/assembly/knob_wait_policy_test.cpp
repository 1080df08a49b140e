#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <headrace/error.h>

#include <cstdlib>
#include <map>
#include <string>
#include <vector>

#include "app/knobs/knob.h"
#include "core/base/error_of.h"
#include "engine/assembly/tiny_dataset.h"
#include "engine/assembly/training_job.h"

namespace headrace {
namespace {

constexpr const char* kKey = "compute.wait_policy";
constexpr const char* kVariable = "OMP_WAIT_POLICY";
constexpr const char* kSpinCount = "GOMP_SPINCOUNT";

class WaitPolicyKnob : public testing::Test {
 protected:
  WaitPolicyKnob() {
    for (const char* variable : {kVariable, kSpinCount}) {
      if (const char* found = std::getenv(variable)) before_.emplace(variable, found);
      ::unsetenv(variable);
    }
  }
  ~WaitPolicyKnob() override {
    for (const char* variable : {kVariable, kSpinCount}) {
      ::unsetenv(variable);
      if (before_.contains(variable)) ::setenv(variable, before_.at(variable).c_str(), 1);
    }
  }

  static KnobContext context_of(const Recipe& recipe) {
    Machine machine;
    machine.cores_usable = 2;
    return headrace::context_of(recipe, machine, {});
  }
  static std::vector<std::string> names(const KnobContext& context) {
    std::vector<std::string> found;
    for (const Candidate& candidate : offer(context, "data").candidates) {
      if (candidate.key == kKey) found.push_back(candidate.name);
    }
    return found;
  }
  static std::string why_not(const KnobContext& context) {
    for (const Report::NotTried& change : offer(context, "data").not_tried) {
      if (change.key == kKey) return change.reason;
    }
    return "";
  }

 private:
  std::map<std::string, std::string> before_;  // Variables that were set.
};

TEST_F(WaitPolicyKnob, OffersWhatIsNotInForceBehindAllOtherKnobs) {
  const KnobContext context = context_of(Recipe{});
  EXPECT_THAT(names(context), testing::ElementsAre("wait policy active", "wait policy passive"));
  for (const char* bound : {"compute", "data"}) {
    const std::vector<Candidate> all = offer(context, bound).candidates;
    ASSERT_GT(all.size(), 2U);
    for (const Candidate& candidate : all) {
      EXPECT_EQ(candidate.switches == Switches::new_process, &candidate >= &all[all.size() - 2]) << candidate.name;
    }
    EXPECT_EQ(all.back().numerics, NumericClass::bit_equal);
    EXPECT_EQ(all.back().changes, (Settings{{kKey, "\"passive\""}}));
    EXPECT_GT(all.back().prepare_s, 0);
  }
  ::setenv(kVariable, "ACTIVE", 1);  // As a user may have, or the recipe.
  EXPECT_THAT(names(context), testing::ElementsAre("wait policy passive"));
  Recipe active;
  active.compute.wait_policy = WaitPolicy::active;
  EXPECT_THAT(names(context_of(active)), testing::ElementsAre("wait policy passive"));
}

TEST_F(WaitPolicyKnob, IsExplainedWhereNoNewProcessCanBeMadeOfTheJob) {
  KnobContext context = context_of(Recipe{});
  context.live = true;
  EXPECT_EQ(why_not(context), "it takes effect in a new process; headrace tune tries it");
  context.door = Door::python;
  for (const bool live : {true, false}) {
    context.live = live;
    EXPECT_EQ(why_not(context), "read when libgomp loads: set OMP_WAIT_POLICY before Python starts");
  }
  Recipe single;
  single.compute.intra_op_threads = 1;
  EXPECT_EQ(why_not(context_of(single)), "one thread computes, and no other one waits for it");
}

TEST_F(WaitPolicyKnob, IsNotOfferedWhereASpinCountIsInItsPlace) {
  ::setenv(kSpinCount, "1000", 1);
  EXPECT_TRUE(names(context_of(Recipe{})).empty());
  EXPECT_THAT(why_not(context_of(Recipe{})), testing::HasSubstr(kSpinCount));
}

TEST_F(WaitPolicyKnob, IsASettingOfANewProcessAndOthersAreNot) {
  EXPECT_TRUE(needs_new_process(kKey));
  EXPECT_FALSE(needs_new_process("compute.intra_op_threads"));
  EXPECT_FALSE(needs_new_process("custom.wait_policy"));
}

// A shell stands in for the executable: it gets the recipe's descriptor, and the other settings behind it.
TEST_F(WaitPolicyKnob, AProcessOfARecipesJobStartsWithTheSettingAndIsToldTheOthers) {
  const TinyDataset data{400};
  Machine machine = detect_machine();
  machine.memory_limit.reset();
  TrainingJob job{data.recipe(), machine};
  job.snapshot();
  const Settings best{{"train.precision", "\"bf16\""}};
  Settings tried = best;
  tried[kKey] = "\"passive\"";
  EXPECT_EQ(job.in_processes(best, tried), nullptr) << "nobody said what starts one";
  job.set_trial_command({"sh", "-c",
                         "test $# = 1 && test \"$1\" = 'train.precision=\"bf16\"' || exit 1; "
                         "grep -q 'wait_policy = \"passive\"' $0 && exit 7; "
                         "grep -q 'wait_policy = \"system\"' $0 && exit 8"});
  const auto fault_with = [&](const Settings& settings) {
    return error_of(ErrorCode::internal, [&] { job.in_processes(best, tried)->configure(settings); });
  };
  EXPECT_EQ(fault_with(tried), "tune: the process with compute.wait_policy = \"passive\" ended with exit status 7");
  EXPECT_EQ(fault_with(best), "tune: the process with compute.wait_policy = \"system\" ended with exit status 8");
  job.configure(best);
  job.restore();
  EXPECT_EQ(job.run(2).size(), 2U) << "the job itself goes on as before";
}

TEST_F(WaitPolicyKnob, ProcessesThatMemoryDoesNotHoldAreNotStarted) {
  const TinyDataset data{400};
  Machine machine = detect_machine();
  machine.memory_limit = std::int64_t{64} << 20;
  TrainingJob job{data.recipe(), machine};
  job.set_trial_command({"false"});
  const Settings tried{{kKey, "\"active\""}};
  EXPECT_THAT(error_of(ErrorCode::out_of_memory, [&] { job.in_processes({}, tried)->configure(tried); }),
              testing::HasSubstr("the limit of 64 MiB"));
}

}  // namespace
}  // namespace headrace
