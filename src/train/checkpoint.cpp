#include "train/checkpoint.h"

#include <ATen/CPUGeneratorImpl.h>
#include <c10/core/GradMode.h>
#include <headrace/error.h>

#include <algorithm>
#include <charconv>
#include <map>
#include <mutex>
#include <system_error>

#include "tensor/compute.h"
#include "tensor/safetensors.h"

namespace headrace {
namespace {

namespace fs = std::filesystem;
using Named = std::vector<std::pair<std::string, at::Tensor>>;

constexpr const char* kFormat = "headrace-checkpoint";
constexpr const char* kVersion = "1";
constexpr const char* kGenerator = "generator/cpu";

// Everything a checkpoint holds but the generator, shared with the trainer.
Named tensors_of(Trainer& trainer, bool weights_only) {
  Named tensors;
  for (const auto& [name, tensor] : trainer.model().parameters) tensors.emplace_back("model/" + name, tensor);
  for (const auto& [name, tensor] : trainer.model().buffers) tensors.emplace_back("model/" + name, tensor);
  if (weights_only) return tensors;
  for (const auto& [name, tensor] : trainer.optimizer().state()) tensors.emplace_back("optimizer/" + name, tensor);
  return tensors;
}

at::Tensor generator_state() {
  at::Generator generator = at::detail::getDefaultCPUGenerator();
  std::lock_guard lock(generator.mutex());
  return generator.get_state();
}

void set_generator_state(const at::Tensor& state) {
  at::Generator generator = at::detail::getDefaultCPUGenerator();
  std::lock_guard lock(generator.mutex());
  generator.set_state(state);
}

// Optimizer steps in a checkpoint's file name; nullopt: not a checkpoint's name.
std::optional<std::int64_t> steps_in_name(const fs::path& path) {
  const std::string name = path.filename().string();
  constexpr std::string_view prefix = "checkpoint-", suffix = ".safetensors";
  if (name.size() <= prefix.size() + suffix.size() || name.compare(0, prefix.size(), prefix) != 0 ||
      name.compare(name.size() - suffix.size(), suffix.size(), suffix) != 0) {
    return std::nullopt;
  }
  std::int64_t steps = 0;
  const char* end = name.data() + name.size() - suffix.size();
  const auto [stop, error] = std::from_chars(name.data() + prefix.size(), end, steps);
  if (error != std::errc{} || stop != end || steps < 0) return std::nullopt;
  return steps;
}

std::vector<fs::path> newest_first(const fs::path& folder) {
  std::vector<std::pair<std::int64_t, fs::path>> found;
  std::error_code error;
  fs::directory_iterator entries(folder, error);
  if (error == std::errc::no_such_file_or_directory) return {};
  if (error) fail(ErrorCode::io, "train: cannot list {}: {}", folder.string(), error.message());
  for (const fs::directory_entry& entry : entries) {
    if (const auto steps = steps_in_name(entry.path())) found.emplace_back(*steps, entry.path());
  }
  std::sort(found.begin(), found.end(), std::greater<>{});
  std::vector<fs::path> paths;
  for (auto& [steps, path] : found) paths.push_back(std::move(path));
  return paths;
}

bool is_whole(const fs::path& path) {
  try {
    read_safetensors_metadata(path);
    return true;
  } catch (const Error& error) {
    if (error.code() == ErrorCode::corrupt_data) return false;
    throw;
  }
}

// `written` counts as the newest, whatever a folder used twice holds beside it.
void remove_older(const fs::path& folder, const fs::path& written, std::int64_t keep) {
  std::int64_t whole = 1;
  for (const fs::path& path : newest_first(folder)) {
    if (path == written || !is_whole(path) || ++whole <= keep) continue;
    std::error_code error;
    fs::remove(path, error);
    if (error) fail(ErrorCode::io, "train: cannot remove {}: {}", path.string(), error.message());
  }
}

// The texts of a checkpoint's header.
class Texts {
 public:
  Texts(const fs::path& path, const std::map<std::string, std::string>& texts) : path_(path), texts_(texts) {}

  const std::string& text(const std::string& key) const {
    const auto found = texts_.find(key);
    if (found == texts_.end())
      fail(ErrorCode::corrupt_data, "train: {}: the header has no \"{}\"", path_.string(), key);
    return found->second;
  }

  template <class Number>
  Number number(const std::string& key) const {
    const std::string& digits = text(key);
    Number value{};
    const char* end = digits.data() + digits.size();
    const auto [stop, error] = std::from_chars(digits.data(), end, value);
    if (error != std::errc{} || stop != end || value < Number{0}) {
      fail(ErrorCode::corrupt_data, "train: {}: \"{}\" in the header is no whole number", path_.string(), key);
    }
    return value;
  }

