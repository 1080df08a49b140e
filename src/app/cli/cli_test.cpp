#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <headrace/error.h>
#include <headrace/live_tuner.h>
#include <headrace/option_fields.h>
#include <headrace/options/train.h>
#include <headrace/source.h>
#include <headrace/trace.h>
#include <pty.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include <cstdlib>
#include <fstream>
#include <limits>
#include <map>
#include <nlohmann/json.hpp>
#include <regex>

#include "app/cli/arguments.h"
#include "app/cli/console.h"
#include "app/cli/doctor.h"
#include "app/cli/environment.h"
#include "app/cli/explain.h"
#include "app/cli/run_folder.h"
#include "app/cli/safetensors_check.h"
#include "app/cli/torch_folder.h"
#include "core/base/error_of.h"
#include "core/base/hash.h"
#include "core/base/temporary_folder.h"
#include "core/hardware/machine.h"

namespace headrace {
namespace {

namespace fs = std::filesystem;
using Json = nlohmann::ordered_json;
using testing::HasSubstr;

class Folder : public testing::Test {
 protected:
  static void write(const fs::path& path, const std::string& text) {
    fs::create_directories(path.parent_path());
    std::ofstream(path, std::ios::binary) << text;
  }
  static std::string read(const fs::path& path) {
    std::ifstream file(path, std::ios::binary);
    return {std::istreambuf_iterator<char>(file), {}};
  }

