#include "data/loader/detail/chunk.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <functional>
#include <limits>
#include <new>
#include <optional>
#include <string>
#include <utility>

#include "core/base/fail.h"
#include "core/base/scratch.h"
#include "data/loader/detail/on_corrupt.h"
#include "data/loader/detail/sample_check.h"
#include "data/source/payload_check.h"
#include "data/transform/image_maker.h"
#include "data/transform/plan_runner.h"

namespace headrace::detail {
namespace {

// Files of a chunk that wait to be decoded, in bytes: no more than this and one more file. They are still in the cache
// then, and few buffers ever hold a large one: what a worker holds does not creep up over the epochs.
constexpr std::size_t kAheadMax = std::size_t{256} << 10;

constexpr int kReplacementsMax = 32;
// Apart from the keys of transforms and orders, or a replacement would repeat the numbers that its image draws.
constexpr std::uint64_t kReplacementKey = 0x9B05688C2B3E6C1FU;

std::string name_of(const SampleReader& source, std::int64_t index) {
  try {
    return source.name(index);
  } catch (...) {  // The failure to be reported is the sample's, not that of its name.
    return fmt::format("sample {}", index);
  }
}

// The current exception as an Error that names the sample; as std::bad_alloc when there is no memory for its message.
std::exception_ptr error_of_sample(const SampleReader& source, std::int64_t index) noexcept try {
  const std::string name = name_of(source, index);
  try {
    throw;
  } catch (const Error& error) {
    if (std::string_view(error.what()).find(name) != std::string_view::npos) return std::current_exception();
    return std::make_exception_ptr(Error(error.code(), fmt::format("data: {}: {}", name, error.what())));
  } catch (const std::bad_alloc&) {
    return std::make_exception_ptr(Error(ErrorCode::out_of_memory, fmt::format("data: {}: out of memory", name)));
  } catch (const std::exception& error) {
    return std::make_exception_ptr(Error(ErrorCode::internal, fmt::format("data: {}: {}", name, error.what())));
  } catch (...) {
    return std::make_exception_ptr(Error(ErrorCode::internal, fmt::format("data: {}: unknown exception", name)));
  }
} catch (...) {
  return std::current_exception();
}

// Whether a source has copied them there, or told where they are.
bool lies_in(const std::vector<std::uint8_t>& buffer, std::span<const std::uint8_t> bytes) {
  const std::less_equal<> before;
  return !bytes.empty() && before(buffer.data(), bytes.data()) &&
         before(bytes.data() + bytes.size(), buffer.data() + buffer.size());
}

// A source may have read all fields into one buffer.
bool lies_in_a_buffer(const Sample& sample, std::span<const std::uint8_t> bytes) {
  for (std::size_t i = 0; i < sample.size(); ++i) {
    if (lies_in(sample.buffer(i), bytes)) return true;
  }
  return false;
}

// A shuffled order leaves the hardware no pattern, so each image is asked for while the rest of the chunk is being
// read; after the first lines the hardware follows by itself. Inlined by force: g++ 12 takes a function that only
// prefetches for one without effect and removes the call.
[[gnu::always_inline]] inline void start_fetching(std::span<const std::uint8_t> bytes) {
  constexpr std::size_t kCacheLine = 64, kReach = 16 * kCacheLine;
  for (std::size_t at = 0; at < std::min(bytes.size(), kReach); at += kCacheLine) __builtin_prefetch(&bytes[at]);
}

// One call of load_chunk. Samples are counted from the chunk's first.
class ChunkLoad final : public PartnerReader {
 public:
  ChunkLoad(const Pass& pass, const ChunkPlace& place, Workspace& workspace, SampleCache* cache)
      : pass_(pass),
        place_(place),
        layout_(pass.layout),
        fields_(pass.layout.fields),
        limits_(pass.options.limits()),
        slice_(pass.batch_sampler.slice(place.slot.index)),
        workspace_(workspace),
        cache_(cache),
        images_(entries_of(cache, Cache::decoded)),
        files_(entries_of(cache, Cache::encoded)),
        maker_(pass, workspace.images, images_) {
    if (!pass.plan.is_one_pass()) runner_.emplace(pass.plan, pass, maker_, workspace.images, fields_.classes);
  }

  ChunkReport run();

  SampleInHand read(std::size_t partner, std::int64_t position) override;
  std::string name_at(std::int64_t position) override { return name_of(pass_.source, pass_.order.sample_at(position)); }

