// A small IDX data set on disk for tests and benches: `count` random images of 8 x 8 with labels 0 to 9.
#pragma once

#include <cstdint>
#include <filesystem>
#include <fstream>
#include <string>

#include "app/recipe/recipe.h"
#include "core/base/random.h"
#include "core/base/temporary_folder.h"

namespace headrace {

class TinyDataset {
 public:
  explicit TinyDataset(std::uint32_t count) {
    for (const std::string split : {"train", "t10k"}) {
      std::ofstream images(folder_ / (split + "-images-idx3-ubyte"), std::ios::binary);
      std::ofstream labels(folder_ / (split + "-labels-idx1-ubyte"), std::ios::binary);
      for (const std::uint32_t word : {0x803U, count, 8U, 8U}) put(images, word);
      for (const std::uint32_t word : {0x801U, count}) put(labels, word);
      for (std::uint32_t i = 0; i < count; ++i) {
        SampleRandom random{7, 0, i};
        const std::uint32_t label = i % 10;
        labels.put(static_cast<char>(label));
        // The label shows in the brightness, so that training has something to learn.
        for (int pixel = 0; pixel < 64; ++pixel) images.put(static_cast<char>(label * 20 + random.below(50)));
      }
    }
  }

  // A recipe over this data: mlp, batch 32, one compute thread.
  Recipe recipe() const {
    Recipe recipe;
    recipe.data.source = "idx:" + folder_.string();
    recipe.data.batch_size = 32;
    recipe.model.name = "mlp";
    recipe.compute.intra_op_threads = 1;
    return recipe;
  }
  const std::filesystem::path& folder() const { return folder_; }

 private:
  static void put(std::ofstream& file, std::uint32_t word) {
    for (int shift = 24; shift >= 0; shift -= 8) file.put(static_cast<char>(word >> shift));
  }
  const TemporaryFolder temporary_;
  const std::filesystem::path folder_ = temporary_.path();
};

}  // namespace headrace
