// "csv:FILE", a table of numbers: see open_source() for what it is and how it fails.
#include <algorithm>
#include <charconv>
#include <cmath>
#include <limits>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <system_error>
#include <utility>
#include <vector>

#include "core/base/fail.h"
#include "core/base/files.h"
#include "core/base/hash.h"
#include "data/source/detail/scheme.h"
#include "data/store/file_name.h"

namespace headrace {
namespace {

using Path = std::filesystem::path;

constexpr std::int64_t kFileBytesMax = std::int64_t{4} << 30;
constexpr std::int64_t kClassesMax = 1'000'000;
constexpr std::string_view kSpace = " \t\r";

std::string_view trimmed(std::string_view text) {
  const std::size_t begin = text.find_first_not_of(kSpace);
  if (begin == std::string_view::npos) return {};
  return text.substr(begin, text.find_last_not_of(kSpace) + 1 - begin);
}

// The lines that say something, one after the other, cut at their commas.
class Lines {
 public:
  explicit Lines(std::string_view content) : left_(content) {
    constexpr std::string_view kMark = "\xEF\xBB\xBF";
    if (left_.starts_with(kMark)) left_.remove_prefix(kMark.size());
  }

  // False: there are no more.
  bool next() {
    while (!left_.empty()) {
      const std::size_t end = std::min(left_.find('\n'), left_.size());
      const std::string_view line = trimmed(left_.substr(0, end));
      left_.remove_prefix(std::min(end + 1, left_.size()));
      ++number_;
      if (line.empty()) continue;
      cut(line);
      return true;
    }
    return false;
  }
  std::int64_t number() const { return number_; }
  const std::vector<std::string_view>& fields() const { return fields_; }

 private:
  void cut(std::string_view line) {
    fields_.clear();
    std::size_t begin = 0;
    for (std::size_t end = 0; end < line.size(); begin = end + 1) {
      end = std::min(line.find(',', begin), line.size());
      fields_.push_back(trimmed(line.substr(begin, end - begin)));
    }
  }

  std::string_view left_;
  std::int64_t number_ = 0;
  std::vector<std::string_view> fields_;
};

// A file's table as far as one split needs it.
struct Table {
  Table(const Path& path, Split wanted);

  std::string name;  // Of the file.
  std::vector<std::string> columns;
  std::optional<std::size_t> label_at, split_at;
  std::int64_t classes = 0;  // Of all splits.
  std::size_t width = 0;     // Values of a line.
  std::vector<float> values;
  std::vector<std::int64_t> labels, lines;  // One a sample; the number of its line.

