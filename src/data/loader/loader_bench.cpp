// Samples a second that a Loader delivers to a consumer that only takes batches, shuffled: Fashion-MNIST in batches of
// 128, and JPEG files of about 375 x 500 made for the bench, randomly cropped to 224 x 224, in batches of 32, without
// and with a cache that holds them all. The arms of one round run in turn, so that a busy moment of the machine hits
// all of them.
//
//   loader_bench [FOLDER] [ROUNDS]
#include <fmt/format.h>
#include <headrace/error.h>
#include <headrace/loader.h>
#include <headrace/source.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <string>
#include <vector>

#include "core/base/clock.h"
#include "core/base/run_program.h"
#include "media/codec/tiny_images.h"

namespace headrace {
namespace {

struct Arm {
  std::string name;
  std::unique_ptr<Loader> loader;
  std::vector<double> rates;  // Samples a second, one a round.
};

double measure(Loader& loader, std::int64_t epoch_index) {
  const std::int64_t begin_ns = monotonic_ns();
  std::int64_t samples = 0;
  auto epoch = loader.epoch(epoch_index);
  while (const auto batch = epoch.next()) samples += batch->size();
  return static_cast<double>(samples) / seconds_since(begin_ns);
}

std::vector<Arm> pixel_arms(const std::shared_ptr<const Source>& source) {
  std::vector<Arm> arms;
  for (const bool augmented : {false, true}) {
    for (const std::int64_t threads : {0, 1, 2}) {
      DataOptions options;
      options.num_workers = threads;
      options.transform.mean = {0.2860};
      options.transform.std = {0.3530};
      if (augmented) {
        options.transform.pad = 2;
        options.transform.flip_probability = 0.5;
      }
      arms.push_back({fmt::format("{}, {} threads", augmented ? "pad 2 + flip" : "normalize", threads),
                      std::make_unique<Loader>(source, options, 1, true),
                      {}});
    }
  }
  return arms;
}

std::vector<Arm> photo_arms(const std::shared_ptr<const Source>& source) {
  std::vector<Arm> arms;
  for (const Cache cache : {Cache::none, Cache::decoded}) {
    for (const std::int64_t threads : {1, 2}) {
      DataOptions options;
      options.batch_size = 32;
      options.num_workers = threads;
      options.cache = cache;
      options.transform.size = 224;
      options.transform.crop = Crop::random_resized;
      options.transform.flip_probability = 0.5;
      options.transform.mean = {0.485, 0.456, 0.406};
      options.transform.std = {0.229, 0.224, 0.225};
      arms.push_back({fmt::format("cache {}, {} threads", cache == Cache::none ? "none" : "warm", threads),
                      std::make_unique<Loader>(source, options, 1, true),
                      {}});
    }
  }
  return arms;
}

void compare(const std::string& title, std::vector<Arm> arms, std::int64_t rounds) {
  for (std::int64_t round = 0; round <= rounds; ++round) {
    for (Arm& arm : arms) {
      const double rate = measure(*arm.loader, round);
      if (round > 0) arm.rates.push_back(rate);  // The first round only warms up.
    }
  }
  fmt::print("{:<24} {:>12} {:>12} {:>12}   samples/s of {} epochs\n", title, "median", "lowest", "highest", rounds);
  for (Arm& arm : arms) {
    std::sort(arm.rates.begin(), arm.rates.end());
    fmt::print("{:<24} {:>12.0f} {:>12.0f} {:>12.0f}\n", arm.name, arm.rates[arm.rates.size() / 2], arm.rates.front(),
               arm.rates.back());
    const LoaderStatistics statistics = arm.loader->statistics();
    const auto samples = static_cast<double>(statistics.samples);
    fmt::print("{:<24} {:>12.0f} ns a sample busy, {:.0f} of it reading, {:.0f} decoding\n", "",
               static_cast<double>(statistics.busy_ns) / samples, static_cast<double>(statistics.read_ns) / samples,
               static_cast<double>(statistics.decode_ns) / samples);
  }
}

void run(const std::string& folder, std::int64_t rounds) {
  compare("Fashion-MNIST", pixel_arms(open_source("idx:" + folder, Split::train)), rounds);
  const TinyImages images{{.classes = 4, .count = 100, .height = 375, .width = 500}};
  compare("photographs", photo_arms(open_source(images.uri(), Split::train)), rounds);
}

}  // namespace
}  // namespace headrace

int main(int argc, char** argv) {
  const std::string folder = argc > 1 ? argv[1] : "/usr/share/datasets/fashion-mnist";
  const long rounds = argc > 2 ? std::atol(argv[2]) : 9;
  if (rounds < 1) {
    std::fprintf(stderr, "usage: loader_bench [FOLDER] [ROUNDS, at least 1]\n");
    return 2;
  }
  return headrace::run_program(argc, argv, [&](const auto&) { headrace::run(folder, rounds); });
}
