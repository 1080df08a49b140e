#include "app/cli/compare.h"

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <headrace/error.h>

#include <filesystem>
#include <fstream>
#include <map>
#include <nlohmann/json.hpp>

#include "app/cli/arguments.h"
#include "app/cli/compare_arms.h"
#include "app/cli/compare_run.h"
#include "app/cli/test_runs.h"
#include "core/base/error_of.h"
#include "core/exec/stop.h"

namespace headrace {
namespace {

namespace fs = std::filesystem;
using Json = nlohmann::ordered_json;
using testing::HasSubstr;

Invocation parsed(std::vector<std::string> words) {
  words.insert(words.begin(), {"headrace", "compare"});
  return std::get<Invocation>(parse_arguments(words, "not built"));
}

std::string refusal(std::vector<std::string> words) {
  words.insert(words.begin(), {"headrace", "compare"});
  return error_of(ErrorCode::invalid_argument, [&] { parse_arguments(words, "not built"); });
}

TEST(CompareArguments, WordsBehindTheDashesAreForWhatIsCompared) {
  const Invocation invocation = parsed({"a.py", "b.py", "--pairs", "12", "--tolerance=loss=0.1,b=2e-1", "--metrics",
                                        "loss,b", "--absolute", "c", "--history", "h.db", "--", "--pairs", "3", "x"});
  const CompareArguments& compare = invocation.compare;
  EXPECT_EQ(compare.old_arm, "a.py");
  EXPECT_EQ(compare.new_arm, "b.py");
  EXPECT_EQ(compare.words, (std::vector<std::string>{"--pairs", "3", "x"}));
  EXPECT_EQ(compare.pairs, 12);
  EXPECT_EQ(compare.choices.only, (std::set<std::string>{"loss", "b"}));
  EXPECT_EQ(compare.choices.absolute, (std::set<std::string>{"c"}));
  EXPECT_EQ(compare.choices.tolerances, (std::map<std::string, double>{{"loss", 0.1}, {"b", 0.2}}));
  EXPECT_EQ(compare.history, "h.db");
  EXPECT_EQ(parsed({"a.py", "b.py", "--html", "c.html"}).compare.html, "c.html");
  EXPECT_EQ(compare.python, "python3");
  EXPECT_EQ(parsed({"a.py", "--aa", "--", "x"}).compare.words, std::vector<std::string>{"x"});
}

TEST(CompareArguments, WrongOnesAreNamedWithTheirRange) {
  EXPECT_THAT(refusal({}), HasSubstr("old is required"));
  EXPECT_THAT(refusal({"a.py"}), HasSubstr("NEW must be there, or --aa in its place"));
  EXPECT_THAT(refusal({"a.py", "b.py", "--aa"}), HasSubstr("NEW must be left out with --aa"));
  EXPECT_THAT(refusal({"a", "b", "--pairs", "0"}), HasSubstr("--pairs must be 1 to 10000, found \"0\""));
  EXPECT_THAT(refusal({"a", "b", "--limit-s=0"}), HasSubstr("--limit-s must be a number above 0"));
  EXPECT_THAT(refusal({"a", "b", "--false-discovery-rate", "1"}), HasSubstr("above 0 and below 1"));
  EXPECT_THAT(refusal({"a", "b", "--tolerance", "loss"}), HasSubstr("--tolerance must be METRIC=NUMBER"));
  EXPECT_THAT(refusal({"a", "b", "--tolerance", "loss=nan"}), HasSubstr("--tolerance must be METRIC=NUMBER"));
  EXPECT_THAT(refusal({"a", "b", "--tolerance", "loss=2"}), HasSubstr("the tolerance of loss"));
  EXPECT_THAT(refusal({"a", "b", "--metrics", "a,,b"}), HasSubstr("--metrics must be names"));
  EXPECT_THAT(refusal({"a", "b", "--histroy", "x"}), HasSubstr("did you mean --history?"));
}

// Programs that write figures without a clock.
class ComparedPrograms : public Folder {
 protected:
  std::string program(const std::string& name, const std::string& script) const {
    const fs::path path = folder_ / name;
    std::ofstream(path) << "#!/bin/sh\n" << script << "\n";
    fs::permissions(path, fs::perms::owner_all);
    return path.string();
  }
  // Writes this line as its result.
  std::string telling(const std::string& name, const std::string& line) const {
    return program(name, "echo '" + line + "' > \"$HEADRACE_RESULT\"");
  }
  static ComparedCommand command(std::vector<std::string> arguments) {
    return {.name = "NEW (x)", .arguments = std::move(arguments), .folder = {}};
  }
  static int compare(const std::vector<std::string>& words) {
    Invocation invocation = parsed(words);
    invocation.quiet = true;
    Console console{invocation};
    return run_compare(invocation, console);
  }
  std::string read(const std::string& name) const { return Folder::read(folder_ / name); }
  std::string at(const std::string& name) const { return (folder_ / name).string(); }
};

TEST_F(ComparedPrograms, ARunTellsItsFiguresOrThoseOfItsFolder) {
  EXPECT_EQ(run_arm(command({telling("a", "{\"step_s\": 2}")}), 60)->metrics.at("step_p50_s"), 2);
  const std::string trains =
      program("b",
              "mkdir -p \"$1\" && echo '{\"format\": \"headrace-train\", \"version\": 1, \"training\": "
              "{\"seconds\": 7, \"epochs\": []}}' > \"$1/result.json\"");
  EXPECT_EQ(run_arm(command({trains, "{out}"}), 60)->metrics.at("train_s"), 7);
}

TEST_F(ComparedPrograms, ARunThatTellsNothingHasItsWallTimeFromOutside) {
  const auto figures = run_arm(command({program("a", "exit 0")}), 60);
  EXPECT_GT(figures->metrics.at("wall_s"), 0);
  EXPECT_TRUE(figures->seen_from_outside.contains("wall_s"));
}

TEST_F(ComparedPrograms, MemoryIsSeenOfARunThatLastsLongEnough) {
  const auto figures = run_arm(command({program("a", "sleep 0.3")}), 60);
  EXPECT_GT(figures->metrics.at("peak_memory_bytes"), 0);
}

TEST_F(ComparedPrograms, ARunThatFailsIsNamedWithItsLastLine) {
  const auto failure = [&](const ComparedCommand& failing, double limit_s) {
    return error_of(ErrorCode::io, [&] { run_arm(failing, limit_s); });
  };
  EXPECT_EQ(failure(command({program("a", "echo first; echo no such layer >&2; exit 3")}), 60),
            "compare: NEW (x) ended with exit status 3; its last line: no such layer");
  EXPECT_THAT(failure(command({at("nothing")}), 60), HasSubstr("ended with exit status 127; its last line: "));
  EXPECT_THAT(failure(command({program("b", "kill -SEGV $$")}), 60),
              HasSubstr("was killed by SIGSEGV; its last line: no output"));
  EXPECT_THAT(failure(command({program("c", "echo slow; sleep 1000")}), 0.2),
              HasSubstr("took longer than 0.2 s (--limit-s)"));
  EXPECT_THAT(error_of(ErrorCode::corrupt_data, [&] { run_arm(command({telling("d", "{\"a\": NaN}")}), 60); }),
              HasSubstr("the result of NEW (x), line 1 is no JSON object"));
}

TEST_F(ComparedPrograms, ASignalThatAsksToStopEndsARun) {
  request_stop(15);
  const auto figures = run_arm(command({program("a", "sleep 1000")}), 60);
  request_stop(0);
  EXPECT_FALSE(figures);
}

TEST_F(ComparedPrograms, AreToldApartByWhatLiesThere) {
  const auto arm = [&](const std::string& name, std::vector<std::string> words = {}) {
    CompareArguments arguments;
    arguments.words = std::move(words);
    return arm_of("NEW", at(name), arguments);
  };
  write(folder_ / "r.toml", "seed = 1\n");
  write(folder_ / "s.py", "pass\n");
  write(folder_ / "runs/1/result.json", "{}");
  fs::create_directories(folder_ / "build" / "bin");
  program("build/bin/headrace", "exit 0");
  EXPECT_EQ(arm("r.toml").kind, ArmKind::recipe);
  EXPECT_THAT(arm("r.toml").command.arguments,
              testing::IsSupersetOf({std::string("profile"), at("r.toml"), std::string("{out}")}));
  EXPECT_EQ(arm("s.py", {"x"}).command.arguments, (std::vector<std::string>{"python3", at("s.py"), "x"}));
  EXPECT_EQ(arm("runs").kind, ArmKind::stored);
  const ComparedArm build = arm("build", {"profile", "r.toml"});
  EXPECT_EQ(build.kind, ArmKind::program);
  EXPECT_THAT(build.command.arguments,
              testing::ElementsAre(at("build/bin/headrace"), "profile", "r.toml", "--out", "{out}", "--quiet"));
}

TEST_F(ComparedPrograms, ALabelTellsOneBuildFromAnother) {
  const auto label = [&] { return arm_of("NEW", at("s.py"), {}).label; };
  std::ofstream(folder_ / "s.py") << "pass\n";
  const std::string before = label();
  EXPECT_EQ(label(), before);
  std::ofstream(folder_ / "s.py") << "pass  # other\n";
  EXPECT_NE(label(), before);
}

TEST_F(ComparedPrograms, WhatIsNothingIsNamed) {
  EXPECT_THAT(error_of(ErrorCode::not_found, [&] { arm_of("OLD", at("nothing"), {}); }),
              HasSubstr("OLD is \"" + at("nothing") + "\", which is no recipe"));
  EXPECT_THAT(error_of(ErrorCode::not_found, [&] { arm_of("OLD", at("r.toml"), {}); }), HasSubstr("r.toml"));
  EXPECT_THAT(error_of(ErrorCode::not_found, [&] { arm_of("NEW", folder_.string(), {}); }),
              HasSubstr("which has no result.json"));
}

TEST_F(ComparedPrograms, ASlowerProgramIsRegressedWithExitCode3AndNamedEverywhere) {
  const std::string before = telling("before", "{\"step_s\": 1, \"stages\": {\"forward\": 0.6, \"backward\": 0.4}}");
  const std::string after = telling("after", "{\"step_s\": 1.1, \"stages\": {\"forward\": 0.7, \"backward\": 0.4}}");
  EXPECT_EQ(compare({before, after, "--metrics", "step_p50_s", "--pairs", "20", "--json", at("c.json"), "--junit",
                     at("c.xml"), "--markdown", at("c.md"), "--save", at("saved"), "--order-seed", "1"}),
            kExitVerdict);
  const Json document = Json::parse(read("c.json"));
  EXPECT_EQ(document["metrics"][0]["verdict"], "regressed");
  EXPECT_NEAR(document["metrics"][0]["change"]["median"].get<double>(), 0.1, 1e-6);
  EXPECT_EQ(document["stages"][0]["name"], "forward");
  EXPECT_LE(document["pairs"].get<int>(), 12) << "it ends when it is decided";
  EXPECT_THAT(read("c.xml"), HasSubstr("name=\"step_p50_s\"><failure"));
  EXPECT_THAT(read("c.md"), HasSubstr("headrace compare: failed"));
  EXPECT_EQ(compare({at("saved/old.json"), at("saved/new.json"), "--metrics", "step_p50_s"}), kExitVerdict);
}

TEST_F(ComparedPrograms, TheSameProgramIsEquivalent) {
  const std::string same = telling("same", "{\"step_s\": 1}");
  EXPECT_EQ(compare({same, same, "--metrics", "step_p50_s", "--json", at("c.json")}), kExitDone);
  EXPECT_EQ(Json::parse(read("c.json"))["conclusion"], "NEW and OLD are equivalent");
}

TEST_F(ComparedPrograms, AWrongResultIsAFailureHoweverFast) {
  const std::string before = telling("before", "{\"step_s\": 1, \"outputs\": [1, 2]}");
  const std::string after = telling("after", "{\"step_s\": 0.5, \"outputs\": [1, 2.1]}");
  EXPECT_EQ(compare({before, after, "--metrics", "step_p50_s", "--json", at("c.json")}), kExitVerdict);
  EXPECT_THAT(Json::parse(read("c.json"))["conclusion"].get<std::string>(), HasSubstr("NEW is wrong"));
}

TEST_F(ComparedPrograms, AResultThatIsMissingIsAFailure) {
  const std::string before = telling("before", "{\"step_s\": 1, \"accuracy\": 0.9}");
  const std::string after = telling("after", "{\"step_s\": 1}");
  EXPECT_EQ(compare({before, after, "--junit", at("c.xml")}), kExitVerdict);
  EXPECT_THAT(read("c.xml"), HasSubstr("name=\"accuracy\"><failure message=\"missing"));
}

TEST_F(ComparedPrograms, WhatDoesNotRunIsAnErrorInJunitToo) {
  const std::string before = telling("before", "{\"step_s\": 1}"), after = program("after", "echo broken; exit 1");
  EXPECT_THAT(error_of(ErrorCode::io,
                       [&] {
                         compare({before, after, "--junit", at("c.xml"), "--markdown", at("c.md")});
                       }),
              HasSubstr("its last line: broken"));
  EXPECT_THAT(read("c.xml"), HasSubstr("errors=\"1\""));
  EXPECT_THAT(read("c.md"), HasSubstr("its last line: broken"));
}

TEST_F(ComparedPrograms, ThePageHasTheVerdictOrWhyThereIsNone) {
  const std::string before = telling("before", "{\"step_s\": 1}"), after = telling("after", "{\"step_s\": 1.1}");
  EXPECT_EQ(compare({before, after, "--metrics", "step_p50_s", "--html", at("c.html")}), kExitVerdict);
  EXPECT_THAT(read("c.html"), HasSubstr("<h1>NEW is worse than OLD</h1>\n<p class=\"lede\">step_p50_s"));
  EXPECT_THAT(read("c.html"), HasSubstr("class=\"pairs-chart\""));
  const std::string broken = program("broken", "echo no such layer; exit 1");
  error_of(ErrorCode::io, [&] { compare({before, broken, "--html", at("c.html")}); });
  EXPECT_THAT(read("c.html"), HasSubstr("<h1>Nothing was compared</h1>"));
  EXPECT_THAT(read("c.html"), HasSubstr("no such layer"));
}

TEST_F(ComparedPrograms, WhatIsWrittenForOthersHasNoPassword) {
  const std::string same = telling("same", "{\"step_s\": 1}");
  compare({same, same, "--pairs", "2", "--json", at("c.json"), "--html", at("c.html"), "--markdown", at("c.md"),
           "--save", at("saved"), "--", "--data=https://me:swordfish@host/a?key=swordfish"});
  for (const char* file : {"c.json", "c.html", "c.md", "saved/old.json"}) {
    EXPECT_THAT(read(file), testing::AllOf(HasSubstr("https://host/a"), testing::Not(HasSubstr("swordfish")))) << file;
  }
}

// In the place of a Python: it runs a script of sh, and as `-m headrace profile --out DIR --quiet SCRIPT` also takes
// the script's figures from a file beside it.
class ComparedScripts : public ComparedPrograms {
 protected:
  std::string python() const {
    return program("python", "if [ \"$1\" = -m ]; then echo x >> " + at("profiled") +
                                 "; mkdir -p \"$5\"; cp \"$7.profile\" \"$5/profile.json\" || exit 1; shift 6; fi\n"
                                 ". \"$1\"");
  }
  std::string script(const std::string& name, double forward_s) const {
    std::ofstream(folder_ / name) << fmt::format("echo '{{\"step_s\": {}}}' > \"$HEADRACE_RESULT\"\n", forward_s + 0.5);
    std::ofstream(folder_ / (name + ".profile")) << fmt::format(
        R"({{"format": "headrace-profile", "version": 1, "time_split": {{"steps": 2, "data_wait_s": 0, "transfer_s": 0,
        "forward_s": {}, "backward_s": 1, "optimizer_s": 0, "other_s": 0, "step_s": [{}, {}]}}}})",
        2 * forward_s, forward_s + 0.5, forward_s + 0.5);
    return at(name);
  }
  int compare_scripts(const std::string& before, const std::string& after) const {
    return compare({before, after, "--python", python(), "--metrics", "step_p50_s", "--json", at("c.json")});
  }
};

