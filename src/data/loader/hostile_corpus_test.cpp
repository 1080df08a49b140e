// Images and packs that were damaged on purpose, through the Loader: 1,600 and 400. 500 pairs of IDX files are in
// idx_source_test.cpp.
#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <headrace/error.h>
#include <headrace/loader.h>
#include <signal.h>
#include <sys/resource.h>
#include <sys/time.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <fstream>
#include <memory>
#include <random>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "data/loader/testing.h"
#include "data/pack/pack_build.h"
#include "data/source/read_sample.h"
#include "data/store/mended_pack.h"
#include "data/store/scratch_folder.h"
#include "media/codec/decode.h"
#include "media/codec/test_images.h"

namespace headrace {
namespace {

using codec::Bytes;
using testing::HasSubstr;
using testing::IsSubsetOf;

constexpr int kHeight = 48, kWidth = 60;
constexpr std::int64_t kPixelsAllowed = 1 << 20;  // What damage makes of their size may be more.

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
constexpr int kSecondsMax = 20;
constexpr std::int64_t kMemoryMib = 512;  // Half of it is what the address sanitizer keeps of freed memory.
#else
constexpr int kSecondsMax = 1;
constexpr std::int64_t kMemoryMib = 256;
#endif

constexpr int kHangSeconds = 60;  // By the clock, on a machine on which others are busy.

// Ends the test, by a signal, when what is armed for takes more of this process' time, or longer by the clock: where a
// thread waits for good no CPU time passes. 0: without that bound. The signals have no handler, which ThreadSanitizer
// would not call while a thread computes.
class Watchdog {
 public:
  Watchdog() {
    ::signal(SIGVTALRM, SIG_DFL);
    ::signal(SIGALRM, SIG_DFL);
  }
  ~Watchdog() { arm(0, 0); }
  Watchdog(const Watchdog&) = delete;
  Watchdog& operator=(const Watchdog&) = delete;
  void begin_next() { arm(kSecondsMax, kHangSeconds); }
  void arm(int cpu_seconds, int seconds) {
    for (const auto& [timer, value] : {std::pair{ITIMER_VIRTUAL, cpu_seconds}, std::pair{ITIMER_REAL, seconds}}) {
      const itimerval time{{}, {value, 0}};
      ::setitimer(timer, &time, nullptr);
    }
  }
};

TEST(Watchdog, EndsWhatWaitsForGoodAndWhatComputesForGood) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  const auto waits = [] {
    Watchdog watchdog;
    watchdog.arm(0, 1);
    for (;;) ::pause();
  };
  EXPECT_EXIT(waits(), testing::KilledBySignal(SIGALRM), "");
  const auto computes = [] {
    Watchdog watchdog;
    watchdog.arm(1, 0);
    for (volatile unsigned i = 0;;) i = i + 1;
  };
  EXPECT_EXIT(computes(), testing::KilledBySignal(SIGVTALRM), "");
}

struct Seeds {
  std::vector<Bytes> jpegs, pngs;
};

Seeds sound_images() {
  Seeds seeds;
  const auto color = codec::photograph(kHeight, kWidth, 3, 1), grey = codec::photograph(kHeight, kWidth, 1, 2);
  using codec::JpegForm;
  for (const JpegForm& form :
       {JpegForm{}, JpegForm{.h = 1, .v = 1, .optimised = true}, JpegForm{.h = 2, .v = 1, .restart_blocks = 2},
        JpegForm{.progressive = true}, JpegForm{.arithmetic = true}}) {
    seeds.jpegs.push_back(codec::jpeg_of(color, form));
  }
  seeds.jpegs.push_back(codec::jpeg_of(grey, {.h = 1, .v = 1}));
  for (const bool interlaced : {false, true}) {
    seeds.pngs.push_back(codec::png_of(kHeight, kWidth, color.pixels, {.interlaced = interlaced, .text = true}));
    codec::PngForm form{.color = PNG_COLOR_TYPE_PALETTE, .interlaced = interlaced};
    for (int i = 0; i < 256; ++i) form.palette.push_back({static_cast<png_byte>(i), 7, 200});
    seeds.pngs.push_back(codec::png_of(kHeight, kWidth, grey.pixels, form));
    form = {.color = PNG_COLOR_TYPE_GRAY, .interlaced = interlaced};
    seeds.pngs.push_back(codec::png_of(kHeight, kWidth, grey.pixels, form));
  }
  return seeds;
}

// Two bytes of height and two of width, high byte first, in a JPEG's frame header.
Bytes jpeg_with_size(Bytes file, int side) {
  for (std::size_t at = 0; at + 9 < file.size(); ++at) {
    if (file[at] != 0xFF || (file[at + 1] != 0xC0 && file[at + 1] != 0xC1 && file[at + 1] != 0xC2)) continue;
    file[at + 5] = file[at + 7] = static_cast<std::uint8_t>(side >> 8);
    file[at + 6] = file[at + 8] = static_cast<std::uint8_t>(side);
    return file;
  }
  ADD_FAILURE() << "no frame header";
  return file;
}

Bytes png_with_size(Bytes file, int side) {
  constexpr std::size_t kSizeAt = 16;  // Behind the signature, the first chunk's length and its name.
  for (std::size_t i = 0; i < 8; ++i) file[kSizeAt + i] = static_cast<std::uint8_t>(side >> (24 - 8 * (i % 4)));
  codec::repair_checksums(file);
  return file;
}

Bytes cut(Bytes file, std::mt19937& random) {
  file.resize(random() % file.size());
  return file;
}

Bytes mutated(const Seeds& seeds, std::mt19937& random) {
  const bool is_png = random() % 2 == 0;
  const auto& family = is_png ? seeds.pngs : seeds.jpegs;
  const Bytes& seed = family[random() % family.size()];
  switch (random() % 8) {
    case 0:
      return cut(seed, random);
    case 1:
      return is_png ? png_with_size(seed, 65'535) : jpeg_with_size(seeds.jpegs[0], 65'535);
    default:
      break;
  }
  Bytes file = codec::damaged(seed, random);
  if (is_png && random() % 4 != 0) codec::repair_checksums(file);
  return file;
}

enum class Damage { none, data, header };

Damage damage_of(const Bytes& file) {
  codec::Decoder decoder;
  Damage damage = Damage::header;
  try {
    const auto info = decoder.open(file, 3, kPixelsAllowed);
    damage = Damage::data;
    Bytes out(static_cast<std::size_t>(info.height) * info.width * 3);
    decoder.decode({0, 0, info.height, info.width}, out);
    return Damage::none;
  } catch (const Error&) {
    return damage;
  }
}

std::int64_t peak_memory_mib() {
  rusage usage{};
  getrusage(RUSAGE_SELF, &usage);
  return usage.ru_maxrss / 1024;
}

class HostileCorpus : public ScratchFolder {
 protected:
  static constexpr int kImages = 400;  // Of them every eighth is sound.

