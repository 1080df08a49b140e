// headrace::Loader without Python and without LibTorch: the work of headrace_loader.py. Prints one JSON line.
//   native_loader FOLDER WORK THREADS SECONDS       FOLDER: what prepare.py made; WORK: see protocol.py
// The first batch counts from PEER_STARTED_NS of the environment, the monotonic clock just before exec.
#include <headrace/loader.h>

#include <cstdlib>
#include <optional>
#include <string>
#include <vector>

#include "core/base/fail.h"
#include "core/base/run_program.h"
#include "core/hardware/machine.h"
#include "window.h"

namespace {

using namespace headrace;

struct Work {
  DataOptions options;
  Split split = Split::train;
  int warm_batches = 6;
};

Work work_of(const std::string& folder, const std::string& name, std::int64_t threads) {
  Work work;
  DataOptions& options = work.options;
  options.source = "folder:" + folder + "/photographs";
  options.batch_size = 64;
  options.num_workers = threads;
  options.last_batch = LastBatch::drop;
  options.transform.size = 224;
  options.transform.crop = Crop::random_resized;
  options.transform.flip_probability = 0.5;
  options.transform.mean = {0.485, 0.456, 0.406};
  options.transform.std = {0.229, 0.224, 0.225};
  if (name == "validation") {
    work.split = Split::val;
    options.transform.crop = Crop::center;
    options.transform.resize = 256;
  } else if (name == "decoded_cache" || name == "decoded_cache_uint8") {
    options.source = "pack:" + folder + "/small-raw.pack";
    work.warm_batches = 50;
    if (name == "decoded_cache_uint8") {
      options.transform.dtype = PixelType::u8;
      options.transform.mean = {0};
      options.transform.std = {1};
    }
  } else if (name == "fashion") {
    options.source = "idx:" + folder + "/fashion";
    options.batch_size = 256;
    options.transform = {.pad = 2, .flip_probability = 0.5, .mean = {0.2860}, .std = {0.3530}};
    work.warm_batches = 60;
  } else if (name != "train") {
    fail(ErrorCode::invalid_argument, "work {}; wanted train | validation | decoded_cache[_uint8] | fashion", name);
  }
  return work;
}

// Epoch after epoch.
class Batches {
 public:
  explicit Batches(const Work& work)
      : loader_(open_source(work.options.source, work.split), work.options, 0, work.split == Split::train) {}
  std::int64_t next() {
    for (;;) {
      if (!epoch_) epoch_.emplace(loader_.epoch(passes_++));
      if (const auto batch = epoch_->next()) return batch->size();
      epoch_.reset();
    }
  }

 private:
  Loader loader_;
  std::optional<Epoch> epoch_;
  std::int64_t passes_ = 0;
};

void run(const std::vector<std::string>& words) {
  if (words.size() != 4) {
    fail(ErrorCode::invalid_argument, "wanted FOLDER WORK THREADS SECONDS, found {} words", words.size());
  }
  const char* started = std::getenv("PEER_STARTED_NS");
  const std::int64_t started_ns = started != nullptr ? std::stoll(started) : monotonic_ns();
  const std::int64_t resident = resident_memory().value();
  const Work work = work_of(words[0], words[1], std::stoll(words[2]));
  Batches batches{work};
  batches.next();
  const double first_batch_s = seconds_since(started_ns);
  for (int i = 0; i < work.warm_batches; ++i) batches.next();
  const double seconds = std::stod(words[3]);
  const Window window;
  std::int64_t images = 0;
  while (window.seconds() < seconds) images += batches.next();
  window.print(images, first_batch_s, resident_memory().value() - resident, "of this tree");
}

}  // namespace

int main(int argc, char** argv) {
  return run_program(argc, argv, run, "native_loader");
}
