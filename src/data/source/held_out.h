// The splits of a data set as a recipe's [data] says: those that its source has, or with data.val_fraction a val that
// is held out of train.
#pragma once

#include <headrace/source.h>

#include <cstdint>
#include <memory>

namespace headrace {

// Null: there is no such split. Errors as open_source's, and Error{invalid_argument} when data.val_fraction is above 0
// and the source has a split val of its own.
std::shared_ptr<const Source> find_split(const DataOptions& options, std::uint64_t seed, Split split);
// The same for one that must be there.
std::shared_ptr<const Source> open_split(const DataOptions& options, std::uint64_t seed, Split split);

// `source` in two parts: a share of `fraction` of its samples, drawn from the seed and their number alone, is val, the
// others are train, both in their order. Test, and any split with fraction 0, is `source` itself. Costs 8 bytes a
// sample. Error{invalid_argument}: a part would be empty.
std::shared_ptr<const Source> part_of(std::shared_ptr<const Source> source, double fraction, std::uint64_t seed,
                                      Split split);

}  // namespace headrace
