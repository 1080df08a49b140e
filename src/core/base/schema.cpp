#include <headrace/field.h>

#include <algorithm>
#include <bit>
#include <cstring>
#include <set>
#include <utility>

#include "core/base/fail.h"
#include "core/base/nearest_name.h"
#include "core/base/utf8.h"

namespace headrace {
namespace {

static_assert(std::endian::native == std::endian::little, "the bytes are little-endian and copied as they lie");

constexpr char kMagic[] = {'H', 'R', 'F', 'S'};
constexpr std::uint32_t kFormat = 1;
constexpr std::int64_t kChannelsMax = 4;
constexpr std::string_view kValid = "valid";  // Of a batch: which of its samples count.

// Little-endian: SchemaHead; for each field its FieldEntry, its axes (i64 each), its name, zeros to the next multiple
// of 8.
struct SchemaHead {
  char magic[4];
  std::uint32_t format;
  std::uint32_t fields;
  std::uint32_t bytes;  // Of all, this head among them.
};
struct FieldEntry {
  std::uint8_t dtype;
  std::uint8_t encoding;
  std::uint8_t optional;  // 0 or 1.
  std::uint8_t rank;
  std::uint32_t name_bytes;
};
static_assert(sizeof(SchemaHead) == 16 && sizeof(FieldEntry) == 8);

constexpr std::size_t padded(std::size_t bytes) {
  return (bytes + 7) / 8 * 8;
}

std::string fault_in_name(std::string_view name) {
  if (name.empty()) return "a field without a name";
  if (name.size() > kFieldNameBytesMax) {
    return fmt::format("a field's name of {} bytes; wanted at most {}", name.size(), kFieldNameBytesMax);
  }
  if (utf8_length(name) != name.size()) return "a field's name that is not UTF-8";
  const auto is_control = [](char c) { return static_cast<unsigned char>(c) < 0x20 || c == 0x7F; };
  if (std::any_of(name.begin(), name.end(), is_control)) return "a field's name with a control character";
  if (name == kValid)
    return "a field named valid: every batch has one of that name, which tells the samples that count";
  return "";
}

// What is wrong with it, or nothing.
std::string fault_in(const FieldSpec& field) {
  if (std::string fault = fault_in_name(field.name); !fault.empty()) return fault;
  if (field.shape.size() > kRankMax) {
    return fmt::format("field {}: {} axes; wanted at most {}", field.name, field.shape.size(), kRankMax);
  }
  for (const std::int64_t extent : field.shape) {
    if (extent < kRagged || extent > kExtentMax) {
      return fmt::format("field {}: an axis of {}; wanted -1 (ragged) to {}", field.name, extent, kExtentMax);
    }
  }
  const Shape& shape = field.shape;
  const bool is_image = field.dtype == DType::u8 && shape.size() == 3 && shape[0] != 0 && shape[1] != 0 &&
                        shape[2] >= 1 && shape[2] <= kChannelsMax;
  if (field.encoding == Encoding::image && !is_image) {
    return fmt::format("field {}: an image of {}; wanted uint8 (height, width, channels) with 1 to {} channels",
                       field.name, array_text(field.dtype, shape), kChannelsMax);
  }
  if (field.encoding == Encoding::text && (field.dtype != DType::u8 || shape != Shape{kRagged})) {
    return fmt::format("field {}: a text of {}; wanted uint8 (-1)", field.name, array_text(field.dtype, shape));
  }
  return "";
}

std::string fault_in(const std::vector<FieldSpec>& fields) {
  if (fields.size() > kFieldsMax) return fmt::format("{} fields; wanted at most {}", fields.size(), kFieldsMax);
  std::set<std::string_view> names;
  for (const FieldSpec& field : fields) {
    if (std::string fault = fault_in(field); !fault.empty()) return fault;
    if (!names.insert(field.name).second) return fmt::format("two fields named {}", field.name);
  }
  return "";
}

// In quotes where it could be taken for more than a name.
std::string name_text(const std::string& name) {
  if (name.find_first_of(" ;\"\\") == std::string::npos) return name;
  std::string text = "\"";
  for (const char c : name) {
    if (c == '"' || c == '\\') text += '\\';
    text += c;
  }
  return text + '"';
}

std::string text_of(const FieldSpec& field) {
  std::string text = name_text(field.name) + " " + array_text(field.dtype, field.shape);
  if (field.encoding == Encoding::image) text += " image";
  if (field.encoding == Encoding::text) text += " text";
  if (field.optional) text += " optional";
  return text;
}

// Reads schema_bytes() from the front, and nothing beyond its end.
class SchemaReader {
 public:
  SchemaReader(std::span<const std::byte> bytes, std::string_view what) : rest_(bytes), what_(what) {}

