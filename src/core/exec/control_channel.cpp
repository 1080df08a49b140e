#include "core/exec/control_channel.h"

#include <poll.h>
#include <sys/socket.h>

#include <algorithm>
#include <cerrno>
#include <cstddef>
#include <span>

#include "core/base/fail.h"
#include "core/base/files.h"

namespace headrace {
namespace {

using Clock = std::chrono::steady_clock;
using Wire = std::array<std::uint8_t, ControlMessage::kSize>;

constexpr std::size_t kNumbersAt = 8;

template <class Number>
void put(std::span<std::uint8_t> target, Number value) {
  for (std::size_t i = 0; i < sizeof value; ++i) target[i] = static_cast<std::uint8_t>(value >> (8 * i));
}

std::uint64_t get(std::span<const std::uint8_t> source) {
  std::uint64_t value = 0;
  for (std::size_t i = source.size(); i > 0; --i) value = value << 8 | source[i - 1];
  return value;
}

Wire encoded(const ControlMessage& message) {
  Wire wire{};
  put(std::span{wire}.first(4), message.kind);
  for (std::size_t i = 0; i < message.numbers.size(); ++i) {
    put(std::span{wire}.subspan(kNumbersAt + 8 * i, 8), static_cast<std::uint64_t>(message.numbers[i]));
  }
  return wire;
}

ControlMessage decoded(const Wire& wire) {
  ControlMessage message;
  message.kind = static_cast<std::uint32_t>(get(std::span{wire}.first(4)));
  for (std::size_t i = 0; i < message.numbers.size(); ++i) {
    message.numbers[i] = static_cast<std::int64_t>(get(std::span{wire}.subspan(kNumbersAt + 8 * i, 8)));
  }
  return message;
}

// False: nothing to read before `deadline`.
bool wait_until_readable(int socket, Clock::time_point deadline) {
  while (true) {
    const auto left = std::chrono::ceil<std::chrono::milliseconds>(deadline - Clock::now()).count();
    pollfd wanted{.fd = socket, .events = POLLIN, .revents = 0};
    const int ready = ::poll(&wanted, 1, static_cast<int>(std::clamp<std::int64_t>(left, 0, 1 << 30)));
    if (ready > 0) return true;
    if (ready < 0 && errno != EINTR) fail(ErrorCode::io, "exec: cannot wait for a child: {}", system_message(errno));
    if (Clock::now() >= deadline) return false;
  }
}

}  // namespace

std::pair<ControlChannel, ControlChannel> ControlChannel::pair() {
  int ends[2];
  if (::socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, ends) != 0) {
    fail(ErrorCode::io, "exec: cannot make a pair of sockets: {}", system_message(errno));
  }
  return {ControlChannel{Descriptor{ends[0]}}, ControlChannel{Descriptor{ends[1]}}};
}

bool ControlChannel::send(const ControlMessage& message) const noexcept {
  const Wire wire = encoded(message);
  while (true) {
    const ssize_t sent = ::send(socket_.number(), wire.data(), wire.size(), MSG_NOSIGNAL);
    if (sent >= 0 || errno != EINTR) return sent == std::ssize(wire);
  }
}

ControlChannel::Arrival ControlChannel::receive(ControlMessage& message, std::chrono::milliseconds timeout) const {
  const auto deadline = Clock::now() + timeout;
  while (wait_until_readable(socket_.number(), deadline)) {
    Wire wire{};
    // MSG_TRUNC: the real size of a longer message; what does not fit is dropped.
    const ssize_t size = ::recv(socket_.number(), wire.data(), wire.size(), MSG_DONTWAIT | MSG_TRUNC);
    if (size < 0 && (errno == EINTR || errno == EAGAIN)) continue;
    if (size <= 0) return Arrival::closed;
    if (size != std::ssize(wire)) return Arrival::malformed;
    message = decoded(wire);
    return Arrival::message;
  }
  return Arrival::late;
}

bool ControlChannel::can_receive(std::chrono::milliseconds timeout) const {
  return wait_until_readable(socket_.number(), Clock::now() + timeout);
}

void ControlChannel::shut_down() const noexcept {
  ::shutdown(socket_.number(), SHUT_RDWR);
}

}  // namespace headrace
