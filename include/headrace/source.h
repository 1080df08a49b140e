// Samples by index, as stored.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>

namespace headrace {

enum class Split { train, test };

// Pixels as uint8, rows top to bottom, channels interleaved (HWC), without padding. Valid as long as its Source.
struct Sample {
  std::span<const std::uint8_t> pixels;
  int height = 0;
  int width = 0;
  int channels = 0;
  std::int64_t label = 0;  // 0 .. classes - 1.
};

// Thread-safe once built.
class Source {
 public:
  virtual ~Source() = default;
  virtual std::int64_t size() const = 0;
  virtual std::int64_t classes() const = 0;
  // Shape shared by all samples of this source.
  virtual int height() const = 0;
  virtual int width() const = 0;
  virtual int channels() const = 0;
  // Throws Error that names the sample when it cannot be read.
  virtual Sample read(std::int64_t index) const = 0;
  // What a person needs to find the sample: "train-images-idx3-ubyte.gz[137]".
  virtual std::string sample_name(std::int64_t index) const = 0;
};

// "idx:DIR": {train,t10k}-images-idx3-ubyte[.gz] and {train,t10k}-labels-idx1-ubyte[.gz], read whole into memory (47 MB
// for Fashion-MNIST). Errors: not_found (folder or file missing, with what was looked for), corrupt_data (wrong magic,
// truncated, trailing bytes, counts of images and labels differ, with both numbers), io (unreadable), out_of_memory
// (header promises more than 4 GiB), invalid_argument (unknown scheme, with the known ones).
std::unique_ptr<Source> open_source(const std::string& uri, Split split);

}  // namespace headrace
