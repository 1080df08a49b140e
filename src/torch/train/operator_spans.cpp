#include "torch/train/operator_spans.h"

#include <ATen/core/Tensor.h>
#include <ATen/core/ivalue.h>
#include <ATen/record_function.h>
#include <fmt/format.h>
#include <headrace/operator_category.h>
#include <headrace/trace.h>
#include <pthread.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <functional>
#include <memory>
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
#include "core/trace/span_end.h"
#include "torch/tensor/thread_memory.h"

namespace headrace {
namespace {

constexpr std::size_t kNamesMax = 65536;
constexpr std::int64_t kMoreShapes = -1;  // In place of a rank: what follows had no room.

using ShapeNumbers = std::array<std::int64_t, 192>;

// Of an operator's arguments one behind the other: rank, then sizes. 0 for a scalar, and for what is no dense tensor.
class Shapes {
 public:
  explicit Shapes(ShapeNumbers& room) : numbers_(room) {}
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

  ShapeNumbers& numbers_;
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
  const char* name;
  std::span<const std::int64_t> shapes;
  bool has_shapes = false;
  bool has_memory = false;

  std::size_t hash() const { return mixed(std::hash<std::string_view>{}(name)); }
  // Reads no text.
  std::size_t hash_by_address() const { return mixed(reinterpret_cast<std::uintptr_t>(name)); }

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
    is_left_out = std::find(kLeftOut.begin(), kLeftOut.end(), name) != kLeftOut.end();
  }
  Known(const Known&) = delete;
  Known& operator=(const Known&) = delete;

  bool is(const Asked& asked) const {
    return has_memory == asked.has_memory && has_shapes == asked.has_shapes &&
           std::strcmp(name.c_str(), asked.name) == 0 &&
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

// Apart, so that the usual case needs none of its registers.
__attribute__((noinline)) const Known& known_operator(const Asked& asked) {
  static auto& all = *new KnownOperators;
  return all.find(asked);
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

// What a thread keeps from one operator to the next.
struct ThreadState {
  // `hash`: of `asked`, by its name's text or address. Which one decides where to look, and nothing else.
  const Known& known(const Asked& asked, std::size_t hash) {
    const Known*& entry = recent[(hash >> 48) % recent.size()];
    if (entry == nullptr || !entry->is(asked)) [[unlikely]]
      entry = &known_operator(asked);
    return *entry;
  }

  std::array<const Known*, 1024> recent{};  // Those that it met last: no lock for them.
  SpareBlocks spare;
  ShapeNumbers shape_numbers{};
  // When its memory was recorded last, so that one change is one gauge and not one a level.
  std::int64_t shown_bytes = 0;
};

// One pointer, of the initial-exec model for the reason of detail::thread_cells: a thread-local object with a
// destructor costs two calls each time it is named.
thread_local constinit ThreadState* own_state __attribute__((tls_model("initial-exec"))) = nullptr;

// A pthread key and not a thread_local object: its destructor runs after all of those, which may still call operators.
__attribute__((noinline)) ThreadState& make_state() {
  static const pthread_key_t thread_end = [] {
    pthread_key_t key{};
    const int error = pthread_key_create(&key, [](void* state) {
      own_state = nullptr;
      delete static_cast<ThreadState*>(state);
    });
    HEADRACE_CHECK(error == 0, "no thread key left: error {}", error);
    return key;
  }();
  own_state = new ThreadState;
  pthread_setspecific(thread_end, own_state);
  return *own_state;
}

ThreadState& thread_state() {
  if (own_state != nullptr) [[likely]]
    return *own_state;
  return make_state();
}

// An operator that runs.
struct Open final : at::ObserverContext {
  Open(const SpanName& its_name, std::int64_t bytes_before) : name(its_name), bytes(bytes_before) {}
  static void* operator new(std::size_t size, ThreadState& thread) { return thread.spare.get(size); }
  static void operator delete(void* block, ThreadState& thread) noexcept { thread.spare.put(block); }
  static void operator delete(void* block) noexcept {
    if (own_state == nullptr) return ::operator delete(block);
    own_state->spare.put(block);
  }

  const SpanName& name;
  std::int64_t bytes;
  TraceMoment began;
};

// An operator's name is its schema's, at one address while the process lives. Those of a backward's nodes, of their
// evaluation ("autograd::engine::evaluate_function: AddBackward0") and of a user's scopes are made for each call, where
// another one has been. Three letters, because as many are compared without a call.
bool has_place(const at::RecordFunction& operation, const char* name) {
  return operation.scope() == at::RecordScope::FUNCTION && std::strncmp(name, "aut", 3) != 0;
}

template <bool kShapes, bool kMemory>
std::unique_ptr<at::ObserverContext> on_begin(const at::RecordFunction& operation) {
  if (detail::trace_mode.load(std::memory_order_relaxed) == detail::TraceMode::off) return nullptr;
  ThreadState& thread = thread_state();
  Asked asked{operation.name(), {}, kShapes, kMemory};
  if constexpr (kShapes) {
    Shapes shapes{thread.shape_numbers};
    for (const c10::IValue& argument : operation.inputs()) shapes.add(argument);
    asked.shapes = shapes.numbers();
  }
  const Known& known = thread.known(asked, has_place(operation, asked.name) ? asked.hash_by_address() : asked.hash());
  if (known.is_left_out) return nullptr;
  std::unique_ptr<Open> open(new (thread) Open(known.span, kMemory ? thread_bytes() : 0));
  open->began = trace_moment();  // Last: what comes before belongs to the operator around it.
  return open;
}

template <bool kMemory>
void on_end(const at::RecordFunction& operation, at::ObserverContext* context) {
  if (context == nullptr) return;
  const auto& open = static_cast<const Open&>(*context);
  const TraceMoment now = span_end(open.began, trace_moment());
  std::int64_t kept = 0;
  if constexpr (kMemory) {
    const std::int64_t bytes = thread_bytes();
    if (!operation.isAsync()) kept = bytes - open.bytes;
    if (std::exchange(thread_state().shown_bytes, bytes) != bytes) record_gauge(operators::kMemory, bytes);
  }
  record_span(open.name, open.began, now, kept);
}

template <bool kShapes, bool kMemory>
at::RecordFunctionCallback callback() {
  // Not all scopes: around each node of a backward the engine sets the thread's state twice, and LibTorch makes its
  // list of callbacks anew each time, with an allocation for each scope that has one (set_record_function_tls_).
  using enum at::RecordScope;
  return at::RecordFunctionCallback(on_begin<kShapes, kMemory>, on_end<kMemory>)
      .needsInputs(kShapes)
      .scopes({FUNCTION, BACKWARD_FUNCTION, TORCHSCRIPT_FUNCTION, USER_SCOPE});
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