  const TemporaryFolder temporary_;
  const fs::path folder_ = temporary_.path();
};

// ---- Arguments ----

Invocation parsed(std::vector<std::string> words) {
  words.insert(words.begin(), "headrace");
  return std::get<Invocation>(parse_arguments(words, "not built"));
}

Answer answer(std::vector<std::string> words) {
  words.insert(words.begin(), "headrace");
  return std::get<Answer>(parse_arguments(words, "not built"));
}

std::string refusal(std::vector<std::string> words) {
  words.insert(words.begin(), "headrace");
  return error_of(ErrorCode::invalid_argument, [&] { parse_arguments(words, "not built"); });
}

TEST(Arguments, AreReadInAnyOrderAndBothForms) {
  const Invocation train = parsed({"train", "--data.batch_size", "512", "r.toml", "--train.epochs=2", "--resume",
                                   "--quiet", "--json", "-", "--out=a b", "--dry-run", "--log-level", "debug"});
  EXPECT_EQ(train.verb, "train");
  EXPECT_EQ(train.recipe, "r.toml");
  EXPECT_THAT(train.flags, testing::UnorderedElementsAre(testing::Pair("data.batch_size", "512"),
                                                         testing::Pair("train.epochs", "2")));
  EXPECT_EQ(train.json, "-");
  EXPECT_EQ(train.out, "a b");
  EXPECT_TRUE(train.resume && train.quiet && train.dry_run);
  EXPECT_EQ(train.log_level, LogLevel::debug);
  EXPECT_EQ(train.argv.size(), 14U);
}

TEST(Arguments, TheLastOfTwoEqualFlagsCounts) {
  const Invocation train = parsed({"train", "r.toml", "--seed", "1", "--seed=2", "--json", "a", "--json", "b"});
  EXPECT_THAT(train.flags, testing::ElementsAre(testing::Pair("seed", "2")));
  EXPECT_EQ(train.json, "b");
}

TEST(Arguments, ValuesOfRecipeKeysArriveAsWritten) {
  const Invocation tune = parsed({"tune", "r.toml", "--tune.planted", "[{name = 'a', on_ms = 2}]", "--optimizer.lr",
                                  "-1", "--data.transform.mean=0.1,0.2", "--tune.only="});
  EXPECT_THAT(tune.flags, testing::UnorderedElementsAre(testing::Pair("tune.planted", "[{name = 'a', on_ms = 2}]"),
                                                        testing::Pair("optimizer.lr", "-1"),
                                                        testing::Pair("data.transform.mean", "0.1,0.2"),
                                                        testing::Pair("tune.only", "")));
}

TEST(Arguments, FlagsOfOneVerb) {
  const Invocation eval = parsed({"eval", "r.toml", "--checkpoint", "c"});
  EXPECT_EQ(eval.checkpoint, "c");
  EXPECT_EQ(parsed({"profile", "r.toml"}).steps, 60);
  EXPECT_EQ(parsed({"profile", "r.toml", "--steps=7"}).steps, 7);
  EXPECT_EQ(parsed({"profile", "r.toml"}).trace_form, TraceForm::chrome);
  EXPECT_EQ(parsed({"profile", "r.toml", "--trace-form", "perfetto"}).trace_form, TraceForm::perfetto);
  EXPECT_EQ(parsed({"explain", "--markdown"}).explain_form, ExplainForm::markdown);
  EXPECT_EQ(parsed({"explain", "--schema"}).explain_form, ExplainForm::schema);
  EXPECT_EQ(parsed({"explain", "r.toml", "seed"}).key, "seed");
  EXPECT_EQ(parsed({"explain", "data.batch_size"}).key, "data.batch_size");
  EXPECT_EQ(parsed({"explain", "data.batch_size"}).recipe, "");
  EXPECT_EQ(parsed({"explain", "data.batchsize"}).key, "data.batchsize");
  EXPECT_EQ(parsed({"explain", "absent.toml"}).recipe, "absent.toml");
  EXPECT_EQ(parsed({"doctor", "--out", "runs/x"}).recipe, "runs/x");
  EXPECT_EQ(parsed({"doctor"}).recipe, "");
}

TEST(Arguments, WrongOnesAreNamedWithTheNearest) {
  EXPECT_EQ(refusal({"trian"}), "unknown verb trian, did you mean train? (see headrace --help)");
  EXPECT_EQ(refusal({"--quiet", "train"}), "unknown flag --quiet where a verb was wanted (see headrace --help)");
  EXPECT_EQ(refusal({"train", "r.toml", "--data.batchsize", "3"}),
            "train: unknown flag --data.batchsize, did you mean --data.batch_size? (see headrace train --help)");
  EXPECT_THAT(refusal({"train", "r.toml", "--batch_size=3"}), HasSubstr("did you mean --data.batch_size?"));
  EXPECT_THAT(refusal({"train", "r.toml", "--optimizer.learning_rate=3"}), HasSubstr("did you mean --optimizer.lr?"));
  EXPECT_THAT(refusal({"train", "r.toml", "--eval.xyz=3"}),
              HasSubstr("--eval.xyz; the keys of eval are split, at_least"));
  EXPECT_THAT(refusal({"train", "r.toml", "--resum"}), HasSubstr("did you mean --resume?"));
  EXPECT_THAT(refusal({"doctor", "--seed", "3"}), HasSubstr("unknown flag --seed"));
  EXPECT_THAT(refusal({"tune", "r.toml", "--resume"}), HasSubstr("unknown flag --resume"));
  EXPECT_THAT(refusal({"train"}), HasSubstr("recipe is required"));
  EXPECT_THAT(refusal({"eval", "r.toml"}), HasSubstr("--checkpoint is required"));
  EXPECT_THAT(refusal({"train", "a", "b"}), HasSubstr("b"));
  EXPECT_THAT(refusal({"train", "r.toml", "-x"}), HasSubstr("-x"));
  EXPECT_THAT(refusal({"train", "r.toml", "--out"}), HasSubstr("--out"));
  EXPECT_THAT(refusal({"train", "r.toml", "--log-level", "loud"}), HasSubstr("--log-level"));
  EXPECT_THAT(refusal({"explain", "--markdown", "--schema"}), HasSubstr("excludes"));
  EXPECT_EQ(refusal({"profile", "r.toml", "--steps", "0"}), "--steps must be 1 to 100000, found \"0\"");
  EXPECT_EQ(refusal({"profile", "r.toml", "--steps", "9x"}), "--steps must be 1 to 100000, found \"9x\"");
  EXPECT_THAT(refusal({"profile", "r.toml", "--trace-form", "xml"}), HasSubstr("--trace-form"));
  EXPECT_THAT(refusal({"profile", "x.py"}), HasSubstr("python -m headrace profile x.py"));
  EXPECT_THAT(refusal({""}), HasSubstr("unknown verb"));
}

// Without the breaks of its lines.
std::string in_one_line(const std::string& text) {
  return std::regex_replace(text, std::regex{"\\s+"}, " ");
}

TEST(Arguments, HelpOfEveryVerbListsEveryRecipeKeyWithRangeAndDefault) {
  Recipe recipe;
  for (const char* verb : {"train", "eval", "profile", "tune", "explain"}) {
    const Answer help = answer({verb, "--help"});
    EXPECT_EQ(help.exit_code, 0);
    const std::string text = in_one_line(help.text);
    for (const Field& field : fields_of(recipe)) {
      EXPECT_THAT(text, HasSubstr("--" + field.key + " ")) << verb;
      EXPECT_THAT(text, HasSubstr(field.range)) << verb << " " << field.key;
    }
    EXPECT_THAT(help.text,
                HasSubstr("Samples in a batch.\n                                    1 to 65536, default 128\n"));
    EXPECT_THAT(help.text, HasSubstr("[data.transform]"));
    EXPECT_EQ(answer({"help", verb}).text, help.text);
  }
  EXPECT_THAT(answer({"doctor", "--help"}).text, testing::Not(HasSubstr("--seed")));
}

TEST(Arguments, NothingAtAllIsWrongUse) {
  EXPECT_EQ(answer({}).exit_code, 2);
  EXPECT_EQ(answer({"--help"}).exit_code, 0);
  EXPECT_EQ(answer({"--help"}).text, answer({}).text);
  EXPECT_THAT(answer({"--version"}).text, testing::StartsWith("headrace "));
  EXPECT_THAT(answer({"--version"}).text, HasSubstr("torch not built\n"));
}

// ---- Console ----

TEST(Duration, IsWrittenInTheUnitThatFits) {
  EXPECT_EQ(duration_text(0), "0.0 s");
  EXPECT_EQ(duration_text(12.34), "12.3 s");
  EXPECT_EQ(duration_text(59.94), "59.9 s");
  EXPECT_EQ(duration_text(59.96), "1 min 00 s");
  EXPECT_EQ(duration_text(245), "4 min 05 s");
  EXPECT_EQ(duration_text(3599.7), "1 h 00 min");
  EXPECT_EQ(duration_text(3720), "1 h 02 min");
  EXPECT_EQ(duration_text(std::numeric_limits<double>::quiet_NaN()), "unavailable");
}

TEST(Accuracy, IsShownWithTop5WhereThatIsKnown) {
  EXPECT_EQ(accuracy_text(0.91324, std::nullopt), "0.9132");
  EXPECT_EQ(accuracy_text(0.91324, 0.98711), "0.9132 (top 5: 0.9871)");
}

struct Said {
  std::string out, err;
};

template <class Action>
Said said(const Invocation& invocation, Action action) {
  testing::internal::CaptureStdout();
  testing::internal::CaptureStderr();
  {
    Console console{invocation};
    action(console);
  }
  return {testing::internal::GetCapturedStdout(), testing::internal::GetCapturedStderr()};
}

void say_everything(Console& console) {
  console.debug("d");
  console.info("i");
  console.progress("p 1");
  console.progress("p 2");
  console.warning("w");
  console.error("e\n\x1b[2Jf");
  console.result("r");
  console.json({{"a", std::numeric_limits<double>::infinity()}, {"b", "\xff"}});
}

TEST_F(Folder, ConsoleKeepsResultsApartFromWords) {
  const Said words = said({}, say_everything);
  EXPECT_EQ(words.out, "r\n");
  EXPECT_EQ(words.err, "i\nheadrace: warning: w\nheadrace: error: e ?[2Jf\n");  // Progress: after 30 s.
}

TEST_F(Folder, JsonOnStdoutSendsTheResultToStderr) {
  Invocation invocation;
  invocation.json = "-";
  const Said words = said(invocation, say_everything);
  EXPECT_EQ(words.out, "{\n  \"a\": null,\n  \"b\": \"\xEF\xBF\xBD\"\n}\n");
  EXPECT_THAT(words.err, testing::EndsWith("\nr\n"));
}

TEST_F(Folder, QuietLeavesWarningsErrorsAndJson) {
  Invocation invocation;
  invocation.quiet = true;
  invocation.json = folder_ / "a.json";
  const Said words = said(invocation, say_everything);
  EXPECT_EQ(words.out, "");
  EXPECT_EQ(words.err, "headrace: warning: w\nheadrace: error: e ?[2Jf\n");
  EXPECT_EQ(Json::parse(read(folder_ / "a.json"))["a"], nullptr);
}

TEST_F(Folder, LogLevelsHideWhatIsBelowThem) {
  Invocation invocation;
  invocation.log_level = LogLevel::error;
  EXPECT_EQ(said(invocation, say_everything).err, "headrace: error: e ?[2Jf\n");
  invocation.log_level = LogLevel::debug;
  EXPECT_THAT(said(invocation, say_everything).err, testing::StartsWith("headrace: debug: d\ni\n"));
}

TEST_F(Folder, TheLogHasEveryLineWithItsTime) {
  Invocation invocation;
  invocation.quiet = true;
  said(invocation, [&](Console& console) {
    console.log_to(folder_ / "log.txt");
    console.debug("one");
    console.warning("two");
  });
  EXPECT_THAT(read(folder_ / "log.txt"),
              testing::MatchesRegex(
                  "[-0-9]+ [:0-9]+ UTC  headrace: debug: one\n[-0-9]+ [:0-9]+ UTC  headrace: warning: two\n"));
}

TEST_F(Folder, JsonToADeviceDoesNotReplaceIt) {
  Invocation invocation;
  invocation.json = "/dev/null";
  said(invocation, [](Console& console) { console.json({{"a", 1}}); });
  EXPECT_TRUE(fs::is_character_file("/dev/null"));
  invocation.json = "/dev/full";
  EXPECT_THROW(said(invocation, [](Console& console) { console.json({{"a", 1}}); }), Error);
  testing::internal::GetCapturedStdout();
  testing::internal::GetCapturedStderr();
}

TEST(Progress, OnATerminalIsReplacedInPlaceAndRemoved) {
  int master = -1, slave = -1;
  winsize size{};
  size.ws_col = 20;
  ASSERT_EQ(openpty(&master, &slave, nullptr, nullptr, &size), 0);
  const int before = dup(STDERR_FILENO);
  const int before_out = dup(STDOUT_FILENO);
  dup2(slave, STDERR_FILENO);
  dup2(slave, STDOUT_FILENO);
  setenv("TERM", "xterm", 1);
  {
    const Invocation invocation;
    Console console{invocation};
    EXPECT_TRUE(console.is_terminal());
    EXPECT_EQ(console.width(), 20);
    console.progress("Training");
    console.progress("\u00fc line longer than the terminal is");
    console.info("done");
    console.progress("last");
  }
  dup2(before, STDERR_FILENO);
  dup2(before_out, STDOUT_FILENO);
  for (const int descriptor : {slave, before, before_out}) close(descriptor);
  std::string text;
  char piece[256];
  for (ssize_t count = 0; (count = ::read(master, piece, sizeof piece)) > 0;) {  // Ends by EIO: no slave is left.
    text.append(piece, static_cast<std::size_t>(count));
  }
  close(master);
  EXPECT_EQ(text, "\rTraining\x1b[K\r\u00fc line longer than \x1b[K\r\x1b[Kdone\r\n\rlast\x1b[K\r\x1b[K");
}

// ---- Run folders ----

class Run : public Folder {
 protected:
  Run() {
    write(folder_ / "small.toml", "seed = 5\ndata.source = 'idx:/data'\n");
    loaded_ = load_recipe(folder_ / "small.toml", {{"train.epochs", "2"}});
    before_ = fs::current_path();
    fs::current_path(folder_);
    invocation_.argv = {"headrace", "train", "https://me:secret@host/small.toml?token=1"};
  }
  ~Run() override { fs::current_path(before_); }

