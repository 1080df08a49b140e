// Which samples are alike.
#pragma once

#include <headrace/options/data.h>
#include <headrace/source.h>

#include <cstdint>
#include <vector>

namespace headrace::detail {

// All samples of the source in such an order that each `group` of them, one after the other, are alike in what
// options.bucket_by names; those that are equal come in an order that the seed decides, or they would come in that of
// the source, class after class.
//
// By shape the samples are halved along the side in which they differ more, each half again, down to one group (a k-d
// tree: Bentley, "Multidimensional binary search trees used for associative searching", CACM 1975). The headers of the
// images are read for it, by several threads: a page or so of each file. One that cannot be read is the Error of its
// sample with on_corrupt = fail, of several the first; else it counts as 0 x 0, as does one that tells no size. Of
// several ranks each refuses what it cannot read, or their orders would differ.
//
// Error{invalid_argument}: the source does not tell the size of its images.
std::vector<std::int64_t> by_likeness(const Source& source, const DataOptions& options, std::uint64_t seed,
                                      std::int64_t group);

}  // namespace headrace::detail
