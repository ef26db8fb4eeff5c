// Events that two processes can wait for: one 32-bit word a slot in shared memory, waited for by futex. A word holds
// the slot's generation, whether it is in use and whether the event has happened, so every step is one atomic.
#pragma once

#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <string>

#include "aegaeon/files.hpp"

namespace aegaeon {

class Event;
using EventPtr = std::shared_ptr<Event>;

class EventTable : public std::enable_shared_from_this<EventTable> {
 public:
  static std::shared_ptr<EventTable> create(const std::string& path, std::size_t slots);
  static std::shared_ptr<EventTable> attach(const std::string& path);
  static std::shared_ptr<EventTable> create_private(std::size_t slots);

  EventPtr event();
  EventPtr open(std::uint32_t slot, std::uint32_t generation);
  std::size_t in_use() const;
  void close();

 private:
  explicit EventTable(std::shared_ptr<MemoryFile> file, std::size_t slots);
  std::shared_ptr<MemoryFile> file() const;

  const std::size_t slots_;
  mutable std::mutex mutex_;
  std::shared_ptr<MemoryFile> file_;  // null once closed
  std::atomic<std::size_t> hint_{0};  // where the search for a free slot begins
};

// The one that came from EventTable::event returns its slot when it is dropped; opened ones do not.
class Event {
 public:
  using Clock = std::chrono::steady_clock;

  Event(std::shared_ptr<MemoryFile> file, std::uint32_t slot, std::uint32_t generation, bool owner);
  ~Event();
  Event(const Event&) = delete;
  Event& operator=(const Event&) = delete;

  std::uint32_t slot() const { return slot_; }
  std::uint32_t generation() const { return generation_; }
  bool done() const;
  void set();
  // True when it has happened, false when `deadline` passed first.
  bool wait_until(Clock::time_point deadline) const;
  bool wait_for(std::chrono::nanoseconds time) const { return wait_until(Clock::now() + time); }

 private:
  std::atomic<std::uint32_t>& word() const;

  const std::shared_ptr<MemoryFile> file_;  // keeps the words mapped after EventTable::close
  const std::uint32_t slot_;
  const std::uint32_t generation_;
  const bool owner_;
};

}  // namespace aegaeon
