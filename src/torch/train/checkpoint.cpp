#include "torch/train/checkpoint.h"

#include <ATen/ops/zeros.h>
#include <c10/core/GradMode.h>

#include <algorithm>
#include <charconv>
#include <cmath>
#include <map>
#include <span>
#include <system_error>
#include <utility>

#include "core/base/fail.h"
#include "torch/tensor/compute.h"
#include "torch/tensor/safetensors.h"
#include "torch/train/detail/header_checksum.h"
#include "torch/train/last_good_state.h"
#include "torch/train/training_state.h"

namespace headrace {
namespace {

namespace fs = std::filesystem;
using Named = NamedTensors;

// Keys in the header of a best checkpoint: today's, and that of earlier versions.
constexpr const char* kScore = "score";
constexpr const char* kEarlierScore = "val_accuracy";
constexpr std::string_view kPrefix = "checkpoint-", kSuffix = ".safetensors";
// What the names of a rollback's tensors begin with, and of the caller's.
constexpr std::string_view kLastGood = "last_good/", kOfRun = "run/";
constexpr const char* kClipped = "clipped_updates";  // Of the header, where some were.
// Of the header, where the guard has counted something.
constexpr const char* kLrFactor = "guard_lr_factor";
constexpr std::pair<const char*, std::int64_t GuardCounts::*> kGuardCounts[] = {
    {"guard_losses", &GuardCounts::losses},         {"guard_gradients", &GuardCounts::gradients},
    {"guard_weights", &GuardCounts::weights},       {"guard_activations", &GuardCounts::activations},
    {"guard_skipped", &GuardCounts::skipped},       {"guard_replaced", &GuardCounts::replaced},
    {"guard_lowered_lr", &GuardCounts::lowered_lr}, {"guard_rolled_back", &GuardCounts::rolled_back},
    {"guard_in_a_row", &GuardCounts::in_a_row}};

// Likewise, of a ReduceLROnPlateau that has had a metric.
constexpr const char* kPlateauBest = "plateau_best";
constexpr const char* kReductions = "plateau_reductions";
constexpr std::pair<const char*, std::int64_t PlateauState::*> kPlateauCounts[] = {
    {"plateau_num_bad_epochs", &PlateauState::num_bad_epochs},
    {"plateau_cooldown_counter", &PlateauState::cooldown_counter},
    {kReductions, &PlateauState::reductions}};

// Likewise, where memory has run out, or the batches of a step are computed in parts.
constexpr const char* kOutOfMemory = "out_of_memory";
constexpr const char* kMicroBatch = "micro_batch";
constexpr const char* kMicroBatchGrows = "micro_batch_grows";

// What a load puts in its place, shared with the trainer: everything but the generator and what a rollback returns to.
Named tensors_of(Trainer& trainer) {
  trainer.schedule_momentum();  // May need state.
  return training_tensors(trainer.model(), trainer.averages(), trainer.optimizer());
}

bool has_averages(const Named& tensors) {
  return std::any_of(tensors.begin(), tensors.end(),
                     [](const auto& tensor) { return tensor.first.starts_with(kAverages); });
}

std::string optimizer_name(Trainer& trainer) {
  if (trainer.external_optimizer.step) return trainer.external_optimizer.name;
  return std::string(choice_name(trainer.optimizer().options().name));
}

bool is_named_as_checkpoint(std::string_view name) {
  return name.starts_with(kPrefix) && name.ends_with(kSuffix);
}

// Optimizer steps in a checkpoint's file name; nullopt: not a checkpoint's name.
std::optional<std::int64_t> steps_in_name(const fs::path& path) {
  const std::string name = path.filename().string();
  if (name.size() <= kPrefix.size() + kSuffix.size() || !is_named_as_checkpoint(name)) return std::nullopt;
  std::int64_t steps = 0;
  const char* end = name.data() + name.size() - kSuffix.size();
  const auto [stop, error] = std::from_chars(name.data() + kPrefix.size(), end, steps);
  if (error != std::errc{} || stop != end || steps < 0) return std::nullopt;
  return steps;
}

// At its end where the folder does not exist.
fs::directory_iterator entries_of(const fs::path& folder) {
  std::error_code error;
  fs::directory_iterator entries(folder, error);
  if (error == std::errc::no_such_file_or_directory) return {};
  if (error) fail(ErrorCode::io, "train: cannot list {}: {}", folder.string(), error.message());
  return entries;
}

std::vector<fs::path> newest_first(const fs::path& folder) {
  std::vector<std::pair<std::int64_t, fs::path>> found;
  for (const fs::directory_entry& entry : entries_of(folder)) {
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

using MetaTexts = std::map<std::string, std::string>;

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
  Texts(const fs::path& path, const MetaTexts& texts) : path_(path), texts_(texts) {}

  const std::string& text(const std::string& key) const {
    const auto found = texts_.find(key);
    if (found == texts_.end())
      fail(ErrorCode::corrupt_data, "train: {}: the header has no \"{}\"", path_.string(), key);
    return found->second;
  }

  template <class Integer>
  Integer count(const std::string& key) const {
    const std::optional<Integer> value = parse<Integer>(text(key));
    if (!value || *value < Integer{0}) {
      fail(ErrorCode::corrupt_data, "train: {}: \"{}\" in the header is no whole number", path_.string(), key);
    }
    return *value;
  }

  double real(const std::string& key) const {
    const double value = real_or_infinity(key);
    if (std::isinf(value)) refuse_number(key);
    return value;
  }

  double real_or_infinity(const std::string& key) const {
    const std::optional<double> value = parse<double>(text(key));
    if (!value || std::isnan(*value)) refuse_number(key);
    return *value;
  }

  bool flag(const std::string& key) const {
    const std::string& word = text(key);
    if (word != "true" && word != "false") {
      fail(ErrorCode::corrupt_data, "train: {}: \"{}\" in the header is neither true nor false", path_.string(), key);
    }
    return word == "true";
  }

 private:
  [[noreturn]] void refuse_number(const std::string& key) const {
    fail(ErrorCode::corrupt_data, "train: {}: \"{}\" in the header is no number", path_.string(), key);
  }

  template <class Number>
  static std::optional<Number> parse(const std::string& digits) {
    Number value{};
    const char* end = digits.data() + digits.size();
    const auto [stop, error] = std::from_chars(digits.data(), end, value);
    if (error != std::errc{} || stop != end) return std::nullopt;
    return value;
  }

  const fs::path& path_;
  const MetaTexts& texts_;
};

void check_format(const fs::path& path, const Texts& texts) {
  if (texts.text("format") == kCheckpointFormat) return;
  fail(ErrorCode::corrupt_data, "train: {}: no checkpoint: wanted format {}", path.string(), kCheckpointFormat);
}

void check_version(const fs::path& path, const Texts& texts) {
  if (texts.text("version") == kCheckpointVersion) return;
  fail(ErrorCode::unsupported, "train: {}: checkpoint version {}, this build reads {}", path.string(),
       texts.text("version").substr(0, 20), kCheckpointVersion);
}

// Of a file. The checksum comes before the version, or a flipped bit in that would pass for a file of another build.
void check_header(const fs::path& path, const SafetensorsFile& file) {
  const Texts texts(path, file.metadata);
  check_format(path, texts);
  const auto checksum = file.metadata.find(kHeaderChecksum);
  if (checksum != file.metadata.end() && checksum->second != header_checksum(file.metadata, file.tensors)) {
    fail(ErrorCode::corrupt_data, "train: {}: the header's checksum does not fit what it says", path.string());
  }
  check_version(path, texts);
  for (const char* key : {kTensorsChecksum, kHeaderChecksum})
    texts.text(key);  // Without them nothing says it is whole.
}

CheckpointInfo read_info(const fs::path& path, const SafetensorsFile& file) {
  const MetaTexts& metadata = file.metadata;
  const Texts texts(path, metadata);
  CheckpointInfo info;
  info.path = path;
  info.run.model = texts.text("model");
  info.run.seed = texts.count<std::uint64_t>("seed");
  info.run.data = texts.count<std::uint64_t>("data");
  info.run.batches_per_epoch = texts.count<std::int64_t>("batches_per_epoch");
  info.run.evaluation_due = texts.flag("evaluation_due");
  info.run.history = texts.text("history");
  if (metadata.count("tuning") != 0) info.run.tuning = texts.text("tuning");
  info.optimizer = texts.text("optimizer");
  info.progress.epoch = texts.count<std::int64_t>("epoch");
  info.progress.batch = texts.count<std::int64_t>("batch");
  info.progress.optimizer_steps = texts.count<std::int64_t>("optimizer_steps");
  if (metadata.count("loss_scale") != 0) {  // Not in those of earlier builds.
    info.progress.loss_scale = texts.real("loss_scale");
    info.progress.scale_good_updates = texts.count<std::int64_t>("scale_good_updates");
    info.progress.skipped_updates = texts.count<std::int64_t>("skipped_updates");
  }
  if (metadata.count(kClipped) != 0) info.progress.clipped_updates = texts.count<std::int64_t>(kClipped);
  if (metadata.count(kLrFactor) != 0) {
    for (const auto& [key, count] : kGuardCounts) info.progress.guard.*count = texts.count<std::int64_t>(key);
    info.progress.guard.lr_factor = texts.real(kLrFactor);
  }
  if (metadata.count(kReductions) != 0) {
    PlateauState& plateau = info.progress.plateau;
    for (const auto& [key, count] : kPlateauCounts) plateau.*count = texts.count<std::int64_t>(key);
    if (metadata.count(kPlateauBest) != 0) plateau.best = texts.real_or_infinity(kPlateauBest);
  }
  if (metadata.count(kMicroBatch) != 0) {
    info.progress.micro_batch = texts.count<std::int64_t>(kMicroBatch);
    info.progress.micro_batch_grows = texts.flag(kMicroBatchGrows);
    info.progress.out_of_memory = texts.count<std::int64_t>(kOutOfMemory);
  }
  info.progress.loss_sum = texts.real("loss_sum");
  info.progress.loss_samples = texts.count<std::int64_t>("loss_samples");
  info.compute_threads = texts.count<std::int64_t>("compute_threads");
  info.averages = has_averages(file.tensors);
  return info;
}

MetaTexts texts_of(Trainer& trainer, const RunState& run) {
  trainer.mean_loss();  // Reads the losses that wait on the device.
  const Progress& progress = trainer.progress();
  MetaTexts texts{{"format", kCheckpointFormat},
                  {"version", kCheckpointVersion},
                  {"model", run.model},
                  {"seed", std::to_string(run.seed)},
                  {"data", std::to_string(run.data)},
                  {"batches_per_epoch", std::to_string(run.batches_per_epoch)},
                  {"evaluation_due", run.evaluation_due ? "true" : "false"},
                  {"history", run.history},
                  {"optimizer", optimizer_name(trainer)},
                  {"epoch", std::to_string(progress.epoch)},
                  {"batch", std::to_string(progress.batch)},
                  {"optimizer_steps", std::to_string(progress.optimizer_steps)},
                  {"loss_sum", fmt::format("{}", progress.loss_sum)},  // The shortest text that comes back bit for bit.
                  {"loss_samples", std::to_string(progress.loss_samples)},
                  {"loss_scale", fmt::format("{}", progress.loss_scale)},
                  {"scale_good_updates", std::to_string(progress.scale_good_updates)},
                  {"skipped_updates", std::to_string(progress.skipped_updates)},
                  {"compute_threads", std::to_string(compute_threads())}};
  if (!run.tuning.empty()) texts["tuning"] = run.tuning;
  if (progress.clipped_updates > 0) texts[kClipped] = std::to_string(progress.clipped_updates);
  if (progress.guard != GuardCounts{}) {
    for (const auto& [key, count] : kGuardCounts) texts[key] = std::to_string(progress.guard.*count);
    texts[kLrFactor] = fmt::format("{}", progress.guard.lr_factor);
  }
  if (progress.plateau != PlateauState{}) {
    for (const auto& [key, count] : kPlateauCounts) texts[key] = std::to_string(progress.plateau.*count);
    if (progress.plateau.best) texts[kPlateauBest] = fmt::format("{}", *progress.plateau.best);
  }
  if (progress.micro_batch > 0 || progress.out_of_memory > 0) {
    texts[kMicroBatch] = std::to_string(progress.micro_batch);
    texts[kMicroBatchGrows] = progress.micro_batch_grows ? "true" : "false";
    texts[kOutOfMemory] = std::to_string(progress.out_of_memory);
  }
  return texts;
}

void add(Named& tensors, std::string_view part, const Named& more) {
  for (const auto& [name, tensor] : more) tensors.emplace_back(std::string(part) + name, tensor);
}

UnwrittenCheckpoint checkpoint_of(Trainer& trainer, const RunState& run, fs::path path) {
  trainer.mean_loss();  // Reads what waits on a device: Progress is whole then, and a fault is an error and no file.
  if (trainer.progress().window != 0) {
    fail(ErrorCode::invalid_argument, "train: checkpoint: wanted no open window, found {} micro-batches in one",
         trainer.progress().window);
  }
  UnwrittenCheckpoint checkpoint;
  checkpoint.path = std::move(path);
  checkpoint.tensors = tensors_of(trainer);
  checkpoint.tensors.emplace_back(kGenerator, generator_state());
  if (!trainer.external_optimizer.step) add(checkpoint.tensors, kLastGood, trainer.last_good_state());
  add(checkpoint.tensors, kOfRun, run.tensors);
  checkpoint.texts = texts_of(trainer, run);
  return checkpoint;
}

// What the best checkpoint says of itself; nullopt: there is none that is whole.
std::optional<double> best_score(const fs::path& path) {
  try {
    const MetaTexts metadata = read_safetensors_metadata(path);
    return Texts(path, metadata).real(metadata.contains(kScore) ? kScore : kEarlierScore);
  } catch (const Error& error) {
    if (error.code() == ErrorCode::not_found || error.code() == ErrorCode::corrupt_data) return std::nullopt;
    throw;
  }
}

// What a checkpoint says of itself; nullopt: it cannot be read, or is none.
std::optional<std::int64_t> steps_of(const fs::path& path) {
  try {
    const MetaTexts metadata = read_safetensors_metadata(path);
    return Texts(path, metadata).count<std::int64_t>("optimizer_steps");
  } catch (const Error&) {
    return std::nullopt;
  }
}

void check_alike(const fs::path& path, const std::string& name, const at::Tensor& found, const at::Tensor& wanted) {
  if (found.sizes() == wanted.sizes() && found.scalar_type() == wanted.scalar_type()) return;
  fail(ErrorCode::invalid_argument, "train: {}: {} is {} [{}], the model wants {} [{}]", path.string(), name,
       c10::toString(found.scalar_type()), fmt::join(found.sizes(), ", "), c10::toString(wanted.scalar_type()),
       fmt::join(wanted.sizes(), ", "));
}

void check_kind(const CheckpointInfo& info, Trainer& trainer, const std::string& model, bool weights_only) {
  const auto refuse = [&info](const char* what, const std::string& found, const std::string& wanted) {
    fail(ErrorCode::invalid_argument, "train: {}: a checkpoint of {} {}, wanted {}", info.path.string(), what,
         found.substr(0, 100), wanted);
  };
  if (info.run.model != model) refuse("model", info.run.model, model);
  if (weights_only) return;
  const std::string optimizer = optimizer_name(trainer);
  if (info.optimizer != optimizer) refuse("optimizer", info.optimizer, optimizer);
  const bool keeps_averages = !trainer.averages().empty();
  if (info.averages == keeps_averages) return;
  fail(ErrorCode::invalid_argument,
       "train: {}: a checkpoint {} averages of the weights, wanted one {} them, as train.ema_decay is {}",
       info.path.string(), info.averages ? "with" : "without", keeps_averages ? "with" : "without",
       trainer.options().ema_decay);
}

using TensorsByName = std::map<std::string, at::Tensor>;

// `part` is what the file's name of it begins with.
void check_generator(const fs::path& path, const TensorsByName& found, std::string_view part) {
  const auto generator = found.find(kGenerator);
  if (generator == found.end())
    fail(ErrorCode::corrupt_data, "train: {}: has no {}{}", path.string(), part, kGenerator);
  const at::Tensor now = generator_state();
  if (generator->second.sizes() != now.sizes() || generator->second.scalar_type() != now.scalar_type()) {
    fail(ErrorCode::corrupt_data, "train: {}: {}{} is no generator state", path.string(), part, kGenerator);
  }
}

// Whether it is optimizer state of a parameter that requires no gradient, which has none today: a file from before the
// parameter was frozen has it, or of an earlier version.
bool is_state_of_frozen(const std::string& name, const std::map<std::string, const at::Tensor*>& wanted_by_name) {
  if (!name.starts_with(kOptimizerState)) return false;
  const std::size_t begin = std::string_view(kOptimizerState).size(), end = name.rfind('/');
  if (end < begin) return false;
  const auto parameter = wanted_by_name.find(kTrained + name.substr(begin, end - begin));
  return parameter != wanted_by_name.end() && !parameter->second->requires_grad();
}

// Every tensor that will be copied is there and fits, and the model has every one of the file's but state of what is
// frozen; with `weights_only`, every one of the file's whose name begins with `part`.
void check_tensors(const fs::path& path, const TensorsByName& found, const Named& wanted, bool weights_only,
                   const char* part) {
  std::map<std::string, const at::Tensor*> wanted_by_name;
  for (const auto& [name, tensor] : wanted) {
    wanted_by_name[name] = &tensor;
    const auto it = found.find(name);
    if (it == found.end()) fail(ErrorCode::invalid_argument, "train: {}: has no {}", path.string(), name);
    check_alike(path, name, it->second, tensor);
  }
  for (const auto& [name, tensor] : found) {
    const bool left_alone = weights_only && !name.starts_with(part);
    if (left_alone || name == kGenerator || wanted_by_name.count(name) != 0) continue;
    if (is_state_of_frozen(name, wanted_by_name)) continue;
    fail(ErrorCode::invalid_argument, "train: {}: holds {}, which the model does not have", path.string(), name);
  }
  if (weights_only) return;
  check_generator(path, found, "");
}

// Takes the tensors whose names begin so out of the file's.
Named take(TensorsByName& found, std::string_view part) {
  Named taken;
  for (auto it = found.lower_bound(std::string(part)); it != found.end() && it->first.starts_with(part);) {
    taken.emplace_back(it->first.substr(part.size()), it->second);
    it = found.erase(it);
  }
  return taken;
}

// What a rollback returns to, where there is some, is whole and fits the tensors that it would be put into. Optimizer
// state may be missing: what is made later begins with zeros.
void check_last_good(const fs::path& path, const Named& last_good, const Named& wanted) {
  if (last_good.empty()) return;
  const TensorsByName by_name(last_good.begin(), last_good.end());
  const auto check = [&](const std::string& name, const at::Tensor& tensor) {
    const auto kept = by_name.find(name);
    if (kept != by_name.end()) return check_alike(path, std::string(kLastGood) + name, kept->second, tensor);
    if (name.starts_with(kOptimizerState)) return;
    fail(ErrorCode::corrupt_data, "train: {}: has no {}{}", path.string(), kLastGood, name);
  };
  for (const auto& [name, tensor] : wanted) check(name, tensor);
  check(kLossScale, at::zeros({2}, at::kDouble));
  check_generator(path, by_name, kLastGood);
}

// load_checkpoint() of a header that was looked at.
CheckpointInfo load_whole(const fs::path& path, SafetensorsFile file, Trainer& trainer, const std::string& model,
                          bool weights_only, const std::function<void(const RunState&)>& accept) {
  CheckpointInfo info = read_info(path, file);
  check_kind(info, trainer, model, weights_only);
  const char* part = info.averages ? kAverages : kTrained;  // Of weights alone.
  const Named wanted = weights_only ? weights_as(part, trainer.model()) : tensors_of(trainer);
  TensorsByName found;
  for (auto& [name, tensor] : file.tensors) found[name] = std::move(tensor);
  Named last_good = take(found, kLastGood);
  info.run.tensors = take(found, kOfRun);
  if (!weights_only) check_last_good(path, last_good, wanted);
  check_tensors(path, found, wanted, weights_only, part);
  const at::Tensor generator_before = generator_state();
  if (!weights_only) set_generator_state(found[kGenerator]);  // First: it may still refuse its bytes.
  try {
    if (accept) accept(info.run);
  } catch (...) {
    if (!weights_only) set_generator_state(generator_before);
    throw;
  }

  c10::AutoGradMode no_graph(false);
  if (weights_only) {
    last_good.clear();  // A rollback would undo the load.
  } else {
    trainer.drop_losses();  // Those that wait on the device are another run's.
    trainer.progress() = info.progress;
  }
  trainer.set_last_good_state(std::move(last_good));
  for (const auto& [name, tensor] : wanted) tensor.copy_(found[name]);  // Each keeps its own layout.
  trainer.optimizer().zero_gradients();
  trainer.progress().window = 0;
  return info;
}

}  // namespace

std::string header_checksum(const SafetensorsTexts& texts, const NamedTensors& tensors) {
  std::vector<SafetensorsEntry> entries;
  for (const auto& [name, tensor] : tensors) entries.push_back(entry_of(name, tensor));
  return header_checksum(texts, entries);
}

UnwrittenCheckpoint next_checkpoint(const fs::path& folder, Trainer& trainer, const RunState& run, std::int64_t keep) {
  if (keep < 1) fail(ErrorCode::invalid_argument, "train: checkpoint: wanted to keep at least 1, found {}", keep);
  const std::int64_t steps = trainer.progress().optimizer_steps;
  UnwrittenCheckpoint next = checkpoint_of(trainer, run, folder / fmt::format("checkpoint-{:09}.safetensors", steps));
  next.keep = keep;
  return next;
}

std::optional<UnwrittenCheckpoint> best_checkpoint(const fs::path& folder, Trainer& trainer, const RunState& run,
                                                   double score) {
  const fs::path path = folder / kBestCheckpoint;
  const std::optional<double> there = best_score(path);
  if (there && *there >= score) return std::nullopt;
  UnwrittenCheckpoint best = checkpoint_of(trainer, run, path);
  best.texts[kScore] = fmt::format("{}", score);
  return best;
}

void write_checkpoint(UnwrittenCheckpoint checkpoint) {
  const fs::path folder = checkpoint.path.parent_path();
  std::error_code error;
  if (!folder.empty()) fs::create_directories(folder, error);
  if (error) fail(ErrorCode::io, "train: cannot make {}: {}", folder.string(), error.message());
  checkpoint.texts[kHeaderChecksum] = header_checksum(checkpoint.texts, checkpoint.tensors);
  write_safetensors(checkpoint.path, checkpoint.tensors, std::move(checkpoint.texts));
  if (checkpoint.keep > 0) remove_older(folder, checkpoint.path, checkpoint.keep);
}

SafetensorsFile checkpoint_state(Trainer& trainer, const RunState& run) {
  UnwrittenCheckpoint checkpoint = checkpoint_of(trainer, run, {});
  return {std::move(checkpoint.tensors), std::move(checkpoint.texts)};
}

CheckpointInfo load_checkpoint_state(const fs::path& name, SafetensorsFile state, Trainer& trainer,
                                     const std::string& model, const std::function<void(const RunState&)>& accept) {
  const Texts texts(name, state.metadata);
  check_format(name, texts);
  check_version(name, texts);
  for (auto& [tensor_name, tensor] : state.tensors) {
    if (tensor_name.starts_with(kLastGood)) tensor = tensor.clone();  // The trainer keeps these.
  }
  return load_whole(name, std::move(state), trainer, model, /*weights_only=*/false, accept);
}

void write_checkpoint(const fs::path& path, Trainer& trainer, const RunState& run) {
  write_checkpoint(checkpoint_of(trainer, run, path));
}

fs::path save_checkpoint(const fs::path& folder, Trainer& trainer, const RunState& run, std::int64_t keep) {
  UnwrittenCheckpoint next = next_checkpoint(folder, trainer, run, keep);
  fs::path path = next.path;
  write_checkpoint(std::move(next));
  return path;
}

bool save_best_checkpoint(const fs::path& folder, Trainer& trainer, const RunState& run, double score) {
  std::optional<UnwrittenCheckpoint> best = best_checkpoint(folder, trainer, run, score);
  if (best) write_checkpoint(std::move(*best));
  return best.has_value();
}

std::optional<fs::path> any_checkpoint(const fs::path& folder) {
  for (const fs::directory_entry& entry : entries_of(folder)) {
    if (is_named_as_checkpoint(entry.path().filename().string())) return entry.path();
  }
  return std::nullopt;
}

std::optional<std::int64_t> newest_step(const fs::path& folder) {
  std::optional<std::int64_t> newest;
  for (const fs::directory_entry& entry : entries_of(folder)) {
    if (is_named_as_checkpoint(entry.path().filename().string())) newest = std::max(newest, steps_of(entry.path()));
  }
  return newest;
}

bool is_checkpoint(const fs::path& path) {
  const MetaTexts metadata = read_safetensors_metadata(path);
  const auto format = metadata.find("format");
  return format != metadata.end() && format->second == kCheckpointFormat;
}

CheckpointInfo load_checkpoint(const fs::path& path, Trainer& trainer, const std::string& model, bool weights_only,
                               const std::function<void(const RunState&)>& accept) {
  SafetensorsFile file = read_safetensors(path);
  check_header(path, file);
  return load_whole(path, std::move(file), trainer, model, weights_only, accept);
}

std::optional<CheckpointInfo> load_newest_checkpoint(const fs::path& folder, Trainer& trainer, const std::string& model,
                                                     bool weights_only, std::vector<std::string>& warnings,
                                                     const std::function<void(const RunState&)>& accept) {
  std::vector<fs::path> candidates = newest_first(folder);
  std::error_code ignored;  // One that cannot be looked at is as good as none.
  if (fs::exists(folder / kBestCheckpoint, ignored)) candidates.push_back(folder / kBestCheckpoint);
  std::optional<Error> newest_error;
  for (const fs::path& path : candidates) {
    try {
      return load_checkpoint(path, trainer, model, weights_only, accept);
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
