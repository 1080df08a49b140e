// Which operators of a training loop take the time, and which keep memory: some steps of a loop by a schedule, each
// window in two files, and a table of one forward and backward.
//
//   profile_steps log/profile
#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>
#include <headrace/operator_table.h>
#include <headrace/profile.h>
#include <headrace/trace_export.h>

#include <algorithm>
#include <cstddef>
#include <cstdio>
#include <exception>
#include <filesystem>
#include <string>
#include <vector>

namespace hr = headrace;

namespace {

// Two linear layers and plain gradient descent, in plain ATen.
class Training {
 public:
  void forward_backward() {
    const at::Tensor hidden = at::relu(at::linear(images_, first_));
    at::cross_entropy_loss(at::linear(hidden, second_), labels_).backward();
  }
  void step() {
    forward_backward();
    const at::NoGradGuard no_grad;
    for (at::Tensor* weight : {&first_, &second_}) {
      weight->sub_(weight->grad(), 1e-2);
      weight->mutable_grad().reset();
    }
  }

 private:
  at::Tensor images_ = at::randn({64, 256}), labels_ = at::randint(10, {64}, at::kLong);
  at::Tensor first_ = at::randn({128, 256}).mul_(0.05).requires_grad_();
  at::Tensor second_ = at::randn({10, 128}).mul_(0.05).requires_grad_();
};

// For chrome://tracing or TensorBoard, and for ui.perfetto.dev.
void write(const hr::ProfileWindow& window, const std::filesystem::path& folder) {
  for (const hr::TraceForm form : {hr::TraceForm::chrome, hr::TraceForm::perfetto}) {
    const std::string name = "trace-" + std::to_string(window.number) + hr::suffix_of(form);
    for (const auto& file : hr::export_trace(window.record, folder / name, form)) std::printf("%s\n", file.c_str());
  }
}

void print_most_memory(const hr::ProfileWindow& window, std::size_t row_limit) {
  std::vector<hr::OperatorStatistics> rows = hr::operator_table(window.record);
  std::stable_sort(rows.begin(), rows.end(), [](const hr::OperatorStatistics& a, const hr::OperatorStatistics& b) {
    return a.self_bytes > b.self_bytes;
  });
  rows.resize(std::min(rows.size(), row_limit));
  std::printf("%-60s %6s %10s %12s\n", "operator", "calls", "self us", "self bytes");
  for (const hr::OperatorStatistics& row : rows) {
    std::printf("%-60s %6lld %10.1f %12lld\n", row.name.c_str(), static_cast<long long>(row.calls),
                1e-3 * static_cast<double>(row.self_ns), static_cast<long long>(row.self_bytes.value()));
  }
}

}  // namespace

int main(int argc, char** argv) try {
  const std::filesystem::path folder = argc > 1 ? argv[1] : "log/profile";
  std::filesystem::create_directories(folder);
  Training training;
  hr::Profile profile{{.schedule = hr::ProfileSchedule{.wait = 1, .warmup = 1, .active = 3, .repeat = 2},
                       .on_trace_ready = [&](const hr::ProfileWindow& window) { write(window, folder); },
                       .record_shapes = true,
                       .profile_memory = true}};
  for (int step = 0; step < 15; ++step) {
    training.step();
    profile.step();
  }
  profile.stop();

  hr::Profile once{{.profile_memory = true}};
  training.forward_backward();
  once.stop();
  print_most_memory(*once.last_window(), 10);
} catch (const std::exception& error) {
  std::fprintf(stderr, "profile_steps: %s\n", error.what());
  return 1;
}
