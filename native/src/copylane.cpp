#include "aegaeon/copylane.hpp"

#include <pthread.h>
#include <signal.h>

#include <algorithm>
#include <utility>

#include "aegaeon/errors.hpp"

namespace aegaeon {

namespace {

using namespace std::chrono_literals;
constexpr auto kSlice = 50ms;         // how often a waiting lane looks whether it is being closed
constexpr auto kClosePatience = 10s;  // how long close() lets the lane wait for an event

template <class... Visitors>
struct Overloaded : Visitors... {
  using Visitors::operator()...;
};

// Python's signal handlers belong on its main thread.
void block_signals(sigset_t* before) {
  sigset_t all;
  sigfillset(&all);
  ::pthread_sigmask(SIG_SETMASK, &all, before);
}

}  // namespace

CopyLane::CopyLane(const std::string& name, std::size_t chunk_bytes, std::unique_ptr<Mover> mover)
    : chunk_bytes_(chunk_bytes), mover_(std::move(mover)) {
  if (chunk_bytes == 0) throw NativeError("copy lane " + name + ": chunk_bytes is 0");
  sigset_t before;
  block_signals(&before);
  thread_ = std::thread([this] { run(); });
  ::pthread_setname_np(thread_.native_handle(), name.substr(0, 15).c_str());
  ::pthread_sigmask(SIG_SETMASK, &before, nullptr);
}

CopyLane::~CopyLane() { CopyLane::drop(); }

void CopyLane::drop() {
  dropping_ = true;
  {
    const std::scoped_lock lock(mutex_);
    closing_ = true;
    queue_.clear();
  }
  join();
}

void CopyLane::copy(std::byte* dst, const std::byte* src, std::size_t bytes, Tag tag) {
  if (bytes != 0 && (dst == nullptr || src == nullptr)) throw NativeError("copy: a null address");
  push({Copy{dst, src, bytes}, tag});
}

void CopyLane::copy_blocks(std::byte* dst, const std::byte* src, std::size_t block_bytes,
                           std::vector<std::int32_t> dst_blocks, std::vector<std::int32_t> src_blocks, Tag tag) {
  if (dst_blocks.size() != src_blocks.size()) {
    throw NativeError("copy_blocks: " + std::to_string(dst_blocks.size()) + " blocks to, " +
                      std::to_string(src_blocks.size()) + " blocks from");
  }
  const auto negative = [](std::int32_t block) { return block < 0; };
  if (std::ranges::any_of(dst_blocks, negative) || std::ranges::any_of(src_blocks, negative)) {
    throw NativeError("copy_blocks: a negative block id");
  }
  if (!dst_blocks.empty() && (dst == nullptr || src == nullptr)) throw NativeError("copy_blocks: a null address");
  push({Blocks{dst, src, block_bytes, std::move(dst_blocks), std::move(src_blocks)}, tag});
}

void CopyLane::record(EventPtr event) { push({Record{std::move(event)}}); }

void CopyLane::wait(EventPtr event) { push({Wait{std::move(event)}}); }

void CopyLane::push(Work work) {
  const std::scoped_lock lock(mutex_);
  rethrow();
  if (closing_) throw NativeError("this copy lane is closed");
  if (work.tag != 0) ++tags_[work.tag].pending;
  queue_.push_back(std::move(work));
  queued_.notify_one();
}

void CopyLane::rethrow() {
  if (error_) std::rethrow_exception(std::exchange(error_, nullptr));
}

void CopyLane::cancel(Tag tag) {
  if (tag == 0) throw NativeError("cancel: tag 0 is for copies that are never cancelled");
  const std::scoped_lock lock(mutex_);
  tags_[tag].cancelled = true;
}

bool CopyLane::cancelled(Tag tag) {
  const std::scoped_lock lock(mutex_);
  const auto state = tags_.find(tag);
  if (state == tags_.end()) return false;
  const bool cut = state->second.cut;
  if (state->second.pending == 0) tags_.erase(state);
  return cut;
}

bool CopyLane::synchronize(std::chrono::nanoseconds time) {
  std::unique_lock lock(mutex_);
  while (!running_ && !queue_.empty() && is_small(queue_.front())) run_front(lock);
  const bool idle = idle_.wait_for(lock, time, [this] { return queue_.empty() && !running_; });
  rethrow();
  return idle;
}

// Work that a waiting caller does itself when the lane's thread has not begun it: waking that thread, and being woken
// by it, takes as long as to copy a few hundred KiB.
bool CopyLane::is_small(const Work& work) const {
  if (!mover_->any_thread()) return false;
  return std::visit(
      Overloaded{
          [this](const Copy& copy) { return copy.bytes <= chunk_bytes_; },
          [this](const Blocks& blocks) { return blocks.block_bytes * blocks.dst_blocks.size() <= chunk_bytes_; },
          [](const Record&) { return true; },
          [](const Wait&) { return false; },
      },
      work.what);
}

std::size_t CopyLane::pending() const {
  const std::scoped_lock lock(mutex_);
  return queue_.size() + (running_ ? 1 : 0);
}

void CopyLane::close() {
  {
    const std::scoped_lock lock(mutex_);
    closing_ = true;
  }
  join();
  const std::scoped_lock lock(mutex_);
  rethrow();
}

void CopyLane::join() {
  const std::scoped_lock lock(join_mutex_);
  queued_.notify_all();
  if (thread_.joinable()) thread_.join();
}

void CopyLane::run() {
  std::unique_lock lock(mutex_);
  while (true) {
    queued_.wait(lock, [this] { return !running_ && (!queue_.empty() || closing_); });
    if (queue_.empty()) return;
    run_front(lock);
  }
}

// The one place where work is performed, by one thread at a time; the lock is not held meanwhile.
void CopyLane::run_front(std::unique_lock<std::mutex>& lock) {
  Work work = std::move(queue_.front());
  queue_.pop_front();
  running_ = true;
  lock.unlock();
  try {
    perform(work);
  } catch (...) {
    fail(std::current_exception());
  }
  const Tag tag = work.tag;
  work = Work{};  // drops its event outside the lock
  lock.lock();
  finish(tag);
  running_ = false;
  if (queue_.empty()) idle_.notify_all();
  if (closing_ || !queue_.empty()) queued_.notify_one();
}

void CopyLane::perform(const Work& work) {
  std::visit(Overloaded{
                 [&](const Copy& copy) { perform_copy(copy, work.tag); },
                 [&](const Blocks& blocks) { perform_blocks(blocks, work.tag); },
                 [this](const Record& record) { perform_record(record); },
                 [this](const Wait& wait) { perform_wait(wait); },
             },
             work.what);
  if (none_queued()) mover_->finish();  // a lane is idle when the bytes are there
}

void CopyLane::perform_copy(const Copy& copy, Tag tag) {
  for (std::size_t done = 0; done < copy.bytes && !cut_now(tag);) {
    const std::size_t bytes = std::min(chunk_bytes_, copy.bytes - done);
    mover_->copy(copy.dst + done, copy.src + done, bytes, copy.bytes);
    bytes_copied_.fetch_add(bytes, std::memory_order_relaxed);
    done += bytes;
  }
}

void CopyLane::perform_blocks(const Blocks& blocks, Tag tag) {
  const std::span<const std::int32_t> to(blocks.dst_blocks);
  const std::span<const std::int32_t> from(blocks.src_blocks);
  const std::size_t in_chunk = std::max(chunk_bytes_ / std::max(blocks.block_bytes, std::size_t{1}), std::size_t{1});
  for (std::size_t done = 0; done < to.size() && !cut_now(tag);) {
    const std::size_t count = std::min(in_chunk, to.size() - done);
    mover_->copy_blocks(blocks.dst, blocks.src, blocks.block_bytes, to.subspan(done, count), from.subspan(done, count),
                        blocks.block_bytes * to.size());
    bytes_copied_.fetch_add(blocks.block_bytes * count, std::memory_order_relaxed);
    done += count;
  }
}

void CopyLane::perform_record(const Record& record) {
  if (!record.event) return;
  mover_->finish();
  record.event->set();
}

// close() must end even when the event's process has died: after a while what waits is dropped, and said so.
void CopyLane::perform_wait(const Wait& wait) {
  auto patience = std::chrono::nanoseconds(kClosePatience);
  while (!wait.event->wait_for(kSlice)) {
    if (dropping_) return;
    const std::scoped_lock lock(mutex_);
    if (!closing_) continue;
    patience -= kSlice;
    if (patience > 0ns) continue;
    throw NativeError("close: event (slot " + std::to_string(wait.event->slot()) + ", generation " +
                      std::to_string(wait.event->generation()) + ") did not happen; " + std::to_string(queue_.size()) +
                      " queued after it were dropped");
  }
}

// Asked before every chunk. Remembers that the copy was cut, for cancelled().
bool CopyLane::cut_now(Tag tag) {
  if (dropping_) return true;
  if (tag == 0) return false;
  const std::scoped_lock lock(mutex_);
  TagState& state = tags_[tag];
  state.cut = state.cut || state.cancelled;
  return state.cancelled;
}

bool CopyLane::none_queued() const {
  const std::scoped_lock lock(mutex_);
  return queue_.empty();
}

void CopyLane::finish(Tag tag) {
  const auto state = tags_.find(tag);
  if (tag == 0 || state == tags_.end()) return;
  if (state->second.pending > 0) --state->second.pending;
  if (state->second.pending == 0 && !state->second.cancelled) tags_.erase(state);
}

// What is queued behind a failure must not run as if nothing had happened.
void CopyLane::fail(std::exception_ptr error) {
  std::deque<Work> dropped;
  const std::scoped_lock lock(mutex_);
  dropped.swap(queue_);
  for (const Work& work : dropped) finish(work.tag);
  error_ = std::move(error);
}

}  // namespace aegaeon
