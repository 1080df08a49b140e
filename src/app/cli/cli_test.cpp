#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <headrace/error.h>
#include <headrace/live_tuner.h>
#include <headrace/option_fields.h>
#include <pty.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include <cstdlib>
#include <limits>
#include <nlohmann/json.hpp>
#include <regex>

#include "app/cli/arguments.h"
#include "app/cli/console.h"
#include "app/cli/doctor.h"
#include "app/cli/explain.h"
#include "app/cli/run_folder.h"
#include "app/cli/safetensors_check.h"
#include "app/cli/test_runs.h"
#include "app/cli/torch_folder.h"
#include "core/base/error_of.h"

namespace headrace {
namespace {

namespace fs = std::filesystem;
using Json = nlohmann::ordered_json;
using testing::HasSubstr;

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

// What a terminal of this size gets of `action`.
template <class Action>
std::string shown(winsize size, Action action) {
  int master = -1, slave = -1;
  if (openpty(&master, &slave, nullptr, nullptr, &size) != 0) return "there is no terminal";
  const int before = dup(STDERR_FILENO);
  const int before_out = dup(STDOUT_FILENO);
  dup2(slave, STDERR_FILENO);
  dup2(slave, STDOUT_FILENO);
  setenv("TERM", "xterm", 1);
  {
    const Invocation invocation;
    Console console{invocation};
    action(console);
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
  return text;
}

TEST(Progress, OnATerminalIsReplacedInPlaceAndRemoved) {
  winsize size{};
  size.ws_col = 20;
  const std::string text = shown(size, [](Console& console) {
    EXPECT_TRUE(console.is_terminal());
    EXPECT_EQ(console.width(), 20);
    console.progress("Training");
    console.progress("\u00fc line longer than the terminal is");
    console.info("done");
    console.progress("last");
  });
  EXPECT_EQ(text, "\rTraining\x1b[K\r\u00fc line longer than \x1b[K\r\x1b[Kdone\r\n\rlast\x1b[K\r\x1b[K");
}

TEST(Progress, AViewOfSeveralLinesIsDrawnOverItselfAndRemoved) {
  winsize size{};
  size.ws_col = 20;
  const std::string text = shown(size, [](Console& console) {
    console.progress_view({"one", "two"});
    console.progress_view({"three", "four"});
    console.info("done");
    console.progress_view({"a", "b", "c"});
    console.progress("d");
  });
  EXPECT_EQ(text,
            "\rone\x1b[K\r\ntwo\x1b[K\x1b[1A\rthree\x1b[K\r\nfour\x1b[K"
            "\r\x1b[K\x1b[A\x1b[Kdone\r\n"
            "\ra\x1b[K\r\nb\x1b[K\r\nc\x1b[K\r\x1b[K\x1b[A\x1b[K\x1b[A\x1b[K\rd\x1b[K\r\x1b[K");
}

TEST(Progress, AViewIsNoTallerThanTheTerminal) {
  winsize size{};
  size.ws_col = 20;
  size.ws_row = 3;
  EXPECT_EQ(shown(size,
                  [](Console& console) {
                    console.progress_view({"a", "b", "c", "d"});
                  }),
            "\ra\x1b[K\r\nb\x1b[K\r\x1b[K\x1b[A\x1b[K");
}

TEST(Progress, ADumbTerminalGetsNoMovesOfTheCursor) {
  winsize size{};
  size.ws_col = 20;
  EXPECT_EQ(shown(size,
                  [](Console& console) {
                    setenv("TERM", "dumb", 1);
                    EXPECT_FALSE(console.is_terminal());
                    console.progress_view({"a", "b"});  // A line after 30 s.
                    setenv("TERM", "xterm", 1);
                  }),
            "");
}

// ---- Run folders ----

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
