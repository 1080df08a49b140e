
#include <headrace/report.h>

#include <algorithm>
#include <string_view>

namespace headrace {
namespace {

bool is_scheme_character(char c) {
  return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '+' || c == '-' || c == '.';
}

// Whether what follows the host's colon is no port: then it is a password that holds an unescaped '/', '?' or '#'.
bool has_odd_port(std::string_view authority) {
  const std::size_t bracket = authority.rfind(']');  // Of an IPv6 address, which has colons of its own.
  const std::size_t colon = authority.find(':', bracket == std::string_view::npos ? 0 : bracket);
  return colon != std::string_view::npos &&
         authority.find_first_not_of("0123456789", colon + 1) != std::string_view::npos;
}

// The bytes of `rest`, which follows "://", that name user and password: through the '@', or 0.
std::size_t credentials_size(std::string_view rest) {
  const std::string_view authority = rest.substr(0, rest.find_first_of("/?#"));
  std::size_t at = authority.rfind('@');
  if (at == std::string_view::npos && has_odd_port(authority)) at = rest.rfind('@');
  return at == std::string_view::npos ? 0 : at + 1;
}

}  // namespace

std::string without_credentials(const std::string& text) {
  const std::string_view all = text;
  std::string open;
  std::size_t position = 0;
  for (;;) {
    const std::size_t mark = all.find("://", position);
    if (mark == std::string_view::npos) break;
    std::size_t scheme = mark;
    while (scheme > position && is_scheme_character(all[scheme - 1])) --scheme;
    open += all.substr(position, mark + 3 - position);
    position = mark + 3;
    if (scheme == mark) continue;

    // A single quote ends a URL only where one opened it: elsewhere it may be part of a password.
    const bool is_quoted = scheme > 0 && all[scheme - 1] == '\'';
    const std::size_t end =
        std::min(all.find_first_of(is_quoted ? " \t\r\n\"<>`'" : " \t\r\n\"<>`", position), all.size());
    position += credentials_size(all.substr(position, end - position));
    const std::string_view rest = all.substr(position, end - position);
    const std::size_t query = rest.find('?');
    const std::size_t next = rest.find("://");  // A list of URLs without spaces.
    if (query < next) {
      open += rest.substr(0, query);
      position = end;
    }
  }
  open += all.substr(position);
  return open;
}

}  // namespace headrace
