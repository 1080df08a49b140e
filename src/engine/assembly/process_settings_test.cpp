#include "engine/assembly/process_settings.h"

#include <gtest/gtest.h>

#include <vector>

#include "app/knobs/knob.h"

namespace headrace {
namespace {

TEST(ProcessSettings, AreAppliedAndReadBack) {
  const Settings before = process_settings();
  ASSERT_TRUE(before.contains("compute.allocator"));
  for (const auto& [key, value] : before) {
    const Applied applied = apply_process_setting(key, value);
    EXPECT_EQ(applied.key, key);
    EXPECT_EQ(applied.applied, applied.requested) << applied.reason;
  }
  EXPECT_EQ(process_settings(), before);
  EXPECT_THROW(apply_process_setting("train.precision", "\"bf16\""), Error);
  EXPECT_THROW(apply_process_setting("compute.allocator", "\"heap\""), Error);
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