TEST_F(ComparedScripts, WhichPartHasChangedIsFoundInOneFurtherPairBehindTheVerdict) {
  EXPECT_EQ(compare_scripts(script("a.py", 0.5), script("b.py", 0.6)), kExitVerdict);
  const Json document = Json::parse(read("c.json"));
  EXPECT_EQ(document["stages_of"], "one further pair");
  EXPECT_EQ(document["stages"][0]["name"], "forward");
  EXPECT_NEAR(document["stages"][0]["share"]["median"].get<double>(), 0.1, 1e-9);
  EXPECT_EQ(document["stages"][0]["changed"], false) << "one pair proves nothing";
  EXPECT_EQ(read("profiled"), "x\nx\n");
  EXPECT_THAT(document["remarks"].dump(), HasSubstr("headrace profile"));
}

TEST_F(ComparedScripts, NothingIsLookedForWhereNothingHasChangedOrTheRunsTell) {
  EXPECT_EQ(compare_scripts(script("a.py", 0.5), script("b.py", 0.5)), kExitDone);
  EXPECT_TRUE(Json::parse(read("c.json"))["stages_of"].is_null());
  for (const auto& [name, forward_s] : {std::pair{"a.py", 0.5}, std::pair{"b.py", 0.6}}) {
    std::ofstream(folder_ / name) << fmt::format(
        "echo '{{\"step_s\": {}, \"stages\": {{\"forward\": {}}}}}' > \"$HEADRACE_RESULT\"\n", forward_s, forward_s);
  }
  EXPECT_EQ(compare_scripts(at("a.py"), at("b.py")), kExitVerdict);
  EXPECT_EQ(Json::parse(read("c.json"))["stages_of"], "pairs");
  EXPECT_FALSE(fs::exists(at("profiled")));
}