  void fill(unsigned seed) {
    paths_.clear();
    damages_.clear();
    std::mt19937 random{seed};
    const Seeds seeds = sound_images();
    Watchdog watchdog;
    for (int i = 0; i < kImages; ++i) {
      Bytes file = i % 8 == 0 ? seeds.jpegs[random() % seeds.jpegs.size()] : mutated(seeds, random);
      const std::string name =
          fmt::format("{}/train/{}/{:03d}.{}", seed, i % 2 == 0 ? "even" : "odd", i, i % 3 == 0 ? "png" : "jpg");
      paths_.push_back(write(name, {file.begin(), file.end()}).string());
      watchdog.begin_next();
      damages_.push_back(damage_of(file));
    }
    EXPECT_GT(std::count(damages_.begin(), damages_.end(), Damage::header), 50);
    EXPECT_GT(std::count(damages_.begin(), damages_.end(), Damage::data), 50);
    EXPECT_GT(std::count(damages_.begin(), damages_.end(), Damage::none), kImages / 8);
  }
  // Names within the data set.
  std::set<std::string> damaged(bool header_alone) const {
    std::set<std::string> names;
    for (std::size_t i = 0; i < paths_.size(); ++i) {
      if (damages_[i] != Damage::header && (damages_[i] != Damage::data || header_alone)) continue;
      names.insert(paths_[i].substr(paths_[i].find("/train/") + 7));
    }
    return names;
  }

  void load(const std::string& uri) const;

