#include <fcntl.h>
#include <headrace/option_fields.h>
#include <sys/stat.h>

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <optional>
#include <set>
#include <string_view>
#include <unordered_set>
#include <utility>
#include <vector>

#include "core/base/fail.h"
#include "core/base/files.h"
#include "data/source/detail/image_files.h"
#include "data/source/detail/scheme.h"
#include "data/store/file_name.h"
#include "data/store/file_store.h"

namespace headrace {
namespace {

using Path = std::filesystem::path;
using detail::Listing;

constexpr std::int64_t kListBytesMax = std::int64_t{1} << 30;
constexpr std::int64_t kClassesMax = 1'000'000;
constexpr std::size_t kLinesNamed = 10;  // Of those that are bad.

struct Line {
  std::int64_t number = 0;
  std::string path, label;
  Split split = Split::train;
};

// The fields of a line: by tabs where it has any, else by commas, in quotes that are doubled within them (RFC 4180),
// else a path and behind the last space a label. nullopt: a quote is not closed.
std::optional<std::vector<std::string>> fields_of(std::string_view line) {
  const char separator = line.find('\t') != std::string_view::npos  ? '\t'
                         : line.find(',') != std::string_view::npos ? ','
                                                                    : ' ';
  std::vector<std::string> fields;
  if (separator == ' ') {
    const std::size_t end = line.find_last_of(' ');
    if (end == std::string_view::npos) return std::vector{std::string(line)};
    const std::size_t last = line.find_last_not_of(' ', end);
    return std::vector{std::string(line.substr(0, last + 1)), std::string(line.substr(end + 1))};
  }
  for (std::size_t at = 0;;) {
    std::string& field = fields.emplace_back();
    if (separator == ',' && at < line.size() && line[at] == '"') {
      for (++at;; ++at) {
        const std::size_t quote = line.find('"', at);
        if (quote == std::string_view::npos) return std::nullopt;
        field += line.substr(at, quote - at);
        at = quote + 1;
        if (at == line.size() || line[at] != '"') break;
        field += '"';
      }
    }
    const std::size_t end = std::min(line.find(separator, at), line.size());
    field += line.substr(at, end - at);
    if (end == line.size()) return fields;
    at = end + 1;
  }
}

std::optional<std::int64_t> number_of(std::string_view text) {
  std::int64_t value = 0;
  const auto [stop, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  const bool whole = error == std::errc{} && stop == text.data() + text.size();
  return whole && value >= 0 && value < kClassesMax ? std::optional{value} : std::nullopt;
}

std::optional<Split> find_split(std::string_view name) {
  for (const Choice<Split>& split : choices(Split{})) {
    if (split.name == name) return split.value;
  }
  return std::nullopt;
}

// What is wrong, and in which lines.
class BadLines {
 public:
  void add(std::int64_t number, const std::string& what) {
    if (numbers_.empty()) first_ = fmt::format("line {}: {}", number, what);
    numbers_.push_back(number);
  }
  void fail_if_any(const std::string& list) const {
    if (numbers_.empty()) return;
    std::string others;
    for (std::size_t i = 1; i < std::min(numbers_.size(), kLinesNamed); ++i) {
      others += fmt::format("{}{}", i == 1 ? "; also bad: line " : ", ", numbers_[i]);
    }
    if (numbers_.size() > kLinesNamed) others += fmt::format(" and {} more", numbers_.size() - kLinesNamed);
    fail(ErrorCode::corrupt_data, "data: {}: {}{}", list, first_, others);
  }

 private:
  std::string first_;
  std::vector<std::int64_t> numbers_;
};

// Null: it says nothing. What is wrong is noted.
std::optional<Line> parsed(std::string_view text, std::int64_t number, BadLines& bad) {
  if (text.empty() || text.front() == '#') return std::nullopt;
  if (number == 1 && (text == "path,label" || text == "path,label,split")) return std::nullopt;
  const auto fields = fields_of(text);
  const std::size_t count = fields ? fields->size() : 0;
  const auto split = count == 3 ? find_split((*fields)[2]) : Split::train;
  if (!fields) {
    bad.add(number, "a quote is not closed");
  } else if (count != 2 && count != 3) {
    bad.add(number, fmt::format("{} fields; wanted a path, a label and perhaps train, val or test", count));
  } else if ((*fields)[0].empty() || (*fields)[1].empty()) {
    bad.add(number, (*fields)[0].empty() ? "no path" : "no label");
  } else if (text.find('\0') != std::string_view::npos) {
    bad.add(number, "a byte 0");
  } else if (!split) {
    bad.add(number, fmt::format("split '{}'; wanted train, val or test", printable_name((*fields)[2])));
  } else {
    return Line{number, (*fields)[0], (*fields)[1], *split};
  }
  return std::nullopt;
}

std::vector<Line> lines_of(const std::string& content, BadLines& bad) {
  std::vector<Line> lines;
  constexpr std::string_view kMark = "\xEF\xBB\xBF";
  std::string_view left = content;
  if (left.starts_with(kMark)) left.remove_prefix(kMark.size());
  for (std::int64_t number = 1; !left.empty(); ++number) {
    const std::size_t end = std::min(left.find('\n'), left.size());
    std::string_view text = left.substr(0, end);
    left.remove_prefix(std::min(end + 1, left.size()));
    while (!text.empty() && (text.back() == '\r' || text.back() == ' ')) text.remove_suffix(1);
    if (auto line = parsed(text, number, bad)) lines.push_back(std::move(*line));
  }
  return lines;
}

// The classes of all lines: the labels themselves where all are numbers, else their names in Python's order.
class Labels {
 public:
  explicit Labels(const std::vector<Line>& lines) {
    std::int64_t count = 0;
    for (const Line& line : lines) {
      const auto number = number_of(line.label);
      numbers_ = numbers_ && number.has_value();
      count = std::max(count, number.value_or(0) + 1);
    }
    if (numbers_) {
      classes_.resize(static_cast<std::size_t>(count));
      return;
    }
    std::set<std::string_view> names;
    for (const Line& line : lines) names.insert(line.label);
    classes_.assign(names.begin(), names.end());
    std::sort(classes_.begin(), classes_.end(), python_less);
  }

  const std::vector<std::string>& classes() const { return classes_; }
  std::uint32_t of(const Line& line) const {
    if (numbers_) return static_cast<std::uint32_t>(*number_of(line.label));
    return static_cast<std::uint32_t>(std::lower_bound(classes_.begin(), classes_.end(), line.label, python_less) -
                                      classes_.begin());
  }

 private:
  bool numbers_ = true;
  std::vector<std::string> classes_;
};

Listing listing_of(const std::vector<Line>& lines, const Path& root, Split split, BadLines& bad) {
  const Labels labels{lines};
  Listing listing;
  listing.classes = labels.classes();
  listing.classes_in_names = false;
  std::unordered_set<std::string> seen;
  std::int64_t empty = 0;
  for (const Line& line : lines) {
    if (line.split != split) continue;
    const Path path = root / line.path;
    struct stat status {};
    if (::stat(path.c_str(), &status) != 0) {
      bad.add(line.number, fmt::format("{}: {}", printable_name(path.native()), system_message(errno)));
    } else if (!S_ISREG(status.st_mode)) {
      bad.add(line.number, fmt::format("{} is not a regular file", printable_name(path.native())));
    } else if (!seen.insert(detail::below_folder(line.label) + "/" + detail::below_folder(line.path)).second) {
      bad.add(line.number, fmt::format("{} with this label is in the list already", printable_name(line.path)));
    } else {
      listing.add(line.path, status.st_size, labels.of(line));
      empty += status.st_size == 0 ? 1 : 0;
    }
  }
  if (empty > 0) listing.remarks.push_back(fmt::format("Images of 0 bytes: {}", empty));
  return listing;
}

bool list_has(const Path& path, Split split) {
  BadLines ignored;  // Opening the split told of them.
  const std::vector<Line> lines = lines_of(read_file(path, kListBytesMax), ignored);
  return std::any_of(lines.begin(), lines.end(), [split](const Line& line) { return line.split == split; });
}

std::unique_ptr<Source> open_list(const Path& path, Split split, const SampleLimits& /*limits*/) {
  BadLines bad;
  const std::vector<Line> lines = lines_of(read_file(path, kListBytesMax), bad);
  const Path root = path.has_parent_path() ? path.parent_path() : Path(".");
  Listing listing = listing_of(lines, root, split, bad);
  bad.fail_if_any(printable_name(path.native()));
  if (listing.images.empty()) return nullptr;
  const Path index_file = root / ".headrace-index" / path.filename() / choice_name(split) / "entropy.records";
  return detail::open_image_files(std::move(listing), std::make_unique<FileStore>(root), index_file);
}

}  // namespace

detail::Scheme detail::schemes::list() {
  return {"list", "FILE", "the third field of a line", list_has, open_list};
}

}  // namespace headrace
