#include "insight/diagnose/detail/text_page.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "insight/diagnose/detail/text.h"

namespace headrace::detail {

TextPage::TextPage(int width, bool colour) : width_(std::max(width, 40)), colour_(colour) {}

std::string TextPage::painted(const std::string& text, Ink ink) const {
  static constexpr const char* kCodes[] = {"", "\x1b[1m", "\x1b[2m", "\x1b[32m", "\x1b[33m", "\x1b[31m"};
  if (!colour_ || ink == Ink::plain || text.empty()) return text;
  return kCodes[static_cast<int>(ink)] + text + "\x1b[0m";
}

void TextPage::line(const std::string& text) {
  text_ += text + '\n';
}

void TextPage::heading(const std::string& text) {
  line();
  line(painted(text, Ink::strong));
}

void TextPage::paragraph(const std::string& text, int indent, Ink ink, const std::string& lead) {
  std::string before = lead.empty() ? std::string(static_cast<std::size_t>(indent), ' ') : lead;
  for (const std::string& part : wrapped(clean_text(text), width_ - indent)) {
    line(before + painted(part, ink));
    before.assign(static_cast<std::size_t>(indent), ' ');
  }
}

void TextPage::fact(const std::string& name, const std::string& text) {
  paragraph(text, 14, Ink::plain, "  " + padded(name, 12));
}

std::string TextPage::take() {
  return std::move(text_);
}

std::string text_bar(double value, double whole, int width, const char* block) {
  if (!(value > 0) || !(whole > 0) || !std::isfinite(value)) return {};
  const int length = static_cast<int>(std::lround(std::min(value / whole, 1.0) * width));
  if (length == 0) return width > 0 ? "·" : "";
  std::string text;
  for (int i = 0; i < length; ++i) text += block;
  return text;
}

}  // namespace headrace::detail
