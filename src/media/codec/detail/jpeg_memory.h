// The memory that libjpeg decodes in, kept from image to image.
#pragma once

#include <cstddef>
#include <cstdio>  // jpeglib.h uses FILE and does not include it.

#include <jpeglib.h>

namespace headrace::codec::detail {

// Stands in for libjpeg's memory manager, which takes and frees blocks of the heap for each image: a progressive one
// then makes the process breathe by 6 bytes a pixel. Here reset() frees everything at once, and what the largest
// image so far needed is one block that the next ones are given parts of.
//
// For one thread, and for decompressors that do not reduce colours to a palette (the only use of libjpeg's virtual
// arrays of samples). Out of memory is libjpeg's own error, JERR_OUT_OF_MEMORY.
class JpegMemory {
 public:
  JpegMemory() = default;
  ~JpegMemory();
  JpegMemory(const JpegMemory&) = delete;
  JpegMemory& operator=(const JpegMemory&) = delete;

  // All that `info`, just created, asks for from here on comes from here, also what libjpeg would keep until the object
  // is destroyed. detach() must come before jpeg_destroy_decompress.
  void attach(jpeg_decompress_struct& info);
  static void detach(jpeg_decompress_struct& info) noexcept;

  // Everything that was given out is void: `info` must be aborted, and forget its tables and its source.
  void reset() noexcept;
  // Gives the blocks back when they are larger than `kept` together; what was given out is void then.
  void trim(std::size_t kept) noexcept;
  std::size_t bytes() const noexcept { return bytes_; }  // Held.

  // 64-byte aligned, or nullptr when there is no memory.
  void* take(std::size_t bytes) noexcept;

  struct VirtualBlocks;  // An array of coefficients.

 private:
  struct Methods : jpeg_memory_mgr {
    JpegMemory* owner;
    jpeg_memory_mgr* libjpegs;
    VirtualBlocks* requested;  // The newest; each knows the one before it.
  };
  struct Block;

  static Methods& methods_of(j_common_ptr info) { return *static_cast<Methods*>(info->mem); }
  static void* take_or_escape(j_common_ptr info, int pool, std::size_t bytes);
  static JSAMPARRAY take_samples(j_common_ptr info, int pool, JDIMENSION width, JDIMENSION rows);
  static JBLOCKARRAY take_blocks(j_common_ptr info, int pool, JDIMENSION width, JDIMENSION rows);
  static jvirt_sarray_ptr refuse_samples(j_common_ptr info, int pool, boolean zeroed, JDIMENSION width, JDIMENSION rows,
                                         JDIMENSION most);
  static jvirt_barray_ptr request_blocks(j_common_ptr info, int pool, boolean zeroed, JDIMENSION width, JDIMENSION rows,
                                         JDIMENSION most);
  static void realize(j_common_ptr info);
  static JBLOCKARRAY access_blocks(j_common_ptr info, jvirt_barray_ptr array, JDIMENSION first, JDIMENSION count,
                                   boolean writable);
  void free_blocks() noexcept;

  Block* newest_ = nullptr;
  std::size_t used_ = 0;    // Of the newest.
  std::size_t bytes_ = 0;   // Of all.
  std::size_t wanted_ = 0;  // Of the next block: what several held before a reset.
  Methods methods_{};
};

}  // namespace headrace::codec::detail
