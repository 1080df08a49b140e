#include "data/store/pickle.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cstring>
#include <unordered_map>
#include <utility>

#include "core/base/fail.h"
#include "core/base/utf8.h"
#include "data/store/safetensors.h"

namespace headrace {
namespace {

static_assert(std::endian::native == std::endian::little, "the format is little-endian and read as it lies");

using Kind = Pickle::Kind;
using Index = Pickle::Index;

constexpr std::size_t kPickleBytesMax = std::size_t{64} << 20U;
constexpr std::size_t kValuesMax = std::size_t{1} << 22U;
constexpr std::size_t kNameShown = 200;  // Bytes of a global's name in a message.

// Opcodes, by the names that pickletools gives them.
enum Opcode : unsigned char {
  kMark = '(',
  kStop = '.',
  kInst = 'i',
  kNone = 'N',
  kBinInt = 'J',
  kBinInt1 = 'K',
  kBinInt2 = 'M',
  kLong1 = 0x8a,
  kBinFloat = 'G',
  kNewTrue = 0x88,
  kNewFalse = 0x89,
  kBinUnicode = 'X',
  kShortBinUnicode = 0x8c,
  kEmptyTuple = ')',
  kTuple = 't',
  kTuple1 = 0x85,
  kTuple2 = 0x86,
  kTuple3 = 0x87,
  kEmptyList = ']',
  kAppend = 'a',
  kAppends = 'e',
  kEmptyDict = '}',
  kSetItem = 's',
  kSetItems = 'u',
  kGlobal = 'c',
  kStackGlobal = 0x93,
  kReduce = 'R',
  kBuild = 'b',
  kBinPersId = 'Q',
  kBinPut = 'q',
  kLongBinPut = 'r',
  kBinGet = 'h',
  kLongBinGet = 'j',
  kMemoize = 0x94,
  kProto = 0x80,
  kFrame = 0x95,
};

// Those that run code or make objects, by name for the message.
constexpr std::array<std::pair<unsigned char, const char*>, 7> kRefused{{{'o', "OBJ"},
                                                                         {'P', "PERSID"},
                                                                         {0x81, "NEWOBJ"},
                                                                         {0x82, "EXT1"},
                                                                         {0x83, "EXT2"},
                                                                         {0x84, "EXT4"},
                                                                         {0x92, "NEWOBJ_EX"}}};

class Machine {
 public:
  Machine(std::string_view bytes, const std::string& what, std::span<const std::string_view> globals)
      : rest_(bytes), what_(what), globals_(globals) {}

  Pickle run() {
    for (auto code = number<unsigned char>(); code != kStop; code = number<unsigned char>()) {
      if (!constant(code) && !container(code) && !reference(code) && !memo(code)) refuse(code);
    }
    if (stack_.size() != 1 || !marks_.empty()) corrupt("its pickle ends with {} values, wanted 1", stack_.size());
    pickle_.root = stack_[0];
    return std::move(pickle_);
  }

 private:
  template <class... Args>
  [[noreturn]] void corrupt(fmt::format_string<Args...> format, Args&&... args) const {
    fail(ErrorCode::corrupt_data, "{}: {}", what_, fmt::format(format, std::forward<Args>(args)...));
  }

  [[noreturn]] void refuse(unsigned char code) const {
    const auto named =
        std::find_if(kRefused.begin(), kRefused.end(), [&](const auto& row) { return row.first == code; });
    fail(ErrorCode::unsupported, "{}: its pickle has the opcode {:#04x}{}{}, which no dict of tensors needs", what_,
         unsigned{code}, named == kRefused.end() ? "" : " ", named == kRefused.end() ? "" : named->second);
  }

  // The next bytes. A length is compared with what is left before anything else.
  std::string_view take(std::uint64_t size) {
    if (size > rest_.size()) corrupt("its pickle is cut off: {} bytes are left, wanted {}", rest_.size(), size);
    const std::string_view taken = rest_.substr(0, size);
    rest_.remove_prefix(size);
    return taken;
  }

  template <class Number>
  Number number() {
    Number value{};
    std::memcpy(&value, take(sizeof value).data(), sizeof value);
    return value;
  }

  std::string_view line() {
    const std::size_t end = rest_.find('\n');
    if (end == std::string_view::npos) corrupt("its pickle is cut off within a name");
    const std::string_view found = take(end);
    rest_.remove_prefix(1);
    return found;
  }

  Index add(Pickle::Value value) {
    if (pickle_.values.size() == kValuesMax) {
      fail(ErrorCode::out_of_memory, "{}: its pickle has more than {} values", what_, kValuesMax);
    }
    pickle_.values.push_back(value);
    return static_cast<Index>(pickle_.values.size() - 1);
  }
  Index add(Kind kind, std::vector<Index> items) {
    pickle_.lists.push_back(std::move(items));
    return add({.kind = kind, .list = static_cast<std::uint32_t>(pickle_.lists.size() - 1)});
  }
  void push(Pickle::Value value) { stack_.push_back(add(value)); }
  void push(Kind kind, std::vector<Index> items) { stack_.push_back(add(kind, std::move(items))); }

