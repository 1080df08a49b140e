#include <c10/core/GradMode.h>
#include <headrace/weights.h>

#include <algorithm>
#include <map>
#include <optional>
#include <set>
#include <string_view>
#include <vector>

#include "core/base/fail.h"
#include "torch/model/detail/weight_translation.h"
#include "torch/tensor/pt_weights.h"
#include "torch/tensor/scalar_type.h"

namespace headrace {
namespace {

constexpr std::size_t kNamesShown = 3;

using TensorsByName = std::map<std::string, at::Tensor>;

TensorsByName tensors_of(const ModelState& state) {
  TensorsByName tensors(state.parameters.begin(), state.parameters.end());
  tensors.insert(state.buffers.begin(), state.buffers.end());
  return tensors;
}

// `entry` is the name, or a module that holds it.
bool names(const std::string& entry, std::string_view name) {
  return name.substr(0, entry.size()) == entry && (name.size() == entry.size() || name[entry.size()] == '.');
}

bool is_excepted(const std::vector<std::string>& except, std::string_view name) {
  return std::any_of(except.begin(), except.end(), [&](const std::string& entry) { return names(entry, name); });
}

bool is_batch_count(std::string_view name) {
  constexpr std::string_view ending = "num_batches_tracked";
  return name.size() >= ending.size() && name.substr(name.size() - ending.size()) == ending;
}

std::string described(at::ScalarType type, at::IntArrayRef shape) {
  return fmt::format("{} ({})", c10::toString(type), fmt::join(shape, ", "));
}

// "2 missing (a, b)", at most kNamesShown by name.
std::string counted(const std::vector<std::string>& entries, std::string_view what) {
  const std::size_t shown = std::min(entries.size(), kNamesShown);
  return fmt::format("{} {} ({}{})", entries.size(), what,
                     fmt::join(entries.begin(), entries.begin() + static_cast<std::ptrdiff_t>(shown), ", "),
                     shown < entries.size() ? ", ..." : "");
}

// Compares a file with a model by names, shapes and types.
class Comparison {
 public:
  Comparison(const TensorsByName& wanted, const std::vector<std::string>& except) : wanted_(wanted), except_(except) {}

  void add(const SafetensorsEntry& found) {
    found_.insert(found.name);
    if (is_excepted(except_, found.name)) return;
    const auto wanted = wanted_.find(found.name);
    if (wanted == wanted_.end()) {
      surplus_.push_back(shown_name(found.name));
    } else if (wanted->second.scalar_type() != scalar_type(found.dtype) ||
               wanted->second.sizes() != at::IntArrayRef(found.shape)) {
      different_.push_back(fmt::format("{}: {}, wanted {}", shown_name(found.name),
                                       described(scalar_type(found.dtype), found.shape),
                                       described(wanted->second.scalar_type(), wanted->second.sizes())));
    }
  }

  void finish(const std::filesystem::path& path) {
    for (const auto& [name, tensor] : wanted_) {
      if (found_.count(name) == 0 && !is_excepted(except_, name) && !is_batch_count(name)) {
        missing_.push_back(shown_name(name));
      }
    }
    check_except(path);
    std::vector<std::string> faults;
    if (!missing_.empty()) faults.push_back(counted(missing_, "missing"));
    if (!surplus_.empty()) faults.push_back(counted(surplus_, "surplus"));
    if (!different_.empty()) faults.push_back(counted(different_, "of another shape or type"));
    if (faults.empty()) return;
    fail(ErrorCode::invalid_argument, "model: {} does not fit the network: of {} tensors {}", path.string(),
         wanted_.size(), fmt::join(faults, "; "));
  }

 private:
  // A misspelt entry would load what was to be left alone.
  void check_except(const std::filesystem::path& path) const {
    for (const std::string& entry : except_) {
      if (std::any_of(wanted_.begin(), wanted_.end(), [&](const auto& named) { return names(entry, named.first); }) ||
          std::any_of(found_.begin(), found_.end(), [&](const auto& name) { return names(entry, name); })) {
        continue;
      }
      fail(ErrorCode::invalid_argument, "model: model.weights_except: neither the network nor {} has {}", path.string(),
           shown_name(entry));
    }
  }

  const TensorsByName& wanted_;
  const std::vector<std::string>& except_;
  std::set<std::string> found_;
  std::vector<std::string> missing_, surplus_, different_;
};

}  // namespace

void load_weights(const std::filesystem::path& path, const ModelState& state, const std::vector<std::string>& except) {
  const TensorsByName wanted = tensors_of(state);
  std::optional<WeightTranslation> translation;
  const SafetensorsFile file = read_tensors(path, [&](const std::vector<SafetensorsEntry>& entries) {
    translation.emplace(entries);
    // A TorchScript module may be timm's own, and then the file's names are the network's.
    if (std::any_of(wanted.begin(), wanted.end(),
                    [&](const auto& named) { return translation->renames(named.first); })) {
      translation.emplace(std::vector<SafetensorsEntry>{});
    }
    Comparison comparison(wanted, except);
    for (const SafetensorsEntry& entry : entries) comparison.add(translation->translated(entry));
    comparison.finish(path);
  });
  c10::AutoGradMode no_graph(false);
  const TensorsByName found = translation->translated(file.tensors);
  for (const auto& [name, tensor] : wanted) {
    if (is_excepted(except, name)) continue;
    const auto source = found.find(name);
    if (source == found.end()) {
      tensor.zero_();  // num_batches_tracked alone may be missing.
    } else {
      tensor.copy_(source->second);
    }
  }
}

void save_weights(const std::filesystem::path& path, const ModelState& state,
                  std::map<std::string, std::string> metadata) {
  std::vector<std::pair<std::string, at::Tensor>> tensors = state.parameters;
  tensors.insert(tensors.end(), state.buffers.begin(), state.buffers.end());
  metadata["format"] = "pt";
  write_safetensors(path, tensors, std::move(metadata));
}

}  // namespace headrace
