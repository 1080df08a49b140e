#include <ATen/Context.h>
#include <ATen/TensorOperators.h>
#include <ATen/ops/batch_norm.h>
#include <ATen/ops/conv2d.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/randn.h>
#include <ATen/ops/zeros.h>
#include <c10/core/GradMode.h>
#include <caffe2/serialize/inline_container.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <headrace/error.h>
#include <headrace/model.h>
#include <torch/csrc/jit/api/module.h>

#include <algorithm>
#include <cstring>
#include <utility>

#include "core/base/files.h"
#include "core/base/temporary_folder.h"

namespace headrace {
namespace {

namespace fs = std::filesystem;
using ::testing::HasSubstr;
using torch::jit::Module;

// Images of any size: a convolution that is learnt, one that is frozen, a normalisation, and a mean for each of 4
// classes.
Module classifier() {
  at::manual_seed(4);
  Module module("Classifier");
  module.register_attribute("training", c10::BoolType::get(), true);
  module.register_parameter("weight", at::randn({4, 3, 3, 3}), /*is_buffer=*/false);
  module.register_parameter("fixed", at::randn({4, 4, 1, 1}).requires_grad_(false), /*is_buffer=*/false);
  module.register_parameter("scale", at::ones({4}), /*is_buffer=*/false);
  module.register_buffer("mean", at::zeros({4}));
  module.register_buffer("var", at::ones({4}));
  module.define(R"(
    def forward(self, x):
      y = torch.conv2d(x, self.weight, None, [1, 1], [1, 1])
      y = torch.batch_norm(y, self.scale, None, self.mean, self.var, self.training, 0.1, 1e-5, False)
      return torch.conv2d(torch.relu(y), self.fixed).mean([2, 3])
  )");
  for (const auto& named : module.named_parameters(/*recurse=*/false))
    named.value.requires_grad_(named.name != "fixed");
  return module;
}

Module with_forward(const std::string& source) {
  Module module("Written");
  module.define(source + "\n");
  return module;
}

class Script : public ::testing::Test {
 protected:
  fs::path file() const { return path_ / "m.pt"; }

  std::unique_ptr<Network> loaded(std::int64_t classes = 4) const {
    ModelOptions options;
    options.name = "torchscript:" + file().string();
    options.num_classes = classes;
    return make_network(options, 3, 8, 8);
  }

  // What loading the file and, if that works, one batch of 2 images says; always one line that names the file.
  std::string refusal(ErrorCode code) const {
    try {
      const auto network = loaded();
      network->forward(at::randn({2, 3, 8, 8}));
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), code) << error.what();
      EXPECT_THAT(error.what(), HasSubstr("m.pt"));
      EXPECT_EQ(std::string(error.what()).find('\n'), std::string::npos);
      return error.what();
    }
    return "accepted";
  }

  std::string refusal_of(const std::string& forward, ErrorCode code = ErrorCode::invalid_argument) const {
    with_forward(forward).save(file().string());
    return refusal(code);
  }

  std::string bytes() const { return read_file(file(), 1 << 20); }

  const TemporaryFolder temporary_;
  const fs::path path_ = temporary_.path();
};

TEST_F(Script, GivesTheSameOutputAndSharesItsTensors) {
  Module module = classifier();
  module.save(file().string());
  const auto network = loaded();
  ModelState state = network->state();
  std::vector<std::string> parameters, buffers;
  for (const auto& [name, tensor] : state.parameters) {
    parameters.push_back(name);
    EXPECT_TRUE(tensor.requires_grad() && tensor.is_leaf()) << name;
  }
  for (const auto& [name, tensor] : state.buffers) buffers.push_back(name);
  EXPECT_THAT(parameters, ::testing::ElementsAre("weight", "scale"));
  EXPECT_THAT(buffers, ::testing::ElementsAre("fixed", "mean", "var"));

  const at::Tensor images = at::randn({5, 3, 8, 8});
  for (const bool training : {true, false}) {
    module.train(training);
    state.set_training(training);
    EXPECT_TRUE(network->forward(images).equal(module.forward({images}).toTensor()));
  }
  EXPECT_GT(state.buffers[1].second.abs().sum().item<double>(), 0);
  {
    c10::AutoGradMode no_graph(false);
    state.buffers[0].second.zero_();
  }
  EXPECT_EQ(network->forward(images).abs().max().item<double>(), 0);
}

