#include "core/options/transforms.h"

#include <headrace/option_fields.h>

#include <algorithm>
#include <string_view>
#include <utility>

#include "core/base/fail.h"
#include "core/options/contradictions.h"

namespace headrace {

using transforms::CenterCrop;
using transforms::Normalize;
using transforms::Pad;
using transforms::RandomCrop;
using transforms::RandomHorizontalFlip;
using transforms::RandomResizedCrop;
using transforms::Resize;
using transforms::ToDtype;

#define HEADRACE_OPERATION(Name) static_assert(std::string_view(transforms::Name::kName) == #Name);
#include <headrace/options/transforms.inc>
#undef HEADRACE_OPERATION

std::string_view name_of(const TransformSpec& spec) noexcept {
  return held_name(spec);
}

namespace {

using Size = std::vector<std::int64_t>;

// One number where two are the same, as crops read it.
Size crop_size(std::int64_t height, std::int64_t width) {
  return height == width ? Size{height} : Size{height, width};
}

std::int64_t longer_side(const Size& size) {
  return *std::max_element(size.begin(), size.end());
}

// Shorter side that a crop of this size is taken from where nobody says one.
std::int64_t resized_side_for(const Size& size) {
  return TransformOptions{.size = longer_side(size)}.resized_side();
}

// Whether it takes a size x size square, or that of an image of the size `image`.
bool is_of_size(const Size& size, const Size& image) {
  return !image.empty() && !size.empty() && size.front() == image.front() && size.back() == image.back();
}

Size size_of(StoredSize stored) {
  return stored.height > 0 && stored.width > 0 ? Size{stored.height, stored.width} : Size{};
}

bool is_crop(const TransformSpec& spec) {
  return std::holds_alternative<CenterCrop>(spec) || std::holds_alternative<RandomCrop>(spec) ||
         std::holds_alternative<RandomResizedCrop>(spec);
}

template <class Operation>
const Operation* operation_at(const std::vector<TransformSpec>& list, std::size_t place) {
  return place < list.size() ? std::get_if<Operation>(&list[place]) : nullptr;
}

// Whether an image of the size `image` has a rectangle of this size.
bool holds(const Size& image, const Size& size) {
  return !image.empty() && !size.empty() && image.front() >= size.front() && image.back() >= size.back();
}

// Height and width of an image behind an operation, of one that had these before; empty: they differ.
struct SizeAfter {
  const Size& image;

  Size operator()(const Resize& resize) const { return resize.size.size() == 2 ? resize.size : Size{}; }
  Size operator()(const CenterCrop& crop) const { return crop.size; }
  Size operator()(const RandomCrop& crop) const { return crop.size; }
  Size operator()(const RandomResizedCrop& crop) const { return crop.size; }
  Size operator()(const Pad& pad) const {
    if (image.empty() || pad.padding.empty()) return image;
    const Size& by = pad.padding;  // All sides; left and right, top and bottom; left, top, right, bottom.
    const std::int64_t across = by.size() == 4 ? by[0] + by[2] : 2 * by.front();
    const std::int64_t along = by.size() == 4 ? by[1] + by[3] : 2 * by.back();
    return {image.front() + along, image.back() + across};
  }
  template <class Other>
  Size operator()(const Other&) const {
    return image;
  }
};

// What stands for an operation in evaluation.
struct InEvaluation {
  const Size& image;  // Of the image before it; empty: they differ.
  bool is_resized;    // By an operation before it, and not cropped since.

