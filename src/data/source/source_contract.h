// For tests: what a source tells without reading is what reading gives.
#pragma once

#include <gtest/gtest.h>
#include <headrace/source.h>

#include <algorithm>
#include <cstdint>
#include <numeric>
#include <set>
#include <string>
#include <vector>

#include "data/source/payload_check.h"
#include "data/source/sample_reader.h"
#include "media/codec/image_size.h"

namespace headrace {

// Rows [1, 3), or fewer where there are no more, are those of the whole image.
inline void expect_rows_of(const ImageRows& rows, const Payload& image, std::int64_t index) {
  const Payload told = rows.outline(index);
  ASSERT_TRUE(std::ranges::equal(told.shape(), image.shape()));
  EXPECT_TRUE(told.bytes.empty());
  const int first = std::min(1, image.height() - 1), count = std::min(2, image.height() - first);
  const auto row = static_cast<std::size_t>(image.width() * image.channels());
  std::vector<std::uint8_t> buffer;
  const auto read = rows.read_rows(index, first, count, buffer);
  const auto wanted = image.bytes.subspan(static_cast<std::size_t>(first) * row, static_cast<std::size_t>(count) * row);
  EXPECT_TRUE(std::ranges::equal(read, wanted)) << "rows of sample " << index;
}

inline void expect_size_of(const ImageSizes& sizes, const Payload& image, std::int64_t index) {
  std::vector<std::uint8_t> buffer;
  const ImageSize told = sizes.image_size(index, buffer);
  const bool is_file = image.form == ImageForm::encoded;
  const codec::HeaderSize in_file = is_file ? codec::header_size(image.bytes) : codec::HeaderSize{};
  EXPECT_EQ(told.height, is_file ? in_file.height : image.height()) << index;
  EXPECT_EQ(told.width, is_file ? in_file.width : image.width()) << index;
}

inline void expect_capabilities_agree(const Source& source) {
  const SampleReader reader{source};
  const SourceInfo& info = reader.info();
  const Capabilities& can = reader.can();
  EXPECT_EQ(&source.info(), &info) << "the same object each time";
  EXPECT_TRUE(info.class_names.empty() || std::ssize(info.class_names) == info.num_classes);
  EXPECT_TRUE(info.shards.empty() ||
              std::accumulate(info.shards.begin(), info.shards.end(), std::int64_t{0}) == source.size());
  EXPECT_TRUE(can.rows == nullptr || can.known != nullptr) << "rows come with labels";
  std::vector<std::int64_t> all(static_cast<std::size_t>(source.size()));
  std::iota(all.begin(), all.end(), std::int64_t{0});
  if (can.expecting != nullptr) can.expecting->expect(all);
  const auto image = info.schema.image(), label = info.schema.class_label();
  std::set<std::string> names;
  for (const std::int64_t index : all) {
    Sample sample{info.schema.size()};
    const std::int64_t told = reader.label(index);
    reader.read(index, sample);
    for (std::size_t i = 0; i < info.schema.size(); ++i) {
      const auto fault = payload_fault(info.schema[i], sample[i], {});
      EXPECT_FALSE(fault.has_value()) << source.name(index) << ": " << fault->text;
    }
    if (label) {
      const auto read = sample[*label].number<std::int64_t>();
      EXPECT_TRUE(told == read || told == -1) << source.name(index) << ": told " << told << ", read " << read;
      EXPECT_EQ(reader.label(index), can.known == nullptr ? -1 : read);
      EXPECT_LT(read, info.num_classes);
    }
    const std::int64_t bytes = reader.sample_bytes(index);
    const bool is_file = image && sample[*image].form == ImageForm::encoded;
    EXPECT_TRUE(bytes == 0 || !is_file || !info.schema.is_image_and_labels() ||
                bytes == std::ssize(sample[*image].bytes));
    if (can.rows != nullptr) expect_rows_of(*can.rows, sample.image(), index);
    if (can.sizes != nullptr) expect_size_of(*can.sizes, sample[*image], index);
    EXPECT_TRUE(can.names == nullptr || names.insert(can.names->stored_name(index)).second);
    EXPECT_FALSE(source.name(index).empty());
  }
}

}  // namespace headrace
