// Photographs a second that the Loader delivers, with nothing to train: what torchvision_loader.py is for torchvision.
// The clock starts when the first batch is there and stops at the end of the pass or after IMAGES. Prints one JSON
// line.
//   photo_loader FOLDER SIZE BATCH THREADS IMAGES SEED       FOLDER: ImageFolder layout
#include <fmt/format.h>
#include <headrace/loader.h>

#include <string>
#include <vector>

#include "core/base/clock.h"
#include "core/base/fail.h"
#include "core/base/run_program.h"

namespace {

using namespace headrace;

DataOptions options_of(const std::vector<std::string>& words) {
  DataOptions options;
  options.source = "folder:" + words.at(0);
  options.transform.size = std::stoll(words.at(1));
  options.transform.crop = Crop::random_resized;
  options.transform.flip_probability = 0.5;
  options.transform.mean = {0.485, 0.456, 0.406};
  options.transform.std = {0.229, 0.224, 0.225};
  options.batch_size = std::stoll(words.at(2));
  options.num_workers = std::stoll(words.at(3));
  options.last_batch = LastBatch::drop;
  return options;
}

void run(const std::vector<std::string>& words) {
  if (words.size() != 6) {
    fail(ErrorCode::invalid_argument, "wanted FOLDER SIZE BATCH THREADS IMAGES SEED, found {} words", words.size());
  }
  const DataOptions options = options_of(words);
  const std::int64_t images_wanted = std::stoll(words.at(4));
  Loader loader(open_source(options.source, Split::train), options, std::stoull(words.at(5)), /*training=*/true);
  Epoch epoch = loader.epoch(0);
  if (!epoch.next()) fail(ErrorCode::invalid_argument, "{} has less than one batch", options.source);

  const std::int64_t begin_ns = monotonic_ns();
  std::int64_t images = 0;
  while (images < images_wanted) {
    const auto batch = epoch.next();
    if (!batch) break;
    images += batch->size();
  }
  const double seconds = seconds_since(begin_ns);
  fmt::print("{{\"images_per_second\": {}, \"images\": {}, \"seconds\": {}, \"size\": {}, \"threads\": {}}}\n",
             static_cast<double>(images) / seconds, images, seconds, options.transform.size, options.num_workers);
}

}  // namespace

int main(int argc, char** argv) {
  return run_program(argc, argv, run, "photo_loader");
}
