// What may be done to a sample on its way into a batch: a list of operations, a struct each.
//
// An operation is added by its struct, in a header of options/transforms/, and its line in options/transforms.inc. The
// struct has kName and kSentence (headrace/named_options.h) and, where anything about it is drawn for each sample,
// kRandom: the list for evaluation, where nobody writes one, leaves those out.
#pragma once

#include <headrace/options/transforms/geometry.h>
#include <headrace/options/transforms/pixels.h>

#include <string_view>
#include <variant>

namespace headrace {

// One operation of a list, with its parameters; std::monostate of one that nobody named yet.
using TransformSpec = std::variant<std::monostate
#define HEADRACE_OPERATION(Name) , transforms::Name
#include <headrace/options/transforms.inc>
#undef HEADRACE_OPERATION
                                   >;

// "RandomResizedCrop"; empty for std::monostate.
std::string_view name_of(const TransformSpec& spec) noexcept;

}  // namespace headrace
