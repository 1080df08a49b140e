// Groups of an optimizer from patterns of names, by dimension and by layer: what OptimizerOptions says of them.
#pragma once

#include <ATen/core/Tensor.h>
#include <headrace/optimizer.h>
#include <headrace/options/optimizer.h>

#include <string>
#include <utility>
#include <vector>

namespace headrace {

// Parameters in none of `options.group` come first, then each of its groups in turn; where layer_decay is not 1, each
// of these is one a layer, the first layer first; where decay_mult_1d is not 1, each of these is two, parameters of
// more than one dimension first. Empty ones are left out; within one the order is that of `parameters`. A group's
// weight_decay is the optimizer's times its multiples; its lr is the optimizer's, which its lr_mult scales at each
// update. Without groups and with both at 1: one group of all. A frozen parameter, which requires no gradient, is in no
// group; its names count for patterns, and its block for the layers.
//
// Layer-wise decay as in Clark and others, ELECTRA (2020), and timm: of n numbered blocks, in the order of
// `parameters`, block k from 1 has layer_decay^(n + 1 - k), what stands before the first block layer_decay^(n + 1), and
// what stands behind the last 1. Where nothing stands behind it, as in MobileNet's numbered classifier, the last block
// has 1. What stands between two blocks is of the one before it.
//
// Error{invalid_argument} names a group without patterns, or a pattern that names no parameter, with the nearest
// name, or only parameters that an earlier group has; or a layer_decay for a model without numbered blocks.
std::vector<ParameterGroup> parameter_groups(const std::vector<std::pair<std::string, at::Tensor>>& parameters,
                                             const OptimizerOptions& options);

}  // namespace headrace