TEST_F(Script, LearnsAndLeavesWhatIsFrozenAlone) {
  classifier().save(file().string());
  const auto network = loaded();
  const ModelState state = network->state();
  network->forward(at::randn({5, 3, 8, 8})).sum().backward();
  for (const auto& [name, tensor] : state.parameters) EXPECT_GT(tensor.grad().abs().max().item<double>(), 0) << name;
  for (const auto& [name, tensor] : state.buffers) EXPECT_FALSE(tensor.grad().defined()) << name;
}

TEST_F(Script, ComputesInTheLayoutOfItsParameters) {
  classifier().save(file().string());
  const auto contiguous = loaded(), last = loaded();
  const at::Tensor weight = last->state().parameters[0].second;
  weight.set_data(weight.detach().contiguous(at::MemoryFormat::ChannelsLast));
  const at::Tensor images = at::randn({5, 3, 8, 8});
  const at::Tensor a = contiguous->forward(images);
  const at::Tensor b = last->forward(images.contiguous(at::MemoryFormat::ChannelsLast));
  EXPECT_LE((a - b).abs().max().item<double>(), 1e-5);
  a.sum().backward();
  b.sum().backward();
  EXPECT_LE((contiguous->state().parameters[0].second.grad() - weight.grad()).abs().max().item<double>(), 1e-3);
}

TEST_F(Script, FreezesWithoutChangingTheModule) {
  classifier().save(file().string());
  auto network = loaded();
  const at::Tensor images = at::randn({5, 3, 8, 8});
  network->forward(images);  // Running statistics that are not 0 and 1.
  const auto frozen = network->frozen();
  const at::Tensor before = frozen(images).clone();
  ModelState state = network->state();
  state.set_training(false);
  EXPECT_LE((network->forward(images) - before).abs().max().item<double>(), 1e-5);
  EXPECT_FALSE(before.requires_grad());
  state.set_training(true);
  EXPECT_TRUE(network->forward(images).requires_grad());
  {
    c10::AutoGradMode no_graph(false);
    for (const auto& [name, tensor] : state.parameters) tensor.zero_();
    for (const auto& [name, tensor] : state.buffers) tensor.zero_();
  }
  network.reset();
  EXPECT_TRUE(frozen(images).equal(before));
}

TEST_F(Script, NamesATensorOfTwoModulesOnce) {
  Module shared("Shared"), a("A"), b("B");
  const at::Tensor weight = at::randn({4, 3}).requires_grad_();
  a.register_parameter("weight", weight, false);
  b.register_parameter("weight", weight, false);
  shared.register_module("a", a);
  shared.register_module("b", b);
  shared.define("def forward(self, x):\n  return torch.linear(x.mean([2, 3]), self.a.weight + self.b.weight)\n");
  shared.save(file().string());
  const ModelState state = loaded()->state();
  ASSERT_EQ(state.parameters.size(), 1);
  EXPECT_EQ(state.parameters[0].first, "a.weight");
}