  // Not below the last mark.
  void need(std::size_t count) const {
    if (stack_.size() - (marks_.empty() ? 0 : marks_.back()) < count) corrupt("its pickle takes from an empty stack");
  }
  Index pop() {
    need(1);
    const Index index = stack_.back();
    stack_.pop_back();
    return index;
  }
  std::vector<Index> pop_last(std::size_t count) {
    need(count);
    const auto begin = stack_.end() - static_cast<std::ptrdiff_t>(count);
    std::vector<Index> items(begin, stack_.end());
    stack_.erase(begin, stack_.end());
    return items;
  }
  std::vector<Index> pop_to_mark() {
    if (marks_.empty()) corrupt("its pickle goes back to a mark that it has not set");
    std::vector<Index> items = pop_last(stack_.size() - marks_.back());
    marks_.pop_back();
    return items;
  }
  // What lies on top, left there.
  Index top() const {
    need(1);
    return stack_.back();
  }

  bool constant(unsigned char code) {
    switch (code) {
      case kNone:
        push({});
        return true;
      case kNewTrue:
      case kNewFalse:
        push({.kind = Kind::boolean, .number = code == kNewTrue ? 1 : 0});
        return true;
      case kBinInt:
        push({.kind = Kind::integer, .number = number<std::int32_t>()});
        return true;
      case kBinInt1:
        push({.kind = Kind::integer, .number = number<std::uint8_t>()});
        return true;
      case kBinInt2:
        push({.kind = Kind::integer, .number = number<std::uint16_t>()});
        return true;
      case kLong1:
        push(wide(take(number<std::uint8_t>())));
        return true;
      case kBinFloat:
        take(sizeof(double));
        push({.kind = Kind::real});
        return true;
      case kBinUnicode:
        push(utf8(take(number<std::uint32_t>())));
        return true;
      case kShortBinUnicode:
        push(utf8(take(number<std::uint8_t>())));
        return true;
      default:
        return false;
    }
  }

  // Little-endian two's complement of any length; of none it is 0.
  static Pickle::Value wide(std::string_view bytes) {
    if (bytes.size() > sizeof(std::int64_t)) return {.kind = Kind::wide_integer};
    const bool negative = !bytes.empty() && (static_cast<unsigned char>(bytes.back()) & 0x80U) != 0;
    std::int64_t value = negative ? -1 : 0;
    std::memcpy(&value, bytes.data(), bytes.size());
    return {.kind = Kind::integer, .number = value};
  }

  Pickle::Value utf8(std::string_view text) const {
    if (utf8_length(text) != text.size()) corrupt("its pickle has a text that is no UTF-8");
    return {.kind = Kind::text, .text = text};
  }

  bool container(unsigned char code) {
    switch (code) {
      case kMark:
        marks_.push_back(stack_.size());
        return true;
      case kEmptyTuple:
        push(Kind::tuple, {});
        return true;
      case kTuple:
        push(Kind::tuple, pop_to_mark());
        return true;
      case kTuple1:
      case kTuple2:
      case kTuple3:
        push(Kind::tuple, pop_last(std::size_t{1} + code - kTuple1));
        return true;
      case kEmptyList:
        push(Kind::list, {});
        return true;
      case kAppend:
        extend(Kind::list, pop_last(1));
        return true;
      case kAppends:
        extend(Kind::list, pop_to_mark());
        return true;
      case kEmptyDict:
        push(Kind::dict, {});
        return true;
      case kSetItem:
        extend(Kind::dict, pop_last(2));
        return true;
      case kSetItems:
        extend(Kind::dict, pop_to_mark());
        return true;
      default:
        return false;
    }
  }

  // Into the container on top.
  void extend(Kind wanted, std::vector<Index> items) {
    const Pickle::Value& target = pickle_.at(top());
    if (target.kind != wanted)
      corrupt("its pickle puts items into {}, wanted {}", name_of(target.kind), name_of(wanted));
    if (wanted == Kind::dict && items.size() % 2 != 0) corrupt("its pickle has a key without a value");
    std::vector<Index>& list = pickle_.lists[target.list];
    list.insert(list.end(), items.begin(), items.end());
  }

