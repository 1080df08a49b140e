// Types of elements, ours and LibTorch's.
#pragma once

#include <c10/core/ScalarType.h>
#include <headrace/dtype.h>

#include <optional>

namespace headrace {

at::ScalarType scalar_type(DType dtype);
std::optional<DType> dtype_of(at::ScalarType type) noexcept;  // nullopt: one that we have no use for.

}  // namespace headrace
