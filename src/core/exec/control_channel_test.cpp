#include "core/exec/control_channel.h"

#include <gtest/gtest.h>
#include <sys/socket.h>

#include <limits>
#include <string>

namespace headrace {
namespace {

using namespace std::chrono_literals;
using Arrival = ControlChannel::Arrival;

constexpr auto kLong = 60s;

TEST(ControlChannel, CarriesEveryNumber) {
  const auto [ours, theirs] = ControlChannel::pair();
  const ControlMessage sent{.kind = 0xFEDCBA98U,
                            .numbers = {0, -1, 1, std::numeric_limits<std::int64_t>::min(),
                                        std::numeric_limits<std::int64_t>::max(), 256, -257}};
  ControlMessage received;
  ASSERT_TRUE(ours.send(sent));
  ASSERT_EQ(theirs.receive(received, kLong), Arrival::message);
  EXPECT_EQ(received, sent);
}

TEST(ControlChannel, IsLittleEndianOnTheWire) {
  const auto [ours, theirs] = ControlChannel::pair();
  ASSERT_TRUE(ours.send({.kind = 0x01020304, .numbers = {0x05, -2}}));
  std::string wire(65, '?');
  ASSERT_EQ(::recv(theirs.descriptor(), wire.data(), wire.size(), 0), 64);
  EXPECT_EQ(wire.substr(0, 8), std::string("\x04\x03\x02\x01\0\0\0\0", 8));
  EXPECT_EQ(wire.substr(8, 8), std::string("\x05\0\0\0\0\0\0\0", 8));
  EXPECT_EQ(wire.substr(16, 8), std::string("\xFE\xFF\xFF\xFF\xFF\xFF\xFF\xFF", 8));
}

TEST(ControlChannel, TellsLateFromClosedAndFromNonsense) {
  auto [ours, theirs] = ControlChannel::pair();
  ControlMessage message{.kind = 7};
  EXPECT_EQ(ours.receive(message, 0ms), Arrival::late);
  for (const std::string& nonsense : {std::string("abc"), std::string(65, 'x'), std::string(100'000, 'x')}) {
    ASSERT_EQ(::send(theirs.descriptor(), nonsense.data(), nonsense.size(), 0), std::ssize(nonsense));
    EXPECT_EQ(ours.receive(message, kLong), Arrival::malformed) << nonsense.size();
  }
  ASSERT_TRUE(theirs.send({.kind = 8}));
  { const ControlChannel gone{std::move(theirs)}; }
  ASSERT_EQ(ours.receive(message, kLong), Arrival::message) << "what was sent before the end arrives";
  EXPECT_EQ(message.kind, 8U);
  EXPECT_EQ(ours.receive(message, kLong), Arrival::closed);
  EXPECT_EQ(message.kind, 8U);
  EXPECT_FALSE(ours.send(message));
}

TEST(ControlChannel, ShutDownIsSeenThroughACopy) {
  const auto [ours, theirs] = ControlChannel::pair();
  const Descriptor copy{::dup(ours.descriptor())};
  ours.shut_down();
  ControlMessage message;
  EXPECT_EQ(theirs.receive(message, kLong), Arrival::closed);
}

}  // namespace
}  // namespace headrace
