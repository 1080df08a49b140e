// Bytes by key: what a source reads its samples from.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

namespace headrace {

// Which of a key's bytes are wanted; all of them where nothing else is said.
struct ByteRange {
  std::int64_t offset = 0;             // At least 0.
  std::optional<std::int64_t> size{};  // At least 0. nullopt: all from `offset` on.
  // How many bytes the key had in all when it was listed. Where it has another number now, no part of it is given.
  std::optional<std::int64_t> whole_size{};
};

// Reads only. Thread-safe once built. A key is any bytes that end in NUL: a file's name goes to the system as it is,
// nothing is copied for a sample.
//
// Tiers, retries, counters and faults are stores too: each owns the store below it, is one header and one source, and
// nobody above can tell (src/data/store/fault_store.cpp is the shortest). So every function is pure: one that a wrapper
// forgets to pass on does not compile.
class Store {
 public:
  virtual ~Store() = default;

  // The bytes of `range`, all of them or an Error. They lie at the front of `buffer`, which grows to hold them and at
  // most one byte more, and never shrinks: nothing is allocated once it has held the largest. After an Error it may
  // hold anything. Errors name the key, what was wanted and what was found:
  //   invalid_argument  an offset or a size below 0
  //   not_found         there is no such key, or no longer
  //   io                it cannot be read: permission, no file but a folder, a disk or network that keeps failing
  //   corrupt_data      another size than whole_size, fewer bytes than wanted, or it changed while it was read
  //   unsupported       more bytes than this store reads at once
  // Memory is taken only for bytes that are there.
  virtual std::span<const std::uint8_t> get(const char* key, const ByteRange& range,
                                            std::vector<std::uint8_t>& buffer) const = 0;

  // How many bytes the key has. Errors as get()'s, and about the price of a get() of no bytes.
  virtual std::int64_t size(const char* key) const = 0;

  // A hint: these will be wanted soon, in this order. Returns without waiting for bytes and never throws: what is wrong
  // with a key is told when it is got. A store that gains nothing by it does nothing.
  virtual void expect(std::span<const char* const> keys) const = 0;

  // The key as people find it, one line of text: a path, an address.
  virtual std::string text_of(const char* key) const = 0;
};

}  // namespace headrace
