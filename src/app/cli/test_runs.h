// Folders and runs for tests of the command.
#pragma once

#include <gtest/gtest.h>
#include <headrace/options/train.h>
#include <headrace/source.h>
#include <headrace/trace.h>

#include <filesystem>
#include <fstream>
#include <iterator>
#include <map>
#include <nlohmann/json.hpp>
#include <span>
#include <string>
#include <vector>

#include "app/cli/console.h"
#include "app/cli/doctor.h"
#include "app/cli/invocation.h"
#include "app/cli/run_folder.h"
#include "app/recipe/recipe.h"
#include "core/base/hash.h"
#include "core/base/temporary_folder.h"
#include "core/hardware/machine.h"

namespace headrace {

class Folder : public testing::Test {
 protected:
  static void write(const std::filesystem::path& path, const std::string& text) {
    std::filesystem::create_directories(path.parent_path());
    std::ofstream(path, std::ios::binary) << text;
  }
  static std::string read(const std::filesystem::path& path) {
    std::ifstream file(path, std::ios::binary);
    return {std::istreambuf_iterator<char>(file), {}};
  }

  const TemporaryFolder temporary_;
  const std::filesystem::path folder_ = temporary_.path();
};

class Run : public Folder {
 protected:
  Run() {
    write(folder_ / "small.toml", "seed = 5\ndata.source = 'idx:/data'\n");
    loaded_ = load_recipe(folder_ / "small.toml", {{"train.epochs", "2"}});
    before_ = std::filesystem::current_path();
    std::filesystem::current_path(folder_);
    invocation_.argv = {"headrace", "train", "https://me:secret@host/small.toml?token=1"};
  }
  ~Run() override { std::filesystem::current_path(before_); }

  std::filesystem::path before_;
  LoadedRecipe loaded_;
  Invocation invocation_;
};

inline std::vector<std::string> codes(const std::vector<Finding>& findings) {
  std::vector<std::string> found;
  for (const Finding& finding : findings) found.push_back(finding.code);
  return found;
}

// A file of one tensor "w" with these bytes, as checkpoints are.
inline std::string safetensors(const std::string& tensor_bytes, const std::map<std::string, std::string>& texts = {}) {
  const auto bytes = std::as_bytes(std::span(tensor_bytes.data(), tensor_bytes.size()));
  nlohmann::ordered_json metadata = texts;
  metadata["xxh3"] = hex(xxh3(bytes));
  const nlohmann::ordered_json header{
      {"__metadata__", metadata},
      {"w", {{"dtype", "U8"}, {"shape", {tensor_bytes.size()}}, {"data_offsets", {0, tensor_bytes.size()}}}}};
  const std::string text = header.dump();
  std::string prefix(8, '\0');
  for (std::size_t i = 0; i < 8; ++i) prefix[i] = static_cast<char>(text.size() >> (8 * i));
  return prefix + text + tensor_bytes;
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
    result_["training"] = {{"stopped_by", 0}, {"epochs", nlohmann::ordered_json::array()}};
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
  static nlohmann::ordered_json memory(const std::vector<double>& values) {
    nlohmann::ordered_json document{{"peak", {{"bytes", 3e8}}},
                                    {"at_s", nlohmann::ordered_json::array()},
                                    {"resident", nlohmann::ordered_json::array()}};
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

  const std::filesystem::path run_ = "run";
  nlohmann::ordered_json result_;
  std::map<std::string, std::string> texts_;
};

}  // namespace headrace
