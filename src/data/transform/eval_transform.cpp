#include "data/transform/eval_transform.h"

#include <headrace/error.h>
#include <headrace/option_tables.h>
#include <headrace/option_text.h>
#include <headrace/source.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <concepts>
#include <cstdint>
#include <iterator>
#include <string>
#include <string_view>
#include <system_error>
#include <type_traits>
#include <utility>
#include <vector>

#include "core/base/fail.h"
#include "core/base/files.h"
#include "core/options/contradictions.h"
#include "core/options/transforms.h"

namespace headrace {

// As they are written.
constexpr auto choices(Encoding) {
  return std::array{Choice<Encoding>{Encoding::raw, "raw"}, Choice<Encoding>{Encoding::image, "image"},
                    Choice<Encoding>{Encoding::text, "text"}};
}

namespace transform {
namespace {

namespace fs = std::filesystem;

constexpr std::int64_t kFormat = 1;
constexpr std::int64_t kBytesMax = 1 << 20;
// The first line, which is read before the rest: a later format may have other keys.
constexpr std::string_view kFormatKey = "format = ";

struct StoredField {
  std::string name{}, dtype{};
  Shape shape{};
  Encoding encoding = Encoding::raw;
  bool optional = false;
};

// What the file holds beside options of data.
struct Head {
  std::int64_t format = kFormat;
  std::int64_t operations = 0;  // So that none is missing without notice where the file was cut off.
  std::vector<StoredField> fields{};
};

template <class Visitor, class Options>
requires std::same_as<std::remove_const_t<Options>, StoredField>
void describe(Visitor& visit, Options& o) {
  visit("name", o.name, "What the field is called.");
  visit("dtype", o.dtype, "The type of its elements.");
  visit("shape", o.shape, Range<std::int64_t>{kRagged, kExtentMax}, "Of one sample; -1 along axes that differ.");
  visit("encoding", o.encoding, "What its bytes are.");
  visit("optional", o.optional, "Whether a sample may lack it.");
}

template <class Visitor, class Options>
requires std::same_as<std::remove_const_t<Options>, Head>
void describe(Visitor& visit, Options& o) {
  visit("format", o.format, Range<std::int64_t>{kFormat, kFormat}, "Of this file.");
  visit("operations", o.operations, Range<std::int64_t>{0, 1 << 20}, "How many tables [[transforms]] has.");
  visit("fields", o.fields, "The fields of a sample.");
}

// The keys of the file; they refer to both.
std::vector<Field> keys_of(Head& head, DataOptions& data) {
  constexpr std::array<std::string_view, 5> kOfData{"scale_decode", "max_pixels", "max_sample_bytes",
                                                    "transform.layout", "transforms"};
  std::vector<Field> keys = fields_of(head);
  for (Field& key : fields_of(data)) {
    if (std::find(kOfData.begin(), kOfData.end(), key.key) != kOfData.end()) keys.push_back(std::move(key));
  }
  return keys;
}

void check_format(std::string_view text, const std::string& path) {
  std::int64_t format = 0;
  const std::string_view value = text.substr(std::min(kFormatKey.size(), text.size()));
  const bool is_there = text.substr(0, kFormatKey.size()) == kFormatKey &&
                        std::from_chars(value.data(), value.data() + value.size(), format).ec == std::errc{};
  if (!is_there) fail(ErrorCode::corrupt_data, "{}:1: format is missing; wanted \"{}{}\"", path, kFormatKey, kFormat);
  if (format == kFormat) return;
  fail(ErrorCode::unsupported, "{}:1: format is {}; this version reads {}", path, format, kFormat);
}

// A file that was cut off may be TOML still.
void check_whole(Head& head, DataOptions& data, const std::vector<KeyLine>& lines, const std::string& path) {
  for (const Field& key : with_elements(keys_of(head, data))) {
    const auto is_it = [&key](const KeyLine& line) { return line.key == key.key; };
    if (std::any_of(lines.begin(), lines.end(), is_it)) continue;
    fail(ErrorCode::invalid_argument, "{}: {} is missing", path, key.key);
  }
  if (head.operations == std::ssize(data.transforms)) return;
  fail(ErrorCode::corrupt_data, "{}: transforms has {} tables; operations says {}", path, data.transforms.size(),
       head.operations);
}

Schema samples_of(const std::vector<StoredField>& stored, const std::string& path) {
  std::vector<FieldSpec> fields;
  for (std::size_t i = 0; i < stored.size(); ++i) {
    const auto dtype = dtype_named(stored[i].dtype);
    if (!dtype) {
      fail(ErrorCode::invalid_argument, "{}: fields[{}].dtype is \"{}\"; wanted a type as torch calls it", path, i,
           stored[i].dtype);
    }
    fields.push_back({stored[i].name, *dtype, stored[i].shape, stored[i].encoding, stored[i].optional});
  }
  try {
    return Schema{std::move(fields)};
  } catch (const Error& error) {
    throw Error(error.code(), path + ": " + error.what());
  }
}

}  // namespace

EvalTransform eval_transform_of(const DataOptions& options, const Schema& samples) {
  const ImageShape stored = stored_shape(samples);
  DataOptions data;
  data.scale_decode = options.scale_decode;
  data.max_pixels = options.max_pixels;
  data.max_sample_bytes = options.max_sample_bytes;
  data.transform.layout = options.transform.layout;
  data.transforms = transforms_in_force(options, /*training=*/false, {stored.height, stored.width});
  return {samples, std::move(data)};
}

void write_eval_transform(const EvalTransform& made, const fs::path& run) {
  Head head{.operations = std::ssize(made.data.transforms)};
  for (const FieldSpec& field : made.samples.fields()) {
    head.fields.push_back({field.name, std::string(name_of(field.dtype)), field.shape, field.encoding, field.optional});
  }
  DataOptions data = made.data;
  write_file(run / kEvalTransformFile, write_toml(keys_of(head, data), [](const std::string& key) {
               return key == "format" ? "what evaluation makes of an image of this run" : "";
             }));
}

EvalTransform read_eval_transform(const fs::path& run) {
  const std::string path = (run / kEvalTransformFile).string();
  std::error_code ignored;  // Reading it says better why it cannot be looked at.
  if (!fs::exists(path, ignored) && !ignored) {
    fail(ErrorCode::not_found, "transform: there is no {}; wanted the folder of a run that trained", path);
  }
  const std::string text = read_file(path, kBytesMax);
  check_format(text, path);
  if (!text.ends_with('\n')) fail(ErrorCode::corrupt_data, "{}: ends within a line", path);
  Head head;
  EvalTransform read;
  check_whole(head, read.data, read_toml(keys_of(head, read.data), text, path), path);
  if (const std::string fault = transforms_contradiction(read.data, ""); !fault.empty()) {
    fail(ErrorCode::invalid_argument, "{}: {}", path, fault);
  }
  read.samples = samples_of(head.fields, path);
  return read;
}

}  // namespace transform
}  // namespace headrace