  fs::path before_;
  LoadedRecipe loaded_;
  Invocation invocation_;
};

TEST_F(Run, FolderHoldsTheResolvedRecipeAndTheEnvironment) {
  setenv("OMP_TEST_ONLY", "3", 1);
  setenv("HEADRACE_SECRET", "hidden", 1);
  RunFolder run{invocation_, loaded_};
  unsetenv("OMP_TEST_ONLY");
  unsetenv("HEADRACE_SECRET");
  EXPECT_EQ(run.path().parent_path(), fs::path("runs/small"));
  const std::string recipe = read(run.file("recipe.toml"));
  EXPECT_THAT(recipe, HasSubstr("seed = 5  # small.toml:1\n"));
  EXPECT_THAT(recipe, HasSubstr("epochs = 2  # flag\n"));
  EXPECT_THAT(recipe, HasSubstr("batch_size = 128  # default\n"));
  EXPECT_EQ(load_recipe(run.file("recipe.toml"), {}).recipe.train.epochs, 2);

  const std::string text = read(run.file("environment.json"));
  const Json environment = Json::parse(text);
  EXPECT_EQ(environment["format"], "headrace-environment");
  EXPECT_EQ(environment["version"], 1);
  EXPECT_EQ(environment["variables"]["OMP_TEST_ONLY"], "3");
  EXPECT_THAT(text, testing::Not(HasSubstr("hidden")));
  EXPECT_THAT(text, testing::Not(HasSubstr("secret")));
  EXPECT_THAT(text, testing::Not(HasSubstr("token")));
}

TEST_F(Run, TwoRunsOfOneSecondHaveTwoFolders) {
  RunFolder one{invocation_, loaded_};
  RunFolder two{invocation_, loaded_};
  EXPECT_NE(one.path(), two.path());
}

TEST_F(Run, LatestPointsToTheNewestWholeRun) {
  RunFolder one{invocation_, loaded_};
  EXPECT_FALSE(fs::exists("runs/small/latest"));
  one.mark_whole();
  EXPECT_EQ(fs::canonical("runs/small/latest"), fs::canonical(one.path()));
  RunFolder two{invocation_, loaded_};
  EXPECT_EQ(fs::canonical("runs/small/latest"), fs::canonical(one.path()));
  two.mark_whole();
  EXPECT_EQ(fs::canonical("runs/small/latest"), fs::canonical(two.path()));
}

TEST_F(Run, OutIsUsedByOneRunAtATime) {
  invocation_.out = folder_ / "deep" / "out";
  {
    RunFolder run{invocation_, loaded_};
    run.mark_whole();
    EXPECT_FALSE(fs::exists("runs"));
    try {
      RunFolder second{invocation_, loaded_};
      FAIL() << "two runs in one folder";
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), ErrorCode::io);
      EXPECT_THAT(error.what(), HasSubstr("in use by process"));
    }
  }
  RunFolder after{invocation_, loaded_};
}

