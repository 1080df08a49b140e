#include "data/loader/detail/loader_state.h"

#include <headrace/option_tables.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <map>
#include <optional>
#include <string_view>
#include <system_error>

#include "core/base/fail.h"

namespace headrace::detail {
namespace {

// Keys that change no byte of any batch, and those that a LoaderState holds as numbers. All others must be the same
// where a state is restored.
constexpr std::array<std::string_view, 13> kKeysOutsideState{
    "source",     "batch_size", "num_workers", "num_workers_max", "prefetch_batches", "prefetch_mib", "auto_tune",
    "world_size", "rank",       "in_order",    "cache",           "cache_mib",        "index"};

constexpr std::string_view kPrefix = "data.";
// Of samples, which a state tells where they are not these.
constexpr std::string_view kFields = "fields", kUsualFields = "image and labels";
// Of epochs, likewise.
constexpr std::string_view kOrder = "order", kGivenOrder = "given", kUsualOrder = "drawn";
// Of a list of operations, which a state tells where there is one.
constexpr std::string_view kTransforms = "data.transforms", kNoTransforms = "[]";
// Of a list that the loader was given beside its options, likewise.
constexpr std::string_view kOperations = "operations", kNoOperations = "those of its options";

std::map<std::string, std::string> lines_of(const std::string& text) {
  std::map<std::string, std::string> lines;
  for (std::size_t at = 0; at < text.size();) {
    const std::size_t end = std::min(text.find('\n', at), text.size());
    const std::string line = text.substr(at, end - at);
    const std::size_t equals = line.find(" = ");
    if (equals == std::string::npos) {
      fail(ErrorCode::invalid_argument, "data: a line of the state's options is \"{}\"; wanted KEY = VALUE", line);
    }
    lines.insert(
        current_setting(line.substr(0, equals), line.substr(equals + 3)));  // Of an earlier version, it may be.
    at = end + 1;
  }
  return lines;
}

std::string shortened(const std::string& value) {
  constexpr std::size_t kShown = 80;
  return value.size() <= kShown ? value : value.substr(0, kShown) + " ...";
}

}  // namespace

std::string state_options(DataOptions options, bool training, const Schema& schema, bool order_is_given,
                          const std::vector<ToldOperation>& operations) {
  std::string text = fmt::format("training = {}\n", training);
  const bool is_one = training || options.eval_transforms.empty();
  const std::string_view list = is_one ? "transforms" : "eval_transforms";  // The one in force.
  for (const Field& field : fields_of(options, std::string(kPrefix))) {
    const std::string_view name = std::string_view(field.key).substr(kPrefix.size());
    if (std::find(kKeysOutsideState.begin(), kKeysOutsideState.end(), name) != kKeysOutsideState.end()) continue;
    if (field.kind == FieldKind::tables) {
      if (name == list && field.element_count() > 0) text += fmt::format("{} = {}\n", kTransforms, tables_toml(field));
      continue;
    }
    text += fmt::format("{} = {}\n", field.key, to_toml(field.get()));
  }
  if (!schema.is_image_and_labels()) text += fmt::format("{} = {}\n", kFields, schema.text());
  if (order_is_given) text += fmt::format("{} = {}\n", kOrder, kGivenOrder);
  std::string names, parameters;
  for (std::size_t i = 0; i < operations.size(); ++i) {
    const ToldOperation& told = operations[i];
    names.append(names.empty() ? "" : ", ").append(told.name);
    for (const OperationParameter& parameter : told.parameters) {
      parameters += fmt::format("{}[{}].{}.{} = {}\n", kOperations, i, told.name, parameter.name, parameter.value);
    }
  }
  if (!names.empty()) text += fmt::format("{} = {}\n", kOperations, names);
  return text + parameters;
}

namespace {

// The options that a loader of this kind has where nobody sets any.
const std::map<std::string, std::string>& default_lines() {
  static const std::map<std::string, std::string> lines = [] {
    auto of_a_loader = lines_of(state_options({}, /*training=*/true, Schema::image_and_labels(0, 0, 3)));
    of_a_loader.erase("training");  // Has no default.
    return of_a_loader;
  }();
  return lines;
}

std::optional<std::int64_t> number_of(const std::map<std::string, std::string>& lines, const std::string& key) {
  const auto line = lines.find(key);
  if (line == lines.end()) return std::nullopt;
  std::int64_t number = 0;
  const char* const end = line->second.data() + line->second.size();
  const auto [stop, error] = std::from_chars(line->second.data(), end, number);
  if (error != std::errc{} || stop != end) return std::nullopt;
  return number;
}

// The lines of a state, those that it may leave out among them, and of values that mean the same one.
std::map<std::string, std::string> whole_lines_of(const std::string& text) {
  auto lines = lines_of(text);
  lines.emplace(kFields, kUsualFields);
  lines.emplace(kOrder, kUsualOrder);
  lines.emplace(kOperations, kNoOperations);
  lines.emplace(kTransforms, kNoTransforms);
  constexpr std::int64_t kSizeMax = 1 << 20;  // More than any option's; no arithmetic overflows below it.
  const std::string resize = "data.transform.resize";
  const auto size = number_of(lines, "data.transform.size"), side = number_of(lines, resize);
  const bool is_read = size && side && *size <= kSizeMax;
  if (is_read && TransformOptions{.size = *size}.resized_side() == *side) lines[resize] = "0";
  return lines;
}

// A state of an earlier version lacks the keys that came later, which had the effect of their defaults then.
void check_options(const std::string& theirs, const std::string& ours) {
  if (theirs == ours) return;
  auto their_lines = whole_lines_of(theirs), our_lines = whole_lines_of(ours);
  const std::string their_list = their_lines.extract(std::string(kTransforms)).mapped();
  const std::string our_list = our_lines.extract(std::string(kTransforms)).mapped();
  if (their_list != our_list) {  // Before the keys that one of them has in its place.
    fail(ErrorCode::invalid_argument, "data: the state is of a loader with {} {}, this one has {}", kTransforms,
         their_list, our_list);
  }
  for (const auto& [key, value] : our_lines) {
    const auto theirs_of_key = their_lines.extract(key);
    const auto default_of_key = default_lines().find(key);
    if (theirs_of_key.empty() && default_of_key == default_lines().end()) {
      fail(ErrorCode::invalid_argument, "data: the state has no {}; this loader has {}", key, shortened(value));
    }
    const std::string& their_value = theirs_of_key.empty() ? default_of_key->second : theirs_of_key.mapped();
    if (their_value != value) {
      fail(ErrorCode::invalid_argument, "data: the state is of a loader with {} {}, this one has {}", key,
           shortened(their_value), shortened(value));
    }
  }
  if (!their_lines.empty()) {
    fail(ErrorCode::invalid_argument, "data: the state has {}, which this version does not know",
         their_lines.begin()->first);
  }
}

}  // namespace

void check_state(const LoaderState& state, const LoaderState& ours, std::int64_t samples, bool has_buckets) {
  if (state.seed != ours.seed) {
    fail(ErrorCode::invalid_argument, "data: the state is of a loader with seed {}, this one has {}", state.seed,
         ours.seed);
  }
  check_options(state.options, ours.options);  // First: another data.val_fraction is other data, too.
  if (state.source != ours.source) {
    fail(ErrorCode::invalid_argument,
         "data: the state is of other data: their fingerprint is {:016x}, that of this loader's source {:016x}",
         state.source, ours.source);
  }
  // A step of all ranks is the same samples then, or each batch is.
  const bool same_step = state.batch_size * state.world_size == ours.batch_size * ours.world_size;
  const bool same_batches = state.batch_size == ours.batch_size && !has_buckets;
  if (!same_step && !same_batches) {
    fail(ErrorCode::invalid_argument,
         "data: the state is of a loader with batch_size {} and world_size {}, this one has {} and {}; wanted the same "
         "{}",
         state.batch_size, state.world_size, ours.batch_size, ours.world_size,
         has_buckets ? "product, as buckets are filled by steps" : "batch_size, or the same product");
  }
  if (state.epoch < 0 || state.position < 0 || state.position > samples) {
    fail(ErrorCode::invalid_argument, "data: the state stands at sample {} of epoch {}; an epoch has {} samples",
         state.position, state.epoch, samples);
  }
}

}  // namespace headrace::detail
