// AdamW, Adam, SGD and RMSprop with exchangeable implementations over one state, so that the tuner can switch in
// mid-run.
#pragma once

#include <ATen/core/Tensor.h>
#include <headrace/options/optimizer.h>

#include <cstddef>
#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <utility>
#include <vector>

namespace headrace {

// What one step works on, index by index: the parameters that have a gradient, and their state, kind by kind.
struct UpdateLists {
  std::vector<at::Tensor> parameters, gradients;
  std::vector<std::vector<at::Tensor>> state;
};

// Parameters that are updated with the same options, as one of torch.optim's param_groups.
struct ParameterGroup {
  std::vector<std::pair<std::string, at::Tensor>> parameters;
  OptimizerOptions options;
  double lr_mult = 1.0;  // Multiplies the scheduled rate: every schedule keeps the ratio of two groups' rates.
};

// What an update does beside its arithmetic: with `fused`, in the same walk through memory.
struct UpdateExtras {
  // The update is that of each gradient times its factor, which takes a loss scale off and clips, by the parameter's
  // place in parameters(). Empty: 1.
  std::span<const double> gradient_factors{};
  bool zero_gradients = false;  // Leaves 0 in the gradients, which else stay as they are.
  // Moving averages of the parameters, by their place; undefined ones, or an empty list, are none. Each moves towards
  // its new parameter, one without gradient too: average_decay * average + (1 - average_decay) * parameter.
  std::span<const at::Tensor> averages{};
  double average_decay = 0.0;

  // With `rates` the update is made by LibTorch's fused operators, which read no value of the device on the host: it
  // can be captured, and run again with other numbers in these. All are float32 and lie where the parameters do.
  at::Tensor rates{};           // (groups) learning rates, in the place of scheduled ones and of lr_mult.
  at::Tensor average_weight{};  // Scalar, 1 - average_decay in the place of that.
  at::Tensor found_inf{};       // Scalar; 1 leaves parameters and their state as they are. Undefined: 0.
};

// The arithmetic of torch.optim.AdamW (decoupled weight decay, Loshchilov and Hutter, ICLR 2019), of Adam (Kingma and
// Ba, ICLR 2015), of SGD (momentum, dampening, Nesterov's too) or of RMSprop; the last three add weight decay to the
// gradient. State a parameter, in its layout: AdamW and Adam exp_avg, exp_avg_sq, a step count and with amsgrad
// max_exp_avg_sq; SGD with momentum momentum_buffer, zeros before the first step, which then leaves the gradient in it
// as PyTorch does; RMSprop square_avg, a step count, with momentum momentum_buffer, centered grad_avg. A
// momentum_buffer of +0 alone is taken for one before its first step, whose gradient dampening leaves whole. State of
// small parameters lies in one block. Not thread-safe. Tensors are shared, not copied.
//
// Parameters lie on the CPU, or all of them on one device. There the update is that of LibTorch's fused operators,
// whatever the options say of fused and foreach; step counts lie there, too, as with fused=True of torch.optim. It has
// no RMSprop and no dampening.
//
// Error{invalid_argument} of the constructors and of set_options(), which then change nothing: adam or adamw with
// another number of betas than two, sgd with nesterov and without momentum.
class Optimizer {
 public:
  Optimizer(std::vector<std::pair<std::string, at::Tensor>> parameters, OptimizerOptions options);
  // At least one group; all have options of one name, and each parameter, float32 on one device, stands in one group
  // once. Error{invalid_argument}: it is otherwise. Error{unsupported}: what there is on the CPU alone.
  explicit Optimizer(std::vector<ParameterGroup> groups);

  // Updates every parameter that has a gradient, at the learning rate that `scheduled` makes of its group's lr, times
  // the group's lr_mult; `scheduled` gives the same for the same. Same result as PyTorch's with foreach=False
  // (for_loop), foreach=True (foreach), fused=True (fused; RMSprop has one here), within 1e-6 on the same gradients.
  // Groups of equal rates and settings are updated together. Versions of parameters, gradients and averages rise where
  // it writes to them. A gradient may be sparse for sgd without weight decay and Nesterov's momentum.
  // Error{invalid_argument}, and nothing has changed: another number of factors or averages than of parameters; a
  // parameter that has become something else than float32 on its device, or has another shape than its state; a
  // gradient or an average that does not fit it; `rates` of another number than of groups. Error{unsupported}: `rates`
  // with options that why_not_on_device() names.
  void step(const std::function<double(double)>& scheduled, const UpdateExtras& extras = {});
  // All at this learning rate, times their group's lr_mult.
  void step(double lr, const UpdateExtras& extras = {});
  void zero_gradients();  // Releases the gradients (set to none).

