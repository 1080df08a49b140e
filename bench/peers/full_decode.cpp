// The yardstick: threads that read photographs and decode the whole of each with libjpeg-turbo, and do nothing else.
// Prints one JSON line.
//   full_decode FOLDER THREADS SECONDS       FOLDER: what prepare.py made
#include <fcntl.h>
#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include <jpeglib.h>

#include "core/base/fail.h"
#include "core/base/files.h"
#include "core/base/run_program.h"
#include "core/hardware/machine.h"
#include "data/store/descriptor.h"
#include "window.h"

namespace {

using namespace headrace;

constexpr std::int64_t kWarmImages = 400;

std::vector<std::string> shuffled_files(const std::filesystem::path& folder) {
  std::vector<std::string> files;
  for (const auto& entry : std::filesystem::recursive_directory_iterator(folder / "photographs" / "train")) {
    if (entry.is_regular_file()) files.push_back(entry.path().string());
  }
  if (files.empty()) fail(ErrorCode::not_found, "no photographs in {}", folder.string());
  std::sort(files.begin(), files.end());
  std::shuffle(files.begin(), files.end(), std::mt19937{1});
  return files;
}

// One thread's; libjpeg's object and both buffers are kept from file to file.
class Reader {
 public:
  Reader() {
    info_.err = jpeg_std_error(&errors_);  // Ends the program at a file that is none.
    jpeg_create_decompress(&info_);
  }
  ~Reader() { jpeg_destroy_decompress(&info_); }
  Reader(const Reader&) = delete;
  Reader& operator=(const Reader&) = delete;

  void read_and_decode(const std::string& path) {
    jpeg_mem_src(&info_, stored_.data(), read(path));
    jpeg_read_header(&info_, TRUE);
    info_.out_color_space = JCS_RGB;
    jpeg_start_decompress(&info_);
    const std::size_t stride = std::size_t{info_.output_width} * 3;
    if (pixels_.size() < stride * info_.output_height) pixels_.resize(stride * info_.output_height);
    while (info_.output_scanline < info_.output_height) {
      JSAMPROW row = pixels_.data() + info_.output_scanline * stride;
      jpeg_read_scanlines(&info_, &row, 1);
    }
    jpeg_finish_decompress(&info_);
  }

 private:
  std::size_t read(const std::string& path) {
    const Descriptor file{::open(path.c_str(), kOpenToRead)};
    struct stat status {};
    if (file.number() < 0 || ::fstat(file.number(), &status) != 0) fail(ErrorCode::io, "cannot open {}", path);
    const auto size = static_cast<std::size_t>(status.st_size);
    if (stored_.size() < size) stored_.resize(size);
    if (::pread(file.number(), stored_.data(), size, 0) != status.st_size) fail(ErrorCode::io, "cannot read {}", path);
    return size;
  }

  jpeg_decompress_struct info_{};
  jpeg_error_mgr errors_{};
  std::vector<std::uint8_t> stored_, pixels_;
};

void run(const std::vector<std::string>& words) {
  if (words.size() != 3)
    fail(ErrorCode::invalid_argument, "wanted FOLDER THREADS SECONDS, found {} words", words.size());
  const std::vector<std::string> files = shuffled_files(words[0]);
  const std::int64_t resident = resident_memory().value();
  std::atomic<std::size_t> next = 0;
  std::atomic<std::int64_t> done = 0;
  std::atomic<bool> stop = false;
  const auto work = [&] {
    Reader reader;
    while (!stop) {
      reader.read_and_decode(files[next++ % files.size()]);
      ++done;
    }
  };
  std::vector<std::jthread> threads;
  for (int i = 0; i < std::stoi(words[1]); ++i) threads.emplace_back(work);
  while (done < kWarmImages) std::this_thread::sleep_for(std::chrono::milliseconds(1));
  const Window window;
  const std::int64_t before = done;
  std::this_thread::sleep_for(std::chrono::duration<double>(std::stod(words[2])));
  window.print(done - before, 0, resident_memory().value() - resident,
               fmt::format("libjpeg-turbo {}", LIBJPEG_TURBO_VERSION_NUMBER));
  stop = true;
}

}  // namespace

int main(int argc, char** argv) {
  return run_program(argc, argv, run, "full_decode");
}