TEST_F(Script, RefusesWhatIsNoClassifierOfImages) {
  constexpr auto corrupt = ErrorCode::corrupt_data;
  EXPECT_THAT(refusal_of("def other(self, x):\n  return x", corrupt), HasSubstr("without forward"));
  EXPECT_THAT(refusal_of("def forward(self):\n  return 1", corrupt), HasSubstr("forward takes (), wanted one tensor"));
  EXPECT_THAT(refusal_of("def forward(self, x, y):\n  return x", corrupt), HasSubstr("forward takes (Tensor, Tensor)"));
  EXPECT_THAT(refusal_of("def forward(self, x: int):\n  return x", corrupt), HasSubstr("forward takes (int)"));
  EXPECT_THAT(refusal_of("def forward(self, x):\n  return (x, x)"),
              HasSubstr("logits (2, 4) from forward, found Tuple"));
  EXPECT_THAT(refusal_of("def forward(self, x):\n  return x.mean([2, 3])"), HasSubstr("found Float (2, 3)"));
  EXPECT_THAT(refusal_of("def forward(self, x):\n  return x"), HasSubstr("found Float (2, 3, 8, 8)"));
  EXPECT_THAT(refusal_of("def forward(self, x):\n  return torch.zeros([2, 4]).int()"), HasSubstr("found Int (2, 4)"));
  EXPECT_THAT(refusal_of("def forward(self, x, y: int = 4):\n  return torch.zeros([2, y])"),
              HasSubstr("cannot be trained: its logits depend on no parameter"));
  EXPECT_THAT(refusal_of("def forward(self, x):\n  return torch.mm(x, x)", ErrorCode::internal),
              HasSubstr("forward of Float (2, 3, 8, 8): torch: self must be a matrix"));
  EXPECT_THAT(refusal_of("def forward(self, x):\n  assert False, \"no\"\n  return x", ErrorCode::internal),
              HasSubstr("forward of Float (2, 3, 8, 8): torch: AssertionError: no"));
#ifndef __SANITIZE_ADDRESS__  // Its allocator ends the process instead of refusing.
  EXPECT_THAT(refusal_of("def forward(self, x):\n  return torch.zeros([1 << 50])", ErrorCode::out_of_memory),
              HasSubstr("forward of Float (2, 3, 8, 8)"));
#endif
}

TEST_F(Script, NamesAFileThatIsNotThereOrNoFile) {
  EXPECT_THAT(refusal(ErrorCode::not_found), HasSubstr("no such file"));
  fs::create_directory(file());
  EXPECT_THAT(refusal(ErrorCode::invalid_argument), HasSubstr("no regular file"));
}

TEST_F(Script, EveryTruncationIsNoticed) {
  classifier().save(file().string());
  const std::string whole = bytes();
  for (std::size_t size = 0; size < whole.size(); size += 7) {
    write_file(file(), std::string_view(whole).substr(0, size));
    EXPECT_THAT(refusal(ErrorCode::corrupt_data), HasSubstr("cannot be loaded as TorchScript"));
  }
}

TEST_F(Script, OtherFilesAreRefused) {
  write_file(file(), "\x80\x02}q\x01.");  // A pickled empty dictionary.
  EXPECT_THAT(refusal(ErrorCode::corrupt_data), HasSubstr("cannot be loaded as TorchScript"));
  write_file(file(), std::string(100'000, 'x'));
  EXPECT_THAT(refusal(ErrorCode::corrupt_data), HasSubstr("cannot be loaded as TorchScript"));
}

// As torch.export.save and AOTInductor of torch 2.11 write them, under any name.
TEST_F(Script, ADotPt2ArchiveIsNamedAndNotLoaded) {
  for (const auto& [record, kind] :
       {std::pair{"models/model.json", "a program of torch.export"},
        std::pair{"data/aotinductor/model/m.wrapper.so", "a compiled package of AOTInductor"}}) {
    {
      caffe2::serialize::PyTorchStreamWriter writer(file().string());
      const std::string format = "pt2";
      writer.writeRecord(record, format.data(), format.size());
      writer.writeRecord("archive_format", format.data(), format.size());
      writer.writeEndOfFile();
    }
    const std::string said = refusal(ErrorCode::unsupported);
    EXPECT_THAT(said, HasSubstr(kind));
    EXPECT_THAT(said, HasSubstr("whose code runs when it is loaded, and which is not loaded here"));
  }
}

// The first packed record of the archive's directory says that it unpacks to 4 GiB.
TEST_F(Script, AnArchiveThatUnpacksToFarMoreThanItsSizeIsRefusedBeforeItTakesMemory) {
  classifier().save(file().string());
  std::string archive = bytes();
  const std::uint32_t claimed = 0xFFFFFFF0U;
  bool found = false;
  for (std::size_t at = archive.find("PK\x01\x02"); at != std::string::npos && !found;
       at = archive.find("PK\x01\x02", at + 4)) {
    found = archive[at + 10] == 8;  // Deflated.
    if (found) std::memcpy(archive.data() + at + 24, &claimed, sizeof claimed);
  }
  ASSERT_TRUE(found);
  write_file(file(), archive);
  EXPECT_THAT(refusal(ErrorCode::corrupt_data), HasSubstr("bytes that unpack to more than"));
}

}  // namespace
}  // namespace headrace
