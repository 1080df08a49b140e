#include <fcntl.h>
#include <headrace/source.h>
#include <unistd.h>

#include <cerrno>
#include <string_view>
#include <utility>
#include <vector>

#include "core/base/fail.h"
#include "core/base/files.h"
#include "data/pack/pack_build.h"
#include "data/source/sources.h"
#include "data/store/descriptor.h"
#include "data/store/file_name.h"
#include "media/codec/png_writer.h"

namespace headrace {
namespace {

using Path = std::filesystem::path;

[[noreturn]] void fail_write(const Path& path, int reason) {
  fail(ErrorCode::io, "data: cannot write {}: {}", printable_name(path.native()), system_message(reason));
}

// Whether a name from a pack stays below the folder it is put into.
bool stays_below(std::string_view name) {
  for (std::size_t at = 0; at <= name.size();) {
    const std::size_t end = std::min(name.find('/', at), name.size());
    const std::string_view part = name.substr(at, end - at);
    if (part.empty() || part == "." || part == ".." || part.find('\0') != std::string_view::npos) return false;
    at = end + 1;
  }
  return true;
}

void make_folder(const Path& folder) {
  std::error_code reason;
  std::filesystem::create_directories(folder, reason);
  if (reason) fail(ErrorCode::io, "data: cannot make {}: {}", printable_name(folder.native()), reason.message());
}

// Not synced: all of them are, at the end.
void write_plainly(const Path& path, std::span<const std::uint8_t> bytes) {
  const Descriptor file{::open(path.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_NOFOLLOW | O_CLOEXEC, 0666)};
  if (file.number() < 0) fail_write(path, errno);
  while (!bytes.empty()) {
    const ssize_t written = ::write(file.number(), bytes.data(), bytes.size());
    if (written < 0 && errno == EINTR) continue;
    if (written < 0) fail_write(path, errno);
    bytes = bytes.subspan(static_cast<std::size_t>(written));
  }
}

class Unpacking {
 public:
  Unpacking(const Path& pack, const Path& out, const PackProgress& go_on)
      : pack_("pack:" + pack.native()), out_(out), go_on_(go_on) {
    std::error_code ignored;  // What cannot be examined cannot be made either, which is told then.
    if (std::filesystem::exists(out, ignored)) {
      fail(ErrorCode::invalid_argument, "data: {} exists already", printable_name(out.native()));
    }
    partial_ = out;
    partial_ += ".partial";
    for (const Choice<Split>& split : choices(Split{})) {
      auto source = split.value == Split::train ? open_source(pack_, split.value) : find_source(pack_, split.value);
      if (source == nullptr) continue;
      if (const Schema& schema = source->info().schema; !schema.is_image_and_labels()) {
        fail(ErrorCode::unsupported, "data: {} has samples of {}; only images and labels are unpacked", pack_,
             schema.text());
      }
      total_ += source->size();
      sources_.emplace_back(split.value, std::move(source));
    }
  }

  std::optional<std::int64_t> run() {
    make_folder(partial_);
    for (const auto& [split, source] : sources_) {
      const ImageShape stored = stored_shape(source->info().schema);
      const bool as_idx = stored.height != 0 && stored.channels == 1;
      if (!(as_idx ? write_pixels(*source, split) : write_images(*source, split))) return std::nullopt;
    }
    const Descriptor folder{::open(partial_.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC)};
    if (folder.number() < 0 || ::syncfs(folder.number()) != 0) fail_write(partial_, errno);
    if (::rename(partial_.c_str(), out_.c_str()) != 0) fail_write(out_, errno);
    return total_;
  }

 private:
  bool write_images(const Source& source, Split split) {
    const Path folder = partial_ / choice_name(split);
    Path made;
    for (std::int64_t i = 0; i < source.size(); ++i, ++done_) {
      if (!go_on_(done_, total_)) return false;
      source.read(i, sample_);
      const std::string name = file_name(source, sample_, i);
      if (!stays_below(name)) {
        fail(ErrorCode::corrupt_data, "data: {} leads out of its folder; nothing is written to it", source.name(i));
      }
      const Path path = folder / name;
      if (path.parent_path() != made) make_folder(made = path.parent_path());
      write_plainly(path, file_of(source, sample_.image(), i));
    }
    return true;
  }

  // Decoded images are PNG files whatever they were before, and lie in a folder of their class.
  static std::string file_name(const Source& source, const Sample& sample, std::int64_t index) {
    std::string name = source.capabilities().names->stored_name(index);
    if (sample.image().form == ImageForm::encoded) return name;
    if (name.find('/') == std::string::npos) {
      const std::vector<std::string>& classes = source.info().class_names;
      const auto label = static_cast<std::size_t>(sample.label());
      name = (classes.empty() ? fmt::format("{}", label) : classes[label]) + "/" + name;
    }
    return name.ends_with(".png") ? name : name + ".png";
  }

  std::span<const std::uint8_t> file_of(const Source& source, const Payload& image, std::int64_t index) {
    if (image.form == ImageForm::encoded) return image.bytes;
    if (image.channels() != 1 && image.channels() != 3) {
      fail(ErrorCode::unsupported, "data: {}: {} channels do not go into a PNG file; 1 or 3 do", source.name(index),
           image.channels());
    }
    png_ = codec::png_of(image.bytes, image.height(), image.width(), image.channels());
    return png_;
  }

  bool write_pixels(const Source& source, Split split) {
    const std::string name{detail::idx_prefix(split)};
    const auto count = static_cast<std::uint32_t>(source.size());
    const ImageShape stored = stored_shape(source.info().schema);
    std::vector<std::uint8_t> labels;
    bool going = true;
    write_file(partial_ / (name + "-images-idx3-ubyte"), [&](const auto& append) {
      put_numbers({0x803, count, static_cast<std::uint32_t>(stored.height), static_cast<std::uint32_t>(stored.width)},
                  append);
      for (std::int64_t i = 0; i < source.size() && going; ++i, ++done_) {
        going = go_on_(done_, total_);
        source.read(i, sample_);
        append(std::as_bytes(sample_.image().bytes));
        labels.push_back(static_cast<std::uint8_t>(sample_.label()));
      }
    });
    write_file(partial_ / (name + "-labels-idx1-ubyte"), [&](const auto& append) {
      put_numbers({0x801, count}, append);
      append(std::as_bytes(std::span{labels}));
    });
    return going;
  }

  // The highest byte first.
  template <class Append>
  static void put_numbers(std::initializer_list<std::uint32_t> numbers, const Append& append) {
    std::vector<std::uint8_t> bytes;
    for (const std::uint32_t number : numbers) {
      for (int shift = 24; shift >= 0; shift -= 8) bytes.push_back(static_cast<std::uint8_t>(number >> shift));
    }
    append(std::as_bytes(std::span{bytes}));
  }

  const std::string pack_;
  const Path out_;
  Path partial_;
  const PackProgress& go_on_;
  std::vector<std::pair<Split, std::unique_ptr<Source>>> sources_;
  std::int64_t total_ = 0, done_ = 0;
  Sample sample_;
  std::vector<std::uint8_t> png_;
};

}  // namespace

std::optional<std::int64_t> unpack(const Path& path, const Path& out, const PackProgress& go_on) {
  return Unpacking{path, out, go_on}.run();
}

}  // namespace headrace
