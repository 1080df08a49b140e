// As much of HTTP/1.1 as figures need: a listener that serves one text, and a POST. Plain sockets, no TLS.
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <string_view>

namespace headrace {

struct HostPort {
  std::string host;  // A name, or an address without brackets.
  std::uint16_t port = 0;

  std::string text() const;  // "127.0.0.1:9400", "[::1]:9400"
};

// Of "PORT", "HOST:PORT" or "[HOST]:PORT"; without a host 127.0.0.1. Error{invalid_argument} begins with `key`.
HostPort parse_listen_address(std::string_view key, std::string_view text);
// Of "http://HOST[:PORT]" and nothing behind it but a "/". Error{invalid_argument} the same; Error{unsupported}: https.
HostPort parse_http_url(std::string_view key, std::string_view text, std::uint16_t default_port);

// Answers GET and HEAD of one path with what `body` returns then, one connection after the other. Owns one thread, from
// construction to destruction, which calls `body`.
//
// A request is 8 KiB at most and takes 1 s at most, its answer 2 s more; what is larger, slower or anything else gets
// an error, or is closed. The destructor waits for the request at hand.
class HttpListener {
 public:
  struct Page {
    std::string path;          // "/metrics"
    std::string content_type;  // "text/plain; version=0.0.4; charset=utf-8"
    std::function<std::string()> body;
  };

  // Error{io}: the address cannot be listened at, as its port is in use.
  HttpListener(const HostPort& address, Page page);
  ~HttpListener();

  HostPort address() const;  // With the port that the system chose, where 0 was asked for.

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

// Sends `body` and waits for the answer's status, for at most `timeout` beside the look-up of the host's name. Empty:
// the status is one of 200 to 299; else why not, in one line. Follows no redirection.
std::string post_http(const HostPort& address, const std::string& path, std::string_view content_type,
                      std::string_view body, std::chrono::milliseconds timeout = std::chrono::seconds(2));

}  // namespace headrace
