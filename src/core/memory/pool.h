// Equal blocks of memory that are given out and come home.
#pragma once

#include <cstddef>
#include <list>
#include <memory>
#include <span>

#include "core/memory/page_lock.h"

namespace headrace {

// Blocks of `block_bytes`, 64-byte aligned, at most `capacity`, retired ones included. New ones are untouched: their
// page faults come to who writes them first. Where a page lock is installed (page_lock.h), they are locked as they are
// allocated. Blocks larger than a cache are given out in turn, others the last used first. Thread-safe. A block may
// outlive the pool: it keeps the memory alive and frees it itself then. A locked block that was lent is given out or
// freed again only after devices have read it; one of which nobody can tell is retired: its memory stays as it is until
// the process ends. Whatever ends last, the pool or a block that is out, waits for devices that still read a block.
class BlockPool {
 public:
  class Block;  // Move-only handle; gives the block back when destroyed.
  BlockPool(std::size_t block_bytes, std::size_t capacity);
  ~BlockPool();

  // A block, or an empty handle when all are out or being read. Allocates only while fewer than `capacity` exist. Never
  // waits for a device.
  Block try_take();
  bool can_take();  // Whether there is one, or a further one may be allocated.
  // Fewer: blocks above it are freed as they come home; those that are being read then, at a later call.
  void set_capacity(std::size_t capacity);

  std::size_t block_bytes() const;
  std::size_t allocated() const;   // Blocks that exist, retired ones included.
  std::size_t out() const;         // Blocks with handles.
  std::size_t being_read() const;  // Blocks that came home, and that devices had not read when it was last looked at.
  std::size_t retired() const;

 private:
  struct Shared;
  struct Memory {
    std::byte* begin = nullptr;
    PageLock pages;       // Of whoever locked them; {}: they are not locked.
    void* end = nullptr;  // PageMark::end while it is being read.
  };
  // One node a block, which moves between lists: nothing is allocated as blocks come and go.
  using Memories = std::list<Memory>;
  std::shared_ptr<Shared> shared_;  // Owners: the pool and every block that is out.
};

class BlockPool::Block {
 public:
  Block() = default;
  Block(Block&&) noexcept;
  Block& operator=(Block&&) noexcept;
  ~Block();
  explicit operator bool() const { return !memory_.empty(); }
  std::span<std::byte> bytes() const;
  // Before others get its bytes: they may have a device copy from them, on the stream that is current on the thread
  // which destroys the handle. Copies on other streams are theirs to wait for.
  void lend() { is_lent_ = true; }

 private:
  friend class BlockPool;
  std::shared_ptr<Shared> shared_;
  Memories memory_;  // One, or none.
  bool is_lent_ = false;
};

}  // namespace headrace
