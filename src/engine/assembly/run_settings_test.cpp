#include "engine/assembly/run_settings.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/resource.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <set>
#include <string>

#include "core/base/error_of.h"
#include "engine/assembly/tiny_dataset.h"
#include "engine/assembly/training_job.h"

namespace headrace {
namespace {

namespace fs = std::filesystem;
using testing::HasSubstr;

// "Cpus_allowed_list" of the threads of this process, as the kernel writes it.
std::set<std::string> each_mask() {
  std::set<std::string> found;
  for (const fs::directory_entry& entry : fs::directory_iterator("/proc/self/task")) {
    std::ifstream status(entry.path() / "status");
    const std::string key = "Cpus_allowed_list:\t";
    for (std::string line; std::getline(status, line);) {
      if (line.rfind(key, 0) == 0) found.insert(line.substr(key.size()));
    }
  }
  return found;
}

std::string variable(const char* name) {
  const char* found = std::getenv(name);
  return found == nullptr ? "unset" : found;
}

std::string first_core() {
  const std::string mask = *each_mask().begin();
  return mask.substr(0, mask.find_first_of(",-"));
}

int niceness() {
  return ::getpriority(PRIO_PROCESS, 0);
}

TEST(RunSettings, LeaveEverythingAsItIsWithoutAWish) {
  const auto masks_before = each_mask();
  const RunSettings settings{ComputeOptions{}};
  EXPECT_TRUE(settings.applied().empty());
  EXPECT_EQ(each_mask(), masks_before);
}

TEST(RunSettings, AreInForceForThreadsThatAreStartedAndUndoneAtTheEnd) {
  const TinyDataset data{400};
  const auto masks_before = each_mask();
  const std::string omp = variable("OMP_NUM_THREADS"), mkl = variable("MKL_NUM_THREADS"),
                    openblas = variable("OPENBLAS_NUM_THREADS");
  const int niceness_before = niceness();
  Recipe recipe = data.recipe();
  recipe.compute.affinity = first_core();
  recipe.compute.child_threads = 3;
  if (niceness_before >= 0) recipe.compute.niceness = niceness_before;  // Raised, it could not always be undone.
  recipe.data.num_workers = 2;
  {
    const RunSettings settings{recipe.compute};
    TrainingJob job{recipe, detect_machine()};
    job.run(3);
    EXPECT_EQ(each_mask(), std::set<std::string>{first_core()});
    EXPECT_EQ(detect_machine().cores_usable, 1);
    EXPECT_EQ(variable("OMP_NUM_THREADS"), "3");
    for (const Applied& applied : settings.applied()) EXPECT_EQ(applied.applied, applied.requested) << applied.key;
    EXPECT_EQ(settings.applied().front().key, "compute.affinity");
  }
  EXPECT_EQ(each_mask(), masks_before);
  EXPECT_EQ(niceness(), niceness_before);
  EXPECT_EQ(variable("OMP_NUM_THREADS"), omp);
  EXPECT_EQ(variable("MKL_NUM_THREADS"), mkl);
  EXPECT_EQ(variable("OPENBLAS_NUM_THREADS"), openblas);
}

TEST(RunSettings, OfCoresThatAreNotThereChangeNothing) {
  const auto masks_before = each_mask();
  const std::string omp = variable("OMP_NUM_THREADS");
  ComputeOptions compute;
  compute.child_threads = 3;
  compute.affinity = "8191";
  const std::string said = error_of(ErrorCode::invalid_argument, [&] { const RunSettings settings{compute}; });
  EXPECT_THAT(said, HasSubstr("affinity"));
  EXPECT_THAT(said, HasSubstr("8191"));
  EXPECT_EQ(each_mask(), masks_before);
  EXPECT_EQ(variable("OMP_NUM_THREADS"), omp);
}

TEST(Training, OfManyMoreThreadsThanCoresSaysSoOnceWithTheNumbersAndAutomaticOnesDoNot) {
  const TinyDataset data{400};
  Recipe recipe = data.recipe();
  recipe.data.num_workers = 8;
  Machine machine = detect_machine();
  machine.cores_usable = 2;
  const Training crowded{recipe, machine};
  ASSERT_EQ(crowded.remarks().size(), 1U);
  EXPECT_THAT(crowded.remarks()[0], HasSubstr("8 loader workers and 1 compute thread share 2 usable cores"));
  recipe.data.num_workers = AUTOTUNE;
  const Training automatic{recipe, machine};
  EXPECT_TRUE(automatic.remarks().empty());
}

}  // namespace
}  // namespace headrace
