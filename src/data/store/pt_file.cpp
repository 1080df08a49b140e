#include "data/store/pt_file.h"

#include <algorithm>
#include <array>
#include <map>
#include <optional>
#include <set>
#include <span>
#include <utility>

#include "core/base/fail.h"
#include "data/store/pickle.h"
#include "data/store/safetensors.h"

namespace headrace {
namespace {

using Kind = Pickle::Kind;
using Index = Pickle::Index;

constexpr std::string_view kTensor = "torch._utils._rebuild_tensor_v2", kParameter = "torch._utils._rebuild_parameter";

// Types of elements by the storage class that a file names.
constexpr std::array<std::pair<std::string_view, DType>, 10> kStorages{{{"torch.FloatStorage", DType::f32},
                                                                        {"torch.HalfStorage", DType::f16},
                                                                        {"torch.BFloat16Storage", DType::bf16},
                                                                        {"torch.DoubleStorage", DType::f64},
                                                                        {"torch.LongStorage", DType::i64},
                                                                        {"torch.IntStorage", DType::i32},
                                                                        {"torch.ShortStorage", DType::i16},
                                                                        {"torch.CharStorage", DType::i8},
                                                                        {"torch.ByteStorage", DType::u8},
                                                                        {"torch.BoolStorage", DType::boolean}}};

// Before torch 1.6 a file began with this number as a pickle of protocol 2 (torch.serialization.MAGIC_NUMBER).
constexpr std::string_view kLegacy = "\x80\x02\x8a\x0a\x6c\xfc\x9c\x46\xf9\x20\x6a\xa8\x50\x19";

constexpr std::array<std::string_view, 3> kWrappers{"state_dict", "model_state_dict", "model"};
constexpr std::size_t kDimensionsMax = 64;
constexpr std::size_t kTensorsMax = std::size_t{1} << 18U;  // One of 64 dimensions may be mentioned many times.
constexpr std::size_t kKeysShown = 5;

std::vector<std::string_view> allowed_globals() {
  std::vector<std::string_view> names{kTensor, kParameter};
  for (const auto& [name, dtype] : kStorages) names.push_back(name);
  return names;
}

// The archive's files by their names below its only folder, and which kind of archive that makes it.
class Records {
 public:
  Records(std::string_view file, const std::string& what) : file_(file), what_(what) {
    if (file.substr(0, kLegacy.size()) == kLegacy) {
      fail(ErrorCode::unsupported,
           "{}: has the format of torch before 1.6; to write it anew: torch.save(torch.load(FILE, weights_only=True), "
           "FILE)",
           what);
    }
    const std::vector<ZipRecord> records = zip_records(file, what);
    if (records.empty()) fail(ErrorCode::corrupt_data, "{}: an empty archive", what);
    const std::size_t prefix = records[0].name.find('/') + 1;  // 0: it has no folder.
    const std::string_view folder = records[0].name.substr(0, prefix);
    for (const ZipRecord& record : records) {
      if (record.name.substr(0, prefix) == folder) records_.emplace(record.name.substr(prefix), record);
    }
    check_kind(records);
    check_byte_order();
  }

  // One whose bytes are its content.
  std::optional<ZipRecord> find(std::string_view name) const {
    const auto found = records_.find(name);
    if (found == records_.end()) return std::nullopt;
    if (!found->second.is_plain) {
      fail(ErrorCode::unsupported, "{}: {} is compressed or encrypted, which torch.save does not", what_,
           shown_name(std::string(name)));
    }
    return found->second;
  }

  std::string_view pickle() const {
    const auto record = find("data.pkl");
    if (!record) fail(ErrorCode::corrupt_data, "{}: a zip archive without data.pkl: not of torch.save", what_);
    return content(*record);
  }

 private:
  bool has(std::string_view name) const { return records_.count(name) > 0; }

  std::string_view content(const ZipRecord& record) const { return file_.substr(record.begin, record.bytes); }

  void check_kind(const std::vector<ZipRecord>& records) const {
    if (has("constants.pkl")) {
      fail(ErrorCode::unsupported,
           "{}: a TorchScript archive, whose code runs when it is loaded: if you trust it, model.name = "
           "\"torchscript:FILE\"",
           what_);
    }
    if (const std::string_view kind = pt2_kind(records); !kind.empty()) {
      fail(ErrorCode::unsupported,
           "{}: {} (.pt2), whose code runs when it is loaded, so that no weights are read from it: save them alone, by "
           "torch.save(model.state_dict(), FILE)",
           what_, kind);
    }
  }

  // Files of before the record exist have none, and are little-endian but for a few machines.
  void check_byte_order() const {
    const auto record = find("byteorder");
    if (!record || content(*record) == "little") return;
    if (content(*record) == "big") fail(ErrorCode::unsupported, "{}: big-endian, wanted little-endian", what_);
    fail(ErrorCode::corrupt_data, "{}: its record byteorder is neither little nor big", what_);
  }