 private:
  enum class Outcome { made, corrupt, failed, ended };

  RamCache* entries_of(SampleCache* cache, Cache form) const {
    return cache != nullptr && cache->form == form && fields_.image ? &cache->entries : nullptr;
  }
  template <class Work>
  Outcome attempt(std::int64_t index, const Work& work);
  void read(std::int64_t index, std::int64_t drawn_as, std::size_t i);
  bool find_kept(std::int64_t index, std::int64_t drawn_as, std::size_t i);
  void read_source(std::int64_t index, std::size_t i);
  void keep(std::int64_t index, const Sample& sample);
  bool keep_rest(std::int64_t index, const Sample& sample);
  void make(std::int64_t index, std::int64_t drawn_as, std::size_t i, std::int64_t retry = 0);
  void write_dense(const Sample& sample, std::size_t i);
  void collect_ragged(std::int64_t begin);
  std::exception_ptr no_room_for(const Sample& sample, std::size_t i) const noexcept;
  bool note_corrupt(std::int64_t index) noexcept;
  Outcome end_at(const EndOfSamples& end, std::int64_t index) noexcept;
  std::int64_t read_ahead(std::int64_t begin);
  bool make_read(std::int64_t begin, std::int64_t end);
  Outcome stand_in(std::size_t i);
  Outcome replace(std::size_t i);
  void fail_without_replacement(std::int64_t wanted) noexcept;
  bool is_wanted(std::size_t i) const {
    return place_.position + static_cast<std::int64_t>(i) < pass_.stop_at.load(std::memory_order_relaxed);
  }
  void note_error(std::exception_ptr error, std::int64_t i);
  std::size_t in_slot(std::size_t i) const { return static_cast<std::size_t>(place_.first) + i; }
  std::int64_t position_of(std::size_t i) const {
    return pass_.batch_sampler.position_of(slice_, static_cast<std::int64_t>(in_slot(i)));
  }
  // What stands in for a corrupt sample has a place of its own with each try: partners that follow from the place alone
  // would be the same ones again, and the corrupt one among them.
  EpochPlace place_of(std::size_t i, std::int64_t index, std::int64_t retry) const {
    const std::int64_t positions = pass_.order.positions();
    return {retry == 0 ? position_of(i) : index % positions, positions};
  }
  // Of those read ahead together, and behind kReadTogether of them partners.
  std::size_t in_workspace(std::size_t i) const { return i - read_from_; }
  Sample& sample_at(std::size_t i) const { return workspace_.samples[in_workspace(i)]; }
  SampleInHand in_hand(std::size_t i, std::int64_t index) const {
    return {sample_at(i), workspace_.changed[in_workspace(i)], divisors_[in_workspace(i)], index};
  }
  const Payload* image_of(const Sample& sample) const { return fields_.image ? &sample[*fields_.image] : nullptr; }
  std::byte* row(const BatchLayout::Dense& field, std::size_t i) const {
    return place_.slot.start + field.at + in_slot(i) * field.sample_bytes;
  }
  template <class Place>
  void set_present(const Place& field, bool is_present, std::size_t i) const {
    if (field.present_at != BatchLayout::kNowhere) {
      place_.slot.start[field.present_at + in_slot(i)] = std::byte{is_present};
    }
  }
  // Of what is read ahead: encoded images, and everything beside images that has bytes.
  std::size_t waiting_bytes(std::size_t i) const;

