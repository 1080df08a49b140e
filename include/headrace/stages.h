// Work in stages of which the end of one is the beginning of the next: they share the clock read between them.
#pragma once

#include <headrace/trace.h>

#include <cstdint>

namespace headrace {

// n stages cost n + 1 clock reads and n stores while a Trace records (four stages: 1.25 reads each, where four Spans
// need two each), and a relaxed load each when none does. For one thread, the one that made it.
//
//   Stages stages{step::kTransfer};
//   ...
//   stages.next(step::kForward);
//   ...                            // The end of the block ends the last one.
class [[nodiscard]] Stages {
 public:
  explicit Stages(const SpanName& first, std::int64_t value = 0) noexcept { begin(first, value); }
  ~Stages() { end(); }
  Stages(const Stages&) = delete;
  Stages& operator=(const Stages&) = delete;

  // Ends the stage at hand and begins `name` at the same moment. A name that the Trace does not record leaves a gap.
  void next(const SpanName& name, std::int64_t value = 0) noexcept {
    if (name_ == nullptr) return begin(name, value);
    const std::uint64_t now = detail::ticks();
    detail::record(*name_, begin_, now, value_);
    name_ = detail::records(name) ? &name : nullptr;
    begin_ = now;
    value_ = value;
  }
  // Ends the last stage before the block does; next() may follow.
  void end() noexcept {
    if (name_ != nullptr) detail::record(*name_, begin_, detail::ticks(), value_);
    name_ = nullptr;
  }

 private:
  void begin(const SpanName& name, std::int64_t value) noexcept {
    if (!detail::records(name)) return;
    name_ = &name;
    value_ = value;
    begin_ = detail::ticks();
  }

  const SpanName* name_ = nullptr;  // Of the stage at hand; null: it is not recorded.
  std::uint64_t begin_ = 0;
  std::int64_t value_ = 0;
};

}  // namespace headrace
