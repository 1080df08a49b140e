#include "engine/assembly/process_settings.h"

#include <gtest/gtest.h>

#include <string_view>
#include <vector>

#include "app/knobs/knob.h"

namespace headrace {
namespace {

TEST(ProcessSettings, TellWhatTheyApplied) {
  Recipe recipe;
  recipe.compute.allocator = Allocator::system;
  for (const ProcessSetting& setting : all_process_settings()) {
    const Applied applied = setting.apply(recipe);
    EXPECT_EQ(applied.key, setting.key);
    EXPECT_EQ(applied.applied, applied.requested) << applied.reason;
  }
}

TEST(ProcessSettings, AreTheKnobsOfComputeButForThoseOfThreads) {
  std::vector<std::string_view> wanted, found;
  for (const Knob& knob : all_knobs()) {
    // Training applies how many threads there are, and a process starts with how they wait.
    const bool is_of_threads = knob.divides_cores || knob.switches == Switches::new_process;
    if (knob.key.starts_with("compute.") && !is_of_threads) wanted.push_back(knob.key);
  }
  for (const ProcessSetting& setting : all_process_settings()) found.push_back(setting.key);
  EXPECT_EQ(found, wanted);
}

}  // namespace
}  // namespace headrace
