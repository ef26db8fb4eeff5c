#include <algorithm>
#include <memory>

#include "aegaeon/blocks.hpp"
#include "aegaeon/cuda/stores.hpp"
#include "aegaeon/range.hpp"
#include "aegaeon/slabs.hpp"
#include "bindings.hpp"

namespace {

using aegaeon::BlockPool;
using aegaeon::Range;
using aegaeon::SlabPool;
using aegaeon::cuda::SharedDevice;
using Int32Result = nb::ndarray<nb::numpy, std::int32_t, nb::ndim<1>>;

// An array over addresses that may not be mapped: nothing is read, and `owner` keeps the addresses reserved.
ByteView view_of(std::uintptr_t address, std::size_t bytes, nb::handle owner) {
  return ByteView(reinterpret_cast<std::uint8_t*>(address), {bytes}, owner);
}

Int32Result owned(std::unique_ptr<std::int32_t[]> numbers, std::size_t count) {
  std::int32_t* data = numbers.release();
  const nb::capsule owner(data, [](void* p) noexcept { delete[] static_cast<std::int32_t*>(p); });
  return {data, {count}, owner};
}

template <typename Number>
Int32Result array_of(const std::vector<Number>& numbers) {
  auto copy = std::make_unique<std::int32_t[]>(numbers.size());
  std::transform(numbers.begin(), numbers.end(), copy.get(), [](Number n) { return static_cast<std::int32_t>(n); });
  return owned(std::move(copy), numbers.size());
}

Int32Result allocate(BlockPool& pool, std::size_t count, std::size_t grant) {
  if (count > pool.capacity()) {
    throw aegaeon::OutOfSlabs("allocate: " + std::to_string(count) + " blocks asked for, the range has " +
                              std::to_string(pool.capacity()));
  }
  auto blocks = std::make_unique<std::int32_t[]>(count);
  {
    const nb::gil_scoped_release release;
    pool.allocate({blocks.get(), count}, grant);
  }
  return owned(std::move(blocks), count);
}

// The same for any consumer of DLPack, on whichever device the addresses are.
DeviceView dlpack_of(std::uintptr_t address, std::size_t bytes, int device, nb::handle owner) {
  const bool host = device == aegaeon::SlabStore::kHost;
  const int type = host ? nb::device::cpu::value : nb::device::cuda::value;
  return DeviceView(reinterpret_cast<void*>(address), {bytes}, owner, {}, nb::dtype<std::uint8_t>(), type,
                    host ? 0 : device);
}

void require_host(int device) {
  if (device != aegaeon::SlabStore::kHost) throw aegaeon::NativeError("view: this is device memory; use dlpack()");
}

// Every call that takes blocks takes an int32 array as it is, and any other sequence by conversion.
template <typename Class, typename Call>
void def_blocks(Class& c, const char* name, Call call) {
  c.def(
      name, [call](BlockPool& pool, Int32Array blocks) { return call(pool, span_of(blocks)); },
      nb::arg("blocks").noconvert());
  c.def(name, [call](BlockPool& pool, const Int32s& blocks) { return call(pool, std::span(blocks)); }, "blocks"_a);
}

std::shared_ptr<SlabPool> create_shared(const std::string& path, std::size_t slab_bytes, std::size_t slabs,
                                        const SharedDevice& device) {
  return SlabPool::create_shared(path, slab_bytes, slabs, aegaeon::cuda::locking(device));
}

std::shared_ptr<SlabPool> attach(const std::string& path, const SharedDevice& device) {
  return SlabPool::attach(path, aegaeon::cuda::locking(device), device && !device->locks_read_only());
}

// Where each rank has it.
template <typename Class>
std::vector<std::uintptr_t> addresses(const Class& memory) {
  std::vector<std::uintptr_t> found;
  found.reserve(memory.ranks());
  for (std::size_t rank = 0; rank < memory.ranks(); ++rank) found.push_back(memory.address(rank));
  return found;
}

template <typename Class>
void def_addresses(nb::class_<Class>& c) {
  c.def_prop_ro("ranks", &Class::ranks)
      .def_prop_ro("address", [](const Class& memory) { return memory.address(0); })
      .def_prop_ro("addresses", &addresses<Class>);
}

void bind_slab_pool(nb::module_& m) {
  nb::class_<SlabPool> c(m, "SlabPool", nb::is_final());
  def_addresses(c);
  c.def_static("private", &SlabPool::create_private, "name"_a, "slab_bytes"_a, "slabs"_a)
      .def_static("shared", &create_shared, "path"_a, "slab_bytes"_a, "slabs"_a, "device"_a = nb::none(), GilFree())
      .def_static("attach", &attach, "path"_a, "device"_a = nb::none(), GilFree())
      .def_static("gang", &SlabPool::gang, "pools"_a)
      .def_static("cuda", &aegaeon::cuda::create_pool, "device"_a, "slab_bytes"_a, "slabs"_a, GilFree())
      .def_prop_ro("slab_bytes", &SlabPool::slab_bytes)
      .def_prop_ro("total", &SlabPool::total)
      .def_prop_ro("free", &SlabPool::free)
      .def_prop_ro("kept", &SlabPool::kept)
      .def("take", &SlabPool::take, "count"_a)
      .def(
          "give", [](SlabPool& pool, const Int32s& slabs) { pool.give(slabs); }, "slabs"_a)
      .def(
          "keep", [](SlabPool& pool, const Int32s& slabs) { return pool.keep(slabs); }, "slabs"_a)
      .def("reclaim", &SlabPool::reclaim, "ticket"_a)
      .def("prefault", &SlabPool::prefault, "slab"_a, GilFree())
      .def("check", &SlabPool::check)
      .def("close", &SlabPool::close);
}

void bind_range(nb::module_& m) {
  nb::class_<Range> c(m, "Range", nb::is_final());
  def_addresses(c);
  c.def(nb::init<std::shared_ptr<SlabPool>, std::size_t>(), "pool"_a, "slabs"_a)
      .def_prop_ro("slabs", &Range::slabs)
      .def_prop_ro("mapped", &Range::mapped)
      .def(
          "map", [](Range& range, std::size_t position, const Int32s& slabs) { range.map(position, slabs); },
          "position"_a, "slabs"_a, GilFree())
      .def("unmap", &Range::unmap, "position"_a, "count"_a, GilFree())
      .def(
          "view",
          [](nb::handle_t<Range> self, std::size_t offset, std::size_t nbytes, std::size_t rank) {
            const auto& range = nb::cast<Range&>(self);
            std::byte* at = range.at(offset, nbytes, rank);
            require_host(range.device(rank));
            return view_of(reinterpret_cast<std::uintptr_t>(at), nbytes, self);
          },
          "offset"_a, "nbytes"_a, "rank"_a = 0)
      .def(
          "dlpack",
          [](nb::handle_t<Range> self, std::size_t offset, std::size_t nbytes, std::size_t rank) {
            const auto& range = nb::cast<Range&>(self);
            std::byte* at = range.at(offset, nbytes, rank);
            return dlpack_of(reinterpret_cast<std::uintptr_t>(at), nbytes, range.device(rank), self);
          },
          "offset"_a, "nbytes"_a, "rank"_a = 0)
      .def("close", &Range::close, GilFree());
}

void bind_block_pool(nb::module_& m) {
  nb::class_<BlockPool> c(m, "BlockPool", nb::is_final());
  def_addresses(c);
  c.def(nb::init<std::shared_ptr<SlabPool>, std::size_t, std::size_t>(), "pool"_a, "block_bytes"_a, "max_slabs"_a)
      .def_prop_ro("block_bytes", &BlockPool::block_bytes)
      .def_prop_ro("capacity", &BlockPool::capacity)
      .def_prop_ro("free", &BlockPool::free)
      .def_prop_ro("used", &BlockPool::used)
      .def_prop_ro("references", &BlockPool::references)
      .def_prop_ro("kept", &BlockPool::kept)
      .def_prop_ro("mapped_slabs", &BlockPool::mapped_slabs)
      .def_prop_ro("held_slabs", &BlockPool::held_slabs)
      .def_prop_ro("slabs", &BlockPool::slabs)
      .def("slabs_for", &BlockPool::slabs_for, "count"_a)
      .def("allocate", &allocate, "count"_a, "grant"_a)
      .def(
          "cached", [](const BlockPool& pool, bool ready) { return array_of(pool.cached(ready)); }, "ready"_a = false)
      .def("cached_positions", [](const BlockPool& pool) { return array_of(pool.cached_positions()); })
      .def(
          "view",
          [](nb::handle_t<BlockPool> self, std::size_t rank) {
            const auto& pool = nb::cast<BlockPool&>(self);
            const std::uintptr_t address = pool.address(rank);
            require_host(pool.device(rank));
            return view_of(address, pool.capacity() * pool.block_bytes(), self);
          },
          "rank"_a = 0)
      .def(
          "dlpack",
          [](nb::handle_t<BlockPool> self, std::size_t rank) {
            const auto& pool = nb::cast<BlockPool&>(self);
            return dlpack_of(pool.address(rank), pool.capacity() * pool.block_bytes(), pool.device(rank), self);
          },
          "rank"_a = 0)
      .def("check", &BlockPool::check, GilFree())
      .def("close", &BlockPool::close, GilFree());
  using Blocks = std::span<const std::int32_t>;
  c.def(
      "retain", [](BlockPool& pool, Int32Array blocks, std::size_t grant) { pool.retain(span_of(blocks), grant); },
      nb::arg("blocks").noconvert(), "grant"_a = 0);
  c.def(
      "retain", [](BlockPool& pool, const Int32s& blocks, std::size_t grant) { pool.retain(blocks, grant); },
      "blocks"_a, "grant"_a = 0);
  def_blocks(c, "keep", [](BlockPool& pool, Blocks blocks) { pool.keep(blocks); });
  def_blocks(c, "release", [](BlockPool& pool, Blocks blocks) {
    const nb::gil_scoped_release release;
    return pool.release(blocks);
  });
  def_blocks(c, "forget", [](BlockPool& pool, Blocks blocks) {
    const nb::gil_scoped_release release;
    return pool.forget(blocks);
  });
}

}  // namespace

void bind_memory(nb::module_& m) {
  bind_slab_pool(m);
  bind_range(m);
  bind_block_pool(m);
}
