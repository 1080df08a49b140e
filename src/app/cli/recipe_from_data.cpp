#include "app/cli/recipe_from_data.h"

#include <headrace/option_fields.h>
#include <headrace/source.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <cmath>
#include <cstdint>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <span>
#include <string_view>

#include "core/base/fail.h"
#include "data/source/data_address.h"
#include "data/source/sample_reader.h"
#include "data/store/file_name.h"

namespace headrace {
namespace {

namespace fs = std::filesystem;
using Flags = std::vector<std::pair<std::string, std::string>>;

constexpr std::int64_t kLookedAt = 256;  // Of the training samples.
// Of images, in pixels. Where a network of 224 takes seconds a step on a processor, 128 takes a third of it.
constexpr std::int64_t kSideMax = 128, kSideStep = 32, kSmallStemMax = 40;
constexpr std::array<std::string_view, 3> kWithStem{"resnet18", "resnet34", "resnet50"};  // Networks with model.stem.
constexpr std::int64_t kBatchesMin = 8, kBatchSizeMin = 8;
constexpr double kHeldOut = 0.1;
// At least 64 batches: to begin them again costs the loading of one, which is less than tune.gain_min of an epoch. More
// would only be more files to read before the page cache holds what the trials share.
constexpr std::int64_t kTrialSamples = 8192;
// Ten changes of about 10 pairs at half a second a step: with 90 s most would stay open.
constexpr double kBudget_s = 300;

// The last one of this key; null: there is none.
const std::string* flag_of(const Flags& flags, std::string_view key) {
  const auto found = std::find_if(flags.rbegin(), flags.rend(), [key](const auto& flag) { return flag.first == key; });
  return found == flags.rend() ? nullptr : &found->second;
}

void refuse_second_names(const Flags& flags) {
  for (const auto& [key, first] : {std::pair{"data.source", "--data"}, std::pair{"model.name", "--model"}}) {
    if (flag_of(flags, key) == nullptr) continue;
    fail(ErrorCode::invalid_argument, "flag --{} and {} both name the {}; wanted one of them", key, first,
         std::string_view(first).substr(2));
  }
}

// Without a slash at its end, so that it has a name.
fs::path absolute_path(const fs::path& given) {
  const fs::path path = fs::absolute(given).lexically_normal();
  return path.has_filename() ? path : path.parent_path();
}

// A recipe in the making: keys and why they are set.
class Draft {
 public:
  Draft() = default;
  Draft(const Draft&) = delete;
  Draft& operator=(const Draft&) = delete;

  void set(const std::string& key, const OptionValue& value, std::string source) {
    field_named(fields_, key).set(value);
    made_.origins[key] = std::move(source);
  }
  const Recipe& recipe() const { return made_.recipe; }
  LoadedRecipe take() { return std::move(made_); }

 private:
  LoadedRecipe made_;
  const std::vector<Field> fields_ = fields_of(made_.recipe);
};

// ---- What the samples show ----

// Sums over the pixels of some images, by channel.
class PixelSums {
 public:
  explicit PixelSums(int channels) : sums_(static_cast<std::size_t>(channels)), squares_(sums_.size()) {}

  void add(std::span<const std::uint8_t> pixels) {
    for (std::size_t i = 0; i < pixels.size(); ++i) {
      const double value = pixels[i] / 255.0;
      sums_[i % sums_.size()] += value;
      squares_[i % sums_.size()] += value * value;
    }
    const std::size_t pixels_of_a_channel = pixels.size() / sums_.size();
    count_ += static_cast<double>(pixels_of_a_channel);
  }
  bool empty() const { return count_ == 0; }
  std::vector<double> means() const {
    std::vector<double> means;
    for (const double sum : sums_) means.push_back(rounded(sum / count_));
    return means;
  }
  // 1 where all pixels are equal: there is nothing to divide by.
  std::vector<double> deviations() const {
    std::vector<double> deviations;
    for (std::size_t i = 0; i < sums_.size(); ++i) {
      const double mean = sums_[i] / count_, variance = squares_[i] / count_ - mean * mean;
      const double deviation = rounded(std::sqrt(std::max(variance, 0.0)));
      deviations.push_back(deviation > 0 ? deviation : 1.0);
    }
    return deviations;
  }

