#include "aegaeon/cuda/address_book.hpp"

#include <algorithm>
#include <iterator>
#include <mutex>

#include "aegaeon/errors.hpp"

namespace aegaeon::cuda {

void AddressBook::add(std::byte* base, std::size_t bytes, std::byte* target) {
  const std::unique_lock lock(mutex_);
  if (!entries_.try_emplace(base, Entry{bytes, target}).second) {
    throw NativeError("this memory is page-locked already; unregister it first");
  }
}

void AddressBook::remove(std::byte* base) {
  const std::unique_lock lock(mutex_);
  entries_.erase(base);
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
  return {target, std::min(reach, bytes), true};
}

std::size_t AddressBook::size() const {
  const std::shared_lock lock(mutex_);
  return entries_.size();
}

}  // namespace aegaeon::cuda
