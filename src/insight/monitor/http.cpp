#include "insight/monitor/http.h"

#include <fmt/format.h>
#include <headrace/error.h>
#include <headrace/trace.h>
#include <netdb.h>
#include <poll.h>
#include <sys/eventfd.h>
#include <sys/socket.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <charconv>
#include <cstddef>
#include <exception>
#include <optional>
#include <stop_token>
#include <system_error>
#include <thread>
#include <utility>

#include "core/base/descriptor.h"
#include "core/base/fail.h"
#include "core/base/files.h"

namespace headrace {
namespace {

using Clock = std::chrono::steady_clock;

constexpr std::size_t kHeadMax = 8192;
constexpr std::chrono::seconds kRequestTime{1}, kAnswerTime{2};
constexpr const char* kLoopback = "127.0.0.1";

std::optional<std::uint16_t> port_of(std::string_view text) {
  std::uint16_t port = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), port);
  if (text.empty() || error != std::errc{} || end != text.data() + text.size()) return std::nullopt;
  return port;
}

// "HOST", "HOST:PORT", "[HOST]" and "[HOST]:PORT". nullopt: it is none of them.
std::optional<HostPort> host_and_port(std::string_view text, std::uint16_t default_port) {
  std::string_view host = text, port;
  bool has_port = false;
  if (text.starts_with('[')) {
    const std::size_t end = text.find(']');
    if (end == std::string_view::npos) return std::nullopt;
    host = text.substr(1, end - 1);
    const std::string_view rest = text.substr(end + 1);
    if (!rest.empty() && rest[0] != ':') return std::nullopt;
    has_port = !rest.empty();
    if (has_port) port = rest.substr(1);
  } else if (const std::size_t colon = text.rfind(':'); colon != std::string_view::npos) {
    host = text.substr(0, colon);
    port = text.substr(colon + 1);
    has_port = true;
    if (host.find(':') != std::string_view::npos) return std::nullopt;  // An IPv6 address without brackets.
  }
  const std::optional<std::uint16_t> number = has_port ? port_of(port) : default_port;
  const bool is_plain = std::all_of(host.begin(), host.end(), [](char c) { return c > ' ' && c < '\x7f' && c != '/'; });
  if (host.empty() || !is_plain || !number) return std::nullopt;
  return HostPort{std::string(host), *number};
}

struct AddressList {
  addrinfo* first = nullptr;
  AddressList() = default;
  AddressList(const AddressList&) = delete;
  AddressList& operator=(const AddressList&) = delete;
  ~AddressList() {
    if (first != nullptr) ::freeaddrinfo(first);
  }
};

// Empty: found. Else why not.
std::string look_up(const HostPort& address, int flags, AddressList& found) {
  addrinfo wanted{};
  wanted.ai_family = AF_UNSPEC;
  wanted.ai_socktype = SOCK_STREAM;
  wanted.ai_flags = flags | AI_NUMERICSERV;
  const int error = ::getaddrinfo(address.host.c_str(), std::to_string(address.port).c_str(), &wanted, &found.first);
  if (error == EAI_SYSTEM) return system_message(errno);
  return error == 0 ? "" : ::gai_strerror(error);
}

Descriptor open_socket(const addrinfo& address) {
  return Descriptor{
      ::socket(address.ai_family, address.ai_socktype | SOCK_NONBLOCK | SOCK_CLOEXEC, address.ai_protocol)};
}

// False: `events` did not come before `deadline`.
bool wait_for(int socket, short events, Clock::time_point deadline) {
  while (true) {
    const auto left = std::chrono::ceil<std::chrono::milliseconds>(deadline - Clock::now()).count();
    if (left <= 0) return false;
    pollfd wanted{.fd = socket, .events = events, .revents = 0};
    const int ready = ::poll(&wanted, 1, static_cast<int>(std::min<std::int64_t>(left, 1 << 30)));
    if (ready > 0) return true;
    if (ready < 0 && errno != EINTR) return false;
  }
}

bool send_all(int socket, std::string_view text, Clock::time_point deadline) {
  while (!text.empty()) {
    const ssize_t sent = ::send(socket, text.data(), text.size(), MSG_NOSIGNAL);
    if (sent > 0) {
      text.remove_prefix(static_cast<std::size_t>(sent));
    } else if (errno != EINTR && (errno != EAGAIN || !wait_for(socket, POLLOUT, deadline))) {
      return false;
    }
  }
  return true;
}

