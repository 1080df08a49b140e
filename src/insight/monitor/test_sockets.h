// Plain sockets for tests of what listens and what sends: the operating system is the other side.
#pragma once

#include <arpa/inet.h>
#include <netinet/in.h>
#include <sys/socket.h>

#include <array>
#include <charconv>
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <thread>
#include <utility>

#include "core/base/descriptor.h"

namespace headrace {

inline sockaddr_in loopback(std::uint16_t port) {
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_port = htons(port);
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  return address;
}

inline Descriptor connected(std::uint16_t port) {
  Descriptor client(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  const sockaddr_in address = loopback(port);
  if (::connect(client.number(), reinterpret_cast<const sockaddr*>(&address), sizeof address) != 0)
    return Descriptor(-1);
  return client;
}

inline std::string received(int socket) {
  std::string text;
  std::array<char, 4096> part{};
  ssize_t count = 0;
  while ((count = ::recv(socket, part.data(), part.size(), 0)) > 0)
    text.append(part.data(), static_cast<std::size_t>(count));
  return text;
}

// All that the other side answers to `request` until it closes.
inline std::string exchanged(std::uint16_t port, std::string_view request) {
  const Descriptor client = connected(port);
  while (!request.empty()) {
    const ssize_t sent = ::send(client.number(), request.data(), request.size(), MSG_NOSIGNAL);
    if (sent <= 0) break;
    request.remove_prefix(static_cast<std::size_t>(sent));
  }
  return received(client.number());
}

// Takes one request with its body, by its Content-Length, answers it with a text and closes.
class OneAnswer {
 public:
  explicit OneAnswer(std::string answer)
      : answer_(std::move(answer)), socket_(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0)) {
    sockaddr_in address = loopback(0);
    socklen_t size = sizeof address;
    auto* const plain = reinterpret_cast<sockaddr*>(&address);
    if (::bind(socket_.number(), plain, size) == 0 && ::listen(socket_.number(), 1) == 0 &&
        ::getsockname(socket_.number(), plain, &size) == 0) {
      port_ = ntohs(address.sin_port);
    }
    thread_ = std::jthread([this] { serve(); });
  }

  ~OneAnswer() { ::shutdown(socket_.number(), SHUT_RDWR); }  // Or it would wait for a request that nobody sends.
  OneAnswer(const OneAnswer&) = delete;
  OneAnswer& operator=(const OneAnswer&) = delete;

  std::uint16_t port() const { return port_; }
  // Waits until it has answered.
  std::string request() {
    if (thread_.joinable()) thread_.join();
    return request_;
  }

 private:
  void serve() {
    const Descriptor connection(::accept(socket_.number(), nullptr, nullptr));
    std::array<char, 4096> part{};
    while (!is_whole()) {
      const ssize_t count = ::recv(connection.number(), part.data(), part.size(), 0);
      if (count <= 0) return;
      request_.append(part.data(), static_cast<std::size_t>(count));
    }
    ::send(connection.number(), answer_.data(), answer_.size(), MSG_NOSIGNAL);
  }

  bool is_whole() const {
    constexpr std::string_view kKey = "Content-Length: ";
    const std::size_t head = request_.find("\r\n\r\n"), key = request_.find(kKey);
    if (head == std::string::npos || key == std::string::npos) return false;
    std::size_t length = 0;
    std::from_chars(request_.data() + key + kKey.size(), request_.data() + head, length);
    return request_.size() >= head + 4 + length;
  }

  const std::string answer_;
  const Descriptor socket_;
  std::uint16_t port_ = 0;
  std::string request_;
  std::jthread thread_;
};

}  // namespace headrace