TEST_F(Run, WhatAKilledProcessLeftHalfWrittenIsRemoved) {
  invocation_.out = folder_ / "out";
  write("out/.123-0.headrace-tmp", "half");
  write("out/checkpoint-000000001.safetensors", "x");
  RunFolder run{invocation_, loaded_};
  EXPECT_FALSE(fs::exists(run.file(".123-0.headrace-tmp")));
  EXPECT_TRUE(fs::exists(run.file("checkpoint-000000001.safetensors")));
}

TEST_F(Run, OutThatIsAFileIsRefused) {
  invocation_.out = folder_ / "small.toml";
  EXPECT_THROW((RunFolder{invocation_, loaded_}), Error);
}

TEST_F(Run, ResumeTakesTheNewestFolderWithACheckpoint) {
  invocation_.resume = true;
  try {
    RunFolder run{invocation_, loaded_};
    FAIL() << "resumed nothing";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::not_found);
  }
  EXPECT_FALSE(fs::exists("runs"));
  write("runs/small/20260101T000000Z/checkpoint-000000001.safetensors", "x");
  write("runs/small/20260102T000000Z/checkpoint-000000001.safetensors", "x");
  write("runs/small/20260103T000000Z/log.txt", "x");
  EXPECT_EQ((RunFolder{invocation_, loaded_}.path()), fs::path("runs/small/20260102T000000Z"));
  fs::remove("runs/small/started");
  fs::create_directory_symlink("20260101T000000Z", "runs/small/latest");
  EXPECT_EQ((RunFolder{invocation_, loaded_}.path().filename()), fs::path("20260101T000000Z"));
  invocation_.out = folder_ / "absent";
  EXPECT_THROW((RunFolder{invocation_, loaded_}), Error);
}

TEST_F(Run, ResumeTakesTheRunThatWasStartedLastWhateverTheClockSaid) {
  write("runs/small/20990101T000000Z/checkpoint-000000001.safetensors", "x");  // The clock was wrong then,
  fs::create_directory_symlink("20990101T000000Z", "runs/small/latest");       // and that run came to its end.
  const fs::path now = RunFolder{invocation_, loaded_}.path();
  invocation_.resume = true;
  EXPECT_EQ((RunFolder{invocation_, loaded_}.path().filename()), fs::path("20990101T000000Z"))
      << "nothing to resume yet";
  fs::remove("runs/small/started");
  fs::create_directory_symlink(now.filename(), "runs/small/started");
  write(now / "checkpoint-000000001.safetensors", "x");
  EXPECT_EQ((RunFolder{invocation_, loaded_}.path().filename()), now.filename());
}

// ---- Doctor ----

std::vector<std::string> codes(const std::vector<Finding>& findings) {
  std::vector<std::string> found;
  for (const Finding& finding : findings) found.push_back(finding.code);
  return found;
}

TEST_F(Folder, DoctorFindsWhatIsWrongWithAMachine) {
  Machine machine;
  machine.cores_online = 8;
  machine.cores_usable = 2;
  machine.memory_limit = 1LL << 30;
  machine.memory_limit_from = "cgroup v2 /x";
  write(folder_ / "sys/kernel/mm/transparent_hugepage/enabled", "always madvise [never]\n");
  write(folder_ / "sys/devices/system/cpu/cpu0/cpufreq/scaling_governor", "powersave\n");
  write(folder_ / "sys/devices/system/cpu/cpu0/cpufreq/scaling_driver", "acpi-cpufreq\n");
  write(folder_ / "proc/loadavg", "7.50 0.1 0.1 1/100 1234\n");
  setenv("OMP_NUM_THREADS", "1", 1);
  const std::vector<Finding> findings = machine_findings(machine, folder_.string());
  unsetenv("OMP_NUM_THREADS");
  for (const char* code : {"few_cores", "low_memory", "no_huge_pages", "slow_clock", "busy", "variable_set"}) {
    EXPECT_THAT(codes(findings), testing::Contains(code));
  }
  EXPECT_THAT(findings.front().sentence, HasSubstr("2 of 8 cores"));
}

TEST_F(Folder, DoctorFindsNothingOnAGoodMachineAndGuessesNothing) {
  Machine machine;
  machine.cores_online = machine.cores_usable = 8;
  machine.memory_limit = 16LL << 30;
  const auto before = job_variables();
  for (const auto& [name, value] : before) unsetenv(name.c_str());
  setenv("HEADRACE_TORCH", "/opt/venv/lib/python3.11/site-packages/torch", 1);  // As an installed copy wants it.
  EXPECT_THAT(codes(machine_findings(machine, folder_.string())), testing::IsEmpty());
  unsetenv("HEADRACE_TORCH");
  write(folder_ / "sys/kernel/mm/transparent_hugepage/enabled", "always [madvise] never\n");
  write(folder_ / "sys/devices/system/cpu/cpu0/cpufreq/scaling_governor", "powersave\n");
  write(folder_ / "sys/devices/system/cpu/cpu0/cpufreq/scaling_driver", "intel_pstate\n");
  write(folder_ / "proc/loadavg", "3.90 0.1 0.1 1/100 1234\n");
  machine.memory_limit.reset();
  EXPECT_THAT(codes(machine_findings(machine, folder_.string())), testing::IsEmpty());
  for (const auto& [name, value] : before) setenv(name.c_str(), value.c_str(), 1);
}

