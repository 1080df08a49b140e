// What is said of, and made of, names that earlier versions had.
#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <headrace/error.h>
#include <headrace/option_fields.h>
#include <headrace/option_text.h>

#include <string>
#include <utility>

#include "app/recipe/recipe.h"
#include "core/base/error_of.h"

namespace headrace {
namespace {

using testing::HasSubstr;

std::string said_of(const std::string& key) {
  Recipe recipe;
  const auto fields = fields_of(recipe);
  return advice_on_key(fields, key);
}

TEST(RetiredNames, OfARecipeAreToldWithWhatToWriteNow) {
  EXPECT_EQ(said_of("data.threads"), ", which is now data.num_workers");
  EXPECT_EQ(said_of("train.clip_norm"), ", which is now train.max_grad_norm");
  EXPECT_EQ(said_of("optimizer.beta2"), ", which is now optimizer.betas = [beta1, beta2]");
  EXPECT_EQ(said_of("schedule"), ", which is now lr_scheduler");
  EXPECT_EQ(said_of("schedule.gamma"), ", which is now lr_scheduler.gamma");
  EXPECT_EQ(said_of("lr_scheduler.step_epochs"), ", which is now lr_scheduler.step_size");
  EXPECT_EQ(said_of("schedule.final_fraction"), ", which is now lr_scheduler.eta_min = final_fraction * optimizer.lr");
  EXPECT_EQ(said_of("optimizer.implementation"),
            ", which is now optimizer.fused = true (for \"fused\"), or optimizer.foreach = true (for \"foreach\"), or "
            "optimizer.fused = false (for \"plain\")");
}

TEST(RetiredNames, BesideThoseOfTodayAreRefusedByTheirLine) {
  Recipe recipe;
  const std::string text = "optimizer.lr = 1e-3\noptimizer.rate = 1e-2\n";
  EXPECT_EQ(error_of(ErrorCode::invalid_argument, [&] { read_toml(fields_of(recipe), text, "old.toml"); }),
            "old.toml:2: unknown key optimizer.rate, which is now optimizer.lr");
}

TEST(RetiredNames, OfSchedulesAreRefusedWithTorchsNames) {
  const std::pair<const char*, const char*> names[] = {
      {"constant", "none"}, {"cosine", "CosineAnnealingLR"}, {"step", "StepLR"}, {"multi_step", "MultiStepLR"}};
  for (const auto& [name, now] : names) {
    Recipe recipe;
    const std::string text = fmt::format("lr_scheduler.name = '{}'", name);
    EXPECT_THAT(error_of(ErrorCode::invalid_argument, [&] { read_toml(fields_of(recipe), text, "old.toml"); }),
                testing::AllOf(testing::StartsWith("old.toml:1: lr_scheduler.name must be none | ConstantLR | "),
                               testing::EndsWith(fmt::format("found \"{}\", which is now \"{}\"", name, now))));
  }
  LrSchedulerOptions options;  // As keywords of Python's.
  EXPECT_THAT(error_of(ErrorCode::invalid_argument,
                       [&] { field_named(fields_of(options), "name").set(std::string("cosine")); }),
              HasSubstr("which is now \"CosineAnnealingLR\""));
}

TEST(RetiredNames, OfKeywordsAreToldWithoutTheirTables) {
  DataOptions options;
  EXPECT_EQ(advice_on_key(fields_of(options), "threads"), ", which is now num_workers");
  EXPECT_EQ(advice_on_key(fields_of(options), "workers"), ", which is now num_workers with worker_type = \"process\"");
  EXPECT_EQ(advice_on_key(fields_of(options), "batch"), ", did you mean batch_size?");
}

TEST(RetiredNames, OfALedgerBecomeThoseOfToday) {
  using Setting = std::pair<std::string, std::string>;
  EXPECT_EQ(current_setting("data.threads", "2"), (Setting{"data.num_workers", "2"}));
  EXPECT_EQ(current_setting("optimizer.implementation", "\"foreach\""), (Setting{"optimizer.foreach", "true"}));
  EXPECT_EQ(current_setting("optimizer.implementation", "\"plain\""), (Setting{"optimizer.fused", "false"}));
  EXPECT_EQ(current_setting("schedule.name", "\"step\""), (Setting{"lr_scheduler.name", "\"StepLR\""}));
  EXPECT_EQ(current_setting("lr_scheduler.name", "\"constant\""), (Setting{"lr_scheduler.name", "\"none\""}));
  EXPECT_EQ(current_setting("optimizer.name", "\"step\""), (Setting{"optimizer.name", "\"step\""}));
  EXPECT_EQ(current_setting("schedule.final_fraction", "0.1"), (Setting{"schedule.final_fraction", "0.1"}))
      << "no learning rate";
  EXPECT_EQ(current_setting("optimizer.beta1", "0.8"), (Setting{"optimizer.beta1", "0.8"})) << "no list";
  EXPECT_EQ(current_setting("data.batch_size", "2"), (Setting{"data.batch_size", "2"}));
  EXPECT_EQ(current_name("schedules.name"), "schedules.name");
}

TEST(RetiredNames, HaveSuccessorsThatARecipeKnows) {
  Recipe recipe;
  const auto fields = fields_of(recipe);
  constexpr const char* kKeys[] = {
#define RETIRED_KEY(key, ...) key,
#define RETIRED_TABLE(table, successor) table ".name",
#define RETIRED_VALUE(...)
#define RETIRED_WORD(word, successor)
#include "core/options/retired_names.inc"
#undef RETIRED_KEY
#undef RETIRED_TABLE
#undef RETIRED_VALUE
#undef RETIRED_WORD
  };
  for (const char* key : kKeys) {
    EXPECT_NO_THROW(field_named(fields, current_name(key))) << key;
    EXPECT_THROW(field_named(fields, key), Error) << key;
  }
}

}  // namespace
}  // namespace headrace