  std::vector<FieldSpec> read() {
    const std::size_t whole = rest_.size();
    const auto head = take<SchemaHead>();
    if (std::memcmp(head.magic, kMagic, sizeof kMagic) != 0) corrupt("no description of fields");
    if (head.format != kFormat) {
      fail(ErrorCode::unsupported, "{}: fields of format {}; this build reads {}", what_, head.format, kFormat);
    }
    if (head.bytes != whole) corrupt("{} bytes tell of fields; their head says {}", whole, head.bytes);
    if (head.fields > kFieldsMax) corrupt("{} fields; wanted at most {}", head.fields, kFieldsMax);
    std::vector<FieldSpec> fields;
    for (std::uint32_t i = 0; i < head.fields; ++i) fields.push_back(read_field(i));
    if (!rest_.empty()) corrupt("{} bytes behind the last of {} fields", rest_.size(), head.fields);
    if (const std::string fault = fault_in(fields); !fault.empty()) corrupt("{}", fault);
    return fields;
  }

 private:
  template <class... Args>
  [[noreturn]] void corrupt(fmt::format_string<Args...> format, Args&&... args) const {
    fail(ErrorCode::corrupt_data, "{}: {}", what_, fmt::format(format, std::forward<Args>(args)...));
  }

  std::span<const std::byte> take(std::size_t bytes) {
    if (bytes > rest_.size()) {
      corrupt("the description of its fields ends {} bytes early", bytes - rest_.size());
    }
    const auto taken = rest_.first(bytes);
    rest_ = rest_.subspan(bytes);
    return taken;
  }
  template <class Value>
  Value take() {
    Value value{};
    std::memcpy(&value, take(sizeof value).data(), sizeof value);
    return value;
  }

  FieldSpec read_field(std::uint32_t number) {
    const auto entry = take<FieldEntry>();
    const std::optional<DType> dtype = dtype_numbered(entry.dtype);
    const bool is_known = dtype && entry.encoding <= static_cast<std::uint8_t>(Encoding::text) && entry.optional <= 1;
    if (!is_known) {
      corrupt("field {}: type {}, encoding {}, flag {}; wanted at most {}, 2, 1", number, entry.dtype, entry.encoding,
              entry.optional, kDTypes - 1);
    }
    FieldSpec field{
        .dtype = *dtype, .encoding = static_cast<Encoding>(entry.encoding), .optional = entry.optional == 1};
    for (std::uint8_t axis = 0; axis < entry.rank; ++axis) field.shape.push_back(take<std::int64_t>());
    const auto name = take(padded(entry.name_bytes));
    field.name.assign(reinterpret_cast<const char*>(name.data()), entry.name_bytes);
    const auto padding = name.subspan(entry.name_bytes);
    if (std::any_of(padding.begin(), padding.end(), [](std::byte byte) { return byte != std::byte{0}; })) {
      corrupt("field {}: bytes behind its name that are not 0", number);
    }
    return field;
  }

