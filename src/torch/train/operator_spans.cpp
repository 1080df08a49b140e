#include "torch/train/operator_spans.h"

#include <ATen/core/Tensor.h>
#include <ATen/core/ivalue.h>
#include <ATen/record_function.h>
#include <fmt/format.h>
#include <headrace/operator_category.h>
#include <headrace/trace.h>

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <mutex>
#include <new>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <unordered_map>
#include <utility>
#include <vector>

#include "core/base/fail.h"
#include "torch/tensor/thread_memory.h"

namespace headrace {
namespace {

constexpr std::size_t kNamesMax = 65536;
constexpr std::int64_t kMoreShapes = -1;  // In place of a rank: what follows had no room.

thread_local constinit std::array<std::int64_t, 192> shape_numbers{};

// Of an operator's arguments one behind the other: rank, then sizes. 0 for a scalar, and for what is no dense tensor.
// One at a time in a thread.
class Shapes {
 public:
  void add(const c10::IValue& argument) {
    const at::Tensor* tensor = argument.isTensor() ? &argument.toTensor() : nullptr;
    if (tensor == nullptr || !tensor->defined() || tensor->is_nested() ||
        tensor->unsafeGetTensorImpl()->has_symbolic_sizes_strides()) {
      return put({});
    }
    put(tensor->sizes());
  }
  std::span<const std::int64_t> numbers() const { return {numbers_.data(), size_}; }

 private:
  void put(c10::IntArrayRef sizes) {
    if (is_full_) return;
    is_full_ = size_ + sizes.size() + 2 > numbers_.size();
    numbers_[size_++] = is_full_ ? kMoreShapes : static_cast<std::int64_t>(sizes.size());
    if (is_full_) return;
    std::copy(sizes.begin(), sizes.end(), numbers_.begin() + static_cast<std::ptrdiff_t>(size_));
    size_ += sizes.size();
  }

  std::array<std::int64_t, 192>& numbers_ = shape_numbers;
  std::size_t size_ = 0;
  bool is_full_ = false;
};

std::string text_of(std::span<const std::int64_t> shapes) {
  std::string text = "[";
  for (std::size_t at = 0; at < shapes.size();) {
    if (at > 0) text += ", ";
    const std::int64_t rank = shapes[at++];
    if (rank == kMoreShapes) {
      text += "...";
      continue;
    }
    const auto sizes = shapes.subspan(at, static_cast<std::size_t>(rank));
    text += fmt::format("[{}]", fmt::join(sizes.begin(), sizes.end(), ", "));
    at += sizes.size();
  }
  return text + "]";
}

// An operator as it is asked for, and as it is kept.
struct Asked {
  std::string_view name;
  std::span<const std::int64_t> shapes;
  bool has_shapes = false;
  bool has_memory = false;

  std::size_t hash() const { return mixed(std::hash<std::string_view>{}(name)); }
  // Reads no text.
  std::size_t hash_by_address() const { return mixed(reinterpret_cast<std::uintptr_t>(name.data())); }

 private:
  // With what is asked for beside the name; the highest bits are the best ones.
  std::size_t mixed(std::size_t of_name) const {
    constexpr std::size_t kGolden = 0x9E3779B97F4A7C15;
    std::size_t value = (of_name + (has_shapes ? 2U : 0U) + (has_memory ? 1U : 0U)) * kGolden;
    for (const std::int64_t number : shapes) {
      value = (value ^ (value >> 29) ^ static_cast<std::size_t>(number)) * kGolden;
    }
    return value;
  }
};

// Lives until the process ends, because events keep the address of its span.
struct Known {
  explicit Known(const Asked& asked)
      : name(asked.name),
        category(asked.has_memory ? operators::kCategoryWithMemory : operators::kCategory),
        shapes(asked.shapes.begin(), asked.shapes.end()),
        has_shapes(asked.has_shapes),
        has_memory(asked.has_memory) {
    if (has_shapes) category += " " + text_of(shapes);
    span = {name.c_str(), category.c_str()};
    // What torch.autograd.profiler_util._filter_name leaves out.
    constexpr std::array<std::string_view, 6> kLeftOut{"profiler::_record_function_enter",
                                                       "profiler::_record_function_enter_new",
                                                       "profiler::_record_function_exit",
                                                       "aten::is_leaf",
                                                       "aten::output_nr",
                                                       "aten::_version"};
    is_left_out = std::find(kLeftOut.begin(), kLeftOut.end(), asked.name) != kLeftOut.end();
  }
  Known(const Known&) = delete;
  Known& operator=(const Known&) = delete;

  bool is(const Asked& asked) const {
    return has_memory == asked.has_memory && has_shapes == asked.has_shapes && name == asked.name &&
           std::equal(shapes.begin(), shapes.end(), asked.shapes.begin(), asked.shapes.end());
  }

  std::string name, category;
  std::vector<std::int64_t> shapes;
  bool has_shapes, has_memory;
  bool is_left_out = false;
  SpanName span{};
};

class KnownOperators {
 public:
  const Known& find(Asked asked) {
    const std::lock_guard lock(mutex_);
    if (const Known* known = look_up(asked)) return *known;
    if (known_.size() >= kNamesMax) {
      asked.has_shapes = false;
      asked.shapes = {};
      if (const Known* known = look_up(asked)) return *known;
      asked.name = "other operators";  // Beyond the limit, twice at most.
      if (const Known* known = look_up(asked)) return *known;
    }
    return *known_.emplace(asked.hash(), std::make_unique<Known>(asked))->second;
  }

