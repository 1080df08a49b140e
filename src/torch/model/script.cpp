// TorchScript modules as networks. The one source that includes LibTorch's JIT, which is slow to compile.
#include <c10/core/GradMode.h>
#include <caffe2/serialize/file_adapter.h>
#include <caffe2/serialize/inline_container.h>
#include <torch/csrc/jit/api/module.h>
#include <torch/csrc/jit/runtime/graph_executor.h>
#include <torch/csrc/jit/serialization/import.h>

#include <algorithm>
#include <filesystem>
#include <set>
#include <utility>
#include <vector>

#include "core/base/fail.h"
#include "torch/model/detail/families.h"
#include "torch/tensor/pt_weights.h"
#include "torch/tensor/translate.h"

namespace headrace {
namespace {

namespace fs = std::filesystem;
using torch::jit::Module;

// torch.jit.save stores tensors as they are and packs code, so that what unpacks beyond the file's size is code: of
// hundreds of kilobytes where networks are large.
constexpr std::uint64_t kUnpackedBytesMax = 256ULL << 20U;

// The file, and the reason that LibTorch gives in the exception being handled.
[[noreturn]] void fail_loading(const std::string& file) {
  const Error reason = translate(std::current_exception());
  const bool memory = reason.code() == ErrorCode::out_of_memory;
  fail(memory ? ErrorCode::out_of_memory : ErrorCode::corrupt_data, "model: {}: cannot be loaded as TorchScript: {}",
       file, reason.what());
}

void check_readable(const std::string& file) {
  std::error_code error;
  const fs::file_status status = fs::status(file, error);
  if (status.type() == fs::file_type::not_found) fail(ErrorCode::not_found, "model: {}: no such file", file);
  if (error) fail(ErrorCode::io, "model: {}: {}", file, error.message());
  if (!fs::is_regular_file(status)) {
    fail(ErrorCode::invalid_argument, "model: {}: wanted a file that torch.jit.save wrote, found no regular file",
         file);
  }
}

// LibTorch takes as much memory for a record as the archive says it unpacks to.
void check_unpacked_size(const std::string& file, caffe2::serialize::PyTorchStreamReader& archive,
                         std::uint64_t file_bytes) {
  std::uint64_t remaining = file_bytes + kUnpackedBytesMax;
  for (const std::string& record : archive.getAllRecords()) {
    const std::uint64_t bytes = archive.getRecordSize(record);
    if (bytes > remaining) {
      fail(ErrorCode::corrupt_data, "model: {}: {} bytes that unpack to more than {}", file, file_bytes,
           file_bytes + kUnpackedBytesMax);
    }
    remaining -= bytes;
  }
}

Module load_module(const std::string& file) {
  check_readable(file);
  refuse_pt2(file, fmt::format("model: {}: cannot be loaded as TorchScript", file));
  try {
    const auto adapter = std::make_shared<caffe2::serialize::FileAdapter>(file);
    caffe2::serialize::PyTorchStreamReader archive(adapter);
    check_unpacked_size(file, archive, adapter->size());
    return torch::jit::load(adapter, at::kCPU, /*load_debug_files=*/false);
  } catch (const Error&) {
    throw;
  } catch (...) {
    fail_loading(file);
  }
}

// forward takes a tensor, and nothing else that has no default.
bool takes_one_tensor(const c10::FunctionSchema& schema) {
  const auto& arguments = schema.arguments();  // The first is the module itself.
  if (arguments.size() < 2 || !c10::TensorType::get()->isSubtypeOf(*arguments[1].type())) return false;
  return std::all_of(arguments.begin() + 2, arguments.end(),
                     [](const c10::Argument& argument) { return argument.default_value().has_value(); });
}

std::string described(const c10::FunctionSchema& schema) {
  std::vector<std::string> types;
  for (const c10::Argument& argument : schema.arguments()) types.push_back(argument.type()->str());
  if (!types.empty()) types.erase(types.begin());
  return fmt::format("({})", fmt::join(types, ", "));
}

std::string described(const c10::IValue& value) {
  if (!value.isTensor()) return value.tagKind();
  const at::Tensor& tensor = value.toTensor();
  return tensor.defined() ? fmt::format("{} ({})", c10::toString(tensor.scalar_type()), fmt::join(tensor.sizes(), ", "))
                          : "an undefined tensor";
}

// Runs forward of one module. The interpreter runs the operators one by one, as PyTorch without TorchScript does:
// its optimizer would rewrite the module once the first batches are known, so that the same batch gave other bits in
// the first steps of a run than in later ones, and a resumed run others than one that was not interrupted.
at::Tensor run(Module& module, const at::Tensor& images, const std::string& file, std::int64_t classes) {
  const torch::jit::GraphOptimizerEnabledGuard unoptimized(false);
  c10::IValue result;
  try {
    result = module.forward({images});
  } catch (...) {
    const Error reason = translate(std::current_exception());
    fail(reason.code(), "model: {}: forward of {}: {}", file, described(images), reason.what());
  }
  if (result.isTensor()) {
    at::Tensor logits = result.toTensor();
    if (logits.defined() && logits.is_floating_point() && logits.dim() == 2 && logits.size(0) == images.size(0) &&
        logits.size(1) == classes) {
      return logits;
    }
  }
  fail(ErrorCode::invalid_argument, "model: {}: wanted logits ({}, {}) from forward, found {}", file, images.size(0),
       classes, described(result));
}

class Script final : public Network {
 public:
  Script(Module module, std::string file, std::int64_t classes)
      : module_(std::move(module)), file_(std::move(file)), classes_(classes) {}