  std::span<const std::byte> rest_;
  const std::string_view what_;
};

}  // namespace

bool FieldSpec::is_ragged() const noexcept {
  return std::find(shape.begin(), shape.end(), kRagged) != shape.end();
}

std::optional<std::int64_t> FieldSpec::bytes() const noexcept {
  if (is_ragged()) return std::nullopt;
  if (std::find(shape.begin(), shape.end(), 0) != shape.end()) return 0;
  std::int64_t bytes = bytes_of(dtype);
  for (const std::int64_t extent : shape) {
    if (__builtin_mul_overflow(bytes, extent, &bytes)) return std::nullopt;
  }
  return bytes;
}

std::string array_text(DType dtype, std::span<const std::int64_t> shape) {
  return fmt::format("{} ({})", name_of(dtype), fmt::join(shape, ", "));
}

Schema::Schema(std::vector<FieldSpec> fields) {
  if (const std::string fault = fault_in(fields); !fault.empty()) fail(ErrorCode::invalid_argument, "data: {}", fault);
  if (!fields.empty()) fields_ = std::make_shared<const std::vector<FieldSpec>>(std::move(fields));
}

Schema Schema::image_and_labels(int height, int width, int channels) {
  const auto side = [](int known) { return known == 0 ? kRagged : std::int64_t{known}; };
  return Schema{{{.name = "image", .shape = {side(height), side(width), channels}, .encoding = Encoding::image},
                 {.name = "labels", .dtype = DType::i64}}};
}

std::span<const FieldSpec> Schema::fields() const noexcept {
  return fields_ ? std::span<const FieldSpec>{*fields_} : std::span<const FieldSpec>{};
}

std::optional<std::size_t> Schema::find(std::string_view name) const noexcept {
  for (std::size_t i = 0; i < size(); ++i) {
    if ((*fields_)[i].name == name) return i;
  }
  return std::nullopt;
}

std::size_t Schema::position(std::string_view name) const {
  if (const auto found = find(name)) return *found;
  std::vector<std::string> names;
  for (const FieldSpec& field : fields()) names.push_back(field.name);
  if (names.empty()) fail(ErrorCode::invalid_argument, "data: no field {}; there are no fields", name);
  const std::string nearest = nearest_name(names, name);
  fail(ErrorCode::invalid_argument, "data: no field {}{} fields are {}", name,
       nearest.empty() ? "; the" : fmt::format(", did you mean {}? The", nearest), fmt::join(names, ", "));
}

std::optional<std::size_t> Schema::image() const noexcept {
  for (std::size_t i = 0; i < size(); ++i) {
    if ((*fields_)[i].encoding == Encoding::image) return i;
  }
  return std::nullopt;
}

std::optional<std::size_t> Schema::class_label() const noexcept {
  const auto position = find("labels");
  if (!position) return std::nullopt;
  const FieldSpec& labels = (*fields_)[*position];
  return labels.dtype == DType::i64 && labels.shape.empty() && !labels.optional ? position : std::nullopt;
}

bool Schema::is_image_and_labels() const noexcept {
  if (size() != 2 || class_label() != 1) return false;
  const FieldSpec& image = (*fields_)[0];
  return image.name == "image" && image.encoding == Encoding::image && !image.optional;
}

std::string Schema::text() const {
  std::string text;
  for (const FieldSpec& field : fields()) text += (text.empty() ? "" : "; ") + text_of(field);
  return text;
}

bool operator==(const Schema& a, const Schema& b) noexcept {
  return a.fields_ == b.fields_ ||
         std::equal(a.fields().begin(), a.fields().end(), b.fields().begin(), b.fields().end());
}

std::vector<std::byte> schema_bytes(const Schema& schema) {
  std::vector<std::byte> bytes(sizeof(SchemaHead));
  const auto add = [&bytes](const void* from, std::size_t size) {
    const auto* first = static_cast<const std::byte*>(from);
    bytes.insert(bytes.end(), first, first + size);
  };
  for (const FieldSpec& field : schema.fields()) {
    const FieldEntry entry{static_cast<std::uint8_t>(field.dtype), static_cast<std::uint8_t>(field.encoding),
                           static_cast<std::uint8_t>(field.optional), static_cast<std::uint8_t>(field.shape.size()),
                           static_cast<std::uint32_t>(field.name.size())};
    add(&entry, sizeof entry);
    add(field.shape.data(), field.shape.size() * sizeof(std::int64_t));
    add(field.name.data(), field.name.size());
    bytes.resize(padded(bytes.size()));
  }
  SchemaHead head{{}, kFormat, static_cast<std::uint32_t>(schema.size()), static_cast<std::uint32_t>(bytes.size())};
  std::memcpy(head.magic, kMagic, sizeof kMagic);
  std::memcpy(bytes.data(), &head, sizeof head);
  return bytes;
}

Schema schema_of(std::span<const std::byte> bytes, std::string_view what) {
  return Schema{SchemaReader{bytes, what}.read()};
}

}  // namespace headrace
