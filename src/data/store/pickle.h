// Python's pickles, as far as torch.save writes them for containers of tensors: read without running anything.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace headrace {

// What a pickle describes, as values that refer to each other by index. A pickle is a program for a stack machine; here
// its calls are written down, not made: `call` holds the function's name and its arguments.
struct Pickle {
  using Index = std::uint32_t;
  enum class Kind : std::uint8_t {
    none,
    boolean,       // number: 0 or 1.
    integer,       // number.
    wide_integer,  // One beyond 64 bits, whose value nobody needs.
    real,          // Nor its.
    text,          // text: UTF-8.
    tuple,         // items: the elements.
    list,          // items: the elements.
    dict,          // items: key, value, key, value; in the order of their setting, with repetitions. OrderedDict, too.
    global,        // text: "module.name", one of those allowed.
    call,          // items: a global, and the tuple of its arguments.
    persistent,    // items: the id, as torch.save has one of each storage.
  };
  struct Value {
    Kind kind = Kind::none;
    std::uint32_t list = 0;  // Of `lists`, where the kind has items.
    std::int64_t number = 0;
    std::string_view text{};
  };

  const Value& at(Index index) const { return values[index]; }
  std::span<const Index> items(const Value& value) const { return lists[value.list]; }

  std::vector<Value> values;
  std::vector<std::vector<Index>> lists;
  Index root = 0;
};

const char* name_of(Pickle::Kind kind) noexcept;  // As a person calls it: "a dict".

inline constexpr std::string_view kOrderedDict = "collections.OrderedDict";  // Always allowed; empty at its call.

// Reads protocols 2 to 5. `globals` lists the names beside kOrderedDict that may be mentioned, as "module.name"; they
// must outlive the result, and so must `bytes`. Takes time and memory in proportion to the bytes, under 1 GB
// at the limits below: nothing is taken on the word of a length, and values that refer to themselves or to one another
// are not followed.
//
// Source: the comments of Python's Lib/pickletools.py.
//
// Every Error begins with `what`. {unsupported}: another global, which is named, or an opcode beyond those that
// torch.save writes for None, bool, int, float, str, tuple, list, dict, OrderedDict and calls of `globals`.
// {corrupt_data}: no pickle, cut off, a stack that runs empty. {out_of_memory}: more than 64 MiB, 4 million values, or
// as many in its memo.
Pickle read_pickle(std::string_view bytes, const std::string& what, std::span<const std::string_view> globals);

}  // namespace headrace