 private:
  const fs::path& path_;
  const std::map<std::string, std::string>& texts_;
};

CheckpointInfo read_info(const fs::path& path, const std::map<std::string, std::string>& metadata,
                         const std::string& model) {
  const Texts texts(path, metadata);
  if (texts.text("format") != kFormat) {
    fail(ErrorCode::corrupt_data, "train: {}: no checkpoint: wanted format {}", path.string(), kFormat);
  }
  if (texts.text("version") != kVersion) {
    fail(ErrorCode::unsupported, "train: {}: checkpoint version {}, this build reads {}", path.string(),
         texts.text("version").substr(0, 20), kVersion);
  }
  CheckpointInfo info;
  info.path = path;
  info.model = texts.text("model");
  if (info.model != model) {
    fail(ErrorCode::invalid_argument, "train: {}: a checkpoint of model {}, wanted {}", path.string(),
         info.model.substr(0, 100), model);
  }
  texts.text("xxh3");  // Without it nothing says that the tensors are whole.
  info.progress.epoch = texts.number<std::int64_t>("epoch");
  info.progress.batch = texts.number<std::int64_t>("batch");
  info.progress.optimizer_steps = texts.number<std::int64_t>("optimizer_steps");
  info.compute_threads = texts.number<std::int64_t>("compute_threads");
  info.seed = texts.number<std::uint64_t>("seed");
  return info;
}

void check_alike(const fs::path& path, const std::string& name, const at::Tensor& found, const at::Tensor& wanted) {
  if (found.sizes() == wanted.sizes() && found.scalar_type() == wanted.scalar_type()) return;
  fail(ErrorCode::invalid_argument, "train: {}: {} is {} [{}], the model wants {} [{}]", path.string(), name,
       c10::toString(found.scalar_type()), fmt::join(found.sizes(), ", "), c10::toString(wanted.scalar_type()),
       fmt::join(wanted.sizes(), ", "));
}

using TensorsByName = std::map<std::string, at::Tensor>;

// Every tensor that will be copied is there and fits, and the model has every one of the file's.
void check_tensors(const fs::path& path, const TensorsByName& found, const Named& wanted, bool weights_only) {
  std::map<std::string, const at::Tensor*> wanted_by_name;
  for (const auto& [name, tensor] : wanted) {
    wanted_by_name[name] = &tensor;
    const auto it = found.find(name);
    if (it == found.end()) fail(ErrorCode::invalid_argument, "train: {}: has no {}", path.string(), name);
    check_alike(path, name, it->second, tensor);
  }
  for (const auto& [name, tensor] : found) {
    const bool left_alone = weights_only && name.rfind("model/", 0) != 0;
    if (left_alone || name == kGenerator || wanted_by_name.count(name) != 0) continue;
    fail(ErrorCode::invalid_argument, "train: {}: holds {}, which the model does not have", path.string(), name);
  }
  if (weights_only) return;
  const auto generator = found.find(kGenerator);
  if (generator == found.end()) fail(ErrorCode::corrupt_data, "train: {}: has no {}", path.string(), kGenerator);
  const at::Tensor now = generator_state();
  if (generator->second.sizes() != now.sizes() || generator->second.scalar_type() != now.scalar_type()) {
    fail(ErrorCode::corrupt_data, "train: {}: {} is no generator state", path.string(), kGenerator);
  }
}

}  // namespace

fs::path save_checkpoint(const fs::path& folder, Trainer& trainer, const std::string& model, std::uint64_t seed,
                         std::int64_t keep) {
  const Progress progress = trainer.progress();
  if (progress.window != 0 || keep < 1) {
    fail(ErrorCode::invalid_argument,
         "train: checkpoint: wanted no open window and keep of at least 1, found {} and {}", progress.window, keep);
  }
  std::error_code error;
  fs::create_directories(folder, error);
  if (error) fail(ErrorCode::io, "train: cannot make {}: {}", folder.string(), error.message());
  const fs::path path = folder / fmt::format("checkpoint-{:09}.safetensors", progress.optimizer_steps);
  Named tensors = tensors_of(trainer, /*weights_only=*/false);
  tensors.emplace_back(kGenerator, generator_state());
  write_safetensors(path, tensors,
                    {{"format", kFormat},
                     {"version", kVersion},
                     {"model", model},
                     {"epoch", std::to_string(progress.epoch)},
                     {"batch", std::to_string(progress.batch)},
                     {"optimizer_steps", std::to_string(progress.optimizer_steps)},
                     {"compute_threads", std::to_string(compute_threads())},
                     {"seed", std::to_string(seed)}});
  remove_older(folder, path, keep);
  return path;
}

CheckpointInfo load_checkpoint(const fs::path& path, Trainer& trainer, const std::string& model, bool weights_only) {
  SafetensorsFile file = read_safetensors(path);
  CheckpointInfo info = read_info(path, file.metadata, model);
  const Named wanted = tensors_of(trainer, weights_only);
  TensorsByName found;
  for (auto& [name, tensor] : file.tensors) found[name] = std::move(tensor);
  check_tensors(path, found, wanted, weights_only);

  c10::AutoGradMode no_graph(false);
  if (!weights_only) {
    set_generator_state(found[kGenerator]);  // First: the one step that may still refuse its bytes.
    trainer.progress() = info.progress;
  }
  for (const auto& [name, tensor] : wanted) tensor.copy_(found[name]);  // Each keeps its own layout.
  trainer.optimizer().zero_gradients();
  trainer.progress().window = 0;
  return info;
}

std::optional<CheckpointInfo> resume_newest(const fs::path& folder, Trainer& trainer, const std::string& model,
                                            std::vector<std::string>& warnings) {
  std::optional<Error> newest_error;
  for (const fs::path& path : newest_first(folder)) {
    try {
      return load_checkpoint(path, trainer, model, /*weights_only=*/false);
    } catch (const Error& error) {
      if (error.code() != ErrorCode::corrupt_data && error.code() != ErrorCode::io) throw;
      warnings.push_back(fmt::format("{} was left out: {}", path.filename().string(), error.what()));
      if (!newest_error) newest_error = error;
    }
  }
  if (newest_error) throw *newest_error;
  return std::nullopt;
}

}  // namespace headrace