TEST_F(Folder, APythonWithoutTorchIsToldAndNoOtherPythonIsAsked) {
  write(folder_ / "python3", "#!/bin/sh\necho /another/torch\n");
  fs::permissions(folder_ / "python3", fs::perms::owner_all);
  const char* before = std::getenv("PATH");
  const std::string path = before == nullptr ? "" : before;
  setenv("PATH", folder_.c_str(), 1);
  unsetenv(kTorchVariable);
  EXPECT_THAT(open_torch(), HasSubstr("found no /another/torch/version.py"));
  setenv(kTorchVariable, "", 1);
  EXPECT_THAT(open_torch(), HasSubstr("found none: the Python that runs this command has no torch; install it there"));
  unsetenv(kTorchVariable);
  setenv("PATH", path.c_str(), 1);
}

std::string safetensors(const std::string& tensor_bytes, const std::map<std::string, std::string>& texts = {}) {
  const auto bytes = std::as_bytes(std::span(tensor_bytes.data(), tensor_bytes.size()));
  Json metadata = texts;
  metadata["xxh3"] = hex(xxh3(bytes));
  const Json header{
      {"__metadata__", metadata},
      {"w", {{"dtype", "U8"}, {"shape", {tensor_bytes.size()}}, {"data_offsets", {0, tensor_bytes.size()}}}}};
  const std::string text = header.dump();
  std::string prefix(8, '\0');
  for (std::size_t i = 0; i < 8; ++i) prefix[i] = static_cast<char>(text.size() >> (8 * i));
  return prefix + text + tensor_bytes;
}