  const std::string_view file_;
  const std::string& what_;
  std::map<std::string_view, ZipRecord> records_;
};

class StateDict {
 public:
  StateDict(std::string_view file, const std::string& what)
      : what_(what),
        records_(file, what),
        globals_(allowed_globals()),
        pickle_(read_pickle(records_.pickle(), what, globals_)) {}

  std::vector<PtEntry> entries() const {
    const auto items = pickle_.items(find_dict());
    if (items.size() / 2 > kTensorsMax) {
      fail(ErrorCode::out_of_memory, "{}: {} tensors, wanted at most {}", what_, items.size() / 2, kTensorsMax);
    }
    std::vector<PtEntry> entries;
    entries.reserve(items.size() / 2);
    std::set<std::string_view> names;
    for (std::size_t i = 0; i + 1 < items.size(); i += 2) {
      const Pickle::Value& key = pickle_.at(items[i]);
      if (key.kind != Kind::text) invalid("has {} among the names of its tensors", name_of(key.kind));
      if (!names.insert(key.text).second) corrupt("names the tensor {} twice", shown_name(std::string(key.text)));
      entries.push_back(entry(std::string(key.text), pickle_.at(items[i + 1])));
    }
    return entries;
  }

 private:
  template <class... Args>
  [[noreturn]] void corrupt(fmt::format_string<Args...> format, Args&&... args) const {
    fail(ErrorCode::corrupt_data, "{}: {}", what_, fmt::format(format, std::forward<Args>(args)...));
  }
  template <class... Args>
  [[noreturn]] void invalid(fmt::format_string<Args...> format, Args&&... args) const {
    fail(ErrorCode::invalid_argument, "{}: {}", what_, fmt::format(format, std::forward<Args>(args)...));
  }

  const Pickle::Value& find_dict() const {
    const Pickle::Value& root = pickle_.at(pickle_.root);
    if (root.kind != Kind::dict) invalid("holds {}, wanted a dict of tensors by name", name_of(root.kind));
    const auto items = pickle_.items(root);
    if (items.empty()) return root;
    for (std::size_t i = 1; i < items.size(); i += 2) {
      if (pickle_.at(items[i]).kind == Kind::call) return root;
    }
    for (const std::string_view wrapper : kWrappers) {
      for (std::size_t i = 0; i + 1 < items.size(); i += 2) {
        const Pickle::Value &key = pickle_.at(items[i]), &value = pickle_.at(items[i + 1]);
        if (key.kind == Kind::text && key.text == wrapper && value.kind == Kind::dict) return value;
      }
    }
    std::vector<std::string> keys;
    for (std::size_t i = 0; i < items.size() && keys.size() < kKeysShown; i += 2) {
      const Pickle::Value& key = pickle_.at(items[i]);
      keys.push_back(key.kind == Kind::text ? shown_name(std::string(key.text)) : name_of(key.kind));
    }
    invalid("holds a dict of {} without tensors and without a dict under {}; its keys: {}{}", items.size() / 2,
            fmt::join(kWrappers, ", "), fmt::join(keys, ", "), 2 * keys.size() < items.size() ? ", ..." : "");
  }

  // The arguments of a call of `function`; none: it is something else.
  std::optional<std::span<const Index>> arguments(const Pickle::Value& value, std::string_view function) const {
    if (value.kind != Kind::call) return std::nullopt;
    const auto call = pickle_.items(value);
    if (pickle_.at(call[0]).text != function) return std::nullopt;
    return pickle_.items(pickle_.at(call[1]));
  }

  PtEntry entry(std::string name, const Pickle::Value& value) const {
    const std::string shown = shown_name(name);
    const Pickle::Value* tensor = &value;
    if (const auto parameter = arguments(value, kParameter)) {  // (tensor, requires_grad, hooks)
      if (parameter->size() != 3) corrupt("{}: a parameter of {} parts, wanted 3", shown, parameter->size());
      tensor = &pickle_.at((*parameter)[0]);
    }
    // (storage, offset, size, stride, requires_grad, hooks), and what else sets it apart.
    const auto parts = arguments(*tensor, kTensor);
    if (!parts && tensor->kind == Kind::call) corrupt("{}: a tensor within what is none", shown);
    if (!parts) invalid("{} is {}, wanted a tensor", shown, name_of(tensor->kind));
    if (parts->size() != 6 && parts->size() != 7) corrupt("{}: a tensor of {} parts", shown, parts->size());
    if (parts->size() == 7 && !is_empty(pickle_.at((*parts)[6]))) {
      fail(ErrorCode::unsupported, "{}: {}: a conjugated or negated tensor", what_, shown);
    }
    PtEntry entry{.name = std::move(name)};
    entry.shape = numbers(shown, "size", (*parts)[2]);
    entry.strides = numbers(shown, "stride", (*parts)[3]);
    place(shown, entry, (*parts)[0], number(shown, "offset", (*parts)[1]));
    return entry;
  }