  at::Tensor forward(const at::Tensor& images) override {
    at::Tensor logits = run(module_, images, file_, classes_);
    if (training_ && c10::GradMode::is_enabled() && !logits.requires_grad()) {
      fail(ErrorCode::invalid_argument,
           "model: {}: cannot be trained: its logits depend on no parameter that requires "
           "gradients",
           file_);
    }
    return logits;
  }

  ModelState state() override {
    ModelState state;
    std::set<const at::TensorImpl*> known;
    for (const auto& named : module_.named_parameters()) {
      if (!known.insert(named.value.unsafeGetTensorImpl()).second) continue;
      (named.value.requires_grad() ? state.parameters : state.buffers).emplace_back(named.name, named.value);
    }
    for (const auto& named : module_.named_buffers()) {
      if (known.insert(named.value.unsafeGetTensorImpl()).second) state.buffers.emplace_back(named.name, named.value);
    }
    state.set_training = [this](bool training) {
      training_ = training;
      module_.train(training);
    };
    return state;
  }

  void set_fusion(Fusion) override {}  // What it runs is its own.
  bool average_statistics(bool on) override {
    const ModelState tensors = state();
    const bool has_some = std::any_of(tensors.buffers.begin(), tensors.buffers.end(),
                                      [](const auto& buffer) { return buffer.first.ends_with("running_mean"); });
    if (on && has_some) {
      fail(ErrorCode::unsupported,
           "model: {}: the running statistics of a TorchScript module cannot be made the mean over an epoch: its "
           "momentum is part of its code",
           file_);
    }
    return false;
  }
  void set_activation_checkpointing(const CheckpointingRequest&) override {}
  CheckpointingReport checkpointing_report() override { return {}; }

  std::function<at::Tensor(const at::Tensor&)> frozen() override {
    c10::AutoGradMode no_graph(false);
    try {
      Module copy = module_.deepcopy();
      copy.eval();
      return [module = torch::jit::freeze(copy), file = file_, classes = classes_](const at::Tensor& images) mutable {
        c10::AutoGradMode no_graph_either(false);
        return run(module, images, file, classes);
      };
    } catch (...) {
      const Error reason = translate(std::current_exception());
      fail(reason.code(), "model: {}: cannot be frozen: {}", file_, reason.what());
    }
  }

 private:
  Module module_;
  std::string file_;
  std::int64_t classes_;
  bool training_ = true;
};

}  // namespace

std::unique_ptr<Network> load_script(const std::string& file, std::int64_t classes) {
  Module module = load_module(file);
  const std::optional<torch::jit::Method> forward = module.find_method("forward");
  if (!forward) fail(ErrorCode::corrupt_data, "model: {}: a TorchScript module without forward", file);
  const c10::FunctionSchema& schema = forward->function().getSchema();
  if (!takes_one_tensor(schema)) {
    fail(ErrorCode::corrupt_data, "model: {}: forward takes {}, wanted one tensor", file, described(schema));
  }
  module.train(true);  // As a native network begins.
  return std::make_unique<Script>(std::move(module), file, classes);
}

}  // namespace headrace
