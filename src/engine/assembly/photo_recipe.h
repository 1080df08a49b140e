// A recipe over small JPEG files of four classes, for tests.
#pragma once

#include "app/recipe/recipe.h"
#include "media/codec/tiny_images.h"

namespace headrace {

// Random crops of 16 x 16, batch 4, small_cnn, three epochs.
inline Recipe photo_recipe(const TinyImages& images) {
  Recipe recipe;
  recipe.data.source = images.uri();
  recipe.data.batch_size = 4;
  recipe.data.transform.size = 16;
  recipe.data.transform.crop = Crop::random_resized;
  recipe.model.name = "small_cnn";
  recipe.model.num_classes = 4;
  recipe.train.epochs = 3;
  return recipe;
}

}  // namespace headrace
