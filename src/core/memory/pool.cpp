#include "core/memory/pool.h"

#include <algorithm>
#include <mutex>
#include <new>
#include <utility>
#include <vector>

#include "core/base/fail.h"
#include "core/memory/page_lock.h"

namespace headrace {
namespace {

constexpr std::align_val_t kAlignment{64};  // A cache line, and the widest vector register.
// Of blocks large enough that a page more is little: whole pages, so that locking one locks no other's.
constexpr std::align_val_t kPageAlignment{4096};
constexpr std::size_t kWholePages = std::size_t{64} << 10;
constexpr std::size_t kInCacheMax = std::size_t{2} << 20;  // Of one core's own cache, on most machines.

}  // namespace

struct BlockPool::Shared {
  ~Shared() { release_all(home); }

  // Not touched, unless its pages are locked: whoever writes a block first has its page faults. Here they would all
  // come at once, before any work: 50 ms for four batches of 64 photographs. Without a lock held by the caller.
  static Memory allocate(std::size_t bytes) {
    void* const begin = ::operator new(room_of(bytes), alignment_of(bytes), std::nothrow);
    if (begin == nullptr) fail(ErrorCode::out_of_memory, "memory: no block of {} bytes", bytes);
    const PageLock pages = installed_page_lock();
    const bool is_locked = pages.lock != nullptr && pages.lock(begin, bytes);
    return {static_cast<std::byte*>(begin), is_locked ? pages.unlock : nullptr};
  }

  static std::align_val_t alignment_of(std::size_t bytes) { return bytes < kWholePages ? kAlignment : kPageAlignment; }
  static std::size_t room_of(std::size_t bytes) {
    const auto step = static_cast<std::size_t>(alignment_of(bytes));
    return (bytes + step - 1) / step * step;
  }

  static void release(const Memory& memory, std::size_t bytes) {
    if (memory.unlock != nullptr) memory.unlock(memory.begin);
    ::operator delete(memory.begin, alignment_of(bytes));
  }

  void release_all(const std::vector<Memory>& blocks) const {
    for (const Memory& memory : blocks) release(memory, block_bytes);
  }

  void come_home(const Memory& memory) noexcept {
    {
      const std::lock_guard lock(mutex);
      if (allocated <= capacity) {
        home.push_back(memory);  // Within reserve(capacity).
        return;
      }
      --allocated;
    }
    release(memory, block_bytes);
  }

  // The lock is held, and one is at home. Small ones: the one used last, which the caches may still hold. Large ones go
  // round, so that all are touched soon: what a process holds would else grow whenever one more is out than ever
  // before.
  Memory take_home() {
    const auto place = block_bytes > kInCacheMax ? home.begin() : home.end() - 1;
    const Memory memory = *place;
    home.erase(place);
    return memory;
  }

  // Frees what is at home above the capacity. Without a lock held by the caller.
  void shrink() {
    std::vector<Memory> surplus;
    {
      const std::lock_guard lock(mutex);
      while (allocated > capacity && !home.empty()) {
        surplus.push_back(home.back());
        home.pop_back();
        --allocated;
      }
    }
    release_all(surplus);
  }

  explicit Shared(std::size_t bytes) : block_bytes(bytes) {}
  const std::size_t block_bytes;
  mutable std::mutex mutex;  // Guards everything below.
  std::size_t capacity = 0;
  std::size_t allocated = 0;
  std::vector<Memory> home;
};

BlockPool::BlockPool(std::size_t block_bytes, std::size_t capacity) : shared_(std::make_shared<Shared>(block_bytes)) {
  HEADRACE_CHECK(block_bytes > 0, "blocks of no bytes");
  set_capacity(capacity);
}

BlockPool::~BlockPool() {
  set_capacity(0);
}

BlockPool::Block BlockPool::try_take() {
  Block block;
  {
    const std::lock_guard lock(shared_->mutex);
    if (!shared_->home.empty()) {
      block.memory_ = shared_->take_home();
      block.shared_ = shared_;
      return block;
    }
    if (shared_->allocated >= shared_->capacity) return block;
    ++shared_->allocated;
  }
  try {
    block.memory_ = Shared::allocate(shared_->block_bytes);
  } catch (...) {
    const std::lock_guard lock(shared_->mutex);
    --shared_->allocated;
    throw;
  }
  block.shared_ = shared_;
  return block;
}

void BlockPool::set_capacity(std::size_t capacity) {
  {
    const std::lock_guard lock(shared_->mutex);
    shared_->home.reserve(capacity);
    shared_->capacity = capacity;
  }
  shared_->shrink();
}

std::size_t BlockPool::block_bytes() const {
  return shared_->block_bytes;
}

std::size_t BlockPool::allocated() const {
  const std::lock_guard lock(shared_->mutex);
  return shared_->allocated;
}

std::size_t BlockPool::out() const {
  const std::lock_guard lock(shared_->mutex);
  return shared_->allocated - shared_->home.size();
}

BlockPool::Block::Block(Block&& other) noexcept
    : shared_(std::move(other.shared_)), memory_(std::exchange(other.memory_, {})) {}

BlockPool::Block& BlockPool::Block::operator=(Block&& other) noexcept {
  Block taken{std::move(other)};  // Holds, and gives back here, what this handle had.
  std::swap(shared_, taken.shared_);
  std::swap(memory_, taken.memory_);
  return *this;
}

BlockPool::Block::~Block() {
  if (memory_.begin != nullptr) shared_->come_home(memory_);
}

std::span<std::byte> BlockPool::Block::bytes() const {
  return memory_.begin == nullptr ? std::span<std::byte>{} : std::span{memory_.begin, shared_->block_bytes};
}

}  // namespace headrace
