// Records every operator that runs in a scope as a span.
#pragma once

#include <memory>

namespace headrace {

struct OperatorSpansOptions {
  bool record_shapes = false;   // Of the arguments, in the span's category. Each set of shapes is kept until the end.
  bool profile_memory = false;  // Bytes that each call keeps, as the span's value, and the running total as a gauge.
};

// While it lives, the operators of the thread that made it, and of the backward passes that it starts, are spans of the
// Trace that records (headrace/operator_category.h), beside whatever else that holds. What LibTorch observes is what
// its own profiler sees: operators, nodes of a backward, functions of TorchScript, scopes of
// torch.profiler.record_function; of the lite interpreter and the static runtime, only what they call of these. The
// helpers that PyTorch's tables leave out (profiler::_record_function_enter and the like) are left out here.
//
// Made and ended by one thread. An operator costs two clock reads, a lookup of its name and a store of 32 bytes, and
// what LibTorch takes for any observer, which is most of it (docs/decisions/0045-operators-are-spans-of-the-trace.md);
// one that begins while nothing is recorded costs that alone. A thread keeps 10 KB; nothing else is allocated but for a
// name, or a name with shapes, that is new. 65,536 of these at most: what comes later is recorded without its shapes,
// then as "other operators". An operator that ends on another thread (distributed, forked TorchScript) lies on the
// thread of its end, without its memory.
class OperatorSpans {
 public:
  // Error{invalid_argument}: this thread has one already. Error{unsupported}: memory, while a PyTorch profiler runs.
  explicit OperatorSpans(OperatorSpansOptions options = {});
  ~OperatorSpans();
  OperatorSpans(const OperatorSpans&) = delete;
  OperatorSpans& operator=(const OperatorSpans&) = delete;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace headrace