  bool reference(unsigned char code) {
    switch (code) {
      case kGlobal:
      case kInst: {
        const std::string_view module = line(), name = line();
        push(global(module, name));
        if (code == kInst) refuse(code);  // Which also calls it.
        return true;
      }
      case kStackGlobal: {
        const Index name = pop(), module = pop();
        if (pickle_.at(name).kind != Kind::text || pickle_.at(module).kind != Kind::text) {
          corrupt("its pickle has a global whose name is no text");
        }
        push(global(pickle_.at(module).text, pickle_.at(name).text));
        return true;
      }
      case kReduce:
        reduce();
        return true;
      case kBuild: {
        const Index state = pop();
        // OrderedDict's attributes: a state_dict has its modules' versions there, which nobody here reads.
        if (pickle_.at(top()).kind != Kind::dict || pickle_.at(state).kind != Kind::dict) {
          fail(ErrorCode::unsupported, "{}: its pickle sets attributes of {}", what_, name_of(pickle_.at(top()).kind));
        }
        return true;
      }
      case kBinPersId:
        push(Kind::persistent, {pop()});
        return true;
      default:
        return false;
    }
  }

  Pickle::Value global(std::string_view module, std::string_view name) const {
    const std::string wanted = fmt::format("{}.{}", module, name);
    if (wanted == kOrderedDict) return {.kind = Kind::global, .text = kOrderedDict};
    const auto found = std::find(globals_.begin(), globals_.end(), wanted);
    if (found == globals_.end()) {
      fail(ErrorCode::unsupported,
           "{}: its pickle asks for {}, and nothing is run or looked up for a file: wanted tensors, dicts, lists, "
           "tuples, text and numbers, as torch.save(model.state_dict(), FILE) writes them",
           what_, shown_name(wanted.substr(0, kNameShown)));
    }
    return {.kind = Kind::global, .text = *found};
  }

  void reduce() {
    const Index arguments = pop(), function = pop();
    if (pickle_.at(function).kind != Kind::global || pickle_.at(arguments).kind != Kind::tuple) {
      corrupt("its pickle calls {} with {}", name_of(pickle_.at(function).kind), name_of(pickle_.at(arguments).kind));
    }
    if (pickle_.at(function).text != kOrderedDict) {
      push(Kind::call, {function, arguments});
    } else if (pickle_.items(pickle_.at(arguments)).empty()) {
      push(Kind::dict, {});
    } else {
      fail(ErrorCode::unsupported, "{}: its pickle makes an OrderedDict of something else than nothing", what_);
    }
  }

  bool memo(unsigned char code) {
    switch (code) {
      case kBinPut:
        remember(number<std::uint8_t>());
        return true;
      case kLongBinPut:
        remember(number<std::uint32_t>());
        return true;
      case kMemoize:
        remember(static_cast<std::uint32_t>(memo_.size()));
        return true;
      case kBinGet:
        stack_.push_back(remembered(number<std::uint8_t>()));
        return true;
      case kLongBinGet:
        stack_.push_back(remembered(number<std::uint32_t>()));
        return true;
      case kProto:
        if (const auto protocol = number<std::uint8_t>(); protocol < 2 || protocol > 5) {
          fail(ErrorCode::unsupported, "{}: a pickle of protocol {}, wanted 2 to 5", what_, protocol);
        }
        return true;
      case kFrame:  // How much of a stream to read ahead.
        take(sizeof(std::uint64_t));
        return true;
      default:
        return false;
    }
  }

  // What lies on top, under this number. A writer stores each value once; one byte may ask for more.
  void remember(std::uint32_t number) {
    memo_[number] = top();
    if (memo_.size() > kValuesMax) {
      fail(ErrorCode::out_of_memory, "{}: its pickle stores more than {} values", what_, kValuesMax);
    }
  }

  Index remembered(std::uint32_t number) const {
    const auto found = memo_.find(number);
    if (found == memo_.end()) corrupt("its pickle refers to value {}, which it has not stored", number);
    return found->second;
  }

  std::string_view rest_;
  const std::string& what_;
  const std::span<const std::string_view> globals_;
  Pickle pickle_;
  std::vector<Index> stack_;
  std::vector<std::size_t> marks_;                 // Sizes of the stack.
  std::unordered_map<std::uint32_t, Index> memo_;  // By the number that the pickle chose, which may be any.
};

}  // namespace

const char* name_of(Kind kind) noexcept {
  switch (kind) {
    case Kind::none:
      return "None";
    case Kind::boolean:
      return "a bool";
    case Kind::integer:
    case Kind::wide_integer:
      return "an int";
    case Kind::real:
      return "a float";
    case Kind::text:
      return "a str";
    case Kind::tuple:
      return "a tuple";
    case Kind::list:
      return "a list";
    case Kind::dict:
      return "a dict";
    case Kind::global:
      return "a class or function";
    case Kind::call:
      return "a tensor";
    case Kind::persistent:
      return "a storage";
  }
  return "";
}

Pickle read_pickle(std::string_view bytes, const std::string& what, std::span<const std::string_view> globals) {
  if (bytes.size() > kPickleBytesMax) {
    fail(ErrorCode::out_of_memory, "{}: a pickle of {} bytes, wanted at most {}", what, bytes.size(), kPickleBytesMax);
  }
  return Machine(bytes, what, globals).run();
}

}  // namespace headrace
