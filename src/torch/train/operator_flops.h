// Counts what operators that run in a scope compute.
#pragma once

#include <memory>

namespace headrace {

// While it lives, products of matrices and convolutions of the thread that made it are counted, those of a backward on
// the CPU among them; a multiplication and an addition are two operations. Others, attention that is one operator and
// elementwise work among them, are not: the count is what was computed at least. Made and ended by one thread; one
// within the life of another counts nothing. An operator costs some microseconds.
class OperatorFlops {
 public:
  OperatorFlops();
  ~OperatorFlops();
  OperatorFlops(const OperatorFlops&) = delete;
  OperatorFlops& operator=(const OperatorFlops&) = delete;

  double counted() const;  // So far.

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace headrace
