// How files are opened for reading.
#pragma once

#include <fcntl.h>

#include "core/base/descriptor.h"

namespace headrace {

// O_NONBLOCK: opening a named pipe must not wait for a writer; on a regular file it changes nothing.
inline constexpr int kOpenToRead = O_RDONLY | O_CLOEXEC | O_NONBLOCK;

}  // namespace headrace