  bool is_empty(const Pickle::Value& value) const {
    return value.kind == Kind::none || (value.kind == Kind::dict && pickle_.items(value).empty());
  }

  std::int64_t number(const std::string& shown, std::string_view part, Index index) const {
    const Pickle::Value& value = pickle_.at(index);
    if (value.kind != Kind::integer || value.number < 0) {
      corrupt("{}: its {} is no whole number of at least 0", shown, part);
    }
    return value.number;
  }

  Shape numbers(const std::string& shown, std::string_view part, Index index) const {
    const Pickle::Value& value = pickle_.at(index);
    if (value.kind != Kind::tuple) corrupt("{}: its {} is {}, wanted a tuple", shown, part, name_of(value.kind));
    const auto items = pickle_.items(value);
    if (items.size() > kDimensionsMax) corrupt("{}: {} dimensions, at most {}", shown, items.size(), kDimensionsMax);
    Shape found;
    for (const Index item : items) found.push_back(number(shown, part, item));
    return found;
  }

  // Where the elements lie, once shape and strides are known.
  void place(const std::string& shown, PtEntry& entry, Index storage, std::int64_t offset) const {
    const Pickle::Value& value = pickle_.at(storage);
    if (value.kind != Kind::persistent) corrupt("{}: lies in {}, wanted a storage", shown, name_of(value.kind));
    const Pickle::Value& id = pickle_.at(pickle_.items(value)[0]);
    const auto parts = id.kind == Kind::tuple ? pickle_.items(id) : std::span<const Index>{};
    // ("storage", class, key, device, elements)
    if (parts.size() != 5 || pickle_.at(parts[0]).text != "storage" || pickle_.at(parts[1]).kind != Kind::global ||
        pickle_.at(parts[2]).kind != Kind::text) {
      corrupt("{}: lies in what is no storage of torch.save", shown);
    }
    const std::string_view type = pickle_.at(parts[1]).text;
    const auto known =
        std::find_if(kStorages.begin(), kStorages.end(), [&](const auto& row) { return row.first == type; });
    if (known == kStorages.end()) corrupt("{}: lies in a storage of the class {}", shown, type);
    entry.dtype = known->second;
    const std::string_view key = pickle_.at(parts[2]).text;
    const auto record = records_.find(fmt::format("data/{}", key));
    if (!record) corrupt("{}: the file lacks its storage {}", shown, shown_name(std::string(key)));
    const auto size = static_cast<std::uint64_t>(bytes_of(entry.dtype));
    const std::int64_t held = number(shown, "storage's length", parts[4]);
    if (static_cast<std::uint64_t>(held) > record->bytes / size) {
      corrupt("{}: a storage of {} elements of {} bytes, the file has {} bytes of it", shown, held, size,
              record->bytes);
    }
    const std::int64_t reach = reach_of(shown, entry);
    if (offset > held || reach > held - offset) {
      corrupt("{}: {} elements from element {} on, of a storage that has {}", shown, reach, offset, held);
    }
    entry.begin = record->begin + static_cast<std::uint64_t>(offset) * size;
    entry.bytes = static_cast<std::uint64_t>(reach) * size;
  }

  // Elements of the storage from the tensor's first to its last; 0: it has none.
  std::int64_t reach_of(const std::string& shown, const PtEntry& entry) const {
    if (entry.shape.size() != entry.strides.size()) {
      corrupt("{}: {} sizes and {} strides", shown, entry.shape.size(), entry.strides.size());
    }
    std::int64_t reach = 1, extents = bytes_of(entry.dtype);
    bool empty = false;
    for (std::size_t i = 0; i < entry.shape.size(); ++i) {
      const std::int64_t extent = std::max<std::int64_t>(entry.shape[i], 1);
      empty |= entry.shape[i] == 0;
      std::int64_t step = 0;
      if (__builtin_mul_overflow(extents, extent, &extents) ||
          __builtin_mul_overflow(extent - 1, entry.strides[i], &step) || __builtin_add_overflow(reach, step, &reach)) {
        corrupt("{}: its size is too large", shown);
      }
    }
    return empty ? 0 : reach;
  }

  const std::string& what_;
  const Records records_;
  const std::vector<std::string_view> globals_;
  const Pickle pickle_;
};

}  // namespace

std::vector<PtEntry> pt_entries(std::string_view file, const std::string& what) {
  return StateDict(file, what).entries();
}

std::string_view pt2_kind(const std::vector<ZipRecord>& records) {
  bool is_exported = false;
  for (const ZipRecord& record : records) {
    for (const std::string_view name : {record.name, record.name.substr(record.name.find('/') + 1)}) {
      if (name.starts_with("data/aotinductor/")) return "a compiled package of AOTInductor";
      is_exported = is_exported || name == "archive_format" || name == "serialized_exported_program.json";
    }
  }
  return is_exported ? "a program of torch.export" : "";
}

}  // namespace headrace