 private:
  void take_header(Lines& rest);
  void take_line(const Lines& line, Split wanted);
  std::optional<std::size_t> column(std::string_view wanted) const;
  [[noreturn]] void refuse(const Lines& line, std::size_t at, std::string_view wanted) const;
};

Table::Table(const Path& path, Split wanted) : name(printable_name(path.native())) {
  const std::string content = read_file(path, kFileBytesMax);
  Lines line{content};
  take_header(line);
  while (line.next()) take_line(line, wanted);
}

void Table::take_header(Lines& rest) {
  if (!rest.next()) fail(ErrorCode::corrupt_data, "data: {} is empty; wanted a line with the columns' names", name);
  for (const std::string_view field : rest.fields()) {
    columns.push_back(printable_name(std::string(field)));
    const bool again = std::count(columns.begin(), columns.end(), columns.back()) > 1;
    if (columns.back().empty() || again) {
      fail(ErrorCode::corrupt_data, "data: {}: column {} is named \"{}\"{}", name, columns.size(), columns.back(),
           again ? ", as one before it" : "");
    }
  }
  label_at = column("label");
  split_at = column("split");
  width = columns.size() - (label_at ? 1 : 0) - (split_at ? 1 : 0);
  if (width == 0) fail(ErrorCode::corrupt_data, "data: {} has no columns but label and split", name);
}

std::optional<std::size_t> Table::column(std::string_view wanted) const {
  const auto found = std::find(columns.begin(), columns.end(), wanted);
  return found == columns.end() ? std::nullopt : std::optional{static_cast<std::size_t>(found - columns.begin())};
}

void Table::take_line(const Lines& line, Split wanted) {
  const auto& fields = line.fields();
  if (fields.size() != columns.size()) {
    fail(ErrorCode::corrupt_data, "data: {}: line {} has {} fields; the first line names {}", name, line.number(),
         fields.size(), columns.size());
  }
  const auto whole = [](std::string_view text, auto& value) {
    const auto [stop, error] = std::from_chars(text.data(), text.data() + text.size(), value);
    return error == std::errc{} && stop == text.data() + text.size();
  };
  std::int64_t label = 0;
  if (label_at) {
    if (!whole(fields[*label_at], label) || label < 0 || label >= kClassesMax) {
      refuse(line, *label_at, "a class, 0 to 999,999");
    }
    classes = std::max(classes, label + 1);
  }
  if (split_at) {
    const std::string_view split = fields[*split_at];
    const auto all = choices(Split{});
    const auto found =
        std::find_if(all.begin(), all.end(), [split](const auto& choice) { return choice.name == split; });
    if (found == all.end()) refuse(line, *split_at, "train, val or test");
    if (found->value != wanted) return;
  } else if (wanted != Split::train) {
    return;
  }
  for (std::size_t at = 0; at < fields.size(); ++at) {
    if (at == label_at || at == split_at) continue;
    double number = 0;  // Numbers below the smallest float are read, too.
    const bool is_number = whole(fields[at], number) && std::abs(number) <= std::numeric_limits<float>::max();
    if (!is_number) refuse(line, at, "a number");
    values.push_back(static_cast<float>(number));
  }
  labels.push_back(label);
  lines.push_back(line.number());
}

void Table::refuse(const Lines& line, std::size_t at, std::string_view wanted) const {
  fail(ErrorCode::corrupt_data, "data: {}: line {}, column {}: \"{}\"; wanted {}", name, line.number(), columns[at],
       printable_name(std::string(line.fields()[at])), wanted);
}

class CsvSource final : public Source, KnownSamples {
 public:
  explicit CsvSource(Table table) : table_(std::move(table)) {
    std::vector<FieldSpec> fields{
        {.name = "values", .dtype = DType::f32, .shape = {static_cast<std::int64_t>(table_.width)}}};
    if (table_.label_at) {
      fields.push_back({.name = "labels", .dtype = DType::i64});
      info_.num_classes = table_.classes;
    }
    info_.schema = Schema{std::move(fields)};
    info_.in_memory = true;
    Xxh3Stream stream;
    for (const std::string& column : table_.columns) stream.update(std::as_bytes(std::span{column}));
    stream.update(std::as_bytes(std::span{table_.values}));
    stream.update(std::as_bytes(std::span{table_.labels}));
    info_.fingerprint = stream.digest();
  }

  std::int64_t size() const override { return std::ssize(table_.lines); }
  const SourceInfo& info() const override { return info_; }
  std::string name(std::int64_t index) const override {
    return fmt::format("{}:{}", table_.name, table_.lines[static_cast<std::size_t>(index)]);
  }
  Capabilities capabilities() const override { return {.known = this}; }
  void read(std::int64_t index, Sample& sample) const override {
    if (index < 0 || index >= size()) {
      fail(ErrorCode::invalid_argument, "data: sample {}: there are {} samples", index, size());
    }
    const auto values = std::span{table_.values}.subspan(static_cast<std::size_t>(index) * table_.width, table_.width);
    sample[0].set_bytes({reinterpret_cast<const std::uint8_t*>(values.data()), values.size_bytes()},
                        info_.schema[0].shape);
    if (table_.label_at) sample[1].set_number(label(index));
  }
  std::int64_t label(std::int64_t index) const override {
    return table_.label_at ? table_.labels[static_cast<std::size_t>(index)] : -1;
  }
  std::int64_t sample_bytes(std::int64_t /*index*/) const override {
    return static_cast<std::int64_t>(table_.width * sizeof(float));
  }

 private:
  const Table table_;
  SourceInfo info_;
};

bool csv_has(const Path& path, Split split) {
  return !Table{path, split}.lines.empty();
}

std::unique_ptr<Source> open_csv(const Path& path, Split split, const SampleLimits& limits) {
  Table table{path, split};
  const auto bytes = static_cast<std::int64_t>(table.width * sizeof(float));
  if (bytes > limits.bytes) {
    fail(ErrorCode::unsupported, "data: {}: lines of {} values, {} bytes; wanted at most {} (data.max_sample_bytes)",
         table.name, table.width, bytes, limits.bytes);
  }
  if (table.lines.empty()) return nullptr;
  return std::make_unique<CsvSource>(std::move(table));
}

}  // namespace

detail::Scheme detail::schemes::csv() {
  return {"csv", "FILE", "the column split", csv_has, open_csv};
}

}  // namespace headrace