  const Pass& pass_;
  const ChunkPlace& place_;
  const BatchLayout& layout_;
  const SampleFields& fields_;
  const SampleLimits limits_;
  const BatchSampler::Slice slice_;
  Workspace& workspace_;
  SampleCache* const cache_;
  RamCache* const images_;  // Null: none are kept,
  RamCache* const files_;   // likewise.
  ImageMaker maker_;
  std::optional<PlanRunner> runner_;  // Where the transforms are more than one pass.
  // By which the images are smaller than they were, which a cache may hold so.
  std::array<int, kReadTogether + kPartnersMax> divisors_{};
  std::array<bool, kReadTogether> readable_{};
  std::size_t read_from_ = 0;   // The first sample of those read ahead together.
  std::exception_ptr failure_;  // Of the last attempt that failed.
  ChunkReport report_;
};

// Several are read before the first is transformed, so that the two are timed apart at the price of one clock reading,
// and so that all are on their way from memory.
ChunkReport ChunkLoad::run() {
  const std::int64_t begin_ns = pass_.clock();
  std::int64_t round_ns = begin_ns;
  bool going = true;
  while (going && report_.samples < place_.count) {
    const std::int64_t begin = report_.samples, end = read_ahead(begin);
    const std::int64_t read_ns = pass_.clock();
    report_.read_ns += read_ns - round_ns;
    going = make_read(begin, end) && end > begin;
    if (place_.slot.ragged) collect_ragged(begin);
    going = going && report_.error == nullptr;
    round_ns = pass_.clock();
  }
  report_.busy_ns = round_ns - begin_ns;
  report_.read_ns += maker_.read_ns();
  report_.decode_ns = maker_.decode_ns();
  report_.read_bytes += maker_.read_bytes();
  report_.decoded_bytes = maker_.decoded_bytes();
  report_.done += maker_.done();
  report_.written_bytes += report_.samples * layout_.counted_bytes;
  return std::move(report_);
}

// Reads from sample `begin` on; returns where it ended, which is at `begin` only after an error or a stop.
std::int64_t ChunkLoad::read_ahead(std::int64_t begin) {
  std::size_t waiting = 0;
  std::int64_t at = begin;
  const std::int64_t end = std::min(place_.count, begin + kReadTogether);
  read_from_ = static_cast<std::size_t>(begin);
  for (; at < end && waiting < kAheadMax; ++at) {
    const auto i = static_cast<std::size_t>(at);
    if (!is_wanted(i)) break;
    const std::int64_t index = pass_.order.sample_at(position_of(i));
    place_.slot.sample_indices[in_slot(i)] = index;
    const Outcome outcome = attempt(index, [&] { read(index, pass_.draws_of(position_of(i), index), i); });
    if (outcome == Outcome::failed) note_error(failure_, at);
    if (outcome == Outcome::failed || outcome == Outcome::ended) break;
    readable_[in_workspace(i)] = outcome == Outcome::made;
    if (readable_[in_workspace(i)]) waiting += waiting_bytes(i);
  }
  return at;
}

std::size_t ChunkLoad::waiting_bytes(std::size_t i) const {
  const Sample& sample = sample_at(i);
  const Payload* const image = image_of(sample);
  std::size_t bytes = 0;
  for (const Payload& payload : sample.payloads()) {
    const bool is_pixels = &payload == image && payload.form == ImageForm::pixels;
    if (payload.kind == Payload::Kind::bytes && !is_pixels) bytes += payload.bytes.size();
  }
  return bytes;
}

// False after an error or a stop.
bool ChunkLoad::make_read(std::int64_t begin, std::int64_t end) {
  Batch::Slot& slot = place_.slot;
  for (std::int64_t at = begin; at < end; ++at) {
    const auto i = static_cast<std::size_t>(at);
    const std::int64_t index = slot.sample_indices[in_slot(i)];
    Outcome outcome = Outcome::corrupt;
    if (readable_[in_workspace(i)]) {
      // A file takes a millisecond; pixels are not worth asking.
      const Payload* const image = image_of(sample_at(i));
      if (image != nullptr && image->form == ImageForm::encoded && !is_wanted(i)) return false;
      outcome = attempt(index, [&] { make(index, pass_.draws_of(position_of(i), index), i); });
    }
    if (outcome == Outcome::corrupt) outcome = stand_in(i);
    if (outcome != Outcome::made) {
      if (failure_ != nullptr) note_error(failure_, at);
      return false;
    }
    ++report_.samples;
  }
  return report_.error == nullptr && !report_.ended_after;
}

// Runs `work` on a sample. Corrupt: it failed by what the policy covers, and is noted.
template <class Work>
ChunkLoad::Outcome ChunkLoad::attempt(std::int64_t index, const Work& work) {
  try {
    work();
    return Outcome::made;
  } catch (const EndOfSamples& end) {
    return end_at(end, index);
  } catch (...) {
    failure_ = error_of_sample(pass_.source, index);
  }
  const bool covered = pass_.on_corrupt != OnCorrupt::fail && note_corrupt(index);
  return covered ? Outcome::corrupt : Outcome::failed;
}

// The source has no such sample. That is a failure where another number of them was promised, or where a pass begins
// behind the end. One that begins where the batch after a shorter last one would is over.
ChunkLoad::Outcome ChunkLoad::end_at(const EndOfSamples& end, std::int64_t index) noexcept try {
  const BatchSampler& batch_sampler = pass_.batch_sampler;
  const std::int64_t samples = std::min(end.samples(), index), begin = batch_sampler.begin();
  if (!batch_sampler.is_open()) {
    fail(ErrorCode::internal, "data: {}: the source ended after {} samples; wanted {}", name_of(pass_.source, index),
         end.samples(), batch_sampler.positions());
  }
  if (samples < 1) {
    fail(ErrorCode::invalid_argument, "data: epoch {} has no samples: its source ended before the first", pass_.epoch);
  }
  if (samples + pass_.options.batch_size <= begin) {
    fail(ErrorCode::invalid_argument, "data: epoch {} ended after {} samples; it was to go on at sample {}",
         pass_.epoch, samples, begin);
  }
  report_.ended_after = std::max(samples, begin);
  failure_ = nullptr;
  return Outcome::ended;
} catch (...) {
  failure_ = std::current_exception();
  return Outcome::failed;
}

// False when the last failure is none of the sample's own.
bool ChunkLoad::note_corrupt(std::int64_t index) noexcept try {
  try {
    std::rethrow_exception(failure_);
  } catch (const Error& error) {
    if (!is_of_the_sample(error.code())) return false;
    workspace_.corrupt.push_back({index, name_of(pass_.source, index), error.what()});
    return true;
  }
} catch (...) {  // There is no memory, neither for the sample nor for a note.
  failure_ = std::current_exception();
  return false;
}

void ChunkLoad::read(std::int64_t index, std::int64_t drawn_as, std::size_t i) {
  Sample& sample = sample_at(i);
  if (cache_ != nullptr) {
    if (find_kept(index, drawn_as, i)) {
      ++report_.cache_hits;
      return;
    }
    ++report_.cache_misses;
  }
  divisors_[in_workspace(i)] = 1;
  const Source& source = pass_.source.source();
  check_limit(source, pass_.source.sample_bytes(index), index, limits_);
  if (pass_.source.can().rows != nullptr && fields_.are_image_and_labels) {
    sample.image() = pass_.source.can().rows->outline(index);
    sample.set_label(pass_.source.label(index));
    check_sample(source, fields_, sample, index, limits_, /*whole=*/false);
    if (images_ == nullptr || !maker_.has_room(sample.image())) {  // Its rows are read when it is made.
      ++report_.read;
      return;
    }
  }
  read_source(index, i);
  check_sample(source, fields_, sample, index, limits_, /*whole=*/true);
  if (cache_ != nullptr) keep(index, sample);
  if (const Payload* const image = image_of(sample)) start_fetching(image->bytes);
}

void ChunkLoad::read_source(std::int64_t index, std::size_t i) {
  Sample& sample = sample_at(i);
  sample.clear();
  pass_.source.read(index, sample);
  ++report_.read;
  // Of an image its bytes; what lies beside it is not counted with them.
  std::int64_t bytes = 0, copied = 0;
  const Payload* const image = image_of(sample);
  for (const Payload& payload : image != nullptr ? std::span(image, 1) : std::as_const(sample).payloads()) {
    if (payload.kind != Payload::Kind::bytes) continue;
    bytes += std::ssize(payload.bytes);
    const bool is_copied = workspace_.reads_into_samples && lies_in_a_buffer(sample, payload.bytes);
    if (is_copied) copied += std::ssize(payload.bytes);
  }
  report_.read_bytes += bytes;
  report_.done.add(SamplePass::read, bytes, copied);
}

// After the checks: a cache holds sound samples alone.
void ChunkLoad::keep(std::int64_t index, const Sample& sample) {
  if (pass_.rest != nullptr && !keep_rest(index, sample)) return;  // One without the other is of no use.
  const Payload* const image = image_of(sample);
  const bool encoded = image != nullptr && image->form == ImageForm::encoded;
  if (images_ != nullptr && !encoded) maker_.keep(*image, index);
  if (files_ != nullptr && encoded && keep_file(*files_, index, *image)) {
    const std::int64_t kept = std::ssize(image->bytes) + std::ssize(image->entropy_index);
    report_.done.add(SamplePass::keep, kept, kept);
  }
}

// Whether it is kept, now or since another thread read it.
bool ChunkLoad::keep_rest(std::int64_t index, const Sample& sample) {
  const std::int64_t key = cache_->rest_from + index, size = pass_.rest->size(sample.payloads());
  if (cache_->entries.find(key)) return true;
  if (!cache_->entries.has_room(size)) return false;
  const std::span bytes = scratch_of(workspace_.rest, size);
  pass_.rest->write(sample.payloads(), std::as_writable_bytes(bytes));
  if (!cache_->entries.admit(key, {bytes})) return false;
  if (!fields_.image) report_.done.add(SamplePass::keep, size, size);
  return true;
}

bool ChunkLoad::find_kept(std::int64_t index, std::int64_t drawn_as, std::size_t i) {
  Sample& sample = sample_at(i);
  divisors_[in_workspace(i)] = 1;
  if (images_ != nullptr) {
    const auto kept = maker_.find(index, drawn_as);
    if (!kept) return false;
    sample[*fields_.image] = kept->image;
    divisors_[in_workspace(i)] = kept->divisor;
  } else if (files_ != nullptr) {
    const auto kept = find_file(*files_, index);
    if (!kept) return false;
    sample[*fields_.image] = *kept;
  }
  if (pass_.rest == nullptr) {
    sample.set_label(pass_.source.label(index));
    return true;
  }
  const auto rest = cache_->entries.find(cache_->rest_from + index);
  if (!rest) return false;
  const auto fault = pass_.rest->read(std::as_bytes(*rest), limits_, sample.payloads());
  HEADRACE_CHECK(!fault, "data: {}: the cache gives other fields than it was given: {}", name_of(pass_.source, index),
                 fault->text);
  return true;
}

// Into a place behind those read ahead together.
SampleInHand ChunkLoad::read(std::size_t partner, std::int64_t position) {
  const std::size_t i = read_from_ + static_cast<std::size_t>(kReadTogether) + partner;
  const std::int64_t index = pass_.order.sample_at(position);
  read(index, index, i);
  return in_hand(i, index);
}

// The draws are those of the sample that was wanted, so that a sample and the same one in another's place differ.
void ChunkLoad::make(std::int64_t index, std::int64_t drawn_as, std::size_t i, std::int64_t retry) {
  const Sample& sample = sample_at(i);
  if (layout_.image) {
    const std::span out{row(*layout_.image, i), layout_.image->sample_bytes};
    if (runner_) {
      runner_->make(in_hand(i, index), {drawn_as, place_of(i, index, retry), retry}, this, out);
    } else {
      maker_.make(sample[*fields_.image], divisors_[in_workspace(i)], index, drawn_as, out);
    }
  }
  write_dense(sample, i);
  for (const BatchLayout::Ragged& field : layout_.ragged) {
    set_present(field, sample[field.field].kind != Payload::Kind::absent, i);
  }
  Batch::Slot& slot = place_.slot;
  if (!layout_.image) {
    const std::int64_t bytes = layout_.counted_bytes + (slot.ragged ? slot.ragged->bytes_of(sample) : 0);
    report_.done.add(SamplePass::write, bytes, bytes);
  }
  slot.sample_indices[in_slot(i)] = index;
  slot.valid[in_slot(i)] = static_cast<std::int64_t>(in_slot(i)) < slice_.counted ? 1 : 0;
}

// They have been checked: each has as many bytes as its field.
void ChunkLoad::write_dense(const Sample& sample, std::size_t i) {
  for (const BatchLayout::Dense& field : layout_.dense) {
    const Payload& payload = sample[field.field];
    std::byte* const out = row(field, i);
    const bool is_value = payload.kind == Payload::Kind::value;
    if (is_value && field.sample_bytes == sizeof(std::int64_t)) {  // Most often: a label.
      std::memcpy(out, payload.value.data(), sizeof(std::int64_t));
    } else if (payload.kind == Payload::Kind::absent) {
      std::fill_n(out, field.sample_bytes, std::byte{0});  // Of every type the 0.
    } else if (field.sample_bytes > 0) {
      const void* const in = is_value ? static_cast<const void*>(payload.value.data()) : payload.bytes.data();
      std::memcpy(out, in, field.sample_bytes);
    }
    set_present(field, payload.kind != Payload::Kind::absent, i);
  }
}

// Of the samples that were made since `begin`. Together: they take a lock.
void ChunkLoad::collect_ragged(std::int64_t begin) {
  RaggedFields& ragged = *place_.slot.ragged;
  const auto first = static_cast<std::size_t>(begin), made = static_cast<std::size_t>(report_.samples - begin);
  const std::span samples = std::span{workspace_.samples}.first(made);
  const std::size_t taken = ragged.add(in_slot(first), samples);
  for (const Sample& sample : samples.first(taken)) report_.written_bytes += ragged.bytes_of(sample);
  if (taken == made) return;
  report_.samples = begin + static_cast<std::int64_t>(taken);
  note_error(no_room_for(samples[taken], first + taken), report_.samples);
}

std::exception_ptr ChunkLoad::no_room_for(const Sample& sample, std::size_t i) const noexcept try {
  const RaggedFields& ragged = *place_.slot.ragged;
  const std::string name = name_of(pass_.source, place_.slot.sample_indices[in_slot(i)]);
  return std::make_exception_ptr(
      Error(ErrorCode::out_of_memory,
            fmt::format("data: {}: no room for the {} bytes of its ragged fields in batch {}, which "
                        "has {} already; the memory limit leaves no more",
                        name, ragged.bytes_of(sample), place_.slot.index, ragged.bytes())));
} catch (...) {
  return std::current_exception();
}

// What the policy puts in the place of a corrupt sample.
ChunkLoad::Outcome ChunkLoad::stand_in(std::size_t i) {
  if (pass_.on_corrupt == OnCorrupt::replace) return replace(i);
  Batch::Slot& slot = place_.slot;
  Sample& sample = sample_at(i);
  std::int64_t label = fields_.label ? pass_.source.label(slot.sample_indices[in_slot(i)]) : -1;
  // Of a source of unknown size nobody keeps labels.
  if (fields_.label && label < 0 && pass_.order.is_open()) label = class_in(sample[*fields_.label]).value_or(-1);
  sample.clear();
  if (fields_.label) {
    sample[*fields_.label].set_number(label >= 0 && label < fields_.classes ? label : std::int64_t{0});
  }
  if (layout_.image) std::fill_n(row(*layout_.image, i), layout_.image->sample_bytes, std::byte{0});
  write_dense(sample, i);
  for (const BatchLayout::Ragged& field : layout_.ragged) set_present(field, false, i);
  slot.valid[in_slot(i)] = 0;
  ++report_.zeroed;
  return Outcome::made;
}

ChunkLoad::Outcome ChunkLoad::replace(std::size_t i) {
  const std::int64_t wanted = place_.slot.sample_indices[in_slot(i)];
  const std::int64_t drawn_as = pass_.draws_of(position_of(i), wanted);
  SampleRandom random{pass_.seed ^ kReplacementKey, pass_.epoch, drawn_as};
  constexpr std::int64_t kDrawable = std::numeric_limits<std::uint32_t>::max();
  const auto samples = static_cast<std::uint32_t>(std::min(pass_.source.size(), kDrawable));
  for (int draw = 0; draw < kReplacementsMax; ++draw) {
    if (!is_wanted(i)) {
      failure_ = nullptr;
      return Outcome::failed;
    }
    const auto index = static_cast<std::int64_t>(random.below(samples));
    const Outcome outcome = attempt(index, [&] {
      read(index, drawn_as, i);
      make(index, drawn_as, i, draw + 1);
    });
    if (outcome != Outcome::corrupt) return outcome;
  }
  fail_without_replacement(wanted);
  return Outcome::failed;
}

void ChunkLoad::fail_without_replacement(std::int64_t wanted) noexcept try {
  const auto& noted = workspace_.corrupt;
  const auto own = std::find_if(noted.begin(), noted.end(), [&](const auto& sample) { return sample.index == wanted; });
  failure_ = std::make_exception_ptr(
      Error(ErrorCode::corrupt_data, fmt::format("{}; the {} samples drawn in its place are corrupt too, the last: {}",
                                                 own->reason, kReplacementsMax, noted.back().reason)));
} catch (...) {
  failure_ = std::current_exception();
}

// The earlier one when both stages fail: what is made comes before what is being read.
void ChunkLoad::note_error(std::exception_ptr error, std::int64_t i) {
  report_.error = std::move(error);
  report_.error_position = place_.position + i;
}

}  // namespace

ChunkReport load_chunk(const Pass& pass, const ChunkPlace& place, Workspace& workspace, SampleCache* cache) noexcept {
  HEADRACE_CHECK(place.count >= 1 && place.count <= kChunkMaxInMemory, "data: a chunk of {} samples", place.count);
  workspace.corrupt.clear();
  ChunkReport report = ChunkLoad{pass, place, workspace, cache}.run();
  workspace.trim();
  return report;
}

}  // namespace headrace::detail