  std::vector<TransformSpec> operator()(const RandomResizedCrop& crop) const {
    if (crop.size.empty()) return {};
    const Resize resize{{resized_side_for(crop.size)}, crop.interpolation, 0, crop.antialias};
    return {resize, CenterCrop{crop.size}};
  }
  std::vector<TransformSpec> operator()(const RandomCrop& crop) const {
    if (crop.size.empty() || is_of_size(crop.size, image)) return {};
    if (is_resized || !crop.padding.empty() || holds(image, crop.size)) return {CenterCrop{crop.size}};
    return {Resize{{resized_side_for(crop.size)}}, CenterCrop{crop.size}};
  }
  template <class Other>
  std::vector<TransformSpec> operator()(const Other& other) const {
    if constexpr (requires { Other::kRandom; }) return {};
    return {other};
  }
};

// The operation as it is written of those that mean the same; nullopt: it does nothing.
struct Canonical {
  std::optional<TransformSpec> operator()(RandomCrop crop) const {
    shorten(crop.size);
    if (crop.padding.size() == 4 &&
        is_of_size({crop.padding[0], crop.padding[1]}, {crop.padding[2], crop.padding[3]})) {
      crop.padding.resize(2);
    }
    shorten(crop.padding);
    if (crop.padding == Size{0}) crop.padding.clear();
    return crop;
  }
  std::optional<TransformSpec> operator()(CenterCrop crop) const {
    shorten(crop.size);
    return crop;
  }
  std::optional<TransformSpec> operator()(RandomResizedCrop crop) const {
    shorten(crop.size);
    return crop;
  }
  std::optional<TransformSpec> operator()(const RandomHorizontalFlip& flip) const {
    if (flip.p == 0) return std::nullopt;
    return flip;
  }
  std::optional<TransformSpec> operator()(const ToDtype& to) const {
    if (to.dtype == choice_name(PixelType::u8)) return std::nullopt;  // What pixels are stored as.
    return to;
  }
  std::optional<TransformSpec> operator()(const Normalize& normalize) const {
    const TransformOptions neutral;
    if (normalize.mean == neutral.mean && normalize.std == neutral.std) return std::nullopt;
    return normalize;
  }
  template <class Other>
  std::optional<TransformSpec> operator()(const Other& other) const {
    return other;
  }

