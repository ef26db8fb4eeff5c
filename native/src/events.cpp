#include "aegaeon/events.hpp"

#include <linux/futex.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <climits>
#include <ctime>
#include <utility>

#include "aegaeon/errors.hpp"

namespace aegaeon {

namespace {

using Word = std::atomic<std::uint32_t>;
static_assert(Word::is_always_lock_free && sizeof(Word) == 4);

constexpr std::uint64_t kMagic = 0x3173746e65766561;  // "aevents1", little endian
constexpr std::uint32_t kHappened = 1;
constexpr std::uint32_t kInUse = 2;
constexpr std::uint32_t kGenerationShift = 2;
constexpr std::uint32_t kGenerationMask = UINT32_MAX >> kGenerationShift;

Word& word_at(const MemoryFile& file, std::size_t slot) { return reinterpret_cast<Word*>(file.base())[slot]; }

std::uint32_t generation_of(std::uint32_t word) { return word >> kGenerationShift; }

void wake_all(Word& word) {
  ::syscall(SYS_futex, reinterpret_cast<std::uint32_t*>(&word), FUTEX_WAKE, INT_MAX, nullptr, nullptr, 0);
}

std::size_t valid_slots(std::size_t slots) {
  if (slots == 0 || slots > INT_MAX) throw NativeError("an event table of " + std::to_string(slots) + " slots");
  return slots;
}

timespec to_timespec(Event::Clock::time_point when) {
  const auto since = std::chrono::duration_cast<std::chrono::nanoseconds>(when.time_since_epoch()).count();
  return {since / 1'000'000'000, since % 1'000'000'000};
}

std::shared_ptr<MemoryFile> anonymous_words(std::size_t slots) {
  return MemoryFile::anonymous_linear("aegaeon-events", {kMagic, sizeof(Word), valid_slots(slots)});
}

}  // namespace

EventTable::EventTable(std::shared_ptr<MemoryFile> file, std::size_t slots) : slots_(slots), file_(std::move(file)) {}

std::shared_ptr<EventTable> EventTable::create(const std::string& path, std::size_t slots) {
  std::shared_ptr<MemoryFile> file = MemoryFile::create(path, {kMagic, sizeof(Word), valid_slots(slots)});
  return std::shared_ptr<EventTable>(new EventTable(std::move(file), slots));
}

std::shared_ptr<EventTable> EventTable::attach(const std::string& path) {
  std::shared_ptr<MemoryFile> file = MemoryFile::attach(path, kMagic, true);
  const std::size_t slots = valid_slots(file->trailer().units);
  return std::shared_ptr<EventTable>(new EventTable(std::move(file), slots));
}

std::shared_ptr<EventTable> EventTable::create_private(std::size_t slots) {
  return std::shared_ptr<EventTable>(new EventTable(anonymous_words(slots), slots));
}

std::shared_ptr<MemoryFile> EventTable::file() const {
  const std::scoped_lock lock(mutex_);
  if (!file_) throw NativeError("this event table is closed");
  return file_;
}

EventPtr EventTable::event() {
  auto memory = file();
  const std::size_t start = hint_.fetch_add(1, std::memory_order_relaxed);
  for (std::size_t i = 0; i < slots_; ++i) {
    const std::size_t slot = (start + i) % slots_;
    Word& word = word_at(*memory, slot);
    std::uint32_t seen = word.load(std::memory_order_relaxed);
    if ((seen & kInUse) != 0) continue;
    const std::uint32_t generation = generation_of(seen);
    const std::uint32_t fresh = (generation << kGenerationShift) | kInUse;
    if (!word.compare_exchange_strong(seen, fresh, std::memory_order_acq_rel)) continue;
    return std::make_shared<Event>(std::move(memory), static_cast<std::uint32_t>(slot), generation, true);
  }
  throw NativeError("all " + std::to_string(slots_) + " event slots are in use; drop events or make a larger table");
}

EventPtr EventTable::open(std::uint32_t slot, std::uint32_t generation) {
  if (slot >= slots_) {
    throw NativeError("event slot " + std::to_string(slot) + " of a table of " + std::to_string(slots_));
  }
  return std::make_shared<Event>(file(), slot, generation, false);
}

std::size_t EventTable::in_use() const {
  const auto memory = file();
  std::size_t used = 0;
  for (std::size_t slot = 0; slot < slots_; ++slot) used += (word_at(*memory, slot).load() & kInUse) != 0;
  return used;
}

void EventTable::close() {
  const std::scoped_lock lock(mutex_);
  if (file_) file_->remove();
  file_.reset();
}

Event::Event(std::shared_ptr<MemoryFile> file, std::uint32_t slot, std::uint32_t generation, bool owner)
    : file_(std::move(file)), slot_(slot), generation_(generation), owner_(owner) {}

Word& Event::word() const { return word_at(*file_, slot_); }

// A generation that has passed belonged to an event that was dropped and can never be set, so it counts as set.
bool Event::done() const {
  const std::uint32_t seen = word().load(std::memory_order_acquire);
  return generation_of(seen) != generation_ || (seen & kHappened) != 0;
}

void Event::set() {
  std::uint32_t seen = word().load(std::memory_order_relaxed);
  while (generation_of(seen) == generation_ && (seen & kHappened) == 0) {
    if (!word().compare_exchange_weak(seen, seen | kHappened, std::memory_order_acq_rel)) continue;
    wake_all(word());
    return;
  }
}

bool Event::wait_until(Clock::time_point deadline) const {
  const timespec when = to_timespec(deadline);
  auto* address = reinterpret_cast<std::uint32_t*>(&word());
  while (!done()) {
    if (Clock::now() >= deadline) return false;
    const std::uint32_t unset = (generation_ << kGenerationShift) | kInUse;
    const long code = ::syscall(SYS_futex, address, FUTEX_WAIT_BITSET, unset, &when, nullptr, FUTEX_BITSET_MATCH_ANY);
    if (code != 0 && errno != EAGAIN && errno != EINTR && errno != ETIMEDOUT) throw_errno("futex wait");
  }
  return true;
}

Event::~Event() {
  if (!owner_) return;
  const std::uint32_t next = ((generation_ + 1) & kGenerationMask) << kGenerationShift;
  const std::uint32_t last = word().exchange(next, std::memory_order_acq_rel);
  if ((last & kHappened) == 0) wake_all(word());
}

}  // namespace aegaeon
