#include "core/hardware/run_delay.h"

#include <fcntl.h>
#include <unistd.h>

#include <array>
#include <charconv>
#include <cstddef>

namespace headrace {

std::optional<std::int64_t> parse_run_delay(std::string_view text) {
  std::array<std::int64_t, 3> numbers{};
  const char* at = text.data();
  const char* const end = text.data() + text.size();
  for (std::int64_t& number : numbers) {
    const auto [behind, error] = std::from_chars(at, end, number);
    if (error != std::errc{} || number < 0) return std::nullopt;
    at = behind;
    if (at != end && (*at == ' ' || *at == '\n')) ++at;
  }
  if (at != end) return std::nullopt;
  return numbers[1];
}

RunDelay::RunDelay(const std::string& root)
    : file_(::open((root + "/proc/thread-self/schedstat").c_str(), O_RDONLY | O_CLOEXEC)) {}

std::optional<std::int64_t> RunDelay::ns() const {
  if (file_.number() < 0) return std::nullopt;
  std::array<char, 128> text{};
  const ssize_t read = ::pread(file_.number(), text.data(), text.size(), 0);
  if (read <= 0) return std::nullopt;
  return parse_run_delay({text.data(), static_cast<std::size_t>(read)});
}

}  // namespace headrace
