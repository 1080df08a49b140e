// Equal blocks of memory that are given out and come home.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>

namespace headrace {

// Blocks of `block_bytes`, 64-byte aligned, at most `capacity`. New ones are untouched: their page faults come to who
// writes them first. Where a page lock is installed (page_lock.h), they are locked as they are allocated. Blocks larger
// than a cache are given out in turn, others the last used first. Thread-safe. A block may outlive the pool: it keeps
// the memory alive and frees it itself then.
class BlockPool {
 public:
  class Block;  // Move-only handle; gives the block back when destroyed.
  BlockPool(std::size_t block_bytes, std::size_t capacity);
  ~BlockPool();

  // A block, or an empty handle when all are out. Allocates only while fewer than `capacity` exist.
  Block try_take();
  void set_capacity(std::size_t capacity);  // Fewer: blocks above it are freed as they come home.

  std::size_t block_bytes() const;
  std::size_t allocated() const;  // Blocks that exist.
  std::size_t out() const;        // Blocks not at home.

 private:
  struct Shared;
  struct Memory {
    std::byte* begin = nullptr;
    void (*unlock)(void*) = nullptr;  // Of whoever locked its pages; nullptr: they are not locked.
  };
  std::shared_ptr<Shared> shared_;  // Owners: the pool and every block that is out.
};

class BlockPool::Block {
 public:
  Block() = default;
  Block(Block&&) noexcept;
  Block& operator=(Block&&) noexcept;
  ~Block();
  explicit operator bool() const { return memory_.begin != nullptr; }
  std::span<std::byte> bytes() const;

 private:
  friend class BlockPool;
  std::shared_ptr<Shared> shared_;
  Memory memory_;
};

}  // namespace headrace
