// Networks' weights as the files that PyTorch users exchange: safetensors, or .pt, with the names of a state_dict.
#pragma once

#include <headrace/model_state.h>

#include <filesystem>
#include <map>
#include <string>
#include <vector>

namespace headrace {

// Copies the file's tensors into the model's parameters and buffers of the same names; each keeps its own layout. Names
// of timm's MobileNetV3 and VisionTransformer are taken for torchvision's, and the values with them so that evaluation
// gives timm's logits, unless the model itself has timm's names, as a TorchScript module may; what follows is by the
// model's names. Left as they are, and left out of the file's, are those that `except` names: "fc.weight" that tensor,
// "layer4" each tensor whose name begins with "layer4.". Nothing is changed unless everything fits:
// Error{invalid_argument} lists, by name and number, what the file lacks, has beyond the model, and has in another
// shape or type (nothing is converted); or an entry of `except` that names nothing. Error{not_found} or {io}: the file
// cannot be read; {corrupt_data}: it is not what it says; {unsupported}: a .pt2 archive, a pickle of more than tensors
// and plain containers, of which nothing is run, or a type that is not known here. A file without
// num_batches_tracked, as PyTorch wrote before 0.4.1, sets it to 0. Costs memory of the file's size once it is known to
// fit; a .pt file is read where it is mapped. No other thread may use the model meanwhile.
void load_weights(const std::filesystem::path& path, const ModelState& state,
                  const std::vector<std::string>& except = {});

// Every parameter and buffer, for safetensors.torch.load_file and load_state_dict(strict=True). `metadata` gains
// "format" = "pt", which Hugging Face's loaders ask for. Written aside, synced and renamed: the file is whole, or as it
// was. Error{io} names file and reason; Error{unsupported}: a type that safetensors does not know.
void save_weights(const std::filesystem::path& path, const ModelState& state,
                  std::map<std::string, std::string> metadata = {});

}  // namespace headrace