 private:
  const Known* look_up(const Asked& asked) const {
    const auto [first, last] = known_.equal_range(asked.hash());
    const auto found = std::find_if(first, last, [&](const auto& entry) { return entry.second->is(asked); });
    return found == last ? nullptr : found->second.get();
  }

  std::mutex mutex_;  // Guards `known_`, which never shrinks.
  std::unordered_multimap<std::size_t, std::unique_ptr<Known>> known_;
};

// `hash`: of `asked`, by its name's text or address. Which one decides where to look, and nothing else.
const Known& known_operator(const Asked& asked, std::size_t hash) {
  static auto& all = *new KnownOperators;
  // Those that this thread met last: no lock for them.
  thread_local constinit std::array<const Known*, 1024> recent{};
  const Known*& entry = recent[(hash >> 48) % recent.size()];
  if (entry == nullptr || !entry->is(asked)) entry = &all.find(asked);
  return *entry;
}

// Memory of operators that have ended, for the next ones of the thread. As many as its operators were ever nested.
class SpareBlocks {
 public:
  SpareBlocks() = default;
  SpareBlocks(const SpareBlocks&) = delete;
  SpareBlocks& operator=(const SpareBlocks&) = delete;
  ~SpareBlocks() {
    while (first_ != nullptr) ::operator delete(take());
  }

  void* get(std::size_t size) { return first_ != nullptr ? take() : ::operator new(size); }
  void put(void* block) noexcept {
    if (count_ == kKept) return ::operator delete(block);  // Of operators that began on another thread.
    first_ = new (block) Block{first_};
    ++count_;
  }

 private:
  struct Block {
    Block* next;
  };
  static constexpr int kKept = 256;

  void* take() noexcept {
    --count_;
    return std::exchange(first_, first_->next);
  }

  Block* first_ = nullptr;
  int count_ = 0;
};
thread_local SpareBlocks spare;

// An operator that runs.
struct Open final : at::ObserverContext {
  Open(const SpanName& its_name, std::int64_t bytes_before) : name(its_name), bytes(bytes_before) {}
  static void* operator new(std::size_t size) { return spare.get(size); }
  static void operator delete(void* block) noexcept { spare.put(block); }

  const SpanName& name;
  std::int64_t bytes;
  TraceMoment began;
};

template <bool kShapes, bool kMemory>
std::unique_ptr<at::ObserverContext> on_begin(const at::RecordFunction& operation) {
  Asked asked{operation.name(), {}, kShapes, kMemory};
  Shapes shapes;
  if constexpr (kShapes) {
    for (const c10::IValue& argument : operation.inputs()) shapes.add(argument);
    asked.shapes = shapes.numbers();
  }
  // An operator's name is its schema's, at one address while the process lives. Those of a backward's nodes and of a
  // user's scopes are copied for each call to where another one has been.
  const bool has_place = operation.scope() == at::RecordScope::FUNCTION;
  const Known& known = known_operator(asked, has_place ? asked.hash_by_address() : asked.hash());
  if (known.is_left_out) return nullptr;
  auto open = std::make_unique<Open>(known.span, kMemory ? thread_bytes() : 0);
  open->began = trace_moment();  // Last: what comes before belongs to the operator around it.
  return open;
}

// Of this thread when its memory was recorded last, so that one change is one gauge and not one a level.
thread_local constinit std::int64_t shown_bytes = 0;

template <bool kMemory>
void on_end(const at::RecordFunction& operation, at::ObserverContext* context) {
  if (context == nullptr) return;
  const auto& open = static_cast<const Open&>(*context);
  // A span without length would pass for a gauge.
  const TraceMoment now{std::max(trace_moment().ticks, open.began.ticks + 1)};
  std::int64_t kept = 0;
  if constexpr (kMemory) {
    const std::int64_t bytes = thread_bytes();
    if (!operation.isAsync()) kept = bytes - open.bytes;
    if (std::exchange(shown_bytes, bytes) != bytes) record_gauge(operators::kMemory, bytes);
  }
  record_span(open.name, open.began, now, kept);
}

template <bool kShapes, bool kMemory>
at::RecordFunctionCallback callback() {
  // No scopes named: all of them, as PyTorch's profiler has it.
  return at::RecordFunctionCallback(on_begin<kShapes, kMemory>, on_end<kMemory>).needsInputs(kShapes);
}

at::RecordFunctionCallback callback_for(const OperatorSpansOptions& options) {
  if (options.record_shapes) return options.profile_memory ? callback<true, true>() : callback<true, false>();
  return options.profile_memory ? callback<false, true>() : callback<false, false>();
}

thread_local constinit bool is_observed = false;

}  // namespace

struct OperatorSpans::Impl {
  std::optional<ThreadMemory> memory;
  at::CallbackHandle handle{};
};

OperatorSpans::OperatorSpans(OperatorSpansOptions options) : impl_(std::make_unique<Impl>()) {
  if (is_observed) {
    fail(ErrorCode::invalid_argument, "train: wanted one recording of operators a thread, found a second one");
  }
  if (options.profile_memory) impl_->memory.emplace();
  impl_->handle = at::addThreadLocalCallback(callback_for(options));
  is_observed = true;
}

OperatorSpans::~OperatorSpans() {
  at::removeCallback(impl_->handle);
  is_observed = false;
}

}  // namespace headrace