// All up to and with `end`, and what came with it; what came until then, where the other side closed, took too long or
// sent more than kHeadMax before it.
std::string receive_until(int socket, std::string_view end, Clock::time_point deadline) {
  std::string text;
  std::array<char, 1024> part{};
  while (text.find(end) == std::string::npos && text.size() <= kHeadMax) {
    if (!wait_for(socket, POLLIN, deadline)) break;
    const ssize_t count = ::recv(socket, part.data(), part.size(), 0);
    if (count > 0) {
      text.append(part.data(), static_cast<std::size_t>(count));
    } else if (count == 0 || (errno != EINTR && errno != EAGAIN)) {
      break;
    }
  }
  return text;
}

std::string answer_text(std::string_view status, std::string_view content_type, std::string_view body, bool has_body) {
  return fmt::format(
      "HTTP/1.1 {}\r\nContent-Type: {}\r\nContent-Length: {}\r\nX-Content-Type-Options: nosniff\r\nConnection: "
      "close\r\n\r\n{}",
      status, content_type, body.size(), has_body ? body : std::string_view{});
}

std::string refusal_text(std::string_view status) {
  return answer_text(status, "text/plain; charset=utf-8", fmt::format("{}\n", status), true);
}

}  // namespace

std::string HostPort::text() const {
  return host.find(':') == std::string::npos ? fmt::format("{}:{}", host, port) : fmt::format("[{}]:{}", host, port);
}

HostPort parse_listen_address(std::string_view key, std::string_view text) {
  if (const auto port = port_of(text)) return {kLoopback, *port};
  const bool has_port = text.find(':') != std::string_view::npos && !text.ends_with(']');
  const auto found = has_port ? host_and_port(text, 0) : std::nullopt;
  if (!found) {
    fail(ErrorCode::invalid_argument,
         "{}: wanted PORT, HOST:PORT or [HOST]:PORT, with a port from 0 to 65535, found \"{}\"", key, text);
  }
  return *found;
}

HostPort parse_http_url(std::string_view key, std::string_view text, std::uint16_t default_port) {
  constexpr std::string_view kHttp = "http://", kHttps = "https://";
  if (text.starts_with(kHttps)) {
    fail(ErrorCode::unsupported,
         "{}: wanted http://HOST:PORT, found {}: there is no TLS here; send it by way of a collector on this machine",
         key, text);
  }
  std::optional<HostPort> found;
  if (text.starts_with(kHttp)) {
    std::string_view rest = text.substr(kHttp.size());
    if (rest.ends_with('/')) rest.remove_suffix(1);
    found = host_and_port(rest, default_port);
  }
  if (!found || found->port == 0) {
    fail(ErrorCode::invalid_argument, "{}: wanted http://HOST or http://HOST:PORT, found \"{}\"", key, text);
  }
  return *found;
}