 private:
  static void shorten(Size& size) {
    if (size.size() == 2 && size.front() == size.back()) size.pop_back();
  }
};

std::vector<TransformSpec> canonical(const std::vector<TransformSpec>& list) {
  std::vector<TransformSpec> out;
  for (const TransformSpec& spec : list) {
    if (auto same = std::visit(Canonical{}, spec)) out.push_back(std::move(*same));
  }
  return out;
}

std::int64_t first_of(const Size& size) {
  return size.empty() ? 0 : size.front();
}

// The options that the list may mean: what it says in the order in which they do it. The caller sees whether they do.
TransformOptions guessed(const std::vector<TransformSpec>& list) {
  TransformOptions options;
  options.dtype = PixelType::u8;
  std::size_t place = 0;
  if (const auto* const resize = operation_at<Resize>(list, place)) {
    options.resize = first_of(resize->size);
    if (const auto* const center = operation_at<CenterCrop>(list, 1)) options.size = first_of(center->size);
    if (const auto* const random = operation_at<RandomCrop>(list, 1)) {
      options.size = first_of(random->size);
      options.crop = Crop::random;
    }
    place = 2;
  } else if (const auto* const crop = operation_at<RandomResizedCrop>(list, place)) {
    options.size = first_of(crop->size);
    options.crop = Crop::random_resized;
    options.scale = crop->scale;
    options.ratio = crop->ratio;
    place = 1;
  }
  if (const auto* const crop = operation_at<RandomCrop>(list, place)) {
    options.pad = first_of(crop->padding);
    ++place;
  }
  if (const auto* const flip = operation_at<RandomHorizontalFlip>(list, place)) {
    options.flip_probability = flip->p;
    ++place;
  }
  if (const auto* const to = operation_at<ToDtype>(list, place)) {
    for (const auto& type : choices(options.dtype)) {
      if (type.name == to->dtype) options.dtype = type.value;
    }
    ++place;
  }
  if (const auto* const normalize = operation_at<Normalize>(list, place)) {
    options.mean = normalize->mean;
    options.std = normalize->std;
  }
  if (options.resize == TransformOptions{.size = options.size}.resized_side()) options.resize = 0;
  return options;
}

// Whether a job could have these options.
bool are_allowed(TransformOptions options) {
  if (!transform_contradiction(options, "").empty()) return false;
  for (const Field& field : fields_of(options)) {
    const OptionValue value = field.get();
    const auto* const number = std::get_if<std::int64_t>(&value);
    const auto within = [&field](double x) { return x >= field.low && x <= field.high; };
    if (number != nullptr && !within(static_cast<double>(*number))) return false;
  }
  return true;
}

bool mean_the_same(const TransformOptions& options, const std::vector<TransformSpec>& list, bool training,
                   StoredSize stored) {
  const bool has_size = options.size > 0 || options.pad == 0 || !size_of(stored).empty();
  return has_size && canonical(transforms_of(options, training, stored)) == list;
}

}  // namespace

std::vector<TransformSpec> transforms_of(const TransformOptions& options, bool training, StoredSize stored) {
  std::vector<TransformSpec> list;
  if (options.size > 0 && training && options.crop == Crop::random_resized) {
    list.emplace_back(RandomResizedCrop{.size = {options.size}, .scale = options.scale, .ratio = options.ratio});
  } else if (options.size > 0) {
    list.emplace_back(Resize{.size = {options.resized_side()}});
    if (training && options.crop == Crop::random) {
      list.emplace_back(RandomCrop{.size = {options.size}});
    } else {
      list.emplace_back(CenterCrop{.size = {options.size}});
    }
  }
  if (training && options.pad > 0) {
    const Size image = options.size > 0 ? Size{options.size, options.size} : size_of(stored);
    if (image.empty()) {
      fail(ErrorCode::invalid_argument,
           "data: data.transform.pad is {}, and each image has a size of its own; "
           "data.transform.size must be set",
           options.pad);
    }
    list.emplace_back(RandomCrop{.size = crop_size(image.front(), image.back()), .padding = {options.pad}});
  }
  if (training && options.flip_probability > 0) list.emplace_back(RandomHorizontalFlip{.p = options.flip_probability});
  if (options.dtype == PixelType::u8) return list;
  list.emplace_back(ToDtype{.dtype = std::string(choice_name(options.dtype)), .scale = true});
  const TransformOptions neutral;
  if (options.mean != neutral.mean || options.std != neutral.std) {
    list.emplace_back(Normalize{.mean = options.mean, .std = options.std});
  }
  return list;
}

std::vector<TransformSpec> eval_transforms_of(const std::vector<TransformSpec>& transforms, StoredSize stored) {
  std::vector<TransformSpec> list;
  Size image = size_of(stored);
  bool is_resized = false;
  for (const TransformSpec& training : transforms) {
    for (TransformSpec& spec : std::visit(InEvaluation{image, is_resized}, training)) list.push_back(std::move(spec));
    image = std::visit(SizeAfter{image}, training);
    is_resized = std::holds_alternative<Resize>(training) || (is_resized && !is_crop(training));
  }
  return list;
}

std::vector<TransformSpec> transforms_in_force(const DataOptions& options, bool training, StoredSize stored) {
  if (options.transforms.empty()) return transforms_of(options.transform, training, stored);
  if (training) return options.transforms;
  return options.eval_transforms.empty() ? eval_transforms_of(options.transforms, stored) : options.eval_transforms;
}

std::optional<TransformOptions> shorthand_of(const std::vector<TransformSpec>& transforms, bool training,
                                             StoredSize stored) {
  const std::vector<TransformSpec> list = canonical(transforms);
  TransformOptions options = guessed(list);
  if (!are_allowed(options) || !mean_the_same(options, list, training, stored)) return std::nullopt;
  return options;
}

std::optional<TransformOptions> shorthand_of(const std::vector<TransformSpec>& transforms,
                                             const std::vector<TransformSpec>& eval_transforms, StoredSize stored) {
  std::optional<TransformOptions> options = shorthand_of(transforms, /*training=*/true, stored);
  if (!options) return std::nullopt;
  const std::vector<TransformSpec> list = canonical(eval_transforms);
  // A random rectangle is taken from the image as it is: evaluation alone says to what it is resized.
  if (options->crop == Crop::random_resized) options->resize = guessed(list).resize;
  if (!are_allowed(*options) || !mean_the_same(*options, list, /*training=*/false, stored)) return std::nullopt;
  return options;
}

DataOptions with_shorthand(DataOptions options, bool training, StoredSize stored) {
  if (options.transforms.empty()) return options;
  auto shorthand = shorthand_of(options.transforms, transforms_in_force(options, /*training=*/false, stored), stored);
  if (!shorthand) shorthand = shorthand_of(transforms_in_force(options, training, stored), training, stored);
  if (!shorthand) return options;
  shorthand->layout = options.transform.layout;
  options.transform = *shorthand;
  options.transforms.clear();
  options.eval_transforms.clear();
  return options;
}

bool makes_one_size(const DataOptions& options) {
  if (options.transforms.empty()) return options.transform.size > 0;
  return std::any_of(options.transforms.begin(), options.transforms.end(), [](const TransformSpec& spec) {
    if (const auto* const resize = std::get_if<Resize>(&spec)) return resize->size.size() == 2;
    if (const auto* const crop = std::get_if<RandomCrop>(&spec)) return crop->padding.empty() || crop->pad_if_needed;
    return std::holds_alternative<CenterCrop>(spec) || std::holds_alternative<RandomResizedCrop>(spec);
  });
}

std::string dtype_after(const std::vector<TransformSpec>& transforms) {
  std::string dtype{choice_name(PixelType::u8)};
  for (const TransformSpec& spec : transforms) {
    if (const auto* const to = std::get_if<ToDtype>(&spec)) dtype = to->dtype;
  }
  return dtype;
}

}  // namespace headrace