TEST_F(Folder, SafetensorsAreWholeOrSayWhy) {
  const std::string whole = safetensors(std::string(3 << 20, 'x'));
  const auto fault = [&](const std::string& bytes) {
    write(folder_ / "c.safetensors", bytes);
    return check_safetensors(folder_ / "c.safetensors").fault.value_or("whole");
  };
  EXPECT_EQ(fault(whole), "whole");
  EXPECT_EQ(fault(safetensors("")), "whole");
  EXPECT_EQ(fault(""), "is damaged: 0 bytes, wanted at least 8");
  EXPECT_THAT(fault(whole.substr(0, 20)),
              HasSubstr("header of " + std::to_string(whole[0] & 0xff) + " bytes in a file of 20"));
  EXPECT_THAT(fault(whole.substr(0, whole.size() - 1)), HasSubstr("do not lie in 3145727 bytes"));
  EXPECT_THAT(fault(whole + "y"), HasSubstr("3145729 bytes of data, the tensors take 3145728"));
  std::string flipped = whole;
  flipped[whole.size() - 5] ^= 1;
  EXPECT_THAT(fault(flipped), HasSubstr("checksum of the tensors is"));
  std::string broken = whole;
  broken[8] = '[';
  EXPECT_THAT(fault(broken), HasSubstr("header is no JSON"));
  EXPECT_THAT(fault(std::string(8, '\xff')), HasSubstr("in a file of 8"));
  EXPECT_THAT(fault(std::string("\x02\0\0\0\0\0\0\0{}", 10)), HasSubstr("no checksum"));
  EXPECT_THAT(fault(std::string("\x07\0\0\0\0\0\0\0{\"w\":1}", 15)), HasSubstr("wanted dtype, shape and data_offsets"));
  const std::string depth(200'000, '['), closing(200'000, ']');
  for (const char* member : {"\"dtype\":\"U8\",\"data_offsets\":[0,0],\"shape\":", "\"data_offsets\":", "\"x\":"}) {
    const std::string header = std::string("{\"w\":{") + member + depth + closing + "}}";
    std::string prefix(8, '\0');
    for (std::size_t i = 0; i < 8; ++i) prefix[i] = static_cast<char>(header.size() >> (8 * i));
    EXPECT_THAT(fault(prefix + header), HasSubstr("tensor \"w\": "));
  }
  EXPECT_THAT(check_safetensors(folder_ / "absent").fault.value_or("whole"), HasSubstr("cannot be opened"));
}

// A training run of two epochs over a folder of two images that has ended well. Tests break one thing each.
class DoctorsRun : public Run {
 protected:
  DoctorsRun() {
    write(folder_ / "data/train/one/a.jpg", "never decoded");
    write(folder_ / "data/train/two/b.jpg", "never decoded");
    loaded_.recipe.data.source = "folder:" + (folder_ / "data").string();
    invocation_.out = run_;
    { RunFolder run{invocation_, loaded_}; }
    result_ = {{"format", "headrace-train"}, {"version", 1}};
    result_["training"] = {{"stopped_by", 0}, {"epochs", Json::array()}};
    for (int epoch = 1; epoch <= 2; ++epoch) {
      result_["training"]["epochs"].push_back(
          {{"epoch", epoch}, {"loss", 0.5}, {"val_loss", 0.5}, {"val_accuracy", 0.75}, {"samples_per_second", 1000.0}});
    }
    result_["training"]["result"] = {
        {"epoch", 2}, {"val_loss", 0.5}, {"val_accuracy", 0.75}, {"test_loss", 0.5}, {"test_accuracy", 0.625}};
    texts_ = {{"format", kCheckpointFormat}, {"version", kCheckpointVersion}};
    texts_["data"] = std::to_string(open_source(loaded_.recipe.data.source, Split::train)->info().fingerprint);
    texts_["compute_threads"] = std::to_string(detect_machine().cores_usable);
    write(run_ / "log.txt", "2026-11-21 10:00:00 UTC  epoch 2/2\n");
    TraceRecord trace;
    trace.threads = {"main"};
    write_chrome_trace(trace, run_ / "trace.json");
    write(run_ / "report.html", "<!doctype html><html></html>\n");
  }

  // 120 s of `values` in "cache", beside 100 MB that stay.
  static Json memory(const std::vector<double>& values) {
    Json document{{"peak", {{"bytes", 3e8}}}, {"at_s", Json::array()}, {"resident", Json::array()}};
    for (std::size_t i = 0; i < values.size(); ++i) {
      document["at_s"].push_back(120.0 * static_cast<double>(i) / static_cast<double>(values.size() - 1));
      document["resident"].push_back(1e8 + values[i]);
    }
    document["classes"] = {{"parameters", nullptr}, {"cache", {{"values", values}}}};
    return document;
  }

  RunReport checked() {
    if (!result_.is_null()) write(run_ / "result.json", json_text(result_));
    write(run_ / "checkpoint-000000007.safetensors", safetensors("abc", texts_));
    return check_run(run_, detect_machine());
  }
  std::vector<std::string> found() { return codes(checked().findings); }

  const fs::path run_ = "run";
  Json result_;
  std::map<std::string, std::string> texts_;
};

TEST_F(DoctorsRun, AWholeRunHasNoFindingAndTellsItsFacts) {
  const RunReport report = checked();
  EXPECT_THAT(codes(report.findings), testing::IsEmpty());
  const std::map<std::string, std::string> facts(report.facts.begin(), report.facts.end());
  EXPECT_EQ(facts.at("Verb"), "train");
  EXPECT_EQ(facts.at("Ended"), "whole");
  EXPECT_EQ(facts.at("Epochs"), "2 of 2");
  EXPECT_EQ(facts.at("Val accuracy"), "0.7500");
  EXPECT_EQ(facts.at("Test accuracy"), "0.6250");
  EXPECT_EQ(facts.at("Checkpoint"), "checkpoint-000000007.safetensors");
  EXPECT_EQ(facts.at("Peak memory"), "unavailable");
}

TEST_F(DoctorsRun, ShowsTop5AccuracyAndThatPatienceEndedTheRun) {
  result_["training"]["stopped_early"] = true;
  result_["training"]["epochs"].erase(std::size_t{1});
  result_["training"]["result"]["val_top5_accuracy"] = 0.9375;
  const RunReport report = checked();
  EXPECT_THAT(codes(report.findings), testing::IsEmpty());
  EXPECT_THAT(report.facts, testing::Contains(testing::Pair("Ended", "whole")));
  EXPECT_THAT(report.facts,
              testing::Contains(testing::Pair("Epochs", "1 of 2, ended by train.early_stopping_patience")));
  EXPECT_THAT(report.facts, testing::Contains(testing::Pair("Val accuracy", "0.7500 (top 5: 0.9375)")));
  EXPECT_THAT(report.facts, testing::Contains(testing::Pair("Test accuracy", "0.6250")));
}

TEST_F(DoctorsRun, AnErrorAtTheEndOfTheLogIsTold) {
  write(run_ / "log.txt", "2026-11-21 10:00:00 UTC  headrace: error: train: loss is nan in epoch 1, batch 3\n");
  const RunReport report = checked();
  EXPECT_THAT(codes(report.findings), testing::ElementsAre("failed"));
  EXPECT_EQ(report.findings[0].sentence, "the run ended with an error: train: loss is nan in epoch 1, batch 3");
  std::ofstream(run_ / "log.txt", std::ios::app) << "2026-11-21 10:05:00 UTC  resuming\n";
  EXPECT_THAT(found(), testing::IsEmpty());
}

TEST_F(DoctorsRun, AKilledRunLacksItsResultAndAStoppedOneSaysItsSignal) {
  result_["training"]["stopped_by"] = 15;
  EXPECT_THAT(found(), testing::ElementsAre("stopped"));
  fs::remove(run_ / "result.json");
  result_ = nullptr;
  texts_["history"] = R"({"epochs": [{"epoch": 1, "test_accuracy": 0.5}]})";
  const RunReport report = checked();
  EXPECT_THAT(codes(report.findings), testing::ElementsAre("missing"));
  EXPECT_THAT(report.facts, testing::Contains(testing::Pair("Epochs", "1 of 2")));         // As its checkpoint knows.
  EXPECT_THAT(report.facts, testing::Contains(testing::Pair("Test accuracy", "0.5000")));  // Of an earlier version.
}

TEST_F(DoctorsRun, ARunThatTunesItselfLacksItsLedgerAndMayHaveSwitchedItsThreads) {
  loaded_.recipe.tune.online = true;
  { RunFolder run{invocation_, loaded_}; }
  EXPECT_THAT(found(), testing::ElementsAre("missing", "missing"));
  for (const char* name : {"ledger.json", "tuned.toml"}) {
    const bool is_ledger = name == std::string("ledger.json");
    write(run_ / name, is_ledger ? json_text(LiveLedger{}) : read(run_ / "recipe.toml"));
  }
  EXPECT_THAT(found(), testing::IsEmpty());
  result_["training"]["stopped_by"] = 15;
  texts_["compute_threads"] = "1000";
  EXPECT_THAT(found(), testing::ElementsAre("stopped", "other_threads"));
  texts_["tuning"] = json_text(LiveLedger{});
  EXPECT_THAT(found(), testing::ElementsAre("stopped"));
}

TEST_F(DoctorsRun, WhatCanBeResumedIsToldToBeResumedAndOtherVerbsToBeStartedAgain) {
  result_["training"]["stopped_by"] = 2;
  Json environment = Json::parse(read(run_ / "environment.json"));
  const std::map<std::string, std::string> advice = {{"train", "Go on with train --resume."},
                                                     {"tune", "Start it again; ledger.json holds what was decided."}};
  for (const auto& [verb, sentence] : advice) {
    environment["command"] = {"headrace", verb, "job.toml"};
    write(run_ / "environment.json", json_text(environment));
    const RunReport report = checked();
    ASSERT_THAT(codes(report.findings), testing::Contains("stopped"));
    const auto stopped = std::find_if(report.findings.begin(), report.findings.end(),
                                      [](const Finding& finding) { return finding.code == "stopped"; });
    EXPECT_EQ(stopped->advice, sentence) << verb;
  }
}

TEST_F(DoctorsRun, LossesThatAreNotFiniteAreNamed) {
  result_["training"]["epochs"][1]["val_loss"] = nullptr;
  result_["training"]["result"]["test_loss"] = nullptr;
  const RunReport report = checked();
  EXPECT_THAT(codes(report.findings), testing::ElementsAre("loss_not_finite", "loss_not_finite"));
  EXPECT_EQ(report.findings[0].sentence, "val_loss of epoch 2 is not finite");
  EXPECT_EQ(report.findings[1].sentence, "test_loss of the result is not finite");
}

TEST_F(DoctorsRun, SamplesThatCouldNotBeReadAreNamed) {
  result_["corrupt_samples"] = {{"on_corrupt", "replace"}, {"samples", Json::array()}};
  EXPECT_THAT(found(), testing::IsEmpty());
  for (int i = 0; i < 7; ++i) {
    result_["corrupt_samples"]["samples"].push_back({{"reason", "train/one/" + std::to_string(i) + ".jpg: cut short"}});
  }
  const RunReport report = checked();
  EXPECT_THAT(codes(report.findings), testing::ElementsAre("corrupt_samples"));
  EXPECT_THAT(report.findings[0].sentence, HasSubstr("7 samples could not be read (data.on_corrupt = replace): "));
  EXPECT_THAT(report.findings[0].sentence, HasSubstr("train/one/4.jpg: cut short; and 2 more"));
}

TEST_F(DoctorsRun, SlowEpochsAndSlowStepsAreNamed) {
  Json& epochs = result_["training"]["epochs"];
  epochs.push_back(epochs[0]);
  epochs[2]["samples_per_second"] = 500.0;
  Json profile{{"format", "headrace-profile"}, {"version", 1}};
  profile["time_split"]["step_s"] = std::vector<double>(30, 0.01);
  profile["time_split"]["step_s"][20] = 0.2;
  profile["diagnosis"]["findings"] = {{{"code", "data_loading_slow"}, {"sentence", "s"}, {"advice", "a"}}};
  write(run_ / "profile.json", json_text(profile));
  const RunReport report = checked();
  EXPECT_THAT(codes(report.findings), testing::ElementsAre("slow_steps", "slow_epochs", "data_loading_slow"));
  EXPECT_THAT(report.findings[0].sentence, HasSubstr("1 of 30 steps took more than twice the median of 10.0 ms and "
                                                     "cost 39 % of the time; the longest, step 21, took 200.0 ms"));
  EXPECT_THAT(report.findings[1].sentence,
              HasSubstr("1 of 3 epochs ran below 80 % of the median speed of 1000 samples/s and cost "
                        "25 % of the time; the slowest, epoch 3, ran at 500"));
}

TEST_F(DoctorsRun, MemoryThatGrowsToTheEndIsTheCachesAndMemoryThatFillsUpOnceIsNone) {
  std::vector<double> grows, fills;
  for (int i = 0; i < 256; ++i) {
    grows.push_back(1e6 * i);
    fills.push_back(1e6 * std::min(i, 60));
  }
  result_["memory"] = memory(grows);
  const RunReport report = checked();
  EXPECT_THAT(codes(report.findings), testing::ElementsAre("memory_growth"));
  EXPECT_THAT(report.findings[0].sentence, HasSubstr("grew by some 128 MB (36 %)"));
  EXPECT_THAT(report.findings[0].advice, HasSubstr("\"cache\""));
  result_["memory"] = memory(fills);
  EXPECT_THAT(found(), testing::IsEmpty());
  result_["memory"]["peak"]["bytes"] = 1e15;
  EXPECT_THAT(found(), testing::ElementsAre("memory_nearly_full"));
}

TEST_F(DoctorsRun, DataThatHasChangedOrIsGoneIsTold) {
  write(folder_ / "data/train/one/c.jpg", "one more");
  EXPECT_THAT(found(), testing::ElementsAre("data_changed"));
  fs::remove_all(folder_ / "data");
  EXPECT_THAT(found(), testing::ElementsAre("data_gone"));
}

TEST_F(DoctorsRun, ACheckpointOfAnotherBuildMachineOrDivisionOfCoresIsToldWhileItIsWanted) {
  texts_["compute_threads"] = "99";
  EXPECT_THAT(found(), testing::IsEmpty());  // Nothing is left to resume.
  result_["training"]["stopped_by"] = 2;
  EXPECT_THAT(found(), testing::ElementsAre("stopped", "other_threads"));
  Machine other = detect_machine();
  other.cpu = "another";
  EXPECT_THAT(codes(check_run(run_, other).findings),
              testing::ElementsAre("stopped", "other_threads", "other_machine"));
  texts_["version"] = "99";
  EXPECT_THAT(found(), testing::ElementsAre("stopped", "unsupported_checkpoint"));
}

TEST_F(DoctorsRun, DocumentsOfAnyFormAreFaultsAndNoCrash) {
  for (const char* text : {R"("training": 1)", R"("training": {"epochs": [1, null, {}]})", R"("memory": [1])",
                           R"("memory": {"resident": ["a"], "at_s": {}, "classes": 3})",
                           R"("corrupt_samples": {"samples": [1, {}]})", R"("training": {"stopped_by": "x"})"}) {
    result_ = nullptr;
    write(run_ / "result.json", std::string(R"({"format": "headrace-train", "version": 1, )") + text + "}");
    EXPECT_NO_THROW(checked()) << text;
  }
}

TEST_F(Run, DoctorNamesWhatIsMissingOrDamaged) {
  invocation_.out = folder_ / "run";
  RunFolder run{invocation_, loaded_};
  const auto findings = [this] { return check_run(folder_ / "run", detect_machine()).findings; };
  EXPECT_THAT(codes(findings()), testing::ElementsAre("in_use", "missing", "missing", "missing", "data_gone"));
  write(folder_ / "run/checkpoint-000000001.safetensors", safetensors("abc").substr(0, 40));
  std::string header = safetensors("abc", {{"header_xxh3", "0123456789abcdef"}});
  write(folder_ / "run/checkpoint-000000002.safetensors", header);
  write(folder_ / "run/ledger.json", R"({"format":"headrace-ledger","version":9})");
  write(folder_ / "run/metrics.json", "{");
  write(folder_ / "run/trace-tuned.json", R"({"otherData":{"format":"headrace-trace","version":7},"traceEvents":[]})");
  write(folder_ / "run/tuned.toml", "seed = ");
  write(folder_ / "run/report.html", "<html><body>");
  write(folder_ / "run/.77-0.headrace-tmp", "x");
  fs::remove(folder_ / "run/recipe.toml");
  std::vector<std::string> sentences;
  for (const Finding& finding : findings()) sentences.push_back(finding.sentence);
  for (const char* text :
       {"checkpoint-000000001.safetensors is damaged: header of", "checkpoint-000000002.safetensors is damaged",
        "and says \"0123456789abcdef\"", "ledger.json has version 9, wanted 1", "metrics.json is no whole JSON",
        "version 7, this build reads 1", "tuned.toml does not load", "report.html ends before",
        ".77-0.headrace-tmp was left", "recipe.toml is missing"}) {
    EXPECT_THAT(sentences, testing::Contains(HasSubstr(text)));
  }
  EXPECT_THROW(check_run(folder_ / "absent", detect_machine()), Error);
}

// ---- Explain ----

TEST_F(Run, ExplainShowsValueOriginRangeAndSentence) {
  Invocation invocation;
  invocation.recipe = folder_ / "small.toml";
  invocation.flags = {{"data.batch_size", "64"}};
  invocation.json = folder_ / "explain.json";
  const Said words = said(invocation, [&](Console& console) { EXPECT_EQ(run_explain(invocation, console), 0); });
  EXPECT_THAT(words.out, testing::ContainsRegex("seed = 5 +small.toml:1 +0 to 4294967295\n    Decides"));
  EXPECT_THAT(words.out, testing::ContainsRegex("data.batch_size = 64 +flag +1 to 65536\n"));
  const Json document = Json::parse(read(folder_ / "explain.json"));
  EXPECT_EQ(document["keys"].size(), fields_of(loaded_.recipe).size());
  EXPECT_EQ(document["keys"][0]["value"], 5);
  EXPECT_EQ(document["keys"][0]["origin"], "small.toml:1");
}

TEST_F(Run, ExplainOfOneKeyShowsWhatTheTunerFound) {
  write(folder_ / "run/ledger.json",
        R"({"format":"headrace-ledger","version":1,"baseline":{"samples_per_second":100.0,"settings":{}},
            "best":{"samples_per_second":121.0,"settings":{"optimizer.fused":"true"}},
            "speedup":{"median":1.21,"low":1.2,"high":1.22,"pairs":14},"budget_s":90.0,"spent_s":80.0,
            "trials":[{"name":"fused optimizer","verdict":"kept","reason":"none","sentence":"21 % faster.","pairs":14,
            "gain":{"median":0.21,"low":0.2,"high":0.22},"numerics":{"class":"rounding","checked":true,"passed":true,
            "value":1e-8,"tolerance":1e-6,"measure":"update"},"changes":{"optimizer.fused":"true"},
            "removed_again":false,"baseline_s":[],"candidate_s":[]}]})");
  Invocation invocation;
  invocation.recipe = folder_ / "small.toml";
  invocation.key = "optimizer.fused";
  invocation.out = folder_ / "run";
  const Said words = said(invocation, [&](Console& console) { run_explain(invocation, console); });
  EXPECT_THAT(words.out, HasSubstr("    tuner: fused optimizer: optimizer.fused = true: kept, 21 % faster.\n"));
  EXPECT_THAT(words.out, testing::Not(HasSubstr("seed")));

  for (const char* ledger :
       {"", "[]", "{}", R"({"format":"headrace-ledger","version":2})", R"({"format":1,"version":1})",
        R"({"format":"headrace-ledger","version":1,"trials":[{}]})"}) {
    write(folder_ / "run/ledger.json", ledger);
    Console console{invocation};
    try {
      run_explain(invocation, console);
      FAIL() << "took for a ledger: " << ledger;
    } catch (const Error& error) {
      const bool is_version = std::string_view(ledger).find("\"version\":2") != std::string_view::npos;
      EXPECT_EQ(error.code(), is_version ? ErrorCode::unsupported : ErrorCode::corrupt_data);
      EXPECT_THAT(error.what(), HasSubstr((folder_ / "run/ledger.json").string()));
    }
  }
}

