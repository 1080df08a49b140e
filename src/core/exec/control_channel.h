// Short messages of a fixed size between a process and its child.
#pragma once

#include <array>
#include <chrono>
#include <cstdint>
#include <utility>

#include "core/base/descriptor.h"

namespace headrace {

// On the wire 64 bytes, little-endian: kind, a zero, then the numbers. What they mean is the two sides' agreement.
struct ControlMessage {
  static constexpr std::size_t kSize = 64;

  std::uint32_t kind = 0;
  std::array<std::int64_t, 7> numbers{};

  bool operator==(const ControlMessage&) const = default;
};

// One end of a pair of connected sockets that keep messages apart (SOCK_SEQPACKET). One thread at a time.
class ControlChannel {
 public:
  enum class Arrival {
    message,
    closed,     // The other end is gone.
    late,       // Nothing came in time.
    malformed,  // Something came that is no message.
  };

  explicit ControlChannel(Descriptor socket) : socket_(std::move(socket)) {}
  // Error{io} when the system has no more descriptors.
  static std::pair<ControlChannel, ControlChannel> pair();

  // False: the other end is gone.
  bool send(const ControlMessage& message) const noexcept;
  // Waits for at most `timeout`. `message` is written to only where one arrived.
  Arrival receive(ControlMessage& message, std::chrono::milliseconds timeout) const;
  // Whether receive() would return at once, after waiting for that at most `timeout`.
  bool can_receive(std::chrono::milliseconds timeout) const;
  // Tells the other end that nothing more will come, also where a forked process holds a copy of this one.
  void shut_down() const noexcept;
  int descriptor() const { return socket_.number(); }

 private:
  Descriptor socket_;
};

}  // namespace headrace
