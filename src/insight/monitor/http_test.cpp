#include "insight/monitor/http.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <headrace/error.h>

#include <atomic>
#include <cstdint>
#include <functional>
#include <string>
#include <utility>

#include "core/base/descriptor.h"
#include "insight/monitor/test_sockets.h"

namespace headrace {
namespace {

using testing::EndsWith;
using testing::HasSubstr;
using testing::StartsWith;

HttpListener::Page page_of(std::string text) {
  return {"/metrics", "text/plain", [body = std::move(text)] { return body; }};
}

std::string message_of(const std::function<void()>& work) {
  try {
    work();
  } catch (const Error& error) {
    return error.what();
  }
  return "";
}

TEST(HttpListener, ServesItsPageToWhoeverAsksAndNothingElse) {
  std::atomic<int> calls{0};
  HttpListener listener({"127.0.0.1", 0},
                        {"/metrics", "text/plain", [&] { return "calls " + std::to_string(++calls) + "\n"; }});
  const std::uint16_t port = listener.address().port;
  ASSERT_NE(port, 0);
  const std::string answer = exchanged(port, "GET /metrics HTTP/1.1\r\nHost: x\r\n\r\n");
  EXPECT_THAT(answer, StartsWith("HTTP/1.1 200 OK\r\n"));
  EXPECT_THAT(answer, HasSubstr("Content-Length: 8\r\n"));
  EXPECT_THAT(answer, EndsWith("\r\n\r\ncalls 1\n"));
  EXPECT_THAT(exchanged(port, "GET /metrics?x=1 HTTP/1.0\r\n\r\n"), EndsWith("\r\n\r\ncalls 2\n"));  // Values move.
  EXPECT_THAT(exchanged(port, "HEAD /metrics HTTP/1.1\r\n\r\n"), EndsWith("\r\n\r\n"));
  EXPECT_THAT(exchanged(port, "GET / HTTP/1.1\r\n\r\n"), StartsWith("HTTP/1.1 404 "));
  EXPECT_THAT(exchanged(port, "POST /metrics HTTP/1.1\r\n\r\n"), StartsWith("HTTP/1.1 405 "));
  EXPECT_THAT(exchanged(port, "nonsense\r\n\r\n"), StartsWith("HTTP/1.1 400 "));
  EXPECT_EQ(calls.load(), 3);
}

TEST(HttpListener, ARequestThatIsTooLongOrNeverEndsIsRefusedAndTheNextOneServed) {
  HttpListener listener({"127.0.0.1", 0}, page_of("up 1\n"));
  const std::uint16_t port = listener.address().port;
  exchanged(port,
            "GET /metrics HTTP/1.1\r\nX: " + std::string(100'000, 'a'));  // The answer may be lost: it is cut off.
  {
    const Descriptor silent = connected(port);  // Says nothing, and is dropped.
    ASSERT_GE(silent.number(), 0);
    EXPECT_THAT(exchanged(port, "GET /metrics HTTP/1.1\r\n\r\n"), EndsWith("up 1\n"));
  }
  EXPECT_THAT(exchanged(port, "GET /metrics HTTP/1.1\r\n\r\n"), EndsWith("up 1\n"));
}

TEST(HttpListener, APortInUseIsToldWithItsAddress) {
  HttpListener first({"127.0.0.1", 0}, page_of(""));
  const HostPort taken = first.address();
  EXPECT_THAT(message_of([&] { HttpListener second(taken, page_of("")); }),
              HasSubstr("cannot listen at " + taken.text() + ": Address already in use"));
}

TEST(HttpListener, IsReachedAtTheLoopbackAloneUnlessToldOtherwise) {
  EXPECT_EQ(parse_listen_address("key", "9400").text(), "127.0.0.1:9400");
  EXPECT_EQ(parse_listen_address("key", "0.0.0.0:80").text(), "0.0.0.0:80");
  EXPECT_EQ(parse_listen_address("key", "[::1]:80").text(), "[::1]:80");
  for (const char* const text : {"", "host", "host:", "host:99999", "::1:80", "a b:80", "[::1]"}) {
    EXPECT_THAT(message_of([&] { parse_listen_address("monitor: prometheus", text); }),
                StartsWith("monitor: prometheus: wanted PORT"))
        << text;
  }
}

TEST(HttpUrl, IsOfPlainHttpAndAHostAlone) {
  EXPECT_EQ(parse_http_url("key", "http://localhost", 4318).text(), "localhost:4318");
  EXPECT_EQ(parse_http_url("key", "http://[::1]:80/", 4318).text(), "[::1]:80");
  EXPECT_THAT(message_of([] { parse_http_url("key", "https://host", 4318); }), HasSubstr("no TLS here"));
  for (const char* const text : {"host", "http://", "http://host/path", "http://a b", "http://host:0"}) {
    EXPECT_THAT(message_of([&] { parse_http_url("key", text, 4318); }), StartsWith("key: wanted http://HOST")) << text;
  }
}

TEST(PostHttp, SendsTheBodyWholeAndFollowsNoRedirection) {
  const std::string body(300'000, 'b');  // More than a socket's buffer.
  OneAnswer server("HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n");
  EXPECT_EQ(post_http({"127.0.0.1", server.port()}, "/v1/metrics", "application/json", body), "");
  const std::string request = server.request();
  EXPECT_THAT(request, StartsWith("POST /v1/metrics HTTP/1.1\r\n"));
  EXPECT_THAT(request, HasSubstr("Content-Length: 300000\r\n"));
  EXPECT_THAT(request, EndsWith("\r\n\r\n" + body));

  OneAnswer moved("HTTP/1.1 302 Found\r\nLocation: http://127.0.0.1:1/\r\n\r\n");
  EXPECT_EQ(post_http({"127.0.0.1", moved.port()}, "/", "text/plain", "x"), "HTTP/1.1 302 Found");
}

TEST(PostHttp, SaysWhyNobodyTookIt) {
  std::uint16_t free_port = 0;
  {
    HttpListener gone({"127.0.0.1", 0}, page_of(""));
    free_port = gone.address().port;
  }
  EXPECT_THAT(post_http({"127.0.0.1", free_port}, "/", "text/plain", "x"), HasSubstr("refused"));
  OneAnswer silent("");  // Closes without an answer.
  EXPECT_THAT(post_http({"127.0.0.1", silent.port()}, "/", "text/plain", "x"), HasSubstr("no answer"));
}

}  // namespace
}  // namespace headrace