TEST_F(Run, ExplainTellsWhatARunThatTunedItselfFound) {
  LiveLedger ledger;
  Trial& trial = ledger.ledger.trials.emplace_back();
  trial.name = "fused optimizer";
  trial.changes = {{"optimizer.fused", "true"}};
  trial.verdict = Verdict::kept;
  trial.sentence = "Pays: 9 pairs.";
  ledger.estimates.emplace_back();
  write(folder_ / "run/ledger.json", json_text(ledger));
  Invocation invocation;
  invocation.recipe = folder_ / "small.toml";
  write(invocation.recipe, "data.source = 'idx:/data'\n");
  invocation.key = "optimizer.fused";
  invocation.out = folder_ / "run";
  const Said words = said(invocation, [&](Console& console) { run_explain(invocation, console); });
  EXPECT_THAT(words.out, HasSubstr("    tuner: fused optimizer: optimizer.fused = true: kept, Pays: 9 pairs.\n"));
}

TEST_F(Run, ExplainOfATableShowsItsKeysAndOfNothingKnownTheNearest) {
  Invocation invocation;
  invocation.key = "data.transform";
  const Said words = said(invocation, [&](Console& console) { run_explain(invocation, console); });
  EXPECT_THAT(words.out, HasSubstr("data.transform.pad = 0"));
  EXPECT_THAT(words.out, testing::Not(HasSubstr("data.batch_size")));
  invocation.key = "data.batchsize";
  Console console{invocation};
  try {
    run_explain(invocation, console);
    FAIL() << "explained an unknown key";
  } catch (const Error& error) {
    EXPECT_STREQ(error.what(), "unknown key data.batchsize, did you mean data.batch_size?");
  }
}

TEST_F(Folder, ATorchPackageOfAnotherMinorVersionIsRefusedWithBoth) {
  write(folder_ / "version.py", "__all__ = ['__version__', 'debug']\n__version__ = '2.11.0+cpu'\ndebug = False\n");
  EXPECT_EQ(torch_fault_in(folder_, "2.11.0"), "");
  EXPECT_EQ(torch_fault_in(folder_, "2.11.1"), "");
  EXPECT_EQ(torch_fault_in(folder_, "2.1.0"), "built for torch 2.1, found 2.11.0+cpu in " + folder_.string());
  EXPECT_EQ(torch_fault_in(folder_, "2.15.0"), "built for torch 2.15, found 2.11.0+cpu in " + folder_.string());
  write(folder_ / "version.py", "debug = False\n");
  EXPECT_THAT(torch_fault_in(folder_, "2.11.0"), HasSubstr("found no version in"));
  EXPECT_THAT(torch_fault_in(folder_ / "lib", "2.11.0"),
              HasSubstr("found no " + (folder_ / "lib/version.py").string()));
}

}  // namespace
}  // namespace headrace