 private:
  static double rounded(double value) { return std::round(value * 1e4) / 1e4; }

  std::vector<double> sums_, squares_;
  double count_ = 0;  // Pixels of each channel.
};

struct Seen {
  std::int64_t images = 0;       // That could be read.
  std::vector<ImageSize> sizes;  // Of those that tell theirs before they are decoded.
  PixelSums pixels;              // Empty: the images are files, which nobody decodes here.
};

Seen look_at(const Source& source, std::size_t image_field) {
  const SampleReader reader{source};
  Seen seen{0, {}, PixelSums(std::max(stored_shape(reader.info().schema).channels, 1))};
  Sample sample{reader.info().schema.size()};
  std::vector<std::uint8_t> buffer;
  std::string first_fault;
  bool are_files = false;
  const std::int64_t size = source.size(), looked_at = std::min(size, kLookedAt);
  for (std::int64_t i = 0; i < looked_at; ++i) {
    const std::int64_t index = i * size / looked_at;
    try {
      if (!are_files) {
        reader.read(index, sample);
        are_files = sample[image_field].form == ImageForm::encoded;
        if (!are_files) seen.pixels.add(sample[image_field].bytes);
      }
      const ImageSizes* const sizes = reader.can().sizes;
      const ImageSize found = sizes == nullptr ? ImageSize{} : sizes->image_size(index, buffer);
      if (found.height > 0) seen.sizes.push_back(found);
      ++seen.images;
    } catch (const Error& error) {  // data.on_corrupt decides about it when its turn comes.
      if (first_fault.empty()) first_fault = error.what();
    }
  }
  if (seen.images == 0) {
    fail(ErrorCode::corrupt_data, "data: none of the {} images looked at can be read: {}", looked_at, first_fault);
  }
  return seen;
}

// ---- What follows for the recipe ----

std::string size_text(std::int64_t height, std::int64_t width) {
  return fmt::format("{} x {}", height, width);
}

std::int64_t median_short_side(std::vector<ImageSize> sizes) {
  const auto short_side = [](const ImageSize& size) { return std::min(size.height, size.width); };
  const auto middle = sizes.begin() + static_cast<std::ptrdiff_t>(sizes.size() / 2);
  std::nth_element(sizes.begin(), middle, sizes.end(),
                   [&](const ImageSize& a, const ImageSize& b) { return short_side(a) < short_side(b); });
  return short_side(*middle);
}

// What goes with the size that is assumed, or with that of a flag: nothing is cropped of images that stay as stored.
void set_crop_of(Draft& draft, const Seen& seen, const std::string* size_flag) {
  if (seen.sizes.empty()) {
    fail(ErrorCode::corrupt_data, "data: none of the {} images looked at tells its size", seen.images);
  }
  const ImageSize first = seen.sizes.front();
  const bool are_one_square = first.height == first.width && first.height <= kSideMax &&
                              std::all_of(seen.sizes.begin(), seen.sizes.end(), [&](const ImageSize& size) {
                                return size.height == first.height && size.width == first.width;
                              });
  const std::int64_t middle = median_short_side(seen.sizes);
  if (are_one_square) {
    const std::string source =
        fmt::format("all of {} images looked at are {}", seen.sizes.size(), size_text(first.height, first.width));
    draft.set("data.transform.size", middle, source);
    if (size_flag == nullptr) draft.set("data.transform.resize", middle, source + ": nothing is cut off");
    return;
  }
  const std::int64_t side = std::min(kSideMax, middle < kSideStep ? middle : middle / kSideStep * kSideStep);
  draft.set("data.transform.size", side,
            fmt::format("the median shorter side of {} images looked at is {} pixels; at most {}", seen.sizes.size(),
                        middle, kSideMax));
  if (size_flag != nullptr && *size_flag == "0") return;
  draft.set("data.transform.crop", std::string("random_resized"),
            "parts of larger images, as torchvision's reference training takes them");
}

void set_normalisation(Draft& draft, const Seen& seen, int channels) {
  if (!seen.pixels.empty()) {
    const std::string source = fmt::format("of the pixels of {} images", seen.images);
    draft.set("data.transform.mean", seen.pixels.means(), source);
    draft.set("data.transform.std", seen.pixels.deviations(), source);
  } else if (channels == 3) {
    const std::string source = "of ImageNet, as torchvision's for photographs";
    draft.set("data.transform.mean", std::vector<double>{0.485, 0.456, 0.406}, source);
    draft.set("data.transform.std", std::vector<double>{0.229, 0.224, 0.225}, source);
  }
}

// Returns the longer side of the images in a batch that is assumed.
std::int64_t set_transform(Draft& draft, const Source& source, const std::string* size_flag) {
  const Schema& schema = source.info().schema;
  const Seen seen = look_at(source, *schema.image());
  const ImageShape stored = stored_shape(schema);
  set_normalisation(draft, seen, stored.channels);
  if (stored.height > 0 && stored.width > 0) {
    draft.set("data.transform.size", std::int64_t{0},
              fmt::format("as stored: all images are {}", size_text(stored.height, stored.width)));
    return std::max(stored.height, stored.width);
  }
  set_crop_of(draft, seen, size_flag);
  return draft.recipe().data.transform.size;
}

// That side, or the one of a flag; a flag that gives none is refused with the others.
std::int64_t side_in_force(std::int64_t assumed, const std::string* size_flag) {
  std::int64_t side = 0;
  if (size_flag != nullptr) std::from_chars(size_flag->data(), size_flag->data() + size_flag->size(), side);
  return side > 0 ? side : assumed;
}

// What tells the number of classes.
std::string classes_source(const DataAddress& address, std::int64_t classes) {
  const std::string place = printable_name(address.path.native());
  std::string told_by = "told by " + place;
  if (address.scheme == "folder") told_by = fmt::format("the folders of {}/{}", place, choice_name(Split::train));
  if (address.scheme == "classes") told_by = "the folders of " + place;
  if (address.scheme == "idx") told_by = fmt::format("the largest label is {}", classes - 1);
  return fmt::format("{} classes: {}", classes, told_by);
}

// Of all splits: the labels of each must be among them.
void set_classes(Draft& draft, const DataAddress& address, const std::vector<Split>& splits, const Source& train) {
  std::int64_t classes = train.info().num_classes;
  if (classes == kUnknownClasses) return;  // The network's side refuses such data, naming their fields.
  for (const Split split : splits) {
    if (split == Split::train) continue;
    classes = std::max(classes, open_source(address.uri(), split)->info().num_classes);
  }
  if (classes < 2) {
    fail(ErrorCode::invalid_argument, "data: {} has {} class; wanted two or more",
         printable_name(address.path.native()), classes);
  }
  draft.set("model.num_classes", classes, classes_source(address, classes));
}

// `side` of the images in a batch, here and below; nullopt: the user's own operations decide it.
void set_model(Draft& draft, const std::string& model, std::optional<std::int64_t> side) {
  draft.set("model.name", model, "--model");
  const bool has_stem = std::find(kWithStem.begin(), kWithStem.end(), model) != kWithStem.end();
  if (has_stem && side && *side <= kSmallStemMax) {
    draft.set("model.stem", std::string("small"), fmt::format("images of {} pixels a side", *side));
  }
}

// Returns how many samples are left to train on.
std::int64_t set_held_out(Draft& draft, const std::vector<Split>& splits, std::int64_t samples) {
  const bool are_scored = splits.size() > 1;
  if (are_scored || static_cast<double>(samples) * kHeldOut < 1) return samples;
  draft.set("data.val_fraction", kHeldOut, "the data have no split val or test");
  return samples - std::llround(static_cast<double>(samples) * kHeldOut);
}

void set_batch_size(Draft& draft, std::optional<std::int64_t> side, std::int64_t samples) {
  if (!side) return;
  const std::int64_t usual = *side <= 32 ? 128 : *side <= 64 ? 64 : 32;
  std::int64_t batch_size = usual;
  while (batch_size > kBatchSizeMin && samples / batch_size < kBatchesMin) batch_size /= 2;
  draft.set("data.batch_size", batch_size,
            batch_size < usual ? fmt::format("there are {} training samples", samples)
                               : fmt::format("images of {} pixels a side", *side));
}

// What no data tell.
void set_training(Draft& draft) {
  const Recipe usual;
  const std::string source = "the default of any recipe";
  draft.set("optimizer.name", std::string(choice_name(usual.optimizer.name)), source);
  draft.set("optimizer.lr", usual.optimizer.lr, source);
  draft.set("train.epochs", usual.train.epochs, source);
}

void set_tuning(Draft& draft, std::int64_t samples) {
  draft.set("tune.samples_max", kTrialSamples,
            samples > kTrialSamples ? fmt::format("trials share a part of the {} training samples", samples)
                                    : fmt::format("trials take all {} training samples", samples));
  draft.set("tune.budget_s", kBudget_s, "enough for slow steps; less is spent where all is decided");
}

// "photos_resnet18", of a TorchScript module the file's name.
std::string name_of(const fs::path& data, const std::string& model) {
  const std::string network = fs::path(model.substr(model.rfind(':') + 1)).stem().string();
  return printable_name(data.stem().native()) + "_" + printable_name(network);
}

}  // namespace

LoadedRecipe recipe_of(const Invocation& invocation) {
  if (invocation.data) return recipe_from_data(*invocation.data, invocation.model, invocation.flags);
  return load_recipe(invocation.recipe, invocation.flags);
}

LoadedRecipe recipe_from_data(const fs::path& data, const std::string& model, const Flags& flags) {
  refuse_second_names(flags);
  const DataAddress address = address_of(absolute_path(data));
  const std::unique_ptr<Source> train = open_source(address.uri(), Split::train);
  const std::vector<Split> splits = splits_of(address.uri());
  Draft draft;
  draft.set("data.source", address.uri(), address.shown_by);
  const std::int64_t samples = set_held_out(draft, splits, train->size());
  std::optional<std::int64_t> side;
  // Operations of the user's own take the place of data.transform; data without an image the network's side refuses.
  if (train->info().schema.image() && flag_of(flags, "data.transforms") == nullptr) {
    const std::string* const size_flag = flag_of(flags, "data.transform.size");
    side = side_in_force(set_transform(draft, *train, size_flag), size_flag);
  }
  set_batch_size(draft, side, samples);
  set_classes(draft, address, splits, *train);
  set_model(draft, model, side);
  set_training(draft);
  set_tuning(draft, samples);
  LoadedRecipe made = draft.take();
  made.name = name_of(address.path, model);
  return with_flags(std::move(made), flags, printable_name(address.path.native()));
}

std::vector<Assumption> assumptions_of(const LoadedRecipe& loaded) {
  Recipe recipe = loaded.recipe;
  std::vector<Assumption> assumptions;
  for (const Field& field : all_fields(recipe)) {
    const auto origin = loaded.origins.find(field.key);
    if (origin == loaded.origins.end() || origin->second.starts_with("default") || origin->second == "flag") continue;
    assumptions.push_back({field.key, to_toml(field.get()), origin->second});
  }
  return assumptions;
}

void tell_assumptions(Console& console, const LoadedRecipe& loaded) {
  console.info("assumed, as there is no recipe; a flag --KEY VALUE says otherwise:");
  for (const auto& [key, value, source] : assumptions_of(loaded)) {
    console.info(fmt::format("  {} = {}  # {}", key, value, source));
  }
}

nlohmann::ordered_json assumptions_json(const LoadedRecipe& loaded) {
  auto document = nlohmann::ordered_json::array();
  for (const auto& [key, value, source] : assumptions_of(loaded)) {
    document.push_back(nlohmann::ordered_json{{"key", key}, {"value", value}, {"source", source}});
  }
  return document;
}

}  // namespace headrace
