#include "core/memory/pool.h"

#include <array>
#include <cstddef>
#include <iterator>
#include <mutex>
#include <new>
#include <utility>

#include "core/base/fail.h"

namespace headrace {
namespace {

constexpr std::align_val_t kAlignment{64};  // A cache line, and the widest vector register.
// Of blocks large enough that a page more is little: whole pages, so that locking one locks no other's.
constexpr std::align_val_t kPageAlignment{4096};
constexpr std::size_t kWholePages = std::size_t{64} << 10;
constexpr std::size_t kInCacheMax = std::size_t{2} << 20;  // Of one core's own cache, on most machines.

}  // namespace

struct BlockPool::Shared {
  explicit Shared(std::size_t bytes) : block_bytes(bytes) {}
  ~Shared() {
    for (const Memory& memory : marked) memory.pages.wait(memory.end);
    release_all(marked);
    release_all(home);
  }

  // Not touched, unless its pages are locked: whoever writes a block first has its page faults. Here they would all
  // come at once, before any work: 50 ms for four batches of 64 photographs. Without a lock held by the caller.
  static Memories allocate(std::size_t bytes) {
    Memories one(1);
    void* const begin = ::operator new(room_of(bytes), alignment_of(bytes), std::nothrow);
    if (begin == nullptr) fail(ErrorCode::out_of_memory, "memory: no block of {} bytes", bytes);
    one.front().begin = static_cast<std::byte*>(begin);
    const PageLock pages = installed_page_lock();
    if (pages.lock != nullptr && pages.lock(begin, bytes)) one.front().pages = pages;
    return one;
  }

  static std::align_val_t alignment_of(std::size_t bytes) { return bytes < kWholePages ? kAlignment : kPageAlignment; }
  static std::size_t room_of(std::size_t bytes) {
    const auto step = static_cast<std::size_t>(alignment_of(bytes));
    return (bytes + step - 1) / step * step;
  }

  void release_all(const Memories& blocks) const {
    for (const Memory& memory : blocks) {
      if (memory.pages.unlock != nullptr) memory.pages.unlock(memory.begin);
      ::operator delete(memory.begin, alignment_of(block_bytes));
    }
  }

  void come_home(Memories one, bool is_lent) noexcept {
    Memory& memory = one.front();
    PageMark mark;
    if (is_lent && memory.pages.mark != nullptr) mark = memory.pages.mark();
    if (mark.reads == PageMark::Reads::unknown) return retire(std::move(one));
    const bool is_read = mark.reads == PageMark::Reads::none;
    memory.end = mark.end;
    {
      const std::lock_guard lock(mutex);
      Memories& to = is_read ? home : marked;
      to.splice(to.end(), one);
      if (allocated <= capacity) return;
    }
    shrink();
  }

  void retire(Memories one) noexcept {
    {
      const std::lock_guard lock(mutex);
      ++retired;
    }
    // Reachable, for leak checkers, and never destroyed: blocks may come home after static objects are.
    static constinit std::mutex all_mutex;
    alignas(Memories) static std::array<std::byte, sizeof(Memories)> place;
    static Memories& all = *new (place.data()) Memories;
    const std::lock_guard lock(all_mutex);
    all.splice(all.end(), one);
  }

  // The lock is held.
  bool has_home() {
    if (home.empty()) bring_home_what_is_read();
    return !home.empty();
  }

  // The lock is held, though the page lock is called: it calls nothing of ours, and waits for nothing.
  void bring_home_what_is_read() {
    for (auto next = marked.begin(); next != marked.end();) {
      const auto memory = next++;
      if (!memory->pages.has_passed(memory->end)) continue;
      memory->end = nullptr;
      home.splice(home.end(), marked, memory);
    }
  }

  // The lock is held, and one is at home. Small ones: the one used last, which the caches may still hold. Large ones go
  // round, so that all are touched soon: what a process holds would else grow whenever one more is out than ever
  // before.
  Memories take_home() {
    Memories one;
    one.splice(one.begin(), home, block_bytes > kInCacheMax ? home.begin() : std::prev(home.end()));
    return one;
  }

  // Frees what is at home above the capacity. Without a lock held by the caller.
  void shrink() {
    Memories surplus;
    {
      const std::lock_guard lock(mutex);
      if (allocated > capacity) bring_home_what_is_read();
      while (allocated > capacity && !home.empty()) {
        surplus.splice(surplus.end(), home, std::prev(home.end()));
        --allocated;
      }
    }
    release_all(surplus);
  }

  const std::size_t block_bytes;
  mutable std::mutex mutex;  // Guards everything below.
  std::size_t capacity = 0;
  std::size_t allocated = 0;
  std::size_t retired = 0;
  Memories home;
  Memories marked;  // Being read by devices, as far as is known.
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
    if (shared_->has_home()) {
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

bool BlockPool::can_take() {
  const std::lock_guard lock(shared_->mutex);
  return shared_->has_home() || shared_->allocated < shared_->capacity;
}

void BlockPool::set_capacity(std::size_t capacity) {
  {
    const std::lock_guard lock(shared_->mutex);
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
  return shared_->allocated - shared_->home.size() - shared_->marked.size() - shared_->retired;
}

std::size_t BlockPool::being_read() const {
  const std::lock_guard lock(shared_->mutex);
  return shared_->marked.size();
}

std::size_t BlockPool::retired() const {
  const std::lock_guard lock(shared_->mutex);
  return shared_->retired;
}

BlockPool::Block::Block(Block&& other) noexcept
    : shared_(std::move(other.shared_)),
      memory_(std::move(other.memory_)),
      is_lent_(std::exchange(other.is_lent_, false)) {}

BlockPool::Block& BlockPool::Block::operator=(Block&& other) noexcept {
  Block taken{std::move(other)};  // Holds, and gives back here, what this handle had.
  std::swap(shared_, taken.shared_);
  memory_.swap(taken.memory_);
  std::swap(is_lent_, taken.is_lent_);
  return *this;
}

BlockPool::Block::~Block() {
  if (!memory_.empty()) shared_->come_home(std::move(memory_), is_lent_);
}

std::span<std::byte> BlockPool::Block::bytes() const {
  return memory_.empty() ? std::span<std::byte>{} : std::span{memory_.front().begin, shared_->block_bytes};
}

}  // namespace headrace
