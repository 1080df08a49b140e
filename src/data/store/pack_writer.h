// Writing a pack (data/store/pack_format.h), and going on where a killed writer stopped.
#pragma once

#include <cstdint>
#include <filesystem>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "data/store/pack_format.h"

namespace headrace {

// Where a pack is until it is whole: its name and ".partial".
std::filesystem::path partial_pack(const std::filesystem::path& path);

// Writes a pack, or goes on with one. Until commit() it lies at partial_pack(path), and stays there when the writer is
// gone or the process dies: the next writer of the same path keeps its whole samples. For one thread at a time; another
// process that wants to write the same pack is refused.
class PackFileWriter {
 public:
  enum class Mode { fresh, append };

  // `schema`: of samples of format 2; empty: of images and labels. fresh: Error{invalid_argument} when `path` exists,
  // or when a pack of another fingerprint was begun there. append: the pack at `path` becomes partial again, and its
  // samples stay. Both: Error{invalid_argument} for other classes or fields than it has, Error{io} when it cannot be
  // written or another process writes it, and PackFile's errors.
  PackFileWriter(const std::filesystem::path& path, std::uint64_t fingerprint, const std::vector<std::string>& classes,
                 Mode mode, Schema schema = {});
  ~PackFileWriter();
  PackFileWriter(const PackFileWriter&) = delete;
  PackFileWriter& operator=(const PackFileWriter&) = delete;

  std::span<const PackRow> rows() const noexcept { return rows_; }
  std::string_view name(std::size_t sample) const noexcept;
  std::uint64_t bytes() const noexcept { return at_; }  // So far.
  std::vector<std::uint8_t> read_index(std::size_t sample) const;

  // `row` gives label, height, width, form and split; the rest is filled in. Fault point pack.sample before it.
  void add(PackRow row, std::string_view name, std::span<const std::uint8_t> bytes,
           std::span<const std::uint8_t> index);
  // Fault points pack.table, write.sync, write.rename, write.folder.
  void commit();

 private:
  void take_whole();
  std::vector<std::byte> front() const;
  void begin();
  void recover(Mode mode);
  void write(std::span<const std::byte> bytes);

  const std::filesystem::path path_, partial_;
  const std::uint64_t fingerprint_;
  const std::string classes_;  // As lines.
  const Schema schema_;
  int descriptor_ = -1;
  std::uint64_t at_ = 0;
  std::vector<PackRow> rows_;
  std::vector<std::uint64_t> name_at_;
  std::string names_;
};

}  // namespace headrace