struct HttpListener::Impl {
  Impl(const HostPort& wanted, Page given)
      : page(std::move(given)),
        socket(listening(wanted)),
        wake(::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)),
        bound(wanted) {
    if (wake.number() < 0)
      fail(ErrorCode::io, "monitor: cannot listen at {}: {}", wanted.text(), system_message(errno));
    bound.port = bound_port();
    thread = std::jthread([this](const std::stop_token& stop) { run(stop); });
  }

  static Descriptor listening(const HostPort& wanted) {
    AddressList found;
    std::string reason = look_up(wanted, AI_PASSIVE, found);
    for (const addrinfo* one = found.first; one != nullptr; one = one->ai_next) {
      Descriptor candidate = open_socket(*one);
      const int yes = 1;  // A port whose last connection is still being closed is free.
      if (candidate.number() >= 0 &&
          ::setsockopt(candidate.number(), SOL_SOCKET, SO_REUSEADDR, &yes, sizeof yes) == 0 &&
          ::bind(candidate.number(), one->ai_addr, one->ai_addrlen) == 0 && ::listen(candidate.number(), 8) == 0) {
        return candidate;
      }
      reason = system_message(errno);
    }
    fail(ErrorCode::io, "monitor: cannot listen at {}: {}", wanted.text(), reason);
  }

  std::uint16_t bound_port() const {
    sockaddr_storage address{};
    socklen_t size = sizeof address;
    std::array<char, NI_MAXSERV> service{};
    auto* const plain = reinterpret_cast<sockaddr*>(&address);
    if (::getsockname(socket.number(), plain, &size) != 0 ||
        ::getnameinfo(plain, size, nullptr, 0, service.data(), static_cast<socklen_t>(service.size()),
                      NI_NUMERICSERV) != 0) {
      return bound.port;
    }
    return port_of(service.data()).value_or(bound.port);
  }

  void run(const std::stop_token& stop) {
    name_this_thread("metrics listener");
    const std::stop_callback waking(stop, [this] { ::eventfd_write(wake.number(), 1); });
    while (!stop.stop_requested()) {
      std::array<pollfd, 2> wanted{pollfd{.fd = socket.number(), .events = POLLIN, .revents = 0},
                                   pollfd{.fd = wake.number(), .events = POLLIN, .revents = 0}};
      if (::poll(wanted.data(), wanted.size(), -1) < 0) continue;  // EINTR.
      if (wanted[1].revents != 0) return;
      const Descriptor connection{::accept4(socket.number(), nullptr, nullptr, SOCK_NONBLOCK | SOCK_CLOEXEC)};
      if (connection.number() >= 0) {
        serve(connection.number());
      } else if (errno == EMFILE || errno == ENFILE || errno == ENOMEM || errno == ENOBUFS) {
        wait_for(wake.number(), POLLIN, Clock::now() + kRequestTime);  // The connection stays there: no busy loop.
      }
    }
  }

  void serve(int connection) const {
    const std::string head = receive_until(connection, "\r\n\r\n", Clock::now() + kRequestTime);
    const std::string answer = answer_to(head);
    send_all(connection, answer, Clock::now() + kAnswerTime);
    ::shutdown(connection, SHUT_WR);
  }

  std::string answer_to(std::string_view head) const {
    if (head.size() > kHeadMax) return refusal_text("431 Request Header Fields Too Large");
    if (head.find("\r\n\r\n") == std::string_view::npos) return refusal_text("408 Request Timeout");
    const std::string_view line = head.substr(0, head.find("\r\n"));
    const std::size_t first = line.find(' '), second = line.find(' ', first + 1);
    if (first == std::string_view::npos || second == std::string_view::npos ||
        !line.substr(second + 1).starts_with("HTTP/1.")) {
      return refusal_text("400 Bad Request");
    }
    const std::string_view method = line.substr(0, first);
    std::string_view target = line.substr(first + 1, second - first - 1);
    target = target.substr(0, target.find('?'));
    if (target != page.path) return refusal_text("404 Not Found");
    if (method != "GET" && method != "HEAD") return refusal_text("405 Method Not Allowed");
    try {
      return answer_text("200 OK", page.content_type, page.body(), method == "GET");
    } catch (const std::exception&) {  // Of too little memory.
      return refusal_text("500 Internal Server Error");
    }
  }

  const Page page;
  const Descriptor socket;
  const Descriptor wake;
  HostPort bound;
  std::jthread thread;  // Last: it stops first.
};

HttpListener::HttpListener(const HostPort& address, Page page)
    : impl_(std::make_unique<Impl>(address, std::move(page))) {}
HttpListener::~HttpListener() = default;

HostPort HttpListener::address() const {
  return impl_->bound;
}

std::string post_http(const HostPort& address, const std::string& path, std::string_view content_type,
                      std::string_view body, std::chrono::milliseconds timeout) {
  AddressList found;
  std::string reason = look_up(address, 0, found);
  const Clock::time_point deadline = Clock::now() + timeout;
  const std::string head =
      fmt::format("POST {} HTTP/1.1\r\nHost: {}\r\nContent-Type: {}\r\nContent-Length: {}\r\nConnection: close\r\n\r\n",
                  path, address.text(), content_type, body.size());
  for (const addrinfo* one = found.first; one != nullptr; one = one->ai_next) {
    const Descriptor socket = open_socket(*one);
    if (socket.number() < 0) {
      reason = system_message(errno);
      continue;
    }
    if (::connect(socket.number(), one->ai_addr, one->ai_addrlen) != 0 && errno != EINPROGRESS) {
      reason = system_message(errno);
      continue;
    }
    int error = 0;
    socklen_t size = sizeof error;
    if (!wait_for(socket.number(), POLLOUT, deadline)) {
      reason = "no connection in time";
      continue;
    }
    if (::getsockopt(socket.number(), SOL_SOCKET, SO_ERROR, &error, &size) != 0 || error != 0) {
      reason = system_message(error);
      continue;
    }
    if (!send_all(socket.number(), head, deadline) || !send_all(socket.number(), body, deadline)) {
      return "the connection broke, or took too long, before all was sent";
    }
    const std::string answer = receive_until(socket.number(), "\r\n", deadline);
    const std::string status = answer.substr(0, answer.find("\r\n"));
    if (!status.starts_with("HTTP/1.") || status.size() < 12) return "no answer in time, or none of HTTP";
    return status[9] == '2' ? "" : status;
  }
  return reason;
}

}  // namespace headrace
