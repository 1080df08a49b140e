#include <gtest/gtest.h>

#include <set>

#include "core/base/dtype_table.h"

namespace headrace {
namespace {

TEST(DType, IsFoundByItsNameAndByItsNumber) {
  std::set<std::string_view> names;
  for (const DTypeRow& row : kDTypeTable) {
    EXPECT_EQ(dtype_named(name_of(row.dtype)), row.dtype);
    EXPECT_EQ(dtype_numbered(static_cast<std::int64_t>(row.dtype)), row.dtype);
    names.insert({row.name, row.safetensors, row.libtorch});
  }
  EXPECT_EQ(names.size(), 3 * kDTypes) << "two types share a name";
}

TEST(DType, HasTorchsNamesAndSizes) {
  EXPECT_EQ(name_of(DType::u8), "uint8");
  EXPECT_EQ(name_of(DType::i64), "int64");
  EXPECT_EQ(name_of(DType::f32), "float32");
  EXPECT_EQ(name_of(DType::bf16), "bfloat16");
  EXPECT_EQ(name_of(DType::boolean), "bool");
  EXPECT_EQ(bytes_of(DType::f64), 8);
  EXPECT_EQ(bytes_of(DType::i16), 2);
  EXPECT_EQ(bytes_of(DType::boolean), 1);
}

TEST(DType, OfNoneOfOursIsNone) {
  EXPECT_EQ(dtype_named("complex64"), std::nullopt);
  EXPECT_EQ(dtype_named(""), std::nullopt);
  EXPECT_EQ(dtype_numbered(-1), std::nullopt);
  EXPECT_EQ(dtype_numbered(static_cast<std::int64_t>(kDTypes)), std::nullopt);
}

}  // namespace
}  // namespace headrace