  std::vector<std::string> paths_;
  std::vector<Damage> damages_;
};

void HostileCorpus::load(const std::string& uri) const {
  const std::shared_ptr<const Source> source = open_source(uri, Split::train);
  DataOptions options = options_of(16, 2);
  options.transform.size = 24;
  options.transform.crop = Crop::random_resized;
  options.shuffle = false;
  options.on_corrupt = OnCorrupt::replace;
  options.max_pixels = kPixelsAllowed;
  Watchdog watchdog;
  watchdog.arm(0, 2 * kHangSeconds);
  Loader loader{source, options, 1, true};
  const std::vector<std::int64_t> delivered = order(loader.epoch(0));

  std::set<std::string> named;
  for (const CorruptSample& sample : loader.corrupt_samples()) {
    named.insert(stored_name_of(*source, sample.index));
    EXPECT_THAT(sample.reason, HasSubstr(sample.name));
  }
  const std::set<std::string> bad = damaged(/*header_alone=*/false), hopeless = damaged(/*header_alone=*/true);
  EXPECT_THAT(named, IsSubsetOf(bad));
  EXPECT_THAT(hopeless, IsSubsetOf(named));
  ASSERT_EQ(delivered.size(), static_cast<std::size_t>(kImages));
  for (std::int64_t i = 0; i < kImages; ++i) {
    const std::int64_t index = delivered[static_cast<std::size_t>(i)];
    EXPECT_EQ(hopeless.count(stored_name_of(*source, index)), 0U);
    if (bad.count(stored_name_of(*source, i)) == 0) {
      EXPECT_EQ(index, i);
    }
  }
}

// A crop may spare the damage of its image: what is named lies between what no crop can spare and what a whole
// decode finds.
TEST_F(HostileCorpus, BadImagesAreNamedAndReplacedAndAllOthersDelivered) {
  const std::int64_t before = peak_memory_mib();
  for (const unsigned seed : {1U, 2U, 3U, 4U}) {
    fill(seed);
    load("folder:" + (folder_ / std::to_string(seed)).string());
  }
  EXPECT_LT(peak_memory_mib() - before,
            kMemoryMib);  // One 65,535 x 65,535 image has 12,300, and many have more than 300.
}

TEST_F(HostileCorpus, BadImagesInAPackAreToo) {
  fill(5);
  const std::string folder = "folder:" + (folder_ / "5").string();
  const PackPlan plan{.source = folder, .out = folder_ / "5.pack", .threads = 2};
  ASSERT_TRUE(write_pack(plan, [](std::int64_t, std::int64_t) { return true; }));
  load("pack:" + plan.out.string());
}

// ---- Packs ----

class HostilePacks : public ScratchFolder {
 protected:
  // Of twelve images.
  std::string whole_pack() {
    for (int i = 0; i < 12; ++i) {
      const Bytes file = codec::jpeg_of(codec::photograph(kHeight, kWidth, 3, static_cast<unsigned>(i)), {});
      write(fmt::format("sound/train/{}/{}.jpg", i % 2 == 0 ? "even" : "odd", i), {file.begin(), file.end()});
    }
    const PackPlan plan{.source = "folder:" + (folder_ / "sound").string(), .out = folder_ / "sound.pack"};
    EXPECT_TRUE(write_pack(plan, [](std::int64_t, std::int64_t) { return true; }));
    std::ifstream stream(plan.out, std::ios::binary);
    return {std::istreambuf_iterator<char>(stream), {}};
  }
  // Anywhere, or in what tells where everything is.
  static std::string mutated(const std::string& whole, std::mt19937& random) {
    if (random() % 8 == 0) return whole.substr(0, random() % whole.size());
    const std::size_t kept = random() % 2 == 0 ? 0 : whole.size() - 1500;
    const Bytes rest = codec::damaged({whole.begin() + static_cast<std::ptrdiff_t>(kept), whole.end()}, random);
    std::string file = whole.substr(0, kept) + std::string(rest.begin(), rest.end());
    if (random() % 4 != 0) mend_pack(file);
    return file;
  }
};

// Damage is told when the pack is opened, or of the sample that it hit; all others come, with the bytes they had.
TEST_F(HostilePacks, AreRefusedOrGiveTheirSoundSamples) {
  const std::string whole = whole_pack();
  std::mt19937 random{20240301};
  const std::int64_t before = peak_memory_mib();
  int refused = 0, partly = 0;
  Watchdog watchdog;
  for (int i = 0; i < 400; ++i) {
    const auto path = write("damaged.pack", mutated(whole, random));
    watchdog.begin_next();
    try {
      const std::shared_ptr<const Source> source = open_source("pack:" + path.string(), Split::train);
      DataOptions options = options_of(5, 0);
      options.transform.size = 24;
      options.on_corrupt = OnCorrupt::replace;
      options.max_pixels = kPixelsAllowed;
      Loader loader{source, options, 1, true};
      EXPECT_EQ(std::ssize(order(loader.epoch(0))), source->size());
      for (const CorruptSample& sample : loader.corrupt_samples())
        EXPECT_THAT(sample.reason, HasSubstr("damaged.pack"));
      if (!loader.corrupt_samples().empty()) ++partly;
    } catch (const Error& error) {
      EXPECT_THAT(error.what(), HasSubstr("damaged.pack"));
      ++refused;
    }
  }
  EXPECT_GT(refused, 100);
  EXPECT_GT(partly, 50);
  EXPECT_LT(peak_memory_mib() - before, kMemoryMib);
}

}  // namespace
}  // namespace headrace
