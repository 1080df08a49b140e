#include <headrace/dtype.h>

namespace headrace {

std::int64_t bytes_of(DType dtype) noexcept {
  switch (dtype) {
    case DType::u8:
    case DType::i8:
    case DType::boolean:
      return 1;
    case DType::bf16:
    case DType::f16:
    case DType::i16:
      return 2;
    case DType::f32:
    case DType::i32:
      return 4;
    case DType::i64:
    case DType::f64:
      break;
  }
  return 8;
}

}  // namespace headrace
