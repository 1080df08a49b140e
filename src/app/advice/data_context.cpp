#include "app/advice/data_context.h"

#include <algorithm>

#include "core/options/transforms.h"
#include "data/source/sample_reader.h"
#include "data/transform/crop.h"
#include "data/transform/plan.h"
#include "media/codec/decode.h"

namespace headrace {

DataContext data_context_of(const Source& source, const Loader& loader, const DataOptions& options,
                            std::uint64_t seed) {
  const SampleReader reader{source, options.limits()};
  const Schema& schema = reader.info().schema;
  const auto field = schema.image();
  if (reader.info().in_memory || !field) return {};
  const int channels = stored_shape(schema).channels;
  const ImageRows* const rows = reader.can().rows;
  constexpr std::int64_t kLookedAt = 64;
  const transform::CropStage crop = first_crop(schema, options);
  codec::Decoder decoder;
  Sample sample{schema.size()};
  std::int64_t bytes = 0, images = 0, scaled = 0;
  const std::int64_t size = source.size(), looked_at = std::min(size, kLookedAt);
  for (std::int64_t i = 0; i < looked_at; ++i) {
    try {
      const std::int64_t index = i * size / looked_at;
      if (rows != nullptr) {
        sample[*field] = rows->outline(index);
      } else {
        reader.read(index, sample);
      }
      const Payload& found = sample[*field];
      const bool is_file = found.form == ImageForm::encoded;
      codec::ImageInfo image{found.height(), found.width(), found.channels()};
      if (is_file) image = decoder.open(found.bytes, channels, options.max_pixels);
      bytes += std::int64_t{image.height} * image.width * image.channels;
      ++images;
      if (!is_file || crop.kind == transform::CropKind::none) continue;  // There is nothing to decode smaller.
      SampleRandom random{seed, /*epoch=*/0, i};
      const auto window = transform::choose_crop(crop, image.height, image.width, random);
      if (decoder.can_shrink() && transform::divisor_for(window) > 1) ++scaled;
    } catch (const Error&) {  // data.on_corrupt assigns with it when its turn comes; it takes no room.
      continue;
    }
  }
  if (bytes == 0) return {};
  const double wanted = static_cast<double>(bytes) / static_cast<double>(images) * static_cast<double>(size);
  return {std::min(1.0, static_cast<double>(loader.cache_bytes_max()) / wanted),
          static_cast<double>(scaled) / static_cast<double>(images)};
}

transform::CropStage first_crop(const Schema& schema, const DataOptions& options) {
  const ImageShape stored = stored_shape(schema);
  const auto list = transforms_in_force(options, /*training=*/true, {stored.height, stored.width});
  return transform::Plan{transform::operations_of(list), schema, options.transform.layout}.first().crop;
}

}  // namespace headrace