TEST_F(ComparedScripts, WherePartsCannotBeMeasuredTheVerdictStandsAndSaysWhy) {
  const std::string before = script("a.py", 0.5), after = script("b.py", 0.6);
  fs::remove(at("b.py.profile"));
  EXPECT_EQ(compare_scripts(before, after), kExitVerdict);
  const Json document = Json::parse(read("c.json"));
  EXPECT_EQ(document["metrics"][0]["verdict"], "regressed");
  EXPECT_TRUE(document["stages"].empty());
  EXPECT_THAT(document["remarks"].dump(), HasSubstr("which part of a step has changed is unavailable: compare: NEW ("));
}

// One percent more at each of ten builds, each within the tolerance.
TEST_F(ComparedPrograms, BuildsThatCreepAreFoundByTheirHistory) {
  double seconds = 1;
  int status = kExitDone, builds = 0;
  std::string before = telling("b0", fmt::format("{{\"step_s\": {}}}", seconds));
  while (status == kExitDone && builds < 10) {
    seconds *= 1.01;
    const std::string after = telling(fmt::format("b{}", ++builds), fmt::format("{{\"step_s\": {}}}", seconds));
    status = compare({before, after, "--metrics", "step_p50_s", "--history", at("h.db"), "--json", at("c.json")});
    before = after;
  }
  EXPECT_EQ(status, kExitVerdict);
  EXPECT_GT(builds, 1) << "no build by itself";
  const Json drift = Json::parse(read("c.json"))["drifts"][0];
  EXPECT_EQ(drift["metric"], "step_p50_s");
  EXPECT_EQ(drift["builds"], builds);
}

