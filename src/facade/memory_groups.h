// What of a training run's tensors lies on a device, by role and module.
#pragma once

#include <c10/core/Device.h>
#include <headrace/model_state.h>
#include <headrace/optimizer.h>

#include <cstdint>
#include <map>
#include <string>

namespace headrace::facade {

// Bytes by "parameters layer4", "buffers bn1", "gradients layer4", "optimizer layer4": role and first part of the name.
// A piece of memory counts once, for the first of these that has it. Either may be null.
std::map<std::string, std::int64_t> memory_groups(const ModelState* model, Optimizer* optimizer, c10::DeviceType type);

}  // namespace headrace::facade
