#include "insight/diagnose/detail/report_page.h"

#include <fmt/format.h>

#include "insight/diagnose/detail/html.h"
#include "insight/diagnose/detail/report_style.h"
#include "insight/diagnose/detail/text.h"

namespace headrace::detail {
namespace {

// Broken between words alone: a line that ends within "--seed" is no good to copy from.
std::string command_html(const std::string& command) {
  const std::string clean = html_text(command, kCommandColumns);
  std::string html = "<pre><code><span>";
  for (const char c : clean) {
    if (c == ' ') {
      html += "</span> <span>";
    } else {
      html += c;
    }
  }
  return html + "</span></code></pre>\n";
}

}  // namespace

std::string page_html(const PageHead& head, const std::string& body) {
  std::string html =
      "<!doctype html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n"
      "<meta http-equiv=\"Content-Security-Policy\" content=\"default-src 'none'; style-src 'unsafe-inline'; base-uri "
      "'none'; form-action 'none'\">\n"
      "<meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\n"
      "<meta name=\"referrer\" content=\"no-referrer\">\n<meta name=\"headrace-report\" content=\"1\">\n";
  html += fmt::format("<title>{}: {}</title>\n<style>{}</style>\n</head>\n<body>\n<main{}>\n", html_text(head.title),
                      html_text(head.verdict), kReportStyle, head.is_positive ? " class=\"positive\"" : "");
  html += body;
  html += fmt::format(
      "</main>\n<footer><p>Written {} by Headrace, format 1. This page holds no script and asks nothing of any "
      "network.</p></footer>\n</body>\n</html>\n",
      head.written.empty() ? "at an unknown time" : html_text(head.written));
  return html;
}

std::string origin_html(const std::string& command,
                        const std::vector<std::pair<std::string, std::string>>& environment) {
  std::string html = section_opening("again", "Run it again");
  html += command.empty() ? "<p>The command is unavailable.</p>\n" : command_html(command);
  html += "</section>\n" + section_opening("environment", "Measured on");
  if (environment.empty()) return html + "<p>Unavailable.</p>\n</section>\n";
  html += "<table class=\"environment\"><tbody>\n";
  for (const auto& [name, value] : environment) {
    html += fmt::format("<tr><th scope=\"row\">{}</th><td>{}</td></tr>\n", html_text(name),
                        or_unavailable(html_text(value)));
  }
  return html + "</tbody></table>\n</section>\n";
}

}  // namespace headrace::detail
