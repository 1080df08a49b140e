// What the Loader's tests share.
#pragma once

#include <gtest/gtest.h>
#include <headrace/loader.h>

#include <cstdint>
#include <numeric>
#include <string>
#include <vector>

#include "core/base/error_of.h"
#include "core/base/hash.h"

namespace headrace {

inline DataOptions options_of(std::int64_t batch_size, std::int64_t threads, std::int64_t prefetch = 2) {
  DataOptions options;
  options.batch_size = batch_size;
  options.num_workers = threads;
  options.prefetch_batches = prefetch;
  return options;
}

inline std::uint64_t digest(const Batch& batch) {
  Xxh3Stream stream;
  for (const BatchField& field : batch.fields()) {
    stream.update(field.bytes);
    stream.update(std::as_bytes(std::span{field.shape}));
    stream.update(std::as_bytes(field.offsets));  // These are of no field of images and labels.
    stream.update(std::as_bytes(field.shapes));
    stream.update(std::as_bytes(field.present));
  }
  stream.update(std::as_bytes(batch.sample_indices()));
  const std::int64_t place[] = {batch.size(), batch.epoch(), batch.index()};
  stream.update(std::as_bytes(std::span{place}));
  return stream.digest();
}

inline std::vector<std::uint64_t> digests(Epoch epoch) {
  std::vector<std::uint64_t> all;
  while (const auto batch = epoch.next()) all.push_back(digest(*batch));
  return all;
}

inline std::vector<std::int64_t> order(Epoch epoch) {
  std::vector<std::int64_t> all;
  while (const auto batch = epoch.next()) {
    all.insert(all.end(), batch->sample_indices().begin(), batch->sample_indices().end());
  }
  return all;
}

// Of each sample that counts: its bytes, label and index.
inline std::vector<std::uint64_t> sample_digests(const Batch& batch) {
  std::vector<std::uint64_t> all;
  const std::span<const std::byte> images = batch.field("image").bytes, labels = batch.field("labels").bytes;
  for (std::size_t i = 0, size = static_cast<std::size_t>(batch.size()); i < size; ++i) {
    if (batch.field("valid").bytes[i] == std::byte{0}) continue;
    Xxh3Stream stream;
    stream.update(images.subspan(i * (images.size() / size), images.size() / size));
    stream.update(labels.subspan(i * sizeof(std::int64_t), sizeof(std::int64_t)));
    stream.update(std::as_bytes(batch.sample_indices().subspan(i, 1)));
    all.push_back(stream.digest());
  }
  return all;
}

inline std::vector<std::uint64_t> sample_digests(Epoch epoch) {
  std::vector<std::uint64_t> all;
  while (const auto batch = epoch.next()) {
    const auto of_batch = sample_digests(*batch);
    all.insert(all.end(), of_batch.begin(), of_batch.end());
  }
  return all;
}

inline std::vector<std::int64_t> counting(std::int64_t size) {
  std::vector<std::int64_t> all(static_cast<std::size_t>(size));
  std::iota(all.begin(), all.end(), std::int64_t{0});
  return all;
}

}  // namespace headrace