  void set_implementation(OptimizerImplementation implementation);  // Of every group.
  // Live: the next step uses them. The name must stay as it is.
  void set_options(const OptimizerOptions& options, std::size_t group = 0);
  // Of sgd and rmsprop momentum, of adam and adamw the first of betas; costs nothing where it is so already.
  void set_momentum(double momentum, std::size_t group);
  const OptimizerOptions& options(std::size_t group = 0) const { return groups_[group].options; }
  double lr_mult(std::size_t group = 0) const { return groups_[group].lr_mult; }
  std::size_t groups() const { return groups_.size(); }
  // What keeps these options from an update with UpdateExtras::rates, or on a device: "RMSprop"; empty: nothing.
  static std::string why_not_on_device(const OptimizerOptions& options);
  bool is_on_cpu() const { return device_.is_cpu(); }
  // Another one after the optimizer was replaced by assignment, and after share_state(): what a captured update holds.
  std::uint64_t identity() const { return identity_; }
  std::size_t group_of(std::size_t parameter) const;  // By its place in parameters().
  // "conv1.weight/exp_avg" -> tensor, in a fixed order; shared, for checkpoints, snapshots and layout changes.
  std::vector<std::pair<std::string, at::Tensor>> state();
  std::int64_t state_bytes() const;  // Of the memory that state lies in, each piece once.
  std::size_t state_count() const;   // Tensors of state: more where a kind was switched on.
  // The same of one parameter, by its place in parameters(): "exp_avg" -> tensor.
  std::vector<std::pair<std::string, at::Tensor>> state_of(std::size_t parameter) const;
  // Puts a tensor of the caller's in the place of one state: it is read and updated from now on. One that does not lie
  // in memory as its parameter is laid so, and a scalar of another floating type becomes float32, the tensor itself
  // staying the same object. Error{invalid_argument}: no such state, or another shape or type than that has.
  void share_state(std::size_t parameter, const std::string& kind, const at::Tensor& tensor);
  const std::vector<std::pair<std::string, at::Tensor>>& parameters() const { return parameters_; }

 private:
  struct Group {
    OptimizerOptions options;
    double lr_mult = 1.0;
    std::size_t begin = 0, end = 0;              // Of parameters_.
    std::vector<std::string> state_names;        // "exp_avg", ...
    std::vector<std::vector<at::Tensor>> state;  // Kind by kind, as the names; each as long as the group.
    std::vector<std::size_t> used;               // Kinds that an update with these options takes, in its order.
    std::size_t like = 0;                        // The first group with the same options, rates aside.
  };
  struct Pending {  // A parameter that is updated in lists.
    std::size_t like, group, parameter;
    double lr, gradient_factor;
  };
  // State that is switched on later, as momentum, begins then; switched off, it stays.
  void add_missing_state();
  void find_likes();
  // Throws what step() says.
  void check_update(const UpdateExtras& extras) const;
  void update_in_lists(std::vector<Pending> pending, const UpdateExtras& extras);
  void check_parameter(const std::string& name, const at::Tensor& parameter) const;
  void check_gradient(const std::string& name, const at::Tensor& gradient, const at::Tensor& parameter,
                      const OptimizerOptions& options, bool must_be_dense) const;
  void check_average(const std::string& name, const at::Tensor& average, const at::Tensor& parameter) const;
  void check_options_for_device(const OptimizerOptions& options) const;
  bool is_float32_here(const at::Tensor& tensor) const;
  // By LibTorch's fused operators, in lists.
  bool updates_by_operators(const UpdateExtras& extras) const { return !is_on_cpu() || extras.rates.defined(); }
  const char* place() const { return is_on_cpu() ? "on the CPU" : "on the device of the first parameter"; }

  std::vector<std::pair<std::string, at::Tensor>> parameters_;
  std::vector<Group> groups_;
  c10::Device device_ = c10::DeviceType::CPU;
  std::uint64_t identity_ = 0;
  bool likes_known_ = false;
  UpdateLists lists_;  // Kept between steps for its memory.
};

}  // namespace headrace
