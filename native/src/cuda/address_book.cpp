#include "aegaeon/cuda/address_book.hpp"

#include <algorithm>
#include <iterator>
#include <mutex>

#include "aegaeon/errors.hpp"

namespace aegaeon::cuda {

// Devices keep it, so it outlives the end of the program's own statics.
const std::shared_ptr<AddressBook>& AddressBook::of_process() {
  static const auto book = std::make_shared<AddressBook>();
  return book;
}

void AddressBook::add(std::byte* base, std::size_t bytes, std::byte* target) {
  const std::unique_lock lock(mutex_);
  if (!entries_.try_emplace(base, Entry{bytes, target}).second) {
    throw NativeError("this memory is page-locked already; unregister it first");
  }
}

void AddressBook::add_locked(std::byte* base, std::size_t bytes, std::size_t piece_bytes) {
  add(base, bytes, base);
  const std::unique_lock lock(mutex_);
  for (std::size_t at = 0; at < bytes; at += piece_bytes) borders_.insert(base + at);
}

std::size_t AddressBook::remove(std::byte* base) {
  const std::unique_lock lock(mutex_);
  const auto entry = entries_.find(base);
  if (entry == entries_.end()) return 0;
  const std::size_t bytes = entry->second.bytes;
  if (entry->second.target == base) borders_.erase(borders_.lower_bound(base), borders_.lower_bound(base + bytes));
  entries_.erase(entry);
  return bytes;
}

AddressBook::Reach AddressBook::find(std::byte* address, std::size_t bytes) const {
  const std::shared_lock lock(mutex_);
  auto entry = entries_.upper_bound(address);
  if (entry == entries_.begin()) return {address, bytes, false};
  entry = std::prev(entry);
  const auto skip = static_cast<std::size_t>(address - entry->first);
  if (skip >= entry->second.bytes) return {address, bytes, false};
  std::byte* target = entry->second.target + skip;
  std::size_t reach = entry->second.bytes - skip;
  for (auto next = std::next(entry); reach < bytes && next != entries_.end(); ++next) {
    if (next->first != address + reach || next->second.target != target + reach) break;
    reach += next->second.bytes;
  }
  const auto border = borders_.upper_bound(target);
  if (border != borders_.end()) reach = std::min(reach, static_cast<std::size_t>(*border - target));
  return {target, std::min(reach, bytes), true, borders_.contains(target)};
}

std::size_t AddressBook::size() const {
  const std::shared_lock lock(mutex_);
  return entries_.size();
}

}  // namespace aegaeon::cuda
