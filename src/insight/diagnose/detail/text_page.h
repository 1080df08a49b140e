// The lines of a report for a terminal. Colour comes on top of text that reads without it.
#pragma once

#include <string>

namespace headrace::detail {

enum class Ink { plain, strong, faint, good, doubtful, bad };

class TextPage {
 public:
  TextPage(int width, bool colour);  // At least 40 columns.

  int width() const { return width_; }
  std::string painted(const std::string& text, Ink ink) const;
  void line(const std::string& text = {});
  void heading(const std::string& text);
  // Wrapped, every line behind `indent` spaces; the first one behind `lead` instead, where it is given.
  void paragraph(const std::string& text, int indent, Ink ink = Ink::plain, const std::string& lead = {});
  void fact(const std::string& name, const std::string& text);
  std::string take();

 private:
  int width_;
  bool colour_;
  std::string text_;
};

// A bar of at most `width` columns; whatever is above 0 shows.
std::string text_bar(double value, double whole, int width, const char* block);

}  // namespace headrace::detail
