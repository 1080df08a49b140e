#include "media/codec/detail/jpeg_memory.h"

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <new>

#include <jerror.h>

namespace headrace::codec::detail {
namespace {

constexpr std::size_t kAlignment = 64;  // A cache line, and more than libjpeg-turbo's kernels ask for.
constexpr std::size_t kBlockMin = std::size_t{64} << 10;
// Its kernels work on rows in steps of up to 64 samples, and may read a step too far.
constexpr std::size_t kRowStep = 64;

constexpr std::size_t rounded_up(std::size_t bytes, std::size_t step) {
  return (bytes + step - 1) / step * step;
}

// Height and width are below 65,536 samples, so that nothing overflows.
template <class Row, class Element>
Row* rows_of(void* table, std::size_t rows, void* elements, std::size_t stride) {
  auto* found = static_cast<Row*>(table);
  auto* at = static_cast<Element*>(elements);
  for (std::size_t y = 0; y < rows; ++y, at += stride) found[y] = at;
  return found;
}

}  // namespace

struct alignas(kAlignment) JpegMemory::Block {
  Block* before;
  std::size_t size;  // Behind this header.
};

struct JpegMemory::VirtualBlocks {
  VirtualBlocks* before;
  JBLOCKARRAY rows;  // nullptr until all are made.
  JDIMENSION width, height;
  bool zeroed;
};

JpegMemory::~JpegMemory() {
  free_blocks();
}

void JpegMemory::free_blocks() noexcept {
  while (newest_ != nullptr) {
    Block* const before = newest_->before;
    ::operator delete (newest_, std::align_val_t{kAlignment});
    newest_ = before;
  }
  used_ = bytes_ = 0;
}

void JpegMemory::reset() noexcept {
  used_ = 0;
  methods_.requested = nullptr;
  if (newest_ == nullptr || newest_->before == nullptr) return;
  wanted_ = bytes_;
  free_blocks();
}

void JpegMemory::trim(std::size_t kept) noexcept {
  if (bytes_ <= kept) return;
  free_blocks();
  wanted_ = 0;
}

void* JpegMemory::take(std::size_t bytes) noexcept {
  if (bytes > PTRDIFF_MAX) return nullptr;
  const std::size_t size = rounded_up(bytes, kAlignment);
  if (newest_ == nullptr || newest_->size - used_ < size) {
    const std::size_t block = std::max({size, wanted_, kBlockMin});
    void* memory = ::operator new (sizeof(Block) + block + kRowStep, std::align_val_t{kAlignment}, std::nothrow);
    if (memory == nullptr) return nullptr;
    newest_ = new (memory) Block{newest_, block};
    used_ = wanted_ = 0;
    bytes_ += block;
  }
  auto* const taken = reinterpret_cast<std::uint8_t*>(newest_ + 1) + used_;
  used_ += size;
  return taken;
}

void JpegMemory::attach(jpeg_decompress_struct& info) {
  static_cast<jpeg_memory_mgr&>(methods_) = *info.mem;  // Its limits.
  methods_.alloc_small = methods_.alloc_large = take_or_escape;
  methods_.alloc_sarray = take_samples;
  methods_.alloc_barray = take_blocks;
  methods_.request_virt_sarray = refuse_samples;
  methods_.request_virt_barray = request_blocks;
  methods_.realize_virt_arrays = realize;
  methods_.access_virt_sarray = nullptr;  // There are none.
  methods_.access_virt_barray = access_blocks;
  methods_.free_pool = [](j_common_ptr, int) {};  // reset() does.
  methods_.self_destruct = nullptr;               // Of libjpeg's own, after detach().
  methods_.owner = this;
  methods_.libjpegs = info.mem;
  methods_.requested = nullptr;
  info.mem = &methods_;
}

void JpegMemory::detach(jpeg_decompress_struct& info) noexcept {
  info.mem = methods_of(reinterpret_cast<j_common_ptr>(&info)).libjpegs;
}

void* JpegMemory::take_or_escape(j_common_ptr info, int /*pool*/, std::size_t bytes) {
  void* const taken = methods_of(info).owner->take(bytes);
  if (taken == nullptr) ERREXIT1(info, JERR_OUT_OF_MEMORY, 0);
  return taken;
}

JSAMPARRAY JpegMemory::take_samples(j_common_ptr info, int pool, JDIMENSION width, JDIMENSION rows) {
  const std::size_t stride = rounded_up(width, kRowStep);
  void* const table = take_or_escape(info, pool, rows * sizeof(JSAMPROW));
  return rows_of<JSAMPROW, JSAMPLE>(table, rows, take_or_escape(info, pool, rows * stride), stride);
}

JBLOCKARRAY JpegMemory::take_blocks(j_common_ptr info, int pool, JDIMENSION width, JDIMENSION rows) {
  void* const table = take_or_escape(info, pool, rows * sizeof(JBLOCKROW));
  void* const blocks = take_or_escape(info, pool, std::size_t{rows} * width * sizeof(JBLOCK));
  return rows_of<JBLOCKROW, JBLOCK>(table, rows, blocks, width);
}

jvirt_sarray_ptr JpegMemory::refuse_samples(j_common_ptr info, int /*pool*/, boolean /*zeroed*/, JDIMENSION /*width*/,
                                            JDIMENSION /*rows*/, JDIMENSION /*most*/) {
  ERREXIT(info, JERR_NOTIMPL);
  return nullptr;
}

jvirt_barray_ptr JpegMemory::request_blocks(j_common_ptr info, int pool, boolean zeroed, JDIMENSION width,
                                            JDIMENSION rows, JDIMENSION /*most*/) {
  Methods& methods = methods_of(info);
  void* const memory = take_or_escape(info, pool, sizeof(VirtualBlocks));
  methods.requested = new (memory) VirtualBlocks{methods.requested, nullptr, width, rows, zeroed != FALSE};
  return reinterpret_cast<jvirt_barray_ptr>(methods.requested);
}

void JpegMemory::realize(j_common_ptr info) {
  for (VirtualBlocks* array = methods_of(info).requested; array != nullptr; array = array->before) {
    if (array->rows != nullptr) continue;
    array->rows = take_blocks(info, JPOOL_IMAGE, array->width, array->height);
    if (array->zeroed) std::memset(array->rows[0], 0, std::size_t{array->width} * array->height * sizeof(JBLOCK));
  }
}

JBLOCKARRAY JpegMemory::access_blocks(j_common_ptr info, jvirt_barray_ptr array, JDIMENSION first, JDIMENSION count,
                                      boolean /*writable*/) {
  const auto& blocks = *reinterpret_cast<const VirtualBlocks*>(array);
  if (blocks.rows == nullptr || first > blocks.height || count > blocks.height - first) {
    ERREXIT(info, JERR_BAD_VIRTUAL_ACCESS);
  }
  return blocks.rows + first;
}

}  // namespace headrace::codec::detail