TEST_F(ComparedPrograms, AgainstItselfTellsFalseAlarms) {
  const std::string same = telling("same", "{\"step_s\": 1}");
  EXPECT_EQ(compare({same, "--aa", "--metrics", "step_p50_s", "--pairs", "12", "--json", at("c.json")}), kExitDone);
  const Json document = Json::parse(read("c.json"));
  EXPECT_EQ(document["pairs"], 12);
  EXPECT_EQ(document["no_change"]["comparisons"], 1000);
  EXPECT_EQ(document["no_change"]["regressed"], 0);
  EXPECT_EQ(document["5_percent_slower"]["regressed"], 1000);
}

TEST_F(ComparedPrograms, AHistoryThatIsNoneIsRefusedBeforeAnythingRuns) {
  std::ofstream(folder_ / "h.db") << "notes\n";
  const std::string touching = program("touching", "touch " + at("was_run"));
  EXPECT_THAT(error_of(ErrorCode::corrupt_data,
                       [&] {
                         compare({touching, touching, "--history", at("h.db")});
                       }),
              HasSubstr("h.db"));
  EXPECT_FALSE(fs::exists(at("was_run")));
}

TEST_F(ComparedPrograms, ADryRunRunsNothing) {
  const std::string touching = program("touching", "touch " + at("was_run"));
  EXPECT_EQ(compare({touching, touching, "--dry-run"}), kExitDone);
  EXPECT_FALSE(fs::exists(at("was_run")));
}

TEST_F(ComparedPrograms, WhatCannotBeComparedIsRefusedInOneLine) {
  const std::string runs = telling("runs", "{\"step_s\": 1}"), other = telling("other", "{\"loss\": 1}");
  std::ofstream(folder_ / "one.jsonl") << "{\"step_s\": 1}\n";
  const auto refused = [&](const std::vector<std::string>& words) {
    return error_of(ErrorCode::invalid_argument, [&] { compare(words); });
  };
  EXPECT_THAT(refused({at("one.jsonl"), runs}), HasSubstr("OLD is stored runs and NEW is a program"));
  EXPECT_THAT(refused({at("one.jsonl"), at("one.jsonl")}), HasSubstr("holds 1 run"));
  EXPECT_THAT(refused({at("one.jsonl"), at("one.jsonl"), "--history", at("h.db")}),
              HasSubstr("--history is for pairs"));
  EXPECT_THAT(refused({at("one.jsonl"), "--aa"}), HasSubstr("--aa runs OLD against itself"));
  EXPECT_THAT(refused({runs, other, "--metrics", "step_p95_s"}), HasSubstr("no metric in common of those asked for"));
}

}  // namespace
}  // namespace headrace
